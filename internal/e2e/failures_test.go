package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/observe"
)

// toFail are statements of each service that have to fail in TestFailuresAreReported, and to be sent again. Others fail as well when they
// are sent. A service is the type that has the loop, or calls for it; app.Start prepares a node.
var toFail = map[string]string{
	"app.Start":     `MaintenanceGet PartitionEnsure ServerSettingGet WebhookSecretListByKey WorkerListQuiet`,
	"eventlog.Feed": `EventGetHead EventListAfter`,
	"eventlog.Maintainer": `CronRunPrune EventFloorRaise EventPartitionClose EventPartitionLeave EventPartitionPrune EventRetentionConfigure IdempotencyKeyPrune
		JobFinishedPartitionLeave JobFinishedPartitionPrune PartitionEnsure QueuePrune RetentionKeepStore StatsHourPrune StatsMinutePrune`,
	"eventlog.Relay": `EventEpochCheck EventGapDelete EventGapInsert EventMoveLate RelayBound RelayClaim RelayConfigure RelayLock RelayPublish RelayScan`,
	"limit.Follower": `LimitAdmit LimitListDue LimitNextDue`,
	"loop.Follower":  `MaintenanceGet QueueConfigList QueueConfigVersion SchemaChangeVersion SchemaListAll`,
	"loop.Timer": `CronListDue CronListQueued CronListUnfinishedJob CronListUnfinishedJobs CronLockSerial CronRecordTick CronReleaseQueued CronRunInsertGap
		DueGetNext JobCancel JobFail JobInsertPlain JobListByDeadWorkers JobListForFail JobListOverdue JobLockUnlocked JobPromoteDue JobUpdateCron
		QueueListDraining SystemLockTimeout WorkerExpire WorkerPrune WorkerReapClaim WorkerReapDone`,
	"observe/metrics.Metrics": `MetricsBegin MetricsDeadLetters MetricsEvents MetricsLimits MetricsQueueCounts MetricsReadyHeads MetricsRelayHolder
		MetricsXminHolder QueueGetTotals WebhookGetBacklog WorkerGetTotals`,
	"queue.OutageWatch": `OutageCheck`,
	"queue.Poller":      `JobFetchRescan`,
	"queueadmin.Finisher": `JobDiscardWaiting JobMoveQueue QueueConfigList QueueConfigVersion QueueCountListByQueue QueueDelete QueueDrainDeleted QueueJobListReady
		QueueJobListWaiting QueueLock RelayExclude SystemPing`,
	"queueadmin.Pruner": `DeadLetterCutoff DeadLetterDelete JobDelete JobDiscardedPrune JobListForRetention LimitPrune SystemPing WorkflowDelete WorkflowListEnded
		WorkflowLock WorkflowStartDelete WorkflowStepDelete WorkflowStepListPlace`,
	"webhook.Dispatcher": `WebhookDeliveryClaim WebhookDeliveryGetNextDue WebhookDeliveryListOrphans WebhookDeliveryLock WebhookDeliveryMakeDue WebhookDeliveryPrune
		WebhookDeliveryRecord WebhookDeliverySetPlanner WebhookGetForUpdate WebhookListOrdered WebhookListUnfinishedChanges WebhookLockByID WebhookSecretList`,
	"webhook.FanOut": `WebhookCountSubscribers WebhookCursorLock WebhookDeliveryCreate WebhookDeliverySetPlanner WebhookListSubscribers
		WebhookListSubscribersOrdered`,
	"worker.Liveness":   `WorkerListQuiet WorkerUpdateSeen`,
	"workflow.Follower": `WorkflowCancelDone WorkflowListLeft WorkflowStepListLive`,
	"workflow.Store": `JobInsert SystemPing WorkflowEventInsert WorkflowListFlows WorkflowLock WorkflowPendingApply WorkflowPendingList WorkflowStepBegin
		WorkflowStepListWaiting WorkflowStepValues WorkflowUpdate`,
}

var (
	// spared do not fail, because exercise expects a success: the change is committed, and the answer, which shows figures, would be an error.
	spared = regexp.MustCompile(`workflow\.\(\*Store\)\.Get < workflow\.\(\*Store\)\.Cancel `)

	// unlogged fail without a log line. When the heads of all queues cannot be read, the gauge reads those that it knows. A job that was to
	// be inserted and claimed in one statement is inserted alone, and an error that lasts is that of the second insert.
	unlogged = regexp.MustCompile(`observe/metrics\.\(\*Database\)\.ReadyHeads <|queue\.\(\*Store\)\.enqueueAndClaim <`)
)

