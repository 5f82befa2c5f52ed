package ojs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// TestWorkerStop is the checklist's graceful shutdown.
func TestWorkerStop(t *testing.T) {
	t.Parallel()

	t.Run("FinishesJobsInHand", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		id := enqueue(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Start(ctx) }()
		receive(t, b.began)
		cancel()
		later := enqueue(t, c)
		eventually(t, func() bool { return lastHeartbeat(s, "state") == "terminate" })
		close(b.release)
		require.NoError(t, receive(t, done))
		require.NoError(t, receive(t, b.ended), "its context was not cancelled")
		s.RequireState(t, id, ojs.StateCompleted)
		s.RequireState(t, later, ojs.StateAvailable)
	})

	t.Run("HandsBackAfterTheGracePeriod", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			b := newBlocked(c, ojs.WorkerConfig{GracePeriod: 10 * time.Millisecond})
			id := enqueue(t, c)
			stop := start(t, b.Worker)
			receive(t, b.began)
			require.NoError(t, stop())
			require.ErrorIs(t, receive(t, b.ended), ojs.ErrWorkerStopped)
			require.Zero(t, s.RequireState(t, id, ojs.StateAvailable).Attempt, "the attempt is not counted")
		})
	})

	t.Run("HandsBackWhatItHasNotBegun", func(t *testing.T) {
		t.Parallel()
		s, _ := setup(t)
		inFetch, answer := make(chan struct{}, 100), make(chan struct{})
		c := inTheWay{server: s, after: func(r *fakeserver.Request) {
			if r.Path == "/workers/fetch" {
				inFetch <- struct{}{}
				<-answer
			}
		}}.client(t)
		b := newBlocked(c, ojs.WorkerConfig{})
		id := enqueue(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Start(ctx) }()
		receive(t, inFetch) // the server has given out the job, and its answer is on the way
		cancel()
		eventually(t, func() bool { return lastHeartbeat(s, "state") == "terminate" })
		close(answer)
		require.NoError(t, receive(t, done))
		require.Empty(t, b.began)
		require.Zero(t, s.RequireState(t, id, ojs.StateAvailable).Attempt)
	})

	t.Run("DoesNotWaitForSnoozedJobs", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, fakeserver.WithoutExtensions())
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
		w.Register("a", func(ojs.JobContext) error { return ojs.Snooze(time.Hour) })
		w.Register("b", func(ojs.JobContext) error { return nil })
		id := enqueue(t, c)
		behind, err := c.Enqueue(t.Context(), "b", nil)
		require.NoError(t, err)
		stop := start(t, w)
		eventually(t, func() bool { return s.Job(behind.ID).State == ojs.StateCompleted })
		require.NoError(t, stop())
		require.Zero(t, s.RequireState(t, id, ojs.StateAvailable).Attempt)
	})
}

// TestStopNow: a second signal does not wait for the grace period.
func TestStopNow(t *testing.T) {
	t.Parallel()

	t.Run("EndsTheGracePeriod", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			b := newBlocked(c, ojs.WorkerConfig{GracePeriod: time.Hour})
			id := enqueue(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.Start(ctx) }()
			receive(t, b.began)
			cancel()
			eventually(t, func() bool { return lastHeartbeat(s, "state") == "terminate" })
			require.Empty(t, b.ended)
			b.StopNow()
			b.StopNow()
			require.ErrorIs(t, receive(t, b.ended), ojs.ErrWorkerStopped)
			require.NoError(t, receive(t, done))
			require.Zero(t, s.RequireState(t, id, ojs.StateAvailable).Attempt)
		})
	})

	t.Run("StopsAWorkerThatRuns", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{GracePeriod: time.Hour})
		id := enqueue(t, c)
		done := make(chan error, 1)
		go func() { done <- b.Start(context.Background()) }()
		receive(t, b.began)
		b.StopNow()
		require.NoError(t, receive(t, done))
		s.RequireState(t, id, ojs.StateAvailable)
	})

	t.Run("BeforeStart", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{})
		id := enqueue(t, c)
		b.StopNow()
		require.NoError(t, b.Start(context.Background()))
		require.Zero(t, s.RequireState(t, id, ojs.StateAvailable).Attempt)
	})
}

