package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// bound sets the backpressure of a queue, which the nodes know when it returns.
func (b *bundle) bound(name, policy string, others ...*bundle) {
	b.T.Helper()
	b.ConfigureQueue(name, `{"backpressure":`+policy+`}`)
	for _, n := range append(others, b) {
		require.NoError(b.T, n.Configured.Refresh(b.T.Context()))
	}
}

// full requires that the error is that of a full queue.
func full(t testing.TB, err error, depth, bound int64) {
	t.Helper()
	domaintest.RequireCode(t, err, ojs.ErrQueueFull)
	var wire *ojs.Error
	require.ErrorAs(t, err, &wire)
	require.Equal(t, []any{depth, bound}, []any{wire.Details["depth"], wire.Details["bound"]})
}

func (b *bundle) try(change ...func(j *job.Job)) (*job.Record, error) {
	j := domaintest.NewJob("q")
	for _, c := range change {
		c(j)
	}
	return b.Enqueue(b.T.Context(), j)
}

func TestBoundedQueue(t *testing.T) {
	t.Parallel()

	t.Run("RefusesWhatExceedsTheBound", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":3}`)
		b.add("q", 0, "1")
		_, err := b.try(func(j *job.Job) { j.Pending = true })
		require.NoError(t, err)
		_, err = b.try(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} })
		require.NoError(t, err)
		_, err = b.try()
		full(t, err, 3, 3)
		b.add("other", 0, "1")
		first := b.Fetched(1, "q")
		require.Len(t, first, 1) // active jobs take up no room
		_, err = b.Fail(t.Context(), job.Nack{JobID: first[0].ID, Attempt: -1, Error: job.WorkerError{Code: "broken", Retryable: true}})
		require.NoError(t, err)
		require.Equal(t, ojs.StateRetryable, b.State(first[0].ID))
		_, err = b.try()
		full(t, err, 3, 3)
		_, err = b.Cancel(t.Context(), first[0].ID, queue.Cancel{By: "test"})
		require.NoError(t, err)
		b.add("q", 0, "2")
		_, err = b.try()
		full(t, err, 3, 3)
		b.RequireCounts()
	})

	t.Run("JudgesTheJobsOfACallOneAfterAnother", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2}`)
		jobs := []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("other")}
		stored, errs := b.EnqueueEach(t.Context(), jobs)
		require.Equal(t, []bool{true, true, false, true}, []bool{stored[0] != nil, stored[1] != nil, stored[2] != nil, stored[3] != nil})
		full(t, errs[2], 2, 2)
		require.Equal(t, &job.Pressure{Depth: 2, MaxDepth: 2, Share: 1}, jobs[1].Outcome.Pressure)
		require.Nil(t, jobs[0].Outcome.Pressure)
	})

	t.Run("RefusesBatchesWhole", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":3}`)
		b.add("q", 0, "1")
		_, at, err := b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("other"), domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q")})
		require.Equal(t, 3, at)
		full(t, err, 1, 3)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs`))
		_, _, err = b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q")})
		require.NoError(t, err)
	})

	t.Run("InATransactionOfACaller", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1}`)
		err := b.InTx(t.Context(), func(tx *queue.Tx) error {
			_, errs, err := tx.Enqueue(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q")}, false)
			require.NoError(t, err)
			require.NoError(t, errs[0])
			full(t, errs[1], 1, 1)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs`))
	})

	t.Run("AnIDInUseTakesNoRoom", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2}`)
		used := b.add("q", 0, "1")[0]
		again := func(j *job.Job) { j.ID, j.ClientID = used.ID, true }
		jobs := []*job.Job{domaintest.With(again), domaintest.NewJob("q"), domaintest.With(again)}
		_, errs := b.EnqueueEach(t.Context(), jobs)
		domaintest.RequireCode(t, errs[0], ojs.ErrDuplicateJob)
		require.NoError(t, errs[1])
		domaintest.RequireCode(t, errs[2], ojs.ErrDuplicateJob)
	})

	t.Run("OfTheDefaultPolicy", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("_default", `{"max_depth":1}`)
		b.bound("q", `{"max_depth":2}`)
		b.add("q", 0, "1", "2")
		b.add("new", 0, "1")
		_, err := b.Enqueue(t.Context(), domaintest.NewJob("new"))
		full(t, err, 1, 1)
	})

	t.Run("StepsOfAnAcceptedWorkflowPass", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1}`)
		b.add("q", 0, "1")
		_, err := b.try(func(j *job.Job) { j.Unbounded = true })
		require.NoError(t, err)
		_, err = b.try()
		full(t, err, 2, 1)
	})

	t.Run("StepsOfAnAcceptedWorkflowDoNotWaitForProducers", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("q", 0, "1")
		b.bound("q", `{"max_depth":2}`)
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `SELECT FROM ojs.queues WHERE name = 'q' FOR UPDATE`) // as another producer does
		require.NoError(t, err)
		_, err = b.try(func(j *job.Job) { j.Unbounded = true })
		require.NoError(t, err)
	})
}

func TestBoundedQueueAndUniqueJobs(t *testing.T) {
	t.Parallel()
	decoded := func(onConflict string) *job.Job {
		j, wire := job.DecodeJob([]byte(`{"type":"u","args":[],"queue":"q","unique":{"on_conflict":"`+onConflict+`","states":["available","active"]}}`), job.Limits{})
		require.Nil(t, wire)
		return j
	}

	t.Run("ADuplicateNeedsNoRoom", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1}`)
		first, err := b.Enqueue(t.Context(), decoded("ignore"))
		require.NoError(t, err)
		same, err := b.Enqueue(t.Context(), decoded("ignore"))
		require.NoError(t, err)
		require.Equal(t, first.ID, same.ID)
	})

	t.Run("AReplacementTakesThePlaceOfItsPredecessor", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1}`)
		first, err := b.Enqueue(t.Context(), decoded("replace"))
		require.NoError(t, err)
		_, err = b.Enqueue(t.Context(), decoded("replace"))
		require.NoError(t, err)
		require.Equal(t, ojs.StateCancelled, b.State(first.ID))
	})

	t.Run("WithoutRoomNothingIsReplaced", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		first, err := b.Enqueue(t.Context(), decoded("replace"))
		require.NoError(t, err)
		require.Len(t, b.Fetched(1, "q"), 1)
		b.add("q", 0, "1")
		b.bound("q", `{"max_depth":1}`)
		stored, errs := b.EnqueueEach(t.Context(), []*job.Job{decoded("replace"), domaintest.NewJob("other")})
		full(t, errs[0], 1, 1)
		require.NotNil(t, stored[1])
		require.Equal(t, ojs.StateActive, b.State(first.ID))
	})

	t.Run("InOneCall", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1}`)
		_, errs := b.EnqueueEach(t.Context(), []*job.Job{decoded("replace"), decoded("replace"), domaintest.NewJob("q")})
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		full(t, errs[2], 1, 1)
	})
}

