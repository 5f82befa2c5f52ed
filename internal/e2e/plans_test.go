package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/embedpg"
)

// TestPlans checks that every statement of a running server has one plan, whatever the planner knows: no sequential scan of
// a table that grows, no sort of many rows, and few buffers. The statements are prepared while the tables are empty, because
// a plan that is cheap then is what a session keeps when the tables have grown.
//
// auto_explain writes the plan of every execution to the log of a PostgreSQL of this test's own.
func TestPlans(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a, log, e := explained(t)

	for _, state := range []struct {
		name   string
		change func()
	}{
		{"New", func() {}},
		{"GrownSinceThePlansWereMade", func() { a.crowd(1_000_000) }},
		{"Analyzed", func() { a.exec(`ANALYZE`) }},
		{"ThousandsOfQueues", func() {
			a.exec(`INSERT INTO ojs.queues (name) SELECT 'crowd-' || i FROM generate_series(1, 5000) i`)
			a.exec(`UPDATE ojs.jobs SET queue = 'crowd-' || ready_seq % 5000 + 1 WHERE queue = 'crowd' AND ready_seq % 20 = 0`)
			a.exec(`ANALYZE`)
		}},
		{"EmptiedAgain", func() {
			a.exec(`DELETE FROM ojs.jobs`)
			deleted := a.one(`WITH d AS (DELETE FROM ojs.webhook_deliveries WHERE webhook_id IS NOT NULL) SELECT pg_current_xact_id()::text`)
			a.exec(`ANALYZE`)
			// Nobody may mark them while a transaction is open that began before their deletion.
			eventually(t, func() bool {
				return a.one(`SELECT (pg_snapshot_xmin(pg_current_snapshot()) > $1::xid8)::text`, deleted) == "true"
			})
			a.exercise(t, e) // whoever reads dead index entries first marks them, and reads many
		}},
	} {
		state.change()
		a.pushMany(t, queue(), 1)
		a.publishedAll()  // a pass that began before the change may have read what is not committed yet
		a.statementsEnd() // those that still read what is marked by now are logged when they end
		log.skip()
		a.exercise(t, e)
		log.check(state.name)
	}
	log.requireStatements()
}

// TestPlansMadeWhileEmpty checks the plans that a server makes after vacuum has found the tables empty. The planner takes each for one
// row then, and each index for one page, and the server keeps the plan while the table grows: until the next vacuum or analyze.
func TestPlansMadeWhileEmpty(t *testing.T) {
	t.Parallel()
	a, log, e := explained(t)
	a.pushMany(t, queue(), 1)
	a.crowd(100)
	for _, table := range []string{"jobs", "jobs_done", "webhook_deliveries", "limits", "limit_starts", "limit_pending", "workers"} {
		a.exec(`DELETE FROM ojs.` + table + map[bool]string{true: ` WHERE event_sub = 9`}[table == "webhook_deliveries"])
		a.exec(`VACUUM (ANALYZE, TRUNCATE false) ojs.` + table)
	}
	a.exercise(t, e)
	a.crowd(50_000)
	a.publishedAll()
	a.statementsEnd()
	log.skip()
	a.exercise(t, e)
	a.exec(`INSERT INTO ojs.workers (id, state, started_at, last_beat_at, last_seen_at, stale_at, dead_at, reap_at) VALUES
		('silent', 'running', now(), now(), now() - interval '1 hour', NULL, NULL, NULL),
		('reaped', 'stale', now(), now(), now(), now(), now(), now()),
		('pruned', 'stale', now(), now(), now(), now() - interval '2 hours', now(), NULL)`)
	eventually(t, func() bool {
		return a.one(`SELECT count(*)::text FROM ojs.workers WHERE reap_at IS NOT NULL OR id = 'silent' AND stale_at IS NULL OR id = 'pruned'`) == "0"
	})
	log.check("GrownSince")
	log.requireStatements("WorkerExpire", "WorkerReapClaim", "WorkerReapDone", "WorkerPrune")
}

