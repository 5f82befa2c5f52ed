package fakeserver_test

import (
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

func setup(t *testing.T) (*fakeserver.Server, *ojs.Client) {
	t.Helper()
	s := fakeserver.New()
	c, err := ojs.NewClient(ojs.Config{Transport: s})
	require.NoError(t, err)
	return s, c
}

func requireState(t *testing.T, s *fakeserver.Server, id string, state ojs.JobState) {
	t.Helper()
	require.Equal(t, state, s.Job(id).State)
}

func unique(onConflict ojs.OnConflict) ojs.JobRequest {
	return ojs.JobRequest{Type: "u", Unique: &ojs.UniquePolicy{OnConflict: onConflict}}
}

func TestUniqueInBatches(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("ARefusedBatchReplacesNothing", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique("")})
		require.NoError(t, err)
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{unique("replace"), {Type: ""}})
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		taken := unique("replace")
		taken.ID = jobs[0].ID
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{taken})
		require.Error(t, err, "a job whose id is taken replaces nothing")
		requireState(t, s, jobs[0].ID, ojs.StateAvailable)
	})

	t.Run("EarlierJobsCount", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		_, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique(""), unique("")})
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Empty(t, ojs.ErrorDetail(err, "existing_job_id"), "it is not stored")
		require.Empty(t, s.Jobs(nil))

		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique(""), unique("ignore"), unique("replace")})
		require.NoError(t, err)
		require.Equal(t, jobs[0].ID, jobs[1].ID)
		require.Equal(t, []bool{false, true, false}, []bool{jobs[0].Deduplicated, jobs[1].Deduplicated, jobs[2].Deduplicated})
		requireState(t, s, jobs[0].ID, ojs.StateCancelled)
		requireState(t, s, jobs[2].ID, ojs.StateAvailable)
	})

	t.Run("ReplacesExceptSchedule", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		later := unique("")
		later.Delay = time.Hour
		old, err := c.EnqueueBatch(ctx, []ojs.JobRequest{later})
		require.NoError(t, err)
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique("replace_except_schedule")})
		require.NoError(t, err)
		require.True(t, old[0].ScheduledAt.Equal(jobs[0].ScheduledAt))
		requireState(t, s, old[0].ID, ojs.StateCancelled)
		requireState(t, s, jobs[0].ID, ojs.StateScheduled)
	})
}
