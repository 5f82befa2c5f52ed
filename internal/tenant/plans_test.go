package tenant_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Cond     string     `json:"Index Cond"`
	Plans    []planNode `json:"Plans"`
}

// fromTheStart are statements that read an index from its beginning, one row or up to their LIMIT.
var fromTheStart = []string{"tenantCount", "tenancyGet", "jobListPage", "jobListFloor", "jobCountPage"}

func (n planNode) problems(statement string) (found []string) {
	grows := strings.HasPrefix(n.Relation, "jobs") || strings.HasPrefix(n.Relation, "events_") || n.Relation == "tenant_counts" || n.Relation == "workflows"
	switch {
	case strings.Contains(n.Type, "Hash Join") || strings.Contains(n.Type, "Merge Join"):
		found = append(found, n.Type)
	case grows && (n.Type == "Seq Scan" || strings.HasPrefix(n.Type, "Bitmap")),
		grows && strings.HasPrefix(n.Type, "Index") && n.Cond == "" && !slices.Contains(fromTheStart, statement):
		found = append(found, n.Type+" of "+n.Relation+" "+n.Index)
	}
	for _, child := range n.Plans {
		found = append(found, child.problems(statement)...)
	}
	return found
}

// indexes are those that a plan reads.
func (n planNode) indexes() (found []string) {
	if n.Index != "" {
		found = append(found, n.Index)
	}
	for _, child := range n.Plans {
		found = append(found, child.indexes()...)
	}
	return found
}

// TestPlans checks that the statements about tenants, and the lists of jobs, find their rows by an index, whatever the planner knows of
// the tables.
func TestPlans(t *testing.T) {
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
	pool, err := pg.Connect(t.Context(), pg.ConnectConfig{URL: b.Pool.Config().ConnString(), MaxConns: 1})
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
		for _, s := range statements {
			plan := explained(t, conn, string(s[2]))
			for _, problem := range plan.problems(string(s[1])) {
				t.Errorf("%s: %s: %s", state.name, s[1], problem)
			}
			if strings.HasPrefix(string(s[1]), "job") {
				require.Contains(t, plan.indexes(), "jobs_tenant", "%s: %s", state.name, s[1])
			}
		}
		conn.Release()
	}
}

// explained is the plan that the sessions of the pool use for a statement with parameters.
func explained(t *testing.T, conn *pgxpool.Conn, statement string) planNode {
	t.Helper()
	described, err := conn.Conn().Prepare(t.Context(), "", statement)
	require.NoError(t, err)
	args := strings.TrimSuffix(strings.Repeat("NULL,", len(described.ParamOIDs)), ",")
	if args != "" {
		args = "(" + args + ")"
	}
	_, err = conn.Exec(t.Context(), "PREPARE explained AS "+statement)
	require.NoError(t, err)
	var text []byte
	require.NoError(t, conn.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&text))
	_, err = conn.Exec(t.Context(), "DEALLOCATE explained")
	require.NoError(t, err)
	var plans []struct{ Plan planNode }
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan
}
