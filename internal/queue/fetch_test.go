package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

func args(jobs []*job.Record) (texts []string) {
	for _, j := range jobs {
		texts = append(texts, string(j.Args))
	}
	return texts
}

func (b *bundle) add(queue string, priority int16, names ...string) []*job.Record {
	b.T.Helper()
	var stored []*job.Record
	for _, name := range names {
		in := domaintest.NewJob(queue)
		in.Priority, in.Args = priority, fmt.Appendf(nil, `[%q]`, name)
		stored = append(stored, b.Enqueued(in)...)
	}
	return stored
}

func TestFetchOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add("low", 0, "l1")
	b.add("high", 0, "h1", "h2")
	b.add("high", 5, "h3")
	b.add("high", -5, "h4")
	b.add("high", 5, "h5")
	require.Equal(t, []string{`["h3"]`, `["h5"]`}, args(b.Fetched(2, "high", "low")))
	b.add("high", 100, "h6")
	require.Equal(t, []string{`["h6"]`, `["h1"]`, `["h2"]`, `["h4"]`, `["l1"]`}, args(b.Fetched(10, "high", "low")))
}

func TestFetchFindsJobsThatTheCursorHasPassed(t *testing.T) {
	t.Parallel()

	t.Run("JobsOfAnotherNodeWhenNotified", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		b := a.node()
		a.add("q", 0, "1", "2")
		require.Len(t, b.Fetched(1, "q"), 1)
		require.Len(t, b.Fetched(1, "q"), 1)
		late := a.add("q", 0, "3")[0]
		b.NotifyReady(queue.Place{Queue: "q", Priority: 0, Seq: late.ReadySeq.Int64})
		require.Equal(t, []string{`["3"]`}, args(b.Fetched(1, "q")))
	})

	t.Run("JobsThatCommitLate", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("q", 0, "1")
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, created_at, enqueued_at, args)
			VALUES ($1, 'test.job', 'q', 'available', nextval('ojs.ready_seq'), now(), now(), '["late"]')`, job.NewID())
		require.NoError(t, err)
		b.add("q", 0, "2", "3", "4")
		require.Equal(t, []string{`["1"]`, `["2"]`}, args(b.Fetched(2, "q")))
		require.NoError(t, tx.Commit(t.Context()))
		// No notification names it: a rescan finds it within a second.
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			jobs := b.Fetched(1, "q")
			b.add("q", 0, "more")
			require.Contains(c, args(jobs), `["late"]`)
		}, domaintest.WaitFor, 50*time.Millisecond)
	})

	// A worker that does not wait must not be told that there is nothing.
	t.Run("InTheFetchThatLooksForThem", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		var sent domaintest.Statements
		a, b := &bundle{domaintest.On(t, pool)}, &bundle{domaintest.On(t, domaintest.Traced(t, pool, &sent))}
		require.Empty(t, b.Fetched(1, "q"))
		a.add("q", 0, "1")
		for rescans := sent.Sent("JobFetchRescan"); ; {
			jobs := b.Fetched(1, "q")
			if sent.Sent("JobFetchRescan") > rescans {
				require.Equal(t, []string{`["1"]`}, args(jobs))
				break
			}
			require.Empty(t, jobs)
		}
	})

	t.Run("JobsThatAFailedClaimHadLocked", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		first := b.add("q", 0, "1", "2")[0]
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT FROM ojs.jobs WHERE id = $1 FOR UPDATE`, first.ID)
		require.NoError(t, err)
		require.Equal(t, []string{`["2"]`}, args(b.Fetched(2, "q")))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Eventually(t, func() bool { return len(b.Fetched(1, "q")) == 1 }, domaintest.WaitFor, 20*time.Millisecond)
	})

	t.Run("RetriedAndReleasedJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.add("q", 0, "1", "2")
		jobs := b.Fetched(2, "q")
		_, err := b.Fail(t.Context(), job.Nack{JobID: jobs[0].ID, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		require.Equal(t, []string{`["1"]`}, args(b.Fetched(5, "q")))
	})
}

