package pool_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pool"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	return &bundle{domaintest.New(t, change...)}
}

func (b *bundle) put(name, definition string) {
	b.T.Helper()
	d, wire := pool.Decode([]byte(definition))
	require.Nil(b.T, wire)
	_, _, err := b.Pools.Put(b.T.Context(), name, d)
	require.NoError(b.T, err)
}

func (b *bundle) add(queue string, n int) {
	b.T.Helper()
	jobs := make([]*job.Job, n)
	for i := range jobs {
		jobs[i] = domaintest.NewJob(queue)
	}
	_, errs := b.EnqueueEach(b.T.Context(), jobs)
	require.Nil(b.T, errs)
}

func (b *bundle) fetch(f job.Fetch) []*job.Record {
	b.T.Helper()
	jobs, err := b.Pools.Fetch(b.T.Context(), f)
	require.NoError(b.T, err)
	return jobs
}

// letters are the queues of the jobs, whose names have one letter.
func letters(jobs []*job.Record) string {
	var s strings.Builder
	for _, j := range jobs {
		s.WriteString(j.Queue)
	}
	return s.String()
}

func (b *bundle) ack(jobs []*job.Record) {
	b.T.Helper()
	for _, j := range jobs {
		_, err := b.Complete(b.T.Context(), job.Ack{JobID: j.ID, WorkerID: j.WorkerID.String, Attempt: -1})
		require.NoError(b.T, err)
	}
}

func TestStrategies(t *testing.T) {
	t.Parallel()

	t.Run("RoundRobin", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("a", 20)
		b.add("b", 3)
		b.add("c", 20)
		f := job.Fetch{Queues: []string{"a", "b", "c"}, Count: 1, Strategy: job.StrategyRoundRobin}
		got := ""
		for range 12 {
			got += letters(b.fetch(f))
		}
		require.Equal(t, "abcabcabcaca", got)
		f.Count = 4
		require.Len(t, b.fetch(f), 4)
		f.Count = 100
		require.Len(t, b.fetch(f), 27)
		require.Empty(t, b.fetch(f))
	})

	t.Run("Weighted", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("a", 200)
		b.add("b", 200)
		f := job.Fetch{Queues: []string{"a", "b"}, Count: 10, Strategy: job.StrategyWeighted, Weights: map[string]int64{"a": 3}}
		got := ""
		for range 20 {
			got += letters(b.fetch(f))
		}
		require.InDelta(t, 150, strings.Count(got, "a"), 35) // five standard deviations
		require.Len(t, got, 200)
		f.Count = 1000
		require.Len(t, b.fetch(f), 200)
	})

	t.Run("LeastLoaded", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("a", 2)
		b.add("b", 5)
		b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('a', 'available', 2), ('b', 'available', 5)`) // as the relay does
		require.Equal(t, "bbba", letters(b.fetch(job.Fetch{Queues: []string{"a", "b"}, Count: 4, Strategy: job.StrategyLeastLoaded})))
	})

	t.Run("StarvingQueuesComeFirst", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a","b"],"strategy":"strict","starvation_prevention":{"enabled":true,"rotation_interval":"PT1M","min_dispatch_ratio":0.1}}`)
		b.add("a", 100)
		b.add("b", 100)
		got := ""
		for range 60 {
			got += letters(b.fetch(job.Fetch{Pool: "p", Count: 1}))
		}
		require.InDelta(t, 6, strings.Count(got, "b"), 1)
	})

	t.Run("AStarvingQueueIsServedAfterTheInterval", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		now := time.Now()
		b.Pools.SetClock(func() time.Time { return now })
		b.put("p", `{"queues":["a","b"],"strategy":"strict","starvation_prevention":{"enabled":true,"rotation_interval":"PT30S","min_dispatch_ratio":0}}`)
		b.add("a", 100)
		b.add("b", 100)
		got := ""
		for range 10 {
			got += letters(b.fetch(job.Fetch{Pool: "p", Count: 1}))
			now = now.Add(7 * time.Second)
		}
		require.Equal(t, "aaaaabaaaa", got)
	})

	// b comes first when it has less than a quarter of what was started in this interval and the one before, and not when it has a quarter.
	t.Run("TheShareOfAQueueIsThatOfTwoIntervals", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		began := time.Now()
		now := began
		b.Pools.SetClock(func() time.Time { return now })
		b.put("p", `{"queues":["a","b"],"strategy":"strict","starvation_prevention":{"enabled":true,"rotation_interval":"PT30S","min_dispatch_ratio":0.25}}`)
		b.add("a", 50)
		b.add("b", 50)
		for _, at := range []struct {
			second int
			want   string
		}{
			{0, "aaaa"}, // a share of less than a job is none
			{20, "bbaa"},
			{30, "abaa"},
			{50, "a"},
			{60, "baaab"}, // what was started in the first interval does not count any more
		} {
			now = began.Add(time.Duration(at.second) * time.Second)
			got := ""
			for range at.want {
				got += letters(b.fetch(job.Fetch{Pool: "p", Count: 1}))
			}
			require.Equal(t, at.want, got, at.second)
		}
	})

	t.Run("AStarvingQueueGetsOneSlot", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		now := time.Now()
		b.Pools.SetClock(func() time.Time { return now })
		b.put("p", `{"queues":["a","b","c"],"strategy":"strict","starvation_prevention":{"enabled":true,"rotation_interval":"PT30S","min_dispatch_ratio":0}}`)
		for _, queue := range []string{"a", "b", "c"} {
			b.add(queue, 20)
		}
		fetch := func(n int) string { return letters(b.fetch(job.Fetch{Pool: "p", Count: n})) }
		require.Equal(t, "a", fetch(1))
		now = now.Add(10 * time.Second)
		require.Equal(t, "a", fetch(1))
		now = now.Add(20 * time.Second)
		require.Equal(t, "b", fetch(1), "no more than were asked for")
		now = now.Add(time.Second)
		require.Equal(t, "caa", fetch(3))
		now = now.Add(time.Second)
		require.Equal(t, "a", fetch(1))
		now = now.Add(30 * time.Second)
		require.Equal(t, "bcaaa", fetch(5), "the one that has waited longest comes first")
	})
}

