package queue_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func inLane(lane string) func(*job.Job) { return func(j *job.Job) { j.Lane = lane } }

// tenantFull requires that the error is that of a tenant without room in a queue.
func tenantFull(t testing.TB, err error, tenant string, depth, bound int64) {
	t.Helper()
	full(t, err, depth, bound)
	require.ErrorContains(t, err, "Tenant '"+tenant+"' reached its bound of ")
	require.Equal(t, tenant, err.(*ojs.Error).Details["tenant_id"]) //nolint:errorlint // full has checked it
}

func TestBoundPerTenant(t *testing.T) {
	t.Parallel()

	t.Run("EachTenantHasItsOwn", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth_per_tenant":2}`)
		stored := b.inLanes(1, "a", "a/key", "b", "")
		_, err := b.try(inLane("a"))
		tenantFull(t, err, "a", 2, 2)
		_, err = b.try(inLane("a/other"))
		tenantFull(t, err, "a", 2, 2)
		b.inLanes(1, "b", "", "")
		_, err = b.try(inLane("b"), func(j *job.Job) { j.ID, j.ClientID = job.NewID(), true })
		tenantFull(t, err, "b", 2, 2)
		_, err = b.Cancel(t.Context(), stored[0].ID, queue.Cancel{By: "t"})
		require.NoError(t, err)
		again := domaintest.With(inLane("a"))
		_, err = b.Enqueue(t.Context(), again)
		require.NoError(t, err)
		require.Equal(t, &job.Pressure{Depth: 2, MaxDepth: 2, Share: 1}, again.Outcome.Pressure)
		_, err = b.try(inLane("a"))
		tenantFull(t, err, "a", 2, 2)
		b.RequireCounts()
	})

	// What no bound asks for is not measured.
	t.Run("ReadsNothingOfTheQueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for bounds, reads := range map[string][]int{
			`{"max_depth_per_tenant":2}`: {0, 0}, `{"max_depth":2}`: {1, 0}, `{"max_size_bytes":1000}`: {1, 1}, `{"max_depth":2,"max_depth_per_tenant":2}`: {1, 0},
		} {
			b.bound("q", bounds)
			sent := &domaintest.Statements{}
			node := domaintest.On(t, domaintest.Traced(t, b.Pool, sent))
			require.NoError(t, node.Configured.Refresh(t.Context()))
			stored, err := node.Enqueue(t.Context(), domaintest.With(inLane("a")))
			require.NoError(t, err)
			require.Equal(t, reads, []int{sent.Sent("QueueCountListByQueue"), sent.Sent("QueueSizeGet")}, bounds)
			_, err = b.Cancel(t.Context(), stored.ID, queue.Cancel{By: "t"})
			require.NoError(t, err)
		}
	})

	t.Run("BesideThatOfTheQueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":3,"max_depth_per_tenant":2}`)
		lanes := []string{"a", "a", "a", "b", "b"}
		jobs := make([]*job.Job, len(lanes))
		for i, lane := range lanes {
			jobs[i] = domaintest.With(inLane(lane))
		}
		_, at, err := b.EnqueueAll(t.Context(), jobs)
		require.Equal(t, 2, at)
		tenantFull(t, err, "a", 0, 2)
		_, errs := b.EnqueueEach(t.Context(), jobs)
		tenantFull(t, errs[2], "a", 2, 2)
		full(t, errs[4], 3, 3)
		require.Equal(t, 3, b.Number(`SELECT count(*) FROM ojs.jobs`))
	})

	t.Run("DropsTheOldestOfTheTenant", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth_per_tenant":3,"strategy":"drop_oldest"}`)
		old := b.inLanes(1, "b", "a-b", "a", "a/key", "a/key2")
		_, err := b.try(inLane("a"), func(j *job.Job) { j.Priority = -5 })
		require.NoError(t, err)
		_, err = b.try(inLane("a/key"))
		require.NoError(t, err)
		states := ""
		for _, j := range old {
			states += " " + string(b.State(j.ID))
		}
		require.Equal(t, " available available discarded discarded available", states)
		require.Equal(t, 3, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND split_part(lane, '/', 1) = 'a'`))
		b.RequireCounts()
	})

	t.Run("DropsTheOldestOfTheTenantOfAnyPriority", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth_per_tenant":7,"strategy":"drop_oldest"}`)
		add := func(lane string, priority int16) [16]byte {
			stored, err := b.try(inLane(lane), func(j *job.Job) { j.Priority = priority })
			require.NoError(t, err)
			return stored.ID
		}
		var others, own [][16]byte
		for _, lane := range []string{"b", "a-b", "a0", ""} {
			others = append(others, add(lane, 9), add(lane, 0), add(lane, -9))
		}
		// In each lane the oldest has neither the highest priority nor the lowest.
		own = append(own, add("a", 0), add("a/key", 3), add("a", 5), add("a/key", 6), add("a", -7), add("a/key", -3), add("a/key2", 2))
		for n := range own {
			add([]string{"a", "a/key"}[n%2], int16(n-2))
			for i, id := range own {
				want := ojs.StateAvailable
				if i <= n {
					want = ojs.StateDiscarded
				}
				require.Equal(t, want, b.State(id), "own job %d after %d drops", i, n+1)
			}
		}
		for _, id := range others {
			require.Equal(t, ojs.StateAvailable, b.State(id))
		}
		b.RequireCounts()
	})

	t.Run("DropsTheOldestOfSeveralPrioritiesAtOnce", func(t *testing.T) {
		t.Parallel()
		for _, bound := range []string{"max_depth_per_tenant", "max_depth"} {
			for _, n := range []int{4, 5} {
				b := setup(t)
				b.bound("q", `{"`+bound+`":8,"strategy":"drop_oldest"}`)
				var old, late []*job.Job
				for _, priority := range []int16{5, -7, -5, -7} {
					for _, lane := range []string{"a", "a/key"} {
						old = append(old, domaintest.With(func(j *job.Job) { j.Lane, j.Priority = lane, priority }))
					}
				}
				for range n + 1 {
					late = append(late, domaintest.With(func(j *job.Job) { j.Lane, j.Priority = "a", 9 }))
				}
				stored, _, err := b.EnqueueAll(t.Context(), old)
				require.NoError(t, err)
				_, _, err = b.EnqueueAll(t.Context(), late)
				require.NoError(t, err)
				for i, j := range stored {
					require.Equal(t, i <= n, b.State(j.ID) == ojs.StateDiscarded, "%s: job %d of %d dropped ones", bound, i, n+1)
				}
			}
		}
	})

	t.Run("TooFewToDrop", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1,"strategy":"drop_oldest"}`)
		for range 2 {
			_, err := b.try(scheduledIn(time.Hour), func(j *job.Job) { j.Unbounded = true })
			require.NoError(t, err)
		}
		old, err := b.try(func(j *job.Job) { j.Unbounded = true })
		require.NoError(t, err)
		_, err = b.try()
		full(t, err, 2, 1)
		require.Equal(t, ojs.StateDiscarded, b.State(old.ID))
	})

	t.Run("ExactOverNodes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.node()
		b.bound("q", `{"max_depth_per_tenant":5}`, other)
		var stored [2]atomic.Int64
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				j := domaintest.With(inLane(fmt.Sprint("t", i/2%2)))
				if _, err := []*bundle{b, other}[i%2].Enqueue(t.Context(), j); err == nil {
					stored[i/2%2].Add(1)
				}
			})
		}
		all.Wait()
		require.Equal(t, []int64{5, 5}, []int64{stored[0].Load(), stored[1].Load()})
	})

	t.Run("InSQL", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth_per_tenant":1}`)
		const enqueue = `SELECT ojs.enqueue('t', '[]', 'q', json_build_object('meta', json_build_object('tenant_id', $1::text)))`
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		for _, tenant := range []string{"a", "b"} {
			_, err = tx.Exec(t.Context(), enqueue, tenant)
			require.NoError(t, err)
		}
		b.Exec(enqueue, "b")
		sqlFull(t, tx.Commit(t.Context()), "tenant b reached its bound of 1 jobs in queue q.")
		_, err = b.Pool.Exec(t.Context(), enqueue, "b")
		sqlFull(t, err, "tenant b reached its bound of 1 jobs in queue q.")
		b.Exec(enqueue, "a")
		b.Exec(`SELECT ojs.enqueue('t', '[]', 'q') FROM generate_series(1, 3)`)
	})
}

