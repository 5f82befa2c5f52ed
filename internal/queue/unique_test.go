package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

var defaultStates = []ojs.JobState{ojs.StateAvailable, ojs.StateActive, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending}

// uniqueJob is a job that is identified by a text.
func uniqueJob(key, onConflict string, change ...func(j *job.Job)) *job.Job {
	return domaintest.With(func(j *job.Job) {
		j.Unique = &job.Unique{Keys: []string{"type"}, Text: key, States: defaultStates, OnConflict: onConflict}
		for _, f := range change {
			f(j)
		}
	})
}

func states(list ...ojs.JobState) func(j *job.Job) {
	return func(j *job.Job) { j.Unique.States = list }
}

func scheduledIn(d time.Duration) func(j *job.Job) {
	return func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: d} }
}

func pending(j *job.Job) { j.Pending = true }

// requireDuplicate checks that a job was refused because of another one.
func requireDuplicate(t *testing.T, err error, existing *job.Record) {
	t.Helper()
	wire, ok := errors.AsType[*ojs.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "duplicate", wire.Code)
	require.Equal(t, spec.FormatID(existing.ID), wire.Details["existing_job_id"])
	require.EqualValues(t, existing.State, wire.Details["existing_job_state"])
	require.Equal(t, existing.UniqueKey.String, wire.Details["unique_key"])
	require.Len(t, existing.UniqueKey.String, 64)
}

