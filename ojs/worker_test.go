package ojs_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// bothServers runs a test against a server with all extensions and against one with none.
func bothServers(t *testing.T, run func(t *testing.T, s server, c *ojs.Client)) {
	t.Helper()
	for name, options := range map[string][]fakeserver.Option{"WithExtensions": nil, "WithoutExtensions": {fakeserver.WithoutExtensions()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t, options...)
			run(t, s, c)
		})
	}
}

// fast has a worker poll and beat often, so that a test without extensions takes no seconds.
func fast(config ojs.WorkerConfig) ojs.WorkerConfig {
	config.PollInterval, config.HeartbeatInterval = 5*time.Millisecond, cmp.Or(config.HeartbeatInterval, 20*time.Millisecond)
	return config
}

// TestWorkerOutcomes is the checklist's worker: handler registration, ack, nack.
func TestWorkerOutcomes(t *testing.T) {
	t.Parallel()
	bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{ID: "w1", UnhandledFor: -1}))
		type tuple struct {
			ojs.Tuple
			Name string
			N    int
		}
		ojs.Register(w, func(job ojs.JobContext, args email) error {
			return job.SetResult(map[string]string{"sent": args.To})
		})
		w.Register("tuple", ojs.Typed(func(job ojs.JobContext, args tuple) error {
			return job.SetResult(fmt.Sprint(args.Name, args.N, job.Job.Attempt))
		}))
		w.Register("list", ojs.Typed(func(job ojs.JobContext, args []int) error { return job.SetResult(len(args)) }))
		w.Register("pointer", ojs.Typed(func(job ojs.JobContext, args *email) error { return job.SetResult(args.To) }))
		w.Register("raw", ojs.Typed(func(job ojs.JobContext, args json.RawMessage) error { return job.SetResult(args) }))
		w.Register("untyped", func(job ojs.JobContext) error {
			_ = job.SetResult("not the last")
			return job.SetResult([]any{job.Job.Args[0].(string), job.Job.Args[1].(float64)})
		})
		w.Register("panics", func(ojs.JobContext) error { panic(errors.New("ouch")) })
		w.Register("exits", func(ojs.JobContext) error { runtime.Goexit(); return nil })
		w.Register("plain", func(ojs.JobContext) error { return errors.New("smtp is down") })
		w.Register("failure", func(ojs.JobContext) error {
			return fmt.Errorf("wrapped: %w", &ojs.Failure{Code: "smtp_down", Type: "smtp.refused", Message: "refused", Details: map[string]any{"host": "h"}, Permanent: true})
		})
		w.Register("discard", func(ojs.JobContext) error { return ojs.Discard(errors.New("no")) })
		w.Register("dead", func(ojs.JobContext) error {
			return ojs.DeadLetter(&ojs.Failure{Code: "odd", Message: "look"})
		})
		w.Register("cancel", func(ojs.JobContext) error { return ojs.Cancel() })
		w.Register("noresult", func(job ojs.JobContext) error { return job.SetResult(make(chan int)) })
		require.Panics(t, func() { w.Register("raw", nil) })

		ctx := t.Context()
		ids := map[string]string{}
		for name, args := range map[string]any{
			"email.send": email{"a@b"}, "tuple": []any{"n", 7, "more"}, "list": []int{1, 2, 3}, "pointer": email{"p"}, "raw": json.RawMessage(`[1.0,{"b":1,"a":2}]`),
			"untyped": []any{"x", 7}, "panics": nil, "exits": nil, "plain": nil, "failure": nil, "discard": nil, "dead": nil, "cancel": nil, "noresult": nil, "unknown": nil,
		} {
			job, err := c.Enqueue(ctx, name, args)
			require.NoError(t, err)
			ids[name] = job.ID
		}
		bad, err := c.Enqueue(ctx, "email.send", 7)
		require.NoError(t, err)
		s.Drain(t, w)

		for name, want := range map[string]string{"email.send": `{"sent":"a@b"}`, "tuple": `"n7 1"`, "list": `3`, "pointer": `"p"`, "raw": `[1.0,{"b":1,"a":2}]`, "untyped": `["x",7]`} {
			require.Equal(t, want, string(s.RequireState(t, ids[name], ojs.StateCompleted).Result), name)
		}
		for name, want := range map[string]ojs.JobError{
			"failure":  {Code: "smtp_down", Type: "smtp.refused", Message: "refused", Details: map[string]any{"host": "h"}},
			"discard":  {Code: "DISCARD", Message: "no"},
			"dead":     {Code: "DEAD_LETTER", Type: "odd", Message: "look"},
			"unknown":  {Code: "handler_not_found", Message: "this worker has no handler for jobs of type unknown", Retryable: true},
			"panics":   {Code: "panic", Type: "*errors.errorString", Message: "ouch", Retryable: true},
			"exits":    {Code: "handler_error", Message: "the handler has ended its goroutine", Retryable: true},
			"plain":    {Code: "handler_error", Message: "smtp is down", Retryable: true},
			"noresult": {Code: "invalid_result", Message: "encode result: json: unsupported type: chan int"},
		} {
			state := ojs.StateDiscarded
			if want.Retryable {
				state = ojs.StateRetryable
			}
			got := s.RequireState(t, ids[name], state).Error
			if name == "panics" {
				require.Contains(t, got.Backtrace[0], "TestWorkerOutcomes")
			}
			want.Attempt, want.WorkerID, want.OccurredAt, want.Backtrace = 1, "w1", got.OccurredAt, got.Backtrace
			want.Type = cmp.Or(want.Type, want.Code) // by the server
			require.Equal(t, want, *got, name)
		}
		s.RequireState(t, ids["cancel"], ojs.StateCancelled)
		got := s.RequireState(t, bad.ID, ojs.StateDiscarded).Error
		require.Equal(t, "invalid_payload", got.Code)
		require.Contains(t, got.Message, "email")
		require.False(t, got.Retryable)
	})
}

