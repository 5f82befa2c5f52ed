package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/embedpg"
)

// patience bounds a wait of a test that costs it only if the test fails.
const patience = 2 * time.Minute

// init lets the test binary be the program, so that a test can kill it.
func init() {
	if os.Getenv("OJSD_TEST_AS_PROGRAM") == "1" {
		main()
	}
}

// freeAddress returns a loopback address with a port that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := embedpg.FreePort() // not an ephemeral one, which an outgoing connection could take while a server is down
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// serverProcess is a server in a process of its own.
type serverProcess struct {
	t      *testing.T
	base   string
	binary string // of another release; "": this one
	args   []string
	env    []string
	cmd    *exec.Cmd
	log    *bytes.Buffer
}

// startNode starts a server and waits until it is ready.
func startNode(t *testing.T, databaseURL string, env ...string) *serverProcess {
	t.Helper()
	n := newNode(t, databaseURL, env...)
	n.start()
	return n
}

func newNode(t *testing.T, databaseURL string, env ...string) *serverProcess {
	t.Helper()
	address := freeAddress(t)
	n := &serverProcess{t: t, base: "http://" + address, env: env, args: []string{"serve", "--migrate", "--database-url", databaseURL, "--listen", address, "--logging-level", "error"}}
	t.Cleanup(n.kill)
	return n
}

func (n *serverProcess) start() {
	n.t.Helper()
	n.launch()
	n.answers("/readyz", http.StatusOK)
}

// launch starts the process.
func (n *serverProcess) launch() {
	n.t.Helper()
	n.log = &bytes.Buffer{}
	n.cmd = exec.Command(cmp.Or(n.binary, os.Args[0]), n.args...)
	n.cmd.Env = append(append(os.Environ(), "OJSD_TEST_AS_PROGRAM=1", "OJS_GRPC_LISTEN=off"), append(crashWebhooks, n.env...)...)
	n.cmd.Stderr = n.log
	require.NoError(n.t, n.cmd.Start())
}

// answers waits until the server answers a request with that status.
func (n *serverProcess) answers(path string, status int) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		res, err := http.Get(n.base + path)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == status
	}, 2*time.Minute, 20*time.Millisecond, "the server does not answer %s with %d", path, status)
}

func (n *serverProcess) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// on is the same server for a subtest.
func (n *serverProcess) on(t *testing.T) *serverProcess { return &serverProcess{t: t, base: n.base} }

// until waits for a condition.
func (n *serverProcess) until(condition func() bool) {
	n.t.Helper()
	for start := time.Now(); !condition(); time.Sleep(5 * time.Millisecond) {
		require.Less(n.t, time.Since(start), patience)
	}
}

// call sends a request.
func (n *serverProcess) call(method, path, body string) (status int, answer gjson.Result) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), method, n.base+path, bytes.NewBufferString(body))
	require.NoError(n.t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(n.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return res.StatusCode, gjson.ParseBytes(text)
}

// is sends a request that must be answered with that status.
func (n *serverProcess) is(want int, method, path, body string) gjson.Result {
	n.t.Helper()
	status, answer := n.call(method, path, body)
	require.Equal(n.t, want, status, "%s %s %s: %s", method, path, body, answer.Raw)
	return answer
}