func TestUnique(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()

	t.Run("RejectStoresNothing", func(t *testing.T) {
		first := b.Enqueued(uniqueJob("reject", "reject"))[0]
		_, err := b.Enqueue(ctx, uniqueJob("reject", "reject"))
		requireDuplicate(t, err, first)
		_, err = b.Enqueue(ctx, uniqueJob("reject", "reject", func(j *job.Job) { j.ID, j.ClientID = job.NewID(), true }))
		requireDuplicate(t, err, first)
		other := b.Enqueued(uniqueJob("other", "reject"))[0]
		require.NotEqual(t, first.UniqueKey, other.UniqueKey)
		require.Equal(t, []string{"job.enqueued>available"}, b.EventTypes(first.ID))
		require.Equal(t, `{"unique_key":"`+first.UniqueKey.String+`"}`, b.One(`SELECT data::text FROM ojs.events WHERE job_id = $1`, first.ID))
	})

	t.Run("IgnoreAnswersWithTheExistingJob", func(t *testing.T) {
		first := b.Enqueued(uniqueJob("ignore", "ignore"))[0]
		again := uniqueJob("ignore", "ignore")
		got, err := b.Enqueue(ctx, again)
		require.NoError(t, err)
		require.True(t, again.Outcome.Deduplicated)
		require.Equal(t, first.ID, got.ID)
		require.Equal(t, `[1]`, string(got.Args))
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE unique_key = $1`, first.UniqueKey))
	})

	t.Run("ReplaceCancelsAllThatBlock", func(t *testing.T) {
		free := states(ojs.StateCompleted)
		old := b.Enqueued(uniqueJob("replace", "reject", free), uniqueJob("replace", "reject", free, scheduledIn(time.Hour)), uniqueJob("replace", "reject", free, pending))
		fresh := uniqueJob("replace", "replace")
		got, err := b.Enqueue(ctx, fresh)
		require.NoError(t, err)
		require.NotEqual(t, old[0].ID, got.ID)
		require.Equal(t, "available", got.State, "the request counts, not the replaced job")
		require.Len(t, fresh.Outcome.Replaced, 3)
		for _, o := range old {
			require.Equal(t, ojs.StateCancelled, b.State(o.ID))
			require.JSONEq(t, `{"cancelled_by":"system:unique","reason":"replaced by `+spec.FormatID(got.ID)+`"}`,
				b.One(`SELECT data::text FROM ojs.events WHERE job_id = $1 AND type = 'job.cancelled'`, o.ID))
		}
	})

	t.Run("ReplaceCancelsARunningJob", func(t *testing.T) {
		running := b.Enqueued(uniqueJob("running", "reject", func(j *job.Job) { j.Queue = "running" }))[0]
		require.Len(t, b.Fetched(1, "running"), 1)
		b.Enqueued(uniqueJob("running", "replace"))
		acked, err := b.Complete(ctx, job.Ack{JobID: running.ID, WorkerID: "w1", Attempt: -1})
		require.NoError(t, err)
		require.Equal(t, "cancelled", acked.State, "so its worker learns it")
		require.Equal(t, "active", acked.PreviousState.String)
	})

	t.Run("ReplaceExceptScheduleTakesTheTimeOfTheOldest", func(t *testing.T) {
		old := b.Enqueued(uniqueJob("schedule", "reject", scheduledIn(time.Hour)))[0]
		got, err := b.Enqueue(ctx, uniqueJob("schedule", "replace_except_schedule", pending, func(j *job.Job) { j.Extra = []byte(`{"scheduled_at":"x","tags":["a"]}`) }))
		require.NoError(t, err)
		require.Equal(t, "scheduled", got.State)
		require.Equal(t, old.ScheduledAt, got.ScheduledAt)
		require.JSONEq(t, `{"tags":["a"],"scheduled_at":"`+spec.FormatTime(old.ScheduledAt.Time)+`"}`, string(got.Extra))
		require.Equal(t, ojs.StateCancelled, b.State(old.ID))

		waiting := b.Enqueued(uniqueJob("schedule2", "reject"))[0]
		got, err = b.Enqueue(ctx, uniqueJob("schedule2", "replace_except_schedule"))
		require.NoError(t, err)
		require.Equal(t, "available", got.State)
		require.Equal(t, ojs.StateCancelled, b.State(waiting.ID))
	})

	t.Run("OnlyTheStatesOfTheRequestCount", func(t *testing.T) {
		first := b.Enqueued(uniqueJob("states", "reject", func(j *job.Job) { j.Queue = "states" }))[0]
		require.Len(t, b.Fetched(1, "states"), 1)
		second := b.Enqueued(uniqueJob("states", "reject", states(ojs.StateAvailable)))[0]
		_, err := b.Enqueue(ctx, uniqueJob("states", "reject"))
		first.State = "active"
		requireDuplicate(t, err, first)
		_, err = b.Complete(ctx, job.Ack{JobID: first.ID, Attempt: -1})
		require.NoError(t, err)
		_, err = b.Enqueue(ctx, uniqueJob("states", "reject"))
		requireDuplicate(t, err, second)
		_, err = b.Enqueue(ctx, uniqueJob("states", "reject", states(ojs.StateCompleted)))
		first.State = "completed"
		requireDuplicate(t, err, first)
		_, err = b.Cancel(ctx, second.ID, queue.Cancel{By: "x"})
		require.NoError(t, err)
		third := b.Enqueued(uniqueJob("states", "reject"))[0]
		got, err := b.Enqueue(ctx, uniqueJob("states", "ignore", states(ojs.StateCancelled, ojs.StateCompleted)))
		require.NoError(t, err)
		require.Equal(t, first.ID, got.ID, "the oldest")
		b.Enqueued(uniqueJob("states", "replace", states(ojs.StateCompleted)))
		require.Equal(t, ojs.StateCompleted, b.State(first.ID), "what has ended stays")
		require.Equal(t, ojs.StateAvailable, b.State(third.ID))
	})

	t.Run("DiscardedJobsDoNotCountByDefault", func(t *testing.T) {
		dead := b.DeadLetter(func(j *job.Job) { j.Queue, j.Unique = "dead", uniqueJob("dead", "reject").Unique })
		_, err := b.Enqueue(ctx, uniqueJob("dead", "reject", states(ojs.StateDiscarded)))
		requireDuplicate(t, err, dead)
		b.Enqueued(uniqueJob("dead", "reject"))
	})

	t.Run("ThePeriodOfTheRequestCounts", func(t *testing.T) {
		first := b.Enqueued(uniqueJob("period", "reject"))[0]
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '1 hour' WHERE id = $1`, first.ID)
		within := func(d time.Duration) func(j *job.Job) { return func(j *job.Job) { j.Unique.Period = d } }
		_, err := b.Enqueue(ctx, uniqueJob("period", "reject", within(61*time.Minute)))
		requireDuplicate(t, err, first)
		second := b.Enqueued(uniqueJob("period", "reject", within(59*time.Minute)))[0]
		_, err = b.Enqueue(ctx, uniqueJob("period", "reject", within(59*time.Minute)))
		requireDuplicate(t, err, second)
		_, err = b.Enqueue(ctx, uniqueJob("period", "reject"))
		requireDuplicate(t, err, first)

		// It counts from the creation of a job also when that ended a moment ago.
		ended := func(j *job.Job) { states(ojs.StateCompleted)(j); j.Unique.Period = 59 * time.Minute }
		old := b.Enqueued(uniqueJob("ended", "reject", func(j *job.Job) { j.Queue = "ended" }))[0]
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '1 hour' WHERE id = $1`, old.ID)
		_, err = b.Complete(ctx, job.Ack{JobID: b.Fetched(1, old.Queue)[0].ID, Attempt: -1})
		require.NoError(t, err)
		b.Enqueued(uniqueJob("ended", "reject", ended))
	})

	t.Run("AClientsKeyIsUsedInsteadOfAFingerprint", func(t *testing.T) {
		key := func(j *job.Job) { j.Unique.Key = strings.Repeat("a", 64) }
		first := b.Enqueued(uniqueJob("x", "reject", key))[0]
		require.Equal(t, strings.Repeat("a", 64), first.UniqueKey.String)
		_, err := b.Enqueue(ctx, uniqueJob("y", "reject", key))
		requireDuplicate(t, err, first)
	})

	t.Run("AJobOfTheSameIDThatWasRefusedReplacesNothing", func(t *testing.T) {
		for _, done := range []bool{false, true} {
			name := fmt.Sprint("id", done)
			taken := b.Enqueued(domaintest.With(func(j *job.Job) { j.Queue = name }))[0]
			if done {
				b.Fetched(1, name)
				_, err := b.Complete(ctx, job.Ack{JobID: taken.ID, Attempt: -1})
				require.NoError(t, err)
			}
			held := b.Enqueued(uniqueJob(name, "reject"))[0]
			named := func(j *job.Job) { j.ID, j.ClientID = taken.ID, true }
			stored, errs := b.EnqueueEach(ctx, []*job.Job{uniqueJob(name, "replace", named), uniqueJob(name, "ignore"), uniqueJob(name+"free", "reject")})
			require.ErrorContains(t, errs[0], "A job with id")
			require.Equal(t, held.ID, stored[1].ID)
			require.NotNil(t, stored[2])
			require.Equal(t, ojs.StateAvailable, b.State(held.ID))
		}
	})
}

// Jobs of one flush get the outcomes that they would get one after the other.
func TestUniqueInOneFlush(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()

	t.Run("EarlierOnesCount", func(t *testing.T) {
		jobs := []*job.Job{
			uniqueJob("a", "reject"), uniqueJob("a", "reject"), uniqueJob("a", "ignore"), uniqueJob("b", "ignore"), domaintest.NewJob("q"),
			uniqueJob("a", "replace", scheduledIn(time.Hour)), uniqueJob("a", "reject", states(ojs.StateAvailable)), uniqueJob("a", "replace_except_schedule"),
		}
		stored, errs := b.EnqueueEach(ctx, jobs)
		requireDuplicate(t, errs[1], stored[0])
		require.Equal(t, stored[0], stored[2])
		require.True(t, jobs[2].Outcome.Deduplicated)
		require.Equal(t, []string{"job.enqueued>available", "job.cancelled:available>cancelled"}, b.EventTypes(stored[0].ID))
		require.Equal(t, []string{"job.scheduled>scheduled", "job.cancelled:scheduled>cancelled"}, b.EventTypes(stored[5].ID))
		require.Equal(t, []string{"job.enqueued>available", "job.cancelled:available>cancelled"}, b.EventTypes(stored[6].ID))
		require.Equal(t, "scheduled", stored[7].State, "the oldest that blocked is the scheduled one")
		require.Equal(t, stored[5].ScheduledAt, stored[7].ScheduledAt)
		require.JSONEq(t, `{"scheduled_at":"`+spec.FormatTime(stored[5].ScheduledAt.Time)+`"}`, string(stored[7].Extra))
	})

	t.Run("AtomicRejectStoresNothing", func(t *testing.T) {
		before := b.Number(`SELECT count(*) FROM ojs.events`)
		held := b.Enqueued(uniqueJob("c", "reject"))[0]
		_, at, err := b.EnqueueAll(ctx, []*job.Job{domaintest.NewJob("q"), uniqueJob("d", "replace"), uniqueJob("c", "reject")})
		requireDuplicate(t, err, held)
		require.Equal(t, 2, at)
		_, at, err = b.EnqueueAll(ctx, []*job.Job{uniqueJob("c", "replace"), uniqueJob("d", "reject"), uniqueJob("d", "reject")})
		require.Error(t, err)
		require.Equal(t, 2, at)
		require.Equal(t, ojs.StateAvailable, b.State(held.ID))
		require.Equal(t, before+1, b.Number(`SELECT count(*) FROM ojs.events`))

		jobs := []*job.Job{uniqueJob("c", "ignore"), uniqueJob("e", "ignore"), uniqueJob("e", "ignore")}
		stored, _, err := b.EnqueueAll(ctx, jobs)
		require.NoError(t, err)
		require.Equal(t, held.ID, stored[0].ID)
		require.Equal(t, stored[1].ID, stored[2].ID)
		require.Equal(t, []bool{true, false, true}, []bool{jobs[0].Outcome.Deduplicated, jobs[1].Outcome.Deduplicated, jobs[2].Outcome.Deduplicated})
		require.False(t, queue.Deduplicated(jobs))
		require.True(t, queue.Deduplicated(jobs[2:]))
	})

	// Random calls in one insert, and one after the other with other keys, have the same outcome.
	t.Run("IsAsOneAfterTheOther", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		pick := func(list ...string) string { return list[random.IntN(len(list))] }
		for round := range 20 {
			make1 := func(prefix, key, conflict string, kind int, some bool) *job.Job {
				j := uniqueJob(prefix+key, conflict)
				j.Pending = kind == 0
				if kind == 1 {
					j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour}
				}
				if some {
					j.Unique.States = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateCancelled}
				}
				return j
			}
			var together, apart []*job.Job
			for range 30 {
				key, conflict, kind, some := pick("a", "b", "c"), pick("reject", "ignore", "replace", "replace_except_schedule"), random.IntN(4), random.IntN(2) == 0
				together = append(together, make1(fmt.Sprint("t", round), key, conflict, kind, some))
				apart = append(apart, make1(fmt.Sprint("s", round), key, conflict, kind, some))
			}
			all, errs := b.EnqueueEach(ctx, together)
			one, oneErrs := make([]*job.Record, len(apart)), make([]error, len(apart))
			for i, j := range apart {
				one[i], oneErrs[i] = b.Enqueue(ctx, j)
			}
			if errs == nil {
				errs = make([]error, len(together))
			}
			for i := range all {
				require.Equal(t, oneErrs[i] == nil, errs[i] == nil, "%d %d: %v, %v", round, i, oneErrs[i], errs[i])
				require.Equal(t, apart[i].Outcome.Deduplicated, together[i].Outcome.Deduplicated, "%d %d", round, i)
				if errs[i] == nil {
					require.Equal(t, one[i].State, all[i].State, "%d %d", round, i)
					require.Equal(t, b.EventTypes(one[i].ID), b.EventTypes(all[i].ID), "%d %d", round, i)
				}
			}
		}
	})
}

// N concurrent identical enqueues over two nodes store one job.
func TestUniqueConcurrently(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nodes := []*bundle{b, b.node()}
	for round := range 5 {
		var stored, refused atomic.Int32
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				key := fmt.Sprint(round)
				if i%4 > 0 {
					if _, err := nodes[i%2].Enqueue(context.Background(), uniqueJob(key, "reject")); err == nil {
						stored.Add(1)
						return
					}
				} else if _, _, err := nodes[i/4%2].EnqueueAll(context.Background(), []*job.Job{domaintest.NewJob("q"), uniqueJob(key, "reject")}); err == nil {
					stored.Add(1)
					return
				}
				refused.Add(1)
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, stored.Load())
		require.EqualValues(t, 39, refused.Load())
		require.Equal(t, round+1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE unique_key IS NOT NULL`))
	}
}

