package queueadmin_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
)

// planNode is a node of a plan.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Cond     string     `json:"Index Cond"`
	Plans    []planNode `json:"Plans"`
}

// whole are the indexes that a statement reads from their beginning, up to its LIMIT.
var whole = map[string]bool{"queues_set": true, "queues_pkey": true}

func (n planNode) problems() (found []string) {
	grows := strings.HasPrefix(n.Relation, "queue") || strings.HasPrefix(n.Relation, "jobs") || strings.HasPrefix(n.Relation, "events_") || n.Relation == "stats_minute"
	switch {
	case strings.Contains(n.Type, "Hash Join") || strings.Contains(n.Type, "Merge Join"):
		found = append(found, n.Type)
	case grows && (n.Type == "Seq Scan" || strings.HasPrefix(n.Type, "Bitmap")),
		grows && strings.HasPrefix(n.Type, "Index") && n.Cond == "" && !whole[n.Index]:
		found = append(found, n.Type+" of "+n.Relation+" "+n.Index)
	}
	for _, child := range n.Plans {
		found = append(found, child.problems()...)
	}
	return found
}

// TestPlans checks that every statement about queues finds its rows by an index, whatever the planner knows of the tables.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *domaintest.Config) { c.Unchecked = true })
	var statements [][][]byte
	for _, file := range []string{"queueadmin", "queueconfig", "queues", "system"} {
		text, err := os.ReadFile("../dbsqlc/" + file + ".sql.go")
		require.NoError(t, err)
		names := "Queue|Job"
		switch file {
		case "queues":
			names = "QueueListKnown|QueueInsert|QueueGet "
		case "system":
			names = "JobListForRetention"
		}
		statements = append(statements, regexp.MustCompile("(?s)const (\\w+) = `-- name: (?:"+names+")[^\n]*\n(.*?)`").FindAllSubmatch(text, -1)...)
	}
	require.Greater(t, len(statements), 18)
	pool, err := pg.Connect(t.Context(), pg.ConnectConfig{URL: b.Pool.Config().ConnString(), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, state := range []struct{ name, change string }{
		{"New", `SELECT 1`},
		{"Grown", `INSERT INTO ojs.queues (name) SELECT 'crowd-' || g FROM generate_series(1, 5000) g;
			INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, created_at, args) SELECT ojs.new_id(now()), 't', 'crowd-1', 'available', g, now(), '[]' FROM generate_series(1, 5000) g`},
		{"Analyzed", `ANALYZE ojs.queues, ojs.jobs, ojs.jobs_done, ojs.queue_version`},
		{"AllSet", `UPDATE ojs.queues SET config = '{}'; ANALYZE ojs.queues`},
		{"Emptied", `DELETE FROM ojs.jobs; DELETE FROM ojs.queues; ANALYZE ojs.queues, ojs.jobs`},
	} {
		_, err := b.Pool.Exec(t.Context(), state.change)
		require.NoError(t, err)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		for _, s := range statements {
			for _, problem := range explained(t, conn, string(s[2])).problems() {
				t.Errorf("%s: %s: %s", state.name, s[1], problem)
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
