// Package queueconfig owns what is configured for a queue: the fields that clients send, their effective values, and the cache
// that every enqueue of a node reads. It must never cost a queue without configuration a statement, a lock or a count.
//
// A queue is plain if it is active and has no configuration, neither its own nor that of Default. Nearly all queues are,
// and none of them is in the cache. Everything in a View is read-only and shared by all requests of the node.
//
// What holds for a queue is computed once per change and node, not per job: cache.go reads the rows, config.go and
// fields.go decode them, view.go answers look-ups without a lock. change.go merges what clients send into what is stored;
// the transaction around it belongs to package queueadmin.
//
// How old a view may be is part of the contract with clients: a change holds on every node within follow.Settled
// (docs/reference/queues.md, Configuration).
package queueconfig
