package pg_test

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ojsd/ojsd/internal/pg"
)

// TestUserTimeout: a connection whose server acknowledges nothing fails in seconds, not in a quarter of an hour.
func TestUserTimeout(t *testing.T) {
	t.Parallel()
	c, err := pgx.ParseConfig("host=127.0.0.1")
	require.NoError(t, err)
	pg.Prepare(c, "test")
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			address := map[string]string{"tcp": "127.0.0.1:0", "unix": "@" + t.Name()}[network]
			l, err := net.Listen(network, address)
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			conn, err := c.DialFunc(t.Context(), network, l.Addr().String())
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			tcp, ok := conn.(*net.TCPConn)
			if !ok {
				return // it has no such limit, and is connected all the same
			}
			raw, err := tcp.SyscallConn()
			require.NoError(t, err)
			var limit int
			var limitErr error
			require.NoError(t, raw.Control(func(fd uintptr) {
				limit, limitErr = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			}))
			require.NoError(t, limitErr)
			require.Equal(t, 15_000, limit)
		})
	}
}
