package userguide_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestRegister shows the page's headings Handler registration, and ACK and NACK.
func TestRegister(t *testing.T) {
	t.Parallel()

	bubble(t, "HandlerGetsTheArgumentsAndIsAcked", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		to := make(chan string, 1)
		registerEmailSend(b.worker, func(address string) error {
			to <- address
			return nil
		})
		job := enqueue(t, b.client, "email.send", "user@example.com")
		b.start(t)
		require.Equal(t, "user@example.com", receive(t, to))
		require.Equal(t, any(job.ID), decode(t, receive(t, b.acked))["job_id"])
		done, err := b.client.GetJob(t.Context(), job.ID)
		require.NoError(t, err)
		require.Equal(t, ojs.StateCompleted, done.State)
	})

	bubble(t, "AckHasTheResult", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		b.worker.Register("email.send", func(ctx ojs.JobContext) error { return ctx.SetResult(map[string]any{"delivered": true}) })
		enqueue(t, b.client, "email.send")
		b.start(t)
		require.Equal(t, any(map[string]any{"delivered": true}), decode(t, receive(t, b.acked))["result"])
	})

	bubble(t, "ErrorOfTheHandlerIsNacked", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		registerEmailSend(b.worker, func(string) error { return errors.New("Connection refused to smtp.example.com:587") })
		job := enqueue(t, b.client, "email.send", "user@example.com")
		b.start(t)
		nack := decode(t, receive(t, b.nacked))
		require.Equal(t, any(job.ID), nack["job_id"])
		require.JSONEq(t, `{"code": "handler_error", "message": "Connection refused to smtp.example.com:587", "retryable": true}`, encode(t, nack["error"]))
		require.Len(t, b.sent("POST /workers/ack"), 0)
	})

	bubble(t, "NackHasTheDetails", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		b.worker.Register("email.send", func(ojs.JobContext) error {
			return &ojs.Failure{Message: "refused", Details: map[string]any{"stack": "..."}}
		})
		enqueue(t, b.client, "email.send")
		b.start(t)
		require.JSONEq(t, `{"code": "handler_error", "message": "refused", "retryable": true, "details": {"stack": "..."}}`, encode(t, decode(t, receive(t, b.nacked))["error"]))
	})

	// The page nacks it for good. In a rolling deployment that would end jobs whose handler the next worker has.
	bubble(t, "JobWithoutAHandlerIsNotRetriedEndlessly", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		registerEmailSend(b.worker, func(string) error { return nil })
		job := enqueue(t, b.client, "sms.send", "+1 555 0100")
		b.start(t)
		nack := decode(t, receive(t, b.nacked))
		require.Equal(t, any(job.ID), nack["job_id"])
		require.Equal(t, any(true), nack["requeue"])
		time.Sleep(time.Hour)
		another := enqueue(t, b.client, "sms.send", "+1 555 0100")
		nack = decode(t, receive(t, b.nacked))
		for nack["job_id"] != any(another.ID) {
			nack = decode(t, receive(t, b.nacked))
		}
		require.JSONEq(t, `{"code": "handler_not_found", "message": "this worker has no handler for jobs of type sms.send", "retryable": true}`, encode(t, nack["error"]))
	})
}

// TestPolling shows the page's headings The polling loop and Concurrency control.
func TestPolling(t *testing.T) {
	t.Parallel()

	bubble(t, "FetchHasTheMembersOfThePage", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{
			Queues: []string{"critical", "default", "low"}, Concurrency: 5, ID: "worker_abc123", VisibilityTimeout: 30 * time.Second,
		})
		registerEmailSend(b.worker, func(string) error { return nil })
		b.start(t)
		synctest.Wait()
		require.JSONEq(t, `{"queues": ["critical", "default", "low"], "count": 5, "worker_id": "worker_abc123", "visibility_timeout_ms": 30000}`,
			b.sent("POST /workers/fetch")[0].body)
	})

	bubble(t, "PollsUntilThereAreJobs", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		registerEmailSend(b.worker, func(string) error { return nil })
		b.start(t)
		synctest.Wait()
		require.Len(t, b.sent("POST /workers/fetch"), 1)
		job := enqueue(t, b.client, "email.send", "user@example.com")
		require.Equal(t, any(job.ID), decode(t, receive(t, b.acked))["job_id"])
	})

	bubble(t, "ConcurrencyBoundsTheJobsThatRun", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{Concurrency: 2})
		var running atomic.Int64
		release := make(chan struct{})
		b.worker.Register("email.send", func(ojs.JobContext) error {
			defer running.Add(-1)
			running.Add(1)
			<-release
			return nil
		})
		for range 5 {
			enqueue(t, b.client, "email.send")
		}
		b.start(t)
		for left := 5; left > 0; left-- {
			synctest.Wait()
			require.Equal(t, int64(min(left, 2)), running.Load(), "jobs that run of %d", left)
			release <- struct{}{}
			receive(t, b.acked)
		}
	})
}

