package limit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/limit"
)

// TestExact is about one key with both limits, and 64 fetchers of two nodes. What ran when is read from the events, whose times are those of
// the database.
func TestExact(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const (
		policy         = `{"key":"k","concurrency":5,"rate":{"limit":20,"period":"PT0.5S"}}`
		jobs, fetchers = 90, 64
	)
	nodes := []*bundle{b, b.node()}
	for _, n := range nodes {
		follower := limit.NewFollower(n.Archetype, n.Limits)
		require.NoError(t, follower.Start(t.Context()))
		t.Cleanup(follower.Stop)
	}
	for range jobs {
		b.added(limited(t, policy))
	}
	var done atomic.Int64
	var all sync.WaitGroup
	for w := range fetchers {
		node, worker := nodes[w%2], fmt.Sprint("w", w)
		all.Go(func() {
			for deadline := time.Now().Add(domaintest.WaitFor); done.Load() < jobs && time.Now().Before(deadline); {
				got, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1 + w%3, WorkerID: worker, Wait: 200 * time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				for i, j := range got {
					if j.Attempt == 1 && i == 1 { // a worker that gives back what it has no time for: that was a start, too
						_, err = node.Fail(t.Context(), job.Nack{JobID: j.ID, WorkerID: worker, Attempt: job.AnyAttempt, Requeue: true})
					} else {
						_, err = node.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: worker, Attempt: job.AnyAttempt})
						done.Add(1)
					}
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, jobs, done.Load())
	require.GreaterOrEqual(t, b.Number(`SELECT count(*) FROM ojs.events WHERE to_state = 'active'`), jobs)
	most := b.Number(`SELECT max(running) FROM (SELECT sum((to_state IS NOT DISTINCT FROM 'active')::int - (from_state IS NOT DISTINCT FROM 'active')::int)
		OVER (ORDER BY time, (to_state IS NOT DISTINCT FROM 'active')) AS running FROM ojs.events WHERE to_state = 'active' OR from_state = 'active') e`)
	require.LessOrEqual(t, most, 5)
	require.Greater(t, most, 1)
	require.Zero(t, b.Number(`SELECT count(*) FROM (SELECT time, lag(time, 20) OVER (ORDER BY time) AS before FROM ojs.events WHERE to_state = 'active') e
		WHERE time - before < interval '0.5 s'`), "more than 20 starts in half a second")
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs`))
}

// TestKilledNode is about a node that is gone after the commit of a change and before, or while, it lets the next job start.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]domaintest.Loss{
		"BeforeItAdmits": domaintest.LoseRequest, "AfterItAdmitted": domaintest.LoseAnswer, "WhileItAdmits": domaintest.LoseSession,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := dbtest.New(t)
			lossy, network := domaintest.NewLossy(t, pool)
			unchecked := func(c *domaintest.Config) { c.Unchecked = true }
			b, dying := &bundle{domaintest.On(t, pool, unchecked)}, &bundle{domaintest.On(t, lossy, unchecked)}
			const two = `{"key":"k","concurrency":2}`
			var ids [][16]byte
			for range 6 {
				ids = append(ids, b.added(limited(t, two)))
			}
			require.Equal(t, ids[:2], dying.fetched())
			network.BreakForGood(loss, "name: LimitAdmit ")
			dying.ack(ids[0])
			require.Equal(t, 1, network.Broken())
			b.untilFetched(ids[2])
			require.Empty(t, b.fetched(), "the job of the killed node still runs")
			b.ack(ids[1], ids[2])
			require.Equal(t, ids[3:5], b.fetched())
			b.ack(ids[3:5]...)
			require.Equal(t, ids[5:], b.fetched())
			b.ack(ids[5])
			require.Eventually(t, func() bool {
				_, err := b.Limits.AdmitDue(context.WithoutCancel(t.Context()))
				require.NoError(t, err)
				return b.Number(`SELECT count(*) FROM ojs.limit_pending`) == 0
			}, domaintest.WaitFor, 10*time.Millisecond)
		})
	}
}
