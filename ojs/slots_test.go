package ojs_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestSlotsWhileFetchedJobsAreTaken has a report leave at the moment at which a fetch has been answered and its job does not run yet. The
// listener of a lost job, which the same answer causes, is where the worker can be stopped there.
func TestSlotsWhileFetchedJobsAreTaken(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	lost, resume, endKept, endShort := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	began := map[string]chan struct{}{"kept": make(chan struct{}, 4), "short": make(chan struct{}, 4), "more": make(chan struct{}, 4)}
	w := ojs.NewWorker(c, ojs.WorkerConfig{Concurrency: 3})
	w.OnEvent(ojs.EventJobLost, func(ojs.Event) {
		lost <- struct{}{}
		<-resume
	})
	end := sync.OnceFunc(func() { close(endKept) })
	var running, most atomic.Int64
	register := func(jobType string, end <-chan struct{}) {
		w.Register(jobType, func(ojs.JobContext) error {
			now := running.Add(1)
			defer running.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			began[jobType] <- struct{}{}
			<-end
			return nil
		})
	}
	register("kept", endKept)
	register("short", endShort)
	register("more", endKept)
	add := func(jobType string) string {
		job, err := c.Enqueue(t.Context(), jobType, nil)
		require.NoError(t, err)
		return job.ID
	}
	kept, short := add("kept"), add("short")
	stop := start(t, w)
	t.Cleanup(end)
	receive(t, began["kept"])
	receive(t, began["short"])
	s.LoseLease(kept) // the waiting fetch gets it again
	receive(t, lost)
	add("more")
	add("more")
	close(endShort)
	eventually(t, func() bool { return s.Job(short).State == ojs.StateCompleted })
	close(resume)
	receive(t, began["kept"])
	receive(t, began["more"])
	require.LessOrEqual(t, most.Load(), int64(3), "both runs of the job and one more")
	end()
	eventually(t, func() bool { return s.Job(kept).State == ojs.StateCompleted })
	require.NoError(t, stop())
}

