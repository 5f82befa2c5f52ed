// Package job owns what a job is: its states and attributes, the requests about jobs that the stores take, their limits and
// defaults, and every rule by which they are accepted or refused, with the message that says why. A new job is read in two
// stages: JSON or a Draft puts each attribute in its place, then one set of rules makes a Job of it. Errors that workers
// report are normalised here.
//
// It must never read a database or a clock, and never change what a client's JSON says: number literals, string escapes and key
// order reach the store as they came; only white space goes.
package job
