package dbtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/embedpg"
	"github.com/ojsd/ojsd/internal/testdir"
	"github.com/ojsd/ojsd/migrations"
)

const dirPrefix = "ojsd-test-"

// settings give up safety against crashes of the operating system for speed. synchronous_commit stays on: acknowledged
// commits must survive the immediate stop of PostgreSQL in crash tests.
// fsync is off by default (embedpg.Config).
var settings = map[string]string{
	"full_page_writes":   "off",
	"synchronous_commit": "on",
	"shared_buffers":     "64MB",
	"max_connections":    "1000",
	"max_wal_size":       "256MB", // the directory may be in memory
	// Tests choose themselves what the planner knows. While autovacuum analyzes a table, readers cannot mark the index entries of deleted
	// rows as dead, so that each of them reads all of them, and a test that counts buffers fails.
	"autovacuum": "off",
}

// shared is the server of this test process.
var shared server

// server has a mu that guards the fields below it while the first tests start; afterwards they do not change.
type server struct {
	mainRuns bool // Main will stop it

	mu       sync.Mutex
	base     *url.URL        // of any database on it
	cluster  *embedpg.Server // nil: the server of ServerVariable
	prefix   string          // of database names, to share a server with other test processes
	template string          // "": not created yet
	borrowed bool            // the template is that of TemplateVariable

	databases atomic.Int64

	idleMu sync.Mutex
	idle   []*pgx.Conn // connections that make and drop databases
}

// start finds or starts the server, once; after an error the next test tries again.
// A test that gives up by its context does not stop the server, which the next one needs.
func (s *server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startLocked(ctx)
}

func (s *server) startLocked(ctx context.Context) error {
	if s.base != nil {
		return nil
	}
	if !s.mainRuns {
		return errors.New("dbtest: the package has no TestMain to stop the server: add `func TestMain(m *testing.M) { dbtest.Main(m) }`")
	}
	text := os.Getenv(ServerVariable)
	if text == "" {
		cluster, err := startCluster(ctx)
		if err != nil {
			return err
		}
		s.cluster = cluster
		text = cluster.URL("postgres")
	}
	base, err := url.Parse(text)
	if err != nil || !strings.HasPrefix(base.Scheme, "postgres") {
		return fmt.Errorf("dbtest: %s must be a postgres:// URL", ServerVariable)
	}
	s.base = base
	s.prefix = "ojsd_test_" + strings.ToLower(rand.Text()[:8])
	return nil
}

// prepareTemplate starts the server and makes the migrated template, once.
// Tests that run in parallel wait here for the first one.
func (s *server) prepareTemplate(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.startLocked(ctx); err != nil || s.template != "" {
		return err
	}
	if name := os.Getenv(TemplateVariable); name != "" {
		s.template, s.borrowed = name, true
		return nil
	}
	name := s.prefix + "_template"
	if err := s.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, s.url(name), nil); err != nil {
		return errors.Join(err, s.exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"))
	}
	// CREATE DATABASE waits until its template has no connection; without this, autovacuum could connect.
	if err := s.exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	s.template = name
	return nil
}

// stop leaves databases of tests to the tests, which drop them.
func (s *server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	var err error
	if s.cluster == nil && s.template != "" && !s.borrowed {
		err = s.exec(ctx, "DROP DATABASE "+s.template+" WITH (FORCE)")
	}
	err = errors.Join(err, s.closeIdle(ctx))
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.Remove(ctx))
	}
	return err
}

// nextName has a random prefix, which keeps test processes on one server apart.
func (s *server) nextName() string { return fmt.Sprintf("%s_%d", s.prefix, s.databases.Add(1)) }

func (s *server) url(database string) string {
	u := *s.base
	u.Path = "/" + database
	return u.String()
}

// clone creates a database as a copy of a template. On a cluster of our own it copies the files: the default of PostgreSQL 15
// and later copies block by block through the buffers and the WAL, and leaves out pg_internal.init, which the first connection
// then has to make again. Making, using and dropping a database took 33 ms of processor time so, and 50 ms by default. The two
// checkpoints of a copy of files would be slow on a server with fsync.
func (s *server) clone(ctx context.Context, name, template string) error {
	return s.connected(ctx, func(conn *pgx.Conn) error {
		sql := "CREATE DATABASE " + name + " TEMPLATE " + template
		if (s.cluster != nil || s.borrowed) && !strings.HasPrefix(conn.PgConn().ParameterStatus("server_version"), "14") {
			sql += " STRATEGY file_copy"
		}
		return execOn(ctx, conn, sql)
	})
}

func (s *server) exec(ctx context.Context, sql string) error {
	return s.connected(ctx, func(conn *pgx.Conn) error { return execOn(ctx, conn, sql) })
}

// connected calls fn with a connection that nobody else uses, and keeps it for the next call. A connection costs 55 ms of processor time
// on a machine in which processes start slowly, more than making and dropping a database, and each test needs two. It is no pool: that
// would leave goroutines behind for goleak to find.
func (s *server) connected(ctx context.Context, fn func(*pgx.Conn) error) error {
	conn := s.takeIdle()
	if conn == nil {
		var err error
		if conn, err = pgx.Connect(ctx, s.base.String()); err != nil {
			return fmt.Errorf("dbtest: %w", err)
		}
	}
	if err := fn(conn); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // err says why
		return err
	}
	s.idleMu.Lock()
	defer s.idleMu.Unlock()
	s.idle = append(s.idle, conn)
	return nil
}

// takeIdle returns nil if all connections are used.
func (s *server) takeIdle() *pgx.Conn {
	s.idleMu.Lock()
	defer s.idleMu.Unlock()
	if len(s.idle) == 0 {
		return nil
	}
	last := len(s.idle) - 1
	conn := s.idle[last]
	s.idle = s.idle[:last]
	return conn
}

// closeIdle is for the end, when nobody calls connected any more.
func (s *server) closeIdle(ctx context.Context) (err error) {
	for conn := s.takeIdle(); conn != nil; conn = s.takeIdle() {
		err = errors.Join(err, conn.Close(ctx))
	}
	return err
}

func execOn(ctx context.Context, conn *pgx.Conn, sql string) error {
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("dbtest: %s: %w", sql, err)
	}
	return nil
}

// startCluster starts a PostgreSQL in a temporary directory. It keeps running after ctx, which belongs to one test, has ended.
func startCluster(ctx context.Context) (*embedpg.Server, error) { return startIn(ctx, embedpg.Start) }

// startIn calls start with a new temporary directory.
// It first removes what killed processes have left.
func startIn(ctx context.Context, start func(context.Context, embedpg.Config) (*embedpg.Server, error)) (*embedpg.Server, error) {
	removeAbandoned()
	dir, err := testdir.Make(dirPrefix)
	if err != nil {
		return nil, fmt.Errorf("dbtest: %w", err)
	}
	s, err := start(ctx, embedpg.Config{DataDir: dir, Settings: settings})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dbtest: %w", err), os.RemoveAll(dir))
	}
	return s, nil
}

// removeAbandoned deletes the directories of killed test processes. It skips young ones: their owner may have created its lock
// file but not locked it yet.
func removeAbandoned() {
	dirs, _ := filepath.Glob(filepath.Join(testdir.Clusters(), dirPrefix+"*")) // a fixed, well-formed pattern
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err == nil && time.Since(info.ModTime()) > time.Minute && embedpg.Abandoned(dir) {
			_ = os.RemoveAll(dir) // the next run tries again
		}
	}
}
