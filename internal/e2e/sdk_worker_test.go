package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// withAndWithoutExtensions runs a test of the SDK against a node, and against the same node without what only ojsd has.
func withAndWithoutExtensions(t *testing.T, run func(t *testing.T, f *front, c *ojs.Client)) {
	t.Helper()
	for name, without := range map[string]bool{"WithExtensions": false, "WithoutExtensions": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFront(t, setup(t, quickTimer))
			f.withoutExtensions = without
			run(t, f, sdk(t, f.URL))
		})
	}
}

func quickTimer(c *app.Config) { c.Jobs.DuePollInterval = 50 * time.Millisecond }

// often has a worker poll and beat often, for tests without long polling.
func often(config ojs.WorkerConfig) ojs.WorkerConfig {
	config.PollInterval, config.HeartbeatInterval, config.Logger = 20*time.Millisecond, 50*time.Millisecond, silent
	return config
}

func TestSDKWorkerOutcomes(t *testing.T) {
	t.Parallel()
	withAndWithoutExtensions(t, func(t *testing.T, _ *front, c *ojs.Client) {
		ctx := t.Context()
		w := ojs.NewWorker(c, often(ojs.WorkerConfig{Concurrency: 5}))
		type args struct {
			N int `json:"n"`
		}
		w.Register("double", ojs.Typed(func(ctx ojs.JobContext, args args) error { return ctx.SetResult(2 * args.N) }))
		w.Register("sum", func(ctx ojs.JobContext) error {
			sum := 0
			for _, r := range ctx.Job.ParentResults {
				var n int
				if err := json.Unmarshal(r, &n); err != nil {
					return err
				}
				sum += n
			}
			return ctx.SetResult(sum)
		})
		w.Register("fails", func(ojs.JobContext) error {
			return &ojs.Failure{Code: "smtp_down", Type: "smtp.refused", Message: "refused", Details: map[string]any{"host": "h"}, Permanent: true}
		})
		w.Register("panics", func(ojs.JobContext) error { panic("ouch") })
		w.Register("discards", func(ojs.JobContext) error { return ojs.Discard(errors.New("no")) })
		w.Register("deadletters", func(ojs.JobContext) error { return ojs.DeadLetter(errors.New("look")) })
		w.Register("cancels", func(ojs.JobContext) error { return ojs.Cancel() })
		w.Register("resumes", func(j ojs.JobContext) error {
			var row int
			if found, err := j.LoadCheckpoint(&row); err != nil || found {
				return errors.Join(err, j.SetResult(row))
			}
			return errors.Join(j.ReportProgress(0.5, "half", map[string]int{"row": 7}), j.SaveCheckpoint(7), errors.New("crash"))
		})
		w.Register("toolarge", func(j ojs.JobContext) error { return j.SetResult(strings.Repeat("x", 2<<20)) })
		var snoozes atomic.Int64
		w.Register("snoozes", func(j ojs.JobContext) error {
			if snoozes.Add(1) == 1 {
				return ojs.Snooze(50 * time.Millisecond)
			}
			return j.SetResult(j.Job.Attempt)
		})
		runWorker(t, w)

		want := map[string]string{ // state, error code, result
			"double": "completed  4", "fails": "discarded smtp_down ", "panics": "discarded panic ", "discards": "discarded DISCARD ", "deadletters": "discarded DEAD_LETTER ",
			"cancels": "cancelled  ", "resumes": "completed  7", "snoozes": "completed  1", "toolarge": "discarded payload_too_large ",
		}
		ids := map[string]string{}
		for name := range want {
			job, err := c.Enqueue(ctx, name, args{2}, ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 2, InitialInterval: 10 * time.Millisecond}))
			require.NoError(t, err)
			ids[name] = job.ID
		}
		workflow, err := c.CreateWorkflow(ctx, ojs.Graph(ojs.JobRequest{Type: "double", Args: args{1}, StepID: "a"}, ojs.JobRequest{Type: "double", Args: args{2}, StepID: "b"},
			ojs.JobRequest{Type: "sum", StepID: "c", DependsOn: []string{"a", "b"}}))
		require.NoError(t, err)
		for name, expected := range want {
			result, err := c.Wait(ctx, ids[name])
			require.NoError(t, err)
			job := mustGet(t, c, ids[name])
			code := ""
			if job.Error != nil {
				code = job.Error.Code
			}
			require.Equal(t, expected, fmt.Sprint(result.State, " ", code, " ", string(job.Result)), name)
		}
		eventually(t, func() bool {
			workflow, err = c.GetWorkflow(ctx, workflow.ID)
			require.NoError(t, err)
			return workflow.State.Terminal()
		})
		require.Equal(t, ojs.WorkflowCompleted, workflow.State)
		require.Equal(t, "6", string(workflow.Steps[2].Result))
		require.NotEmpty(t, mustGet(t, c, ids["panics"]).Error.Backtrace)
		progress, err := c.Progress(ctx, ids["resumes"])
		require.NoError(t, err)
		require.Equal(t, ojs.StateCompleted, progress.State)
	})
}

