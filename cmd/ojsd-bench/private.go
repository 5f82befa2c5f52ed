package main

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ojsd/ojsd/internal/embedpg"
)

const (
	// startTimeout includes making the cluster and running all migrations on a busy machine.
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second

	privateDatabase = "ojsd"
)

// privateServer is a PostgreSQL and an `ojsd serve` on it, in a temporary directory. It exists for one run.
// PostgreSQL runs with fsync, so commits cost what they cost in production on this disk.
type privateServer struct {
	databaseURL string
	dir         string
	ojsd        string
	postgres    *embedpg.Server
	nodes       []*privateNode // the first one is the server that most scenarios measure
}

// privateNode is one process of the server. ended has the outcome of the process once; who takes it puts it back if others need
// it.
type privateNode struct {
	url   string
	cmd   *exec.Cmd
	log   *os.File
	ended chan error
}

// startPrivateServer starts the binary ojsd, or the one that findOJSD finds if that is empty. PostgreSQL is installed if
// it is missing, as `ojsd dev` does.
func startPrivateServer(ctx context.Context, ojsd, executable string) (*privateServer, error) {
	ojsd, err := findOJSD(ojsd, executable)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ojsd-bench-")
	if err != nil {
		return nil, err
	}
	s := &privateServer{dir: dir, ojsd: ojsd}
	if err := s.start(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func findOJSD(given, executable string) (string, error) {
	if given != "" {
		return given, nil
	}
	beside := filepath.Join(filepath.Dir(executable), "ojsd")
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	inPath, err := exec.LookPath("ojsd")
	if err != nil {
		return "", fmt.Errorf("no ojsd binary at %s or in PATH: run make build, or give --ojsd", beside)
	}
	return inPath, nil
}

func (s *privateServer) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.startPostgres(ctx); err != nil {
		return err
	}
	_, err := s.startNode(ctx)
	return err
}

// startNode starts one more process on the database, and returns when it is ready. A node that does not become ready stays in
// nodes, so that stop ends its process.
func (s *privateServer) startNode(ctx context.Context) (*privateNode, error) {
	n, err := s.launch()
	if err != nil {
		return nil, err
	}
	s.nodes = append(s.nodes, n)
	if err := n.waitReady(ctx); err != nil {
		return nil, fmt.Errorf("%w; the end of its log:\n%s", err, n.logTail())
	}
	return n, nil
}

func (s *privateServer) startPostgres(ctx context.Context) error {
	// Run by root, PostgreSQL runs as another user, who has to pass through here.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	cfg := embedpg.Config{DataDir: filepath.Join(s.dir, "data"), Fsync: true}
	var err error
	s.postgres, err = embedpg.Start(ctx, cfg)
	if errors.Is(err, embedpg.ErrNotInstalled) {
		if err := embedpg.Install(ctx); err != nil {
			return err
		}
		s.postgres, err = embedpg.Start(ctx, cfg)
	}
	if err != nil {
		return err
	}
	s.databaseURL = s.postgres.URL(privateDatabase)
	return s.postgres.CreateDatabase(ctx, privateDatabase)
}

// The log goes into the temporary directory and is shown only if the start fails.
func (s *privateServer) launch() (*privateNode, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	n := &privateNode{url: "http://" + address, ended: make(chan error, 1)}
	if n.log, err = os.Create(filepath.Join(s.dir, fmt.Sprintf("log%d", len(s.nodes)))); err != nil {
		return nil, err
	}
	n.cmd = exec.Command(s.ojsd, "serve", "--migrate", "--database-url", s.databaseURL, "--listen", address)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.Env = append(withoutServerSettings(os.Environ()), serverSettings...)
	// Ctrl-C in a terminal goes to the whole process group; in a group of its own the child gets only stop's signal.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.cmd.Start(); err != nil {
		return nil, errors.Join(err, n.log.Close())
	}
	go func() { n.ended <- n.cmd.Wait() }()
	return n, nil
}

// serverSettings allow as many streams from one address as a run asks for, at any rate, and webhooks to this machine.
var serverSettings = []string{
	"OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT=1000000", "OJS_REALTIME_MAX_CONNECTIONS=1000000", "OJS_REALTIME_RATE_LIMIT_PER_SECOND=0",
	"OJS_WEBHOOKS_ALLOW_HTTP=true", "OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8",
	"OJS_GRPC_LISTEN=127.0.0.1:0", // not used here, and its default port may be taken
}

// withoutServerSettings drops the variables of env that configure a server or a PostgreSQL client, so that a private
// server never uses another database and is the same on every machine.
func withoutServerSettings(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return strings.HasPrefix(v, "DATABASE_") || strings.HasPrefix(v, "OJS") || strings.HasPrefix(v, "PG")
	})
}

// Another process may take the port before the server does; the run then fails at the start.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// url is the address of the first node.
func (s *privateServer) url() string { return s.nodes[0].url }

// processes are the ids of the nodes and of the postmaster, which PostgreSQL writes into its data directory;
// nil without a private server.
func (s *privateServer) processes() *processes {
	if s == nil {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(s.postgres.PGData(), "postmaster.pid"))
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster, parseErr := strconv.Atoi(first)
	if err != nil || parseErr != nil {
		return nil
	}
	p := &processes{postmaster: postmaster}
	for _, n := range s.nodes {
		p.servers = append(p.servers, n.cmd.Process.Pid)
	}
	return p
}

func (n *privateNode) waitReady(ctx context.Context) error {
	for !ready(ctx, n.url+"/readyz") {
		select {
		case err := <-n.ended:
			// The outcome goes back into the channel, which stop reads too.
			n.ended <- err
			return fmt.Errorf("the server ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the server did not become ready: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
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

// stop ends what was started: the nodes in order, or killed if that takes too long, then PostgreSQL and the directory.
func (s *privateServer) stop() {
	for _, n := range s.nodes {
		n.stop()
	}
	if s.postgres != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		_ = s.postgres.Remove(ctx) // stopped in any case; what it leaves lies below the system's temporary directory
	}
	_ = os.RemoveAll(s.dir)
}

func (n *privateNode) stop() {
	_ = n.cmd.Process.Signal(os.Interrupt) // it may have ended already
	select {
	case <-n.ended: //nolint:errcheck // its exit code does not matter any more
	case <-time.After(stopTimeout):
		_ = n.cmd.Process.Kill()
		<-n.ended //nolint:errcheck // it was killed
	}
	_ = n.log.Close()
}

// stopNode stops the latest node.
func (s *privateServer) stopNode() {
	last := len(s.nodes) - 1
	s.nodes[last].stop()
	s.nodes = s.nodes[:last]
}

func (n *privateNode) logTail() string {
	text, _ := os.ReadFile(n.log.Name()) // only for an error message
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
