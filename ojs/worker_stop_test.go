package ojs_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
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
		go func() { done <- b.Run(ctx) }()
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
		bothServers(t, func(t *testing.T, s *ojstest.Server, c *ojs.Client) {
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
		s := ojstest.New()
		inFetch, answer := make(chan struct{}, 100), make(chan struct{})
		c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: slowFetch{s, inFetch, answer}})
		require.NoError(t, err)
		b := newBlocked(c, ojs.WorkerConfig{})
		id := enqueue(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
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
		s, c := setup(t, ojstest.WithoutExtensions())
		snoozed := make(chan struct{}, 1)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Hooks: ojs.Hooks{JobFinished: func(context.Context, *ojs.JobContext, error, time.Duration) { snoozed <- struct{}{} }}}))
		w.Register("a", func(context.Context, *ojs.JobContext) error { return ojs.Snooze(time.Hour) })
		id := enqueue(t, c)
		stop := start(t, w)
		receive(t, snoozed)
		require.NoError(t, stop())
		require.Zero(t, s.RequireState(t, id, ojs.StateAvailable).Attempt)
	})
}

// slowFetch holds answers to fetches back.
type slowFetch struct {
	*ojstest.Server
	inFetch chan<- struct{}
	answer  <-chan struct{}
}

func (f slowFetch) Do(ctx context.Context, r *ojs.Request) (*ojs.Response, error) {
	answer, err := f.Server.Do(ctx, r)
	if r.Path == "/workers/fetch" {
		f.inFetch <- struct{}{}
		<-f.answer
	}
	return answer, err
}

// slowNack holds answers to nacks back.
type slowNack struct {
	*ojstest.Server
	carriedOut chan<- struct{}
	answer     <-chan struct{}
}

func (n slowNack) Do(ctx context.Context, r *ojs.Request) (*ojs.Response, error) {
	answer, err := n.Server.Do(ctx, r)
	if strings.HasPrefix(r.Path, "/workers/nack") {
		n.carriedOut <- struct{}{}
		<-n.answer
	}
	return answer, err
}

