// Package limit owns rate and concurrency limits: which of the jobs that wait for a limit may be fetched (admit.go, migration 00007),
// and what is known of partitions. A job with a limit key is admitted, that is, gets its place in the fetch order, when its partition has room;
// claims know nothing of it. It must never count a partition without the lock of its row, and never wait for the row of a job.
package limit
