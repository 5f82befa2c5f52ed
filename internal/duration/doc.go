// Package duration reads and prints the durations of the contract: ISO 8601 with fixed lengths for year (365 d) and
// month (30 d), and the short form of SDKs and the CLI, such as 500ms or 7d.
//
// No library fits: the grammar refuses signs, lower case and fractions outside seconds, and bounds the value.
package duration