// requested counts the requests whose path begins so.
func requested(s *ojstest.Server, path string) (n int) {
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
		bothServers(t, func(t *testing.T, s *ojstest.Server, c *ojs.Client) {
			s.FailNext(2, http.MethodPost, "/workers/ack*", 503, nil)
			s.CutNext(1, http.MethodPost, "/workers/nack*", false)
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			w.Register("a", func(context.Context, *ojs.JobContext) error { return nil })
			w.Register("b", func(context.Context, *ojs.JobContext) error { return ojs.Discard(errors.New("x")) })
			id := enqueue(t, c)
			failing, err := c.Enqueue(t.Context(), "b", nil)
			require.NoError(t, err)
			s.Drain(t, w, waitFor)
			s.RequireState(t, id, ojs.StateCompleted)
			s.RequireState(t, failing.ID, ojs.StateDiscarded)
		})
	})

	t.Run("NeverEndAJobTwice", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s *ojstest.Server, c *ojs.Client) {
			s.CutNext(1, http.MethodPost, "/workers/ack*", true) // carried out, but nobody knows
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
			var runs atomic.Int64
			w.Register("a", func(context.Context, *ojs.JobContext) error { runs.Add(1); return nil })
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
		w.Register("a", func(context.Context, *ojs.JobContext) error { return nil })
		id := enqueue(t, c)
		s.Drain(t, w, waitFor)
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("FailTheJobIfTheResultIsRefused", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, ojstest.WithoutExtensions())
		s.FailNext(1, http.MethodPost, "/workers/ack", 400, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(_ context.Context, j *ojs.JobContext) error { return j.SetResult("too large") })
		id := enqueue(t, c)
		s.Drain(t, w, waitFor)
		require.Contains(t, s.RequireState(t, id, ojs.StateDiscarded).Error.Message, "the result was refused")
	})

	t.Run("NameTheirRun", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s *ojstest.Server, c *ojs.Client) {
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{ID: "w1"}))
			w.Register("a", func(context.Context, *ojs.JobContext) error { return nil })
			id := enqueue(t, c)
			s.Drain(t, w, waitFor)
			for _, r := range s.Requests() {
				if strings.HasPrefix(r.Path, "/workers/ack") {
					require.Contains(t, string(r.Body), `{"attempt":1,"job_id":"`+id+`","worker_id":"w1"}`, "or it could end a later run")
				}
			}
		})
	})

	t.Run("OfACancelledJobAreGivenUp", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1000, http.MethodPost, "/workers/ack*", 503, nil)
		lost := make(chan error, 1)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Hooks: ojs.Hooks{JobLost: func(_ *ojs.JobContext, cause error) { lost <- cause }}}))
		w.Register("a", func(context.Context, *ojs.JobContext) error { return nil })
		id := enqueue(t, c)
		stop := start(t, w)
		eventually(t, func() bool { return requested(s, "/workers/ack") >= 1 })
		_, err := c.Cancel(t.Context(), id, "")
		require.NoError(t, err)
		require.ErrorIs(t, receive(t, lost), ojs.ErrJobCancelled)
		sent := requested(s, "/workers/ack")
		require.NoError(t, stop())
		require.Equal(t, sent, requested(s, "/workers/ack"))
	})

	t.Run("OnTheirWayAreNotLost", func(t *testing.T) {
		t.Parallel()
		s := ojstest.New()
		carriedOut, answer := make(chan struct{}, 1), make(chan struct{})
		c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: slowNack{s, carriedOut, answer}})
		require.NoError(t, err)
		lost := make(chan error, 1)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Hooks: ojs.Hooks{JobLost: func(_ *ojs.JobContext, cause error) { lost <- cause }}}))
		w.Register("a", func(context.Context, *ojs.JobContext) error { return errors.New("x") })
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
		lost := make(chan error, 1)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Hooks: ojs.Hooks{JobLost: func(_ *ojs.JobContext, cause error) { lost <- cause }}}))
		w.Register("a", func(context.Context, *ojs.JobContext) error { return nil })
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
		w.Register("a", func(context.Context, *ojs.JobContext) error { runs.Add(1); return nil })
		for range jobs {
			enqueue(t, c)
		}
		stop := start(t, w)
		eventually(t, func() bool { return runs.Load() == 2*concurrency && requested(s, "/workers/ack") > 2*concurrency })
		before := requested(s, "/workers/heartbeat")
		eventually(t, func() bool { return requested(s, "/workers/heartbeat") >= before+3 })
		require.EqualValues(t, 2*concurrency, runs.Load())
		s.Heal()
		eventually(t, func() bool { return runs.Load() == jobs })
		require.NoError(t, stop())
	})

	t.Run("ThatWaitAreBounded", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, ojstest.WithoutExtensions()) // so that snoozed jobs wait in the worker
		s.FailNext(1_000_000, http.MethodPost, "/workers/nack", 503, http.Header{"Retry-After": {"60"}})
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 100}))
		w.Register("a", func(context.Context, *ojs.JobContext) error { return ojs.Snooze(time.Hour) })
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
		s, c := setup(t, ojstest.WithoutExtensions())
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
		var times []time.Time
		var attempts []int
		w.Register("a", func(_ context.Context, j *ojs.JobContext) error {
			times, attempts = append(times, time.Now()), append(attempts, j.Attempt)
			switch len(times) {
			case 1:
				return ojs.Snooze(100 * time.Millisecond)
			case 2:
				return &ojs.Failure{Code: "later", RetryAfter: 100 * time.Millisecond}
			}
			return nil
		})
		var others atomic.Int64
		w.Register("b", func(context.Context, *ojs.JobContext) error { others.Add(1); return nil })
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
		w.Register("a", func(_ context.Context, j *ojs.JobContext) error {
			if attempts <- j.Attempt; len(attempts) == 1 {
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
	s.Drain(t, newWorker(), waitFor)
	s.RequireState(t, id, ojs.StateCompleted)
	require.Equal(t, []int{1, 1}, []int{<-attempts, <-attempts})
}

func TestWorkerFetches(t *testing.T) {
	t.Parallel()

	t.Run("GoesOnAfterFailures", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s *ojstest.Server, c *ojs.Client) {
			s.CutNext(1, http.MethodGet, "/ojs/manifest", false)
			s.FailNext(1, http.MethodPost, "/workers/fetch", 503, nil)
			s.CutNext(1, http.MethodPost, "/workers/fetch", false)
			failures := make(chan error, 10)
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Hooks: ojs.Hooks{FetchFailed: func(err error) { failures <- err }}}))
			w.Register("a", func(context.Context, *ojs.JobContext) error { return nil })
			id := enqueue(t, c)
			s.Drain(t, w, waitFor)
			s.RequireState(t, id, ojs.StateCompleted)
			require.Len(t, failures, 3)
		})
	})

	t.Run("EndsIfTheFirstOneIsRefused", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1, http.MethodPost, "/workers/fetch", 400, nil)
		require.ErrorIs(t, ojs.NewWorker(c, ojs.WorkerConfig{}).Run(t.Context()), ojs.ErrInvalidPayload)
	})

	t.Run("QueuesInOrder", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		var order []string
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Queues: []string{"high", "low"}, Concurrency: 1}))
		w.Register("a", func(_ context.Context, j *ojs.JobContext) error { order = append(order, j.Queue); return nil })
		for _, q := range []string{"low", "high", "low", "high"} {
			enqueue(t, c, ojs.WithQueue(q))
		}
		s.Drain(t, w, waitFor)
		require.Equal(t, []string{"high", "high", "low", "low"}, order)
	})

	t.Run("QueuesByWeight", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		const jobs = 300
		var first [2]int // among the first 200
		n := 0
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Weights: map[string]int{"high": 3, "low": 1}, Concurrency: 1}))
		w.Register("a", func(_ context.Context, j *ojs.JobContext) error {
			if n++; n <= 200 {
				first[map[string]int{"high": 0, "low": 1}[j.Queue]]++
			}
			return nil
		})
		for range jobs / 2 {
			enqueue(t, c, ojs.WithQueue("high"))
			enqueue(t, c, ojs.WithQueue("low"))
		}
		s.Drain(t, w, waitFor)
		require.Equal(t, jobs, n)
		require.InDelta(t, 150, first[0], 35, "three in four, and a deviation that is seen once in 10⁷ runs")
		require.Positive(t, first[1])
	})
}

