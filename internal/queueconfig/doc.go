// Package queueconfig owns what is configured for a queue: the fields that clients send, their effective values, and the cache
// that every enqueue of a node reads. It must never cost a queue without configuration a statement, a lock or a count.
package queueconfig