func TestPools(t *testing.T) {
	t.Parallel()

	t.Run("IsolatedQueuesAreForThePoolOnly", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := &bundle{b.Node()}
		b.add("a", 3)
		b.add("b", 3)
		require.Len(t, other.fetch(job.Fetch{Queues: []string{"a"}, Count: 1}), 1) // it knows that there is no pool
		b.put("p", `{"queues":["a"],"isolated":true}`)
		other.Pools.Changed()
		require.Equal(t, "bbb", letters(other.fetch(job.Fetch{Queues: []string{"a", "b"}, Count: 10})))
		require.Empty(t, other.fetch(job.Fetch{Queues: []string{"a"}, Count: 10}))
		require.Equal(t, "aa", letters(other.fetch(job.Fetch{Pool: "p", Count: 10})))
	})

	t.Run("OtherPoolsGetNothingFromIsolatedQueues", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("shared", `{"queues":["a","b"]}`)
		b.put("p", `{"queues":["a"],"isolated":true}`)
		b.add("a", 2)
		b.add("b", 2)
		require.Equal(t, "bb", letters(b.fetch(job.Fetch{Pool: "shared", Count: 10})))
		require.Empty(t, b.fetch(job.Fetch{Pool: "shared", Queues: []string{"a"}, Count: 10}))
		require.Equal(t, "aa", letters(b.fetch(job.Fetch{Pool: "p", Count: 10})))
		b.put("p", `{"queues":["a"]}`)
		b.add("a", 1)
		require.Equal(t, "a", letters(b.fetch(job.Fetch{Pool: "shared", Count: 10})), "the pool lists the queue as before")
	})

	t.Run("AWorkerNamesItsPoolInAHeartbeat", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"isolated":true}`)
		b.add("a", 1)
		b.Exec(`INSERT INTO ojs.workers (id, started_at, last_beat_at, facts) VALUES ('w', now(), now(), '{"pool":"p"}'), ('x', now(), now(), '{"pool":"gone"}')`)
		require.Empty(t, b.fetch(job.Fetch{Queues: []string{"a"}, Count: 1, WorkerID: "x"}))
		require.Equal(t, "a", letters(b.fetch(job.Fetch{Queues: []string{"a", "b"}, Count: 1, WorkerID: "w"})))
		all, err := b.Pools.List(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, all[0].Workers)
	})

	t.Run("AnUnknownPoolIsNotFound", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		_, err := b.Pools.Fetch(t.Context(), job.Fetch{Pool: "p", Count: 1})
		require.ErrorContains(t, err, "p")
		require.Error(t, b.Pools.Delete(t.Context(), "p"))
	})

	t.Run("ConcurrencyHolds", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":3}`)
		b.add("a", 10)
		first := b.fetch(job.Fetch{Pool: "p", Count: 2})
		require.Len(t, first, 2)
		require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 10}), 1)
		require.Empty(t, b.fetch(job.Fetch{Pool: "p", Count: 10}))
		b.ack(first[:1])
		p, err := b.Pools.Get(t.Context(), "p")
		require.NoError(t, err)
		require.EqualValues(t, 2, p.ActiveJobs)
		_, err = b.Fail(t.Context(), job.Nack{JobID: first[1].ID, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 10}), 2)
		b.put("p", `{"queues":["a"]}`)
		require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 10}), 6)
	})

	t.Run("WhatAFetchReservedAndDidNotGetIsFree", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":3}`)
		b.add("a", 1)
		require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 3}), 1)
		b.add("a", 3)
		require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 3}), 2)
		require.Equal(t, 3, b.Number(`SELECT sum(jobs) FROM ojs.pool_holds`))
	})

	t.Run("APoolShowsItsOwn", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.put("limited", `{"queues":["a","b"],"concurrency":3}`)
		b.put("open", `{"queues":["b","c"]}`)
		b.put("other", `{"queues":["d"],"concurrency":9}`)
		b.add("a", 3)
		b.add("b", 2)
		b.add("d", 1)
		require.Len(t, b.fetch(job.Fetch{Pool: "limited", Queues: []string{"a"}, Count: 2}), 2)
		require.Len(t, b.fetch(job.Fetch{Pool: "other", Count: 1}), 1)
		require.Len(t, b.Fetched(1, "a"), 1, "by a worker of no pool")
		b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('a', 'active', 3), ('b', 'available', 2), ('b', 'active', 4), ('c', 'active', 5), ('d', 'active', 1)`) // as the relay does
		b.Exec(`INSERT INTO ojs.workers (id, started_at, last_beat_at, stale_at, facts) VALUES ('v', now(), now(), NULL, '{"pool":"open"}'),
			('w', now(), now(), NULL, '{"pool":"open"}'), ('x', now(), now(), now(), '{"pool":"open"}'), ('y', now(), now(), NULL, '{"pool":"limited"}'), ('z', now(), now(), NULL, '{}')`)
		shown := map[string][]int64{}
		all, err := b.Pools.List(t.Context())
		require.NoError(t, err)
		for _, p := range all {
			shown[p.Name] = []int64{p.Workers, p.ActiveJobs}
		}
		require.Equal(t, map[string][]int64{"limited": {1, 2}, "open": {2, 9}, "other": {0, 1}}, shown)
	})

	t.Run("AChangeKeepsTheTimeOfCreation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		d, wire := pool.Decode([]byte(`{"queues":["a"]}`))
		require.Nil(t, wire)
		first, created, err := b.Pools.Put(t.Context(), "p", d)
		require.NoError(t, err)
		require.True(t, created)
		second, created, err := b.Pools.Put(t.Context(), "p", d)
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, first.CreatedAt, second.CreatedAt)
		require.True(t, second.UpdatedAt.After(first.UpdatedAt))
	})

	t.Run("TheLastPlaceIsForOne", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p1", `{"queues":["a"]}`)
		b.Exec(`INSERT INTO ojs.pools (name, definition) SELECT 'p' || n, (SELECT definition FROM ojs.pools) FROM generate_series(2, 999) n`)
		b.put("p1000", `{"queues":["a"]}`)
		d, wire := pool.Decode([]byte(`{"queues":["b"]}`))
		require.Nil(t, wire)
		_, _, err := b.Pools.Put(t.Context(), "p1001", d)
		domaintest.RequireCode(t, err, ojs.ErrValidation)
		b.put("p7", `{"queues":["b"]}`) // a change needs no place
		require.NoError(t, b.Pools.Delete(t.Context(), "p3"))
		b.put("p1001", `{"queues":["b"]}`)
	})

	t.Run("AParkedFetchGetsTheRoomOfAnEndedJob", func(t *testing.T) {
		t.Parallel()
		var b *bundle
		b = setup(t, func(c *domaintest.Config) { c.Committed = func() { b.Pools.Freed() } })
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.add("a", 2)
		first := b.fetch(job.Fetch{Pool: "p", Count: 1})
		answer := make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Pools.Fetch(context.Background(), job.Fetch{Pool: "p", Count: 1, Wait: domaintest.WaitFor})
			answer <- jobs
		}()
		require.Eventually(t, func() bool { return b.Pools.Waiting() }, domaintest.WaitFor, time.Millisecond)
		b.ack(first)
		require.Len(t, domaintest.Await(t, answer), 1)
	})

	t.Run("ANodeReadsThemAgainWithoutNotifications", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		away := b.Node()
		_, err := away.Pools.Fetch(t.Context(), job.Fetch{Pool: "p", Count: 1})
		require.Error(t, err)
		b.put("p", `{"queues":["a"]}`)
		require.Eventually(t, func() bool {
			_, err := away.Pools.Fetch(t.Context(), job.Fetch{Pool: "p", Count: 1})
			return err == nil
		}, domaintest.WaitFor, 20*time.Millisecond)
	})

	t.Run("AJobThatCameBackCountsNoMore", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.add("a", 2)
		first := b.fetch(job.Fetch{Pool: "p", Count: 1})
		_, err := b.Fail(t.Context(), job.Nack{JobID: first[0].ID, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		b.add("a", 1)
		require.Len(t, b.Fetched(2, "a"), 2, "by a worker of no pool")
		require.Equal(t, ojs.StateActive, b.State(first[0].ID))
		require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 1}), 1)
	})

	t.Run("AFetchThatGetsNothingKeepsNoRoom", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.add("a", 1)
		first := b.fetch(job.Fetch{Pool: "p", Count: 1})
		b.ack(first)
		b.Exec(`INSERT INTO ojs.queues (name, status, paused_at) VALUES ('a', 'paused', now()) ON CONFLICT (name) DO UPDATE SET status = 'paused', paused_at = now()`)
		b.add("a", 1)
		require.Empty(t, b.fetch(job.Fetch{Pool: "p", Count: 1}))
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.pool_holds WHERE started_at IS NULL`))
	})

	t.Run("JobsThatCannotBeCountedGoBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.add("a", 1)
		b.Exec(`ALTER TABLE ojs.pool_holds ADD CONSTRAINT none CHECK (started_at IS NULL)`)
		_, err := b.Pools.Fetch(t.Context(), job.Fetch{Pool: "p", Count: 1, WorkerID: "w1"})
		require.Error(t, err)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND attempt = 0`))
	})

	t.Run("ReservationsFollowOneAnother", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.add("a", 1)
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT ojs.pool_reserve('p', gen_random_uuid(), 1)`)
		require.NoError(t, err)
		answer := make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Pools.Fetch(context.Background(), job.Fetch{Pool: "p", Count: 1})
			answer <- jobs
		}()
		require.Eventually(t, func() bool {
			return len(answer) > 0 || b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}, domaintest.WaitFor, time.Millisecond)
		require.NoError(t, tx.Commit(t.Context()))
		require.Empty(t, domaintest.Await(t, answer))
	})

	t.Run("AReservationOfANodeThatStoppedEnds", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.add("a", 1)
		b.Exec(`INSERT INTO ojs.pool_holds (pool, id, jobs, expires_at) VALUES ('p', gen_random_uuid(), 1, now() + interval '1 minute')`)
		require.Empty(t, b.fetch(job.Fetch{Pool: "p", Count: 1}))
		b.Exec(`UPDATE ojs.pool_holds SET expires_at = now()`)
		require.Eventually(t, func() bool { return len(b.fetch(job.Fetch{Pool: "p", Count: 1})) == 1 }, domaintest.WaitFor, time.Millisecond)
	})
}

