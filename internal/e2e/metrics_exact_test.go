package e2e_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// client makes a random workload on one node and in SQL.
type client struct {
	node     *node
	pool     *pgxpool.Pool
	rng      *rand.Rand
	worker   string
	known    []string // jobs
	reserved []string
}

func (c *client) one(list []string) string {
	if len(list) == 0 {
		return newID()
	}
	return list[c.rng.IntN(len(list))]
}

func (c *client) call(method, path, body string, args ...any) reply {
	r := c.node.do(method, "/ojs/v1/"+path, strings.NewReader(fmt.Sprintf(body, args...)))
	require.Less(c.node.t, r.status, 500, "%s %s: %s", method, path, r.body)
	return r
}

func (c *client) job() string {
	more := []string{
		``, ``, ``, `,"scheduled_at":"PT0.1S"`, `,"pending":true`, `,"expires_at":"PT0.2S"`, `,"visibility_timeout":"PT0.2S"`,
		`,"retry":{"max_attempts":2,"initial_interval":"PT0.05S","on_exhaustion":"dead_letter"}`, `,"timeout_ms":150`,
	}
	return fmt.Sprintf(`{"type":"t%d","args":[],"queue":"q%d"%s}`, c.rng.IntN(3), c.rng.IntN(2), more[c.rng.IntN(len(more))])
}

func (c *client) note(r reply, path string) {
	if r.status < 300 && r.has(path) {
		c.known = append(c.known, r.at(path))
	}
}

func (c *client) drop(id string) {
	for i, reserved := range c.reserved {
		if reserved == id {
			c.reserved = append(c.reserved[:i], c.reserved[i+1:]...)
			return
		}
	}
}

// step makes one random call, valid or not.
func (c *client) step() {
	id, reserved := c.one(c.known), c.one(c.reserved)
	switch c.rng.IntN(22) {
	case 0, 1, 2, 3:
		c.note(c.call("POST", "jobs", "%s", c.job()), "job.id")
	case 4:
		r := c.call("POST", "jobs/batch", `{"jobs":[%s,%s,%s]}`, c.job(), c.job(), c.job())
		c.note(r, "jobs.0.id")
	case 5:
		c.call("POST", "jobs/bulk", `{"jobs":[%s,{"type":"bad"},%s],"on_error":"continue"}`, c.job(), c.job())
	case 6, 7, 8, 9:
		r := c.call("POST", "workers/fetch", `{"queues":["q0","q1"],"count":3,"worker_id":"%s"}`, c.worker)
		for _, got := range r.list("jobs", "id") {
			c.reserved, c.known = append(c.reserved, got), append(c.known, got)
		}
	case 10, 11:
		c.call("POST", "workers/ack", `{"job_id":"%s","worker_id":"%s"}`, reserved, c.worker)
		c.drop(reserved)
	case 12:
		c.call("POST", "workers/nack", `{"job_id":"%s","error":{"message":"boom"}}`, reserved)
		c.drop(reserved)
	case 13:
		c.call("POST", "workers/nack", `{"job_id":"%s","error":{"code":"DEAD_LETTER","message":"boom"}}`, reserved)
		c.drop(reserved)
	case 14:
		c.call("POST", "workers/nack", `{"job_id":"%s","requeue":true}`, reserved)
		c.drop(reserved)
	case 15:
		c.call("POST", "workers/heartbeat", `{"worker_id":"%s","active_jobs":["%s"]}`, c.worker, reserved)
	case 16:
		c.call("PUT", "jobs/"+reserved+"/progress", `{"progress":%v}`, c.rng.Float64())
	case 17:
		c.call("DELETE", "jobs/"+id, "")
	case 18:
		c.call("POST", "jobs/"+id+"/activate", "")
	case 19:
		op := []string{"cancel", "retry", "delete"}[c.rng.IntN(3)]
		c.call("POST", "jobs/bulk/"+op, `{"job_ids":["%s","%s"]}`, id, c.one(c.known))
	case 20:
		path := []string{"dead-letter/" + id + "/retry", "dead-letter/purge?queue=q1", "cron/c/trigger"}[c.rng.IntN(3)]
		c.call("POST", path, `{}`)
	case 21:
		c.inSQL(id)
	}
}

// inSQL enqueues or cancels in SQL; every fourth transaction is rolled back.
func (c *client) inSQL(id string) {
	ctx, t := c.node.t.Context(), c.node.t
	tx, err := c.pool.Begin(ctx)
	require.NoError(t, err)
	for range 1 + c.rng.IntN(3) {
		_, err = tx.Exec(ctx, `SELECT ojs.enqueue($1, '[]', $2, $3)`, fmt.Sprintf("t%d", c.rng.IntN(3)), fmt.Sprintf("q%d", c.rng.IntN(2)),
			[]string{`{}`, `{"scheduled_at":"PT0.1S"}`, `{"pending":true}`}[c.rng.IntN(3)])
		require.NoError(t, err)
	}
	_, err = tx.Exec(ctx, `SELECT ojs.cancel($1)`, id)
	require.NoError(t, err)
	if c.rng.IntN(4) == 0 {
		require.NoError(t, tx.Rollback(ctx))
		return
	}
	require.NoError(t, tx.Commit(ctx))
}

