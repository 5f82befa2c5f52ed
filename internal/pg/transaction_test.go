package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// setting reads one inside of a transaction.
func setting(t *testing.T, tx pgx.Tx, name string) (value string) {
	t.Helper()
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
	return value
}

func TestTransactions(t *testing.T) {
	t.Parallel()

	t.Run("EndWithoutTheirNode", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t) // sets nothing in its sessions, as behind a pooler
		limits := func(tx pgx.Tx, isolation string) error {
			require.Equal(t, isolation, setting(t, tx, "transaction_isolation"))
			require.Equal(t, "10s", setting(t, tx, "idle_in_transaction_session_timeout"))
			require.Equal(t, "15s", setting(t, tx, "statement_timeout"))
			return nil
		}
		require.NoError(t, pg.InTx(t.Context(), pool, func(tx pgx.Tx) error { return limits(tx, "read committed") }))
		require.NoError(t, pg.InSnapshot(t.Context(), pool, func(tx pgx.Tx) error { return limits(tx, "repeatable read") }))
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		require.Equal(t, "0", setting(t, tx, "statement_timeout"), "the limits were left in the session")
		require.NoError(t, tx.Rollback(t.Context()))
	})

	t.Run("InATransactionASavepoint", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		require.NoError(t, pg.InTx(t.Context(), pool, func(tx pgx.Tx) error {
			err := pg.InTx(t.Context(), tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SELECT 1/0")
				return err
			})
			require.Error(t, err)
			_, err = tx.Exec(t.Context(), "SELECT 1")
			return err
		}))
	})

	t.Run("EndedByTheServerCanBeTriedAgain", func(t *testing.T) {
		t.Parallel()
		for _, code := range []string{"25P03", "25P04", "25006", "57P01", "53300"} {
			require.True(t, pg.IsUnavailable(&pgconn.PgError{Code: code}), code)
		}
		require.False(t, pg.IsUnavailable(&pgconn.PgError{Code: "25001"}))
	})
}

// TestSession: a connection to the server itself sets what the code relies on.
func TestSession(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(dbtest.URL(t))
	require.NoError(t, err)
	pg.Prepare(config, "test")
	conn, pooled, err := pg.ConnectSession(t.Context(), config)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	require.False(t, pooled)
	for name, want := range map[string]string{
		"application_name": "test", "client_encoding": "UTF8", "TimeZone": "UTC", "search_path": "pg_catalog", "tcp_keepalives_idle": "10",
		"tcp_user_timeout": "15000", "default_transaction_isolation": "read committed",
	} {
		var value string
		require.NoError(t, conn.QueryRow(t.Context(), "SHOW "+name).Scan(&value))
		require.Equal(t, want, value, name)
	}
}