// explained starts a server on a PostgreSQL that logs the plans of its statements.
func explained(t *testing.T) (*node, *planLog, *endpoint) {
	t.Helper()
	cluster := dbtest.Cluster(t)
	e := newEndpoint(t)
	explain(t, cluster)
	a := setup(t, on(cluster.URL(dbtest.ClusterDatabase)), e.quick, connections(4), freshGauges, deadAfter(2*time.Second))
	a.subscribe(e, "/all", `"*"`)
	return a, &planLog{t: t, path: cluster.LogFile(), seen: map[string]bool{}}, e
}

// statementsEnd waits for the end of all statements of the node that run now.
func (a *node) statementsEnd() {
	a.t.Helper()
	now := a.one(`SELECT clock_timestamp()::text`)
	eventually(a.t, func() bool {
		return a.one(`SELECT count(*)::text FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'ojsd%' AND state = 'active' AND query_start < $1::text::timestamptz`, now) == "0"
	})
}

// explain has auto_explain log every statement of new sessions on the database.
func explain(t *testing.T, cluster *embedpg.Server) {
	t.Helper()
	admin := &node{t: t, database: cluster.URL(dbtest.ClusterDatabase), session: &session{}}
	defer admin.session.close()
	for _, setting := range []string{
		`session_preload_libraries = 'auto_explain'`, `auto_explain.log_min_duration = 0`, `auto_explain.log_analyze = on`,
		`auto_explain.log_buffers = on`, `auto_explain.log_timing = off`, `auto_explain.log_format = json`,
	} {
		admin.exec(`ALTER DATABASE ` + dbtest.ClusterDatabase + ` SET ` + setting)
	}
}

// publishedAll waits until the relay has published all events.
func (a *node) publishedAll() {
	a.t.Helper()
	eventually(a.t, func() bool {
		return a.one(`SELECT (watermark = (SELECT last_value FROM ojs.event_seq))::text FROM ojs.event_relay`) == "true"
	})
}