// exactSeries are counters with the events that they count, by labels as scrape.values writes them.
var exactSeries = []struct{ name, labels, where, value string }{
	{"ojs_jobs_enqueued_total", byType, "type = 'job.enqueued'", ""},
	{"ojs_jobs_completed_total", byType, "type = 'job.completed'", ""},
	{"ojs_jobs_failed_total", byType, "type = 'job.discarded'", ""},
	{"ojs_job_attempts_failed_total", byType, "type = 'job.failed'", ""},
	{"ojs_jobs_retrying_total", byType, "type = 'job.retrying'", ""},
	{"ojs_jobs_cancelled_total", byType, "type = 'job.cancelled'", ""},
	{"ojs_jobs_expired_total", byType, "type = 'job.expired'", ""},
	{"ojs_jobs_scheduled_total", byType, "type = 'job.scheduled'", ""},
	{"ojs_progress_updates_total", byType, "type = 'job.progress'", ""},
	{"ojs_jobs_duration_ms", byType, "type IN ('job.completed', 'job.failed')", "duration_ms"},
	{"ojs_jobs_wait_ms", byType, "type = 'job.started'", "duration_ms"},
	{"ojs_lease_losses_total", byType + ` || ',reason=' || (data->'error'->>'code')`, "type = 'job.failed' AND source = 'scheduler'", ""},
	{"ojs_events_published_total", `'type=' || type`, "NOT internal", ""},

	{"ojs_job_enqueued_total", byShort, "type = 'job.enqueued'", ""},
	{"ojs_job_completed_total", byShort, "type = 'job.completed'", ""},
	{"ojs_job_failed_total", byShort, "type = 'job.discarded'", ""},
	{"ojs_job_retried_total", byShort, "type = 'job.retrying'", ""},
	{"ojs_job_cancelled_total", byShort, "type = 'job.cancelled'", ""},
	{"ojs_job_expired_total", byShort, "type = 'job.expired'", ""},
	{"ojs_job_queue_time_seconds", byShort, "type = 'job.started'", "duration_ms / 1000.0"},
	{"ojs_job_duration_seconds", `'queue=' || queue || ',state=' || COALESCE(data->>'next_state', 'completed') || ',type=' || job_type`,
		"type IN ('job.completed', 'job.failed')", "duration_ms / 1000.0"},
}

const (
	byType  = `'job_type=' || job_type || ',queue=' || queue`
	byShort = `'queue=' || queue || ',type=' || job_type`
)

// difference is empty if the nodes together have counted exactly the events that there are.
func difference(t *testing.T, pool *pgxpool.Pool, nodes []*node) string {
	var text strings.Builder
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	var scrapes []scrape
	for _, n := range nodes {
		scrapes = append(scrapes, n.scrape())
	}
	for _, s := range exactSeries {
		value := s.value
		if value == "" {
			value = "0"
		}
		rows, err := tx.Query(t.Context(), fmt.Sprintf(`SELECT %s, count(*)::float8, COALESCE(sum(%s), 0)::float8 FROM ojs.events WHERE %s GROUP BY 1`, s.labels, value, s.where))
		require.NoError(t, err)
		counts, sums := map[string]float64{}, map[string]float64{}
		for rows.Next() {
			var labels string
			var count, sum float64
			require.NoError(t, rows.Scan(&labels, &count, &sum))
			counts[labels], sums[labels] = count, sum
		}
		require.NoError(t, rows.Err())
		if len(counts) == 0 {
			fmt.Fprintf(&text, "%s: nothing has happened\n", s.name)
		}
		counted, summed := map[string]float64{}, map[string]float64{}
		for _, sc := range scrapes {
			for labels, n := range sc.values(s.name) {
				if n > 0 {
					counted[labels] += n
				}
			}
			if s.value != "" {
				for labels, n := range sc.sums(s.name) {
					summed[labels] += n
				}
			}
		}
		if !maps.Equal(counts, counted) {
			fmt.Fprintf(&text, "%s: events %v, counted %v\n", s.name, counts, counted)
		}
		for labels, sum := range summed {
			if d := sum - sums[labels]; d > 1e-6 || d < -1e-6 {
				fmt.Fprintf(&text, "%s{%s}: sum of events %v, of the histogram %v\n", s.name, labels, sums[labels], sum)
			}
		}
	}
	return text.String()
}

// TestMetricsAreExact runs a random load on two nodes. Each event row is counted once, after the commit, so that the sums over all
// nodes are exact: docs/reference/observability.md, Metrics.
func TestMetricsAreExact(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	change := func(c *app.Config) {
		c.Database.URL, c.Tests.EnableReset = url, false
		c.Jobs.VisibilityTimeout, c.Workers.DeadAfter = 500*time.Millisecond, time.Second
		c.DeadLetter.MaxCount, c.Retention.PruneInterval = 3, 200*time.Millisecond
		c.Metrics.Compat = true
	}
	nodes := []*node{setup(t, freshGauges, change), setup(t, freshGauges, change)}
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	nodes[0].post("/ojs/v1/cron", `{"name":"c","schedule":"0 0 1 1 *","type":"t0","args":[],"options":{"queue":"q0"}}`).is(http.StatusCreated)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var clients sync.WaitGroup
	for i := range 6 {
		c := &client{node: nodes[i%2], pool: pool, rng: rand.New(rand.NewPCG(seed, uint64(i))), worker: fmt.Sprintf("w%d", i)}
		clients.Go(func() {
			for range 150 {
				c.step()
			}
		})
	}
	clients.Wait()
	var last string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(last)
		}
	})
	eventually(t, func() bool {
		last = difference(t, pool, nodes)
		return last == "" && idle(t, pool)
	})
}

// idle reports whether no job is due soon.
func idle(t *testing.T, pool *pgxpool.Pool) (idle bool) {
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM ojs.jobs WHERE due_at < now() + interval '5 s')`).Scan(&idle))
	return idle
}
