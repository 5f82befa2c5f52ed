package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// startLimit includes making the cluster and running all migrations on a busy machine.
	startLimit = 2 * time.Minute
	stopLimit  = 30 * time.Second
)

// stack is a private Postgres with a server on it: `ojsd dev` as a child process, in a directory that goes with it.
type stack struct {
	url         string
	databaseURL string
	dir         string
	cmd         *exec.Cmd
	log         *os.File
	ended       chan error
}

func startStack(ctx context.Context, executable string) (*stack, error) {
	dir, err := os.MkdirTemp("", "ojsd-bench-")
	if err != nil {
		return nil, err
	}
	// As root Postgres runs as another user, who has to pass through here.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &stack{dir: dir, ended: make(chan error, 1)}
	if err := s.launch(executable); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.await(ctx); err != nil {
		err = fmt.Errorf("%w; its last words:\n%s", err, s.lastWords())
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *stack) dataDir() string { return filepath.Join(s.dir, "data") }

func (s *stack) launch(executable string) error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return err
	}
	s.url = "http://" + address
	s.cmd = exec.Command(executable, "dev", "--data-dir", s.dataDir(), "--listen", address)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.Env = append(privateEnv(os.Environ()), benchSettings...)
	// Ctrl-C in a terminal goes to the whole process group. The child gets its signal from stop, once.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() { s.ended <- s.cmd.Wait() }()
	return nil
}

// benchSettings let streams come from one address, as many and as fast as a run asks for, and webhooks go to this machine.
var benchSettings = []string{
	"OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT=1000000", "OJS_REALTIME_MAX_CONNECTIONS=1000000", "OJS_REALTIME_RATE_LIMIT_PER_SECOND=0",
	"OJS_WEBHOOKS_ALLOW_HTTP=true", "OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8",
	"OJS_GRPC_ENABLED=false", // nothing here uses it, and its port is fixed
}

// privateEnv drops what would make `ojsd dev` use somebody's database, or differ from machine to machine.
func privateEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return strings.HasPrefix(v, "DATABASE_") || strings.HasPrefix(v, "OJS") || strings.HasPrefix(v, "PG")
	})
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// await waits until the server is ready, then finds its database.
func (s *stack) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for !ready(ctx, s.url+"/readyz") {
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("the server ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the server did not become ready: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
	var err error
	s.databaseURL, err = findDatabase(ctx, s.dataDir())
	return err
}

func ready(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// findDatabase looks up the port that the private Postgres wrote into its directory, and the one database in it that
// is not Postgres' own.
func findDatabase(ctx context.Context, dataDir string) (string, error) {
	pidFile, err := os.ReadFile(filepath.Join(dataDir, "pgdata", "postmaster.pid"))
	if err != nil {
		return "", fmt.Errorf("find the private database: %w", err)
	}
	lines := strings.Split(string(pidFile), "\n")
	if len(lines) < 4 {
		return "", errors.New("find the private database: postmaster.pid is cut short")
	}
	base := "postgres://postgres@127.0.0.1:" + strings.TrimSpace(lines[3]) + "/"
	conn, err := pgx.Connect(ctx, base+"postgres?sslmode=disable")
	if err != nil {
		return "", fmt.Errorf("find the private database: %w", err)
	}
	defer endConn(conn)
	var name string
	err = conn.QueryRow(ctx, "SELECT datname FROM pg_database WHERE NOT datistemplate ORDER BY datname = 'postgres' LIMIT 1").Scan(&name)
	if err != nil {
		return "", fmt.Errorf("find the private database: %w", err)
	}
	return base + name + "?sslmode=disable", nil
}

// stop ends the server in order, and by force if that takes too long, and removes what it left.
func (s *stack) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt) // it may have ended already
	select {
	case <-s.ended: //nolint:errcheck // it was told to end
	case <-time.After(stopLimit):
		_ = s.cmd.Process.Kill()
		<-s.ended //nolint:errcheck // it was killed
	}
	_ = s.log.Close()
	_ = os.RemoveAll(s.dir) // below the system's temporary directory
}

func (s *stack) lastWords() string {
	text, _ := os.ReadFile(s.log.Name()) // only for an error message
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
