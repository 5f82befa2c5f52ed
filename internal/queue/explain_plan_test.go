package queue_test

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// buffersOf is how many pages a query reads.
func buffersOf(t *testing.T, db querier, query string, args ...any) int {
	t.Helper()
	var text []byte
	require.NoError(t, db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query, args...).Scan(&text))
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// TestExplainReadsFewHolds: a pool whose concurrency was much higher has many rows of jobs whose runs have ended.
func TestExplainReadsFewHolds(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	b.served()
	b.Exec(`UPDATE ojs.workers SET facts = '{"pool":"p"}'`)
	b.Exec(`INSERT INTO ojs.pools (name, definition, concurrency) VALUES ('p', '{"queues":["q"],"isolated":true}', 1)`)
	id := b.Enqueued(domaintest.NewJob("q"))[0].ID
	read := func() int { return buffersOf(t, b.Pool, `SELECT ojs.explain($1)`, id) }
	read()
	before := read()
	b.Exec(`INSERT INTO ojs.pool_holds (pool, id, jobs, started_at) SELECT 'p', ojs.new_id(now()), 1, now() FROM generate_series(1, 20000)`)
	require.Equal(t, "next", b.explain(id).codes())
	require.Less(t, read()-before, 10_000, "a thousand at most are looked at, each with its job")
}

// TestExplainReadsLittle has jobs explained behind a crowd of 100 000, whatever the planner knows of the tables. The crowd has 3 000 pages and
// more; a count of 10 000 reads some hundred.
func TestExplainReadsLittle(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, unchecked)
	b.served()
	conn, err := b.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET enable_seqscan = off; SET enable_bitmapscan = off`) // as ojs.explain does for the functions that it calls
	require.NoError(t, err)
	buffers := func(query string, args ...any) int { t.Helper(); return buffersOf(t, conn, query, args...) }
	crowd := func(count int) {
		b.Exec(`INSERT INTO ojs.jobs (id, type, queue, lane, state, priority, ready_seq, limit_key, limit_seq, created_at, args)
			SELECT ojs.new_id(now()), 't', CASE i % 10 WHEN 0 THEN 'other' ELSE 'q' END, CASE i % 7 WHEN 0 THEN 't' || i % 1000 ELSE '' END, 'available', i % 3, CASE WHEN i % 4 > 0 THEN -i END, CASE WHEN i % 4 = 0 THEN 'k' END,
				CASE WHEN i % 4 = 0 THEN -i END, now(), '[]' FROM generate_series(1, $1) i`, count)
	}
	for _, state := range []struct {
		name   string
		change func()
	}{
		{"New", func() {}},
		{"Grown", func() { crowd(100_000) }},
		{"Analyzed", func() { b.Exec(`ANALYZE ojs.jobs, ojs.jobs_done, ojs.queues, ojs.workers, ojs.stats_minute`) }},
		{"Emptied", func() {
			deleted := b.One(`WITH d AS (DELETE FROM ojs.jobs) SELECT pg_current_xact_id()::text`)
			b.Exec(`ANALYZE ojs.jobs`)
			// A reader marks the index entry of a deleted row only if the deletion is older than every open transaction of the server, those of
			// other tests included. Until then each reader reads all entries.
			require.Eventually(t, func() bool {
				return b.Number(`SELECT (pg_snapshot_xmin(pg_current_snapshot()) > $1::xid8)::int`, deleted) == 1
			}, 5*time.Minute, 10*time.Millisecond)
		}},
		{"GrownAgain", func() { crowd(100_000) }},
	} {
		state.change()
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.Priority = -1 }))[0].ID
		inLane := b.Enqueued(domaintest.With(func(j *job.Job) { j.Lane = "t5/x" }))[0].ID
		var waiting [16]byte
		require.NoError(t, b.Pool.QueryRow(t.Context(), `INSERT INTO ojs.jobs (id, type, queue, state, priority, limit_key, limit_seq, created_at, args)
			VALUES (ojs.new_id(now()), 't', 'q', 'available', 0, 'k', 1, now(), '[]') RETURNING id`).Scan(&waiting))
		for call := range 7 { // from the sixth call on with a generic plan, if that looks cheaper
			of := buffers(`SELECT ojs.explain($1)`, id)
			ofLane := buffers(`SELECT ojs.explain($1)`, inLane)
			ofWaiting := buffers(`SELECT ojs.explain_waiting(j, 10001) FROM ojs.jobs j WHERE j.id = $1`, waiting)
			if call > 0 { // the first reader of dead rows marks their index entries
				require.LessOrEqual(t, of, 2500, state.name)
				require.LessOrEqual(t, ofLane, 2500, state.name)
				require.LessOrEqual(t, ofWaiting, 2500, state.name)
			}
		}
	}
}

// TestDropReadsLittle: an enqueue into a full queue that drops the oldest job reads few of the many that wait.
func TestDropReadsLittle(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, unchecked)
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, lane, state, priority, ready_seq, limit_key, limit_seq, created_at, args)
		SELECT ojs.new_id(now()), 't', 'q', CASE i % 3 WHEN 0 THEN 't/k' ELSE 't' END, 'available', i % 2, CASE WHEN i % 4 > 0 THEN i END, CASE WHEN i % 4 = 0 THEN 'k' END,
			CASE WHEN i % 4 = 0 THEN i END, now(), '[]' FROM generate_series(1, 50000) i`)
	b.Exec(`ANALYZE ojs.jobs`)
	source, err := os.ReadFile("../dbsqlc/bounds.sql.go")
	require.NoError(t, err)
	for name, args := range map[string][]any{"jobListOldest": {"q", 100, 0, 10}, "jobListOldestByTenant": {"q", "t", 100, 0, 10}} {
		text := regexp.MustCompile("(?s)const " + name + " = `(.*?)`").FindSubmatch(source)
		require.NotNil(t, text, name)
		require.Less(t, buffersOf(t, b.Pool, string(text[1]), args...), 1000, name)
	}
}