// Two nodes enqueue to one queue, while jobs are fetched: the bound is never exceeded, and what was accepted is stored.
func TestBoundOfTwoNodes(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"reject", "drop_oldest"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			a := setup(t)
			other := a.node()
			const bound = 20
			a.bound("q", fmt.Sprintf(`{"max_depth":%d,"strategy":%q}`, bound, strategy), other)
			var wg sync.WaitGroup
			var mu sync.Mutex
			accepted, fetched := 0, 0
			for _, n := range []*bundle{a, other} {
				for range 8 {
					wg.Go(func() {
						for range 15 {
							_, err := n.Enqueue(context.Background(), domaintest.NewJob("q"))
							mu.Lock()
							if err == nil {
								accepted++
							} else if strategy == "drop_oldest" {
								t.Errorf("%v", err)
							}
							mu.Unlock()
						}
					})
				}
				wg.Go(func() {
					for range 10 {
						jobs, _ := n.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 2})
						mu.Lock()
						fetched += len(jobs)
						mu.Unlock()
					}
				})
			}
			watch := make(chan struct{})
			go func() {
				defer close(watch)
				for range 200 {
					if n := a.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available'`); n > bound {
						t.Errorf("%d jobs in a queue of %d", n, bound)
					}
				}
			}()
			wg.Wait()
			<-watch
			for range bound { // the last fetches may have come after the last enqueues
				if _, err := other.Enqueue(t.Context(), domaintest.NewJob("q")); err == nil {
					accepted++
				}
			}
			waiting := a.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available'`)
			dropped := a.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'discarded'`)
			require.Equal(t, accepted, waiting+fetched+dropped)
			require.Equal(t, bound, waiting)
			if strategy == "drop_oldest" {
				require.Equal(t, 240+bound, accepted)
				require.Positive(t, dropped)
			}
			a.RequireCounts()
			other.RequireEmitted()
		})
	}
}

func TestDropOldest(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct{ statement, policy string }{
		"RoomOfJobsFetchedMeanwhile":        {"JobListOldest", `{"max_depth":2,"strategy":"drop_oldest"}`},
		"BytesOfJobsFetchedMeanwhile":       {"JobListOldest", `{"max_size_bytes":14,"strategy":"drop_oldest"}`},
		"TenantsRoomOfJobsFetchedMeanwhile": {"JobListOldestByTenant", `{"max_depth_per_tenant":2,"strategy":"drop_oldest"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			fetched := 0
			late := &bundle{domaintest.On(t, domaintest.Before(t, b.Pool, c.statement, func() {
				fetched = len(b.FetchedBy("w", 2))
			}))}
			b.bound("q", c.policy, late)
			b.inLanes(2, "a")
			_, err := late.try(inLane("a"), func(j *job.Job) { j.Args = json.RawMessage(`["a",2]`) })
			require.NoError(t, err)
			require.Equal(t, 2, fetched)
			require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'discarded'`))
			b.RequireCounts()
		})
	}

	t.Run("OfAnyPriority", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		old := b.add("q", 9, "1")
		old = append(old, b.add("q", 0, "2")...)
		old = append(old, b.add("q", 5, "3")...)
		b.bound("q", `{"max_depth":3,"strategy":"drop_oldest"}`)
		b.add("q", -9, "4", "5")
		require.Equal(t, []string{`["3"]`, `["4"]`, `["5"]`}, args(b.Fetched(5, "q")))
		for _, j := range old[:2] {
			stored, err := b.Get(t.Context(), j.ID)
			require.NoError(t, err)
			require.Equal(t, "discarded", stored.State)
			require.Contains(t, string(stored.Error), `"code":"overflow"`)
			require.False(t, stored.DeadLetteredAt.Valid)
		}
		require.Equal(t, []string{"job.enqueued>available", "job.discarded:available>discarded"}, b.EventTypes(old[0].ID))
		b.RequireCounts()
	})

	t.Run("JobsOfTheSameCall", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2,"strategy":"drop_oldest"}`)
		var jobs []*job.Job
		for i := range 5 {
			jobs = append(jobs, domaintest.With(func(j *job.Job) { j.Args = fmt.Appendf(nil, `[%d]`, i) }))
		}
		_, errs := b.EnqueueEach(t.Context(), jobs)
		require.Nil(t, errs)
		require.Equal(t, []string{`[3]`, `[4]`}, args(b.Fetched(5, "q")))
		require.Equal(t, 3, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'discarded'`))
		b.RequireCounts()
	})

	// A job that another one of its call has replaced has no place in the queue that could be given to a third one.
	t.Run("ReplacedOnesOfTheSameCall", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2,"strategy":"drop_oldest"}`)
		jobs := []*job.Job{}
		for range 2 {
			j, wire := job.DecodeJob([]byte(`{"type":"u","args":[],"queue":"q","unique":{"on_conflict":"replace"}}`), job.Limits{})
			require.Nil(t, wire)
			jobs = append(jobs, j)
		}
		jobs = append(jobs, domaintest.NewJob("q"), domaintest.NewJob("q"))
		stored, errs := b.EnqueueEach(t.Context(), jobs)
		require.Nil(t, errs)
		require.Equal(t, []ojs.JobState{ojs.StateCancelled, ojs.StateDiscarded, ojs.StateAvailable, ojs.StateAvailable},
			[]ojs.JobState{b.State(stored[0].ID), b.State(stored[1].ID), b.State(stored[2].ID), b.State(stored[3].ID)})
		b.RequireCounts()
	})

	t.Run("NotEnough", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2,"strategy":"drop_oldest"}`)
		later := func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} }
		_, err := b.try(later)
		require.NoError(t, err)
		old := b.add("q", 0, "1")[0]
		_, _, err = b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q")})
		full(t, err, 2, 2)
		require.Equal(t, ojs.StateAvailable, b.State(old.ID), "nothing was dropped for a batch that was refused")
		_, err = b.try(later)
		require.NoError(t, err)
		require.Equal(t, ojs.StateDiscarded, b.State(old.ID))
		_, err = b.try()
		full(t, err, 2, 2)
	})

	t.Run("LeavesLockedJobsAlone", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs := b.add("q", 0, "1", "2")
		b.Lock(jobs[0].ID)
		b.bound("q", `{"max_depth":2,"strategy":"drop_oldest"}`)
		b.add("q", 0, "3")
		require.Equal(t, ojs.StateAvailable, b.State(jobs[0].ID))
		require.Equal(t, ojs.StateDiscarded, b.State(jobs[1].ID))
	})

	// At least 100 jobs are read, of which one is dropped.
	for name, change := range map[string]string{
		"OfManyReadyJobs": `SET priority = priority`, "OfManyJobsThatALimitHoldsBack": `SET limit_key = 'k', limit_seq = ready_seq, ready_seq = NULL`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			var jobs []*job.Job
			for range 120 {
				jobs = append(jobs, domaintest.NewJob("q"))
			}
			old := b.Enqueued(jobs...)
			b.Exec(`UPDATE ojs.jobs ` + change)
			b.bound("q", `{"max_depth":120,"strategy":"drop_oldest"}`)
			_, err := b.try()
			require.NoError(t, err)
			require.Equal(t, []string{spec.FormatID(old[0].ID)}, b.Texts(`SELECT id::text FROM ojs.jobs WHERE state = 'discarded'`))
		})
	}

	// The oldest wait where the search comes last.
	t.Run("OfManyLanesAndPriorities", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var jobs []*job.Job
		for lane := range 40 {
			for priority := range int16(2) {
				jobs = append(jobs, domaintest.With(func(j *job.Job) { j.Lane, j.Priority = fmt.Sprintf("t%02d", 39-lane), priority }))
			}
		}
		old := b.Enqueued(jobs...)
		b.bound("q", `{"max_depth":80,"strategy":"drop_oldest"}`)
		_, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q")})
		require.Nil(t, errs)
		for i, j := range old {
			require.Equal(t, map[bool]ojs.JobState{true: ojs.StateDiscarded, false: ojs.StateAvailable}[i < 3], b.State(j.ID), i)
		}
		b.RequireCounts()
	})

	t.Run("OfAllLanesAndBehindLimits", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		lane := b.Enqueued(domaintest.With(func(j *job.Job) { j.Lane = "b" }))[0]
		held := b.add("q", 0, "held")[0]
		last := b.Enqueued(domaintest.With(func(j *job.Job) { j.Lane = "a" }))[0]
		b.Exec(`UPDATE ojs.jobs SET limit_key = 'k', ready_seq = NULL, limit_seq = ready_seq WHERE id = $1`, held.ID)
		b.bound("q", `{"max_depth":3,"strategy":"drop_oldest"}`)
		b.add("q", 0, "1", "2")
		require.Equal(t, ojs.StateDiscarded, b.State(lane.ID))
		require.Equal(t, ojs.StateDiscarded, b.State(held.ID))
		require.Equal(t, "k", b.One(`SELECT key FROM ojs.limits`), "its limit has looked whether others may start, and so has made its partition")
		require.Equal(t, ojs.StateAvailable, b.State(last.ID))
	})
}

func TestBlockedEnqueue(t *testing.T) {
	t.Parallel()
	blocking := func(b *bundle, wait time.Duration) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := b.Enqueue(context.Background(), domaintest.With(func(j *job.Job) { j.BlockFor = wait }))
			done <- err
		}()
		return done
	}
	waiting := func(t *testing.T, b *bundle, n int) {
		t.Helper()
		require.Eventually(t, func() bool { return b.WaitingForRoom() == n }, domaintest.WaitFor, time.Millisecond)
	}

	t.Run("GoesOnWhenAJobLeaves", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1,"strategy":"block"}`)
		b.add("q", 0, "1")
		done := blocking(b, time.Minute)
		waiting(t, b, 1)
		require.Len(t, b.Fetched(1, "q"), 1)
		require.NoError(t, domaintest.Await(t, done))
		waiting(t, b, 0)
	})

	t.Run("ForTheQueueThatRefusesNow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		refusedBy := make(chan string, 100)
		for _, q := range []string{"first", "second"} {
			b.bound(q, `{"max_depth":1,"strategy":"block"}`)
			b.add(q, 0, "1")
		}
		done := make(chan error, 1)
		go func() {
			done <- b.RetryFull(context.Background(), time.Minute, func() error {
				_, _, err := b.EnqueueAll(context.Background(), []*job.Job{domaintest.NewJob("first"), domaintest.NewJob("second")})
				if wire, ok := errors.AsType[*ojs.Error](err); ok {
					refusedBy <- fmt.Sprint(wire.Details["queue"])
				}
				return err
			})
		}()
		waiting(t, b, 1)
		require.Equal(t, "first", <-refusedBy)
		require.Len(t, b.Fetched(1, "first"), 1)
		require.Eventually(t, func() bool { return <-refusedBy == "second" }, domaintest.WaitFor, time.Millisecond)
		waiting(t, b, 1)
		require.Len(t, b.Fetched(1, "second"), 1)
		require.NoError(t, domaintest.Await(t, done))
		waiting(t, b, 0)
	})

	t.Run("WhenAJobLeavesOnAnotherNode", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		b := a.node()
		a.bound("q", `{"max_depth":1,"strategy":"block"}`, b)
		a.add("q", 0, "1")
		done := blocking(a, time.Minute)
		waiting(t, a, 1)
		require.Len(t, b.Fetched(1, "q"), 1)
		a.NotifyPublished()
		require.NoError(t, domaintest.Await(t, done))
	})

	t.Run("EndsWithoutRoom", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1,"strategy":"block"}`)
		b.add("q", 0, "1")
		full(t, domaintest.Await(t, blocking(b, 0)), 1, 1)
		full(t, domaintest.Await(t, blocking(b, 20*time.Millisecond)), 1, 1)
		done := blocking(b, time.Minute)
		waiting(t, b, 1)
		b.Drain() // the node stops
		full(t, domaintest.Await(t, done), 1, 1)
	})

	t.Run("HoldsNoConnection", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1,"strategy":"block"}`)
		b.add("q", 0, "1")
		var all []<-chan error
		for range 50 {
			all = append(all, blocking(b, time.Minute))
		}
		waiting(t, b, 50)
		b.add("other", 0, "1")
		for len(all) > 0 {
			require.Len(t, b.Fetched(1, "q"), 1)
			require.Eventually(t, func() bool {
				for i, done := range all {
					select {
					case err := <-done:
						require.NoError(t, err)
						all = append(all[:i], all[i+1:]...)
						return true
					default:
					}
				}
				return false
			}, domaintest.WaitFor, time.Millisecond)
		}
	})
}