// TestHeartbeats shows the page's heading Heartbeats.
func TestHeartbeats(t *testing.T) {
	t.Parallel()

	// Three jobs run until release is closed.
	type busyBundle struct {
		*bundle

		ids     []string
		release chan struct{}
		ended   <-chan error
	}
	busy := func(t *testing.T) *busyBundle {
		b := &busyBundle{bundle: setup(t, ojs.WorkerConfig{}), release: make(chan struct{})}
		b.worker.Register("email.send", func(ojs.JobContext) error {
			<-b.release
			return nil
		})
		for range 3 {
			b.ids = append(b.ids, enqueue(t, b.client, "email.send").ID)
		}
		_, b.ended = b.start(t)
		synctest.Wait()
		return b
	}
	type heartbeat struct {
		WorkerID     string   `json:"worker_id"`
		State        string   `json:"state"`
		ActiveJobs   int      `json:"active_jobs"`
		ActiveJobIDs []string `json:"active_job_ids"`
	}
	newest := func(t *testing.T, b *busyBundle) (h heartbeat) {
		sent := b.sent("POST /workers/heartbeat")
		require.NoError(t, json.Unmarshal([]byte(sent[len(sent)-1].body), &h))
		return h
	}

	bubble(t, "NamesTheActiveJobs", func(t *testing.T) {
		b := busy(t)
		defer close(b.release)
		before := len(b.sent("POST /workers/heartbeat"))
		pass(10 * time.Second)
		require.True(t, len(b.sent("POST /workers/heartbeat")) > before)
		beat := newest(t, b)
		slices.Sort(beat.ActiveJobIDs) // ids of one client ascend
		require.Equal(t, heartbeat{WorkerID: b.worker.ID(), State: "running", ActiveJobs: 3, ActiveJobIDs: b.ids}, beat)
	})

	bubble(t, "QuietFetchesNoMoreAndFinishesJobs", func(t *testing.T) {
		b := busy(t)
		b.direct("quiet")
		pass(10 * time.Second)
		require.Equal(t, "quiet", newest(t, b).State)
		fetches := len(b.sent("POST /workers/fetch"))
		close(b.release)
		for range 3 {
			receive(t, b.acked)
		}
		pass(time.Minute)
		require.Len(t, b.sent("POST /workers/fetch"), fetches)
	})

	bubble(t, "TerminateFinishesJobsAndStops", func(t *testing.T) {
		b := busy(t)
		b.direct("terminate")
		pass(10 * time.Second)
		require.Len(t, b.ended, 0)
		close(b.release)
		require.NoError(t, receive(t, b.ended))
		require.Len(t, b.acked, 3)
	})
}

