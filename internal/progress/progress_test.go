package progress_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/internal/queue"

	"github.com/stretchr/testify/require"

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
				p, err := b.Progress.Report(t.Context(), progress.Report{JobID: j.ID, Attempt: 1, Progress: &share, Data: []byte(`{"z":"\u0000"}`)})
				require.NoError(t, err)
				require.Equal(t, j.ID, p.JobID)
				require.InDelta(t, share, p.Progress.Float64, 0)
			})
			wg.Go(func() {
				c, err := b.Progress.SaveCheckpoint(t.Context(), progress.Save{JobID: j.ID, Attempt: 1, Stored: []byte(`{"state":"\u0000"}`), Sequence: int64(i) + 1})
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
		jobs, err := b.Fetch(t.Context(), queue.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", VisibilityMS: 60_000})
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
		_, err = b.Progress.Report(t.Context(), progress.Report{JobID: id, Attempt: -1, Data: []byte(`{}`)})
		require.NoError(t, err)
		require.True(t, extended())
		shorten()
		_, err = b.Progress.SaveCheckpoint(t.Context(), progress.Save{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: progress.NextSequence})
		require.NoError(t, err)
		require.True(t, extended())
	})

	t.Run("ShowsThatTheWorkerLives", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, worker := range []string{"w1", "w2"} {
			_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: worker})
			require.NoError(t, err)
		}
		b.Enqueued(domaintest.NewJob("q"))
		id := b.Fetched(1, "q")[0].ID // by w1
		require.NoError(t, b.WriteSeen(t.Context()))
		b.Exec(`UPDATE ojs.workers SET last_seen_at = now() - interval '50 seconds'`)
		_, err := b.Progress.Report(t.Context(), progress.Report{JobID: id, Attempt: -1, Data: []byte(`{}`)})
		require.NoError(t, err)
		require.NoError(t, b.WriteSeen(t.Context()))
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
		_, err = b.Progress.SaveCheckpoint(t.Context(), progress.Save{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: progress.NextSequence})
		require.NoError(t, err)
		after, err := b.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, before.DueAt, after.DueAt)
		require.False(t, after.LeaseUntil.Valid)
		require.Equal(t, ojs.StateAvailable, b.State(id))
		require.Len(t, b.Fetched(1, "q"), 1)
	})
}

// One waiter per job and node: woken by the end of its job here, by an announcement for ends elsewhere.
func TestAwaitResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.node()
	b.Enqueued(domaintest.NewJob("q"))
	id := b.Fetched(1, "q")[0].ID
	var wg sync.WaitGroup
	for _, node := range []*bundle{b, other} {
		for range 5 {
			wg.Go(func() {
				res, err := node.AwaitResult(t.Context(), id, 10*time.Second)
				require.NoError(t, err)
				require.Equal(t, "completed", res.State)
				require.Equal(t, `7`, string(res.Result))
			})
		}
	}
	require.Eventually(t, func() bool { return b.Awaited() == 5 && other.Awaited() == 5 }, 10*time.Second, time.Millisecond)
	_, err := b.Complete(t.Context(), queue.Ack{JobID: id, Attempt: -1, Result: []byte(`7`)})
	require.NoError(t, err)
	other.Published()
	wg.Wait()
	require.Zero(t, b.Awaited()+other.Awaited())
}
