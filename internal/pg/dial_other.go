//go:build !linux

package pg

import "syscall"

// limitUnacknowledged does nothing: only Linux has TCP_USER_TIMEOUT.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }
