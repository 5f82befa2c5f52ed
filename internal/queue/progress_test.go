package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

func TestReportProgress(t *testing.T) {
	t.Parallel()

	t.Run("ReportsThatShareAStatementStayApart", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
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
		b := setupProgress(t)
		b.Enqueued(domaintest.NewJob("q"))
		jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", VisibilityMS: 60_000})
		require.NoError(t, err)
		id := jobs[0].ID
		shorten := func() {
			b.Exec(`UPDATE ojs.jobs SET lease_until = now() + interval '20 seconds', due_at = now() + interval '20 seconds' WHERE id = $1`, id)
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

	t.Run("EmitsAnEventAfterAWholeSecond", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
		b.Enqueued(domaintest.NewJob("q"))
		id := b.Fetched(1, "q")[0].ID
		report := func() {
			_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, Attempt: 1, Data: []byte(`{}`)})
			require.NoError(t, err)
		}
		report()
		for n := range 10 { // an event whose second ends in 20 ms, and a report at once
			b.Exec(`UPDATE ojs.jobs SET progress_sent_at = clock_timestamp() - interval '980 milliseconds', progress_at = clock_timestamp() - interval '979 milliseconds' WHERE id = $1`, id)
			at := b.One(`SELECT progress_sent_at::text FROM ojs.jobs WHERE id = $1`, id)
			events := func() int {
				return b.Number(`SELECT count(*) FROM ojs.events WHERE job_id = $1 AND type = 'job.progress'`, id)
			}
			for events() < n+2 {
				report()
			}
			require.Equal(t, "true", b.One(`SELECT (max(time) >= $2::timestamptz + interval '1 second')::text
				FROM ojs.events WHERE job_id = $1 AND type = 'job.progress'`, id, at))
		}
	})

	t.Run("IsClearedByTheNextFetch", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		b.Fetched(1, "q")
		half, lower, message := 0.5, 0.25, "m"
		report := func(share *float64) float64 {
			p, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, Attempt: 1, Progress: share, Message: &message, Data: []byte(`{}`)})
			require.NoError(t, err)
			return p.Progress.Float64
		}
		require.InDelta(t, half, report(&half), 0)
		require.InDelta(t, half, report(&lower), 0, "it never decreases in a run")
		_, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: 1, Requeue: true})
		require.NoError(t, err)
		b.Fetched(1, "q")
		p, err := b.Progress.Get(t.Context(), id)
		require.NoError(t, err)
		require.False(t, p.Progress.Valid || p.Message.Valid || p.Data != nil)
		require.InDelta(t, lower, report(&lower), 0)
	})

	t.Run("ACheckpointNeedsAGreaterSequence", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		save := func(sequence int64) error {
			_, err := b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: sequence})
			return err
		}
		require.NoError(t, save(5))
		for _, refused := range []int64{5, 4} {
			err := save(refused)
			domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
			require.ErrorContains(t, err, "must be greater than the stored 5")
		}
		require.NoError(t, save(6))
	})

	t.Run("CountsAsABeatOfTheWorker", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
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

	t.Run("DoesNotChangeTheDueTimeOfAWaitingJob", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
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

// Reports are shown as events once a second, so the last ones of a run had none.
func TestLastReportHasAnEvent(t *testing.T) {
	t.Parallel()

	for name, end := range map[string]struct {
		do    func(b *progressBundle, id [16]byte) error
		event string
	}{
		"Complete": {func(b *progressBundle, id [16]byte) error {
			_, err := b.Complete(b.T.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
			return err
		}, "job.completed"},
		"Fail": {func(b *progressBundle, id [16]byte) error {
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, Attempt: 1, Error: domaintest.DecodeError(b.T, `{"code":"c","message":"m"}`)})
			return err
		}, "job.failed"},
		"HandBack": {func(b *progressBundle, id [16]byte) error {
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, Attempt: 1, Requeue: true})
			return err
		}, "job.state_changed"},
		"Cancel": {func(b *progressBundle, id [16]byte) error {
			_, err := b.Cancel(b.T.Context(), id, queue.Cancel{By: "test"})
			return err
		}, "job.cancelled"},
		"CancelFromSQL": {func(b *progressBundle, id [16]byte) error {
			b.Exec("SELECT ojs.cancel($1)", id)
			return nil
		}, "job.cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupProgress(t)
			b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
			jobs := b.Fetched(3, "q")
			report := func(i int, share float64, message string) {
				_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: jobs[i].ID, WorkerID: "w1", Attempt: 1, Progress: &share, Message: &message})
				require.NoError(t, err)
			}
			report(0, 0.1, "one")
			report(0, 0.35, `tw"o`)
			report(1, 0.5, "")
			for _, j := range jobs {
				require.NoError(t, end.do(b, j.ID))
			}
			shown := func(i int) []string {
				return b.Texts(`SELECT type || COALESCE(' ' || (data->>'progress_percent'), '') || COALESCE(' ' || (data->>'progress_message'), '') FROM (
					SELECT e.* FROM ojs.events e WHERE e.job_id = $1 ORDER BY e.seq OFFSET 2 LIMIT 3) e`, jobs[i].ID)
			}
			require.Equal(t, []string{"job.progress 10 one", `job.progress 35 tw"o`, end.event}, shown(0))
			require.Equal(t, []string{"job.progress 50", end.event}, shown(1)[:2], "the report had its event")
			require.Equal(t, end.event, shown(2)[0], "nothing was reported")
			require.Equal(t, []string{"workers/w1 1 w1"}, b.Texts(`SELECT DISTINCT source || ' ' || attempt || ' ' || worker_id FROM ojs.events
				WHERE type = 'job.progress'`))
		})
	}

	t.Run("OnlyInItsRun", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		b.Fetched(1, "q")
		for _, share := range []float64{0.1, 0.2} {
			_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, Attempt: 1, Progress: &share})
			require.NoError(t, err)
		}
		_, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: 1, Error: domaintest.DecodeError(t, `{"code":"c","message":"m"}`)})
		require.NoError(t, err)
		_, err = b.Cancel(t.Context(), id, queue.Cancel{By: "test"})
		require.NoError(t, err)
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'job.progress'`))
	})
}

// A locked row delays the calls for its own job only.
func TestProgressOfLockedJobs(t *testing.T) {
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

	t.Run("DeletesACheckpointWhenTheRowIsUnlocked", func(t *testing.T) {
		t.Parallel()
		b := setupProgress(t)
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

// A job that was handed back and fetched again is in another run with the same attempt.
func TestProgressLateForTheRun(t *testing.T) {
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
			domaintest.RequireCode(t, call.do(late, id, "w1"), ojs.ErrNotOwner)
			require.Equal(t, ojs.StateActive, b.State(id))
			require.NoError(t, call.do(late, id, ""), "without a worker id, the attempt decides")
			require.Empty(t, b.Texts(`SELECT source FROM ojs.events WHERE job_id = $1 AND source = 'workers/w1' AND seq > (SELECT max(seq) FROM ojs.events WHERE type = 'job.started')`, id))
		})
	}
}
