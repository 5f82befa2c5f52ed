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

	"github.com/prometheus/procfs"

	"github.com/ojsd/ojsd/internal/embedpg"
)

const (
	// startTimeout includes making the cluster and running all migrations on a busy machine.
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
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
func startPrivateServer(ctx context.Context, ojsd, executable string) (_ *privateServer, err error) {
	if ojsd, err = findOJSD(ojsd, executable); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ojsd-bench-")
	if err != nil {
		return nil, err
	}
	s := &privateServer{dir: dir, ojsd: ojsd}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// Run by root, PostgreSQL runs as another user, who has to pass through here.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return nil, err
	}
	cfg := embedpg.Config{DataDir: filepath.Join(s.dir, "data"), Fsync: true}
	s.postgres, err = embedpg.Start(ctx, cfg)
	if errors.Is(err, embedpg.ErrNotInstalled) {
		if err := embedpg.Install(ctx); err != nil {
			return nil, err
		}
		s.postgres, err = embedpg.Start(ctx, cfg)
	}
	if err != nil {
		return nil, err
	}
	const database = "ojsd"
	s.databaseURL = s.postgres.URL(database)
	if err := s.postgres.CreateDatabase(ctx, database); err != nil {
		return nil, err
	}
	if _, err := s.startNode(ctx); err != nil {
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

// startNode starts one more process on the database, and returns when it is ready. A node that does not become ready stays in
// nodes, so that stop ends its process. Its log goes into the temporary directory and is shown only if the start fails.
func (s *privateServer) startNode(ctx context.Context) (*privateNode, error) {
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
	// A private server never uses another database, and is the same on every machine.
	n.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "DATABASE_") || strings.HasPrefix(v, "OJS") || strings.HasPrefix(v, "PG")
	}), serverSettings...)
	// Ctrl-C in a terminal goes to the whole process group; in a group of its own the child gets only stop's signal.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.cmd.Start(); err != nil {
		return nil, errors.Join(err, n.log.Close())
	}
	go func() { n.ended <- n.cmd.Wait() }()
	s.nodes = append(s.nodes, n)
	for !ready(ctx, n.url+"/readyz") {
		select {
		case err := <-n.ended:
			n.ended <- err // stop reads it, too
			return nil, fmt.Errorf("the server ended: %w; the end of its log:\n%s", err, n.logTail())
		case <-ctx.Done():
			return nil, fmt.Errorf("the server did not become ready: %w; the end of its log:\n%s", context.Cause(ctx), n.logTail())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return n, nil
}

// serverSettings allow as many streams from one address as a run asks for, at any rate, and webhooks to this machine.
var serverSettings = []string{
	"OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT=1000000", "OJS_REALTIME_MAX_CONNECTIONS=1000000", "OJS_REALTIME_RATE_LIMIT_PER_SECOND=0",
	"OJS_WEBHOOKS_ALLOW_HTTP=true", "OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8",
	"OJS_GRPC_LISTEN=127.0.0.1:0", // not used here, and its default port may be taken
}

// freeAddress may lose a race: another process may take the port before the server does; the run then fails at the start.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
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

func (n *privateNode) logTail() string {
	text, _ := os.ReadFile(n.log.Name()) // only for an error message
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// url is the address of the first node.
func (s *privateServer) url() string { return s.nodes[0].url }

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

// cpuTime is what the processes of a private server have used of the processors. It has the resolution of a clock tick, 10 ms,
// for each process, so short measurements are coarse.
type cpuTime struct {
	server, postgres time.Duration
	known            bool // a short run may have used less than a clock tick
}

func (t cpuTime) minus(before cpuTime) cpuTime {
	return cpuTime{t.server - before.server, t.postgres - before.postgres, t.known && before.known}
}

// perJob makes metrics of it; none if nothing could be read.
func (t cpuTime) perJob(jobs int) []metric {
	if !t.known || jobs == 0 {
		return nil
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(jobs) }
	return []metric{{"server_cpu_us_per_job", us(t.server)}, {"postgres_cpu_us_per_job", us(t.postgres)}}
}

// cpuTime is zero without a private server, and where /proc does not exist or has another form. PostgreSQL writes the id of its
// first process into its data directory.
func (s *privateServer) cpuTime() cpuTime {
	if s == nil {
		return cpuTime{}
	}
	text, err := os.ReadFile(filepath.Join(s.postgres.PGData(), "postmaster.pid"))
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster, parseErr := strconv.Atoi(first)
	if err != nil || parseErr != nil {
		return cpuTime{}
	}
	var servers []int
	for _, n := range s.nodes {
		servers = append(servers, n.cmd.Process.Pid)
	}
	return readCPUTime(servers, postmaster)
}

// readCPUTime adds up servers, and postmaster with its children, the ended ones included. A child that ends between two readings
// moves from one sum to the other and is counted once.
func readCPUTime(servers []int, postmaster int) cpuTime {
	const clockTick = 10 * time.Millisecond // the unit of the times in /proc, on every architecture that Go supports
	used := func(s procfs.ProcStat) time.Duration { return time.Duration(s.UTime+s.STime) * clockTick }
	t := cpuTime{known: true}
	read := func(pid int) (s procfs.ProcStat) {
		p, err := procfs.NewProc(pid)
		if err == nil {
			s, err = p.Stat()
		}
		t.known = t.known && err == nil
		return s
	}
	for _, pid := range servers {
		t.server += used(read(pid))
	}
	first := read(postmaster)
	t.postgres = used(first) + time.Duration(first.CUTime+first.CSTime)*clockTick
	processes, err := procfs.AllProcs()
	if err != nil || !t.known {
		return cpuTime{}
	}
	for _, p := range processes {
		if child, err := p.Stat(); err == nil && child.PPID == postmaster { // with an error it has ended just now
			t.postgres += used(child)
		}
	}
	return t
}
