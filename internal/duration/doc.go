// Package duration owns the two forms of durations in requests and responses (docs/reference/jobs.md, Times and durations):
// ISO 8601 with fixed lengths for year (365 d) and month (30 d), and the short form of SDKs and the CLI, such as 500ms or 7d.
// It must never accept a value above Max.
//
// No library fits: the grammar excludes signs, lower case and fractions outside seconds.
package duration
