package embedpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
			if err := os.WriteFile(s.place.portFile(), []byte(strconv.Itoa(s.port)+"\n"), 0o644); err != nil {
				return fmt.Errorf("remember port: %w", err)
			}
			return nil
		case errors.Is(err, errPortTaken) && !fixed && attempt < 10:
		case errors.Is(err, errOrphans) && ctx.Err() == nil:
			time.Sleep(100 * time.Millisecond)
		default:
			return err
		}
	}
}

// maxLog is the size at which a start rotates the log. One older file is kept.
const maxLog = 16 << 20

// launch starts the postmaster without pg_ctl, because only a direct child can be waited for and gets the parent-death
// signal. It returns when the server accepts connections.
// If it fails, the postmaster has been stopped.
func (s *Server) launch(ctx context.Context, bin binaries) error {
	// The log is rotated only here, so a run may make it larger.
	if info, err := os.Stat(s.place.logFile()); err == nil && info.Size() > maxLog {
		if err := os.Rename(s.place.logFile(), s.place.logFile()+".1"); err != nil {
			return fmt.Errorf("rotate postgres log: %w", err)
		}
	}
	logFile, err := os.OpenFile(s.place.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open postgres log: %w", err)
	}
	defer func() { _ = logFile.Close() }() // the child has its own descriptor
	info, err := logFile.Stat()
	if err != nil {
		return fmt.Errorf("open postgres log: %w", err)
	}
	// Every setting is on the command line, so that no file of an existing cluster changes. clearLeftover recognizes the cluster by -D.
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
	// ctx limits only the start, so its end must not kill the server.
	cmd := s.place.command(context.WithoutCancel(ctx), bin.path("postgres"), args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	p, err := startProcess(cmd)
	if err != nil {
		return fmt.Errorf("run postgres: %w", err)
	}
	s.proc = p
	if err := s.waitReady(ctx, p); err != nil {
		// Before explain, so that the log is complete.
		haltErr := s.halt(ctx, syscall.SIGQUIT)
		return s.explain(errors.Join(err, haltErr), info.Size())
	}
	s.log.DebugContext(ctx, "private postgres is ready", "port", s.port, "pid", cmd.Process.Pid, "pgdata", s.place.pgdata())
	go func() { // it logs the end of PostgreSQL if neither Stop nor Kill caused it
		<-p.exited
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.proc == p {
			s.log.Error("private PostgreSQL has ended unexpectedly; see its log", "error", p.err, "log", s.place.logFile())
		}
	}()
	return nil
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

// explain adds the log of PostgreSQL to the error of a failed start.
// It reads only what this run has written, from offset on. Messages are in English, because command sets the locale.
func (s *Server) explain(err error, offset int64) error {
	text, readErr := os.ReadFile(s.place.logFile())
	messages := strings.TrimSpace(string(text[min(offset, int64(len(text))):]))
	switch {
	case strings.Contains(messages, "could not create any TCP/IP sockets"):
		return fmt.Errorf("%w: %d", errPortTaken, s.port)
	case strings.Contains(messages, "shared memory block") && strings.Contains(messages, "still in use"):
		return fmt.Errorf("%w: %s", errOrphans, messages)
	}
	lines := strings.Split(messages, "\n")
	end := strings.Join(lines[max(0, len(lines)-15):], "\n")
	return errors.Join(fmt.Errorf("%w; its log %s ends:\n%s", err, s.place.logFile(), end), readErr)
}

// process is a running postmaster.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // how it ended; read after exited
}

// startProcess starts cmd and waits for it in one goroutine that is locked to its OS thread. Linux sends the parent-death
// signal when the thread that forked ends, not the process (golang.org/issue/27505). Without the lock the runtime could end
// that thread at any time, and PostgreSQL with it.
// The goroutine ends with the process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// runProcess starts cmd in the same way and waits for its end.
func runProcess(cmd *exec.Cmd) error {
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	<-p.exited
	return p.err
}

// signal ignores the error: the only possible one is that the process has ended already.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Ports are chosen below the ephemeral ranges of Linux (from 32768) and macOS (from 49152). An outgoing connection could take
// an ephemeral port while PostgreSQL is down in a crash test. Worse, a client that retries a closed ephemeral port of its own
// machine can connect to itself.
const (
	firstPort = 15000
	lastPort  = 31999
)

// freePort prefers the port of the previous run on the same directory, so that connection strings stay valid.
// The port may be taken between this look and the start; see launchOnFreePort.
func (p *place) freePort() (int, error) {
	if text, err := os.ReadFile(p.portFile()); err == nil {
		port, err := strconv.Atoi(strings.TrimSpace(string(text)))
		// A port of an earlier start that another program has now is given up.
		if err == nil && isFree(port) {
			return port, nil
		}
	}
	return FreePort()
}

// FreePort returns a loopback port that was free a moment ago.
func FreePort() (int, error) {
	for range 100 {
		if port := firstPort + rand.IntN(lastPort-firstPort+1); isFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free loopback port found")
}

func (p *place) portFile() string { return filepath.Join(p.base, "port") }

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
