package pg_test

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/pg"
)

// reporting is a server that reports parameters when a client connects, and goes away then.
func reporting(t *testing.T, parameters map[string]string) *pgx.ConnConfig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		backend := pgproto3.NewBackend(conn, conn)
		if _, err = backend.ReceiveStartupMessage(); err != nil {
			t.Error(err)
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		for name, value := range parameters {
			backend.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
		}
		backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err = backend.Flush(); err != nil {
			t.Error(err)
		}
		_, _ = backend.Receive()
	}()
	c, err := pgx.ParseConfig("postgres://u@" + l.Addr().String() + "/d?sslmode=disable")
	require.NoError(t, err)
	return c
}

func TestRefusesServersThatItCannotUse(t *testing.T) {
	t.Parallel()
	const old, encoding, usable = "and ojsd needs 14 or later", "and ojsd needs UTF8", "read backend pid"
	for _, test := range []struct{ version, encoding, want string }{
		{"9.6.24", "UTF8", old}, {"10.5", "UTF8", old}, {"13.22 (Debian 13.22-1.pgdg12+1)", "UTF8", old}, {"13beta1", "UTF8", old},
		{"14.0", "UTF8", usable}, {"18.1 (Debian 18.1-1)", "", usable}, {"19beta2", "UTF8", usable}, {"20.3", "UTF8", usable}, {"101.2", "UTF8", usable},
		{"", "", usable}, {"another", "UTF8", usable}, {"18.1", "SQL_ASCII", encoding}, {"13.1", "LATIN1", encoding},
	} {
		_, _, err := pg.ConnectSession(t.Context(), reporting(t, map[string]string{"server_version": test.version, "server_encoding": test.encoding}))
		require.ErrorContains(t, err, test.want, test.version)
	}
}