// TestFailuresAreReported lets each statement of the services of a node fail once, for each way on which they send it, and those of requests
// that the services need. Each failure must be in the log as a warning or an error, whatever the service does about it: an error that is
// dropped on its way is in no log. Then the services must have done their work all the same.
func TestFailuresAreReported(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	f := &failures{failed: map[string]*failure{}, sent: map[string]int{}}
	change := []func(*app.Config){e.quick, connections(8), deadAfter(2 * time.Second), func(c *app.Config) {
		c.Pool, c.Logger = f.pool, observe.NewLogger(&f.log, "json", slog.LevelWarn)
		c.Metrics.GaugeInterval = time.Nanosecond // what has failed is read by the next scrape, however soon that comes
		c.Retention.PruneInterval, c.DeadLetter.MaxCount = 100*time.Millisecond, keptDeadLetters
	}}
	a := setup(t, change...)
	a.client.Transport = patient{a.client.Transport}
	a.subscribe(e, "/all", `"*"`)
	a.subscribe(e, "/ordered", `"job.completed"`, `"ordering":"subject"`)
	a.awake(t)

	f.fail(true)
	f.scraped(a)
	for round := 0; round == 0 || len(f.missing(false)) > 0; round++ {
		require.Less(t, round, 10, "%s: not sent by these services", f.missing(false))
		a.exerciseServices(t, e)
		a.exercise(t, e)
		for before := -1; before != f.count(); {
			before = f.count()
			f.restart(a, change)
		}
	}
	f.fail(false)
	f.requireReported(t)

	for round := 0; round == 0 || len(f.missing(true)) > 0; round++ {
		require.Less(t, round, 10, "%s: not sent by these services again", f.missing(true))
		a.exerciseServices(t, e)
		a.exercise(t, e)
		f.restart(a, change)
	}
	a.nothingDue()
}

// failures lets PostgreSQL answer statements of nodes with an error: the first of each query on each way. A way is the functions of this
// module that call it.
type failures struct {
	log lineBuffer // of the nodes

	mu     sync.Mutex
	on     bool
	gauges bool                // the next statement of the gauges fails
	failed map[string]*failure // by the way
	sent   map[string]int      // by service and statement
}

// failure is a statement that PostgreSQL has answered with an error.
type failure struct {
	statement, service, text string

	again    bool // it was sent again on this way
	reported bool // it was found in the log
}

// pool changes the pool of a node.
func (f *failures) pool(c *pgxpool.Config) {
	c.ConnConfig.Tracer = f
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &failingConn{Conn: conn}, err
	}
}

// fail says whether statements fail, and returns whether they did.
func (f *failures) fail(on bool) (before bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.on = f.on, on
	return before
}

var statementName = regexp.MustCompile(`^-- name: (\w+) `)

// textFor returns the text of the error that the statement is to have, "" for none.
func (f *failures) textFor(sql string) (text string) {
	name := statementName.FindStringSubmatch(sql)
	if name == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	service, way := callers()
	way = name[1] + " " + way
	if service == "" || spared.MatchString(way) {
		return ""
	}
	f.sent[service+" "+name[1]]++
	before := f.failed[way]
	switch {
	case before != nil:
		before.again = true
		return ""
	case !f.on:
		return ""
	}
	if strings.HasPrefix(service, "observe/metrics.") {
		if !f.gauges {
			return ""
		}
		f.gauges = false
	}
	text = fmt.Sprintf("injected_%d_%s", len(f.failed), name[1])
	f.failed[way] = &failure{statement: name[1], service: service, text: text}
	return text
}

// callers are the functions of the module on the stack. service is the outermost type among them, "request" for requests, and "" for the
// test itself.
func callers() (service, way string) {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var names []string
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		name, inside := strings.CutPrefix(frame.Function, "github.com/ojsd/ojsd/internal/")
		switch {
		case strings.HasPrefix(frame.Function, "net/http."):
			service = "request"
		case strings.HasPrefix(name, "e2e_test.(*node)"):
			return "", ""
		case !inside || strings.HasPrefix(name, "e2e_test.") || strings.HasPrefix(name, "dbsqlc.") || slices.Contains(names, name):
		default:
			names = append(names, name)
			if !strings.HasPrefix(name, "loop.Run") && name != "loop.Every" && service != "request" {
				service = outermost.FindString(strings.NewReplacer("(*", "", ")", "").Replace(name))
			}
		}
	}
	return service, strings.Join(names, " < ")
}

// outermost is the type of a method, or a function, with its package.
var outermost = regexp.MustCompile(`^[\w/]+\.\w+`)