// TestSDKWorkerLosesAJob: the context of a job is cancelled when another worker gets it, and when it is cancelled.
func TestSDKWorkerLosesAJob(t *testing.T) {
	t.Parallel()
	node := setup(t, quickTimer)
	f := newFront(t, node)
	var cut atomic.Bool
	f.when(func(_ http.ResponseWriter, r *http.Request, _ http.HandlerFunc) bool {
		if cut.Load() && r.URL.Path == "/ojs/v1/workers/heartbeat" {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	first, second := make(chan *ojs.Job, 1), make(chan *ojs.Job, 10)
	ended := make(chan error, 10)
	q := queue()
	w := ojs.NewWorker(sdk(t, f.URL), often(ojs.WorkerConfig{Queues: []string{q}, Concurrency: 1, VisibilityTimeout: 3 * time.Second})) // a busy machine sends heartbeats late
	w.Register("a", func(ctx ojs.JobContext) error {
		first <- ctx.Job
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	})
	stop := runWorker(t, w)
	c := sdk(t, node.url)
	job, err := c.Enqueue(t.Context(), "a", nil, ojs.WithQueue(q))
	require.NoError(t, err)
	next(t, first)
	cut.Store(true)
	other := ojs.NewWorker(c, often(ojs.WorkerConfig{Queues: []string{q}, Concurrency: 1}))
	other.Register("a", func(j ojs.JobContext) error { second <- j.Job; return nil })
	stopOther := runWorker(t, other)
	require.Equal(t, 2, next(t, second).Attempt)
	cut.Store(false)
	require.ErrorIs(t, next(t, ended), ojs.ErrJobLost)
	result, err := c.Wait(t.Context(), job.ID)
	require.NoError(t, err)
	require.Equal(t, ojs.StateCompleted, result.State)
	stopOther()

	job, err = c.Enqueue(t.Context(), "a", nil, ojs.WithQueue(q))
	require.NoError(t, err)
	next(t, first)
	_, err = c.CancelJob(t.Context(), job.ID, "")
	require.NoError(t, err)
	require.ErrorIs(t, next(t, ended), ojs.ErrJobCancelled)
	stop()
	require.Equal(t, ojs.StateCancelled, mustGet(t, c, job.ID).State)
}

// TestSDKWorkerDirectives: an operator sets a worker to quiet, back, and ends it.
func TestSDKWorkerDirectives(t *testing.T) {
	t.Parallel()
	node := setup(t)
	c := sdk(t, node.url)
	q := queue()
	w := ojs.NewWorker(c, often(ojs.WorkerConfig{ID: "directed", Queues: []string{q}}))
	w.Register("a", func(ojs.JobContext) error { return nil })
	done := make(chan error, 1)
	go func() { done <- w.Start(context.Background()) }()
	state := func(want string) {
		eventually(t, func() bool { return node.get("/ojs/v1/workers/directed").at("state") == want })
	}
	eventually(t, func() bool { return node.get("/ojs/v1/workers/directed").status == 200 })
	require.NoError(t, ojsadmin.New(c).DirectWorker(t.Context(), "directed", ojs.DirectiveQuiet))
	state("quiet")
	job, err := c.Enqueue(t.Context(), "a", nil, ojs.WithQueue(q))
	require.NoError(t, err)
	node.beat("other").is(200) // a round trip later it is still there
	require.Equal(t, ojs.StateAvailable, mustGet(t, c, job.ID).State)
	require.NoError(t, ojsadmin.New(c).DirectWorker(t.Context(), "directed", ojs.DirectiveRunning))
	result, err := c.Wait(t.Context(), job.ID)
	require.NoError(t, err)
	require.Equal(t, ojs.StateCompleted, result.State)
	require.NoError(t, ojsadmin.New(c).DirectWorker(t.Context(), "directed", ojs.DirectiveTerminate))
	require.NoError(t, next(t, done))
	node.get("/ojs/v1/workers/directed").is(404) // it has left the registry

	again := ojs.NewWorker(c, often(ojs.WorkerConfig{ID: "directed", Queues: []string{q}}))
	again.Register("a", func(ojs.JobContext) error { return nil })
	stop := runWorker(t, again)
	job, err = c.Enqueue(t.Context(), "a", nil, ojs.WithQueue(q))
	require.NoError(t, err)
	_, err = c.Wait(t.Context(), job.ID)
	require.NoError(t, err)
	stop()
}

// books counts what handlers have seen.
type books struct {
	mu   sync.Mutex
	runs map[string]int // runs that ended well and were not cancelled, by job
}

func (b *books) worker(c *ojs.Client, q string) *ojs.Worker {
	w := ojs.NewWorker(c, often(ojs.WorkerConfig{Queues: []string{q}, Concurrency: 20, GracePeriod: 5 * time.Second}))
	w.Register("a", func(ctx ojs.JobContext) error {
		j := ctx.Job
		time.Sleep(time.Millisecond)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case j.ID[35] == '0':
			return ojs.Discard(errors.New("always"))
		case j.ID[35] == '1' && j.Attempt == 1:
			return errors.New("once")
		case j.ID[35] == '2' && j.Attempt == 1:
			panic("once")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.runs[j.ID]++
		return nil
	})
	return w
}

// TestSDKWorkerBooks runs jobs on two nodes through connections that break, answers that say 503, a restart of a node and of workers,
// and counts afterwards: each job has ended as it should, and no run that was reported was repeated.
func TestSDKWorkerBooks(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]bool{"WithExtensions": false, "WithoutExtensions": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const jobs = 800 // some thousand requests, of which one in twelve breaks
			one := setup(t, quickTimer)
			two := one.another(quickTimer)
			f := newFront(t, one)
			f.withoutExtensions = without
			var requests atomic.Int64
			f.when(func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) bool {
				worker := strings.HasPrefix(r.URL.Path, "/ojs/v1/workers/") && !strings.HasSuffix(r.URL.Path, "/fetch")
				switch n := requests.Add(1); {
				case n%41 == 0:
					w.Header().Set("Retry-After", "1")
					http.Error(w, `{"error":{"code":"backend_error","type":"backend_unavailable","message":"m","retryable":true}}`, http.StatusServiceUnavailable)
				case n%37 == 0:
					panic(http.ErrAbortHandler) // before the node has seen it
				case n%31 == 0 && (worker || r.URL.Path == "/ojs/v1/jobs"):
					forward(discardWriter{http.Header{}}, r)
					panic(http.ErrAbortHandler) // after the node has carried it out
				default:
					return false
				}
				return true
			})
			q := queue()
			c := sdk(t, f.URL)
			b := &books{runs: map[string]int{}}
			stops := []func(){runWorker(t, b.worker(c, q)), runWorker(t, b.worker(c, q))}
			var ids [8][]string
			var producers sync.WaitGroup
			for p := range ids {
				producers.Go(func() {
					for range jobs / len(ids) {
						job, err := c.Enqueue(t.Context(), "a", nil, ojs.WithQueue(q), ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 10, InitialInterval: 10 * time.Millisecond}))
						if err == nil { // after four failures in a row it is not known; see the count of all jobs
							ids[p] = append(ids[p], job.ID)
						}
					}
				})
			}
			producers.Wait()
			stops[0]() // a deployment, under load
			stops = append(stops, runWorker(t, b.worker(c, q)))
			f.to(t, two) // the node restarts; the other one goes on
			f.CloseClientConnections()
			stopped := make(chan struct{})
			go func() { defer close(stopped); _ = one.app.Stop() }()
			direct := sdk(t, two.url)
			eventually(t, func() bool {
				stats, err := ojsadmin.New(direct).QueueStats(t.Context(), q)
				require.NoError(t, err)
				return stats.Available+stats.Active+stats.Retryable == 0
			})
			for _, stop := range stops {
				stop()
			}
			<-stopped
			n := 0
			for _, list := range ids {
				for _, id := range list {
					n++
					job := mustGet(t, direct, id)
					if id[35] == '0' {
						require.Equal(t, ojs.StateDiscarded, job.State, id)
						continue
					}
					require.Equal(t, ojs.StateCompleted, job.State, "%s: %v", id, job.Errors)
					require.GreaterOrEqual(t, b.runs[id], 1, id)
					if len(job.Errors) == 0 {
						require.Equal(t, 1, b.runs[id], "%s ran again although nothing had failed", id)
					}
				}
			}
			require.Greater(t, n, jobs*9/10)
			t.Log(n, "jobs,", requests.Load(), "requests")
		})
	}
}

