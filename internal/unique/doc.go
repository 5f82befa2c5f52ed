// Package unique owns what makes a job equivalent to another one (docs/reference/unique.md): the key of a job, the lock of that
// key, the search for jobs that hold it, and the decision what to do about them. It stores and cancels nothing: package queue
// does that, in the transaction that holds the lock.
package unique