// TestTimeOfAStop: with a server that does not answer any more, and a handler that does not listen, a stop ends before a supervisor kills
// the process.
func TestTimeOfAStop(t *testing.T) {
	t.Parallel()
	stop := func(t *testing.T, now bool) time.Duration {
		s, _ := setup(t)
		var silence atomic.Bool
		c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if silence.Load() {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return s.RoundTrip(r)
		})})
		require.NoError(t, err)
		w := ojs.NewWorker(c, ojs.WorkerConfig{Concurrency: 3})
		release := make(chan struct{})
		w.Register("a", func(ctx ojs.JobContext) error {
			switch {
			case ctx.Job.Meta["deaf"] == true:
				<-release
			case ctx.Job.Meta["late"] == true:
				<-ctx.Done()
			}
			return nil
		})
		enqueue(t, c, ojs.WithMeta("deaf", true))
		enqueue(t, c, ojs.WithMeta("late", true))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Start(ctx) }()
		synctest.Wait() // a fetch for the third slot waits
		silence.Store(true)
		began := time.Now()
		cancel()
		if now {
			w.StopNow()
		}
		require.ErrorIs(t, <-done, ojs.ErrGracePeriod)
		took := time.Since(began)
		close(release)
		synctest.Wait()
		return took
	}
	synctest.Test(t, func(t *testing.T) {
		took := stop(t, false)
		require.GreaterOrEqual(t, took, 25*time.Second)
		require.Less(t, took, 30*time.Second)
	})
	synctest.Test(t, func(t *testing.T) { require.LessOrEqual(t, stop(t, true), 6*time.Second) })
}

// TestDeregister: a worker that has stopped is not listed any more.
func TestDeregister(t *testing.T) {
	t.Parallel()

	t.Run("AfterEverythingElse", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{ID: "a/b"}))
			w.Register("a", func(ojs.JobContext) error { return nil })
			w.Register("b", func(ojs.JobContext) error { return errors.New("x") })
			enqueue(t, c)
			enqueue(t, c)
			_, err := c.Enqueue(t.Context(), "b", nil)
			require.NoError(t, err)
			s.Drain(t, w)
			requests := s.Requests()
			last := requests[len(requests)-1]
			require.Equal(t, "POST /workers/a%2Fb/deregister", last.Method+" "+last.Path)
			require.JSONEq(t, `{"reason":"shutdown","jobs_completed":2}`, string(last.Body))
		})
	})

	t.Run("WithTheReasonOfAFailure", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1, http.MethodPost, "/workers/fetch", 400, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{ID: "w1"}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		require.Error(t, w.Start(t.Context()))
		requests := s.Requests()
		require.JSONEq(t, `{"reason":"error","jobs_completed":0}`, string(requests[len(requests)-1].Body))
	})

	t.Run("IsNotWaitedForLong", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s, _ := setup(t)
			c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/deregister") {
					<-r.Context().Done()
				}
				return s.RoundTrip(r)
			})})
			require.NoError(t, err)
			w := ojs.NewWorker(c, ojs.WorkerConfig{})
			w.Register("a", func(ojs.JobContext) error { return nil })
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Start(ctx) }()
			synctest.Wait()
			began := time.Now()
			cancel()
			require.NoError(t, <-done)
			require.LessOrEqual(t, time.Since(began), 2*time.Second)
		})
	})
}

// proxyAnswer answers two requests whose path begins so in place of the server, as a proxy does, while refused is below 2.
type proxyAnswer struct {
	server
	path    string
	status  int
	refused *atomic.Int64
}

func (p proxyAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(strings.TrimPrefix(r.URL.Path, "/ojs/v1"), p.path) && p.refused.Load() < 2 {
		p.refused.Add(1)
		return &http.Response{StatusCode: p.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("<html>no such page"))}, nil
	}
	return p.server.RoundTrip(r)
}

// requested counts the requests whose path begins so.
func requested(s server, path string) (n int) {
	for _, r := range s.Requests() {
		if strings.HasPrefix(r.Path, path) {
			n++
		}
	}
	return n
}

