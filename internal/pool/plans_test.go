package pool_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ojsd/ojsd/internal/config"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/pg"
)

// scans are the ways to read a table that must not occur, whatever the planner knows of it.
var scans = regexp.MustCompile(`Seq Scan on (jobs|queues|queue_counts|stats_minute|workers|pool_holds)\b|Bitmap|Hash Join|Merge Join`)

// TestPlans checks that every statement finds its rows by an index.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text, err := os.ReadFile("../dbsqlc/pools.sql.go")
	require.NoError(t, err)
	statements := regexp.MustCompile("(?s)const (\\w+) = `-- name: \\w+ :\\w+\n(.*?)`").FindAllSubmatch(text, -1)
	require.Greater(t, len(statements), 8)
	pool, err := pg.Connect(t.Context(), config.Database{URL: b.Pool.Config().ConnString(), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, state := range []struct{ name, change string }{
		{"New", `SELECT 1`},
		{"Grown", `INSERT INTO ojs.queues (name) SELECT 'q' || n FROM generate_series(1, 5000) n;
			INSERT INTO ojs.queue_counts (queue, state, count) SELECT 'q' || n, 'available', 1 FROM generate_series(1, 5000) n;
			INSERT INTO ojs.pool_holds (pool, id, jobs, started_at) SELECT 'p' || n % 10, gen_random_uuid(), 1, now() FROM generate_series(1, 5000) n`},
		{"Analyzed", `ANALYZE ojs.queues, ojs.queue_counts, ojs.pool_holds, ojs.stats_minute, ojs.jobs, ojs.workers`},
	} {
		b.Exec(state.change)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		for _, s := range statements {
			described, err := conn.Conn().Prepare(t.Context(), "", string(s[2]))
			require.NoError(t, err)
			args := strings.TrimSuffix(strings.Repeat("NULL,", len(described.ParamOIDs)), ",")
			if args != "" {
				args = "(" + args + ")"
			}
			_, err = conn.Exec(t.Context(), "PREPARE explained AS "+string(s[2]))
			require.NoError(t, err)
			var plan []byte
			require.NoError(t, conn.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&plan))
			if found := planProblem(plan); found != "" {
				t.Errorf("%s: %s: %s\n%s", state.name, s[1], found, plan)
			}
			_, err = conn.Exec(t.Context(), "DEALLOCATE explained")
			require.NoError(t, err)
		}
		conn.Release()
	}
}

var node = regexp.MustCompile(`"Node Type": "([^"]+)"(?s:.{0,400}?)(?:"Relation Name": "([^"]+)"|"Startup Cost")`)

func planProblem(plan []byte) string {
	for _, m := range node.FindAllSubmatch(plan, -1) {
		line := string(m[1])
		if len(m[2]) > 0 {
			line += " on " + string(m[2])
		}
		if scans.MatchString(line) {
			return line
		}
	}
	return ""
}
