package limit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func TestOnLimitDrop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const drop = `{"key":"k","concurrency":1,"on_limit":"drop"}`
	first, second := b.added(limited(t, drop)), b.added(limited(t, drop))
	require.Equal(t, first, b.Fetched(1, "q")[0].ID)
	require.Equal(t, ojs.StateAvailable, b.State(second), "no fetch with a slot left has met it")
	require.Empty(t, b.fetched())
	stored, err := b.Get(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, "discarded", stored.State)
	var failure struct{ Code, Type, Message string }
	require.NoError(t, json.Unmarshal(stored.Error, &failure))
	require.Equal(t, "rate_limited", failure.Code)
	require.Equal(t, []string{"job.enqueued>available", "job.discarded:available>discarded"}, b.EventTypes(second))
	b.ack(first)
	require.Empty(t, b.fetched())
}

func TestOnLimitReschedule(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const later = `{"key":"k","rate":{"limit":1,"period":"PT2S"},"on_limit":"reschedule"}`
	first, second := b.added(limited(t, later)), b.added(limited(t, later, `"scheduled_at":"2020-01-01T00:00:00Z"`))
	require.Equal(t, first, b.Fetched(1, "q")[0].ID)
	require.Empty(t, b.fetched())
	stored, err := b.Get(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, "scheduled", stored.State)
	started := b.One(`SELECT ojs.time_text(at + interval '2 seconds') FROM ojs.limit_starts`)
	var shown struct {
		ScheduledAt string `json:"scheduled_at"`
	}
	require.NoError(t, json.Unmarshal(stored.Extra, &shown))
	require.Equal(t, started, shown.ScheduledAt)
	require.Equal(t, started, stored.ScheduledAt.Time.UTC().Format("2006-01-02T15:04:05.000Z"))
	require.Equal(t, []string{"job.enqueued>available", "job.state_changed:available>scheduled"}, b.EventTypes(second)[:2])
	b.ApplyDueUntilLeft(second, ojs.StateScheduled)
	b.untilFetched(second)
}

// TestOtherQueue is about a key whose allowance was given to a job that no worker asks for.
func TestOtherQueue(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(b *bundle){
		"NobodyFetches": func(*bundle) {},
		"Paused":        func(b *bundle) { b.Exec(`UPDATE ojs.queues SET status = 'paused' WHERE name = 'a'`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			inA := b.added(in(t, "a", `{"key":"k","concurrency":1}`))
			inB := b.added(in(t, "b", `{"key":"k","concurrency":1}`))
			prepare(b)
			queues := []string{"b"}
			if name == "Paused" {
				queues = []string{"a", "b"}
			}
			require.Equal(t, [][16]byte{inB}, b.fetched(queues...))
			require.Empty(t, b.fetched("a"))
			b.ack(inB)
			b.Exec(`UPDATE ojs.queues SET status = 'active'`)
			require.Equal(t, [][16]byte{inA}, b.fetched("a"))
		})
	}
}

// Of the jobs that a fetch meets, those that cannot wait take the place before those that can.
func TestOtherQueueWithoutPatience(t *testing.T) {
	t.Parallel()
	for _, effect := range []string{"drop", "reschedule"} {
		b := setup(t)
		b.added(in(t, "a", `{"key":"k","concurrency":1}`))
		waits := b.added(in(t, "b", `{"key":"k","concurrency":1}`))
		hurries := b.added(in(t, "b", `{"key":"k","concurrency":1,"on_limit":"`+effect+`"}`))
		require.Equal(t, [][16]byte{hurries}, b.fetched("b"), effect)
		require.Equal(t, ojs.StateAvailable, b.State(waits))
	}
}

// A job that another transaction has locked neither gives way nor takes a place, and no fetch waits for it.
func TestOtherQueueWithLockedJob(t *testing.T) {
	t.Parallel()
	for name, locked := range map[string]int{"WouldGiveWay": 0, "Waits": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			var ids [][16]byte
			for _, queue := range []string{"a", "b"} {
				ids = append(ids, b.added(in(t, queue, `{"key":"k","concurrency":1}`)))
			}
			lock := b.Lock(ids[locked])
			require.Empty(t, b.fetched("b"))
			require.NoError(t, lock.Rollback(t.Context()))
			require.Eventually(t, func() bool { return slices.Contains(b.fetched("b"), ids[1]) }, domaintest.WaitFor, 5*time.Millisecond)
			require.Empty(t, b.fetched("a"))
		})
	}
}

// A fetch does not count a partition while another node lets jobs of it start.
func TestFetchBesideAnAdmission(t *testing.T) {
	t.Parallel()
	b := setup(t, stopped)
	b.added(in(t, "a", `{"key":"k","concurrency":1}`))
	b.added(in(t, "b", `{"key":"k","concurrency":1}`))
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM ojs.limit_admit('{k}', 0)`)
	require.NoError(t, err)
	_, _ = b.Fetch(t.Context(), job.Fetch{Queues: []string{"b"}, Count: 1, WorkerID: "w1"}) // it waits for the partition, and gives up
	require.NoError(t, tx.Commit(t.Context()))
	b.fetched("a", "b")
	require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'active'`))
}

