package worker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/worker"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func (b *bundle) beat(worker string, ids ...[16]byte) worker.BeatResult {
	b.T.Helper()
	res, err := b.Workers.Heartbeat(b.T.Context(), worker.Beat{WorkerID: worker, JobIDs: ids})
	require.NoError(b.T, err)
	return res
}

// silent makes the workers look as if they had been silent for that long.
func (b *bundle) silent(seconds int, workers ...string) {
	b.T.Helper()
	require.NoError(b.T, b.WriteSeen(b.T.Context()))
	b.Exec(`UPDATE ojs.workers SET seen_at = seen_at - $1::int * interval '1 second', last_beat_at = last_beat_at - $1::int * interval '1 second' WHERE id = ANY($2)`, seconds, workers)
}

func (b *bundle) bury() int {
	b.T.Helper()
	n, err := b.Workers.Reap(b.T.Context())
	require.NoError(b.T, err)
	return n
}

func (b *bundle) workerState(id string) string {
	b.T.Helper()
	w, err := b.Workers.Get(b.T.Context(), id)
	require.NoError(b.T, err)
	return w.State
}

func (b *bundle) fetchedBy(worker string, count int) (ids [][16]byte) {
	b.T.Helper()
	jobs, err := b.Fetch(b.T.Context(), queue.Fetch{Queues: []string{"q"}, Count: count, WorkerID: worker})
	require.NoError(b.T, err)
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

func (b *bundle) many(n int) {
	b.T.Helper()
	jobs := make([]*job.Job, n)
	for i := range jobs {
		jobs[i] = domaintest.NewJob("q")
	}
	b.Enqueued(jobs...)
}

func TestBuryWorkers(t *testing.T) {
	t.Parallel()

	t.Run("OnlyTheSilent", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(2)
		dead, alive := b.FetchedBy("dead", 1), b.FetchedBy("alive", 1)
		b.beat("dead")
		b.beat("alive")
		require.NoError(t, b.WriteSeen(t.Context()))
		require.Zero(t, b.bury())
		b.silent(61, "dead")
		b.silent(55, "alive")
		require.Equal(t, 1, b.bury())
		require.Equal(t, "stale", b.workerState("dead"))
		require.Equal(t, "running", b.workerState("alive"))
		require.Equal(t, ojs.StateAvailable, b.State(dead[0]))
		require.Equal(t, ojs.StateActive, b.State(alive[0]))
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.failed", "job.state_changed:active>available"}, b.EventTypes(dead[0]))
		require.Zero(t, b.bury())
	})

	t.Run("ANewNodeListensFirst", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.beat("w")
		b.silent(61, "w")
		restarted := b.node()
		require.NoError(t, restarted.Prepare(t.Context()))
		due, err := restarted.NextDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.WithinDuration(t, due.Now.Add(10*time.Second), due.Workers.Time, 5*time.Second)
		require.Zero(t, restarted.bury())
		require.Equal(t, "running", b.workerState("w"))
		require.Equal(t, 1, b.bury(), "it has listened all the time")
	})

	t.Run("MoreJobsThanABatch", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(2500)
		for range 3 {
			b.FetchedBy("w", 1000)
		}
		b.beat("w")
		b.silent(61, "w")
		require.Equal(t, 1, b.bury())
		require.Equal(t, 2500, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND attempt = 1 AND cardinality(errors) = 1`))
	})

	t.Run("AnotherNodeFinishesTheWork", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(1)
		id := b.FetchedBy("w", 1)[0]
		b.beat("w")
		// What a node leaves behind that is killed right after it has declared the death.
		b.Exec(`UPDATE ojs.workers SET state = 'stale', stale_at = now(), died_at = now(), bury_at = now() + interval '1 minute'`)
		left, err := b.Workers.Get(t.Context(), "w")
		require.NoError(t, err)
		due, err := b.Timer.NextDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, left.BuryAt.Time, due.Workers.Time)
		require.Zero(t, b.node().bury())
		require.Equal(t, ojs.StateActive, b.State(id))
		b.Exec(`UPDATE ojs.workers SET bury_at = now()`)
		require.Equal(t, 1, b.node().bury())
		require.Equal(t, ojs.StateAvailable, b.State(id))
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workers WHERE bury_at IS NOT NULL`))
	})

	t.Run("AWorkerThatComesBackMeanwhileHasLostThem", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(2)
		old := b.FetchedBy("w", 1)[0]
		b.beat("w")
		b.Exec(`UPDATE ojs.workers SET state = 'stale', stale_at = now(), died_at = now(), bury_at = now()`)
		answered := make(chan worker.BeatResult)
		go func() {
			res, _ := b.Workers.Heartbeat(context.Background(), worker.Beat{WorkerID: "w", JobIDs: [][16]byte{old}})
			answered <- res
		}()
		require.Eventually(t, func() bool { return b.workerState("w") == "running" }, 10*time.Second, time.Millisecond)
		newer := b.FetchedBy("w", 1)[0]
		require.Equal(t, 1, b.bury())
		res := <-answered
		require.Equal(t, [][16]byte{old}, res.Lost)
		require.Empty(t, res.Extended)
		require.Equal(t, ojs.StateAvailable, b.State(old))
		require.Equal(t, ojs.StateActive, b.State(newer), "claimed by the worker's new life")
		require.Equal(t, [][16]byte{newer}, b.beat("w", newer).Extended)
	})

	t.Run("HeldRowsAreLeftToTheNextTry", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(2)
		ids := b.FetchedBy("w", 2)
		b.beat("w")
		b.silent(61, "w")
		tx := b.Lock(ids[0])
		require.Equal(t, 1, b.bury())
		require.Equal(t, ojs.StateAvailable, b.State(ids[1]))
		require.Equal(t, ojs.StateActive, b.State(ids[0]))
		require.NoError(t, tx.Rollback(t.Context()))
		b.Exec(`UPDATE ojs.workers SET bury_at = now()`)
		require.Equal(t, 1, b.bury())
		require.Equal(t, ojs.StateAvailable, b.State(ids[0]))
	})

	t.Run("OnceByManySweepers", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(200)
		var workers []string
		for i := range 20 {
			w := fmt.Sprintf("w%d", i)
			require.Len(t, b.FetchedBy(w, 10), 10)
			b.beat(w)
			workers = append(workers, w)
		}
		b.silent(61, workers...)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _, _ = b.node().BuryWorkers(context.Background()) })
		}
		wg.Wait()
		require.Equal(t, 200, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND attempt = 1 AND cardinality(errors) = 1`))
		require.Equal(t, 20, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.stopped'`))
		require.Equal(t, 200, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'job.failed'`))
	})

	// Either the worker lives and keeps its jobs, or it is dead and they are lost.
	t.Run("AgainstAHeartbeat", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		other := b.node()
		kept, lost := 0, 0
		for round := range 60 {
			w := fmt.Sprintf("w%d", round)
			b.many(1)
			id := b.FetchedBy(w, 1)[0]
			b.beat(w)
			b.silent(61, w)
			start := make(chan struct{})
			var wg sync.WaitGroup
			var res worker.BeatResult
			wg.Go(func() {
				<-start
				time.Sleep(time.Duration(round%6) * 300 * time.Microsecond)
				res, _ = b.Workers.Heartbeat(context.Background(), worker.Beat{WorkerID: w, JobIDs: [][16]byte{id}})
			})
			wg.Go(func() { <-start; _, _ = other.Workers.Reap(context.Background()) })
			close(start)
			wg.Wait()
			starts := b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.started' AND worker_id = $1`, w)
			switch b.State(id) {
			case ojs.StateActive:
				kept++
				require.Equal(t, [][16]byte{id}, res.Extended)
				require.Equal(t, 1, starts)
				b.Exec(`DELETE FROM ojs.jobs`)
			case ojs.StateAvailable:
				lost++
				require.Equal(t, [][16]byte{id}, res.Lost)
				require.Equal(t, 2, starts, "another life")
				b.Exec(`DELETE FROM ojs.jobs`)
			default:
				require.Fail(t, "neither")
			}
			require.Equal(t, "running", b.workerState(w))
		}
		t.Logf("kept %d, lost %d", kept, lost)
	})

	t.Run("RemovesStaleEntriesAfterAnHour", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.beat("w")
		b.silent(61, "w")
		require.Equal(t, 1, b.bury())
		b.Exec(`UPDATE ojs.workers SET stale_at = now() - interval '59 minutes'`)
		require.Zero(t, b.bury())
		due, err := b.Timer.NextDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.WithinDuration(t, due.Now.Add(time.Minute), due.Workers.Time, 5*time.Second)
		b.Exec(`UPDATE ojs.workers SET stale_at = now() - interval '61 minutes'`)
		require.Equal(t, 1, b.bury())
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workers`))
	})

	t.Run("NoSecondFarewell", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", State: "terminate"})
		require.NoError(t, err)
		b.silent(61, "w")
		require.Equal(t, 1, b.bury())
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.stopped'`))
	})
}