func (f *failures) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if text := f.textFor(q.SQL); text != "" {
		conn.PgConn().Conn().(*failingConn).fail(0, text)
	}
	return ctx
}

func (*failures) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (f *failures) TraceBatchStart(ctx context.Context, conn *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for i, q := range b.Batch.QueuedQueries {
		if text := f.textFor(q.SQL); text != "" {
			conn.PgConn().Conn().(*failingConn).fail(i, text)
			break
		}
	}
	return ctx
}

func (*failures) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*failures) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// failingConn is a connection of which one statement is replaced by a text that is no SQL. PostgreSQL answers it with a syntax error that has
// the text, and treats what belongs to it as after any other error.
type failingConn struct {
	net.Conn
	mu   sync.Mutex
	left int    // statements before it
	text string // "": none fails
}

func (c *failingConn) fail(after int, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.text = after, text
}

// Write replaces a Bind by a Parse, and a Query, which has a statement without arguments, by another one. pgx writes whole messages.
func (c *failingConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := 0; c.text != "" && at+5 <= len(b); {
		end := at + 1 + int(binary.BigEndian.Uint32(b[at+1:]))
		if b[at] == 'B' || b[at] == 'Q' {
			c.left--
		}
		if c.left < 0 {
			kind, message := byte('P'), "\x00"+c.text+"\x00\x00\x00" // an unnamed statement without parameters
			if b[at] == 'Q' {
				kind, message = 'Q', c.text+"\x00"
			}
			c.text = ""
			other := append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(4+len(message))), message...)
			if _, err := c.Conn.Write(slices.Concat(b[:at], other, b[end:])); err != nil {
				return 0, err
			}
			return len(b), nil
		}
		at = end
	}
	return c.Conn.Write(b)
}

// missing are the statements of toFail that have not failed yet or, with again, were not sent again on the same way.
func (f *failures) missing(again bool) (statements []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[string]bool{}
	for _, one := range f.failed {
		if one.again || !again {
			found[one.service+" "+one.statement] = true
		}
	}
	for service, names := range toFail {
		for name := range strings.FieldsSeq(names) {
			if !found[service+" "+name] {
				statements = append(statements, service+" "+name)
			}
		}
	}
	slices.Sort(statements)
	return statements
}

// count is how many statements have failed.
func (f *failures) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.failed)
}

// unreported are the ways of failures that no log line tells of.
func (f *failures) unreported() (ways []string) {
	log := f.log.String()
	f.mu.Lock()
	defer f.mu.Unlock()
	for way, one := range f.failed {
		one.reported = one.reported || unlogged.MatchString(way) || strings.Contains(log, one.text+`\"`)
		if !one.reported {
			ways = append(ways, way)
		}
	}
	return ways
}

// requireReported waits for the log lines of all failures. Statements must not fail meanwhile.
func (f *failures) requireReported(t testing.TB) {
	t.Helper()
	var ways []string
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		if ways = f.unreported(); len(ways) == 0 {
			return
		}
	}
	require.Empty(t, ways, "their statements have failed, and no log line tells of it")
}

// worked is how often the service has sent the statement, and how many statements of it have failed.
func (f *failures) worked(service, statement string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.sent[service+" "+statement]
	for _, one := range f.failed {
		if one.service == service {
			n++
		}
	}
	return n
}

// restart starts another node and stops it when the services that work once a minute have worked, or have failed. A node that stops need
// not report what fails then, so nothing does.
func (f *failures) restart(a *node, change []func(*app.Config)) {
	a.t.Helper()
	last := map[string]string{"eventlog.Maintainer": "JobFinishedPartitionLeave", "webhook.Dispatcher": "WebhookDeliveryPrune"}
	before := map[string]int{}
	for service, statement := range last {
		before[service] = f.worked(service, statement)
	}
	c := settings(a.database)
	for _, g := range change {
		g(&c)
	}
	other, err := app.Start(a.t.Context(), c)
	if err != nil {
		c.Logger.Error("not started", slog.Any("error", err)) // as the program does
		return
	}
	eventually(a.t, func() bool {
		worked := true
		for service, statement := range last {
			worked = worked && f.worked(service, statement) > before[service]
		}
		return worked
	})
	defer f.fail(f.fail(false))
	f.requireReported(a.t)
	require.NoError(a.t, other.Stop())
}

