package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/ojs"
)

// init lets the test binary be a worker, so that a test can kill it.
func init() {
	if os.Getenv("OJSD_TEST_AS_WORKER") == "1" {
		os.Exit(runBooksWorker())
	}
}

// What becomes of a job in the end is its type. Before that, runs fail at random.
var booksFates = map[string]string{"books.ok": "completed", "books.snooze": "completed", "books.discard": "discarded", "books.exhaust": "discarded", "books.cancel": "cancelled"}

// booksJobs is how many jobs TestSDKBooks runs. The environment variable OJSD_TEST_SDK_JOBS changes it.
func booksJobs(t *testing.T) int {
	text := os.Getenv("OJSD_TEST_SDK_JOBS")
	if text == "" {
		return 3000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// hiding is a transport to a server that has none of the extensions of ojsd. It ends the process if one is used.
type hiding struct{ http.RoundTripper }

func (h hiding) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		if sent, err = io.ReadAll(body); err != nil {
			return nil, err
		}
	}
	if strings.HasSuffix(r.URL.Path, "ack/batch") || bytes.Contains(sent, []byte(`"wait_ms"`)) || bytes.Contains(sent, []byte(`"delay_ms"`)) {
		fmt.Fprintln(os.Stderr, "an extension was used that the manifest does not have:", r.URL.Path)
		os.Exit(3)
	}
	answer, err := h.RoundTripper.RoundTrip(r)
	if err != nil || r.URL.Path != "/ojs/manifest" {
		return answer, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	answer.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte("urn:ojsd:ext:"), []byte("urn:hidden:"))))
	answer.ContentLength = -1
	return answer, err
}

// runBooksWorker is the program that TestSDKBooks kills. It writes down each run that has ended well before the worker reports it.
func runBooksWorker() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready") // for stopWorker
	config := ojs.Config{URL: os.Getenv("OJS_URL"), Logger: slog.New(slog.DiscardHandler)}
	if os.Getenv("OJSD_TEST_HIDE") == "1" {
		config.Transport = hiding{http.DefaultTransport}
	}
	client, err := ojs.NewClient(config)
	if err != nil {
		return 4
	}
	runs, err := os.OpenFile(os.Getenv("OJSD_TEST_RUNS"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return 4
	}
	w := ojs.NewWorker(client, ojs.WorkerConfig{
		Queues: []string{"books", "books.low"}, Weights: map[string]int{"books": 3, "books.low": 1}, Concurrency: 50, VisibilityTimeout: 2 * time.Second, PollInterval: 50 * time.Millisecond,
	})
	for kind := range booksFates {
		w.Register(kind, func(ctx ojs.JobContext) error { return booksRun(ctx, runs) })
	}
	for ctx.Err() == nil {
		if err := w.Start(ctx); ctx.Err() == nil && ojs.Retryable(err) {
			continue
		} else if err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			return 5
		}
	}
	return 0
}

func booksRun(ctx ojs.JobContext, runs io.Writer) error {
	job := ctx.Job
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(rand.IntN(10)) * time.Millisecond):
	}
	switch chance := rand.IntN(100); {
	case chance < 5:
		return errors.New("at random")
	case chance < 7:
		panic("at random")
	case job.Type == "books.snooze" && chance < 50:
		return ojs.Snooze(20 * time.Millisecond)
	}
	switch job.Type {
	case "books.discard":
		return ojs.Discard(errors.New("it is so"))
	case "books.exhaust":
		return errors.New("always")
	case "books.cancel":
		return ojs.Cancel()
	}
	_, err := fmt.Fprintf(runs, "%s %d\n", job.ID, job.Attempt)
	return err
}