// brokenError is an error of a handler whose methods panic.
type brokenError struct{ text *string }

func (e *brokenError) Error() string { return *e.text }

// brokenDetails panic when they are encoded.
type brokenDetails struct{}

func (brokenDetails) MarshalJSON() ([]byte, error) { panic("no") }

// TestBrokenErrors: an error that cannot be asked fails its job, and not the process.
func TestBrokenErrors(t *testing.T) {
	t.Parallel()
	bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		var (
			noFailure *ojs.Failure
			nobody    *brokenError
		)
		broken := map[string]error{
			"failure": noFailure, "nil": nobody, "panics": &brokenError{}, "wrapped": fmt.Errorf("wrapped: %w", ojs.Discard(&brokenError{})),
			"cause": &ojs.Failure{Code: "x", Err: nobody}, "details": &ojs.Failure{Code: "x", Details: map[string]any{"a": brokenDetails{}}},
		}
		ids := map[string]string{}
		for name, err := range broken {
			w.Register(name, func(ojs.JobContext) error { return err })
			job, err := c.Enqueue(t.Context(), name, nil)
			require.NoError(t, err)
			ids[name] = job.ID
		}
		failed := events(w, ojs.EventJobFailed)
		s.Drain(t, w)
		for name, id := range ids {
			require.Equal(t, "panic", s.RequireState(t, id, ojs.StateRetryable).Error.Code, name)
		}
		require.Len(t, failed, len(broken))
	})
}

// lockedBuffer takes what loggers of several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestOutageInTheLog: an outage is a warning when it begins, and not at each try.
func TestOutageInTheLog(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	var log lockedBuffer
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	w.Register("a", func(ojs.JobContext) error { return nil })
	s.FailNext(8, http.MethodPost, "/workers/heartbeat", 503, nil)
	beats := events(w, ojs.EventWorkerHeartbeat)
	stop := start(t, w)
	receive(t, beats)
	require.Equal(t, 1, strings.Count(log.String(), "heartbeat failed"), log.String())
	s.FailNext(2, http.MethodPost, "/workers/heartbeat", 503, nil)
	for n := 0; strings.Count(log.String(), "heartbeat failed") < 2; n++ {
		require.Less(t, n, 100, "the next outage is a warning, too")
		receive(t, beats)
	}
	require.NoError(t, stop())
}

// TestReportsOfAnOutageInTheLog: an outage is a warning when it begins, however many jobs end meanwhile.
func TestReportsOfAnOutageInTheLog(t *testing.T) {
	t.Parallel()
	bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
		const jobs = 9
		var log lockedBuffer
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: jobs, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		completed := events(w, ojs.EventJobCompleted)
		w.Register("a", func(ojs.JobContext) error { return nil })
		outage := func() {
			s.FailNext(jobs, http.MethodPost, "/workers/ack*", 503, nil)
			for range jobs {
				enqueue(t, c)
			}
			for range jobs {
				receive(t, completed)
			}
		}
		stop := start(t, w)
		outage()
		require.Equal(t, 1, strings.Count(log.String(), "could not be reported"), log.String())
		s.Heal()
		enqueue(t, c)
		receive(t, completed)
		outage()
		require.Equal(t, 2, strings.Count(log.String(), "could not be reported"), "the next outage is a warning, too")
		s.Heal()
		require.NoError(t, stop())
	})
}

