// Package ojs holds the wire types of the Open Job Spec as ojsd speaks it over HTTP. Both sides use them: the server
// and Go programs that enqueue or run jobs.
//
// It links nothing outside the standard library and knows nothing of storage or transport.
package ojs
