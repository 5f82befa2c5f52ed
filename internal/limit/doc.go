// Package limit owns rate and concurrency limits: which of the jobs that wait for a limit may be fetched (admit.go,
// migration 00007), and what is known of partitions. A job with a limit key is admitted, that is, gets its place in the
// fetch order, when its partition has room; claims know nothing of it. It must never count a partition without the lock of
// its row, and never wait for the row of a job.
//
// What moves is written in SQL: limit_admit counts a partition under the lock of its row and gives places. This package
// decides when to call it. Calling it too often costs a statement; a call that is missing is made up for by the Follower of
// any node, because statements that may make room leave a row in ojs.limit_pending.
//
// Limits of queues are the same partitions under a key of their own (queue:…), but are counted by the claim itself, in
// package queue; here they are only shown and overridden.
package limit
