package e2e_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// example is a producer and a worker of docs/examples.
type example struct {
	language         string
	producer, worker []string
	tools            []string
	cancels          bool // the worker stops a job that was cancelled
}

func examples(t *testing.T) []example {
	t.Helper()
	dir, err := filepath.Abs("../../docs/examples")
	require.NoError(t, err)
	binaries := t.TempDir()
	return []example{
		{"Bash", []string{"bash", dir + "/bash/producer.sh"}, []string{"bash", dir + "/bash/worker.sh"}, []string{"bash", "curl", "jq"}, false},
		{"Python", []string{"python3", dir + "/python/producer.py"}, []string{"python3", dir + "/python/worker.py"}, []string{"python3"}, true},
		{"JavaScript", []string{"node", dir + "/javascript/producer.mjs"}, []string{"node", dir + "/javascript/worker.mjs"}, []string{"node"}, true},
		{"Go", []string{binaries + "/producer"}, []string{binaries + "/worker"}, []string{"go"}, true},
	}
}

// TestExamples runs each producer and worker of docs/examples against a node.
func TestExamples(t *testing.T) {
	t.Parallel()
	node := setup(t)
	for _, e := range examples(t) {
		t.Run(e.language, func(t *testing.T) {
			t.Parallel()
			needTools(t, e.tools...)
			if e.language == "Go" {
				build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Dir(e.worker[0]), "../../docs/examples/go/...")
				output, err := build.CombinedOutput()
				require.NoError(t, err, "%s", output)
			}
			run := exampleRun{node.in(t), e, queue()}
			worker := run.startWorker(t)

			run.producesAndPrintsResults(t)
			run.reportsFailures(t)
			if e.cancels {
				run.leavesCancelledJobs(t)
			}
			run.finishesTheJobInHand(t, worker, syscall.SIGTERM)
			if e.language != "Bash" { // Ctrl-C ends the programs that it calls, too
				run.finishesTheJobInHand(t, run.startWorker(t), os.Interrupt)
			}
		})
	}
}

// TestExamplesEnd: the programs show the key of OJS_API_KEY, and Ctrl-C ends them at once and without a stack trace, also while they wait for a
// result or the server is away.
func TestExamplesEnd(t *testing.T) {
	t.Parallel()
	for _, e := range examples(t) {
		t.Run(e.language, func(t *testing.T) {
			t.Parallel()
			needTools(t, e.tools...)
			if e.language == "Go" {
				output, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Dir(e.worker[0]), "../../docs/examples/go/...").CombinedOutput()
				require.NoError(t, err, "%s", output)
			}
			for i, words := range [][]string{e.producer, e.worker} {
				waits := make(chan string, 100) // the keys of requests after which the program waits
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					key := r.Header.Get("Authorization")
					switch {
					case strings.HasSuffix(r.URL.Path, "/jobs"):
						w.WriteHeader(http.StatusCreated)
						_, _ = io.WriteString(w, `{"job":{"id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"}}`)
					case strings.HasSuffix(r.URL.Path, "/result"):
						_, _ = io.Copy(io.Discard, r.Body)
						waits <- key
						<-r.Context().Done()
					case strings.HasSuffix(r.URL.Path, "/fetch"):
						waits <- key
						_, _ = io.WriteString(w, `{"jobs":[]}`)
					default:
						_, _ = io.WriteString(w, `{"state":"running","jobs_cancelled":[]}`)
					}
				}))
				ctx, cancel := context.WithTimeout(t.Context(), waitFor)
				c := exec.CommandContext(ctx, words[0], words[1:]...)
				c.Env = append(os.Environ(), "OJS_URL="+server.URL, "OJS_API_KEY=secret", "HEARTBEAT_SECONDS=0.5")
				c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				var output bytes.Buffer
				c.Stdout, c.Stderr = &output, &output
				require.NoError(t, c.Start())
				require.Equal(t, "Bearer secret", <-waits)
				if i == 1 { // the worker
					server.CloseClientConnections()
					server.Close()
				}
				start := time.Now()
				require.NoError(t, syscall.Kill(-c.Process.Pid, syscall.SIGINT)) // as Ctrl-C in a terminal, to all programs of the group
				_ = c.Wait()
				require.NoError(t, ctx.Err(), "%s", &output)
				require.Less(t, time.Since(start), 15*time.Second)
				require.NotContains(t, output.String(), "Traceback")
				require.NotContains(t, output.String(), "goroutine")
				cancel()
				server.CloseClientConnections()
				server.Close()
			}
		})
	}
}