// A fetch looks at a part of many jobs that wait: those with the highest priority and, of these, the oldest.
func TestFetchMeetsTheFirst(t *testing.T) {
	t.Parallel()
	for _, effect := range []string{"drop", "reschedule"} {
		t.Run(effect, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.added(limited(t, `{"key":"k","concurrency":0,"on_limit":"`+effect+`"}`))
			b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, enqueued_at, args, priority, limit_key, limit_seq, on_limit)
				SELECT ojs.new_id(now()), 't', 'q', 'available', now(), now(), to_json(ARRAY[i]), i / 81, 'k', nextval('ojs.ready_seq'), $1 FROM generate_series(1, 160) i`, effect)
			require.Empty(t, b.fetched())
			var left []string
			for i := 20; i <= 80; i++ { // 100 were met, 80 of which had the higher priority
				left = append(left, fmt.Sprint(i))
			}
			require.Equal(t, left, b.Texts(`SELECT args ->> 0 FROM ojs.jobs WHERE state = 'available' ORDER BY limit_seq`))
		})
	}

	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		b := setup(t, stopped) // so the fetch has to find that they may start
		var low, high [][16]byte
		for range 15 {
			low = append(low, b.added(limited(t, `{"key":"k","concurrency":100}`)))
		}
		for range 10 {
			high = append(high, b.added(limited(t, `{"key":"k","concurrency":100}`, `"priority":5`)))
		}
		var got [][16]byte
		for _, j := range b.Fetched(100, "q") {
			got = append(got, j.ID)
		}
		require.Equal(t, append(high, low[:10]...), got)
	})
}

// A job of a cron that a limit drops makes way for the next one, which has waited for its end.
func TestDroppedJobOfACron(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func() *job.Job{
		"OfAKey":     func() *job.Job { return limited(t, `{"key":"k","concurrency":0,"on_limit":"drop"}`) },
		"OfItsQueue": func() *job.Job { return in(t, "full", `{"limit":1,"period":"PT1H","on_limit":"drop"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if name == "OfItsQueue" {
				b.Enqueued(next())
				require.Len(t, b.Fetched(1, "full"), 1)
			}
			first, second := b.added(next()), b.added(next())
			b.Exec(`UPDATE ojs.jobs SET cron = 'c', cron_serial = true WHERE state = 'available'`)
			b.Exec(`UPDATE ojs.jobs SET ready_seq = NULL, limit_seq = NULL WHERE id = $1`, second)
			require.Empty(t, b.fetched("q", "full"))
			require.Equal(t, ojs.StateDiscarded, b.State(first))
			require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE id = $1 AND state = 'available' AND COALESCE(ready_seq, limit_seq) IS NULL`, second))
		})
	}
}

// TestManyBlocked is about 20 000 blocked jobs ahead of one that may start.
func TestManyBlocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.added(limited(t, `{"key":"k","concurrency":0}`))
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, enqueued_at, args, limit_key, limit_seq)
		SELECT ojs.new_id(now()), 't', 'q', 'available', now(), now(), '[]', 'k', nextval('ojs.ready_seq') FROM generate_series(1, 20000)`)
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
	began := time.Now()
	require.Len(t, b.Fetched(1, "q"), 1)
	require.Len(t, b.Fetched(10, "q"), 1)
	_, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1"})
	require.NoError(t, err)
	require.Less(t, time.Since(began), 10*time.Second) // a statement for each blocked job would take longer
}

// TestMovedJobs is about a job that waits for a limit in a queue whose jobs move to another one: fetches from there meet it.
func TestMovedJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const drop = `{"key":"k","concurrency":1,"on_limit":"drop"}`
	first, second := b.added(in(t, "from", drop)), b.added(in(t, "from", drop))
	require.Equal(t, first, b.Fetched(1, "from")[0].ID)
	n, err := b.MoveWaiting(t.Context(), [][16]byte{second}, "from", "q")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.limit_pending`), "an admission has followed")
	require.Empty(t, b.fetched())
	require.Equal(t, ojs.StateDiscarded, b.State(second))
}

// TestPriorityOfWaitingJob is about a job that waits behind one that was admitted, and then becomes more urgent.
func TestPriorityOfWaitingJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const one = `{"key":"k","concurrency":1}`
	first, second := b.added(limited(t, one)), b.added(limited(t, one))
	_, _, err := b.SetPriority(t.Context(), second, 5)
	require.NoError(t, err)
	require.Equal(t, [][16]byte{second}, b.fetched())
	b.ack(second)
	require.Equal(t, [][16]byte{first}, b.fetched())
}
