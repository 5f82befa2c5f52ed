package ojstest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// failures takes the place of a test whose assertions are to fail.
type failures struct {
	testing.TB
	n int
}

func (*failures) Helper()                 {}
func (f *failures) Fatalf(string, ...any) { f.n++ }

func TestAssertionsFail(t *testing.T) {
	t.Parallel()
	s := ojstest.New()
	job, err := s.Client().Enqueue(t.Context(), "a", 1)
	require.NoError(t, err)
	f := &failures{TB: t}
	s.RequireEnqueued(f, "b")
	s.RequireEnqueued(f, "a", ojstest.WithArgs(2))
	s.RequireEnqueued(f, "a", ojstest.InQueue("other"))
	s.RequireNotEnqueued(f, "a", ojstest.WithArgs(1))
	s.RequireState(f, job.ID, ojs.StateCompleted)
	s.RequireState(f, ojs.NewID(), ojs.StateAvailable)
	require.Equal(t, 6, f.n)
	s.RequireEnqueued(t, "a", ojstest.WithArgs([]int{1}), ojstest.InState(ojs.StateAvailable))
	s.RequireNotEnqueued(t, "b")
}

func TestDrain(t *testing.T) {
	t.Parallel()
	s := ojstest.New()
	c := s.Client()
	_, err := c.Enqueue(t.Context(), "now", nil)
	require.NoError(t, err)
	later, err := c.Enqueue(t.Context(), "later", nil, ojs.WithDelay(time.Hour))
	require.NoError(t, err)
	worker := func() *ojs.Worker {
		w := ojs.NewWorker(c, ojs.WorkerConfig{})
		for _, name := range []string{"now", "later"} {
			w.Register(name, func(ojs.JobContext) error { return nil })
		}
		return w
	}
	s.Drain(t, worker(), 10*time.Second)
	s.RequireEnqueued(t, "now", ojstest.InState(ojs.StateCompleted))
	s.RequireState(t, later.ID, ojs.StateScheduled)
	s.Advance(time.Hour)
	s.Drain(t, worker(), 10*time.Second)
	s.RequireState(t, later.ID, ojs.StateCompleted)
	require.Len(t, s.Jobs(), 2)
}

// TestDrainWaitsForLimits: a fetch that waits gets a job as soon as its rate limit permits the start, and not at its end.
func TestDrainWaitsForLimits(t *testing.T) {
	t.Parallel()
	s := ojstest.New()
	c := s.Client()
	limit := ojs.WithRateLimit(ojs.RateLimit{Key: "k", Rate: &ojs.Rate{Limit: 1, Period: 300 * time.Millisecond}})
	for range 3 {
		_, err := c.Enqueue(t.Context(), "a", nil, limit)
		require.NoError(t, err)
	}
	w := ojs.NewWorker(c, ojs.WorkerConfig{})
	w.Register("a", func(ojs.JobContext) error { return nil })
	begin := time.Now()
	s.Drain(t, w, 10*time.Second)
	require.GreaterOrEqual(t, time.Since(begin), 600*time.Millisecond)
	require.Len(t, s.Jobs(ojstest.InState(ojs.StateCompleted)), 3)
}

// TestDrainFails: a worker that cannot begin, or does not come to an end, fails the test.
func TestDrainFails(t *testing.T) {
	t.Parallel()
	s := ojstest.New()
	c := s.Client()
	_, err := c.Enqueue(t.Context(), "a", nil)
	require.NoError(t, err)
	f := &failures{TB: t}
	s.Drain(f, ojs.NewWorker(c, ojs.WorkerConfig{}), time.Minute)
	require.Equal(t, 1, f.n, "it has no handlers")

	end := make(chan struct{})
	w := ojs.NewWorker(c, ojs.WorkerConfig{})
	w.Register("a", func(ojs.JobContext) error {
		<-end
		return nil
	})
	begin := time.Now()
	s.Drain(f, w, 200*time.Millisecond)
	require.Equal(t, 2, f.n, "the job does not end")
	require.Less(t, time.Since(begin), 20*time.Second, "it does not wait for the grace period of the worker")
	close(end)
}

// TestNewContext calls handlers without a worker.
func TestNewContext(t *testing.T) {
	t.Parallel()
	type email struct {
		To string `json:"to"`
	}
	handler := ojs.Typed(func(ctx ojs.JobContext, args email) error {
		if args.To == "" {
			return ojs.Discard(errors.New("no address"))
		}
		if err := ctx.ReportProgress(0.5, "half", nil); err != nil {
			return err
		}
		return ctx.SetResult(map[string]int{"attempt": ctx.Job.Attempt})
	})
	ctx := ojstest.NewContext(t, "email.send", email{"ada@example.com"})
	ctx.Job.Attempt = 2
	require.NoError(t, handler(ctx))
	require.Equal(t, `{"attempt":2}`, string(ctx.Result()))
	require.Equal(t, "email.send", ctx.Job.Type)
	require.Equal(t, "ada@example.com", ctx.Job.Args[0].(map[string]any)["to"].(string))

	require.ErrorContains(t, handler(ojstest.NewContext(t, "email.send", email{})), "no address")
	var failure *ojs.Failure
	require.ErrorAs(t, handler(ojstest.NewContext(t, "email.send", 7)), &failure)
	require.True(t, failure.Permanent)
}
