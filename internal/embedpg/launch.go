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
	// errOrphans says that backends of a killed postmaster have not ended yet. They will.
	errOrphans = errors.New("processes of an earlier postgres still use its memory")
)

// launchOnFreePort starts the postmaster. Another process may take the free port before PostgreSQL does, so it tries several.
// A port from Config, or of an earlier start of this Server, never changes.
// Ten tries, because each new port is taken only by chance. Orphans end within seconds; ctx bounds the wait.
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

// launch starts the postmaster without pg_ctl, because only a direct child can be waited for and gets the parent-death
// signal. It returns when the server accepts connections.
// If it fails, the postmaster has been stopped.
func (s *Server) launch(ctx context.Context, bin binaries) error {
	logFile, offset, err := s.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }() // the child has its own descriptor
	// ctx limits only the start, so its end must not kill the server.
	cmd := s.place.command(context.WithoutCancel(ctx), bin.path("postgres"), s.arguments()...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	p, err := startProcess(cmd)
	if err != nil {
		return fmt.Errorf("run postgres: %w", err)
	}
	s.proc = p
	if err := s.waitReady(ctx, p); err != nil {
		// Before explain, so that the log is complete.
		haltErr := s.halt(ctx, syscall.SIGQUIT)
		return s.explain(errors.Join(err, haltErr), offset)
	}
	s.log.DebugContext(ctx, "private postgres is ready", "port", s.port, "pid", cmd.Process.Pid, "pgdata", s.place.pgdata())
	// It ends with the process.
	go s.watch(p)
	return nil
}

// arguments puts every setting on the command line, so that no file of an existing cluster changes. clearLeftover recognizes
// the cluster by -D.
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

// waitReady connects to the socket, which only the child can have created. On the TCP port another server might answer.
// PostgreSQL accepts connections on the socket and on TCP at the same time.
func (s *Server) waitReady(ctx context.Context, p *process) error {
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s.place.socket)
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host='%s' port=%d user=postgres dbname=postgres sslmode=disable", quoted, s.port))
	if err != nil {
		return fmt.Errorf("connect to postgres: %w", err)
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		// A server that still recovers refuses connections.
		conn, err := pgconn.ConnectConfig(ctx, cfg)
		if err == nil {
			_ = conn.Close(ctx) // nothing was written
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

// watch logs the end of PostgreSQL if neither Stop nor Kill caused it.
func (s *Server) watch(p *process) {
	<-p.exited
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == p {
		s.log.Error("private PostgreSQL has ended unexpectedly; see its log", "error", p.err, "log", s.place.logFile())
	}
}

// maxLog is the size at which a start rotates the log. One older file is kept.
const maxLog = 16 << 20

// openLog returns the log and its current size, where the messages of this run begin.
// The log is rotated only here, so a run may make it larger.
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

// explain adds the log of PostgreSQL to the error of a failed start.
// It reads only what this run has written. Messages are in English, because serverEnv sets the locale.
func (s *Server) explain(err error, offset int64) error {
	text, readErr := os.ReadFile(s.place.logFile())
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	messages := strings.TrimSpace(string(text[min(offset, int64(len(text))):]))
	switch {
	case strings.Contains(messages, "could not create any TCP/IP sockets"):
		return fmt.Errorf("%w: %d", errPortTaken, s.port)
	case strings.Contains(messages, "shared memory block") && strings.Contains(messages, "still in use"):
		return fmt.Errorf("%w: %s", errOrphans, messages)
	}
	return fmt.Errorf("%w; its log %s ends:\n%s", err, s.place.logFile(), lastLines(messages, 15))
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