// Many fetches of two nodes: the active jobs of the pool are never more than its concurrency, and all jobs run.
func TestConcurrencyOnTwoNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nodes := []*bundle{b, {b.Node()}}
	const concurrency, jobs = 5, 120
	b.put("p", fmt.Sprintf(`{"queues":["a","b"],"concurrency":%d}`, concurrency))
	b.add("a", jobs/2)
	b.add("b", jobs/2)
	var mu sync.Mutex
	running, most, done := 0, 0, 0
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			node := nodes[n%2]
			for {
				got, err := node.Pools.Fetch(t.Context(), job.Fetch{Pool: "p", Count: 1 + n%3})
				if err != nil {
					t.Errorf("fetch: %v", err)
					return
				}
				mu.Lock()
				running += len(got)
				most = max(most, running)
				mu.Unlock()
				for _, j := range got {
					mu.Lock()
					running--
					mu.Unlock()
					if _, err := node.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: -1}); err != nil {
						t.Errorf("ack: %v", err)
					}
				}
				mu.Lock()
				done += len(got)
				over := done == jobs
				mu.Unlock()
				if over || t.Context().Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most, concurrency)
	require.LessOrEqual(t, b.Number(`SELECT max(n) FROM (SELECT sum(v.n) OVER (ORDER BY v.at, v.n) AS n
		FROM ojs.jobs_done d CROSS JOIN LATERAL (VALUES (d.started_at, 1), (d.finished_at, -1)) v (at, n)) runs`), concurrency, "by the clock of the database")
	require.Equal(t, jobs, done)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs`))
}

func TestDecode(t *testing.T) {
	t.Parallel()
	d, wire := pool.Decode([]byte(`{"queues":{"a":{"weight":70},"b":{},"c":3},"concurrency":10,"strategy":"weighted"}`))
	require.Nil(t, wire)
	require.Equal(t, []string{"a", "b", "c"}, d.Queues)
	require.Equal(t, map[string]int64{"a": 70, "b": 1, "c": 3}, d.WeightsOfQueues())
	for _, body := range []string{
		`{"queues":["a"],"concurrency":0}`, `{"queues":["a"],"concurrency":10000}`, `{"queues":{"a":{"weight":1000}},"weights":{"a":1}}`,
		`{"queues":["a"],"starvation_prevention":{"rotation_interval":"PT1S","min_dispatch_ratio":0}}`,
		`{"queues":["a"],"starvation_prevention":{"rotation_interval":"PT1H","min_dispatch_ratio":1}}`,
	} {
		_, wire := pool.Decode([]byte(body))
		require.Nil(t, wire, body)
	}
	require.True(t, pool.ValidName(strings.Repeat("x", 128)))
	for _, body := range []string{
		`{}`, `[]`, `{"queues":[]}`, `{"queues":["UPPER"]}`, `{"queues":[1]}`, `{"queues":"a"}`, `{"queues":{"a":{"weight":0}}}`, `{"queues":["a"],"concurrency":-1}`,
		`{"queues":["a"],"concurrency":10001}`, `{"queues":["a"],"strategy":"fast"}`, `{"queues":["a"],"strategy":7}`, `{"queues":["a"],"weights":{"a":1.5}}`,
		`{"queues":["a"],"weights":{"a":1001}}`, `{"queues":["a"],"weights":[]}`, `{"queues":["a"],"isolated":1}`, `{"queues":["a\u0000"]}`,
		`{"queues":["a"],"starvation_prevention":{"rotation_interval":"PT0.999S"}}`, `{"queues":["a"],"starvation_prevention":{"rotation_interval":"PT1H0.001S"}}`,
		`{"queues":["a"],"starvation_prevention":{"min_dispatch_ratio":-0.01}}`, `{"queues":["a"],"starvation_prevention":{"min_dispatch_ratio":1.01}}`,
		`{"queues":["a"],"starvation_prevention":{"min_dispatch_ratio":2}}`,
		`{"queues":["a"],"starvation_prevention":{"enabled":"yes"}}`, `{"queues":["a"],"starvation_prevention":[]}`, "{\"queues\":[\"a\xff\"]}",
	} {
		_, wire := pool.Decode([]byte(body))
		require.NotNil(t, wire, body)
	}
	_, wire = pool.Decode([]byte(`{"queues":{"a":{"weight":0}}}`))
	require.Equal(t, `'queues' must be an object with weights that are an integer from 1 to 1000, got {"a":{"weight":0}}.`, wire.Message)
	for _, name := range []string{"", "a b", "a/b", "a\x00", strings.Repeat("x", 129), "ä"} {
		require.False(t, pool.ValidName(name), name)
	}
}

// TestTenantsInPools: whatever chooses between the queues of a fetch, it gets the jobs of its tenant only.
func TestTenantsInPools(t *testing.T) {
	t.Parallel()
	b := setup(t)
	node := &bundle{b.Node()}
	var jobs []*job.Job
	for _, lane := range []string{"b", "b", "b", "", "a", "a/key", "a"} {
		for _, q := range []string{"x", "y"} {
			j := domaintest.NewJob(q)
			j.Lane = lane
			jobs = append(jobs, j)
		}
	}
	b.Enqueued(jobs...)
	b.put("limited", `{"queues":["x","y"],"concurrency":3}`)
	b.put("turns", `{"queues":["x","y"],"strategy":"round_robin","starvation_prevention":{"enabled":true}}`)
	node.Pools.Changed()
	for _, f := range []struct {
		fetch job.Fetch
		want  int
	}{
		{job.Fetch{Queues: []string{"x", "y"}, Pool: "limited", Count: 9}, 3},
		{job.Fetch{Queues: []string{"x", "y"}, Pool: "turns", Count: 2}, 2},
		{job.Fetch{Queues: []string{"x", "y"}, Strategy: job.StrategyWeighted, Count: 9}, 1},
		{job.Fetch{Queues: []string{"x", "y"}, Pool: "turns", Count: 9}, 0},
	} {
		f.fetch.Tenant, f.fetch.WorkerID = "a", "w"
		got := node.fetch(f.fetch)
		require.Len(t, got, f.want, "%+v", f.fetch)
		for _, j := range got {
			require.Equal(t, "a", job.TenantOf(j.Lane), "%+v", f.fetch)
		}
	}
}

// parked fetches, and returns the answer when there is one.
func (b *bundle) parked(f job.Fetch) chan answer {
	b.T.Helper()
	parked, c := b.Parked(), make(chan answer, 1)
	f.Wait = domaintest.WaitFor
	go func() {
		jobs, err := b.Pools.Fetch(context.Background(), f)
		c <- answer{jobs, err}
	}()
	require.Eventually(b.T, func() bool { return b.Parked() == parked+1 }, domaintest.WaitFor, time.Millisecond)
	return c
}

type answer struct {
	jobs []*job.Record
	err  error
}

// Pools change while fetches are parked.
func TestParkedFetchesFollowChanges(t *testing.T) {
	t.Parallel()

	t.Run("ThePoolIsDeleted", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":1}`)
		b.Exec(`INSERT INTO ojs.workers (id, started_at, last_beat_at, facts) VALUES ('w', now(), now(), '{"pool":"p"}')`)
		named, of := b.parked(job.Fetch{Pool: "p", Count: 1}), b.parked(job.Fetch{Queues: []string{"b"}, Count: 1, WorkerID: "w"})
		require.NoError(t, b.Pools.Delete(t.Context(), "p"))
		require.ErrorContains(t, domaintest.Await(t, named).err, "p")
		require.Eventually(t, func() bool { return b.Parked() == 1 }, domaintest.WaitFor, time.Millisecond)
		b.add("b", 1) // its worker fetches as if it had named none
		require.Equal(t, "b", letters(domaintest.Await(t, of).jobs))
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.pool_holds`))
	})

	t.Run("ItsQueuesChange", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"]}`)
		got := b.parked(job.Fetch{Pool: "p", Count: 1})
		b.put("p", `{"queues":["b"]}`)
		b.add("b", 1)
		require.Equal(t, "b", letters(domaintest.Await(t, got).jobs))
	})

	t.Run("AQueueBecomesIsolated", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		got := b.parked(job.Fetch{Queues: []string{"a", "b"}, Count: 1})
		only := b.parked(job.Fetch{Queues: []string{"a"}, Count: 1})
		b.put("p", `{"queues":["a"],"isolated":true}`)
		b.add("a", 1)
		b.add("b", 1)
		require.Equal(t, "b", letters(domaintest.Await(t, got).jobs))
		require.NoError(t, b.Pools.Delete(t.Context(), "p"))
		require.Equal(t, "a", letters(domaintest.Await(t, only).jobs))
	})

	t.Run("TheServerDrains", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"isolated":true}`)
		got := b.parked(job.Fetch{Queues: []string{"a"}, Count: 1}) // it can get nothing
		b.Drain()
		require.Empty(t, domaintest.Await(t, got).jobs)
	})

	t.Run("TheWorkerBecomesQuiet", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.put("p", `{"queues":["a"],"concurrency":2,"isolated":true}`)
		b.put("other", `{"queues":["b"]}`)
		f := job.Fetch{Pool: "p", Count: 1, WorkerID: "w"}
		full := b.parked(f)
		nothing := b.parked(job.Fetch{Queues: []string{"a"}, Pool: "other", Count: 1, WorkerID: "w"})
		b.Cache.SetQuiet("w", true)
		require.Empty(t, domaintest.Await(t, full).jobs)
		require.Empty(t, domaintest.Await(t, nothing).jobs)
		b.add("a", 1)
		require.Empty(t, b.fetch(f))
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.pool_holds`), "nothing was reserved")
		f.WorkerID = "other"
		require.Len(t, b.fetch(f), 1)
	})
}