func TestWorkerReports(t *testing.T) {
	t.Parallel()

	t.Run("AreRepeatedUntilTaken", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			s.FailNext(2, http.MethodPost, "/workers/ack*", 503, nil)
			s.CutNext(1, http.MethodPost, "/workers/nack*", false)
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			w.Register("a", func(ojs.JobContext) error { return nil })
			w.Register("b", func(ojs.JobContext) error { return ojs.Discard(errors.New("x")) })
			id := enqueue(t, c)
			failing, err := c.Enqueue(t.Context(), "b", nil)
			require.NoError(t, err)
			s.Drain(t, w)
			s.RequireState(t, id, ojs.StateCompleted)
			s.RequireState(t, failing.ID, ojs.StateDiscarded)
		})
	})

	t.Run("AreRepeatedAfterTheAnswerOfAProxy", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{http.StatusFound, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadGateway} {
			bothServers(t, func(t *testing.T, s server, _ *ojs.Client) {
				var refused atomic.Int64
				c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: proxyAnswer{s, "/workers/ack", status, &refused}})
				require.NoError(t, err)
				w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
				w.Register("a", func(ojs.JobContext) error { return nil })
				id := enqueue(t, c)
				s.Drain(t, w)
				require.Equal(t, 1, s.RequireState(t, id, ojs.StateCompleted).Attempt)
				require.Equal(t, int64(2), refused.Load())
			})
		}
	})

	t.Run("FailTheJobIfAProxyTakesNoSuchResult", func(t *testing.T) {
		t.Parallel()
		s, _ := setup(t)
		var refused atomic.Int64
		refused.Store(-1000)
		c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: proxyAnswer{s, "/workers/ack", http.StatusRequestEntityTooLarge, &refused}})
		require.NoError(t, err)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ctx ojs.JobContext) error { return ctx.SetResult("large") })
		id := enqueue(t, c)
		s.Drain(t, w)
		require.Equal(t, "payload_too_large", s.RequireState(t, id, ojs.StateDiscarded).Error.Code)
	})

	t.Run("NeverEndAJobTwice", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			s.CutNext(1, http.MethodPost, "/workers/ack*", true) // carried out, but nobody knows
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			var runs atomic.Int64
			w.Register("a", func(ojs.JobContext) error { runs.Add(1); return nil })
			id := enqueue(t, c)
			stop := start(t, w)
			eventually(t, func() bool { return requested(s, "/workers/ack") == 2 })
			require.NoError(t, stop())
			s.RequireState(t, id, ojs.StateCompleted)
			require.Equal(t, int64(1), runs.Load())
		})
	})

	t.Run("GoOneByOneIfABatchIsRefused", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1, http.MethodPost, "/workers/ack/batch", 400, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		id := enqueue(t, c)
		s.Drain(t, w)
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("FailTheJobIfTheResultIsRefused", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, fakeserver.WithoutExtensions())
		s.FailNext(1, http.MethodPost, "/workers/ack", 400, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(j ojs.JobContext) error { return j.SetResult("too large") })
		id := enqueue(t, c)
		s.Drain(t, w)
		require.Contains(t, s.RequireState(t, id, ojs.StateDiscarded).Error.Message, "the result was refused")
	})

	t.Run("NameTheirRun", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{ID: "w1"}))
			w.Register("a", func(ojs.JobContext) error { return nil })
			id := enqueue(t, c)
			s.Drain(t, w)
			for _, r := range s.Requests() {
				if strings.HasPrefix(r.Path, "/workers/ack") {
					require.Contains(t, string(r.Body), `"attempt":1,"job_id":"`+id+`",`, "or it could end a later run")
					require.Contains(t, string(r.Body), `"worker_id":"w1"`)
				}
			}
		})
	})

	t.Run("OfACancelledJobAreGivenUp", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1000, http.MethodPost, "/workers/ack*", 503, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		cancelled := events(w, ojs.EventJobCancelled)
		w.Register("a", func(ojs.JobContext) error { return nil })
		id := enqueue(t, c)
		stop := start(t, w)
		eventually(t, func() bool { return requested(s, "/workers/ack") >= 1 })
		_, err := c.CancelJob(t.Context(), id, "")
		require.NoError(t, err)
		require.Equal(t, id, receive(t, cancelled).JobID)
		sent := requested(s, "/workers/ack")
		require.NoError(t, stop())
		require.Equal(t, sent, requested(s, "/workers/ack"))
	})

	t.Run("OnTheirWayAreNotLost", func(t *testing.T) {
		t.Parallel()
		s, _ := setup(t)
		carriedOut, answer := make(chan struct{}, 1), make(chan struct{})
		c := inTheWay{server: s, after: func(r *fakeserver.Request) {
			if strings.HasPrefix(r.Path, "/workers/nack") {
				carriedOut <- struct{}{}
				<-answer
			}
		}}.client(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		lost := events(w, ojs.EventJobLost)
		w.Register("a", func(ojs.JobContext) error { return errors.New("x") })
		id := enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{InitialInterval: time.Hour}))
		stop := start(t, w)
		receive(t, carriedOut)
		before := requested(s, "/workers/heartbeat")
		eventually(t, func() bool {
			return requested(s, "/workers/heartbeat") >= before+3 && strings.Contains(lastHeartbeat(s, "active_job_ids"), id)
		})
		close(answer)
		require.NoError(t, stop())
		require.Empty(t, lost, "the heartbeat crossed the answer, and the server has taken the outcome")
		s.RequireState(t, id, ojs.StateRetryable)
	})

	t.Run("OfACompletedJobAreRepeated", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.CutNext(1, http.MethodPost, "/workers/ack*", true) // carried out, but nobody knows
		s.FailNext(1, http.MethodPost, "/workers/ack*", 503, http.Header{"Retry-After": {"1"}})
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		lost := events(w, ojs.EventJobLost)
		w.Register("a", func(ojs.JobContext) error { return nil })
		id := enqueue(t, c)
		stop := start(t, w)
		eventually(t, func() bool { return requested(s, "/workers/ack") >= 1 })
		before := requested(s, "/workers/heartbeat")
		eventually(t, func() bool { return requested(s, "/workers/heartbeat") >= before+3 })
		require.NoError(t, stop())
		require.Empty(t, lost, "it has ended by the outcome of this worker")
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("ThatNobodyTakesEndTheFetches", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1_000_000, http.MethodPost, "/workers/ack*", 503, nil)
		const jobs, concurrency = 20, 2
		var runs atomic.Int64
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: concurrency}))
		w.Register("a", func(ojs.JobContext) error { runs.Add(1); return nil })
		for range jobs {
			enqueue(t, c)
		}
		stop := start(t, w)
		eventually(t, func() bool { return runs.Load() == 2*concurrency && requested(s, "/workers/ack") > 2*concurrency })
		before := requested(s, "/workers/heartbeat")
		eventually(t, func() bool { return requested(s, "/workers/heartbeat") >= before+3 })
		require.Equal(t, int64(2*concurrency), runs.Load())
		s.Heal()
		eventually(t, func() bool { return runs.Load() == jobs })
		require.NoError(t, stop())
	})

	t.Run("ThatWaitAreBounded", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, fakeserver.WithoutExtensions()) // so that snoozed jobs wait in the worker
		s.FailNext(1_000_000, http.MethodPost, "/workers/nack", 503, http.Header{"Retry-After": {"60"}})
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 100}))
		w.Register("a", func(ojs.JobContext) error { return ojs.Snooze(time.Hour) })
		for range 1001 {
			enqueue(t, c)
		}
		stop := start(t, w)
		eventually(t, func() bool { return requested(s, "/workers/nack") > 0 }) // one more than the worker keeps
		before := requested(s, "/workers/heartbeat")
		eventually(t, func() bool { return requested(s, "/workers/heartbeat") >= before+3 })
		require.Less(t, requested(s, "/workers/nack"), 10, "a report that failed waits for its time, too")
		s.Heal()
		require.NoError(t, stop())
	})

	t.Run("WaitForTheirTime", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, fakeserver.WithoutExtensions())
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
		var times []time.Time
		var attempts []int
		w.Register("a", func(j ojs.JobContext) error {
			times, attempts = append(times, time.Now()), append(attempts, j.Job.Attempt)
			switch len(times) {
			case 1:
				return ojs.Snooze(100 * time.Millisecond)
			case 2:
				return &ojs.Failure{Code: "later", RetryAfter: 100 * time.Millisecond}
			}
			return nil
		})
		var others atomic.Int64
		w.Register("b", func(ojs.JobContext) error { others.Add(1); return nil })
		id := enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{InitialInterval: time.Millisecond}))
		_, err := c.Enqueue(t.Context(), "b", nil)
		require.NoError(t, err)
		stop := start(t, w)
		eventually(t, func() bool { return others.Load() == 1 }) // it has not taken the only slot
		eventually(t, func() bool {
			_, err := c.Health(t.Context())
			s.Advance(0)
			return err == nil && s.Job(id).State == ojs.StateCompleted
		})
		require.NoError(t, stop())
		require.Equal(t, []int{1, 1, 2}, attempts, "a snooze costs no attempt")
		require.GreaterOrEqual(t, times[1].Sub(times[0]), 100*time.Millisecond)
		require.GreaterOrEqual(t, times[2].Sub(times[1]), 100*time.Millisecond)
	})
}

