package limit_test

import (
	"encoding/json"
	"testing"

	"github.com/ojsd/ojsd/internal/config"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
)

// addLimited enqueues jobs that wait for limits, and lets one of a limited queue run.
func (b *bundle) addLimited(t *testing.T) {
	t.Helper()
	b.added(in(t, "plans", `{"key":"plans","concurrency":2,"rate":{"limit":10,"period":"PT1H"},"throttle":{"limit":1000,"period":"PT1S"},"on_limit":"reschedule"}`))
	b.added(in(t, "plans", `{"key":"plans","concurrency":2,"rate":{"limit":10,"period":"PT1H"},"throttle":{"limit":1000,"period":"PT1S"}}`))
	b.added(in(t, "limited", `{"limit":10,"period":"PT1H"}`))
	b.added(in(t, "full", `{"limit":1,"period":"PT1H","on_limit":"reschedule"}`))
	b.added(in(t, "full", `{"limit":1,"period":"PT1H","on_limit":"reschedule"}`))
	require.Len(t, b.Fetched(1, "full"), 1)
}

// TestPlans checks how much the functions read, in sessions that planned their statements after vacuum had found the jobs empty and whatever the
// planner knows of them later. A scan of the jobs would read thousands of buffers.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := &bundle{domaintest.New(t, func(c *domaintest.Config) { c.Unchecked = true })}
	pool, err := pg.Connect(t.Context(), config.Database{URL: b.Pool.Config().ConnString(), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args) SELECT gen_random_uuid(), 't', 'gone', 'pending', now(), '[]' FROM generate_series(1, 100)`)
	b.Exec(`DELETE FROM ojs.jobs`)
	for _, state := range []struct{ name, change string }{
		{"EmptyWithPages", `VACUUM (ANALYZE, TRUNCATE false) ojs.jobs`}, // the planner takes the table for one row, however it grows
		{"Grown", `INSERT INTO ojs.jobs (id, type, queue, state, created_at, args, ready_seq, limit_seq, limit_key)
				SELECT gen_random_uuid(), 't', 'crowd', 'available', now(), '[]', CASE WHEN i % 4 > 0 THEN i END, CASE WHEN i % 4 = 0 THEN i END, CASE WHEN i % 4 < 2 THEN 'other' END
				FROM generate_series(1, 100000) i;
			INSERT INTO ojs.limits (key, policy) SELECT 'other' || i, '{}' FROM generate_series(1, 50000) i;
			INSERT INTO ojs.queue_counts (queue, state, count) SELECT 'other' || i, 'active', 1 FROM generate_series(1, 50000) i;
			INSERT INTO ojs.limit_starts (key, at) SELECT 'other', now() FROM generate_series(1, 50000) i;
			INSERT INTO ojs.limit_pending (key, due_at, timer) SELECT 'other' || i, now() + interval '1 hour', true FROM generate_series(1, 50000) i`},
		{"Analyzed", `ANALYZE ojs.jobs, ojs.queue_counts, ojs.limits, ojs.limit_starts, ojs.limit_pending`},
		{"Emptied", `DELETE FROM ojs.jobs WHERE queue = 'crowd'; ANALYZE ojs.jobs`},
	} {
		b.Exec(state.change)
		if state.name == "Grown" {
			b.addLimited(t)
		}
		for _, statement := range []string{
			`SELECT * FROM ojs.limit_admit('{plans}', 0)`, `SELECT v.* FROM ojs.limits l CROSS JOIN LATERAL ojs.limit_view(l) v WHERE l.key = 'plans'`,
			`SELECT v.* FROM ojs.limits l CROSS JOIN LATERAL ojs.limit_view(l) v WHERE l.key = 'queue:limited'`,
			`SELECT * FROM ojs.limit_handle_blocked('{plans}', '', 0)`, `SELECT * FROM ojs.limit_queue_allowances('{limited}', ARRAY['{}'::json])`,
			`SELECT * FROM ojs.limit_prune(200)`, `SELECT * FROM ojs.limit_queue_handle_blocked('full', 'reschedule', '{""}', '{0}', '{0}', 10, 0)`, `SELECT ojs.limit_started('plans', now())`, `SELECT ojs.limit_enqueued('plans', '{}', true)`,
			`SELECT p.key FROM ojs.limit_pending p WHERE p.due_at <= now() ORDER BY p.due_at LIMIT 1000`,
			`SELECT q.name FROM (SELECT unnest('{plans,none}'::text[]) AS name) q WHERE (SELECT true FROM ojs.jobs j WHERE j.queue = q.name AND COALESCE(j.limit_seq, 0) > 0 LIMIT 1)`,
		} {
			var last int
			for range 7 { // a session keeps a plan from the sixth call on
				var text []byte
				require.NoError(t, pool.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement).Scan(&text))
				var plans []struct {
					Plan struct {
						Hit  int `json:"Shared Hit Blocks"`
						Read int `json:"Shared Read Blocks"`
					}
				}
				require.NoError(t, json.Unmarshal(text, &plans))
				last = plans[0].Plan.Hit + plans[0].Plan.Read
			}
			if last > 400 {
				t.Errorf("%s: %s reads %d buffers", state.name, statement, last)
			}
		}
	}
}