// During maintenance pools give nothing and reserve nothing. Their parked fetches go on when it ends.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	for name, definition := range map[string]string{
		"Concurrency": `{"queues":["a","b"],"concurrency":1}`,
		"LeastLoaded": `{"queues":["a","b"],"strategy":"least-loaded"}`,
		"Starvation":  `{"queues":["a","b"],"strategy":"strict","starvation_prevention":{"enabled":true}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.put("p", definition)
			_, err := b.Maintenance.Start(t.Context(), queueconfig.MaintenanceStart{Reason: "r", By: "t"})
			require.NoError(t, err)
			b.add("b", 1)
			require.Empty(t, b.fetch(job.Fetch{Pool: "p", Count: 1}))
			got := b.parked(job.Fetch{Pool: "p", Count: 1})
			require.Zero(t, b.Number(`SELECT count(*) FROM ojs.pool_holds`))
			require.NoError(t, b.Maintenance.End(t.Context(), "t"))
			b.NotifyAll() // as the follower of the switch does
			require.Equal(t, "b", letters(domaintest.Await(t, got).jobs))
		})
	}
}

// A job that a limit reschedules is met by fetches of a pool, too, although none can be fetched.
func TestPoolsMeetLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.put("p", `{"queues":["a"],"concurrency":5}`)
	var jobs []*job.Job
	for range 2 {
		j, wire := job.DecodeItem([]byte(`{"type":"test.job","args":[1],"options":{"queue":"a","rate_limit":{"key":"k","concurrency":1,"on_limit":"reschedule"}}}`), job.Limits{})
		require.Nil(t, wire)
		jobs = append(jobs, j)
	}
	b.Enqueued(jobs...)
	require.Eventually(t, func() bool {
		b.fetch(job.Fetch{Pool: "p", Count: 1})
		return b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'scheduled'`) == 1
	}, domaintest.WaitFor, time.Millisecond)
}