// TestSnooze: the server holds a job that it takes with a delay, also when the worker stops.
func TestSnooze(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	attempts := make(chan int, 2)
	newWorker := func() *ojs.Worker {
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(j ojs.JobContext) error {
			if attempts <- j.Job.Attempt; len(attempts) == 1 {
				return ojs.Snooze(time.Hour)
			}
			return nil
		})
		return w
	}
	id := enqueue(t, c)
	stop := start(t, newWorker())
	eventually(t, func() bool { return s.Job(id).State == ojs.StateScheduled })
	require.NoError(t, stop())
	require.Zero(t, s.Job(id).Attempt)
	s.Advance(time.Hour - time.Minute)
	s.RequireState(t, id, ojs.StateScheduled)
	s.Advance(time.Minute)
	s.Drain(t, newWorker())
	s.RequireState(t, id, ojs.StateCompleted)
	require.Equal(t, []int{1, 1}, []int{<-attempts, <-attempts})
}

// TestRetryAfter: the server holds a job that has failed, also when the worker stops.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	w.Register("a", func(ojs.JobContext) error { return &ojs.Failure{Code: "later", RetryAfter: time.Hour} })
	id := enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{InitialInterval: time.Millisecond}))
	s.Drain(t, w)
	job := s.RequireState(t, id, ojs.StateRetryable)
	require.Equal(t, "later", job.Error.Code)
	require.Greater(t, job.RetryDelayMS, (59 * time.Minute).Milliseconds())
}