// discardWriter takes an answer that nobody reads.
type discardWriter struct{ header http.Header }

func (w discardWriter) Header() http.Header       { return w.header }
func (discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (discardWriter) WriteHeader(int)             {}

// TestSDKWorkerQueueConcurrency: a worker with a bound for one queue runs all the jobs of a node, and never more of that queue. It is stopped
// and started again meanwhile.
func TestSDKWorkerQueueConcurrency(t *testing.T) {
	t.Parallel()
	node := setup(t)
	c := sdk(t, node.url)
	heavy, light := queue(), queue()
	var running, most, ended atomic.Int64
	newWorker := func() *ojs.Worker {
		w := ojs.NewWorker(c, ojs.WorkerConfig{
			Queues: []string{heavy, light}, Concurrency: 20, QueueConcurrency: map[string]int{heavy: 2}, PollInterval: 20 * time.Millisecond,
		})
		w.Register("a", func(ctx ojs.JobContext) error {
			defer ended.Add(1)
			if ctx.Job.Queue == heavy {
				n := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
			}
			time.Sleep(time.Millisecond) // the time of a job
			return nil
		})
		return w
	}
	enqueue := func(q string, n int) {
		requests := make([]ojs.JobRequest, n)
		for i := range requests {
			requests[i] = ojs.JobRequest{Type: "a", Queue: q}
		}
		_, err := c.EnqueueBatch(t.Context(), requests)
		require.NoError(t, err)
	}
	const jobs = 300
	enqueue(heavy, jobs)
	enqueue(light, 3*jobs)
	stop := runWorker(t, newWorker())
	eventually(t, func() bool { return ended.Load() > jobs })
	stop()
	stop = runWorker(t, newWorker())
	eventually(t, func() bool { return ended.Load() == 4*jobs })
	for n := range int64(5) { // into queues that are empty, and a worker that waits
		enqueue(heavy, 4)
		enqueue(light, 1)
		eventually(t, func() bool { return ended.Load() == 4*jobs+5*(n+1) })
	}
	stop()
	require.LessOrEqual(t, most.Load(), int64(2))
	require.EqualValues(t, 0, running.Load())
}