func TestJobContext(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	type state struct{ Row int }
	var resumed state
	w.Register("a", func(ctx context.Context, j *ojs.JobContext) error {
		found, err := j.LoadCheckpoint(&resumed)
		if err != nil || found {
			return err
		}
		return errors.Join(j.ReportProgress(ctx, 0.5, "half", map[string]int{"rows": 7}), j.SaveCheckpoint(ctx, state{7}), errors.New("crash"))
	})
	id := enqueue(t, c, ojs.WithRetry(ojs.RetryPolicy{InitialInterval: time.Hour}))
	s.Drain(t, w, waitFor)
	p, err := c.Progress(t.Context(), id)
	require.NoError(t, err)
	require.InDelta(t, 0.5, p.Progress, 0)
	require.JSONEq(t, `{"rows":7}`, string(p.Data))
	s.Advance(time.Hour)
	again := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	again.Register("a", func(_ context.Context, j *ojs.JobContext) error {
		_, err := j.LoadCheckpoint(&resumed)
		return err
	})
	s.Drain(t, again, waitFor)
	require.Equal(t, state{7}, resumed)

	job := ojstest.NewJob("email.send", email{"a@b"})
	require.NoError(t, job.ReportProgress(t.Context(), 1, "", nil))
	require.NoError(t, job.SaveCheckpoint(t.Context(), 1))
	require.NoError(t, job.SetResult(1))
	require.Equal(t, "1", string(job.RunResult()))
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
	bothServers(t, func(t *testing.T, s *ojstest.Server, c *ojs.Client) {
		const jobs = 400
		var mu sync.Mutex
		done := map[string]int{}
		var stops []func() error
		for range 3 {
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 20}))
			w.Register("a", func(_ context.Context, j *ojs.JobContext) error {
				if j.Attempt == 1 && j.ID[35]%4 == 0 {
					return errors.New("the first attempt fails")
				}
				mu.Lock()
				defer mu.Unlock()
				done[j.ID]++
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