// TestLeaseTokens: acks, nacks and heartbeats name the run by the token of its fetch.
func TestLeaseTokens(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
	tokens, goOn := make(chan string), make(chan struct{})
	runs := 0
	w.Register("a", func(j ojs.JobContext) error {
		tokens <- j.Job.LeaseToken
		<-goOn
		if runs++; runs == 1 {
			return ojs.Snooze(time.Nanosecond)
		}
		return nil
	})
	id := enqueue(t, c)
	stop := start(t, w)
	first := receive(t, tokens)
	before := requested(s, "/workers/heartbeat")
	eventually(t, func() bool { return requested(s, "/workers/heartbeat") >= before+2 })
	goOn <- struct{}{}
	second := receive(t, tokens)
	require.True(t, first != second)
	goOn <- struct{}{}
	eventually(t, func() bool { return s.Job(id).State == ojs.StateCompleted })
	require.NoError(t, stop())
	sent := map[string]bool{}
	for _, r := range s.Requests() {
		for _, token := range []string{first, second} {
			if strings.Contains(string(r.Body), `"lease_token":"`+token+`"`) || strings.Contains(string(r.Body), `"lease_tokens":{"`+id+`":"`+token+`"}`) {
				sent[r.Path+" "+token] = true
			}
		}
	}
	for _, want := range []string{"/workers/heartbeat " + first, "/workers/nack/batch " + first, "/workers/ack/batch " + second} {
		require.True(t, sent[want], want)
	}
}

// TestSnoozeDuringAnOutage: what the server can do is asked when the report goes, so that the job does not wait in the worker.
func TestSnoozeDuringAnOutage(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 2}))
	failures := events(w, ojs.EventWorkerFetchFailed)
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.Register("a", func(ojs.JobContext) error {
		close(begun)
		<-goOn
		return ojs.Snooze(time.Hour)
	})
	id := enqueue(t, c)
	stop := start(t, w)
	receive(t, begun)
	s.FailNext(1_000_000, http.MethodGet, "/ojs/manifest", 503, nil)
	s.FailNext(1_000_000, http.MethodPost, "/workers/*", 503, nil)
	_, err := c.Enqueue(t.Context(), "wakes", nil) // the fetch that waits returns, and the next one fails
	require.NoError(t, err)
	receive(t, failures)
	close(goOn)
	before := requested(s, "/workers/heartbeat")
	eventually(t, func() bool { return requested(s, "/workers/heartbeat") >= before+3 })
	require.Equal(t, ojs.StateActive, s.Job(id).State)
	s.Heal()
	eventually(t, func() bool { return s.Job(id).State == ojs.StateScheduled })
	require.NoError(t, stop())
}