// TestSDKBooks: workers of the SDK, in processes of their own, run jobs on two nodes while workers and nodes are killed and redeployed, and
// runs fail at random. In the end each job has the one outcome that it should have, and its attempts are those that have begun.
func TestSDKBooks(t *testing.T) {
	t.Parallel()
	jobs := booksJobs(t)
	for name, b := range map[string]*sdkBooks{"WithExtensions": {jobs: jobs}, "WithoutExtensions": {jobs: max(jobs/3, 1), hide: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b.t, b.url, b.runs = t, dbtest.URL(t), filepath.Join(t.TempDir(), "runs")
			require.NoError(t, os.WriteFile(b.runs, nil, 0o600))
			b.nodes = []*serverProcess{startNode(t, b.url), startNode(t, b.url)}
			conn, err := pgx.Connect(t.Context(), b.url)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			for i := range b.workers {
				b.startWorker(i)
			}
			t.Cleanup(b.killWorkers)
			go b.produce()
			for b.disturb(); !b.produced.Load() || b.left(conn) > 0; {
				if !b.produced.Load() {
					b.disturb()
				}
				sleepContext(t.Context(), 100*time.Millisecond)
			}
			for i := range b.workers {
				b.stopWorker(i)
			}
			b.verify(conn)
		})
	}
}

type sdkBooks struct {
	t       *testing.T
	jobs    int
	hide    bool
	url     string
	runs    string // file of the runs that have ended well
	nodes   []*serverProcess
	workers [4]*exec.Cmd
	ready   [4]io.Reader // what workers write when they handle signals

	stored           atomic.Int64
	produced         atomic.Bool
	disturbances     int
	kills, redeploys int
}

// produce enqueues jobs on both nodes. Batches have ids, so that one is sent again until it is known to be stored.
func (b *sdkBooks) produce() {
	defer b.produced.Store(true)
	var clients []*ojs.Client
	for _, n := range b.nodes {
		c, err := ojs.NewClient(ojs.Config{URL: n.base, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return
		}
		defer c.Close()
		clients = append(clients, c)
	}
	for b.stored.Load() < int64(b.jobs) && b.t.Context().Err() == nil {
		batch := make([]ojs.JobRequest, min(50, b.jobs-int(b.stored.Load())))
		for i := range batch {
			batch[i] = booksJob()
		}
		for try := 0; b.t.Context().Err() == nil; try++ {
			if _, err := clients[try%2].EnqueueBatch(b.t.Context(), batch); err == nil || errors.Is(err, ojs.ErrDuplicateJob) {
				break
			}
		}
		b.stored.Add(int64(len(batch)))
		if b.jobs <= 10_000 {
			sleepContext(b.t.Context(), 20*time.Millisecond) // so that there is something to disturb
		}
	}
}

func booksJob() ojs.JobRequest {
	kind, attempts := "books.ok", 100
	switch rand.IntN(20) {
	case 0:
		kind = "books.discard"
	case 1:
		kind, attempts = "books.exhaust", 3
	case 2:
		kind = "books.cancel"
	case 3, 4:
		kind = "books.snooze"
	}
	r := ojs.JobRequest{
		ID: ojs.NewID(), Type: kind, Queue: "books", Retry: &ojs.RetryPolicy{MaxAttempts: attempts, InitialInterval: 20 * time.Millisecond, BackoffCoefficient: 1},
	}
	if rand.IntN(4) == 0 {
		r.Queue = "books.low"
	}
	return r
}

// disturb kills or redeploys a worker or a node, in turn.
func (b *sdkBooks) disturb() {
	n := b.disturbances
	b.disturbances++
	sleepContext(b.t.Context(), time.Duration(100+rand.IntN(200))*time.Millisecond)
	switch w, node := n/2%len(b.workers), b.nodes[n/4%2]; n % 4 {
	case 0:
		b.kills++
		_ = b.workers[w].Process.Kill()
		_ = b.workers[w].Wait()
		b.startWorker(w)
	case 1:
		b.kills++
		node.kill()
		node.start()
	case 2:
		b.redeploys++
		b.stopWorker(w)
		b.startWorker(w)
	case 3:
		b.redeploys++
		require.NoError(b.t, node.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(b.t, node.cmd.Wait(), node.log.String())
		node.start()
	}
}

func (b *sdkBooks) startWorker(i int) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "OJSD_TEST_AS_WORKER=1", "OJS_URL="+b.nodes[i%2].base, "OJSD_TEST_RUNS="+b.runs)
	if b.hide {
		c.Env = append(c.Env, "OJSD_TEST_HIDE=1")
	}
	c.Stderr = os.Stderr
	ready, err := c.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, c.Start())
	b.workers[i], b.ready[i] = c, ready
}

