// Package embedpg runs a private Postgres from the binaries found on the machine, for `ojsd dev` and for tests.
//
// It owns the data directory, the unix socket and the postmaster it starts, and nothing else: it never touches a
// server or a cluster of the system. Authentication is trust, so the server listens on loopback only, and whoever can
// log in to the machine can use it. It works on Unix; on Linux Postgres also stops when this process dies.
package embedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// ErrInUse says that another living process runs a server on the same data directory.
var ErrInUse = errors.New("data directory is in use")

const (
	// readyTimeout is long because a start may begin with crash recovery, on a busy machine.
	readyTimeout = 2 * time.Minute
	// killTimeout is above the 5 s after which a postmaster that stops immediately kills its own children.
	killTimeout = 10 * time.Second
)

// Config says where and how to run Postgres. Only DataDir is required.
type Config struct {
	// DataDir is created if missing and found again by later starts. It holds the cluster (pgdata), the server's log
	// (postgres.log), the lock that keeps a second process out, and the unix socket if its path is short enough.
	DataDir string
	// Port is the loopback TCP port. 0: the port of the previous run if it is free, else any free one.
	Port int
	// Fsync makes commits survive a crash of the operating system. A crash of Postgres they survive anyway.
	Fsync bool
	// Settings are added to the server's command line (name → value) and win over the defaults of this package.
	Settings map[string]string
	// Logger gets what this package does; Postgres itself logs to DataDir/postgres.log. Default: discard.
	Logger *slog.Logger
}

// Server is a private Postgres. Its methods may be called from several goroutines.
type Server struct {
	cfg   Config
	log   *slog.Logger
	place place

	mu   sync.Mutex // held while the server changes between running and stopped
	lock *os.File   // held from Start to Stop, also while killed
	port int
	proc *process // nil: not running
}

// Start runs a server on cfg.DataDir, creating the cluster on first use, and returns when it accepts connections.
// A server that an earlier, killed process left running there is stopped first. ctx limits only the start.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Logger, port: cfg.Port}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
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

// Stop shuts Postgres down in order ("fast": open transactions are rolled back), then gives the data directory free.
// When ctx ends first, Postgres is stopped at once and recovers at its next start.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.release()
	if err := s.halt(ctx, syscall.SIGINT); err != nil {
		return fmt.Errorf("stop private postgres: %w", err)
	}
	return nil
}

// Kill stops Postgres at once, like `pg_ctl stop -m immediate`: a crash, as far as clients and the data can tell.
// The port and the data directory stay reserved for Restart.
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

// Remove stops Postgres and deletes the data directory with all that belongs to it.
func (s *Server) Remove(ctx context.Context) error {
	err := errors.Join(s.Stop(ctx), os.RemoveAll(s.place.pgdata()), os.RemoveAll(s.place.base))
	if s.place.data != s.place.base {
		err = errors.Join(err, os.Remove(s.place.data))
	}
	return err
}

// start brings the server up. Every step is repeatable, so that Restart can run it again.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.acquire(); err != nil {
		return err
	}
	if err := s.place.resolve(); err != nil {
		return err
	}
	if s.place.data != s.place.base {
		s.log.InfoContext(ctx, "postgres may not enter the data directory; the data is kept elsewhere",
			"data_dir", s.place.base, "blocked_by", s.place.blockedBy, "pgdata", s.place.pgdata())
	}
	if err := s.clearLeftover(ctx); err != nil {
		return err
	}
	bin, err := findBinaries(s.place.clusterMajor())
	if err != nil {
		return err
	}
	if err := s.place.initCluster(ctx, bin, s.cfg.Fsync); err != nil {
		return err
	}
	return s.launchOnFreePort(ctx, bin)
}

// acquire takes the lock of the data directory. Held already (Restart after Kill): nothing to do.
func (s *Server) acquire() error {
	if s.lock != nil {
		return nil
	}
	var err error
	if s.place, err = newPlace(s.cfg.DataDir); err != nil {
		return err
	}
	s.lock, err = lockDir(s.place.base)
	return err
}

// release gives up what belongs to a running server only.
func (s *Server) release() {
	s.place.removeSocketDir()
	if s.lock != nil {
		unlock(s.lock)
		s.lock = nil
	}
}

// halt signals the postmaster and waits for its end. When ctx ends first it turns to ever ruder signals.
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
		p.signal(syscall.SIGKILL) // the children see that their postmaster is gone, and end
		<-p.exited
	}
	return fmt.Errorf("postgres had to be stopped at once: %w", context.Cause(ctx))
}