// TestUnhandledTypes: an old worker of a deployment gives the jobs back whose type it does not know, until a new one has them.
func TestUnhandledTypes(t *testing.T) {
	t.Parallel()

	t.Run("GoToAWorkerThatHasTheHandler", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			var log lockedBuffer
			old := ojs.NewWorker(c, fast(ojs.WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
			old.Register("b", func(ojs.JobContext) error { return nil })
			unhandled := events(old, ojs.EventJobUnhandled)
			first, second := enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 1})), enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 1}))
			stop := start(t, old)
			met := map[string]bool{receive(t, unhandled).Subject: true, receive(t, unhandled).Subject: true}
			require.True(t, met[first] && met[second])
			require.NoError(t, stop())
			require.Equal(t, 1, strings.Count(log.String(), "jobs are given back"), "once for each type")
			for _, id := range []string{first, second} {
				require.Zero(t, s.Job(id).Attempt, "no attempt is counted")
				require.Empty(t, s.Job(id).Errors)
			}
			s.Advance(time.Second)
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			w.Register("a", func(ojs.JobContext) error { return nil })
			s.Drain(t, w)
			s.RequireState(t, first, ojs.StateCompleted)
			s.RequireState(t, second, ojs.StateCompleted)
		})
	})

	t.Run("AreKeptFromAllWorkersForATimeThatGrows", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("b", func(ojs.JobContext) error { return nil })
		unhandled := events(w, ojs.EventJobUnhandled)
		id := enqueue(t, c)
		stop := start(t, w)
		for range 2 {
			receive(t, unhandled)
			eventually(t, func() bool { return s.Job(id).State == ojs.StateScheduled })
		}
		require.NoError(t, stop())
		var delays []int64
		for _, r := range s.Requests() {
			if r.Path == "/workers/nack/batch" {
				var body struct {
					Nacks []struct {
						DelayMS int64 `json:"delay_ms"`
					}
				}
				require.NoError(t, json.Unmarshal(r.Body, &body))
				delays = append(delays, body.Nacks[0].DelayMS)
			}
		}
		require.Greater(t, delays[0], int64(0))
		require.LessOrEqual(t, delays[0], int64(1000))
		require.Greater(t, delays[1], delays[0], "the time for which the worker has met the type")
	})

	t.Run("FailAfterATime", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		var log lockedBuffer
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{UnhandledFor: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		w.Register("b", func(ojs.JobContext) error { return nil })
		unhandled := events(w, ojs.EventJobUnhandled)
		first := enqueue(t, c)
		stop := start(t, w)
		receive(t, unhandled)
		time.Sleep(60 * time.Millisecond)
		second := enqueue(t, c)
		eventually(t, func() bool { return s.Job(second).State == ojs.StateRetryable })
		require.NoError(t, stop())
		require.Equal(t, "handler_not_found", s.Job(second).Error.Code)
		require.Zero(t, s.Job(first).Attempt)
		require.Equal(t, 1, strings.Count(log.String(), "jobs are given back"))
		require.Equal(t, 1, strings.Count(log.String(), "jobs fail"))
	})
}

func TestWorkerFetches(t *testing.T) {
	t.Parallel()

	t.Run("GoesOnAfterFailures", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			s.CutNext(1, http.MethodGet, "/ojs/manifest", false)
			s.FailNext(1, http.MethodPost, "/workers/fetch", 503, nil)
			s.CutNext(1, http.MethodPost, "/workers/fetch", false)
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			failures := events(w, ojs.EventWorkerFetchFailed)
			w.Register("a", func(ojs.JobContext) error { return nil })
			id := enqueue(t, c)
			s.Drain(t, w)
			s.RequireState(t, id, ojs.StateCompleted)
			require.Len(t, failures, 3)
		})
	})

	t.Run("EndsIfTheFirstOneIsRefused", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1, http.MethodPost, "/workers/fetch", 400, nil)
		w := ojs.NewWorker(c, ojs.WorkerConfig{})
		w.Register("a", func(ojs.JobContext) error { return nil })
		require.ErrorIs(t, w.Start(t.Context()), ojs.ErrInvalidPayload)
	})

	t.Run("NotWithoutHandlers", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		id := enqueue(t, c)
		w := ojs.NewWorker(c, ojs.WorkerConfig{})
		require.ErrorContains(t, w.Start(t.Context()), "no handlers")
		s.RequireState(t, id, ojs.StateAvailable)
		require.Equal(t, 1, len(s.Requests()), "only the enqueue")
		w.Register("a", func(ojs.JobContext) error { return nil })
		s.Drain(t, w)
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("QueuesInOrder", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		var order []string
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Queues: []string{"high", "low"}, Concurrency: 1}))
		w.Register("a", func(j ojs.JobContext) error { order = append(order, j.Job.Queue); return nil })
		for _, q := range []string{"low", "high", "low", "high"} {
			enqueue(t, c, ojs.WithQueue(q))
		}
		s.Drain(t, w)
		require.Equal(t, []string{"high", "high", "low", "low"}, order)
	})

	t.Run("QueuesByWeight", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		const jobs = 300
		var first [2]int // among the first 200
		n := 0
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Weights: map[string]int{"high": 3, "low": 1}, Concurrency: 1}))
		w.Register("a", func(j ojs.JobContext) error {
			if n++; n <= 200 {
				first[map[string]int{"high": 0, "low": 1}[j.Job.Queue]]++
			}
			return nil
		})
		for range jobs / 2 {
			enqueue(t, c, ojs.WithQueue("high"))
			enqueue(t, c, ojs.WithQueue("low"))
		}
		s.Drain(t, w)
		require.Equal(t, jobs, n)
		require.LessOrEqual(t, max(first[0]-150, 150-first[0]), 35, "three in four, and a deviation that is seen once in 10⁷ runs")
		require.Greater(t, first[1], 0)
	})
}

