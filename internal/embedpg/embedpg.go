// Package embedpg runs a private PostgreSQL from the binaries found on the machine, for `ojsd dev` and for tests.
//
// It owns the data directory, the unix socket and the postmaster that it starts. It must never change a server or a cluster
// of the system. Authentication is trust, so the server listens on loopback only, and every user of the machine can connect.
// It works on Unix; on Linux PostgreSQL also stops when this process is killed.
package embedpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrInUse says that another living process runs a server on the same data directory.
var ErrInUse = errors.New("data directory is in use")

const (
	// readyTimeout is long because a start may begin with crash recovery on a busy machine.
	readyTimeout = 2 * time.Minute
	// killTimeout is above the 5 s after which a postmaster that stops immediately kills its own children.
	killTimeout = 10 * time.Second
)

// Config says where and how to run Postgres. Only DataDir is required.
// It is copied by Start.
type Config struct {
	// DataDir is created if missing and used again by later starts. It contains the cluster (pgdata), the server's log
	// (postgres.log), the lock file against a second process, and the unix socket if its path is short enough.
	DataDir string
	// Port is the loopback TCP port. 0: the port of the previous run if it is free, else any free one.
	Port int
	// Fsync makes commits survive a crash of the operating system. They survive a crash of PostgreSQL without it.
	Fsync bool
	// Settings are added to the server's command line (name → value) and override the defaults of this package.
	Settings map[string]string
	// Logger is the log of this package; PostgreSQL logs to DataDir/postgres.log. Default: discard.
	Logger *slog.Logger

	primary string // the server of which this one is a standby; "": none
}

// Server is a private Postgres. Its methods may be called from several goroutines.
// mu is held for the whole of a start or stop, so URL and the like wait meanwhile.
type Server struct {
	cfg   Config
	log   *slog.Logger
	place place

	mu   sync.Mutex // locked while the server starts or stops
	lock *os.File   // locked from Start to Stop, also after Kill
	// port is chosen by the first start and stays for all restarts.
	port int
	proc *process // nil: not running
}

// Start runs a server on cfg.DataDir, creating the cluster on first use, and returns when it accepts connections.
// A server that an earlier, killed process left running there is stopped first. ctx limits only the start.
// If it fails, nothing is left running, and the directory is unlocked; a cluster that was made stays.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Logger, port: cfg.Port}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(ctx); err != nil {
		s.release()
		return nil, fmt.Errorf("start private postgres: %w", err)
	}
	return s, nil
}

// URL is the connection string of one database, over loopback TCP as the superuser postgres.
func (s *Server) URL(dbname string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, dbname)
}

// SocketDir is the directory of the unix socket, for `psql -h`.
func (s *Server) SocketDir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place.socket
}

// PGData is the directory of the cluster itself. It lies outside Config.DataDir when Postgres could not reach that.
func (s *Server) PGData() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place.pgdata()
}

// LogFile is the file to which PostgreSQL logs.
func (s *Server) LogFile() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place.logFile()
}

// Stop shuts PostgreSQL down ("fast": open transactions are rolled back), then unlocks the data directory. If ctx ends first,
// it stops PostgreSQL at once, which then recovers at its next start.
// It may be called when nothing runs. Restart works afterwards.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.release()
	if err := s.halt(ctx, syscall.SIGINT); err != nil {
		return fmt.Errorf("stop private postgres: %w", err)
	}
	return nil
}

// Kill stops PostgreSQL at once, like `pg_ctl stop -m immediate`, which for clients and data is a crash. The port and the
// lock of the data directory are kept for Restart.
// Crash tests use it: fsync off is no problem for them, because the operating system goes on.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := s.halt(ctx, syscall.SIGQUIT); err != nil {
		return fmt.Errorf("kill private postgres: %w", err)
	}
	return nil
}

// Restart starts Postgres again after Kill or Stop, on the same port and data. A running one is stopped first.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.halt(ctx, syscall.SIGINT); err != nil {
		return fmt.Errorf("restart private postgres: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart private postgres: %w", err)
	}
	return nil
}

