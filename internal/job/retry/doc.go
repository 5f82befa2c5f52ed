// Package retry owns the retry policy: its JSON, its delays, and what becomes of a job when an attempt fails
// (contract 20 §2).
//
// It computes; it never reads a clock or a database.
package retry
