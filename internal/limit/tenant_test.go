package limit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/ojs"
)

// of is a job of a tenant in queue q with a rate limit.
func of(t testing.TB, tenant, policy string) *job.Job {
	t.Helper()
	j, wire := job.DecodeItem(fmt.Appendf(nil, `{"type":"test.job","args":[1],"options":{"queue":"q","rate_limit":%s}}`, policy), job.Limits{Tenant: tenant})
	require.Nil(t, wire)
	return j
}

// fetchedOf are the ids of the jobs that a fetch of a tenant gets.
func (b *bundle) fetchedOf(tenant string) (ids [][16]byte) {
	b.T.Helper()
	jobs, err := b.Fetch(b.T.Context(), job.Fetch{Queues: []string{"q"}, Count: 10, Tenant: tenant, WorkerID: "w1"})
	require.NoError(b.T, err)
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// TestLimitsOfTenants: the same key of two tenants is two partitions, on every node.
func TestLimitsOfTenants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	node := b.node()
	const one = `{"key":"k","concurrency":1}`
	a1, a2 := b.added(of(t, "a", one)), node.added(of(t, "a", one))
	b1 := node.added(of(t, "b", `{"key":"k","concurrency":5}`))
	none := b.added(limited(t, one))
	require.Equal(t, []string{"a/k", "b/k", "k"}, b.Texts(`SELECT key FROM ojs.limits ORDER BY key`))
	require.Equal(t, [][16]byte{a1}, node.fetchedOf("a"))
	require.Empty(t, b.fetchedOf("a"))
	require.Equal(t, [][16]byte{b1}, b.fetchedOf("b"))
	require.Equal(t, [][16]byte{none}, b.fetched())
	b.ack(a1)
	require.Equal(t, [][16]byte{a2}, b.fetchedOf("a"))

	keys := func(l limit.List) (keys string) {
		l.Limit = 10
		page, err := b.Limits.List(t.Context(), l)
		require.NoError(t, err)
		for _, p := range page.Partitions {
			keys += p.Key + " "
		}
		return fmt.Sprint(keys, page.Total)
	}
	require.Equal(t, "a/k b/k k 3", keys(limit.List{}))
	require.Equal(t, "a/k 1", keys(limit.List{Tenant: "a"}))
	require.Equal(t, "1", keys(limit.List{Tenant: "a", After: "a/k"}))
	require.Equal(t, "0", keys(limit.List{Tenant: "c"}))

	b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('l', '{"concurrency":3}'), ('m', '{"concurrency":3}')`)
	require.NoError(t, b.Configured.Refresh(t.Context()))
	require.Equal(t, "a/k b/k k queue:l queue:m 5", keys(limit.List{}))
	b.Exec(`UPDATE ojs.queues SET config = NULL WHERE name = 'l'`)
	require.NoError(t, b.Configured.Refresh(t.Context()))
	require.Equal(t, "a/k b/k k queue:m 4", keys(limit.List{}), "a queue that has no limit any more")
}

// TestFetchOfATenantMeetsItsJobsOnly: what a policy says of jobs that a fetch finds blocked does not happen to jobs that it cannot get.
func TestFetchOfATenantMeetsItsJobsOnly(t *testing.T) {
	t.Parallel()
	for effect, state := range map[string]ojs.JobState{"drop": ojs.StateDiscarded, "reschedule": ojs.StateScheduled} {
		t.Run(effect, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			policy := `{"key":"k","concurrency":0,"on_limit":"` + effect + `"}`
			theirs, own, keyed := b.added(of(t, "a", policy)), b.added(of(t, "b", policy)), of(t, "b", policy)
			keyed.Lane = "b/a"
			b.added(keyed)
			require.Empty(t, b.fetchedOf("b"))
			require.Equal(t, ojs.StateAvailable, b.State(theirs))
			require.Equal(t, []ojs.JobState{state, state}, []ojs.JobState{b.State(own), b.State(keyed.ID)})
			require.Eventually(t, func() bool { return len(b.fetched()) == 0 && b.State(theirs) == state }, domaintest.WaitFor, time.Millisecond)
		})
	}

	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		b := setup(t, stopped) // so the fetch has to find that they may start
		const policy = `{"key":"k","concurrency":1}`
		theirs, own := b.added(of(t, "a", policy)), b.added(of(t, "b", policy))
		require.Equal(t, [][16]byte{own}, b.fetchedOf("b"))
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE id = $1 AND limit_seq > 0`, theirs))
	})
}

// TestSharedLimitsAreNotForTenants: a tenant cannot limit the jobs of others.
func TestSharedLimitsAreNotForTenants(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{`{"max_per_second":1}`, `{"limit":1,"period":"1s"}`, `{"key":"k","concurrency":1,"scope":"global"}`} {
		body := fmt.Appendf(nil, `{"type":"t","args":[],"rate_limit":%s}`, policy)
		_, wire := job.DecodeJob(body, job.Limits{Tenant: "a"})
		require.NotNil(t, wire, policy)
		require.Equal(t, string(ojs.ErrPermissionDenied), wire.Type, policy)
		_, wire = job.DecodeJob(body, job.Limits{})
		require.Nil(t, wire, policy)
	}
	j, wire := job.DecodeJob([]byte(`{"type":"t","args":[],"meta":{"tenant_id":"a"},"rate_limit":{"key":"k","scope":"global"}}`), job.Limits{})
	require.Nil(t, wire)
	require.Equal(t, "k", j.LimitKey, "an operator may let tenants share one")
	j, wire = job.DecodeJob([]byte(`{"type":"t","args":[],"meta":{"tenant_id":"a"},"rate_limit":{"key":"k"}}`), job.Limits{})
	require.Nil(t, wire)
	require.Equal(t, "a/k", j.LimitKey)
}
