package ojs_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
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
		for _, policy := range []ojs.OnConflict{ojs.ConflictReject, ojs.ConflictIgnore} {
			s.CutNext(1, http.MethodPost, "/jobs", true)
			job, err := c.Enqueue(ctx, string(policy), 1, ojs.WithUnique(ojs.UniquePolicy{OnConflict: policy}))
			require.NoError(t, err)
			require.False(t, job.Deduplicated, "it is its own job")
			s.RequireEnqueued(t, string(policy))
		}
	})

	t.Run("BatchAndBulkAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.CutNext(1, http.MethodPost, "/jobs/batch", true)
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "a", Args: 1}, {Type: "b", Args: 1}})
		require.NoError(t, err)
		require.Equal(t, s.RequireEnqueued(t, "b").ID, jobs[1].ID)
		s.CutNext(1, http.MethodPost, "/jobs/bulk", true)
		jobs, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "c", Args: 1}, {Type: "", Args: 1}}, ojs.Partial())
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		require.Equal(t, s.RequireEnqueued(t, "c").ID, jobs[0].ID)
	})

	t.Run("WorkflowAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.CutNext(1, http.MethodPost, "/workflows", true)
		w, err := c.CreateWorkflow(ctx, ojs.Chain(ojs.JobRequest{Type: "a", Args: 1}))
		require.NoError(t, err)
		require.Equal(t, w.ID, s.RequireEnqueued(t, "a").WorkflowID)
	})

	t.Run("CancelAfterACutConnection", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		job, err := c.Enqueue(ctx, "a", 1)
		require.NoError(t, err)
		s.CutNext(1, http.MethodDelete, "/jobs/*", true)
		job, err = c.CancelJob(ctx, job.ID, "")
		require.NoError(t, err)
		require.Equal(t, ojs.StateCancelled, job.State)
	})

	t.Run("NotWhatWouldBeDoneTwice", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		require.NoError(t, c.Do(ctx, ojs.Call{Method: http.MethodPost, Path: "/cron", Body: map[string]any{"name": "x", "expression": "@daily", "type": "a", "args": []int{1}}}, nil))
		s.CutNext(1, http.MethodPost, "/cron/x/trigger", true)
		trigger := ojs.Call{Method: http.MethodPost, Path: "/cron/x/trigger"}
		require.True(t, ojs.OutcomeUnknown(c.Do(ctx, trigger, nil)))
		s.RequireEnqueued(t, "a")

		s.CutNext(1, http.MethodPost, "/cron/x/trigger", true)
		trigger.Idempotent = true
		require.NoError(t, c.Do(ctx, trigger, nil))
		require.Len(t, s.Jobs(nil), 3, "the caller has said that it does no harm")
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
		_, err = c.GetJob(ctx, "x")
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
			_, err := c.GetJob(ctx, "x")
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
		before := time.Now().UnixMilli()
		id := ojs.NewID()
		made, err := strconv.ParseInt(id[:8]+id[9:13], 16, 64)
		require.NoError(t, err)
		if made < before || made > before+10_000 { // many at once are ahead of the clock
			t.Fatalf("%s was made at %x", id, before)
		}
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
		require.Greater(t, id, last)
		last = id
	}
}
