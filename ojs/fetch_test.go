package ojs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// inTheWay changes, or holds up, what passes between a client and a server.
type inTheWay struct {
	server
	before func(r *fakeserver.Request)
	after  func(r *fakeserver.Request)
}

func (i inTheWay) RoundTrip(hr *http.Request) (*http.Response, error) {
	r := &fakeserver.Request{Method: hr.Method, Path: strings.TrimPrefix(hr.URL.Path, "/ojs/v1")}
	if hr.Body != nil {
		data, err := io.ReadAll(hr.Body)
		if err != nil {
			return nil, err
		}
		r.Body = data
	}
	if i.before != nil {
		i.before(r)
	}
	hr = hr.Clone(hr.Context())
	hr.Body = io.NopCloser(bytes.NewReader(r.Body))
	answer, err := i.server.RoundTrip(hr)
	if i.after != nil {
		i.after(r)
	}
	return answer, err
}

func (i inTheWay) client(t *testing.T) *ojs.Client {
	t.Helper()
	c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: i})
	require.NoError(t, err)
	return c
}

// withFetch reports whether a request is a batch of reports with a fetch in it.
func withFetch(r *fakeserver.Request) bool {
	return strings.HasSuffix(r.Path, "ack/batch") && bytes.Contains(r.Body, []byte(`"fetch":`))
}

// TestFetchesWithReports: the next jobs come with the answer to the reports of those before.
func TestFetchesWithReports(t *testing.T) {
	t.Parallel()
	// counts has the requests of a run: fetches alone, reports with a fetch, reports without.
	counts := func(s server) (alone, with, without int) {
		for _, r := range s.Requests() {
			switch {
			case r.Path == "/workers/fetch":
				alone++
			case withFetch(&r):
				with++
			case strings.HasSuffix(r.Path, "ack/batch"):
				without++
			}
		}
		return alone, with, without
	}

	t.Run("OneRoundTripForEachJob", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
		w.Register("a", func(j ojs.JobContext) error {
			if j.Job.ID[35]%2 == 0 {
				return errors.New("the fetch goes with a nack, too")
			}
			return nil
		})
		const jobs = 20
		for range jobs {
			enqueue(t, c, ojs.WithMaxAttempts(1))
		}
		s.Drain(t, w)
		alone, with, _ := counts(s)
		// The report of a job that ends before the loop knows that its poll has ended does not fetch.
		require.GreaterOrEqual(t, with, jobs-5)
		require.LessOrEqual(t, alone, 7, "the first one, those that wait for more jobs, and those behind a report that did not fetch")
	})

	t.Run("NeverMoreThanThereAreSlots", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		const slots, jobs = 7, 300
		var running, most, ended atomic.Int64
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: slots}))
		w.Register("a", func(ojs.JobContext) error {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			ended.Add(1)
			return nil
		})
		for range jobs {
			enqueue(t, c)
		}
		s.Drain(t, w)
		require.LessOrEqual(t, most.Load(), int64(slots))
		require.Equal(t, int64(jobs), ended.Load())
	})

	t.Run("NotWhenQuiet", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		first, second := enqueue(t, c), enqueue(t, c)
		start(t, b.Worker)
		receive(t, b.began)
		eventually(t, func() bool { return lastHeartbeat(s, "state") == "running" })
		s.Direct(ojs.DirectiveQuiet)
		eventually(t, func() bool { return lastHeartbeat(s, "state") == "quiet" })
		close(b.release)
		eventually(t, func() bool { return s.Job(first).State == ojs.StateCompleted })
		_, with, _ := counts(s)
		require.Zero(t, with)
		s.RequireState(t, second, ojs.StateAvailable)
	})

	t.Run("NotWhenStopping", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		enqueue(t, c)
		second := enqueue(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Start(ctx) }()
		receive(t, b.began)
		cancel()
		close(b.release)
		require.NoError(t, receive(t, done))
		_, with, _ := counts(s)
		require.Zero(t, with)
		s.RequireState(t, second, ojs.StateAvailable)
	})

	t.Run("HandsBackWhatComesDuringAStop", func(t *testing.T) {
		t.Parallel()
		s, direct := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		enqueue(t, direct)
		last := enqueue(t, direct)
		c := inTheWay{server: s, after: func(r *fakeserver.Request) {
			switch {
			case withFetch(r):
				cancel() // the server has given out the last job
			case ctx.Err() == nil && strings.HasSuffix(r.Path, "ack/batch"):
				last = enqueue(t, direct) // the job ended before the loop knew that its poll had, so its report did not fetch; the next may
			}
		}}.client(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		close(b.release)
		require.NoError(t, b.Start(ctx))
		for _, j := range s.Jobs(nil) {
			if j.ID != last {
				require.Equal(t, ojs.StateCompleted, j.State)
			}
		}
		require.Zero(t, s.RequireState(t, last, ojs.StateAvailable).Attempt)
	})

	t.Run("PausedQueuesGiveNothing", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 1})
		first, second := enqueue(t, c), enqueue(t, c)
		start(t, b.Worker)
		receive(t, b.began)
		require.NoError(t, c.Do(t.Context(), ojs.Call{Method: http.MethodPost, Path: "/queues/default/pause"}, nil))
		close(b.release)
		eventually(t, func() bool { return s.Job(first).State == ojs.StateCompleted })
		s.RequireState(t, second, ojs.StateAvailable)
		require.NoError(t, c.Do(t.Context(), ojs.Call{Method: http.MethodPost, Path: "/queues/default/resume"}, nil))
		eventually(t, func() bool { return s.Job(second).State == ojs.StateCompleted })
	})

	t.Run("ServersThatPassOverThem", func(t *testing.T) {
		t.Parallel()
		s, _ := setup(t)
		var with atomic.Int64
		c := inTheWay{server: s, before: func(r *fakeserver.Request) {
			if withFetch(r) {
				with.Add(1)
				r.Body = regexp.MustCompile(`,"fetch":\{[^}]*\}`).ReplaceAll(r.Body, nil)
			}
		}}.client(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{Concurrency: 1}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		for range 5 {
			enqueue(t, c)
		}
		s.Drain(t, w)
		require.Len(t, s.Jobs(ojstest.InState(ojs.StateCompleted)), 5)
		require.Equal(t, int64(1), with.Load())
	})
}

// TestReportsGoTogether: two batches of reports are on their way at a time, and what ends meanwhile goes in one more.
func TestReportsGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, direct := setup(t)
		var batches atomic.Int64
		answer := make(chan struct{})
		c := inTheWay{server: s, before: func(r *fakeserver.Request) {
			if strings.HasSuffix(r.Path, "ack/batch") {
				batches.Add(1)
				<-answer
			}
		}}.client(t)
		b := newBlocked(c, ojs.WorkerConfig{Concurrency: 12})
		for range 12 {
			enqueue(t, direct)
		}
		stop := start(t, b.Worker)
		for i := range 12 {
			receive(t, b.began)
			if i < 2 {
				b.release <- struct{}{}
				synctest.Wait()
				require.Equal(t, int64(i+1), batches.Load())
			}
		}
		close(b.release)
		synctest.Wait()
		require.Equal(t, int64(2), batches.Load())
		close(answer)
		require.NoError(t, stop())
		require.Equal(t, int64(3), batches.Load())
		for _, j := range s.Jobs(nil) {
			require.Equal(t, ojs.StateCompleted, j.State)
		}
	})
}