// TestTenantFetchesFromLimitedQueues: the statements that claim under the limits of queues keep to the tenant of the fetch.
func TestTenantFetchesFromLimitedQueues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	node := b.node()
	for _, n := range []*bundle{b, node} {
		n.configure("q", `{"concurrency":4}`)
	}
	b.inLanes(3, "b")
	b.inLanes(2, "a")
	b.inLanes(2, "a/key")
	fetch := func(tenant string, count int) []string {
		jobs, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"other", "q"}, Count: count, Tenant: tenant, WorkerID: "w1"})
		require.NoError(t, err)
		return lanesOf(jobs)
	}
	require.Empty(t, fetch("c", 10))
	require.ElementsMatch(t, []string{"a", "a/key", "a"}, fetch("a", 3))
	require.Equal(t, []string{"b"}, fetch("b", 10), "tenants share the limit of the queue")
	require.Empty(t, fetch("a", 10))

	// A waiting fetch is woken, and claims under the limit, too.
	got := make(chan []string, 1)
	go func() {
		jobs, _ := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 9, Tenant: "a", WorkerID: "w1", Wait: domaintest.WaitFor})
		got <- lanesOf(jobs)
	}()
	require.Eventually(t, func() bool { return node.Parked() == 1 }, domaintest.WaitFor, time.Millisecond)
	active := b.Texts(`SELECT id::text FROM ojs.jobs WHERE state = 'active' LIMIT 1`)
	id, _ := spec.ParseID(active[0])
	_, err := node.Complete(t.Context(), job.Ack{JobID: id, Attempt: job.AnyAttempt})
	require.NoError(t, err)
	require.Equal(t, []string{"a/key"}, <-got)
}

// TestHandOffKeepsToTheTenant: an enqueue that claims for waiting fetches gives each the jobs of its tenant.
func TestHandOffKeepsToTheTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Empty(t, b.Fetched(1, "q"))
	b.inLanes(1, "seen") // the node has to know of a number before it hands off
	b.Fetched(1, "q")
	got := make(chan []string, 3)
	for _, tenant := range []string{"a", "b"} {
		go func() {
			jobs, _ := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 5, Tenant: tenant, WorkerID: "w-" + tenant, Wait: domaintest.WaitFor})
			got <- append(lanesOf(jobs), "of "+tenant)
		}()
	}
	require.Eventually(t, func() bool { return b.Parked() == 2 }, domaintest.WaitFor, time.Millisecond)
	b.inLanes(2, "c", "")
	require.Equal(t, 2, b.Parked(), "jobs of others end no fetch")
	b.inLanes(1, "b/key", "b")
	first := <-got
	require.Equal(t, "of b", first[len(first)-1])
	for _, lane := range first[:len(first)-1] {
		require.Equal(t, "b", job.TenantOf(lane))
	}
	require.Greater(t, len(first), 1)
	b.inLanes(1, "a")
	require.Equal(t, []string{"a", "of a"}, <-got)
}