// scraped has the metrics of the node read until their statements have failed. Between two failures all gauges are read that failed, because
// the node logs the first failure of several in a row.
func (f *failures) scraped(a *node) {
	ctx := a.t.Context()
	var scraper sync.WaitGroup
	scraper.Go(func() {
		for fails := true; ctx.Err() == nil && strings.Contains(fmt.Sprint(f.missing(false)), "observe/metrics"); fails = !fails {
			f.mu.Lock()
			f.gauges = fails
			f.mu.Unlock()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/metrics", nil)
			if err == nil {
				var res *http.Response
				if res, err = a.client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	a.t.Cleanup(scraper.Wait)
}

// patient repeats requests that were answered with an error of the server.
type patient struct{ http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	for {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		res, err := p.RoundTripper.RoundTrip(again)
		if err != nil || res.StatusCode < 500 {
			return res, err
		}
		_ = res.Body.Close()
	}
}

// awake has the node look for work all the time, rather than after its pauses, until the test ends.
func (a *node) awake(t *testing.T) {
	t.Helper()
	conn, ctx := a.connectPatient(), t.Context()
	var waker sync.WaitGroup
	waker.Go(func() {
		for ctx.Err() == nil {
			_, _ = conn.Exec(ctx, `SELECT pg_notify('ojs_wake', '')`)
			time.Sleep(50 * time.Millisecond)
		}
		_ = conn.Close(context.Background())
	})
	t.Cleanup(waker.Wait)
}

const keptDeadLetters = 3

// exerciseServices gives services work that exercise has not, and waits until it is done.
func (a *node) exerciseServices(t *testing.T, e *endpoint) {
	t.Helper()
	polled := queue()
	parked := a.parked(polled, `"wait_ms":20000`)

	// Numbers of events that are missing, of a transaction that commits and of one that does not.
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		q, conn := queue(), a.connect()
		_, err := conn.Exec(t.Context(), `BEGIN; SELECT ojs.enqueue('t', '[]', '`+q+`')`)
		require.NoError(t, err)
		a.published(a.push(`"type":"t","args":[],"queue":"%s"`, q), 1)
		_, err = conn.Exec(t.Context(), end)
		require.NoError(t, err)
		a.published(a.push(`"type":"t","args":[],"queue":"%s"`, q), 1)
		require.NoError(t, conn.Close(t.Context()))
	}

	for _, policy := range []string{"skip", "allow", "enqueue", "cancel_previous"} {
		name := strings.ReplaceAll(policy, "_", "-")
		a.put("/ojs/v1/cron/"+name, `{"expression":"30 2 1 * *","type":"t","options":{"queue":"cron-`+name+`"},"overlap_policy":"`+policy+`"}`)
	}
	a.put("/ojs/v1/cron/daily", `{"expression":"30 2 * * *","timezone":"Europe/Berlin","type":"t"}`) // clocks have skipped a run
	for range 6 {
		a.exec(`UPDATE ojs.crons SET next_run_at = CASE name WHEN 'daily' THEN '2026-03-28T01:30:00Z' ELSE now() END`)
		eventually(t, func() bool { return a.one(`SELECT count(*)::text FROM ojs.crons WHERE next_run_at <= now()`) == "0" })
		for _, id := range a.fetch("cron-enqueue", `"count":10`).list("jobs", "id") {
			a.ack(id).is(200)
		}
	}

	// A worker that was silent for long. What a reaper has begun and another one goes on with is due at once.
	worker := "w-" + queue()
	a.beat(worker)
	a.push(`"type":"t","args":[],"queue":"%s"`, worker)
	a.fetch(worker, `"worker_id":"`+worker+`"`)
	a.exec(`UPDATE ojs.workers SET last_beat_at = started_at, last_seen_at = started_at - interval '1 hour' WHERE id = $1`, worker)
	eventually(t, func() bool {
		a.exec(`UPDATE ojs.workers SET reap_at = now() WHERE id = $1 AND reap_at IS NOT NULL`, worker)
		return a.one(`SELECT count(*)::text FROM ojs.workers WHERE id = $1 AND (state <> 'stale' OR reap_at IS NOT NULL)`, worker) == "0"
	})
	a.exec(`UPDATE ojs.workers SET stale_at = now() - interval '2 hours' WHERE id = $1`, worker)
	eventually(t, func() bool { return a.one(`SELECT count(*)::text FROM ojs.workers WHERE id = $1`, worker) == "0" })

	// Queues whose deletion a node has begun that is gone, many at once, because one that fails does not keep the others.
	var deleted, running []string
	for range 20 {
		deleted = append(deleted, queue())
		running = append(running, a.busy(deleted[len(deleted)-1], ""))
		a.pushMany(t, deleted[len(deleted)-1], 1)
		a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT1H"`, deleted[len(deleted)-1])
	}
	a.exec(`UPDATE ojs.queues q SET status = 'draining', deletion = json_build_object('strategy', CASE WHEN n.ordinality % 2 = 0 THEN 'move' ELSE 'discard' END,
		'target_queue', 'target', 'previous', 'active', 'began', now() - interval '1 hour') FROM unnest($1::text[]) WITH ORDINALITY n WHERE q.name = n.n`, deleted)
	a.exec(`SELECT pg_notify('ojs_queues', '')`)
	waiting := `SELECT count(*)::text FROM ojs.jobs WHERE queue = ANY($1) AND state IN ('available', 'scheduled')`
	eventually(t, func() bool { return a.one(waiting, deleted) == "0" })
	for _, id := range running {
		a.ack(id).is(200)
	}

	// Jobs that start when their limit permits it.
	limited := queue()
	for range 4 {
		a.push(`"type":"t","args":[],"queue":"%s","rate_limit":{"key":"%s","rate":{"limit":1,"period":"PT0.1S"}}`, limited, limited)
	}
	for range 4 {
		a.ack(a.fetch(limited, `"wait_ms":20000`).at("jobs.0.id")).is(200)
	}

	// Retention.
	short, flow := queue(), queue()
	a.put("/ojs/v1/queues/"+short+"/config", `{"retention":"PT0.001S"}`).is(200)
	a.ack(a.busy(short, "")).is(200)
	a.post("/ojs/v1/workflows", `{"type":"chain","options":{"queue":"`+flow+`"},"steps":[{"type":"t","args":[]}]}`).is(201)
	a.ack(a.fetch(flow, `"wait_ms":20000`).at("jobs.0.id")).is(200)
	eventually(t, func() bool { return a.one(`SELECT count(*)::text FROM ojs.workflows WHERE state = 'running'`) == "0" })
	a.exec(`UPDATE ojs.workflows SET created_at = created_at - interval '30 days', ended_at = ended_at - interval '30 days'`)
	for range keptDeadLetters + 2 {
		a.deadLetter(queue(), "t", `{"message":"boom"}`)
	}

	hook := a.subscribe(e, "/changed", `"job.enqueued"`)
	a.patch("/ojs/v1/webhooks/"+hook, `{"active":false}`).is(200)
	a.push(`"type":"t","args":[],"queue":"%s"`, queue())
	a.patch("/ojs/v1/webhooks/"+hook, `{"active":true,"ordering":"subject"}`).is(200)

	eventually(t, func() bool {
		return a.one(`SELECT concat_ws(' ', (SELECT count(*) FROM ojs.queues WHERE name = ANY($1)), (SELECT count(*) FROM ojs.jobs_done WHERE queue = $2),
			(SELECT count(*) FROM ojs.workflows WHERE ended_at < now() - interval '10 days'), (SELECT count(*) FROM ojs.jobs WHERE dead_lettered_at IS NOT NULL))`,
			deleted, short) == fmt.Sprint("0 0 0 ", keptDeadLetters)
	})

	id := a.push(`"type":"t","args":[],"queue":"%s"`, polled)
	if (<-parked).count("jobs") == 0 { // its time was over
		a.fetch(polled)
	}
	a.ack(id).is(200)
}

// nothingDue waits until the services have done what is due, and no more.
func (a *node) nothingDue() {
	a.t.Helper()
	a.publishedAll()
	due := map[string]string{
		"jobs":       `SELECT id::text FROM ojs.jobs WHERE due_at <= now()`,
		"crons":      `SELECT name FROM ojs.crons WHERE next_run_at <= now()`,
		"workers":    `SELECT id FROM ojs.workers WHERE reap_at <= now() OR state <> 'stale' AND last_seen_at < now() - interval '3 seconds'`,
		"workflows":  `SELECT root_id::text FROM ojs.workflow_pending`,
		"limits":     `SELECT key FROM ojs.limit_pending WHERE due_at <= now()`,
		"queues":     `SELECT name FROM ojs.queues WHERE deletion IS NOT NULL`,
		"deliveries": `SELECT id::text FROM ojs.webhook_deliveries WHERE completed_at IS NULL`,
		"changes":    `SELECT id::text FROM ojs.webhooks WHERE reorder_pending OR resume_pending`,
		"gaps":       `SELECT seq::text FROM ojs.event_gaps WHERE seq > 0`,
	}
	for _, what := range slices.Sorted(maps.Keys(due)) {
		var left []string
		for start := time.Now(); time.Since(start) < waitFor; time.Sleep(10 * time.Millisecond) {
			if left = a.query(due[what]); len(left) == 0 {
				break
			}
		}
		require.Empty(a.t, left, "%s that are due", what)
	}
}
