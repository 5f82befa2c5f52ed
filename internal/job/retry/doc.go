// Package retry owns the retry policy: its JSON, its delays, and what becomes of a job when an attempt fails
// (docs/reference/retries.md, Policy).
//
// It computes; it never reads a clock or a database.
package retry
