package workflow_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ojsd/ojsd/internal/config"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
)

// readFromTheStart are statements that read an index from its beginning, up to their LIMIT.
var readFromTheStart = map[string][]string{
	"workflowListLeft": {"workflow_pending_pkey", "workflows_cancelling"},
	"workflowCount":    {"workflows_newest"},
}

func grows(relation string) bool {
	return strings.HasPrefix(relation, "workflow") || strings.HasPrefix(relation, "jobs") || strings.HasPrefix(relation, "events")
}

// TestPlans checks that every statement finds its rows by an index, whatever the planner knows of the tables.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *domaintest.Config) { c.Unchecked = true })
	text, err := os.ReadFile("../dbsqlc/workflows.sql.go")
	require.NoError(t, err)
	statements := regexp.MustCompile("(?s)const (\\w+) = `-- name: \\w+ :\\w+\n(.*?)`").FindAllSubmatch(text, -1)
	require.Greater(t, len(statements), 30)
	pool, err := pg.Connect(t.Context(), config.Database{URL: b.Pool.Config().ConnString(), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, state := range []struct{ name, change string }{
		{"New", `SELECT 1`},
		{"Grown", `INSERT INTO ojs.workflows (id, root_id, flow, last_flow, ancestors, path, type, name, state, steps_form, total, open, job_count, callbacks, created_at, ended_at)
			SELECT ojs.new_id(now()), gen_random_uuid(), 0, 0, '{}', '', 'chain', 'crowd', 'completed', false, 3, 0, 3, '{}', now(), now() FROM generate_series(1, 5000);
			INSERT INTO ojs.workflow_steps (root_id, flow, index, step_id, kind, type, state, job_id)
			SELECT w.root_id, 0, i, i::text, 'job', 't', 'completed', gen_random_uuid() FROM ojs.workflows w, generate_series(0, 2) i;
			INSERT INTO ojs.workflow_pending (root_id, job_id, state, at) SELECT w.id, w.id, 'completed', now() FROM ojs.workflows w`},
		{"Analyzed", `ANALYZE ojs.workflows, ojs.workflow_steps, ojs.workflow_pending, ojs.workflow_starts`},
		{"Emptied", `DELETE FROM ojs.workflow_pending; DELETE FROM ojs.workflow_steps; DELETE FROM ojs.workflows; ANALYZE ojs.workflows, ojs.workflow_steps, ojs.workflow_pending, ojs.jobs, ojs.jobs_done`},
	} {
		_, err := b.Pool.Exec(t.Context(), state.change)
		require.NoError(t, err)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		for _, s := range statements {
			whole := func(index string) bool { return slices.Contains(readFromTheStart[string(s[1])], index) }
			for _, problem := range domaintest.Explained(t, conn, string(s[2])).Problems(grows, whole) {
				t.Errorf("%s: %s: %s", state.name, s[1], problem)
			}
		}
		conn.Release()
	}
}