// TestStart shows the page's heading Graceful shutdown.
func TestStart(t *testing.T) {
	t.Parallel()
	const grace = 25 * time.Second // the page's, and the default

	bubble(t, "CodeOfThePageWaitsForActiveJobs", func(t *testing.T) {
		w := &Worker{}
		w.config.gracePeriod = grace
		w.activeJobs.Add(1)
		time.AfterFunc(10*time.Second, w.activeJobs.Done)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		require.NoError(t, w.Start(ctx))
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, any(WorkerStateTerminate), w.state.Load())
	})

	bubble(t, "CodeOfThePageEndsAfterTheGracePeriod", func(t *testing.T) {
		w := &Worker{}
		w.config.gracePeriod = grace
		w.activeJobs.Add(1)
		defer w.activeJobs.Done()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		require.NoError(t, w.Start(ctx))
		require.Equal(t, grace, time.Since(began))
	})

	// A job runs for that long, or until its context ends.
	type busyBundle struct {
		*bundle

		cause chan error // why the context of the job has ended
		stop  context.CancelFunc
		ended <-chan error
	}
	busy := func(t *testing.T, length time.Duration) *busyBundle {
		b := &busyBundle{bundle: setup(t, ojs.WorkerConfig{}), cause: make(chan error, 1)}
		b.worker.Register("email.send", func(ctx ojs.JobContext) error {
			select {
			case <-time.After(length):
				return nil
			case <-ctx.Done():
				b.cause <- context.Cause(ctx)
				return ctx.Err()
			}
		})
		enqueue(t, b.client, "email.send")
		b.stop, b.ended = b.start(t)
		synctest.Wait()
		return b
	}

	bubble(t, "RunsUntilTheContextIsCancelled", func(t *testing.T) {
		b := busy(t, 0)
		receive(t, b.acked)
		pass(time.Hour)
		require.Len(t, b.ended, 0)
		b.stop()
		require.NoError(t, receive(t, b.ended))
	})

	bubble(t, "WaitsForActiveJobs", func(t *testing.T) {
		b := busy(t, 10*time.Second)
		began, fetches := time.Now(), len(b.sent("POST /workers/fetch"))
		b.stop()
		require.NoError(t, receive(t, b.ended))
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Len(t, b.acked, 1)
		require.Len(t, b.cause, 0)
		require.Len(t, b.sent("POST /workers/fetch"), fetches)
	})

	bubble(t, "AbortsJobsAfterTheGracePeriod", func(t *testing.T) {
		b := busy(t, time.Hour)
		began := time.Now()
		b.stop()
		require.ErrorIs(t, receive(t, b.cause), ojs.ErrWorkerStopped)
		require.Equal(t, grace, time.Since(began))
		require.NoError(t, receive(t, b.ended))
		require.Equal(t, grace, time.Since(began))
		require.Len(t, b.acked, 0)
		nack := decode(t, receive(t, b.nacked))
		require.Equal(t, any(true), nack["requeue"]) // sooner than by the visibility timeout
		_, delayed := nack["delay_ms"]
		require.False(t, delayed)
	})
}

// record is middleware that appends to order.
func record(order *[]string, name string) ojs.MiddlewareFunc {
	return func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
		*order = append(*order, name+"-before")
		err := next(ctx)
		*order = append(*order, name+"-after")
		return err
	}
}

// TestMiddleware shows the page's headings Execution middleware, Named middleware and ordering, and Test the middleware chain.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	want := []string{"first-before", "second-before", "handler", "second-after", "first-after"}

	t.Run("CodeOfThePageWrapsFromInsideOut", func(t *testing.T) {
		t.Parallel()
		var order []string
		chain := &middlewareChain{}
		for _, name := range []string{"first", "second"} {
			chain.middleware = append(chain.middleware, struct{ fn MiddlewareFunc }{MiddlewareFunc(record(&order, name))})
		}
		handler := chain.then(func(JobContext) error {
			order = append(order, "handler")
			return nil
		})
		require.NoError(t, handler(JobContext{Context: t.Context(), Job: &Job{}}))
		require.Equal(t, want, order)
	})

	// run gives what the middleware and the handler of one job have recorded.
	run := func(t *testing.T, add func(w *ojs.Worker, order *[]string)) (b *bundle, order []string) {
		b = setup(t, ojs.WorkerConfig{})
		add(b.worker, &order)
		b.worker.Register("email.send", func(ojs.JobContext) error {
			order = append(order, "handler")
			return nil
		})
		enqueue(t, b.client, "email.send")
		b.start(t)
		synctest.Wait() // also for the report
		return b, order
	}

	bubble(t, "RunsInTheOrderOfUse", func(t *testing.T) {
		b, order := run(t, func(w *ojs.Worker, order *[]string) { w.Use(record(order, "first"), record(order, "second")) })
		require.Equal(t, want, order)
		require.Len(t, b.acked, 1)
	})

	bubble(t, "WithoutNextTheHandlerIsNotReached", func(t *testing.T) {
		b, order := run(t, func(w *ojs.Worker, order *[]string) {
			w.Use(record(order, "first"), func(ojs.JobContext, ojs.HandlerFunc) error { return errors.New("not today") })
		})
		require.Equal(t, []string{"first-before", "first-after"}, order)
		require.Len(t, b.acked, 0)
		require.Equal(t, any("not today"), decode(t, receive(t, b.nacked))["error"].(map[string]any)["message"])
	})

	bubble(t, "SeesTheErrorOfTheHandler", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		refused := errors.New("refused")
		seen := make(chan error, 1)
		b.worker.Use(func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
			seen <- next(ctx)
			return nil // what middleware returns is the outcome
		})
		registerEmailSend(b.worker, func(string) error { return refused })
		enqueue(t, b.client, "email.send", "user@example.com")
		b.start(t)
		require.ErrorIs(t, receive(t, seen), refused)
		receive(t, b.acked)
	})

	bubble(t, "LogsAsThePageDoes", func(t *testing.T) {
		_, lines := run(t, func(w *ojs.Worker, lines *[]string) {
			w.Use(func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
				*lines = append(*lines, fmt.Sprintf("Starting %s attempt %d", ctx.Job.Type, ctx.Job.Attempt))
				began := time.Now()
				err := next(ctx)
				*lines = append(*lines, fmt.Sprintf("Completed %s in %dms", ctx.Job.Type, time.Since(began).Milliseconds()))
				return err
			})
		})
		require.Equal(t, []string{"Starting email.send attempt 1", "handler", "Completed email.send in 0ms"}, lines)
	})

	bubble(t, "NamesInsertAndRemove", func(t *testing.T) {
		var names []string
		_, order := run(t, func(w *ojs.Worker, order *[]string) {
			nameMiddleware(w, record(order, "logging"), record(order, "metrics"), record(order, "tracing"))
			names = w.Middleware.Names()
		})
		require.Equal(t, []string{"tracing", "metrics"}, names)
		require.Equal(t, []string{"tracing-before", "metrics-before", "handler", "metrics-after", "tracing-after"}, order)
	})
}

