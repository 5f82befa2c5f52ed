package golden_test

import (
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// server is a whole node with both interfaces on a database of its own, and the clients of one route or RPC.
type server struct {
	t      *testing.T
	node   *app.Node
	client *http.Client
	url    string
	rpc    *grpc.ClientConn
	hook   *httptest.Server // an endpoint for webhooks that answers 200

	db        *pgx.Conn // of settle
	listening bool      // for notifications
	made      int       // fixtures, for their names
}

// servers are shared by the tests of routes, one test at a time: to start a node and fill its caches takes longer than most tests. A reset
// deletes what a test has made.
type servers struct {
	t    *testing.T // ends after all tests that take one
	mu   sync.Mutex
	free []*server
}

// take returns a server without data until the end of t; alone, one that has done nothing yet.
func (p *servers) take(t *testing.T, alone bool) *server {
	t.Helper()
	if alone {
		return newServer(t)
	}
	p.mu.Lock()
	var s *server
	if n := len(p.free); n > 0 {
		s, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if s == nil {
		s = newServer(p.t)
	}
	s.t = t
	t.Cleanup(func() {
		if t.Failed() {
			return // its answers are not to be trusted
		}
		s.t = p.t
		s.reset()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free = append(p.free, s)
	})
	return s
}

// reset deletes everything and waits until the relay has begun anew. The log begins where that of a new server does: a reset leaves it
// behind the events that it has deleted, and a position before them would be refused.
func (s *server) reset() {
	s.t.Helper()
	require.Equal(s.t, http.StatusOK, s.do(http.MethodPost, "/ojs/v1/admin/reset", "", 0).status)
	_, err := s.db.Exec(s.t.Context(), `UPDATE ojs.event_relay SET floor_place = 0, lost_place = 0`)
	require.NoError(s.t, err)
	s.made = 0
	s.settle()
}

// newServer has the defaults of a server, so that the goldens show them, with gRPC, the test reset and the address of the endpoint allowed.
// Retries of webhooks wait for an hour, and so do the looks of the timers at what other nodes have left.
func newServer(t *testing.T) *server {
	t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(hook.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	require.NoError(t, os.WriteFile(ca, block, 0o600))

	c := app.Config{Config: config.Default(), Logger: slog.New(slog.DiscardHandler), Version: "1.2.3"}
	c.Database.URL, c.Server.Listen, c.Database.MaxConns = dbtest.URL(t), "127.0.0.1:0", 3
	c.GRPC.Listen = "127.0.0.1:0"
	c.Tests.EnableReset = true
	c.Realtime.KeepAlive, c.Realtime.WriteTimeout = time.Hour, time.Hour
	c.Webhooks.CAFile = ca
	c.Webhooks.AllowNetworks.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	c.Webhooks.MaxSubscriptions = 10_000
	c.Webhooks.RetrySchedule, c.Webhooks.RetryJitter = []time.Duration{time.Hour}, 0
	node, err := app.Start(t.Context(), c)
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 4}
	conn, err := grpc.NewClient(node.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		transport.CloseIdleConnections()
		require.NoError(t, node.Stop())
	})
	return &server{t: t, node: node, client: &http.Client{Transport: transport}, url: "http://" + node.Addr(), rpc: conn, hook: hook, db: connect(t, c.Database.URL)}
}

// waitFor bounds each wait. It costs time only if the test fails, so it leaves room for a busy machine.
const waitFor = 2 * time.Minute

// answer is what a client gets.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are written "Name: value". frames > 0 reads a stream until it has sent that many frames.
func (s *server) do(method, path, body string, frames int, headers ...string) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, reader)
	require.NoError(s.t, err, "%s %s", method, path)
	req.Header.Set("User-Agent", "golden")
	req.Header.Set("Accept-Encoding", "identity")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		req.Header.Add(name, strings.TrimSpace(value))
	}
	res, err := s.client.Do(req)
	require.NoError(s.t, err, "%s %s", method, path)
	defer func() { _ = res.Body.Close() }()
	a := answer{status: res.StatusCode, header: res.Header}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") && method != http.MethodHead {
		a.body = readFrames(s.t, res.Body, frames)
		return a
	}
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err, "%s %s", method, path)
	a.body = string(text)
	return a
}

// readFrames reads until the n-th empty line, which ends a frame. The stream itself does not end.
func readFrames(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	var b strings.Builder
	for one := make([]byte, 1); strings.Count(b.String(), "\n\n") < n; {
		_, err := io.ReadFull(r, one)
		require.NoError(t, err, "%s", b.String())
		b.Write(one)
	}
	return b.String()
}
