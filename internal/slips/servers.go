package slips

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/embedpg"
)

const (
	// dbName is the migrated database that test processes clone.
	dbName = dbtest.ClusterDatabase
	// changedName is its copy with a slip in a function.
	changedName = "slip"
)

// servers has a PostgreSQL for each worker. They start when they are first needed.
type servers struct {
	workers int
	free    chan *server
}

type server struct {
	cluster *embedpg.Server
}

func newServers(workers int) *servers {
	s := &servers{workers: workers, free: make(chan *server, workers)}
	for range workers {
		s.free <- &server{}
	}
	return s
}

func (s *servers) take() *server    { return <-s.free }
func (s *servers) give(one *server) { s.free <- one }

// close stops all servers. None may be in use.
func (s *servers) close() (err error) {
	for range s.workers {
		if one := s.take(); one.cluster != nil {
			err = errors.Join(err, one.cluster.Remove(context.Background()))
		}
	}
	return err
}

// usesDatabase says whether the tests of a package link package dbtest.
func (t *Tree) usesDatabase(p *Package) bool {
	for dep := range t.testDeps(p) {
		if strings.HasSuffix(dep, "/internal/dbtest") {
			return true
		}
	}
	return false
}

// start starts the server if it does not run yet.
func (s *server) start(ctx context.Context) error {
	if s.cluster != nil {
		return nil
	}
	cluster, err := dbtest.Start(ctx)
	if err != nil {
		return fmt.Errorf("start a PostgreSQL for tests: %w", err)
	}
	s.cluster = cluster
	return nil
}

// database is where the databases of tests come from: copies of template.
type database struct {
	server   *server
	template string
}

// environment is that of a test process.
func (d database) environment(ctx context.Context, used bool) ([]string, error) {
	env := os.Environ()
	if !used {
		return env, nil
	}
	if err := d.server.start(ctx); err != nil {
		return nil, err
	}
	return append(env, dbtest.ServerVariable+"="+d.server.cluster.URL("postgres"), dbtest.TemplateVariable+"="+d.template), nil
}

func (s *server) exec(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.cluster.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// change makes the database with the function that has the slip.
func (s *server) change(ctx context.Context, slip *Slip) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	err := s.exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+changedName+" WITH (FORCE)",
		"CREATE DATABASE "+changedName+" TEMPLATE "+dbName)
	if err != nil {
		return err
	}
	return s.exec(ctx, changedName, slip.routine.statement(slip))
}

// clean drops what killed test processes have left.
func (s *server) clean(ctx context.Context) error {
	if s.cluster == nil {
		return nil
	}
	conn, err := pgx.Connect(ctx, s.cluster.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, "SELECT datname FROM pg_database WHERE datname LIKE 'ojsd\\_test\\_%'")
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	return nil
}

// check says whether PostgreSQL takes a slip of a query or function.
func (s *server) check(ctx context.Context, slip *Slip) (bool, error) {
	if err := s.start(ctx); err != nil {
		return false, err
	}
	conn, err := pgx.Connect(ctx, s.cluster.URL(dbName))
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if slip.query != nil {
		_, err = conn.Prepare(ctx, "", slip.changedQuery())
		return err == nil, nil
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	_, refused := tx.Exec(ctx, slip.routine.statement(slip))
	return refused == nil, tx.Rollback(ctx)
}

// runGroup runs a command in a process group of its own and ends what it has left there.
func runGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd) }
	err := cmd.Run()
	_ = killGroup(cmd) // usually nothing is left
	return err
}

func killGroup(cmd *exec.Cmd) error {
	if cmd.Process == nil {
		return nil
	}
	return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}
