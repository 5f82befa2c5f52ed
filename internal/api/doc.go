// Package node holds what the interfaces of one server process share and that is no job: who may call, how the node is,
// what it offers, and how many streams are open. httpapi and grpcapi show it, each in its own words. It must never speak
// a protocol, nor decide anything about a job.
package api