// addLarge adds jobs of 1 MiB, which Postgres compresses to 12 KiB.
func (b *bundle) addLarge(queue string, n int) {
	b.T.Helper()
	args := []byte(`["` + strings.Repeat("x", 1<<20) + `"]`)
	for range n {
		in := domaintest.NewJob(queue)
		in.Args = args
		b.Enqueued(in)
	}
}

func TestFetchOfLargeJobs(t *testing.T) {
	t.Parallel()

	t.Run("EndsWithTheJobThatExceedsTheBytes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.addLarge("q", 20)
		b.add("q", 0, "small")
		// The cursor is exact after a cut: no rescan is due before all have been claimed.
		require.Len(t, b.Fetched(1000, "q", "other"), 8)
		require.Len(t, b.Fetched(1000, "q", "other"), 8)
		require.Equal(t, `["small"]`, args(b.Fetched(1000, "q", "other"))[4])
		require.Empty(t, b.Fetched(1000, "q"))
	})

	t.Run("KeepsToTheBytesOfTheFetch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.addLarge("q", 4)
		for range 4 {
			jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 10, WorkerID: "w1", MaxBytes: 1})
			require.NoError(t, err)
			require.Len(t, jobs, 1)
		}
	})

	t.Run("CountsErrorsAndResults", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		id := b.add("q", 0, "1")[0].ID
		size := `SELECT COALESCE(max(size), 0) FROM (SELECT id, size FROM ojs.jobs UNION ALL SELECT id, size FROM ojs.jobs_done) j WHERE id = $1`
		require.Len(t, b.Fetched(1, "q"), 1)
		require.Zero(t, b.Number(size, id), "a small job has none")

		failure := domaintest.DecodeError(t, fmt.Sprintf(`{"code":"x","message":"no","details":{"text":%q}}`, strings.Repeat("x", 20_000)))
		_, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: -1, Error: failure})
		require.NoError(t, err)
		require.InDelta(t, 40_000, b.Number(size, id), 2000, "as the latest error and in the history")

		b.Exec(`UPDATE ojs.jobs SET due_at = now()`)
		b.ApplyDueUntilLeft(id, "retryable")
		require.Len(t, b.Fetched(1, "q"), 1)
		_, err = b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1, Result: []byte(`"` + strings.Repeat("x", 10_000) + `"`)})
		require.NoError(t, err)
		require.InDelta(t, 50_000, b.Number(size, id), 2000)
	})

	t.Run("GivesEveryFetchAJob", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.addLarge("q", 30)
		var wg sync.WaitGroup
		got := make(chan int, 30)
		for range 30 { // they share statements, none of which has room for 30 jobs
			wg.Go(func() { got <- len(b.Fetched(1, "q")) })
		}
		wg.Wait()
		close(got)
		for n := range got {
			assert.Equal(t, 1, n)
		}
	})

	t.Run("NeverCutsSmallOnes", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, created_at, enqueued_at, args)
			SELECT gen_random_uuid(), 'test.job', 'q', 'available', nextval('ojs.ready_seq'), now(), now(), to_json(ARRAY[repeat('x', 8000)]) FROM generate_series(1, 1000)`)
		require.Len(t, b.Fetched(1000, "q"), 1000)
	})
}

// TestTwoNodesClaimEveryJobOnce drives producers and fetchers on two nodes, with retries and releases in between.
func TestTwoNodesClaimEveryJobOnce(t *testing.T) {
	t.Parallel()
	const producers, perProducer = 4, 150
	a := setup(t)
	nodes := []*bundle{a, a.node()}
	queues := []string{"q1", "q2"}

	var (
		mu     sync.Mutex
		active = map[[16]byte]bool{}
		done   = map[[16]byte]int{}
		wg     sync.WaitGroup
	)
	for p := range producers {
		wg.Go(func() {
			for i := range perProducer {
				in := domaintest.NewJob(queues[i%2])
				in.Priority = int16(i % 3)
				if _, err := nodes[p%2].Enqueue(t.Context(), in); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	// A failure ends all workers: a test that waits for the others after it would only end with its timeout.
	finished := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return t.Failed() || len(done) == producers*perProducer
	}
	claim := func(jobs []*job.Record) {
		mu.Lock()
		defer mu.Unlock()
		for _, j := range jobs {
			if active[j.ID] || done[j.ID] > 0 {
				t.Errorf("job %s was claimed twice", spec.FormatID(j.ID))
			}
			active[j.ID] = true
		}
	}
	for w := range 6 {
		wg.Go(func() {
			node := nodes[w%2]
			for !finished() {
				jobs, err := node.Fetch(t.Context(), job.Fetch{Queues: queues, Count: 1 + rand.IntN(10), WorkerID: fmt.Sprint("w", w), Wait: 50 * time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				claim(jobs)
				for _, j := range jobs {
					mu.Lock()
					delete(active, j.ID)
					mu.Unlock()
					if rand.IntN(10) == 0 {
						if _, err = node.Fail(t.Context(), job.Nack{JobID: j.ID, Attempt: j.Attempt, Requeue: true}); err != nil {
							t.Error(err)
						}
						continue
					}
					if _, err = node.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: j.WorkerID.String, Attempt: j.Attempt}); err != nil {
						t.Error(err)
					}
					mu.Lock()
					done[j.ID]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, n := range done {
		require.Equal(t, 1, n)
	}
	var live, stored int
	require.NoError(t, a.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ojs.jobs), (SELECT count(*) FROM ojs.jobs_done)`).Scan(&live, &stored))
	require.Zero(t, live)
	require.Equal(t, producers*perProducer, stored)
}