// TestQueueConcurrency: a queue has slots of its own, and its jobs are fetched only while one of them is free.
func TestQueueConcurrency(t *testing.T) {
	t.Parallel()
	// lastFetch is the latest fetch without reports.
	lastFetch := func(s server) (fetch struct {
		Queues []string `json:"queues"`
		Count  int      `json:"count"`
		WaitMS int64    `json:"wait_ms"`
	}) {
		for _, r := range slices.Backward(s.Requests()) {
			if r.Path == "/workers/fetch" {
				require.NoError(t, json.Unmarshal(r.Body, &fetch))
				break
			}
		}
		return fetch
	}

	t.Run("NoQueueRunsMoreThanItsOwn", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			limits := map[string]int{"heavy": 2, "slow": 3}
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{
				Queues: []string{"heavy", "slow", "default"}, Weights: map[string]int{"heavy": 5}, Concurrency: 6, QueueConcurrency: limits,
			}))
			limits["heavy"] = 9 // NewWorker has made a copy
			var mu sync.Mutex
			running, most, ended := map[string]int{}, map[string]int{}, 0
			count := func(queue string, by int) {
				mu.Lock()
				defer mu.Unlock()
				for _, q := range []string{queue, "all"} {
					running[q] += by
					most[q] = max(most[q], running[q])
				}
				if by < 0 {
					ended++
				}
			}
			w.Register("a", func(ctx ojs.JobContext) error {
				queue := ctx.Job.Queue
				ctx.Job.Queue = "changed"
				count(queue, 1)
				defer count(queue, -1)
				runtime.Gosched()
				return nil
			})
			const jobs = 60
			for range jobs {
				for _, q := range []string{"heavy", "slow", "default"} {
					enqueue(t, c, ojs.WithQueue(q))
				}
			}
			s.Drain(t, w)
			require.Equal(t, 3*jobs, ended)
			require.LessOrEqual(t, most["heavy"], 2)
			require.LessOrEqual(t, most["slow"], 3)
			require.LessOrEqual(t, most["all"], 6)
		})
	})

	t.Run("OtherQueuesGoOn", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			b := newBlocked(c, ojs.WorkerConfig{
				Queues: []string{"heavy", "default"}, Concurrency: 3, QueueConcurrency: map[string]int{"heavy": 1},
			})
			first := enqueue(t, c, ojs.WithQueue("heavy"))
			second := enqueue(t, c, ojs.WithQueue("heavy"))
			stop := start(t, b.Worker)
			require.Equal(t, first, receive(t, b.began).ID)
			others := []string{enqueue(t, c), enqueue(t, c)}
			for range others {
				require.True(t, slices.Contains(others, receive(t, b.began).ID))
			}
			s.RequireState(t, second, ojs.StateAvailable)
			close(b.release)
			require.Equal(t, second, receive(t, b.began).ID)
			eventually(t, func() bool { return s.Job(second).State == ojs.StateCompleted })
			require.NoError(t, stop())
		})
	})

	t.Run("AReportFetchesWhileTheOthersWait", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{})
		b.Worker = ojs.NewWorker(c, ojs.WorkerConfig{
			Queues: []string{"heavy", "default"}, Concurrency: 2, QueueConcurrency: map[string]int{"heavy": 1},
			PollInterval: waitFor, LongPoll: waitFor,
		})
		b.Register("a", b.run)
		first, second := enqueue(t, c, ojs.WithQueue("heavy")), enqueue(t, c, ojs.WithQueue("heavy"))
		stop := start(t, b.Worker)
		require.Equal(t, first, receive(t, b.began).ID)
		eventually(t, func() bool { return slices.Equal(lastFetch(s).Queues, []string{"default"}) })
		b.release <- struct{}{}
		require.Equal(t, second, receive(t, b.began).ID)
		require.True(t, slices.ContainsFunc(s.Requests(), func(r fakeserver.Request) bool {
			return withFetch(&r) && strings.Contains(string(r.Body), `"queues":["heavy"]`)
		}), "the waiting fetch ends much later")
		close(b.release)
		require.NoError(t, stop())
	})

	t.Run("AFreeSlotEndsThePauseBetweenFetches", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, fakeserver.WithoutExtensions())
		b := newBlocked(c, ojs.WorkerConfig{})
		b.Worker = ojs.NewWorker(c, ojs.WorkerConfig{
			Queues: []string{"heavy", "default"}, Concurrency: 2, QueueConcurrency: map[string]int{"heavy": 1}, PollInterval: 2 * waitFor,
		})
		b.Register("a", b.run)
		first, second := enqueue(t, c, ojs.WithQueue("heavy")), enqueue(t, c, ojs.WithQueue("heavy"))
		stop := start(t, b.Worker)
		require.Equal(t, first, receive(t, b.began).ID)
		eventually(t, func() bool { return slices.Equal(lastFetch(s).Queues, []string{"default"}) })
		b.release <- struct{}{}
		require.Equal(t, second, receive(t, b.began).ID)
		close(b.release)
		require.NoError(t, stop())
	})

	t.Run("AQueueThatWasFullIsAskedAgain", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		b := newBlocked(c, ojs.WorkerConfig{
			Queues: []string{"heavy", "default"}, Concurrency: 2, LongPoll: 20 * time.Second, QueueConcurrency: map[string]int{"heavy": 1},
		})
		first := enqueue(t, c, ojs.WithQueue("heavy"))
		stop := start(t, b.Worker)
		receive(t, b.began)
		eventually(t, func() bool { return slices.Equal(lastFetch(s).Queues, []string{"default"}) })
		require.LessOrEqual(t, lastFetch(s).WaitMS, int64(5), "PollInterval")
		close(b.release)
		eventually(t, func() bool { return s.Job(first).State == ojs.StateCompleted })
		eventually(t, func() bool { return slices.Equal(lastFetch(s).Queues, []string{"heavy", "default"}) })
		require.Equal(t, int64(20_000), lastFetch(s).WaitMS)
		require.Equal(t, 1, lastFetch(s).Count, "all the jobs may be of the queue heavy")
		next := enqueue(t, c, ojs.WithQueue("heavy"))
		require.Equal(t, next, receive(t, b.began).ID)
		require.NoError(t, stop())
	})

	t.Run("AnEmptyQueueDoesNotSlowTheOthers", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			const jobs = 200
			for range jobs {
				enqueue(t, c)
			}
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{
				Queues: []string{"heavy", "default"}, Concurrency: 50, QueueConcurrency: map[string]int{"heavy": 1},
			}))
			w.Register("a", func(ojs.JobContext) error { return nil })
			s.Drain(t, w)
			small := 0
			for _, r := range s.Requests() {
				var body struct {
					Count int
					Fetch struct{ Count int }
				}
				_ = json.Unmarshal(r.Body, &body) // some have none
				if body.Count == 1 || body.Fetch.Count == 1 {
					small++
				}
			}
			require.Less(t, small, jobs/4, "fetches for one job")
		})
	})

	t.Run("MistakesPanic", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		for want, config := range map[string]ojs.WorkerConfig{
			`ojs: the QueueConcurrency of queue "mail" is 0: it must be at least 1`: {
				Queues: []string{"mail"}, QueueConcurrency: map[string]int{"mail": 0},
			},
			`ojs: QueueConcurrency names queue "mial", which is not one of the queues of the worker`: {
				Queues: []string{"mail"}, QueueConcurrency: map[string]int{"mial": 1},
			},
		} {
			func() {
				defer func() { require.Equal(t, any(want), recover()) }()
				ojs.NewWorker(c, config)
			}()
		}
		for _, config := range []ojs.WorkerConfig{
			{QueueConcurrency: map[string]int{"default": 1}},
			{Weights: map[string]int{"mail": 2}, QueueConcurrency: map[string]int{"mail": 1}},
		} {
			ojs.NewWorker(c, config)
		}
	})
}