// Remove stops PostgreSQL and deletes the data directory, and the cluster if it is elsewhere.
// Errors are joined, so that one failure does not leave the rest.
func (s *Server) Remove(ctx context.Context) error {
	err := errors.Join(s.Stop(ctx), os.RemoveAll(s.place.pgdata()), os.RemoveAll(s.place.base))
	if s.place.data != s.place.base {
		err = errors.Join(err, os.Remove(s.place.data))
	}
	return err
}

// start starts the server. Every step is idempotent, so that Restart can run it again.
// s.mu is held. The lock comes first: all that follows changes the directory.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if s.lock == nil { // after Kill the directory is locked
		var err error
		if s.place, err = newPlace(s.cfg.DataDir); err != nil {
			return err
		}
		if s.lock, err = lockDir(s.place.base); err != nil {
			return err
		}
	}
	if err := s.place.chooseData(); err != nil {
		return err
	}
	if err := s.place.chooseSocket(); err != nil {
		return err
	}
	if s.place.data != s.place.base {
		s.log.InfoContext(ctx, "the user of PostgreSQL has no access to the data directory; the data is kept in another one",
			"data_dir", s.place.base, "blocked_by", s.place.blockedBy, "pgdata", s.place.pgdata())
	}
	if err := s.clearLeftover(ctx); err != nil {
		return err
	}
	bin, err := findBinaries(s.place.clusterMajor())
	if err != nil {
		return err
	}
	if err := s.place.initCluster(ctx, bin, &s.cfg); err != nil {
		return err
	}
	return s.launchOnFreePort(ctx, bin)
}

// release removes the socket directory and unlocks the data directory.
func (s *Server) release() {
	if s.place.tmpSocket {
		_ = os.RemoveAll(s.place.socket) // if it fails, the system cleans the temporary directory
		s.place.socket, s.place.tmpSocket = "", false
	}
	if s.lock != nil {
		unlock(s.lock)
		s.lock = nil
	}
}

// halt signals the postmaster and waits for its end. If ctx ends first, it sends SIGQUIT, then SIGKILL.
// It sets proc to nil before it signals, so that the end is not reported as unexpected (launch). An error means that PostgreSQL
// was killed, not that it still runs.
func (s *Server) halt(ctx context.Context, sig syscall.Signal) error {
	if s.proc == nil {
		return nil
	}
	p := s.proc
	s.proc = nil
	p.signal(sig)
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
	}
	p.signal(syscall.SIGQUIT)
	select {
	case <-p.exited:
	case <-time.After(killTimeout):
		p.signal(syscall.SIGKILL) // its children notice that the postmaster has ended, and end, too
		<-p.exited
	}
	return fmt.Errorf("postgres had to be stopped at once: %w", context.Cause(ctx))
}

// CreateDatabase creates a database unless it exists.
// It asks the server and not the catalogue first, so two callers at once both succeed.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("create database %q: %w", name, err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	// CREATE DATABASE has no IF NOT EXISTS.
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42P04" { // duplicate_database
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %q: %w", name, err)
	}
	return nil
}

// StartStandby copies this server, which must run, and starts the copy as its hot standby. cfg is as for Start; its data directory
// must not have a cluster yet. After pg_promote() it is a server like any other.
// It asks the primary for a checkpoint and copies the files over a connection.
func (s *Server) StartStandby(ctx context.Context, cfg Config) (*Server, error) {
	cfg.primary = s.URL("postgres")
	return Start(ctx, cfg)
}

// baseBackup copies the cluster of the primary into dir, with the settings that make the copy its standby.
func (p *place) baseBackup(ctx context.Context, bin binaries, dir, primary string) error {
	postgres, err := filepath.EvalSymlinks(bin.path("postgres")) // PATH may have links to some of the programs only
	if err != nil {
		return fmt.Errorf("find pg_basebackup: %w", err)
	}
	cmd := p.command(ctx, filepath.Join(filepath.Dir(postgres), "pg_basebackup"), "-d", primary, "-D", dir,
		"--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runProcess(cmd); err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}
