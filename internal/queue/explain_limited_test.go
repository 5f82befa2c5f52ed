package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestExplainLimited(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, unchecked)
	b.served()
	jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
	b.Exec(`SELECT ojs.limit_set('k', '{"concurrency":2}')`)
	b.Exec(`UPDATE ojs.jobs SET limit_key = 'k', limit_seq = ready_seq, ready_seq = NULL`)
	b.Exec(`UPDATE ojs.jobs SET limit_seq = NULL, state = 'active' WHERE id = $1`, jobs[0].ID)
	e := b.explain(jobs[2].ID)
	require.Equal(t, "limited", e.codes())
	require.Equal(t, []any{"k", 1.0, 1.0, 2.0, 1.0}, []any{e.Reasons[0]["key"], e.Reasons[0]["room"], e.Reasons[0]["waiting_ahead"], e.Reasons[0]["concurrency"], e.Reasons[0]["active"]})
	require.InDelta(t, 0.1, e.Estimate.WaitSeconds, 0.01, "two at once run 0.1 s each")
	b.Exec(`SELECT ojs.limit_set('k', '{"concurrency":1}')`)
	require.InDelta(t, 0.2, b.explain(jobs[2].ID).Estimate.WaitSeconds, 0.01, "one after the other")
	b.Exec(`SELECT ojs.limit_set('k', '{"concurrency":2}')`)
	b.Exec(`UPDATE ojs.jobs SET ready_seq = limit_seq, limit_seq = NULL WHERE id = $1`, jobs[1].ID) // it may be fetched
	e = b.explain(jobs[2].ID)
	require.Equal(t, []any{0.0, 0.0, 1.0}, []any{e.Reasons[0]["room"], e.Reasons[0]["waiting_ahead"], e.Reasons[0]["admitted"]})
	b.Exec(`UPDATE ojs.jobs SET limit_seq = ready_seq, ready_seq = NULL WHERE id = $1`, jobs[1].ID)
	b.Exec(`SELECT ojs.limit_set('k', '{"concurrency":0}')`)
	e = b.explain(jobs[2].ID)
	require.Equal(t, "limited", e.codes())
	require.Nil(t, e.Estimate, "no job may start")
	require.Equal(t, []any{0.0, 1.0}, []any{e.Reasons[0]["concurrency"], e.Reasons[0]["active"]})
	b.Exec(`SELECT ojs.limit_set('k', '{"rate":{"limit":2,"us":10000000}}')`)
	b.Exec(`INSERT INTO ojs.limit_starts (key, at) VALUES ('k', now()), ('k', now())`)
	require.InDelta(t, 10, b.explain(jobs[2].ID).Estimate.WaitSeconds, 0.5)
	b.Exec(`SELECT ojs.limit_set('k', '{"rate":{"limit":1,"us":10000000}}')`)
	e = b.explain(jobs[2].ID)
	require.InDelta(t, 20, e.Estimate.WaitSeconds, 0.5)
	require.Equal(t, []any{1.0, 10_000.0, 1.0}, []any{e.Reasons[0]["rate_limit"], e.Reasons[0]["rate_period_ms"], e.Reasons[0]["started_in_period"]})
	b.Exec(`UPDATE ojs.limits SET blocked_until = now() + interval '1 minute'`)
	require.InDelta(t, 60, b.explain(jobs[1].ID).Estimate.WaitSeconds, 5)
	b.Exec(`SELECT ojs.limit_set('k', '{"throttle":{"limit":1,"us":3600000000}}')`)
	e = b.explain(jobs[2].ID)
	require.InDelta(t, 7200, e.Estimate.WaitSeconds, 300, "one in an hour, and one waits before it")
	require.EqualValues(t, 3_600_000, e.Reasons[0]["throttle_interval_ms"])
	b.Exec(`DELETE FROM ojs.limits`)
	e = b.explain(jobs[1].ID)
	require.Equal(t, "limited", e.codes())
	require.Equal(t, "Its rate limit k lets no job start now, and 0 jobs wait before it.", e.Summary)

	b.ConfigureQueue("q", `{"rate_limit":{"rate":{"limit":1,"period":"PT1M"}}}`)
	b.Exec(`SELECT ojs.limit_set('queue:q', '{"rate":{"limit":1,"us":60000000}}')`)
	b.Exec(`SELECT ojs.limit_set('queue:other', '{"rate":{"limit":1,"us":60000000}}')`)
	b.Exec(`INSERT INTO ojs.limit_starts (key, at) VALUES ('queue:other', now() + interval '1 minute')`)
	require.Equal(t, "limited", b.explain(jobs[1].ID).codes(), "the limit is that of another queue")
	b.Exec(`INSERT INTO ojs.limit_starts (key, at) VALUES ('queue:q', now() + interval '1 minute')`)
	e = b.explain(jobs[1].ID)
	require.Equal(t, "queue_limited limited", e.codes())
	require.Equal(t, []any{1.0, 60_000.0, 1.0}, []any{e.Reasons[0]["rate_limit"], e.Reasons[0]["rate_period_ms"], e.Reasons[0]["started_in_period"]})
	b.ConfigureQueue("q", `{"concurrency":0}`)
	b.Exec(`UPDATE ojs.jobs SET limit_key = NULL, limit_seq = NULL, ready_seq = limit_seq WHERE id = $1`, jobs[2].ID)
	e = b.explain(jobs[2].ID)
	require.Equal(t, "queue_limited", e.codes())
	require.Nil(t, e.Estimate, "no job may start")
	require.Equal(t, []any{0.0, 0.0}, []any{e.Reasons[0]["concurrency"], e.Reasons[0]["active"]})
	b.ConfigureQueue("q", "")
	require.Equal(t, "limited", b.explain(jobs[1].ID).codes())
}
