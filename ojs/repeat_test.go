package ojs_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// TestRepeats: what may have been carried out is asked again, and never done twice.
func TestRepeats(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("EnqueueAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.CutNext(1, http.MethodPost, "/jobs", true)
		job, err := c.Enqueue(ctx, "a", 1)
		require.NoError(t, err)
		require.Equal(t, job.ID, s.RequireEnqueued(t, "a").ID)
	})

	t.Run("EnqueueOfAUniqueJobAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		for _, policy := range []string{"reject", "ignore"} {
			s.CutNext(1, http.MethodPost, "/jobs", true)
			job, err := c.Enqueue(ctx, policy, 1, ojs.WithUnique(ojs.UniquePolicy{OnConflict: policy}))
			require.NoError(t, err)
			require.False(t, job.Deduplicated, "it is its own job")
			s.RequireEnqueued(t, policy)
		}
	})

	t.Run("BatchAndBulkAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.CutNext(1, http.MethodPost, "/jobs/batch", true)
		jobs, err := c.EnqueueBatch(ctx, ojs.NewRequest("a", 1), ojs.NewRequest("b", 1))
		require.NoError(t, err)
		require.Equal(t, s.RequireEnqueued(t, "b").ID, jobs[1].ID)
		s.CutNext(1, http.MethodPost, "/jobs/bulk", true)
		results, err := c.EnqueueBulk(ctx, ojs.NewRequest("c", 1), ojs.NewRequest("", 1))
		require.NoError(t, err)
		require.Equal(t, s.RequireEnqueued(t, "c").ID, results[0].Job.ID)
		require.ErrorIs(t, results[1].Err, ojs.ErrInvalidPayload)
	})

	t.Run("WorkflowAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.CutNext(1, http.MethodPost, "/workflows", true)
		w, err := c.CreateWorkflow(ctx, ojs.Chain(ojs.NewRequest("a", 1)))
		require.NoError(t, err)
		require.Equal(t, w.ID, s.RequireEnqueued(t, "a").WorkflowID)
	})

	t.Run("CancelAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		job, err := c.Enqueue(ctx, "a", 1)
		require.NoError(t, err)
		s.CutNext(1, http.MethodDelete, "/jobs/*", true)
		job, err = c.Cancel(ctx, job.ID, "")
		require.NoError(t, err)
		require.Equal(t, ojs.StateCancelled, job.State)
	})

	t.Run("NotWhatWouldBeDoneTwice", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		_, err := c.PutCron(ctx, ojs.Cron{Name: "x", Expression: "@daily", Job: ojs.NewRequest("a", 1)})
		require.NoError(t, err)
		s.CutNext(1, http.MethodPost, "/cron/x/trigger", true)
		_, err = c.TriggerCron(ctx, "x")
		require.True(t, ojs.OutcomeUnknown(err))
		s.RequireEnqueued(t, "a")
	})

	t.Run("WaitsAsTheServerSays", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1, http.MethodPost, "/jobs", 503, http.Header{"Retry-After": {"1"}})
		begin := time.Now()
		_, err := c.Enqueue(ctx, "a", 1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begin), time.Second)
	})

	t.Run("GivesUp", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(100, http.MethodPost, "/jobs", 503, nil)
		_, err := c.Enqueue(ctx, "a", 1)
		require.ErrorIs(t, err, ojs.ErrUnavailable)
		require.Len(t, s.Requests(), 4)
		s.FailNext(1, http.MethodGet, "/jobs/x", 400, nil)
		_, err = c.Get(ctx, "x")
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		require.Len(t, s.Requests(), 5, "a refusal is final")
	})

	t.Run("EndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(100, http.MethodGet, "/jobs/x", 503, http.Header{"Retry-After": {"25"}})
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := c.Get(ctx, "x")
			failed <- err
		}()
		eventually(t, func() bool { return len(s.Requests()) == 1 })
		cancel()
		require.ErrorIs(t, receive(t, failed), ojs.ErrUnavailable)
		require.Len(t, s.Requests(), 1)
	})
}

func TestNewID(t *testing.T) {
	t.Parallel()
	last := ""
	for range 10_000 {
		id := ojs.NewID()
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
		require.Greater(t, id, last)
		last = id
	}
}
