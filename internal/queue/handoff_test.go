package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

// parked starts fetches that park, one after the other. Each sends its jobs when it ends.
func (b *bundle) parked(workers ...string) []chan []*job.Record {
	b.T.Helper()
	answers := make([]chan []*job.Record, len(workers))
	for i, w := range workers {
		answers[i] = make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 2, WorkerID: w, Wait: domaintest.WaitFor})
			answers[i] <- jobs
		}()
		require.Eventually(b.T, func() bool { return b.Parked() == i+1 && b.Waiting() == i+1 }, domaintest.WaitFor, time.Millisecond)
	}
	return answers
}

// seen makes the node know numbers of the fetch order, without which it does not claim inside of an enqueue.
func (b *bundle) seen() {
	b.T.Helper()
	b.add("q", 0, "first")
	require.Len(b.T, b.Fetched(1, "q"), 1)
}

// transactions is the number of transactions that wrote the events of the job.
func (b *bundle) transactions(id [16]byte) int {
	b.T.Helper()
	return b.Number(`SELECT count(DISTINCT xmin::text) FROM ojs.events WHERE job_id = $1`, id)
}

func TestEnqueueClaimsForParkedFetches(t *testing.T) {
	t.Parallel()

	t.Run("InOneTransaction", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1")
		id := b.add("q", 7, "new")[0].ID // of a priority that the node has not seen
		got := domaintest.Await(t, answers[0])
		require.Equal(t, []string{`["new"]`}, args(got))
		require.Equal(t, "w1", got[0].WorkerID.String)
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active"}, b.EventTypes(id))
		require.Equal(t, 1, b.transactions(id))
		b.RequireEmitted()
	})

	t.Run("InDispatchOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1")
		low, high := domaintest.NewJob("q"), domaintest.NewJob("q")
		high.Priority = 5
		_, errs := b.EnqueueEach(t.Context(), []*job.Job{low, high})
		require.Nil(t, errs)
		got := domaintest.Await(t, answers[0])
		require.Len(t, got, 2)
		require.Equal(t, high.ID, got[0].ID)
		require.Equal(t, low.ID, got[1].ID)
	})

	t.Run("NotFromPausedQueues", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1")
		b.Exec(`UPDATE ojs.queues SET status = 'paused'`)
		id := b.add("q", 0, "new")[0].ID
		require.EqualValues(t, "available", b.State(id))
		require.Empty(t, answers[0])
		b.Exec(`UPDATE ojs.queues SET status = 'active'`)
		b.NotifyAll()
		require.Len(t, domaintest.Await(t, answers[0]), 1)
	})

	t.Run("NotForARefusedJob", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		b.configure("q", `{"allowed_job_types":["`+domaintest.NewJob("q").Type+`"]}`)
		answers := b.parked("w1")
		other := domaintest.NewJob("q")
		other.Type = "other"
		for range 3 {
			_, errs := b.EnqueueEach(t.Context(), []*job.Job{other})
			domaintest.RequireCode(t, errs[0], ojs.ErrJobTypeNotAllowed)
			require.Empty(t, answers[0])
		}
		id := b.add("q", 0, "new")[0].ID
		got := domaintest.Await(t, answers[0])
		require.Len(t, got, 1)
		require.Equal(t, id, got[0].ID)
	})

	t.Run("NotFromLimitedQueues", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"concurrency":1}`)
		b.seen() // the only job that may run
		answers := b.parked("w1")
		id := b.add("q", 0, "new")[0].ID
		require.EqualValues(t, "available", b.State(id))
		require.Empty(t, answers[0])
		b.Drain() // nothing else ends the fetch
		require.Empty(t, domaintest.Await(t, answers[0]))
	})

	t.Run("NotInMaintenance", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1")
		_, err := b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{Reason: "test"})
		require.NoError(t, err)
		id := b.add("q", 0, "new")[0].ID
		require.EqualValues(t, "available", b.State(id))
		require.Empty(t, b.Fetched(1, "q"))
		require.Empty(t, answers[0])
		require.NoError(t, b.Maintenance.End(t.Context(), "test"))
		b.NotifyAll()
		require.Len(t, domaintest.Await(t, answers[0]), 1)
	})

	t.Run("OneWorkerPerJob", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1", "w2", "w3")
		stored, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("other")})
		require.Nil(t, errs)
		require.Len(t, domaintest.Await(t, answers[0]), 1)
		require.Len(t, domaintest.Await(t, answers[1]), 1)
		require.Empty(t, answers[2])
		require.EqualValues(t, "available", b.State(stored[2].ID))
		b.add("q", 0, "last")
		require.Len(t, domaintest.Await(t, answers[2]), 1)
	})

	t.Run("AnErrorOfTheClaimDoesNotFailTheEnqueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1")
		b.Exec(`ALTER TABLE ojs.queues RENAME TO elsewhere`) // only JobFetch reads it
		id := b.add("q", 0, "new")[0].ID
		b.Exec(`ALTER TABLE ojs.elsewhere RENAME TO queues`)
		require.Equal(t, []string{"job.enqueued>available"}, b.EventTypes(id)[:1])
		b.NotifyAll()
		if got := domaintest.Await(t, answers[0]); len(got) == 0 { // the fetch may have ended with the same error
			require.Len(t, b.Fetched(1, "q"), 1)
		}
	})

	t.Run("NumbersOfARestoredDatabaseMayBeLower", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		answers := b.parked("w1")
		b.NotifyReady(queue.Place{Queue: "unknown", Seq: 1 << 40})
		id := b.add("q", 0, "new")[0].ID
		require.Len(t, domaintest.Await(t, answers[0]), 1)
		require.Equal(t, 2, b.transactions(id), "the fetch claimed for itself")
	})
}

// Fetches end by timeout and by cancellation while enqueues claim for them: each job reaches exactly one caller.
func TestEnqueueClaimsForFetchesThatEnd(t *testing.T) {
	t.Parallel()
	const jobs = 600
	b := setup(t)
	b.seen()
	var (
		mu  sync.Mutex
		got = map[[16]byte]int{}
		wg  sync.WaitGroup
	)
	received := func() int { mu.Lock(); defer mu.Unlock(); return len(got) }
	for w := range 8 {
		wg.Go(func() {
			for received() < jobs && t.Context().Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20_000))*time.Microsecond)
				list, err := b.Fetch(ctx, job.Fetch{Queues: []string{"q"}, Count: 3, WorkerID: fmt.Sprint("w", w), Wait: time.Duration(1+rand.IntN(20_000)) * time.Microsecond})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
				mu.Lock()
				for _, j := range list {
					got[j.ID]++
				}
				mu.Unlock()
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			for range jobs / 4 {
				if _, err := b.Enqueue(t.Context(), domaintest.NewJob("q")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, jobs, len(got))
	for _, n := range got {
		require.Equal(t, 1, n)
	}
	require.Equal(t, jobs+1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'active' AND attempt = 1`))
}
