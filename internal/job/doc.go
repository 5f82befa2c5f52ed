// Package job owns what a job is: its states and attributes, the requests about jobs that the stores take, their limits and
// defaults, and every rule by which they are accepted or refused, with the message that says why. A new job is read in two
// stages: JSON or a Draft puts each attribute in its place, then one set of rules makes a Job of it. Errors that workers
// report are normalised here.
//
// It must never read a database, and never change what a client's JSON says: number literals, string escapes and key order reach
// the store as they came; only white space goes. Package clock, which knows the time of the database, is asked for the time in
// new ids, and to refuse a pending job with a schedule in the future; no other time comes from here.
//
// Errors are collected, not returned at the first one: an answer lists up to 50 problems of a body. Only what makes the rest
// unreadable (size, broken JSON, a batch that is no array) ends a decoder at once.
package job
