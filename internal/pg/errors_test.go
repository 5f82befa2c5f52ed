package pg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// What clients are told about an error of Postgres: a failover answers 503 and never 500.
func TestClientError(t *testing.T) {
	t.Parallel()
	for code, kind := range map[string]ojs.ErrorKind{
		"57P01": ojs.ErrUnavailable, // admin_shutdown
		"57P02": ojs.ErrUnavailable, // crash_shutdown
		"57P03": ojs.ErrUnavailable, // cannot_connect_now
		"57P05": ojs.ErrUnavailable, // idle_session_timeout
		"08006": ojs.ErrUnavailable,
		"53300": ojs.ErrUnavailable,
		"25006": ojs.ErrUnavailable,
		"57014": ojs.ErrTimeout,
		"55P03": ojs.ErrTimeout,
		"42P01": "", // a defect of this program
		"22000": "",
	} {
		var wire *ojs.Error
		err := pg.ClientError(fmt.Errorf("fetch: %w", &pgconn.PgError{Code: code}))
		if kind == "" {
			require.NotErrorAs(t, err, &wire, code)
			continue
		}
		require.ErrorAs(t, err, &wire, code)
		require.Equal(t, string(kind), wire.Type, code)
	}
}

func TestIsOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"none":             {nil, false},
		"error":            {&pgconn.PgError{Code: "23505", SeverityUnlocalized: "ERROR"}, false},
		"cancelled":        {&pgconn.PgError{Code: "57014", SeverityUnlocalized: "ERROR"}, false},
		"fatal":            {&pgconn.PgError{Code: "57P01", SeverityUnlocalized: "FATAL"}, true},
		"connect":          {&pgconn.ConnectError{}, false},
		"end of stream":    {io.ErrUnexpectedEOF, true},
		"closed by driver": {pgconn.ErrConnClosed, true},
		"no connection":    {context.DeadlineExceeded, false}, // of the pool
		"other":            {errors.New("x"), false},
	} {
		require.Equal(t, c.want, pg.IsOutcomeUnknown(c.err), name)
	}
}