// Many producers over few keys, single and in batches, with workers beside them: every call succeeds, and one job of each key is left.
func TestUniqueReplaceNeverDeadlocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nodes := []*bundle{b, b.node()}
	keys := []string{"a", "b", "c"}
	var producers, workers sync.WaitGroup
	done := make(chan struct{})
	for i := range 10 {
		producers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range 10 {
				jobs := make([]*job.Job, 1+random.IntN(4))
				for n := range jobs {
					jobs[n] = uniqueJob(keys[random.IntN(len(keys))], "replace")
				}
				var err error
				switch node := nodes[random.IntN(2)]; random.IntN(3) {
				case 0:
					_, err = node.Enqueue(context.Background(), jobs[0])
				case 1:
					_, _, err = node.EnqueueAll(context.Background(), jobs)
				case 2:
					_, errs := node.EnqueueEach(context.Background(), jobs)
					err = errors.Join(errs...)
				}
				if err != nil {
					t.Errorf("%v", err)
				}
			}
		})
	}
	for _, node := range nodes {
		workers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				jobs, _ := node.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w"})
				for _, j := range jobs {
					_, _ = node.FailEach(context.Background(), []job.Nack{{JobID: j.ID, WorkerID: "w", Attempt: -1, Requeue: true}})
				}
			}
		})
	}
	producers.Wait()
	close(done)
	workers.Wait()
	require.Equal(t, len(keys), b.Number(`SELECT count(*) FROM ojs.jobs`))
	require.Equal(t, len(keys), b.Number(`SELECT count(DISTINCT unique_key) FROM ojs.jobs`))
}