// stopWorker ends a worker by SIGTERM: it reports what it has done, or hands it back. A process that has just begun does not handle the
// signal yet.
func (b *sdkBooks) stopWorker(i int) {
	_, err := b.ready[i].Read(make([]byte, 1))
	require.NoError(b.t, err)
	require.NoError(b.t, b.workers[i].Process.Signal(syscall.SIGTERM))
	require.NoError(b.t, b.workers[i].Wait())
}

func (b *sdkBooks) killWorkers() {
	for _, w := range b.workers {
		if w.ProcessState == nil {
			_ = w.Process.Kill()
			_ = w.Wait()
		}
	}
}

func (b *sdkBooks) left(conn *pgx.Conn) (n int) {
	require.NoError(b.t, conn.QueryRow(b.t.Context(), `SELECT count(*) FROM ojs.jobs WHERE state <> 'discarded'`).Scan(&n))
	return n
}

// verify compares jobs, their events and what the handlers have written down.
func (b *sdkBooks) verify(conn *pgx.Conn) {
	t := b.t
	ended := b.readRuns()
	rows, err := conn.Query(t.Context(), `
		SELECT j.id::text, j.type, j.state, j.attempt, COALESCE(cardinality(j.errors), 0),
			count(*) FILTER (WHERE e.type = 'job.started'), count(*) FILTER (WHERE e.type = 'job.failed'),
			count(*) FILTER (WHERE e.from_state = 'active' AND e.to_state IN ('available', 'scheduled') AND e.data->>'reason' = 'requeue'),
			count(*) FILTER (WHERE e.to_state IN ('completed', 'discarded', 'cancelled'))
		FROM (SELECT id, type, state, attempt, errors FROM ojs.jobs UNION ALL SELECT id, type, state, attempt, errors FROM ojs.jobs_done) j
		JOIN ojs.events e ON e.job_id = j.id GROUP BY 1, 2, 3, 4, 5`)
	require.NoError(t, err)
	var id, kind, state string
	var attempt, inHistory, started, failed, released, ends, total, again, snoozed int
	states := map[string]int{}
	_, err = pgx.ForEachRow(rows, []any{&id, &kind, &state, &attempt, &inHistory, &started, &failed, &released, &ends}, func() error {
		total++
		states[state]++
		again += started - 1
		snoozed += released
		require.Equal(t, booksFates[kind], state, "job %s of type %s", id, kind)
		require.Equal(t, 1, ends, "job %s has ended %d times", id, ends)
		require.Equal(t, started-released, attempt, "job %s: runs that have begun and attempts differ", id)
		require.Equal(t, min(failed, 50), inHistory, "job %s: every failure is in its history", id)
		switch state {
		case "completed":
			require.Equal(t, attempt-1, failed, "job %s: every attempt but the last has failed", id)
			require.Contains(t, ended[id], attempt, "job %s: no handler has ended the attempt that counts", id)
		case "discarded":
			require.Equal(t, attempt, failed, "job %s: every attempt has failed", id)
		case "cancelled": // by the run, or after it was lost
			require.Contains(t, []int{attempt - 1, attempt}, failed, id)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, b.jobs, total)
	requirePublished(t, conn)
	findings, err := examine(t.Context(), conn, config.Default().Database)
	require.NoError(t, err)
	for _, f := range findings {
		require.True(t, f.OK, f.Text)
	}
	t.Logf("%d jobs: %v; %d runs besides the first ones, %d of them handed back; %d kills, %d redeployments", total, states, again, snoozed, b.kills, b.redeploys)
}

// readRuns gives the attempts that handlers have ended well, by job.
func (b *sdkBooks) readRuns() map[string][]int {
	f, err := os.Open(b.runs)
	require.NoError(b.t, err)
	defer func() { _ = f.Close() }()
	ended := map[string][]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var id string
		var attempt int
		_, err := fmt.Sscan(lines.Text(), &id, &attempt)
		require.NoError(b.t, err)
		ended[id] = append(ended[id], attempt)
	}
	return ended
}
