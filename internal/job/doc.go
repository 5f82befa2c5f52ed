// Package envelope turns request bodies into validated values for the store: new jobs, the calls of workers, and the
// error objects that workers report (contract 10 §1.4, §3, §5–§10).
//
// It never reads a database and never changes what a client's JSON says: number literals, string escapes and key order
// reach the store as they came; only white space goes.
package job