// Contract 20 §6.3.
func TestSignsOfLife(t *testing.T) {
	t.Parallel()

	t.Run("AreWrittenInBulkForKnownWorkers", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.many(1)
		b.beat("w")
		b.silent(50, "w")
		pokes := 0
		b.OnSeen(func() { pokes++ })
		id := b.FetchedBy("w", 1)[0]
		b.FetchedBy("unknown", 1)
		require.Equal(t, 1, pokes)
		before, err := b.Workers.Get(t.Context(), "w")
		require.NoError(t, err)
		require.NoError(t, b.WriteSeen(t.Context()))
		after, err := b.Workers.Get(t.Context(), "w")
		require.NoError(t, err)
		require.Greater(t, after.SeenAt.Time.Sub(before.SeenAt.Time), 45*time.Second)
		require.Equal(t, before.LastBeatAt, after.LastBeatAt)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.workers`))

		b.silent(50, "w")
		_, err = b.Complete(t.Context(), queue.Ack{JobID: id, Attempt: -1}) // the id stored at fetch
		require.NoError(t, err)
		require.Equal(t, 2, pokes)
		require.NoError(t, b.WriteSeen(t.Context()))
		after, err = b.Workers.Get(t.Context(), "w")
		require.NoError(t, err)
		require.Less(t, time.Since(after.SeenAt.Time), 40*time.Second)
	})

	t.Run("DoNotWakeTheDead", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.beat("w")
		b.silent(61, "w")
		require.Equal(t, 1, b.bury())
		b.FetchedBy("w", 1)
		require.NoError(t, b.WriteSeen(t.Context()))
		require.Equal(t, "stale", b.workerState("w"))
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.workers WHERE stale_at IS NOT NULL AND seen_at < now() - interval '60 seconds'`))
	})
}

