// Package workflow owns workflows: their definitions, their steps, and what follows from the end of a job that belongs to
// one. It inserts and cancels jobs through package queue, and must never change a job by a statement of its own. A root and
// all workflows nested in it are changed under the lock of the root's row only.
//
// The way of a change: a statement of package queue ends a job and writes a row into ojs.workflow_pending in the same
// transaction. After that commit the node calls Advance, which takes the row and changes the tree in a second transaction.
// A node that stops between the two leaves the row; the Follower of any node finds it. So the tree may lag behind its jobs,
// but no change is lost, and none is applied twice, because the row is deleted in the transaction that applies it.
//
// Reads take no lock. They show the job of a step beside the stored state of the step where the tree has not followed yet.
package workflow