// TestPanicInTheLog: the log has the stack, like the report to the server.
func TestPanicInTheLog(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	var log lockedBuffer
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	w.Register("a", func(ojs.JobContext) error { panics(); return nil })
	enqueue(t, c)
	s.Drain(t, w)
	require.Contains(t, log.String(), "stack=")
	require.Contains(t, log.String(), "ojs_test.panics(")
}

//go:noinline
func panics() { panic("ouch") }

// noOptions are arguments with an option that somebody has forgotten to make.
type noOptions struct{}

func (noOptions) JobType() string                 { return "a" }
func (noOptions) JobOptions() []ojs.EnqueueOption { return []ojs.EnqueueOption{nil} }

// TestMistakes: what a program can only do by mistake panics with a sentence, where the mistake is.
func TestMistakes(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	w := ojs.NewWorker(c, ojs.WorkerConfig{})
	handler := func(ojs.JobContext) error { return nil }
	w.Register("taken", handler)
	for name, m := range map[string]struct {
		mistake func()
		text    string
	}{
		"TypeTaken":     {func() { w.Register("taken", handler) }, "a handler for jobs of type taken already"},
		"EmptyType":     {func() { w.Register("", handler) }, `no job can have the type ""`},
		"InvalidType":   {func() { w.Register("Mail.Send", handler) }, `no job can have the type "Mail.Send"`},
		"NilHandler":    {func() { w.Register("a", nil) }, "the handler of a is nil"},
		"NilTyped":      {func() { ojs.Typed[int](nil) }, "typed handler is nil"},
		"NilMiddleware": {func() { w.Use(nil) }, "middleware is nil"},
		"NilListener":   {func() { w.OnEvent("job.completed", nil) }, "the listener of job.completed is nil"},
		"NilClient":     {func() { ojs.NewWorker(nil, ojs.WorkerConfig{}) }, "the client of a worker is nil"},
		"NilEnqueue":    {func() { _, _ = ojs.Enqueue(t.Context(), nil, email{}) }, "the client of an enqueue is nil"},
		"NilArguments":  {func() { _, _ = ojs.Enqueue(t.Context(), c, nil) }, "the argument args of an enqueue is nil"},
		"NilOption":     {func() { _, _ = c.Enqueue(t.Context(), "a", nil, ojs.WithQueue("q"), nil) }, "option 1 of an enqueue is nil"},
		"NilJobOption":  {func() { _, _ = ojs.Enqueue(t.Context(), c, noOptions{}) }, "option 0 of JobOptions is nil"},
		"NilBatchOption": {func() { _, _ = c.EnqueueBatch(t.Context(), []ojs.JobRequest{{Type: "a"}}, nil) },
			"option 0 of a batch is nil"},
		"NilRegister":  {func() { ojs.Register(nil, func(ojs.JobContext, email) error { return nil }) }, "the worker of Register is nil"},
		"NilReceiver":  {func() { ojs.WebhookHandler("s", nil) }, "the receiver of webhooks is nil"},
		"NilStep":      {func() { ojs.Chain(ojs.JobRequest{Type: "a"}, nil) }, "step 1 of a chain is nil"},
		"NilNested":    {func() { ojs.Group((*ojs.Workflow)(nil)) }, "step 0 of a group is nil"},
		"NilRequest":   {func() { ojs.Batch(ojs.Callbacks{}, (*ojs.JobRequest)(nil)) }, "step 0 of a batch is nil"},
		"NilWorkflow":  {func() { _, _ = c.CreateWorkflow(t.Context(), nil) }, "the workflow is nil"},
		"UnknownEvent": {func() { w.OnEvent("job.complete", func(ojs.Event) {}) }, "job.completed"},
		"MiddlewareName": {func() {
			w.Middleware.InsertBefore("x", "y", func(ojs.JobContext, ojs.HandlerFunc) error { return nil })
		}, `no middleware named "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.Contains(t, fmt.Sprint(recover()), m.text) }()
			m.mistake()
		})
	}
}

// TestHandlerOptions: they hold for the jobs of one type.
func TestHandlerOptions(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
	var order []string
	w.Use(record(&order, "worker"))
	backoff := ojs.HandlerBackoff(func(attempt int, err error) time.Duration {
		order = append(order, fmt.Sprint("backoff ", attempt, " ", err))
		return time.Duration(attempt) * time.Hour
	})
	w.Register("slow", func(ctx ojs.JobContext) error {
		<-ctx.Done()
		return fmt.Errorf("stopped: %w", ctx.Err())
	}, ojs.HandlerTimeout(time.Millisecond), backoff, ojs.HandlerMiddleware(record(&order, "first"), record(&order, "second")))
	w.Register("own", func(ojs.JobContext) error {
		return &ojs.Failure{Code: "smtp_down", Err: errors.New("refused"), RetryAfter: 2 * time.Hour}
	}, backoff)
	w.Register("discards", func(ojs.JobContext) error { return ojs.Discard(errors.New("no")) }, backoff)
	w.Register("plain", func(ojs.JobContext) error { return errors.New("no") })
	ids := map[string]string{}
	for _, name := range []string{"slow", "own", "discards", "plain"} {
		job, err := c.Enqueue(t.Context(), name, nil)
		require.NoError(t, err)
		ids[name] = job.ID
	}
	s.Drain(t, w)
	slow := s.RequireState(t, ids["slow"], ojs.StateRetryable)
	require.Equal(t, "timeout: stopped: context deadline exceeded", slow.Error.Error())
	require.Greater(t, slow.RetryDelayMS, (59 * time.Minute).Milliseconds())
	require.Less(t, slow.RetryDelayMS, (61 * time.Minute).Milliseconds())
	own := s.RequireState(t, ids["own"], ojs.StateRetryable)
	require.Equal(t, "smtp_down: refused", own.Error.Error())
	require.Greater(t, own.RetryDelayMS, (119 * time.Minute).Milliseconds())
	require.Equal(t, "DISCARD", s.RequireState(t, ids["discards"], ojs.StateDiscarded).Error.Code)
	require.Less(t, s.RequireState(t, ids["plain"], ojs.StateRetryable).RetryDelayMS, time.Minute.Milliseconds())
	require.Equal(t, []string{
		"worker-before", "first-before", "second-before", "second-after", "first-after",
		"backoff 1 timeout: stopped: context deadline exceeded", "worker-after",
		"worker-before", "backoff 1 smtp_down: refused", "worker-after",
		"worker-before", "worker-after", "worker-before", "worker-after",
	}, order)
	for text, mistake := range map[string]func(){
		"middleware is nil": func() { ojs.HandlerMiddleware(nil) }, "backoff is nil": func() { ojs.HandlerBackoff(nil) },
		"an option of the handler of a is nil": func() { w.Register("a", func(ojs.JobContext) error { return nil }, nil) },
	} {
		func() {
			defer func() { require.Contains(t, fmt.Sprint(recover()), text) }()
			mistake()
		}()
	}
}

// TestClientOfAHandler: a handler enqueues through the client of its worker.
func TestClientOfAHandler(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	w.Register("a", func(ctx ojs.JobContext) error {
		_, err := ctx.Client().Enqueue(ctx, "b", nil)
		return err
	})
	w.Register("b", func(ojs.JobContext) error { return nil })
	enqueue(t, c)
	s.Drain(t, w)
	s.RequireEnqueued(t, "b", ojstest.InState(ojs.StateCompleted))
	require.True(t, ojs.JobContext{}.Client() == nil)
}

func TestWorkerRetries(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	job, err := c.Enqueue(t.Context(), "a", nil, ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 2, InitialInterval: time.Hour}))
	require.NoError(t, err)
	worker := func() *ojs.Worker {
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(j ojs.JobContext) error { return fmt.Errorf("attempt %d", j.Job.Attempt) })
		return w
	}
	s.Drain(t, worker())
	require.Equal(t, int64(3_600_000), s.RequireState(t, job.ID, ojs.StateRetryable).RetryDelayMS)
	s.Advance(time.Hour)
	s.Drain(t, worker())
	j := s.RequireState(t, job.ID, ojs.StateDiscarded)
	require.Equal(t, []string{"attempt 1", "attempt 2"}, []string{j.Errors[0].Message, j.Errors[1].Message})
}

// TestWorkerConcurrency is the checklist's concurrency control: no more jobs run, and no more are fetched, than there are slots.
func TestWorkerConcurrency(t *testing.T) {
	t.Parallel()
	bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
		const slots, jobs = 3, 30
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: slots}))
		var running, most atomic.Int64
		w.Register("a", func(ojs.JobContext) error {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil
		})
		for range jobs {
			_, err := c.Enqueue(t.Context(), "a", nil)
			require.NoError(t, err)
		}
		s.Drain(t, w)
		require.Len(t, s.Jobs(ojstest.InState(ojs.StateCompleted)), jobs)
		require.LessOrEqual(t, most.Load(), int64(slots))
		for _, r := range s.Requests() {
			if r.Path == "/workers/fetch" {
				var body struct {
					Count  int      `json:"count"`
					WaitMS int      `json:"wait_ms"`
					Queues []string `json:"queues"`
				}
				require.NoError(t, json.Unmarshal(r.Body, &body))
				require.LessOrEqual(t, body.Count, slots)
				require.Equal(t, strings.Contains(t.Name(), "WithExtensions"), body.WaitMS > 0)
			}
		}
		batches := slices.ContainsFunc(s.Requests(), func(r fakeserver.Request) bool { return strings.HasSuffix(r.Path, "/batch") })
		require.Equal(t, strings.Contains(t.Name(), "WithExtensions"), batches)
	})
}

// blocked is a worker whose jobs of type a run until they are released or cancelled.
type blocked struct {
	*ojs.Worker
	began   chan *ojs.Job
	ended   chan error // context.Cause of those that were cancelled, nil of the others
	release chan struct{}
}

func newBlocked(c *ojs.Client, config ojs.WorkerConfig) *blocked {
	b := &blocked{ojs.NewWorker(c, fast(config)), make(chan *ojs.Job, 100), make(chan error, 100), make(chan struct{})}
	b.Register("a", b.run)
	return b
}

func (b *blocked) run(ctx ojs.JobContext) error {
	b.began <- ctx.Job
	select {
	case <-ctx.Done():
		b.ended <- context.Cause(ctx)
		return ctx.Err()
	case <-b.release:
		b.ended <- nil
		return nil
	}
}

func enqueue(t testing.TB, c *ojs.Client, options ...ojs.EnqueueOption) string {
	t.Helper()
	job, err := c.Enqueue(t.Context(), "a", nil, options...)
	require.NoError(t, err)
	return job.ID
}

func TestWorkerHeartbeats(t *testing.T) {
	t.Parallel()

	t.Run("OneCallListsAllJobsInHand", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{ID: "w1", Labels: []string{"l"}, Version: "v"})
		ids := []string{enqueue(t, c), enqueue(t, c)}
		stop := start(t, b.Worker)
		receive(t, b.began)
		receive(t, b.began)
		var body struct {
			WorkerID     string   `json:"worker_id"`
			State        string   `json:"state"`
			ActiveJobs   int      `json:"active_jobs"`
			ActiveJobIDs []string `json:"active_job_ids"`
			Concurrency  int      `json:"concurrency"`
		}
		eventually(t, func() bool {
			for _, r := range s.Requests() {
				if r.Path == "/workers/heartbeat" && json.Unmarshal(r.Body, &body) == nil && body.ActiveJobs == 2 {
					return true
				}
			}
			return false
		})
		slices.Sort(body.ActiveJobIDs)
		require.Equal(t, ids, body.ActiveJobIDs)
		require.Equal(t, "w1 running 10", fmt.Sprint(body.WorkerID, " ", body.State, " ", body.Concurrency))
		close(b.release)
		require.NoError(t, stop())
	})

	t.Run("KeepAShortReservation", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{HeartbeatInterval: time.Hour})
		// A busy machine sends heartbeats late.
		job, err := c.Enqueue(t.Context(), "a", nil, func(r *ojs.JobRequest) { r.VisibilityTimeout = 2 * time.Second })
		require.NoError(t, err)
		stop := start(t, b.Worker)
		receive(t, b.began)
		time.Sleep(4500 * time.Millisecond) // more than two reservations
		close(b.release)
		require.NoError(t, stop())
		require.Equal(t, 1, s.RequireState(t, job.ID, ojs.StateCompleted).Attempt)
	})

	t.Run("CancelTheContextOfACancelledJob", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{})
		id := enqueue(t, c)
		stop := start(t, b.Worker)
		receive(t, b.began)
		_, err := c.CancelJob(t.Context(), id, "")
		require.NoError(t, err)
		require.ErrorIs(t, receive(t, b.ended), ojs.ErrJobCancelled)
		require.NoError(t, stop())
		s.RequireState(t, id, ojs.StateCancelled)
		requireNoReports(t, s)
	})

	t.Run("CancelTheContextOfALostJob", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		lost := events(b.Worker, ojs.EventJobLost)
		id := enqueue(t, c)
		stop := start(t, b.Worker)
		receive(t, b.began)
		s.LoseLease(id)
		require.ErrorIs(t, receive(t, b.ended), ojs.ErrJobLost)
		require.Equal(t, id, receive(t, lost).JobID)
		require.Equal(t, 2, receive(t, b.began).Attempt, "it comes again")
		requireNoReports(t, s)
		close(b.release)
		require.NoError(t, stop())
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("CancelTheContextOfAJobThatAnotherWorkerHasCompleted", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		s.FailNext(1000, http.MethodPost, "/workers/heartbeat", 503, nil)
		id := enqueue(t, c)
		stop := start(t, b.Worker)
		receive(t, b.began)
		s.LoseLease(id)
		s.RequireState(t, id, ojs.StateAvailable)
		s.Complete(id)
		s.Heal()
		require.ErrorIs(t, receive(t, b.ended), ojs.ErrJobLost)
		require.NoError(t, stop())
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("AnOlderRunOfTheSameJobIsLost", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 2})
		id := enqueue(t, c)
		stop := start(t, b.Worker)
		receive(t, b.began)
		s.LoseLease(id)
		require.ErrorIs(t, receive(t, b.ended), ojs.ErrJobLost)
		require.Equal(t, 2, receive(t, b.began).Attempt)
		close(b.release)
		require.NoError(t, receive(t, b.ended))
		require.NoError(t, stop())
		require.Equal(t, 2, s.RequireState(t, id, ojs.StateCompleted).Attempt)
	})
}

// events are those that a worker emits of a type.
func events(w *ojs.Worker, eventType string) <-chan ojs.Event {
	c := make(chan ojs.Event, 100)
	w.OnEvent(eventType, func(e ojs.Event) { c <- e })
	return c
}

func requireNoReports(t testing.TB, s server) {
	t.Helper()
	for _, r := range s.Requests() {
		require.NotContains(t, r.Path, "ack", string(r.Body))
	}
}

func TestWorkerDirectives(t *testing.T) {
	t.Parallel()

	t.Run("QuietAndBack", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{})
		first := enqueue(t, c)
		start(t, b.Worker)
		receive(t, b.began)
		eventually(t, func() bool {
			return slices.ContainsFunc(s.Requests(), func(r fakeserver.Request) bool { return r.Path == "/workers/heartbeat" })
		})
		s.Direct(ojs.DirectiveQuiet)
		eventually(t, func() bool { return lastHeartbeat(s, "state") == "quiet" })
		second := enqueue(t, c)
		close(b.release)
		eventually(t, func() bool { return s.Job(first).State == ojs.StateCompleted })
		require.Equal(t, ojs.StateAvailable, s.Job(second).State)
		s.Direct(ojs.DirectiveRunning)
		eventually(t, func() bool { return s.Job(second).State == ojs.StateCompleted })
	})

	t.Run("Terminate", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{})
		id := enqueue(t, c)
		done := make(chan error, 1)
		go func() { done <- b.Start(context.Background()) }()
		receive(t, b.began)
		eventually(t, func() bool {
			return slices.ContainsFunc(s.Requests(), func(r fakeserver.Request) bool { return r.Path == "/workers/heartbeat" })
		})
		s.Direct(ojs.DirectiveTerminate)
		eventually(t, func() bool { return lastHeartbeat(s, "state") == "terminate" })
		close(b.release)
		require.NoError(t, receive(t, done))
		s.RequireState(t, id, ojs.StateCompleted)
		require.Equal(t, "0", lastHeartbeat(s, "active_jobs"))
		require.ErrorContains(t, b.Start(t.Context()), "once")
	})

	t.Run("ANamedWorkerComesBack", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		for range 2 {
			b := newBlocked(c, ojs.WorkerConfig{ID: "w1"})
			close(b.release)
			id := enqueue(t, c)
			stop := start(t, b.Worker)
			eventually(t, func() bool { return s.Job(id).State == ojs.StateCompleted })
			eventually(t, func() bool { return lastHeartbeat(s, "state") == "running" })
			require.NoError(t, stop())
		}
	})
}

func lastHeartbeat(s server, member string) string {
	for _, r := range slices.Backward(s.Requests()) {
		var body map[string]any
		if r.Path == "/workers/heartbeat" && json.Unmarshal(r.Body, &body) == nil {
			return fmt.Sprint(body[member])
		}
	}
	return ""
}
