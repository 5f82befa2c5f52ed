package ojstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
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
			w.Register(name, func(context.Context, *ojs.JobContext) error { return nil })
		}
		return w
	}
	s.Drain(t, worker(), 10*time.Second)
	s.RequireEnqueued(t, "now", ojstest.InState(ojs.StateCompleted))
	s.RequireState(t, later.ID, ojs.StateScheduled)
	s.Advance(time.Hour)
	s.Drain(t, worker(), 10*time.Second)
	s.RequireState(t, later.ID, ojs.StateCompleted)
}

func unique(onConflict string, more ...ojs.EnqueueOption) *ojs.JobRequest {
	return ojs.NewRequest("u", nil, append(more, ojs.WithUnique(ojs.UniquePolicy{OnConflict: onConflict}))...)
}

func TestUniqueInBatches(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("ARefusedBatchReplacesNothing", func(t *testing.T) {
		t.Parallel()
		s := ojstest.New()
		c := s.Client()
		old, err := c.EnqueueRequest(ctx, unique(""))
		require.NoError(t, err)
		_, err = c.EnqueueBatch(ctx, unique("replace"), ojs.NewRequest("", nil))
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		_, err = c.EnqueueBatch(ctx, unique("replace", ojs.WithID(old.ID)))
		require.Error(t, err, "a job whose id is taken replaces nothing")
		s.RequireState(t, old.ID, ojs.StateAvailable)
	})

	t.Run("EarlierJobsCount", func(t *testing.T) {
		t.Parallel()
		s := ojstest.New()
		c := s.Client()
		_, err := c.EnqueueBatch(ctx, unique(""), unique(""))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Empty(t, ojs.ErrorDetail(err, "existing_job_id"), "it is not stored")
		s.RequireNotEnqueued(t, "u")

		jobs, err := c.EnqueueBatch(ctx, unique(""), unique("ignore"), unique("replace"))
		require.NoError(t, err)
		require.Equal(t, jobs[0].ID, jobs[1].ID)
		require.Equal(t, []bool{false, true, false}, []bool{jobs[0].Deduplicated, jobs[1].Deduplicated, jobs[2].Deduplicated})
		s.RequireState(t, jobs[0].ID, ojs.StateCancelled)
		s.RequireState(t, jobs[2].ID, ojs.StateAvailable)
	})

	t.Run("ReplacesExceptSchedule", func(t *testing.T) {
		t.Parallel()
		s := ojstest.New()
		c := s.Client()
		old, err := c.EnqueueRequest(ctx, unique("", ojs.WithDelay(time.Hour)))
		require.NoError(t, err)
		jobs, err := c.EnqueueBatch(ctx, unique("replace_except_schedule"))
		require.NoError(t, err)
		require.True(t, old.ScheduledAt.Equal(jobs[0].ScheduledAt))
		s.RequireState(t, old.ID, ojs.StateCancelled)
		s.RequireState(t, jobs[0].ID, ojs.StateScheduled)
	})
}