// What the pool holds is forgotten when its jobs do not run for it any more, whoever ended them.
func TestHoldsThatAreOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.put("p", `{"queues":["a"],"concurrency":2}`)
	b.add("a", 4)
	lost := b.fetch(job.Fetch{Pool: "p", Count: 1, VisibilityMS: 1})[0]
	back := b.fetch(job.Fetch{Pool: "p", Count: 1})[0]
	require.Empty(t, b.fetch(job.Fetch{Pool: "p", Count: 1}))
	b.ApplyDueUntilLeft(lost.ID, ojs.StateActive)
	_, err := b.Fail(t.Context(), job.Nack{JobID: back.ID, Attempt: -1, Requeue: true})
	require.NoError(t, err)
	require.Len(t, b.Fetched(4, "a"), 4) // without the pool, both run again
	p, err := b.Pools.Get(t.Context(), "p")
	require.NoError(t, err)
	require.Zero(t, p.ActiveJobs)
	b.add("a", 3)
	require.Len(t, b.fetch(job.Fetch{Pool: "p", Count: 3}), 2)
}

// Nodes keep what they know of pools until a notification says that it has changed, so a reset has to notify them.
func TestResetNotifiesNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `LISTEN ojs_reset`)
	require.NoError(t, err)
	b.Exec(`SELECT ojs.reset()`)
	n, err := conn.Conn().WaitForNotification(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, n.Payload)
	_, err = conn.Exec(t.Context(), `UNLISTEN *`)
	require.NoError(t, err)
}