// needTools skips the test if one of the programs is missing. .ci/ensure-tools installs them.
func needTools(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("there is no", name, "on this machine; .ci/ensure-tools installs it")
		}
	}
}

// exampleRun is an example on a node, with a queue that no other test uses.
type exampleRun struct {
	*node
	example
	queue string
}

// command sends heartbeats often, so that a test of them takes seconds.
func (r exampleRun) command(t *testing.T, words ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitFor)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.Env = append(os.Environ(), "OJS_URL="+r.url, "OJS_QUEUE="+r.queue, "HEARTBEAT_SECONDS=0.5")
	c.WaitDelay = time.Minute // programs that a killed worker leaves behind may keep its output open
	return c
}

func (r exampleRun) startWorker(t *testing.T) *exec.Cmd {
	t.Helper()
	c := r.command(t, r.example.worker...)
	var output bytes.Buffer
	c.Stdout, c.Stderr = &output, &output
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill() // the test has failed
			_ = c.Wait()
		}
		if t.Failed() {
			t.Logf("output of the worker: %s", &output)
		}
	})
	return c
}

func (r exampleRun) producesAndPrintsResults(t *testing.T) {
	t.Helper()
	output, err := r.command(t, append(r.example.producer, "to be or not", `"that" isn't the question`)...).Output()
	require.NoError(t, err, "%s", output)
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	require.Len(t, lines, 2)
	for i, words := range []string{"4", "4"} {
		line := reply{t: t, body: `{"line":` + lines[i] + `}`}
		require.Equal(t, "completed", line.at("line.1"))
		require.Equal(t, words, line.at("line.2.words"))
		job := r.job(line.at("line.0"))
		require.Equal(t, r.queue, job.at("job.queue"))
		require.Equal(t, words, job.at("job.result.words"))
	}
}

func (r exampleRun) reportsFailures(t *testing.T) {
	t.Helper()
	id := r.push(`"type":"text.unknown","args":["a"],"queue":"%s","max_attempts":1`, r.queue)
	r.awaitState(id, "discarded")
	require.Contains(t, r.job(id).at("job.error.message"), "this worker knows text.count only")
}

// leavesCancelledJobs: the job would take longer than the test.
func (r exampleRun) leavesCancelledJobs(t *testing.T) {
	t.Helper()
	id := r.push(`"type":"text.count","args":["a",3600],"queue":"%s"`, r.queue)
	r.awaitState(id, "active")
	r.del("/ojs/v1/jobs/" + id).is(200)
	next := r.push(`"type":"text.count","args":["a b"],"queue":"%s"`, r.queue)
	r.awaitState(next, "completed")
	require.Equal(t, "cancelled", r.job(id).at("job.state"))
}

// finishesTheJobInHand needs heartbeats as well: the job takes longer than its reservation.
func (r exampleRun) finishesTheJobInHand(t *testing.T, worker *exec.Cmd, stop os.Signal) {
	t.Helper()
	id := r.push(`"type":"text.count","args":["a b c",6],"queue":"%s","visibility_timeout_ms":4000`, r.queue)
	r.awaitState(id, "active")
	require.NoError(t, worker.Process.Signal(stop))
	later := r.push(`"type":"text.count","args":["a"],"queue":"%s"`, r.queue)
	require.NoError(t, worker.Wait())
	job := r.job(id)
	require.Equal(t, "completed", job.at("job.state"), job.body)
	require.Equal(t, "1", job.at("job.attempt"))
	require.Equal(t, "3", job.at("job.result.words"))
	require.Equal(t, "available", r.job(later).at("job.state"), "the worker fetches no more")
	r.del("/ojs/v1/jobs/" + later).is(200)
}

func (r exampleRun) awaitState(id, state string) {
	r.t.Helper()
	eventually(r.t, func() bool { return r.job(id).at("job.state") == state })
}