// Contract 20 §6.3: what a node knows without asking.
func TestQuietWorkers(t *testing.T) {
	t.Parallel()

	t.Run("AreLearntFromOtherNodes", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		other := b.node()
		b.many(1)
		b.beat("w")
		require.NoError(t, b.Workers.Direct(t.Context(), "w", "quiet"))
		require.NoError(t, other.LearnQuiet(t.Context()))
		require.Empty(t, b.FetchedBy("w", 1))
		require.Empty(t, other.FetchedBy("w", 1))
		require.NoError(t, other.Workers.Direct(t.Context(), "w", "running"))
		require.Len(t, other.FetchedBy("w", 1), 1)
		require.NoError(t, b.LearnQuiet(t.Context()))
		b.many(1)
		require.Len(t, b.FetchedBy("w", 1), 1)
	})

	t.Run("GetNothingOfASharedClaim", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		b.beat("w")
		for range 20 {
			b.many(20)
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					w := "w"
					if i%2 == 0 {
						w = "v"
					}
					_, _ = b.Fetch(context.Background(), queue.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: w})
				})
			}
			require.NoError(t, b.Workers.Direct(t.Context(), "w", "quiet"))
			after := b.Number(`SELECT count(*) FROM ojs.jobs WHERE worker_id = 'w'`)
			wg.Wait()
			// A claim that was on its way when the directive was taken may still end.
			require.LessOrEqual(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE worker_id = 'w'`)-after, 10)
			require.Empty(t, b.FetchedBy("w", 1))
			require.NoError(t, b.Workers.Direct(t.Context(), "w", "running"))
		}
	})

	t.Run("ANewWorkersFirstBeatsOnTwoNodes", func(t *testing.T) {
		t.Parallel()
		b := quiet(t)
		one, two := b.node(), b.node()
		for i := range 30 {
			var wg sync.WaitGroup
			for _, n := range []*bundle{one, two} {
				wg.Go(func() {
					_, err := n.Workers.Heartbeat(context.Background(), worker.Beat{WorkerID: fmt.Sprint("w", i)})
					require.NoError(t, err)
				})
			}
			wg.Wait()
		}
		require.Equal(t, 30, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.started'`))
		require.Equal(t, 60, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.heartbeat'`))
	})
}