func TestLongPolling(t *testing.T) {
	t.Parallel()

	t.Run("WakesWhenAJobArrives", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		got := make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 1, Wait: 20 * time.Second})
			got <- jobs
		}()
		require.Eventually(t, func() bool { return b.Parked() == 1 }, domaintest.WaitFor, time.Millisecond)
		b.add("q", 0, "1")
		require.Len(t, <-got, 1)
		require.Zero(t, b.Parked())
	})

	t.Run("EndsByTimeoutCancellationAndDrain", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, Wait: 10 * time.Millisecond})
		require.NoError(t, err)
		require.Empty(t, jobs)

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			_, _ = b.Fetch(ctx, job.Fetch{Queues: []string{"q"}, Count: 1, Wait: 20 * time.Second})
			close(done)
		}()
		require.Eventually(t, func() bool { return b.Parked() == 1 }, domaintest.WaitFor, time.Millisecond)
		cancel()
		<-done
		b.add("q", 0, "1")
		require.Len(t, b.Fetched(1, "q"), 1, "a cancelled fetch claims nothing")

		b.Drain()
		jobs, err = b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, Wait: 20 * time.Second})
		require.NoError(t, err)
		require.Empty(t, jobs)
	})

	t.Run("WakesWhenALimitedQueueMayStartAJob", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"concurrency":1}`)
		first, second := b.add("q", 0, "1")[0], b.add("q", 0, "2")[0]
		require.Len(t, b.Fetched(2, "q"), 1)
		answers := b.parked("w2")
		_, err := b.Complete(t.Context(), job.Ack{JobID: first.ID, WorkerID: "w1", Attempt: -1})
		require.NoError(t, err)
		got := domaintest.Await(t, answers[0])
		require.Len(t, got, 1)
		require.Equal(t, second.ID, got[0].ID)
	})

	t.Run("OneJobForManyWaiters", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		got := make(chan int, 10)
		for range 10 {
			go func() {
				jobs, _ := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 5, Wait: 20 * time.Second})
				got <- len(jobs)
			}()
		}
		require.Eventually(t, func() bool { return b.Parked() == 10 }, domaintest.WaitFor, time.Millisecond)
		for range 10 {
			b.add("q", 0, "x")
			require.Equal(t, 1, <-got)
		}
	})
}