// TestOnEvent shows what the page of events says of SDKs: client and worker emit the events of what they do.
func TestOnEvent(t *testing.T) {
	t.Parallel()

	bubble(t, "CompletedComesAfterTheAckIsAnswered", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		b.holdAck = make(chan struct{})
		registerEmailSend(b.worker, func(string) error { return nil })
		var logged bytes.Buffer
		logCompleted(b.worker, stdlog.New(&logged, "", 0))
		job := enqueue(t, b.client, "email.send", "user@example.com")
		b.start(t)
		synctest.Wait() // until the ack is on its way
		require.Equal(t, "", logged.String())
		close(b.holdAck)
		synctest.Wait()
		require.Equal(t, "Job "+job.ID+" completed\n", logged.String())
	})

	bubble(t, "CompletedHasTheDataOfThePage", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		b.worker.Register("email.send", func(ctx ojs.JobContext) error {
			<-time.After(1333 * time.Millisecond)
			return ctx.SetResult(map[string]any{"delivered": true})
		})
		events := make(chan ojs.Event, 1)
		b.worker.OnEvent("job.completed", func(e ojs.Event) { events <- e })
		job := enqueue(t, b.client, "email.send")
		b.start(t)
		e := receive(t, events)
		require.Equal(t, []string{"job.completed", job.ID, "email.send", "default"}, []string{e.Type, e.JobID, e.JobType, e.Queue})
		require.False(t, e.Time.IsZero())
		var data struct {
			Attempt    int             `json:"attempt"`
			DurationMS int             `json:"duration_ms"`
			Result     map[string]bool `json:"result"`
		}
		require.NoError(t, e.DecodeData(&data))
		require.Equal(t, 1, data.Attempt)
		require.Equal(t, 1333, data.DurationMS)
		require.Equal(t, map[string]bool{"delivered": true}, data.Result)
	})

	bubble(t, "FailedHasTheError", func(t *testing.T) {
		b := setup(t, ojs.WorkerConfig{})
		registerEmailSend(b.worker, func(string) error { return errors.New("refused") })
		events := make(chan ojs.Event, 1)
		b.worker.OnEvent("job.failed", func(e ojs.Event) { events <- e })
		job := enqueue(t, b.client, "email.send", "user@example.com")
		b.start(t)
		e := receive(t, events)
		require.Equal(t, job.ID, e.JobID)
		var data struct {
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		require.NoError(t, e.DecodeData(&data))
		require.Equal(t, "refused", data.Error.Message)
	})

	t.Run("ClientEmitsWhatItBringsAbout", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, newServer())
		var events []string
		for _, eventType := range []string{"job.enqueued", "job.scheduled", "job.cancelled"} {
			c.OnEvent(eventType, func(e ojs.Event) { events = append(events, e.Type+" "+e.JobID) })
		}
		now := enqueue(t, c, "email.send")
		later, err := c.Enqueue(t.Context(), "email.send", nil, ojs.WithDelay(time.Hour))
		require.NoError(t, err)
		_, err = c.CancelJob(t.Context(), now.ID, "")
		require.NoError(t, err)
		require.Equal(t, []string{"job.enqueued " + now.ID, "job.scheduled " + later.ID, "job.cancelled " + now.ID}, events)
	})

	t.Run("StopEndsIt", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, newServer())
		count := 0
		stop := c.OnEvent("job.enqueued", func(ojs.Event) { count++ })
		enqueue(t, c, "email.send")
		stop()
		enqueue(t, c, "email.send")
		require.Equal(t, 1, count)
	})
}
