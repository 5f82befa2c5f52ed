// Package dbtest gives every test a fresh, migrated database on a real PostgreSQL. It must never be used outside tests.
//
// A test process starts one private cluster when the first test asks for a database, migrates one template database
// there, and clones it per test, which takes milliseconds. With OJSD_TEST_DATABASE_URL set, the databases are made on
// that server instead, by a role that may create them.
//
//	func TestMain(m *testing.M) { dbtest.Main(m) }
//
//	func TestEnqueue(t *testing.T) {
//		t.Parallel()
//		pool := dbtest.New(t)
//		…
package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ojsd/ojsd/internal/embedpg"
	"github.com/ojsd/ojsd/migrations"
)

// 10 connections per test, 1 000 in the cluster.
const (
	// ServerVariable names the environment variable with the URL of a server to use instead of a private one.
	ServerVariable = "OJSD_TEST_DATABASE_URL"
	// TemplateVariable names the environment variable with the name of a migrated database on that server, to be cloned instead of a new
	// one. It is for programs that start many test processes on a Cluster of their own (internal/slips).
	TemplateVariable = "OJSD_TEST_TEMPLATE"
	// ClusterDatabase is the migrated database of a private Cluster.
	ClusterDatabase = "ojsd"

	// maxConns is modest because tests run in parallel against max_connections.
	maxConns = 10
	// cleanupTimeout is generous; it only turns a hanging cleanup into an error.
	cleanupTimeout = time.Minute
)

// Main runs the tests of a package, removes everything that New and URL made, and exits. Tests that pass but leave
// goroutines behind fail; options name goroutines that are not theirs.
// It must be called by TestMain of each package that uses this one; without it the cluster would outlive the process, and
// start refuses.
func Main(m *testing.M, options ...goleak.Option) {
	shared.mainRuns = true
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "dbtest:", err)
		code = 1
	}
	if code == 0 {
		if err := findLeaks(options); err != nil {
			fmt.Fprintln(os.Stderr, "dbtest: goroutines left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// findLeaks waits for goroutines that are about to end. Find gives them half a second, which a busy machine exceeds.
func findLeaks(options []goleak.Option) (err error) {
	for range 20 {
		if err = goleak.Find(options...); err == nil {
			return nil
		}
	}
	return err
}

// New returns a pool on a fresh migrated database. The end of the test removes both.
// The pool is closed before the database is dropped, because cleanups run in reverse order.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(URL(t))
	require.NoError(t, err)
	cfg.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// URL returns the connection string of a fresh migrated database. The end of the test removes it, even if connections are
// open.
// It is for tests that open their own connections.
func URL(t testing.TB) string {
	t.Helper()
	require.NoError(t, shared.prepareTemplate(t.Context()))
	return create(t, shared.template)
}

// EmptyURL is URL for a database without the schema.
// It is for tests of migrations.
func EmptyURL(t testing.TB) string {
	t.Helper()
	require.NoError(t, shared.start(t.Context()))
	return create(t, "template0")
}

// Cluster returns a private PostgreSQL with a migrated database ClusterDatabase, for tests that crash it.
// It takes seconds, because nothing is cloned; use it only where the server itself is stopped.
func Cluster(t testing.TB) *embedpg.Server {
	t.Helper()
	s, err := Start(t.Context())
	require.NoError(t, err)
	removeAtEnd(t, s)
	return s
}

// Start starts a private PostgreSQL with the settings of tests and a migrated database ClusterDatabase, for the test processes of a
// program. Its owner has to Remove it.
func Start(ctx context.Context) (*embedpg.Server, error) {
	s, err := startCluster(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.CreateDatabase(ctx, ClusterDatabase); err != nil {
		return nil, errors.Join(err, s.Remove(ctx))
	}
	if _, err := migrations.Up(ctx, s.URL(ClusterDatabase), nil); err != nil {
		return nil, errors.Join(err, s.Remove(ctx))
	}
	return s, nil
}

// Standby returns a hot standby of a Cluster. Commits of the primary wait for it from now on.
// Synchronous, so that a test can promote it without losing what was acknowledged.
func Standby(t testing.TB, primary *embedpg.Server) *embedpg.Server {
	t.Helper()
	s, err := startIn(t.Context(), primary.StartStandby)
	require.NoError(t, err)
	removeAtEnd(t, s)
	conn, err := pgx.Connect(t.Context(), primary.URL(ClusterDatabase))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		var sync bool
		err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')").Scan(&sync)
		return err == nil && sync
	}, cleanupTimeout, 5*time.Millisecond)
	return s
}

// removeAtEnd has a context of its own: that of the test has ended by then.
func removeAtEnd(t testing.TB, s *embedpg.Server) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		require.NoError(t, s.Remove(ctx))
	})
}

// create makes a database for one test.
// FORCE ends connections that a failed test has left.
func create(t testing.TB, template string) string {
	t.Helper()
	name := shared.nextName()
	require.NoError(t, shared.clone(t.Context(), name, template))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if template != "template0" && !t.Failed() {
			checkInvariants(ctx, t, shared.url(name))
		}
		require.NoError(t, shared.exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"))
	})
	return shared.url(name)
}