func TestJobContext(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	type state struct{ Row int }
	var resumed state
	w.Register("a", func(ctx ojs.JobContext) error {
		found, err := ctx.LoadCheckpoint(&resumed)
		if err != nil || found {
			return err
		}
		err = ctx.ReportProgress(0.5, "half", map[string]int{"rows": 7})
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ctx.Context = ended
		return errors.Join(err, ctx.SaveCheckpoint(state{7}), errors.New("crash")) // the end of the context is when it is needed
	})
	id := enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{InitialInterval: time.Hour}))
	s.Drain(t, w)
	p, err := c.Progress(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 0.5, p.Progress)
	require.JSONEq(t, `{"rows":7}`, string(p.Data))
	s.Advance(time.Hour)
	again := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	again.Register("a", func(j ojs.JobContext) error {
		_, err := j.LoadCheckpoint(&resumed)
		return err
	})
	s.Drain(t, again)
	require.Equal(t, state{7}, resumed)

	alone := ojs.JobContext{Context: t.Context(), Job: &ojs.Job{ID: "x", Args: []any{email{"a@b"}}}} // in a test of a handler
	require.NoError(t, alone.ReportProgress(1, "", nil))
	require.NoError(t, alone.SaveCheckpoint(1))
	require.Nil(t, alone.Result())
	require.NoError(t, ojs.Typed(func(ctx ojs.JobContext, args email) error { return ctx.SetResult(args.To) })(alone))
	require.Equal(t, `"a@b"`, string(alone.Result()))
}

