package embedpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	errPortTaken = errors.New("port is taken")
	// errOrphans: backends of a killed postmaster have not noticed yet. It passes.
	errOrphans = errors.New("processes of an earlier postgres still use its memory")
)

// launchOnFreePort starts the postmaster. Between looking for a free port and using it somebody else may take it,
// hence the attempts; a port that the caller asked for, or one of an earlier start, is never exchanged.
func (s *Server) launchOnFreePort(ctx context.Context, bin binaries) error {
	fixed := s.port != 0
	for attempt := 1; ; attempt++ {
		if !fixed {
			var err error
			if s.port, err = s.place.freePort(); err != nil {
				return err
			}
		}
		err := s.launch(ctx, bin)
		switch {
		case err == nil:
			return s.place.rememberPort(s.port)
		case errors.Is(err, errPortTaken) && !fixed && attempt < 10:
		case errors.Is(err, errOrphans) && ctx.Err() == nil:
			time.Sleep(100 * time.Millisecond)
		default:
			return err
		}
	}
}

// launch starts the postmaster itself, not pg_ctl, because only a direct child can be waited for and be told that its
// parent died. It returns when the server accepts connections.
func (s *Server) launch(ctx context.Context, bin binaries) error {
	logFile, offset, err := s.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }() // the child has its own descriptor
	// Not ctx: it limits the start, and must not kill the server afterwards.
	cmd := s.place.command(context.WithoutCancel(ctx), bin.path("postgres"), s.arguments()...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	p, err := startProcess(cmd)
	if err != nil {
		return fmt.Errorf("run postgres: %w", err)
	}
	s.proc = p
	if err := s.waitReady(ctx, p); err != nil {
		haltErr := s.halt(ctx, syscall.SIGQUIT)
		return s.explain(errors.Join(err, haltErr), offset)
	}
	s.log.DebugContext(ctx, "private postgres is ready", "port", s.port, "pid", cmd.Process.Pid, "pgdata", s.place.pgdata())
	go s.watch(p)
	return nil
}

// arguments puts every setting on the command line: nothing to edit in a cluster that exists, and -D names the
// cluster for clearLeftover.
func (s *Server) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": `"` + strings.ReplaceAll(s.place.socket, `"`, `""`) + `"`,
		"fsync":                   strconv.FormatBool(s.cfg.Fsync),
		"log_line_prefix":         "%m [%p] %q%u@%d ",
	}
	maps.Copy(settings, s.cfg.Settings)
	args := []string{"-D", s.place.pgdata()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// waitReady connects by the socket, which nobody but our child can have made; on the TCP port a stranger might answer.
func (s *Server) waitReady(ctx context.Context, p *process) error {
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s.place.socket)
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host='%s' port=%d user=postgres dbname=postgres sslmode=disable", quoted, s.port))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := pgconn.ConnectConfig(ctx, cfg)
		if err == nil {
			_ = conn.Close(ctx) // it did what it was for
			return nil
		}
		select {
		case <-ticker.C:
		case <-p.exited:
			return fmt.Errorf("postgres ended: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("postgres does not become ready: %w", err)
		}
	}
}

// watch tells when Postgres ends and nobody asked it to.
func (s *Server) watch(p *process) {
	<-p.exited
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == p {
		s.log.Error("private postgres ended unexpectedly", "error", p.err, "log", s.place.logFile())
	}
}

// maxLog keeps the log of a development server from growing for ever; one older file is kept.
const maxLog = 16 << 20

// openLog returns the log and its present size, where the messages of this run begin.
func (s *Server) openLog() (*os.File, int64, error) {
	if info, err := os.Stat(s.place.logFile()); err == nil && info.Size() > maxLog {
		if err := os.Rename(s.place.logFile(), s.place.logFile()+".1"); err != nil {
			return nil, 0, fmt.Errorf("rotate postgres log: %w", err)
		}
	}
	f, err := os.OpenFile(s.place.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open postgres log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("open postgres log: %w", err)
	}
	return f, info.Size(), nil
}

// explain adds what Postgres itself said about a start that did not work.
func (s *Server) explain(err error, offset int64) error {
	text, readErr := os.ReadFile(s.place.logFile())
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	said := strings.TrimSpace(string(text[min(offset, int64(len(text))):]))
	switch {
	case strings.Contains(said, "could not create any TCP/IP sockets"):
		return fmt.Errorf("%w: %d", errPortTaken, s.port)
	case strings.Contains(said, "shared memory block") && strings.Contains(said, "still in use"):
		return fmt.Errorf("%w: %s", errOrphans, said)
	}
	return fmt.Errorf("%w; its log %s ends:\n%s", err, s.place.logFile(), lastLines(said, 15))
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
