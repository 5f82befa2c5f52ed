// Package workflow owns workflows: their definitions, their steps, and what follows from the end of a job that belongs to
// one. It inserts and cancels jobs through package queue, and must never change a job by a statement of its own. A root and
// all workflows nested in it are changed under the lock of the root's row only.
package workflow
