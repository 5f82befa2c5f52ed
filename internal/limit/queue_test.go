package limit_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// A job whose limit cannot be stored is not stored either: it would run without.
func TestQueueLimitIsNotStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER fail BEFORE UPDATE OF config ON ojs.queues FOR EACH ROW EXECUTE FUNCTION fail()`)
	_, err := b.Enqueue(t.Context(), limited(t, `{"limit":2,"period":"PT3S"}`))
	require.Error(t, err)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs`))
}

func TestQueueRate(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	const rate = `{"limit":2,"period":"PT3S"}` // a busy machine must look at the third job meanwhile
	first, second, third := b.added(limited(t, rate)), b.added(limited(t, rate)), b.added(limited(t, rate))
	plain := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("other"))
	require.JSONEq(t, `{"rate_limit":{"rate":{"limit":2,"period":"PT3S"}}}`, b.One(`SELECT config::text FROM ojs.queues WHERE name = 'q'`))
	require.Equal(t, [][16]byte{first, second, plain[1].ID}, b.fetched("q", "other"), "other queues of the list are not limited")
	require.Empty(t, b.fetched())
	require.Empty(t, b.node().fetched(), "all nodes share the starts")
	got, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", Wait: 20 * time.Second})
	require.NoError(t, err)
	require.Equal(t, third, got[0].ID, "a waiting fetch is woken when a job may start")
	require.GreaterOrEqual(t, b.Number(`SELECT (date_part('epoch', max(time) - min(time)) * 1000)::int FROM ojs.events WHERE type = 'job.started' AND queue = 'q'`), 3000)
	b.Exec(`UPDATE ojs.queues SET config = NULL WHERE name = 'q'`)
	require.NoError(t, b.Configured.Refresh(t.Context()))
	require.Equal(t, [][16]byte{plain[0].ID}, b.fetched())
}

func TestQueueConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nodes := []*bundle{b, b.node()}
	b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('q', '{"concurrency":3}')`)
	for _, n := range nodes {
		require.NoError(t, n.Configured.Refresh(t.Context()))
	}
	const jobs, workers = 120, 12
	for range jobs {
		b.added(domaintest.NewJob("q"))
	}
	var active, done atomic.Int64
	var all sync.WaitGroup
	for w := range workers {
		node := nodes[w%2]
		all.Go(func() {
			for deadline := time.Now().Add(domaintest.WaitFor); time.Now().Before(deadline) && done.Load() < jobs; {
				got, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 2, WorkerID: fmt.Sprint("w", w), Wait: 100 * time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				for _, j := range got {
					if n := active.Add(1); n > 3 {
						t.Errorf("%d active", n)
					}
					time.Sleep(time.Millisecond) // the job runs
					active.Add(-1)
					done.Add(1)
					if _, err := node.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: fmt.Sprint("w", w), Attempt: job.AnyAttempt}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, jobs, done.Load())
}

// Of the two bounds of a queue on its active jobs, the lower one holds.
// A claim locks the partition of the queue, so a waiting fetch claims again only when the limit may allow more.
func TestFetchWaitsForTheQueueLimit(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]string{"Concurrency": `{"concurrency":1}`, "Rate": `{"rate":{"limit":1,"period":"PT2S"}}`, "Both": `{"concurrency":1,"rate":{"limit":1,"period":"PT1H"}}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('q', '{"rate_limit":` + limit + `}')`)
			sent := &domaintest.Statements{}
			node := domaintest.On(t, domaintest.Traced(t, b.Pool, sent))
			require.NoError(t, node.Configured.Refresh(t.Context()))
			b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
			fetch := func(wait time.Duration) []*job.Record {
				got, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", Wait: wait})
				require.NoError(t, err)
				return got
			}
			first := fetch(0)
			require.Len(t, first, 1)
			if name == "Rate" {
				require.Len(t, fetch(domaintest.WaitFor), 1)
			} else {
				require.Empty(t, fetch(500*time.Millisecond))
			}
			require.Less(t, sent.Sent("LimitQueueAllowances"), 10)
			if name != "Concurrency" {
				return
			}
			second := make(chan []*job.Record, 1)
			go func() { second <- fetch(domaintest.WaitFor) }()
			_, err := node.Complete(t.Context(), job.Ack{JobID: first[0].ID, Attempt: -1})
			require.NoError(t, err)
			require.Len(t, domaintest.Await(t, second), 1)
		})
	}
}

func TestQueueConcurrencyOfTwoSettings(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{
		"OfTheQueue": `{"concurrency":1,"rate_limit":{"concurrency":2}}`, "OfTheLimit": `{"concurrency":2,"rate_limit":{"concurrency":1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('q', $1)`, config)
			require.NoError(t, b.Configured.Refresh(t.Context()))
			first, second := b.added(domaintest.NewJob("q")), b.added(domaintest.NewJob("q"))
			require.Equal(t, [][16]byte{first}, b.fetched())
			b.ack(first)
			require.Equal(t, [][16]byte{second}, b.fetched())
		})
	}
}

func TestQueueConcurrencyZero(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('q', '{"concurrency":0}')`)
	require.NoError(t, b.Configured.Refresh(t.Context()))
	b.added(domaintest.NewJob("q"))
	require.Empty(t, b.fetched())
}