// An application that keeps the transaction of its ojs.enqueue open delays the jobs of its key, and no others.
func TestUniqueKeyThatIsLocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.SetLockedKeyTime(domaintest.WaitFor) // a busy machine must enqueue all others meanwhile
	first := b.Enqueued(uniqueJob("locked", "reject"))[0]
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(('x' || left($1, 16))::bit(64)::bigint)`, first.UniqueKey.String)
	require.NoError(t, err)

	answered := make(chan error, 1)
	go func() {
		_, err := b.Enqueue(context.Background(), uniqueJob("locked", "replace"))
		answered <- err
	}()
	for range 50 {
		b.Enqueued(uniqueJob("free", "replace"), domaintest.NewJob("q"))
	}
	require.Empty(t, answered, "the key is locked")
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-answered)
	require.Equal(t, ojs.StateCancelled, b.State(first.ID))
}

// So does one that has cancelled a job which would be replaced. Callers that have waited for long are told so, all at once.
func TestUniqueJobThatIsLocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.SetLockedKeyTime(time.Second)
	held := b.Enqueued(uniqueJob("locked", "reject"), uniqueJob("free", "reject"))
	tx := b.Lock(held[0].ID)
	var wg sync.WaitGroup
	started := time.Now()
	for range 20 {
		wg.Go(func() {
			_, err := b.Enqueue(context.Background(), uniqueJob("locked", "replace"))
			if wire, ok := errors.AsType[*ojs.Error](err); !ok || wire.Type != string(ojs.ErrTimeout) {
				t.Errorf("%v", err)
			}
		})
	}
	for range 10 {
		stored, errs := b.EnqueueEach(t.Context(), []*job.Job{uniqueJob("free", "replace"), domaintest.NewJob("q")})
		require.Nil(t, errs)
		require.Len(t, stored, 2)
	}
	wg.Wait()
	require.Less(t, time.Since(started), 15*time.Second, "not one after the other")
	stored, errs := b.EnqueueEach(t.Context(), []*job.Job{uniqueJob("locked", "replace"), uniqueJob("free", "ignore")})
	domaintest.RequireCode(t, errs[0], ojs.ErrTimeout)
	require.NotNil(t, stored[1])
	require.NoError(t, tx.Rollback(t.Context()))
	b.Enqueued(uniqueJob("locked", "replace"))
	require.Equal(t, ojs.StateCancelled, b.State(held[0].ID))
}

// A manual retry must not make a second job of a key.
func TestUniqueManualRetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	policy := func(j *job.Job) { j.Unique = uniqueJob("k", "reject").Unique }
	first, second := b.DeadLetter(policy), b.DeadLetter(policy)
	live := b.Enqueued(uniqueJob("k", "reject"))[0]
	_, err := b.Retry(ctx, first.ID, nil)
	requireDuplicate(t, err, live)
	require.Equal(t, ojs.StateDiscarded, b.State(first.ID))

	retry := func(ids ...[16]byte) (res queue.BulkResult) {
		slices.SortFunc(ids, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
		require.NoError(t, b.InTx(ctx, func(tx *queue.Tx) (err error) {
			res, err = tx.Bulk(ctx, queue.BulkChange{Op: job.BulkRetry, IDs: ids, States: queue.Eligible(job.BulkRetry)})
			return err
		}))
		return res
	}
	plain := b.DeadLetter(func(j *job.Job) { j.Queue = "plain" })
	res := retry(first.ID, second.ID, plain.ID)
	require.Equal(t, map[[16]byte]bool{plain.ID: true}, res.Changed)
	require.Equal(t, map[[16]byte][16]byte{first.ID: live.ID, second.ID: live.ID}, res.Duplicates)

	_, err = b.Cancel(ctx, live.ID, queue.Cancel{By: "x"})
	require.NoError(t, err)
	res = retry(first.ID, second.ID)
	require.Equal(t, map[[16]byte]bool{first.ID: true}, res.Changed, "one of the two")
	require.Equal(t, map[[16]byte][16]byte{second.ID: first.ID}, res.Duplicates)
	require.Equal(t, `{"unique_key":"`+first.UniqueKey.String+`"}`,
		b.One(`SELECT data::text FROM ojs.events WHERE job_id = $1 ORDER BY seq DESC LIMIT 1`, first.ID))
	_, err = b.Enqueue(ctx, uniqueJob("k", "reject"))
	first.State = "available"
	requireDuplicate(t, err, first)
}

// A manual retry takes the lock of the key before it looks for another job of it, as an enqueue does.
func TestUniqueManualRetryWaitsForTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dead := b.DeadLetter(func(j *job.Job) { j.Unique = uniqueJob("k", "reject").Unique })
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // or the pool would wait for it when the test fails
	_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(('x' || left($1, 16))::bit(64)::bigint)`, dead.UniqueKey.String)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := b.Retry(context.Background(), dead.ID, nil)
		done <- err
	}()
	require.Eventually(t, func() bool {
		return len(done) > 0 || b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, domaintest.WaitFor, time.Millisecond)
	require.Empty(t, done)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, domaintest.Await(t, done))
	require.Equal(t, ojs.StateAvailable, b.State(dead.ID))
}