// What ends between the look for room and the wait wakes the fetch that waits.
func TestRoomIsNotMissed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.True(t, b.Pools.WakesWhatEndedMeanwhile())
}

// What was started in the last 60 s, with the share of the minute before that is younger.
func TestStats(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.put("z", `{"queues":{"a":{"weight":5},"b":{"weight":3}}}`)
	b.put("p", `{"queues":{"a":{"weight":7}}}`)
	b.Exec(`INSERT INTO ojs.queues (name) VALUES ('a'), ('b'), ('c') ON CONFLICT DO NOTHING`)
	b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('a', 'active', 4), ('a', 'available', 1), ('b', 'available', 2), ('c', 'active', 1)`)
	b.Exec(`INSERT INTO ojs.stats_minute (minute, queue, started, wait_ms) SELECT date_trunc('minute', now()) + m * interval '1 minute', 'a', 30, 1500 FROM generate_series(-3, 1) m`)
	queues, total, err := b.Pools.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, []string{queues[0].Name, queues[1].Name, queues[2].Name})
	a := queues[0]
	require.Equal(t, pool.QueueStats{Name: "a", Weight: 7, Dispatched: a.Dispatched, Ratio: 1, AvgWaitMS: 50, Active: 4}, a)
	require.GreaterOrEqual(t, a.Dispatched, int64(30))
	require.LessOrEqual(t, a.Dispatched, int64(60))
	require.Equal(t, total, a.Dispatched)
	require.Equal(t, pool.QueueStats{Name: "b", Weight: 3, Starved: true}, queues[1])
	require.Equal(t, pool.QueueStats{Name: "c", Weight: 1, Active: 1}, queues[2])
}

// The statistics are those of the first 1 000 queues by name.
func TestStatsOfManyQueues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`INSERT INTO ojs.queues (name) SELECT 'q' || lpad((1100 - n)::text, 4, '0') FROM generate_series(1, 1001) n`)
	queues, total, err := b.Pools.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, total)
	require.Len(t, queues, 1000)
	for i, q := range queues {
		require.Equal(t, fmt.Sprintf("q%04d", 99+i), q.Name)
	}
}
