package progress_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func TestReportProgress(t *testing.T) {
	t.Parallel()

	t.Run("SharesAStatementWithoutMixingJobsUp", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		const n = 50
		for range n {
			b.Enqueued(domaintest.NewJob("q"))
		}
		jobs := b.Fetched(n, "q")
		require.Len(t, jobs, n)
		var wg sync.WaitGroup
		for i, j := range jobs {
			wg.Go(func() {
				share := float64(i) / n
				p, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: j.ID, Attempt: 1, Progress: &share, Data: []byte(`{"z":"\u0000"}`)})
				require.NoError(t, err)
				require.Equal(t, j.ID, p.JobID)
				require.InDelta(t, share, p.Progress.Float64, 0)
			})
			wg.Go(func() {
				c, err := b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: j.ID, Attempt: 1, Stored: []byte(`{"state":"\u0000"}`), Sequence: int64(i) + 1})
				require.NoError(t, err)
				require.Equal(t, int64(i)+1, c.Sequence)
			})
		}
		wg.Wait()
	})

	t.Run("ExtendsByTheTimeOfTheFetch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", VisibilityMS: 60_000})
		require.NoError(t, err)
		id := jobs[0].ID
		shorten := func() {
			b.Exec(`UPDATE ojs.jobs SET lease_until = now() + interval '1 second', due_at = now() + interval '1 second' WHERE id = $1`, id)
		}
		extended := func() (ok bool) {
			require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT lease_until > now() + interval '50 seconds' AND due_at = lease_until FROM ojs.jobs WHERE id = $1`, id).Scan(&ok))
			return ok
		}
		shorten()
		_, err = b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, Attempt: -1, Data: []byte(`{}`)})
		require.NoError(t, err)
		require.True(t, extended())
		shorten()
		_, err = b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: job.NextSequence})
		require.NoError(t, err)
		require.True(t, extended())
	})

	t.Run("ShowsThatTheWorkerLives", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w1")
		b.Beat("w2")
		b.Enqueued(domaintest.NewJob("q"))
		id := b.Fetched(1, "q")[0].ID // by w1
		b.Cache.TakeBeats()           // the call of the fetch
		b.Exec(`UPDATE ojs.workers SET last_seen_at = now() - interval '50 seconds'`)
		_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, Attempt: -1, Data: []byte(`{}`)})
		require.NoError(t, err)
		_, err = b.Workers.Reap(t.Context()) // writes the calls of workers first
		require.NoError(t, err)
		var seen []string
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT array_agg(id) FROM ojs.workers WHERE last_seen_at > now() - interval '20 seconds'`).Scan(&seen))
		require.Equal(t, []string{"w1"}, seen)
	})

	t.Run("LeavesTheDueTimeOfAWaitingJobAlone", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		j := domaintest.NewJob("q")
		j.ExpiresAt = job.When{At: time.Now().Add(time.Hour), Set: true}
		id := b.Enqueued(j)[0].ID
		before, err := b.Get(t.Context(), id)
		require.NoError(t, err)
		_, err = b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: job.NextSequence})
		require.NoError(t, err)
		after, err := b.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, before.DueAt, after.DueAt)
		require.False(t, after.LeaseUntil.Valid)
		require.Equal(t, ojs.StateAvailable, b.State(id))
		require.Len(t, b.Fetched(1, "q"), 1)
	})
}

// A job whose row another transaction has locked keeps its own caller waiting, and no other.
func TestLockedJobs(t *testing.T) {
	t.Parallel()

	domaintest.TestLocked(t, map[string]domaintest.LockedCall{
		"Progress": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			half := 0.5
			p, err := b.Progress.Report(ctx, job.ProgressReport{JobID: id, WorkerID: "w1", Attempt: -1, Progress: &half})
			if err == nil {
				require.False(b.T, p.Refused)
				require.InDelta(b.T, half, p.Progress.Float64, 0)
			}
			return err
		}, Then: ojs.StateActive},
		"Checkpoint": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			c, err := b.Progress.SaveCheckpoint(ctx, job.CheckpointSave{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: job.NextSequence})
			if err == nil {
				require.Equal(b.T, int64(1), c.Sequence)
			}
			return err
		}, Then: ojs.StateActive},
	})

	t.Run("DeletesACheckpointWhenTheRowIsFree", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var sent domaintest.Statements
		waiting := domaintest.On(t, domaintest.Traced(t, b.Pool, &sent))
		b.Enqueued(domaintest.NewJob("q"))
		id := b.Fetched(1, "q")[0].ID
		require.NoError(t, b.Progress.DeleteCheckpoint(t.Context(), id))
		_, err := b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: job.NextSequence})
		require.NoError(t, err)
		tx := b.Lock(id)
		locked := make(chan error, 1)
		go func() { locked <- waiting.Progress.DeleteCheckpoint(t.Context(), id) }()
		require.Eventually(t, func() bool { return sent.Sent("JobCheckpointDelete") > 1 }, domaintest.WaitFor, time.Millisecond, "tries again")
		require.Empty(t, locked)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, <-locked)
		c, err := b.Progress.Checkpoint(t.Context(), id)
		require.NoError(t, err)
		require.Nil(t, c.Stored)
	})
}

// A job that was handed back and fetched again has the same attempt number, but it is another run.
func TestLateForTheRun(t *testing.T) {
	t.Parallel()

	for name, call := range map[string]struct {
		before string
		do     func(s *domaintest.Bundle, id [16]byte, worker string) error
	}{
		"Progress": {"JobProgress", func(s *domaintest.Bundle, id [16]byte, worker string) error {
			half := 0.5
			_, err := s.Progress.Report(context.Background(), job.ProgressReport{JobID: id, WorkerID: worker, Attempt: 1, Progress: &half})
			return err
		}},
		"Checkpoint": {"JobCheckpoint", func(s *domaintest.Bundle, id [16]byte, worker string) error {
			_, err := s.Progress.SaveCheckpoint(context.Background(), job.CheckpointSave{JobID: id, WorkerID: worker, Attempt: 1, Stored: []byte(`{"state":1}`), Sequence: job.NextSequence})
			return err
		}},
	} {
		t.Run(name+"OfTheFirstWorkerIsRefused", func(t *testing.T) {
			t.Parallel()
			b, late, id := domaintest.Rerun(t, call.before, "w2")
			domaintest.RequireCode(t, call.do(late, id, "w1"), ojs.KindNotOwner)
			require.Equal(t, ojs.StateActive, b.State(id))
			require.NoError(t, call.do(late, id, ""), "without a worker id, the attempt decides")
			require.Empty(t, b.Texts(`SELECT source FROM ojs.events WHERE job_id = $1 AND source = 'workers/w1' AND seq > (SELECT max(seq) FROM ojs.events WHERE type = 'job.started')`, id))
		})
	}
}
