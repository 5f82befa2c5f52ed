package queueadmin_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ojsd/ojsd/internal/config"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/pg"
)

// whole are the indexes that a statement reads from their beginning, up to its LIMIT.
var whole = map[string]bool{"queues_set": true, "queues_pkey": true}

func grows(relation string) bool {
	return strings.HasPrefix(relation, "queue") || strings.HasPrefix(relation, "jobs") || strings.HasPrefix(relation, "events_") || relation == "stats_minute"
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
	pool, err := pg.Connect(t.Context(), config.Database{URL: b.Pool.Config().ConnString(), MaxConns: 1})
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
			for _, problem := range domaintest.Explained(t, conn, string(s[2])).Problems(grows, func(index string) bool { return whole[index] }) {
				t.Errorf("%s: %s: %s", state.name, s[1], problem)
			}
		}
		conn.Release()
	}
}
