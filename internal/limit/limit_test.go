package limit_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	return &bundle{domaintest.New(t, change...)}
}

func (b *bundle) node(change ...func(*domaintest.Config)) *bundle {
	return &bundle{b.Bundle.Node(change...)}
}

// stopped makes a node stop between its commits and what follows from them for jobs that wait for a limit.
func stopped(c *domaintest.Config) {
	c.Hooks = func(h *queue.Hooks) { h.LimitedJobs = func(context.Context, []string) {} }
}

// limited is a job of queue q with a rate limit, given as JSON.
func limited(t testing.TB, limit string, options ...string) *job.Job {
	t.Helper()
	return in(t, "q", limit, options...)
}

func in(t testing.TB, queue, limit string, options ...string) *job.Job {
	t.Helper()
	body := fmt.Sprintf(`{"type":"test.job","args":[1],"options":{"queue":%q,"rate_limit":%s`, queue, limit)
	for _, o := range options {
		body += "," + o
	}
	j, wire := job.DecodeItem([]byte(body+"}}"), job.Limits{})
	require.Nil(t, wire)
	return j
}

func (b *bundle) added(j *job.Job) [16]byte {
	b.T.Helper()
	stored, err := b.Enqueue(b.T.Context(), j)
	require.NoError(b.T, err)
	require.Equal(b.T, "available", stored.State)
	return stored.ID
}

// fetched are the ids of up to ten jobs that a fetch gets.
func (b *bundle) fetched(queues ...string) [][16]byte {
	b.T.Helper()
	if queues == nil {
		queues = []string{"q"}
	}
	jobs := b.Fetched(10, queues...)
	ids := make([][16]byte, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	return ids
}

func (b *bundle) ack(ids ...[16]byte) {
	b.T.Helper()
	for _, id := range ids {
		_, err := b.Complete(b.T.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: job.AnyAttempt})
		require.NoError(b.T, err)
	}
}

func TestConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const two = `{"key":"k","concurrency":2}`
	first, second, third := b.added(limited(t, two)), b.added(limited(t, two)), b.added(limited(t, two))
	plain := b.Enqueued(domaintest.NewJob("q"))[0].ID
	require.Equal(t, [][16]byte{first, second, plain}, b.fetched(), "what is limited blocks nothing behind it")
	require.Empty(t, b.fetched())
	require.Equal(t, ojs.StateAvailable, b.State(third))
	b.ack(second)
	require.Equal(t, [][16]byte{third}, b.fetched())
	b.ack(first, third, plain)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.limit_pending`))
}

func TestEveryEndLetsAnotherStart(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bundle, id [16]byte){
		"Complete": func(b *bundle, id [16]byte) { b.ack(id) },
		"Cancel": func(b *bundle, id [16]byte) {
			_, err := b.Cancel(b.T.Context(), id, queue.Cancel{By: "test"})
			require.NoError(b.T, err)
		},
		"Retry": func(b *bundle, id [16]byte) {
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, WorkerID: "w1", Attempt: job.AnyAttempt, Error: job.WorkerError{Code: "broken", Retryable: true}})
			require.NoError(b.T, err)
		},
		"Discard": func(b *bundle, id [16]byte) {
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, WorkerID: "w1", Attempt: job.AnyAttempt, Error: job.WorkerError{Code: "broken", RetryableSet: true}})
			require.NoError(b.T, err)
		},
		"LostLease": func(b *bundle, id [16]byte) {
			b.Exec(`UPDATE ojs.jobs SET lease_until = now(), due_at = now() WHERE id = $1`, id)
			b.ApplyDueUntilLeft(id, ojs.StateActive)
		},
		"Bulk": func(b *bundle, id [16]byte) {
			b.Exec(`SELECT ojs.cancel($1)`, id)
			b.Exec(`UPDATE ojs.limit_pending SET due_at = now()`)
			_, err := b.Limits.AdmitDue(b.T.Context())
			require.NoError(b.T, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			first, second := b.added(limited(t, `{"key":"k","concurrency":1}`)), b.added(limited(t, `{"key":"k","concurrency":1}`))
			require.Equal(t, [][16]byte{first}, b.fetched())
			end(b, first)
			require.Equal(t, [][16]byte{second}, b.fetched())
		})
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := func(priority string) *job.Job {
		return limited(t, `{"key":"k","concurrency":1}`, `"priority":`+priority)
	}
	low, middle, high, late := b.added(one("-5")), b.added(one("0")), b.added(one("5")), b.added(one("5"))
	admitted := func() int { return b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'job.admitted'`) }
	before := admitted()
	require.NoError(t, b.Limits.Admit(t.Context(), []string{"k"}))
	require.Equal(t, before, admitted(), "a job gives way to a more urgent one only")
	for _, want := range [][16]byte{high, late, middle, low} {
		require.Equal(t, [][16]byte{want}, b.fetched())
		b.ack(want)
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rate = `{"key":"k","limit":2,"period":"PT2S"}` // a busy machine must look at the third job meanwhile
	first, second, third := b.added(limited(t, rate)), b.added(limited(t, rate)), b.added(limited(t, rate))
	require.Equal(t, [][16]byte{first, second}, b.fetched())
	b.ack(first, second)
	require.Empty(t, b.fetched(), "ends let none start")
	require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.limit_starts`))
	b.untilFetched(third)
	require.GreaterOrEqual(t, b.Number(`SELECT (date_part('epoch', max(time) - min(time)) * 1000)::int FROM ojs.events WHERE type = 'job.started'`), 2000)
	b.ack(third)
	time.Sleep(2010 * time.Millisecond) // nothing happens then, so there is nothing to await
	_, err := b.Limits.AdmitDue(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.limit_starts`), "what no longer counts is deleted")
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.limit_pending`))
}

// untilFetched looks for what is due until a fetch gets the job.
func (b *bundle) untilFetched(id [16]byte) {
	b.T.Helper()
	require.Eventually(b.T, func() bool {
		_, err := b.Limits.AdmitDue(b.T.Context())
		require.NoError(b.T, err)
		return slices.Contains(b.fetched(), id)
	}, domaintest.WaitFor, 5*time.Millisecond)
}

// TestMissingPartition: a job does not wait for ever for a partition that somebody has deleted by hand.
func TestMissingPartition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const one = `{"key":"k","concurrency":1}`
	first, second := b.added(limited(t, one)), b.added(limited(t, one))
	require.Equal(t, [][16]byte{first}, b.fetched())
	b.Exec(`DELETE FROM ojs.limits WHERE key = 'k'`)
	b.ack(first)
	b.untilFetched(second)
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const throttle = `{"key":"k","throttle":{"limit":10,"period":"PT15S"}}` // a start every 1.5 s
	var ids [][16]byte
	for range 3 {
		ids = append(ids, b.added(limited(t, throttle)))
	}
	require.Equal(t, ids[:1], b.fetched())
	require.Empty(t, b.fetched())
	b.untilFetched(ids[1])
	b.untilFetched(ids[2])
	require.GreaterOrEqual(t, b.Number(`SELECT (date_part('epoch', max(time) - min(time)) * 1000)::int FROM ojs.events WHERE type = 'job.started'`), 3000)
}

func TestBlockedByWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.added(limited(t, `{"key":"k","concurrency":2}`)), b.added(limited(t, `{"key":"k","concurrency":2}`))
	require.Equal(t, first, b.Fetched(1, "q")[0].ID)
	until := time.Now().Add(2 * time.Second)
	_, err := b.Fail(t.Context(), job.Nack{JobID: first, WorkerID: "w1", Attempt: job.AnyAttempt, Error: job.WorkerError{Code: "busy", RetryableSet: true, RateLimitUntil: until}})
	require.NoError(t, err)
	require.Empty(t, b.fetched(), "the second was admitted before")
	b.untilFetched(second)
	require.False(t, time.Now().Before(until))
}

// A block that a worker has reported is not made shorter by another one.
func TestLongerBlockHolds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`SELECT ojs.limit_set('k', '{"concurrency":1}')`)
	b.Exec(`SELECT ojs.limit_failed('k', now() + interval '1 hour')`)
	b.Exec(`SELECT ojs.limit_failed('k', now() + interval '1 minute')`)
	require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.limits WHERE blocked_until > now() + interval '59 minutes'`))
	b.Exec(`UPDATE ojs.limit_pending SET due_at = now()`)
	_, err := b.Limits.AdmitDue(t.Context())
	require.NoError(t, err)
}

