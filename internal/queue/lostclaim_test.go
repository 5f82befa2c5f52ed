package queue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// TestLostClaim: when the connection breaks during a claim, no job stays reserved for a worker that has not got it, and none
// loses an attempt.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	const statement = "name: JobFetch "
	prepared := func(t *testing.T, change ...func(*domaintest.Config)) (b *lossyBundle, id [16]byte) {
		t.Helper()
		b = setupLossy(t, change...)
		b.warm()
		return b, b.Enqueued(domaintest.NewJob("q"))[0].ID
	}
	fetch := func(b *lossyBundle) ([]*job.Record, error) {
		return b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 5, WorkerID: "w1"})
	}
	requireFetched := func(t *testing.T, b *lossyBundle, id [16]byte) {
		t.Helper()
		jobs, err := fetch(b)
		require.NoError(t, err)
		require.Equal(t, 1, b.network.Broken())
		require.Len(t, jobs, 1)
		require.Equal(t, id, jobs[0].ID)
		require.EqualValues(t, 1, jobs[0].Attempt)
		_, err = b.Complete(t.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
	}

	t.Run("Committed", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.network.Break(domaintest.LoseAnswer, statement)
		requireFetched(t, b, id)
		require.Equal(t, []string{
			"job.enqueued>available", "job.started:available>active", "job.state_changed:active>available",
			"job.started:available>active", "job.completed:active>completed",
		}, b.sane.EventTypes(id))
	})

	t.Run("NotCommitted", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.network.Break(domaintest.LoseRequest, statement)
		requireFetched(t, b, id)
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.completed:active>completed"}, b.sane.EventTypes(id))
	})

	t.Run("BehindAPooler", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.DB.Pooler = true
		b.network.Break(domaintest.LoseAnswer, statement)
		requireFetched(t, b, id)
	})

	// The backend waits while the node looks. Without its end it would claim the job afterwards.
	t.Run("BackendThatStillRuns", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.Exec(fmt.Sprintf(`CREATE FUNCTION ojs.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF pg_backend_pid() = %d THEN PERFORM pg_sleep(30); END IF; RETURN NEW; END $$`, b.Number(`SELECT pg_backend_pid()`)))
		b.Exec(`CREATE TRIGGER wait BEFORE UPDATE ON ojs.jobs FOR EACH ROW EXECUTE FUNCTION ojs.wait()`)
		b.network.Break(domaintest.LoseSession, statement)
		requireFetched(t, b, id)
	})

	// Same worker, same node: only the number of the claim tells the job that it runs from the one that it has not got.
	t.Run("JobsThatTheWorkerRunsStay", func(t *testing.T) {
		t.Parallel()
		b := setupLossy(t)
		b.warm()
		running := b.Enqueued(domaintest.NewJob("q"))[0].ID
		require.Len(t, b.Fetched(1, "q"), 1)
		lost := b.Enqueued(domaintest.NewJob("q"))[0].ID
		b.network.Break(domaintest.LoseAnswer, statement)
		requireFetched(t, b, lost)
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active"}, b.sane.EventTypes(running))
	})

	t.Run("DatabaseThatComesBackLater", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.network.BreakForGood(domaintest.LoseAnswer, statement)
		_, err := fetch(b)
		domaintest.RequireCode(t, err, ojs.ErrTimeout)
		require.Equal(t, ojs.StateActive, b.sane.State(id))
		require.Error(t, b.Poll(t.Context()), "the database is still away")
		b.network.Restore()
		require.NoError(t, b.Poll(t.Context()))
		stored, err := b.sane.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "available", stored.State)
		require.Zero(t, stored.Attempt)
		require.NoError(t, b.Poll(t.Context()), "nothing is left to do")
		requireFetched(t, b, id)
	})

	// An application may lock a job of a lost claim for hours. Fetches of other queues must be polled all the same.
	t.Run("JobThatIsLocked", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.network.BreakForGood(domaintest.LoseAnswer, statement)
		_, err := fetch(b)
		domaintest.RequireCode(t, err, ojs.ErrTimeout)
		lock := b.sane.Lock(id)
		b.network.Restore()
		got := make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Fetch(context.Background(), job.Fetch{Queues: []string{"other"}, Count: 1, WorkerID: "w2", Wait: domaintest.WaitFor})
			got <- jobs
		}()
		require.Eventually(t, func() bool { return b.Parked() == 1 && b.Waiting() == 1 }, domaintest.WaitFor, time.Millisecond)
		b.sane.Enqueued(domaintest.NewJob("other"))
		require.Eventually(t, func() bool {
			require.ErrorIs(t, b.Poll(t.Context()), queue.ErrLocked)
			return len(got) == 1
		}, domaintest.WaitFor, 10*time.Millisecond)
		require.Len(t, <-got, 1)
		require.NoError(t, lock.Rollback(t.Context()))
		require.NoError(t, b.Poll(t.Context()))
		require.Equal(t, ojs.StateAvailable, b.sane.State(id))
	})

	t.Run("OfAnEnqueueForAParkedFetch", func(t *testing.T) {
		t.Parallel()
		b := setupLossy(t)
		b.warm()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got := make(chan []*job.Record, 1)
		go func() {
			defer close(got)
			jobs, err := b.Fetch(ctx, job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", Wait: 30 * time.Second})
			if err != nil {
				t.Error(err)
			}
			got <- jobs
		}()
		require.Eventually(t, func() bool { return b.Parked() == 1 && b.Waiting() == 1 }, domaintest.WaitFor, time.Millisecond)
		b.network.Break(domaintest.LoseAnswer, statement) // in the pipeline of the enqueue
		stored, err := b.Enqueue(t.Context(), domaintest.NewJob("q"))
		require.NoError(t, err)
		require.Equal(t, 1, b.network.Broken())
		jobs := <-got
		require.Len(t, jobs, 1)
		require.Equal(t, stored.ID, jobs[0].ID)
		require.EqualValues(t, 1, jobs[0].Attempt)
		require.Equal(t, 1, b.sane.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'q'`))
	})
}