// crowd fills the tables that grow: n jobs of another queue, a tenth of them scheduled, as many finished jobs and events, and
// deliveries. All of it counts as published.
func (a *node) crowd(n int) {
	a.t.Helper()
	a.publishedAll()
	const id = `('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid`
	a.exec(strings.ReplaceAll(`BEGIN;
		SELECT FROM ojs.event_relay FOR UPDATE;
		SELECT FROM ojs.webhook_cursor FOR UPDATE;
		INSERT INTO ojs.queues (name) VALUES ('crowd') ON CONFLICT DO NOTHING;
		INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, due_at, created_at, args, unique_key)
			SELECT `+id+`, 't', 'crowd', CASE WHEN i % 10 = 0 THEN 'scheduled' ELSE 'available' END,
				CASE WHEN i % 10 > 0 THEN nextval('ojs.ready_seq') END, CASE WHEN i % 10 = 0 THEN now() + i * interval '3 s' + interval '1 h' END, now(), '[]',
				CASE WHEN i % 100 = 1 THEN lpad(to_hex(i), 64, '0') END
			FROM generate_series(1, :n) i;
		UPDATE ojs.jobs SET limit_key = CASE WHEN ready_seq % 200 = 3 THEN 'crowd' ELSE 'crowd-' || ready_seq END,
				limit_seq = CASE WHEN ready_seq % 200 = 3 THEN ready_seq END, ready_seq = CASE WHEN ready_seq % 200 <> 3 THEN ready_seq END
			WHERE queue = 'crowd' AND ready_seq % 100 = 3;
		INSERT INTO ojs.limits (key, policy) SELECT 'crowd-' || i, '{}' FROM generate_series(1, :n / 20) i;
		INSERT INTO ojs.limit_starts (key, at) SELECT 'crowd-' || i % 100, now() FROM generate_series(1, :n / 20) i;
		INSERT INTO ojs.limit_pending (key, due_at, timer) SELECT 'crowd-' || i, now() + interval '1 hour', true FROM generate_series(1, :n / 20) i;
		INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args, unique_key)
			SELECT `+id+`, 't', 'crowd', 'completed', now(), now(), '[]', CASE WHEN i % 100 = 1 THEN lpad(to_hex(i), 64, '0') END FROM generate_series(1000001, 1000000 + :n) i;
		INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state)
			SELECT 'job.enqueued', 'api', now(), `+id+`, 't', 'crowd', 'available' FROM generate_series(1, :n) i;
		INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, created_at, status, completed_at, next_attempt_at)
			SELECT `+id+`, w.id, i, 9, now(), 'job.enqueued', 'crowd-' || i, '{}', now(), CASE WHEN i % 4 > 0 THEN 'delivered' ELSE 'failed' END,
				CASE WHEN i % 4 > 0 THEN now() END, CASE WHEN i % 4 = 0 THEN now() + interval '1 hour' END
			FROM generate_series(1, :n / 5) i, ojs.webhooks w;
		INSERT INTO ojs.workers (id, state, started_at, last_beat_at, last_seen_at, stale_at, dead_at)
			SELECT 'crowd-' || i, 'stale', now(), now(), now(), now(), now() FROM generate_series(1, :n / 20) i;
		UPDATE ojs.event_relay SET watermark = (SELECT last_value FROM ojs.event_seq);
		UPDATE ojs.webhook_cursor SET place = (SELECT last_value FROM ojs.event_seq) << 16;
		INSERT INTO ojs.queue_counts VALUES ('crowd', 'available', :n * 9 / 10), ('crowd', 'scheduled', :n / 10), ('crowd', 'completed', :n)
			ON CONFLICT (queue, state) DO UPDATE SET count = EXCLUDED.count;
		COMMIT`, ":n", strconv.Itoa(n)))
}