// An override ends by itself, for jobs with a key and for a queue.
func TestOverrideEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	none := &job.LimitOverride{LimitPolicy: job.LimitPolicy{Concurrency: new(int64)}, ExpiresAt: time.Now().Add(time.Hour)}
	first := b.added(limited(t, `{"key":"k","concurrency":1}`))
	_, err := b.Limits.SetOverride(t.Context(), "k", none)
	require.NoError(t, err)
	require.Empty(t, b.fetched())
	b.Exec(`UPDATE ojs.limits SET override_until = now()`)
	b.Exec(`UPDATE ojs.limit_pending SET due_at = now()`)
	b.untilFetched(first)

	b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('other', '{"concurrency":1}')`)
	require.NoError(t, b.Configured.Refresh(t.Context()))
	second := b.Enqueued(domaintest.NewJob("other"))[0].ID
	_, err = b.Limits.SetOverride(t.Context(), "queue:other", none)
	require.NoError(t, err)
	require.Empty(t, b.fetched("other"))
	b.Exec(`UPDATE ojs.limits SET override_until = now()`)
	require.Equal(t, [][16]byte{second}, b.fetched("other"))
}

// Starts count for the rate although the interval of the throttle is over.
func TestRateAndThrottle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const both = `{"key":"k","rate":{"limit":1,"period":"PT1H"},"throttle":{"limit":100,"period":"PT1S"}}`
	first := b.added(limited(t, both))
	b.added(limited(t, both))
	require.Equal(t, [][16]byte{first}, b.fetched())
	require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.limit_pending WHERE timer`), "the start sets a timer: no job may end before")
	b.Exec(`UPDATE ojs.limit_starts SET at = at - interval '1 minute'`)
	b.ack(first)
	require.Empty(t, b.fetched())
	require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.limit_starts`))
}

// More jobs than one statement admits.
func TestManyAdmitted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.added(limited(t, `{"key":"k","concurrency":0}`))
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, enqueued_at, args, limit_key, limit_seq)
		SELECT ojs.new_id(now()), 't', 'q', 'available', now(), now(), '[]', 'k', nextval('ojs.ready_seq') FROM generate_series(1, 1500)`)
	_, err := b.Limits.SetOverride(t.Context(), "k", &job.LimitOverride{LimitPolicy: job.LimitPolicy{Concurrency: new(int64(5000))}})
	require.NoError(t, err)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE limit_seq IS NOT NULL`))
}

// One pass lets at most 100 more urgent jobs take the places of others; the next one goes on.
func TestManyMoreUrgentJobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const most = 110
	batch := func(priority string) (jobs []*job.Job) {
		for range most {
			jobs = append(jobs, limited(t, fmt.Sprintf(`{"key":"k","concurrency":%d}`, most), `"priority":`+priority))
		}
		return jobs
	}
	admitted := func() []string {
		return b.Texts(`SELECT priority || ' ' || count(*) FROM ojs.jobs WHERE ready_seq IS NOT NULL GROUP BY priority ORDER BY priority`)
	}
	b.Enqueued(batch("-5")...)
	b.node(stopped).Enqueued(batch("5")...)
	require.Equal(t, []string{"-5 110"}, admitted())
	for _, want := range [][]string{{"-5 10", "5 100"}, {"5 110"}, {"5 110"}} {
		require.NoError(t, b.Limits.Admit(t.Context(), []string{"k"}))
		require.Equal(t, want, admitted())
	}
}

// A start counts for the partition of its job, whatever the others permit.
func TestStartsOfOtherPartitions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := b.added(limited(t, `{"key":"a","concurrency":5}`))
	first, second := b.added(limited(t, `{"key":"b","rate":{"limit":1,"period":"PT1H"}}`)), b.added(limited(t, `{"key":"b","rate":{"limit":1,"period":"PT1H"}}`))
	after := b.added(limited(t, `{"key":"c","concurrency":5}`))
	require.Equal(t, [][16]byte{before, first, after}, b.fetched())
	require.Equal(t, []string{"b"}, b.Texts(`SELECT key FROM ojs.limit_starts`))
	b.ack(before, first, after)
	require.Empty(t, b.fetched())
	require.Equal(t, ojs.StateAvailable, b.State(second))
}

// A job that another transaction has locked, for example a claim, is left out: nothing waits for its row.
func TestLockedJobs(t *testing.T) {
	t.Parallel()

	t.Run("KeepTheirPlaces", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var ids [][16]byte
		for range 3 {
			ids = append(ids, b.added(limited(t, `{"key":"k","concurrency":3}`)))
		}
		lock := b.Lock(ids[1])
		_, err := b.Limits.SetOverride(t.Context(), "k", &job.LimitOverride{LimitPolicy: job.LimitPolicy{Concurrency: new(int64)}})
		require.NoError(t, err)
		require.NoError(t, lock.Rollback(t.Context()))
		require.Equal(t, [][16]byte{ids[1]}, b.fetched())
	})

	t.Run("LetTheNextOneStart", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var ids [][16]byte
		for range 3 {
			ids = append(ids, b.added(limited(t, `{"key":"k","concurrency":1}`)))
		}
		require.Equal(t, ids[:1], b.fetched())
		b.Lock(ids[1])
		b.ack(ids[0])
		require.NoError(t, b.Limits.Admit(t.Context(), []string{"k"}))
		require.Equal(t, ids[2:], b.fetched())
	})
}

// Clients see counts of jobs up to 10 000.
func TestShownCountsAreBounded(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	b.added(limited(t, `{"key":"k","concurrency":0}`))
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, enqueued_at, args, limit_key)
		SELECT ojs.new_id(now()), 't', 'q', s.state, now(), now(), '[]', 'k' FROM generate_series(1, 10001), (VALUES ('active'), ('available')) s (state)`)
	p, err := b.Limits.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, []int64{10_000, 10_000}, []int64{p.Active, p.Waiting})
}

func TestPolicyIsReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limit := func(n int) string { return fmt.Sprintf(`{"key":"k","concurrency":%d}`, n) }
	for range 4 {
		b.added(limited(t, limit(3)))
	}
	b.added(limited(t, limit(1)))
	require.Len(t, b.fetched(), 1, "three were admitted before the policy changed")
	b.added(limited(t, limit(2)))
	require.Len(t, b.fetched(), 1)
	version := b.One(`SELECT xmin::text || updated_at FROM ojs.limits`)
	b.Exec(`DELETE FROM ojs.limit_pending`)
	changed := b.One(`SELECT updated_at::text FROM ojs.limits`)
	b.added(limited(t, limit(2)))
	require.Equal(t, changed, b.One(`SELECT updated_at::text FROM ojs.limits`), version)
	b.Exec(`UPDATE ojs.limits SET used_at = now() - interval '1 day'`)
	b.added(limited(t, limit(2)))
	require.Equal(t, changed, b.One(`SELECT updated_at::text FROM ojs.limits WHERE used_at > now() - interval '1 hour'`), "it is used, and the same")
	b.added(limited(t, limit(0)))
	require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.limits WHERE updated_at > $1::timestamptz`, changed))
	require.Empty(t, b.fetched())
	b.added(limited(t, `{"key":"k"}`))
	require.Len(t, b.fetched(), 8)
}

func TestNeverAboveNeverStuck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nodes := []*bundle{b, b.node()}
	const jobs, workers = 200, 16
	for i := range jobs {
		b.added(limited(t, fmt.Sprintf(`{"key":"k%d","concurrency":%d}`, i%2, 1+i%2*2)))
	}
	var mu sync.Mutex
	active, done := map[string]int{}, 0
	var all sync.WaitGroup
	for w := range workers {
		node := nodes[w%2]
		all.Go(func() {
			for deadline := time.Now().Add(domaintest.WaitFor); time.Now().Before(deadline); {
				got, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 2, WorkerID: fmt.Sprint("w", w), Wait: 100 * time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				for _, j := range got {
					mu.Lock()
					if active[j.LimitKey.String]++; active[j.LimitKey.String] > map[string]int{"k0": 1, "k1": 3}[j.LimitKey.String] {
						t.Errorf("%d active of %s", active[j.LimitKey.String], j.LimitKey.String)
					}
					mu.Unlock()
					time.Sleep(time.Millisecond) // the job runs
					mu.Lock()
					active[j.LimitKey.String]--
					done++
					mu.Unlock()
					if _, err := node.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: fmt.Sprint("w", w), Attempt: job.AnyAttempt}); err != nil {
						t.Error(err)
					}
				}
				mu.Lock()
				ended := done == jobs
				mu.Unlock()
				if ended {
					return
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, jobs, done)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs`))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.limit_pending`))
}

// TestLeftOver is about a node that stops between its commit and what follows from it.
func TestLeftOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dying := b.node(stopped)
	first, second := b.added(limited(t, `{"key":"k","concurrency":1}`)), b.added(limited(t, `{"key":"k","concurrency":1}`))
	require.Equal(t, [][16]byte{first}, b.fetched())
	dying.ack(first)
	require.Empty(t, b.fetched())
	next, err := b.Limits.AdmitDue(t.Context())
	require.NoError(t, err)
	require.Positive(t, next)
	require.Empty(t, b.fetched(), "the node has a second for it")
	b.untilFetched(second)

	third := dying.added(limited(t, `{"key":"new","concurrency":1}`))
	require.True(t, b.waits(third))
	b.admitDue()
	require.False(t, b.waits(third))
}

// waits says whether an available job waits for a limit.
func (b *bundle) waits(id [16]byte) bool {
	b.T.Helper()
	return b.One(`SELECT (ready_seq IS NULL)::text FROM ojs.jobs WHERE id = $1 AND state = 'available'`, id) == "true"
}

// admitDue admits jobs as any node does after the second in which the node that made room for them has done so.
func (b *bundle) admitDue() {
	b.T.Helper()
	b.Exec(`UPDATE ojs.limit_pending SET due_at = now()`)
	_, err := b.Limits.AdmitDue(b.T.Context())
	require.NoError(b.T, err)
}