// The event job.enqueued has the key whenever a job becomes available.
func TestUniqueKeyInEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	j := b.Enqueued(uniqueJob("later", "reject", scheduledIn(time.Millisecond)))[0]
	b.ApplyDueUntilLeft(j.ID, ojs.StateScheduled)
	waiting := b.Enqueued(uniqueJob("pending", "reject", pending))[0]
	_, err := b.Activate(t.Context(), waiting.ID)
	require.NoError(t, err)
	for _, j := range []*job.Record{j, waiting} {
		require.Equal(t, j.UniqueKey.String, b.One(`SELECT data ->> 'unique_key' FROM ojs.events WHERE job_id = $1 AND type = 'job.enqueued'`, j.ID))
	}
}

// A transaction of another domain gets an outcome for each job.
func TestUniqueInsertTx(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := b.Enqueued(uniqueJob("k", "reject"))[0]
	tx, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	bypass := uniqueJob("k", "reject", func(j *job.Job) { j.UniqueKey, j.Unique = held.UniqueKey.String, nil })
	res, err := b.InsertTx(t.Context(), tx, []*job.Job{
		uniqueJob("k", "reject"), uniqueJob("k", "ignore"), uniqueJob("new", "reject"), bypass, domaintest.With(func(j *job.Job) { j.ID, j.ClientID = held.ID, true }),
	})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	res.AfterCommit(t.Context())
	requireDuplicate(t, res.Refused(0), held)
	require.Equal(t, held.ID, res.Existing(1).ID)
	require.Nil(t, res.Refused(1))
	require.NotNil(t, res.Record(2))
	require.Equal(t, held.UniqueKey, res.Record(3).UniqueKey, "the caller has settled that by other means")
	require.Nil(t, res.Refused(3))
	require.ErrorContains(t, res.Refused(4), "A job with id")
	require.Len(t, res.Records(), 2)
}

// Jobs that have no id get one each.
func TestInsertTxGivesIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	jobs := []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q")}
	for _, j := range jobs {
		j.ID = [16]byte{}
	}
	res, err := b.InsertTx(t.Context(), tx, jobs)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	res.AfterCommit(t.Context())
	ids := map[[16]byte]bool{{}: true}
	for _, r := range res.Records() {
		require.False(t, ids[r.ID])
		ids[r.ID] = true
		require.Equal(t, ojs.StateAvailable, b.State(r.ID))
	}
	require.Len(t, ids, 4)
}