// TestProgressReports: a handler may report as often as it likes.
func TestProgressReports(t *testing.T) {
	t.Parallel()

	// run has a handler with a connection on which the requests of progress take latency, and returns them with the time at which they were sent.
	type sent struct {
		at time.Duration
		to float64
	}
	run := func(t *testing.T, latency time.Duration, handle func(ojs.JobContext) error) (reports []sent, s server, id string) {
		s, _ = setup(t)
		began, inFlight := time.Now(), 0
		c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/workers/progress") {
				return s.RoundTrip(r)
			}
			if inFlight++; inFlight > 1 {
				t.Error("there are two requests at a time")
			}
			defer func() { inFlight-- }()
			data, _ := io.ReadAll(r.Body)
			var body struct{ Percentage float64 }
			_ = json.Unmarshal(data, &body)
			reports = append(reports, sent{time.Since(began), body.Percentage})
			time.Sleep(latency)
			r.Body = io.NopCloser(bytes.NewReader(data))
			return s.RoundTrip(r)
		})})
		require.NoError(t, err)
		w := ojs.NewWorker(c, ojs.WorkerConfig{})
		w.Register("a", handle)
		completed := events(w, ojs.EventJobCompleted)
		id = enqueue(t, c)
		stop := start(t, w)
		receive(t, completed)
		require.NoError(t, stop())
		return reports, s, id
	}

	t.Run("OfATightLoopMakeFewRequests", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			reports, s, id := run(t, 100*time.Millisecond, func(ctx ojs.JobContext) error {
				for i := range 3500 {
					if err := ctx.ReportProgress(float64(i+1)/3500, "", nil); err != nil {
						return err
					}
					time.Sleep(time.Millisecond)
				}
				return nil
			})
			require.LessOrEqual(t, len(reports), 6)
			require.GreaterOrEqual(t, len(reports), 4, "each renews the reservation")
			for i := 1; i < len(reports)-1; i++ {
				require.GreaterOrEqual(t, reports[i].at-reports[i-1].at, time.Second)
			}
			require.Equal(t, 100.0, reports[len(reports)-1].to)
			require.Equal(t, 1.0, s.Job(id).Progress, "the last one came before the outcome")
			s.RequireState(t, id, ojs.StateCompleted)
		})
	})

	t.Run("OfManyGoroutinesAreOneAtATime", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			reports, _, _ := run(t, 3*time.Second, func(ctx ojs.JobContext) error {
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						for range 50 {
							_ = ctx.ReportProgress(0.5, "", nil)
							time.Sleep(100 * time.Millisecond)
						}
					})
				}
				all.Wait()
				return ctx.ReportProgress(1, "", nil)
			})
			for i := 1; i < len(reports); i++ {
				require.GreaterOrEqual(t, reports[i].at-reports[i-1].at, 3*time.Second)
			}
			require.Equal(t, 100.0, reports[len(reports)-1].to)
		})
	})

	t.Run("OfASlowJobAreSentAtOnce", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			reports, _, _ := run(t, 0, func(ctx ojs.JobContext) error {
				for i := range 3 {
					if err := ctx.ReportProgress(float64(i)/4, "", nil); err != nil {
						return err
					}
					time.Sleep(2 * time.Second)
				}
				return nil
			})
			require.Equal(t, []sent{{0, 0}, {2 * time.Second, 25}, {4 * time.Second, 50}}, reports)
		})
	})

	t.Run("SurviveAPanicOfTheTransport", func(t *testing.T) {
		t.Parallel()
		s, _ := setup(t)
		c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/workers/progress") {
				panic("ouch")
			}
			return s.RoundTrip(r)
		})})
		require.NoError(t, err)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ctx ojs.JobContext) error { return ctx.ReportProgress(0.5, "", nil) })
		id := enqueue(t, c)
		s.Drain(t, w)
		require.Equal(t, "panic", s.RequireState(t, id, ojs.StateRetryable).Error.Code)
	})

	t.Run("HaveTheErrorOfTheRequest", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1, http.MethodPost, "/workers/progress", 400, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		refused := make(chan error, 2)
		w.Register("a", func(ctx ojs.JobContext) error {
			refused <- ctx.ReportProgress(0.5, "", nil)
			refused <- ctx.ReportProgress(0.5, "", func() {})
			return nil
		})
		enqueue(t, c)
		stop := start(t, w)
		require.ErrorIs(t, receive(t, refused), ojs.ErrInvalidPayload)
		require.ErrorContains(t, receive(t, refused), "unsupported type")
		require.NoError(t, stop())
	})
}

func TestJobTimeout(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	b := newBlocked(c, ojs.WorkerConfig{})
	id := enqueue(t, c, ojs.WithTimeout(20*time.Millisecond), ojs.WithMaxAttempts(1))
	stop := start(t, b.Worker)
	require.ErrorIs(t, receive(t, b.ended), ojs.ErrJobTimeout)
	require.NoError(t, stop())
	require.Equal(t, "timeout", s.RequireState(t, id, ojs.StateDiscarded).Error.Code)
}

// TestManyJobs: with random failures of requests and of jobs each job still ends as it should, with the race detector looking.
func TestManyJobs(t *testing.T) {
	t.Parallel()
	bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
		const jobs = 400
		var mu sync.Mutex
		done := map[string]int{}
		var stops []func() error
		for range 3 {
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 20}))
			w.Register("a", func(j ojs.JobContext) error {
				if j.Job.Attempt == 1 && j.Job.ID[35]%4 == 0 {
					return errors.New("the first attempt fails")
				}
				mu.Lock()
				defer mu.Unlock()
				done[j.Job.ID]++
				return nil
			})
			stops = append(stops, start(t, w))
		}
		ids := map[string]int{}
		for i := range jobs {
			if i%50 == 0 {
				s.CutNext(1, http.MethodPost, "/workers/ack*", i%100 == 0)
				s.FailNext(1, http.MethodPost, "/workers/fetch", 503, nil)
				s.FailNext(1, http.MethodPost, "/workers/heartbeat", 503, nil)
			}
			ids[enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{InitialInterval: time.Millisecond}))] = 1
		}
		eventually(t, func() bool {
			s.Advance(time.Millisecond)
			return len(s.Jobs(ojstest.InState(ojs.StateCompleted))) == jobs
		})
		for _, stop := range stops {
			require.NoError(t, stop())
		}
		require.Equal(t, ids, done)
	})
}
