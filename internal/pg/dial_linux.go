package pg

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged lets a connection fail when the server acknowledges nothing for userTimeout. Otherwise the kernel repeats what
// was sent for a quarter of an hour, and keepalive does not count meanwhile.
func limitUnacknowledged(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}
