package queueadmin_test

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

// fromTheStart are statements that read an index from its beginning, one row or up to their LIMIT.
var fromTheStart = []string{"tenantCount", "tenancyGet", "jobListPage", "jobListFloor", "jobCountPage"}

func tenantGrows(relation string) bool {
	return strings.HasPrefix(relation, "jobs") || strings.HasPrefix(relation, "events_") || relation == "tenant_counts" || relation == "workflows"
}

// TestPlans checks that the statements about tenants, and the lists of jobs, find their rows by an index, whatever the planner knows of
// the tables.
func TestTenantPlans(t *testing.T) {
	t.Parallel()
	b := domaintest.New(t, func(c *domaintest.Config) { c.Unchecked = true })
	var statements [][][]byte
	for _, file := range []string{"tenants", "jobs", "admin"} {
		text, err := os.ReadFile("../dbsqlc/" + file + ".sql.go")
		require.NoError(t, err)
		for _, s := range regexp.MustCompile("(?s)const (\\w+) = `-- name: \\w+ :\\w+\n(.*?)`").FindAllSubmatch(text, -1) {
			name := string(s[1])
			if file == "tenants" || slices.Contains([]string{"jobListPage", "jobListFloor", "jobCountPage", "jobListForBulk", "jobSearchNewest", "jobSearchOldest"}, name) {
				statements = append(statements, s)
			}
		}
	}
	require.Greater(t, len(statements), 15)
	pool, err := pg.Connect(t.Context(), config.Database{URL: b.Pool.Config().ConnString(), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, state := range []struct{ name, change string }{
		{"New", `SELECT 1`},
		{"OneTenant", `INSERT INTO ojs.jobs (id, type, queue, lane, state, priority, max_attempts, args, created_at)
			SELECT ojs.new_id(now()), 't', 'q', 'only', 'available', 0, 3, '[]', now() FROM generate_series(1, 5000);
			INSERT INTO ojs.tenant_counts SELECT 't' || i, 'q' || i % 7, 'available', 1 FROM generate_series(1, 5000) i`},
		{"OneTenantAnalyzed", `ANALYZE ojs.jobs, ojs.jobs_done, ojs.tenant_counts`},
		{"ManyTenantsAnalyzed", `UPDATE ojs.jobs SET lane = 't' || substr(id::text, 32, 4); ANALYZE ojs.jobs`},
		{"Emptied", `DELETE FROM ojs.jobs; DELETE FROM ojs.tenant_counts; ANALYZE ojs.jobs, ojs.jobs_done, ojs.tenant_counts`},
	} {
		_, err := b.Pool.Exec(t.Context(), state.change)
		require.NoError(t, err)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		t.Cleanup(conn.Release) // after a failure
		for _, s := range statements {
			whole := func(string) bool { return slices.Contains(fromTheStart, string(s[1])) }
			plan := domaintest.Explained(t, conn, string(s[2]))
			for _, problem := range plan.Problems(tenantGrows, whole) {
				t.Errorf("%s: %s: %s", state.name, s[1], problem)
			}
			if strings.HasPrefix(string(s[1]), "job") {
				require.Contains(t, plan.Indexes(), "jobs_tenant", "%s: %s", state.name, s[1])
				if slices.Contains(plan.Sorted(), "jobs_tenant") {
					t.Errorf("%s: %s reads and sorts all jobs of the tenant", state.name, s[1])
				}
			}
		}
		conn.Release()
	}
}