// exercise has the server run the statements of requests, passes and timers, on queues of their own.
func (a *node) exercise(t *testing.T, e *endpoint) {
	t.Helper()
	q := queue()
	defer a.open(allEvents).cancel()
	a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.push(`"type":"t","args":[],"queue":"%s","id":"%s"`, q, newID())
	a.get("/ojs/v1/jobs/" + a.push(`"type":"t","args":[],"queue":"%s"`, q) + "/explain").is(200)
	a.pushMany(t, q, 20)
	a.post("/ojs/v1/jobs/batch", `{"jobs":[{"type":"t","args":[],"options":{"queue":"`+q+`"}},{"type":"t2","args":[],"options":{"queue":"`+q+`"}}]}`).is(201)
	a.fetch(q, `"count":10`, `"worker_id":"w-`+q+`"`)
	for _, id := range a.fetch(q, `"count":4`).list("jobs", "id") {
		a.ack(id, `"result":{"n":1}`).is(200)
		a.get("/ojs/v1/jobs/" + id + "/result").is(200)
		a.job(id).is(200)
	}
	var acks []string
	for _, id := range a.fetch(q, `"count":4`).list("jobs", "id") {
		acks = append(acks, `{"job_id":"`+id+`"}`)
	}
	a.post("/ojs/v1/workers/ack/batch", `{"acks":[`+strings.Join(acks, ",")+`]}`).is(200)

	schema := "/ojs/v1/admin/schemas/schema." + q + "/1"
	a.put(schema, `{"schema":{"minItems":1},"enforce":true}`).is(201)
	a.post("/ojs/v1/jobs", `{"type":"schema.`+q+`","args":[],"queue":"`+q+`"}`).is(422)
	a.del(schema).is(200)

	// Unique jobs, alone and in batches.
	unique := func(more string) string {
		return `"type":"t","args":[],"queue":"` + q + `","unique":{"keys":["queue"]` + more + `}`
	}
	a.post("/ojs/v1/jobs", "{"+unique("")+"}").is(201)
	a.post("/ojs/v1/jobs", "{"+unique(`,"on_conflict":"ignore","states":["available","completed"],"period":"PT1H"`)+"}").is(200)
	a.post("/ojs/v1/jobs", "{"+unique(`,"on_conflict":"replace"`)+"}").is(201)
	a.post("/ojs/v1/jobs/batch", "{\"jobs\":[{"+unique(`,"on_conflict":"replace"`)+"}]}").is(201)
	a.get("/ojs/v1/unique-jobs?per_page=10").is(200)

	urgent := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.patch("/ojs/v1/jobs/"+urgent, `{"priority":7}`).is(200)
	a.get("/ojs/v1/queues/" + q + "/priority-stats").is(200)
	a.get("/ojs/v1/queues/crowd/priority-stats").is(200)

	// Bounded queues.
	bounded := queue()
	a.bound(bounded, `{"max_depth":2,"max_size_bytes":1000,"strategy":"drop_oldest"}`)
	a.pushMany(t, bounded, 2)
	for range 3 {
		a.push(`"type":"t","args":["%s"],"queue":"%s"`, strings.Repeat("x", 600), bounded)
	}
	a.push(`"type":"t","args":[],"queue":"%s","id":"%s"`, bounded, newID())
	a.inReadCommitted(`SELECT ojs.cancel(id) FROM ojs.jobs WHERE queue = $1 AND state = 'available'`, bounded)
	a.inReadCommitted(`SELECT ojs.enqueue('t', '[]', $1)`, bounded)

	// Limits by key, and of a queue.
	limited := queue()
	keyed := func(more string) string {
		return a.push(`"type":"t","args":[],"queue":"%s","rate_limit":{"key":"%s","concurrency":2,"rate":{"limit":100,"period":"PT1H"}%s}`, limited, limited, more)
	}
	for _, more := range []string{"", "", "", `,"on_limit":"reschedule"`, `,"on_limit":"drop"`} {
		keyed(more)
	}
	a.patch("/ojs/v1/jobs/"+keyed(""), `{"priority":7}`).is(200)
	for range 2 {
		for _, id := range a.fetch(limited, `"count":10`).list("jobs", "id") {
			a.ack(id).is(200)
		}
	}
	a.put("/ojs/v1/rate-limits/"+limited+"/override", `{"concurrency":5}`).is(200)
	a.get("/ojs/v1/rate-limits?per_page=10").is(200)
	whole := queue()
	a.put("/ojs/v1/admin/queues/"+whole+"/rate-limit", `{"concurrency":8,"rate":{"limit":100,"period":"PT5M"}}`).is(200)
	a.pushMany(t, whole, 3)
	a.ack(a.fetch(whole, `"count":2`).at("jobs.0.id")).is(200)
	a.get("/ojs/v1/rate-limits/queue:" + whole).is(200)

	// A worker reports, and then dies with its job.
	mine := a.busy(queue(), `,"timeout_ms":60000`)
	a.report(mine, `"progress":50`).is(200)
	a.beat("w-"+q, `"active_jobs":["`+mine+`"]`)
	a.get("/ojs/v1/workers").is(200)
	a.nack(mine, `"error":{"message":"boom"}`).is(200)

	lost := queue()
	a.push(`"type":"t","args":[],"queue":"%s"`, lost)
	id := a.fetch(lost, `"visibility_timeout_ms":1000`).at("jobs.0.id")
	require.Equal(t, id, a.fetch(lost, `"wait_ms":20000`).at("jobs.0.id"), "the reservation has ended") // perhaps before the second fetch
	a.ack(id).is(200)

	later := queue()
	parked := a.parked(later, `"wait_ms":20000`)
	a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"%s"`, later, time.Now().Add(300*time.Millisecond).UTC().Format(time.RFC3339Nano))
	a.ack((<-parked).at("jobs.0.id")).is(200)

	flow := queue()
	created := a.post("/ojs/v1/workflows", fmt.Sprintf(`{"type":"chain","options":{"queue":"%s"},"steps":[{"type":"t","args":[]},{"type":"group","jobs":[
		{"type":"t","args":[]},{"type":"t","args":[]}]},{"type":"t","args":[]}]}`, flow)).is(201).at("id")
	for range 3 {
		a.ack(a.fetch(flow, `"wait_ms":20000`).at("jobs.0.id"), `"result":1`).is(200)
	}
	a.get("/ojs/v1/workflows/" + created).is(200)
	a.get("/ojs/v1/workflows?state=running").is(200)
	a.get("/ojs/v1/workflows").is(200)
	a.del("/ojs/v1/workflows/" + created).is(200)

	dead := a.deadLetter(queue(), "t", `{"message":"boom"}`)
	a.get("/ojs/v1/dead-letter").is(200)
	a.post("/ojs/v1/dead-letter/"+dead+"/retry", "").is(200)
	a.del("/ojs/v1/jobs/" + dead).is(200)
	a.get("/ojs/v1/jobs/" + dead + "/history").is(200)
	a.get("/ojs/v1/jobs/" + dead + "/history?limit=1").is(200) // counts the others
	a.get("/ojs/v1/events/" + dead + "/history").is(200)
	a.get("/ojs/v1/events?limit=10").is(200)
	a.get("/ojs/v1/jobs?queue=crowd&limit=10").is(200)
	for _, query := range []string{"queue=crowd", "order=asc", "sort=priority&queue=crowd", "since=1h&until=0s", ""} {
		a.get("/ojs/v1/admin/jobs?" + query).is(200)
	}
	a.get("/ojs/v1/admin/queues?per_page=10").is(200)
	a.get("/ojs/v1/admin/queues/crowd").is(map[bool]int{true: 200, false: 404}[a.one(`SELECT count(*)::text FROM ojs.queues WHERE name = 'crowd'`) == "1"])
	a.get("/ojs/v1/admin/stats").is(200)
	a.get("/ojs/v1/admin/stats?queue=" + q).is(200)
	a.get("/ojs/v1/admin/stats/history?period=1h&since=2d").is(200)
	a.get("/ojs/v1/admin/maintenance").is(200)
	a.get("/metrics").is(200)
	a.publishedAll()
	eventually(t, func() bool {
		return a.one(`SELECT (NOT EXISTS (SELECT FROM ojs.webhook_deliveries WHERE completed_at IS NULL AND event_sub <> 9)
			AND (SELECT place >> 16 = (SELECT watermark FROM ojs.event_relay) FROM ojs.webhook_cursor))::text`) == "true"
	})
	a.get("/ojs/v1/webhooks/deliveries?limit=10").is(200)
	a.del("/ojs/v1/webhooks/" + a.subscribe(e, "/deleted", `"job.enqueued"`)).is(204)
}

// planLog reads the plans that PostgreSQL logs.
type planLog struct {
	t    *testing.T
	path string
	at   int64 // what was read so far
	seen map[string]bool
}

// planNode is a node of a plan with what it did.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Rows     float64    `json:"Actual Rows"`
	Loops    float64    `json:"Actual Loops"`
	Hit      int        `json:"Shared Hit Blocks"`
	Read     int        `json:"Shared Read Blocks"`
	Removed  float64    `json:"Rows Removed by Filter"`
	Unjoined float64    `json:"Rows Removed by Join Filter"`
	Plans    []planNode `json:"Plans"`
}

func (n planNode) each(visit func(planNode)) {
	visit(n)
	for _, child := range n.Plans {
		child.each(visit)
	}
}

// skip leaves out what was logged until now.
func (l *planLog) skip() {
	info, err := os.Stat(l.path)
	require.NoError(l.t, err)
	l.at = info.Size()
}

func (l *planLog) check(state string) {
	l.t.Helper()
	file, err := os.Open(l.path)
	require.NoError(l.t, err)
	defer func() { _ = file.Close() }()
	_, err = file.Seek(l.at, io.SeekStart)
	require.NoError(l.t, err)
	text, err := io.ReadAll(file)
	require.NoError(l.t, err)
	for plan := range loggedPlans(text) {
		_, rest, named := bytes.Cut(plan, []byte("-- name: "))
		name, _, _ := strings.Cut(string(rest[:min(len(rest), 60)]), " ")
		if !named || rare[name] { // the test's own statements have no name
			continue
		}
		var logged struct {
			Plan planNode `json:"Plan"`
		}
		require.NoError(l.t, json.Unmarshal(plan, &logged))
		l.seen[name] = true
		for _, problem := range logged.Plan.problems(wholeTables[name]) {
			l.t.Errorf("%s: %s: %s\n%s", state, name, problem, plan)
		}
	}
}

// loggedPlans are the objects that auto_explain writes, each after a line that ends in "plan:" and indented by one tab. No
// regular expression: these are tens of megabytes.
func loggedPlans(log []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for {
			_, rest, found := bytes.Cut(log, []byte("  plan:\n\t{\n"))
			end := bytes.Index(rest, []byte("\n\t}\n"))
			if !found || end < 0 || !yield(append([]byte{'{'}, rest[:end+3]...)) {
				return
			}
			log = rest[end:]
		}
	}
}

// rare are statements that may read more, because they run at most once a minute or while something is wrong.
var rare = map[string]bool{
	"PartitionEnsure": true, "EventPartitionPrune": true, "JobFinishedPartitionPrune": true, "StatsMinutePrune": true,
	"MetricsTables":        true,
	"MetricsRetention":     true, // reads the list of partitions, and one row of two of them
	"JobListByDeadWorkers": true, // reads what is due within the longest reservation, once for all workers that died
	"MetricsReadyHeads":    true, // once per queue; then MetricsReadyHeadsFrom skips the dead entries
	"JobPriorityList":      true, // of a dashboard; reads the dead entries at the head like MetricsReadyHeads
	"StatsQueueOldest":     true, // of an administrator; reads the dead entries at the head like MetricsReadyHeads
	"WebhookDeliveryList":  true, // of an administrator; planned anew for each call
}

// wholeTables are the small tables that a statement sums up, one row or a few per queue.
var wholeTables = map[string][]string{
	"MetricsQueueCounts":     {"queue_counts"},
	"QueueGetTotals":         {"queues", "queue_counts"},
	"StatsCountByState":      {"queue_counts"},
	"StatsQueueListPage":     {"queues"}, // counts up to 10 000
	"JobCountPage":           {},         // counts up to 10 000, like UniqueCount and LimitCount
	"WebhookGetBacklog":      {},         // counts up to a bound
	"UniqueCount":            {},
	"LimitCount":             {},
	"WorkerCount":            {"workers"},
	"WorkerGetTotals":        {"workers"},
	"JobPriorityListWaiting": {}, // of a dashboard
	"JobSearchNewest":        {}, // sorts up to 10 000 narrow rows
	"JobSearchOldest":        {},
}

// growing are the tables that may have millions of rows.
var growing = regexp.MustCompile(`^(jobs|jobs_done.*|events|events_p.*|event_gaps|webhook_deliveries|webhook_attempts|workflows|workflow_.*|queue_counts|tenant_counts|queue_sizes|job_sizes|stats_minute|stats_hour|limit.*|queues|workers)$`)

const (
	maxSorted = 1500 // rows: a page of the largest flush or list
	// A job that is fetched costs about 25 buffers, its event included. An index of the crowd has 3 000 and more.
	buffersPerStatement, buffersPerRow = 2000, 100 // the first call of an SQL function reads the catalogs
)

func (n planNode) problems(whole []string) (problems []string) {
	rows := n.Rows * n.Loops
	n.each(func(node planNode) {
		rows = max(rows, node.Rows*node.Loops)
		switch {
		case slices.Contains(whole, node.Relation):
		case slices.Contains([]string{"Seq Scan", "Bitmap Heap Scan"}, node.Type) && growing.MatchString(node.Relation):
			problems = append(problems, fmt.Sprintf("%s of %s", node.Type, node.Relation))
		case whole == nil && growing.MatchString(node.Relation) && node.Rows*node.Loops > maxSorted:
			problems = append(problems, fmt.Sprintf("%s reads %.0f rows of %s", node.Type, node.Rows*node.Loops, node.Relation))
		case whole == nil && strings.HasSuffix(node.Type, "Sort") && node.Rows*node.Loops > maxSorted:
			problems = append(problems, fmt.Sprintf("sorts %.0f rows", node.Rows*node.Loops))
		}
		if dropped := (node.Removed + node.Unjoined) * node.Loops; dropped > maxSorted {
			problems = append(problems, fmt.Sprintf("%s of %s reads and drops %.0f rows", node.Type, node.Relation, dropped))
		}
	})
	if buffers := n.Hit + n.Read; rows < maxSorted && float64(buffers) > buffersPerStatement+buffersPerRow*rows {
		problems = append(problems, fmt.Sprintf("%d buffers for %.0f rows", buffers, rows))
	}
	return problems
}

// requireStatements makes sure that the log was read at all, and that the statements of every subsystem, and these, were in it.
func (l *planLog) requireStatements(more ...string) {
	l.t.Helper()
	for _, name := range append(more,
		"JobInsert", "JobInsertPlain", "JobInsertAlike", "JobListDoneIDs", "JobFetch", "JobFetchRescan", "JobComplete", "JobListForFail", "JobFail", "JobCancel", "JobRetry", "JobSetPriority", "JobPriorityListWaiting",
		"QueueLockBounded", "QueueCountListByQueue", "QueueSizeGet", "QueueSizeMeasure", "QueueSizeAdd", "JobListTaken", "JobListOldest", "JobDiscardWaiting",
		"UniqueTryLock", "UniqueLock", "UniqueListHolders", "UniqueListDone", "UniqueListExisting", "UniqueLockDiscarded", "UniqueListPage", "UniqueCount",
		"JobHeartbeat", "JobProgress", "JobListOverdue", "JobPromoteDue", "DueGetNext", "JobListByID", "WorkerHeartbeat",
		"JobSearchNewest", "JobSearchOldest", "StatsCountByState", "StatsQueueListPage", "StatsQueueCountList", "StatsQueueRateList",
		"StatsMinuteList", "StatsHourList", "StatsMinuteGetLatest", "MaintenanceGet",
		"RelayLock", "RelayScan", "RelayPublish", "EventListAfter", "EventListByJob", "HistoryCountByJob",
		"WebhookDeliveryCreate", "WebhookDeliveryLock", "WebhookDeliveryClaim", "WebhookDeliveryRecord", "WebhookDeliveryCancel", "MetricsQueueCounts",
		"WorkerUpdateSeen",
		"WorkflowInsert", "WorkflowStepInsert", "WorkflowLock", "WorkflowPendingList", "WorkflowPendingApply", "WorkflowUpdate", "WorkflowStepBegin",
		"WorkflowStepValues", "WorkflowEventInsert", "WorkflowStepListTree", "WorkflowListPageByState", "WorkflowListLeft",
		"SchemaChangeVersion", "SchemaListAll", "SchemaGet", "JobExplain",
		"LimitAdmit", "LimitListDue", "LimitNextDue", "LimitListBlockedQueues", "LimitHandleBlocked", "LimitQueueAllowances", "LimitQueueStarted", "LimitGet", "LimitListPage", "LimitCount",
		"LimitOverride", "MetricsLimits",
	) {
		if !l.seen[name] {
			l.t.Errorf("no plan of %s was logged; seen: %v", name, l.seen)
		}
	}
}