func TestBoundInBytes(t *testing.T) {
	t.Parallel()
	sized := func(n int) func(j *job.Job) {
		return func(j *job.Job) { j.Args = []byte(`["` + strings.Repeat("x", n-4) + `"]`) }
	}

	t.Run("Refuses", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_size_bytes":1000}`)
		_, err := b.try(sized(600))
		require.NoError(t, err)
		_, err = b.try(sized(401))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)
		require.ErrorContains(t, err, "1000 bytes")
		_, err = b.try(sized(400))
		require.NoError(t, err)
		_, err = b.try(sized(10))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)

		j := b.Fetched(1, "q")[0]
		_, err = b.try(sized(600))
		require.NoError(t, err)
		_, err = b.Fail(t.Context(), job.Nack{JobID: j.ID, Attempt: -1, Requeue: true}) // enters again without being asked
		require.NoError(t, err)
		_, err = b.try(sized(10))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)

		for _, j := range b.Fetched(10, "q") {
			_, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: -1})
			require.NoError(t, err)
		}
		_, err = b.try(sized(1000))
		require.NoError(t, err)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.job_sizes`), "jobs that are gone are forgotten")
		_, err = b.try(sized(1001))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)
	})

	t.Run("CountsNoJobOfTheTimeBefore", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":10}`)
		_, err := b.try(sized(600))
		require.NoError(t, err)
		b.bound("q", `{"max_size_bytes":1000}`)
		_, err = b.try(sized(1000))
		require.NoError(t, err)
		_, err = b.try(sized(10))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)
	})

	t.Run("OfTwoQueuesInOneCall", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var jobs []*job.Job
		for i, queue := range []string{"q", "r", "q", "r"} {
			b.bound(queue, `{"max_size_bytes":1000}`)
			jobs = append(jobs, domaintest.With(func(j *job.Job) { j.Queue = queue; sized(300 + 100*i)(j) }))
		}
		_, errs := b.EnqueueEach(t.Context(), jobs)
		require.Nil(t, errs)
		require.Equal(t, []string{"q 800", "r 1000"}, b.Texts(`SELECT queue || ' ' || bytes FROM ojs.queue_sizes ORDER BY queue`))
		require.Equal(t, []string{"q 300", "q 500", "r 400", "r 600"}, b.Texts(`SELECT queue || ' ' || bytes FROM ojs.job_sizes ORDER BY queue, bytes`))
	})

	t.Run("ShowsTheDepthToAJobThatIsTooLarge", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":5,"max_size_bytes":1000,"max_depth_per_tenant":1,"strategy":"drop_oldest"}`)
		ofTenant := func(j *job.Job) { j.Lane = "acme" }
		for _, change := range []func(j *job.Job){sized(100), ofTenant} {
			_, err := b.try(change)
			require.NoError(t, err)
		}
		_, err := b.try(sized(1001))
		full(t, err, 2, 5)
		_, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.With(func(j *job.Job) { ofTenant(j); sized(1001)(j) }), domaintest.With(sized(100))})
		require.Error(t, errs[0])
		require.NoError(t, errs[1])
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'discarded'`), "no job is dropped for one that cannot enter")
	})

	// What was measured last stays an upper limit when a job comes back that was active then.
	t.Run("OfJobsThatComeBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_size_bytes":1000}`)
		_, err := b.try(sized(600))
		require.NoError(t, err)
		active := b.Fetched(1, "q")[0]
		for _, n := range []int{300, 200} { // the second has to be measured
			_, err = b.try(sized(n))
			require.NoError(t, err)
		}
		_, err = b.Fail(t.Context(), job.Nack{JobID: active.ID, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		_, err = b.try(sized(400))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)
	})

	t.Run("OfReplacedJobsOfTheSameCall", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_size_bytes":1000}`)
		one := func() *job.Job {
			j, wire := job.DecodeJob([]byte(`{"type":"u","args":["`+strings.Repeat("x", 596)+`"],"queue":"q","unique":{"on_conflict":"replace"}}`), job.Limits{})
			require.Nil(t, wire)
			return j
		}
		_, errs := b.EnqueueEach(t.Context(), []*job.Job{one(), one(), domaintest.With(sized(300))})
		require.Nil(t, errs)
		require.Len(t, b.Fetched(5, "q"), 2)
	})

	t.Run("DropsAsManyAsNeeded", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_size_bytes":1000,"strategy":"drop_oldest"}`)
		for range 4 {
			_, err := b.try(sized(250))
			require.NoError(t, err)
		}
		_, err := b.try(sized(300))
		require.NoError(t, err)
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'discarded'`))
		_, err = b.try(sized(1001))
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'discarded'`))
	})
}