func TestQueueOnLimit(t *testing.T) {
	t.Parallel()
	for effect, state := range map[string]ojs.JobState{"drop": ojs.StateDiscarded, "reschedule": ojs.StateScheduled, "wait": ojs.StateAvailable} {
		t.Run(effect, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			policy := `{"limit":2,"period":"PT2S","on_limit":"` + effect + `"}`
			var ids [][16]byte
			for range 3 {
				ids = append(ids, b.added(limited(t, policy)))
			}
			ids = append(ids, b.added(limited(t, policy, `"priority":-5`)))
			require.Equal(t, ids[0], b.Fetched(1, "q")[0].ID)
			require.Equal(t, ojs.StateAvailable, b.State(ids[3]), "no fetch with a slot left has met it")
			require.Equal(t, ids[1:2], b.fetched())
			b.fetched() // a fetch may have looked for jobs of one priority only
			require.Equal(t, []ojs.JobState{state, state}, []ojs.JobState{b.State(ids[2]), b.State(ids[3])})
			stored, err := b.Get(t.Context(), ids[2])
			require.NoError(t, err)
			switch effect {
			case "drop":
				require.Contains(t, string(stored.Error), `"code":"rate_limited"`)
				require.Contains(t, string(stored.Error), `queue:q`)
			case "reschedule":
				require.Equal(t, b.One(`SELECT ojs.time_text(min(at) + interval '2 seconds') FROM ojs.limit_starts`), stored.ScheduledAt.Time.UTC().Format("2006-01-02T15:04:05.000Z"))
				b.ApplyDueUntilLeft(ids[2], ojs.StateScheduled)
				b.untilFetched(ids[2])
			}
		})
	}

	// docs/reference/limits.md, When a limit blocks a job: as many as there are slots left, from all lanes together, at most 100. A fetch
	// that has found nothing may look once more.
	t.Run("AsManyAsThereAreSlots", func(t *testing.T) {
		t.Parallel()
		for effect, state := range map[string]ojs.JobState{"drop": ojs.StateDiscarded, "reschedule": ojs.StateScheduled} {
			b := setup(t)
			b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('q', '{"rate_limit":{"concurrency":0,"on_limit":"` + effect + `"}}')`)
			require.NoError(t, b.Configured.Refresh(t.Context()))
			var jobs []*job.Job
			for i := range 320 {
				jobs = append(jobs, domaintest.With(func(j *job.Job) { j.Lane = fmt.Sprint("/key", i%2) }))
			}
			b.Enqueued(jobs...)
			sent := &domaintest.Statements{}
			node := domaintest.On(t, domaintest.Traced(t, b.Pool, sent))
			require.NoError(t, node.Configured.Refresh(t.Context()))
			want, looked := 0, 0
			for _, slots := range []int{1, 3, 101} {
				got, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: slots, WorkerID: "w1"})
				require.NoError(t, err)
				require.Empty(t, got)
				looks := sent.Sent("LimitQueueHandleBlocked") - looked
				require.Contains(t, []int{1, 2}, looks)
				looked, want = looked+looks, want+looks*min(slots, 100)
				require.Equal(t, want, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = $1`, state), "%s %d", effect, slots)
			}
		}
	})

	// The job has room that its key gave it, and another one waits for.
	t.Run("JobWithAKey", func(t *testing.T) {
		t.Parallel()
		for _, effect := range []string{"drop", "reschedule"} {
			b := setup(t)
			b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('full', '{"rate_limit":{"concurrency":0,"on_limit":"` + effect + `"}}')`)
			require.NoError(t, b.Configured.Refresh(t.Context()))
			first, second := b.added(in(t, "full", `{"key":"k","concurrency":1}`)), b.added(limited(t, `{"key":"k","concurrency":1}`))
			require.True(t, b.waits(second))
			require.Empty(t, b.fetched("full"))
			require.NotEqual(t, ojs.StateAvailable, b.State(first))
			b.admitDue()
			require.False(t, b.waits(second), effect)
		}
	})

	t.Run("Paused", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Exec(`INSERT INTO ojs.queues (name, config, status) VALUES ('q', '{"rate_limit":{"concurrency":0,"on_limit":"drop"}}', 'paused')`)
		require.NoError(t, b.Configured.Refresh(t.Context()))
		id := b.added(domaintest.NewJob("q"))
		require.Empty(t, b.fetched())
		require.Equal(t, ojs.StateAvailable, b.State(id))
		b.Exec(`UPDATE ojs.queues SET status = 'active'`)
		require.NoError(t, b.Configured.Refresh(t.Context()))
		require.Empty(t, b.fetched())
		require.Equal(t, ojs.StateDiscarded, b.State(id))
	})
}
