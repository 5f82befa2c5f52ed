// Package ojs owns the wire types of the Open Job Spec as ojsd uses it over HTTP, for the server and for Go programs that
// enqueue or run jobs.
//
// It must never import a package outside the standard library, or know of storage or transport.
package ojs
