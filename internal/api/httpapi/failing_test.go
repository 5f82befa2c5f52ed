package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/eventlog"
)

// failingNode is an API whose statements can fail, beside one on the same database that makes what requests are about.
type failingNode struct {
	t             *testing.T
	pool          *pgxpool.Pool
	healthy, sick http.Handler
	statements    *domaintest.Failing
	made          int
	tables        string // the query of snapshot
}

func newFailingNode(t *testing.T) *failingNode {
	t.Helper()
	n := &failingNode{t: t, pool: dbtest.New(t), statements: &domaintest.Failing{}}
	n.healthy, _ = handlerOn(t, n.pool)
	n.sick, _ = handlerOn(t, domaintest.Traced(t, n.pool, n.statements))
	rows, err := n.pool.Query(t.Context(), `SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for i, name := range names {
		names[i] = `SELECT '` + name + ` ' || r::text AS line FROM ojs.` + name + ` r`
	}
	n.send("POST", "/ojs/v1/queues", `{"name":"other"}`) // the name of a queue is kept before its jobs are
	n.tables = strings.Join(names, ` UNION ALL `) + ` ORDER BY line`
	return n
}

func handlerOn(t *testing.T, pool *pgxpool.Pool, change ...func(*domaintest.Config)) (http.Handler, *domaintest.Bundle) {
	t.Helper()
	b := domaintest.On(t, pool, change...)
	b.Events = eventlog.NewReader(b.DB, eventlog.NewRelay(b.Archetype, pool, eventlog.RelayConfig{Events: config.Default().Events}))
	return New(config.Default(), Deps{
		Domains: b.Domains, Logger: slog.New(slog.DiscardHandler), Health: healthOf(0, "ok"),
		Streams:   api.NewStreams(config.Default().Realtime),
		NextPrune: func() time.Duration { return time.Minute },
	}).Handler(), b
}

// snapshot is everything that is stored.
func (n *failingNode) snapshot() []string {
	n.t.Helper()
	rows, err := n.pool.Query(n.t.Context(), n.tables)
	require.NoError(n.t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(n.t, err)
	return lines
}

// send is a request to the healthy node, which must succeed.
func (n *failingNode) send(method, path, body string) gjson.Result {
	n.t.Helper()
	w := call(n.healthy, method, path, body)
	require.Less(n.t, w.Code, 400, "%s %s %s: %s", method, path, body, w.Body)
	return gjson.ParseBytes(w.Body.Bytes())
}

func (n *failingNode) push(more string) string {
	n.t.Helper()
	return n.send("POST", "/ojs/v1/jobs", `{"type":"t","args":[1]`+more+`}`).Get("job.id").Str
}

func (n *failingNode) name(kind string) string {
	n.made++
	return fmt.Sprintf("%s-%d", kind, n.made)
}

// active is a job that worker w runs.
func (n *failingNode) active(more string) string {
	n.t.Helper()
	queue := n.name("active")
	id := n.push(`,"queue":"` + queue + `"` + more)
	require.Equal(n.t, id, n.send("POST", "/ojs/v1/workers/fetch", `{"queues":["`+queue+`"],"worker_id":"w"}`).Get("jobs.0.id").Str)
	return id
}

// fixture is the value of a name such as $active in a request.
func (n *failingNode) fixture(name string) string {
	n.t.Helper()
	switch name {
	case "$job":
		return n.push(`,"queue":"` + n.name("waiting") + `"`)
	case "$queue":
		queue := n.name("queue")
		n.push(`,"queue":"` + queue + `"`)
		n.push(`,"queue":"` + queue + `","scheduled_at":"2099-01-01T00:00:00Z"`)
		return queue
	case "$idle":
		queue := n.name("idle")
		n.send("POST", "/ojs/v1/queues", `{"name":"`+queue+`"}`)
		return queue
	case "$busy": // a queue
		queue := n.name("busy")
		n.push(`,"queue":"` + queue + `"`)
		return queue
	case "$pending":
		return n.push(`,"pending":true`)
	case "$active":
		return n.active("")
	case "$limited":
		return n.active(`,"rate_limit":{"key":"` + n.name("limit") + `","concurrency":1}`)
	case "$unique":
		return n.active(`,"unique":{"keys":["type","args","queue"]}`)
	case "$progressing":
		id := n.active("")
		n.send("PUT", "/ojs/v1/jobs/"+id+"/progress", `{"progress":0.5}`)
		n.send("PUT", "/ojs/v1/jobs/"+id+"/checkpoint", `{"state":{"page":7}}`)
		return id
	case "$completed":
		id := n.active("")
		n.send("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","result":{"total":3}}`)
		return id
	case "$discarded":
		id := n.active("")
		n.send("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"code":"boom","retryable":false}}`)
		return id
	case "$retryable":
		id := n.active(`,"retry":{"initial_interval":"PT1H"}`)
		n.send("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"code":"boom"}}`)
		return id
	case "$key": // of a limit
		key := n.name("limit")
		n.push(`,"queue":"limited","rate_limit":{"key":"` + key + `","concurrency":1}`)
		return key
	case "$event":
		job := n.active("")
		n.publish()
		return n.send("GET", "/ojs/v1/events?job_id="+job, "").Get("events.0.id").Str
	case "$cron":
		name := n.name("cron")
		n.send("POST", "/ojs/v1/cron", `{"name":"`+name+`","expression":"0 0 1 1 *","type":"t","args":[1]}`)
		return name
	case "$workflow":
		return n.send("POST", "/ojs/v1/workflows", `{"type":"group","jobs":[{"type":"t","args":[]},{"type":"t","args":[]}],"callbacks":{"on_complete":{"type":"t","args":[]}}}`).Get("id").Str
	case "$step": // the last active step of a workflow
		queue := n.name("flow")
		n.send("POST", "/ojs/v1/workflows", `{"type":"chain","options":{"queue":"`+queue+`"},"steps":[{"type":"t","args":[]},{"type":"t","args":[]}]}`)
		return n.send("POST", "/ojs/v1/workers/fetch", `{"queues":["`+queue+`"],"worker_id":"w"}`).Get("jobs.0.id").Str
	case "$webhook":
		return n.send("POST", "/ojs/v1/webhooks", `{"url":"https://example.com/x","events":["job.completed"],"secret":"whsec_failing-failing-failing"}`).Get("id").Str
	case "$rotated":
		id := n.fixture("$webhook")
		n.send("POST", "/ojs/v1/webhooks/"+id+"/rotate-secret", `{"secret":"whsec_failing-failing-failing-2"}`)
		return id
	case "$delivery":
		var id string
		require.NoError(n.t, n.pool.QueryRow(n.t.Context(), `INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, created_at, status, completed_at)
			VALUES ($2::text::uuid, $1::text::uuid, 1, 0, now(), 'job.completed', 's', '{}', now(), 'delivered', now()) RETURNING 'del_' || id`, strings.TrimPrefix(n.fixture("$webhook"), "sub_"), n.fixture("$free")).Scan(&id))
		return id
	case "$worker":
		name := n.name("worker")
		n.send("POST", "/ojs/v1/workers/register", `{"worker_id":"`+name+`"}`)
		return name
	case "$pool":
		name := n.name("pool")
		n.send("PUT", "/ojs/v1/admin/pools/"+name, `{"queues":["`+name+`"],"concurrency":5}`)
		return name
	case "$schema":
		name := n.name("schema")
		n.send("PUT", "/ojs/v1/admin/schemas/"+name+"/1", `{"schema":{"type":"array"}}`)
		return name
	case "$uri":
		uri := "urn:x:" + n.name("uri")
		n.send("POST", "/ojs/v1/schemas", `{"uri":"`+uri+`","type":"`+n.name("typed")+`","version":"1","schema":{"type":"array"}}`)
		return uri
	case "$free":
		n.made++
		return fmt.Sprintf("01890000-0000-7000-9000-%012d", n.made)
	case "$new":
		return n.name("new")
	}
	require.Fail(n.t, "unknown fixture", name)
	return ""
}

// publish runs a relay until it has published what is written.
func (n *failingNode) publish() {
	n.t.Helper()
	relay := eventlog.NewRelay(riversharedtest.BaseServiceArchetype(n.t), n.pool, eventlog.RelayConfig{Events: config.Default().Events})
	require.NoError(n.t, relay.Start(n.t.Context()))
	defer relay.Stop()
	require.Eventually(n.t, func() bool {
		var rest int
		require.NoError(n.t, n.pool.QueryRow(n.t.Context(), `SELECT count(*) FROM ojs.events e WHERE e.seq > (SELECT r.watermark FROM ojs.event_relay r)`).Scan(&rest))
		return rest == 0
	}, domaintest.WaitFor, time.Millisecond)
}

var fixtureName = regexp.MustCompile(`\$[a-z]+`)

// request fills the fixtures of a request in; one name has one value.
func (n *failingNode) request(text string) (method, path, body string) {
	values := map[string]string{}
	text = fixtureName.ReplaceAllStringFunc(text, func(name string) string {
		if values[name] == "" {
			values[name] = n.fixture(name)
		}
		return values[name]
	})
	method, rest, _ := strings.Cut(text, " ")
	path, body, _ = strings.Cut(rest, " ")
	return method, "/ojs/v1" + path, body
}

const (
	later   = "it runs after the commit, and what it is for is done later by a service of any node"
	refresh = "the node reads what it has committed; a service of the node does so later"
	figures = "the change is committed; the answer, which shows figures, is an error, and a repetition changes nothing"
	portion = "what came before it is committed; the answer is an error, and a repetition goes on"
)

// advancing are the statements that follow the end of a step.
const advancing = `SystemPing WorkflowLock WorkflowPendingList WorkflowPendingApply WorkflowStepValues WorkflowStepCancelBelow WorkflowStepListWaiting
	WorkflowStepBegin WorkflowGetStart WorkflowFirstFailure WorkflowUpdate WorkflowCancelDone WorkflowEventInsert QueueInsert JobInsert`

// tolerated are the statements whose failure leaves the success of a request that begins so, or what it has stored, and why.
var tolerated = []struct{ request, statements, why string }{
	{"", "JobComplete", "the jobs of a flush that fails are completed one by one"},
	{"POST /jobs", "QueueConfigList", "it is read again in the transaction"},
	{"GET /rate-limits", "LimitListPage LimitCount", "the partitions of limited queues are stored before they are read"},
	{"", "LimitAdmit", later},
	{"POST /jobs", "LimitGet", later},
	{"DELETE /jobs/$step", advancing, later},
	{`POST /workers/ack {"job_id":"$step"`, advancing, later},
	{`POST /workers/nack {"job_id":"$step"`, advancing, later},
	{"DELETE /workflows", "WorkflowStepListLive JobLockUnlocked JobCancel " + advancing, later},
	{"PATCH /webhooks", "WebhookDeliverySetPlanner WebhookGetForUpdate WebhookNotify", later},
	{"DELETE /webhooks", "WebhookDeliverySetPlanner WebhookDeliveryCancel", later},
	{"POST /queues", "QueueConfigVersion QueueConfigList", refresh},
	{"PUT /queues", "QueueConfigVersion QueueConfigList", refresh},
	{"DELETE /queues", "QueueConfigVersion QueueConfigList", refresh},
	{"PUT /admin/schemas", "SchemaChangeVersion SchemaListAll", refresh},
	{"POST /schemas", "SchemaChangeVersion SchemaListAll", refresh},
	{"DELETE /schemas", "SchemaChangeVersion SchemaListAll", refresh},
	{"DELETE /admin/schemas", "SchemaChangeVersion SchemaListAll", refresh},
	{"POST /admin/system/maintenance", "MaintenanceGet", refresh},
	{"DELETE /workflows", "WorkflowGet WorkflowGetStart WorkflowStepListTree", figures},
	{"PUT /rate-limits", "LimitGet", figures},
	{"PUT /admin/queues", "QueueConfigVersion QueueConfigList", figures},
	{"DELETE /rate-limits", "LimitGet", figures},
	{"PUT /admin/pools", "PoolWorkers PoolActive PoolQueueCounts", figures},
	{"POST /queues/$queue/drain", "QueueFence QueueCountListByQueue", figures},
	{"POST /webhooks/deliveries", "WebhookDeliveryListByID WebhookAttemptList WebhookNotify", figures},
	{"POST /workers/heartbeat", "JobHeartbeat", portion},
	{"DELETE /admin/queues", "JobListForPurge", portion},
	{"DELETE /queues", "QueueFence RelayExclude QueueLock QueueCountListByQueue QueueJobListReady QueueJobListWaiting JobDiscardWaiting JobMoveQueue QueueDelete", portion},
}

func isTolerated(request, statement string) bool {
	return slices.ContainsFunc(tolerated, func(one struct{ request, statements, why string }) bool {
		return strings.HasPrefix(request, one.request) && slices.Contains(strings.Fields(one.statements), statement)
	})
}

// failingRequests change or read something of every domain. One that is refused when no statement fails begins with its status.
var failingRequests = strings.Split(strings.TrimSpace(`
POST /jobs {"type":"t","args":[1]}
POST /jobs {"type":"t","args":[1],"id":"$free"}
POST /jobs {"type":"t","args":["$new"],"unique":{"keys":["type","args"]}}
POST /jobs {"type":"t","args":[1],"scheduled_at":"2099-01-01T00:00:00Z"}
POST /jobs {"type":"t","args":[1],"rate_limit":{"key":"$new","concurrency":1}}
POST /jobs/batch {"jobs":[{"type":"t","args":[]},{"type":"u","args":[],"options":{"queue":"other"}}]}
POST /jobs/bulk {"idempotency_key":"$new","jobs":[{"type":"t","args":[]},{"type":"u","args":[]}]}
POST /jobs/bulk/cancel {"job_ids":["$job","$active"]}
POST /jobs/bulk/cancel {"filter":{"queue":"$busy"}}
POST /jobs/bulk/retry {"job_ids":["$discarded","$retryable"]}
POST /jobs/bulk/delete {"job_ids":["$completed"]}
GET /jobs
GET /jobs?queue=$busy&state=available
GET /jobs/$job
GET /jobs/$completed
GET /jobs/$active/explain
GET /jobs/$completed/result
POST /jobs/results {"ids":["$completed","$job"]}
GET /jobs/$completed/history
GET /jobs/$discarded/retries
GET /jobs/$discarded/lineage
GET /events
GET /events?page=1&per_page=5
GET /events?after=$event
GET /events/$event
GET /events/$completed/history
GET /history
GET /unique-jobs
DELETE /jobs/$job
DELETE /jobs/$active
DELETE /jobs/$step
PATCH /jobs/$job {"priority":7}
POST /jobs/$pending/activate
POST /admin/jobs/$discarded/retry
GET /jobs/$progressing/progress
PUT /jobs/$active/progress {"progress":0.5}
GET /jobs/$progressing/checkpoint
PUT /jobs/$active/checkpoint {"state":{"page":7}}
DELETE /jobs/$progressing/checkpoint
POST /workers/fetch {"queues":["$busy"],"worker_id":"w"}
POST /workers/ack {"job_id":"$active","result":1}
POST /workers/ack {"job_id":"$limited"}
POST /workers/ack {"job_id":"$unique"}
POST /workers/ack {"job_id":"$step","result":1}
POST /workers/ack/batch {"acks":[{"job_id":"$active"}]}
POST /workers/nack {"job_id":"$active","error":{"code":"boom"}}
POST /workers/nack {"job_id":"$active","error":{"code":"boom","retryable":false}}
POST /workers/nack {"job_id":"$step","error":{"code":"boom","retryable":false}}
POST /workers/nack {"job_id":"$active","requeue":true}
POST /workers/nack/batch {"nacks":[{"job_id":"$active","error":{"code":"boom"}}]}
POST /workers/progress {"job_id":"$active","percentage":50}
POST /workers/heartbeat {"worker_id":"w","active_jobs":["$active"]}
POST /workers/register {"worker_id":"$new"}
GET /workers
GET /workers/$worker
GET /workers/$worker/health
DELETE /workers/$worker
POST /admin/workers/$worker/quiet
POST /admin/workers/directive {"directive":"quiet"}
GET /dead-letter
GET /dead-letter/stats
GET /dead-letter/$discarded
DELETE /dead-letter/$discarded
POST /dead-letter/$discarded/retry
POST /dead-letter/retry {"confirm":true,"filter":{"ids":["$discarded"]}}
DELETE /admin/dead-letter {"confirm":true,"filter":{"ids":["$discarded"]}}
GET /admin/jobs
GET /admin/jobs?queue=$busy&sort=priority
GET /admin/jobs/$completed
GET /admin/queues
GET /admin/queues/$busy
DELETE /admin/queues/$queue/jobs {"states":["available","scheduled"],"confirm":true}
PUT /admin/queues/$busy/rate-limit {"concurrency":5}
GET /admin/scheduling/stats
GET /admin/stats
GET /admin/stats/history?period=1h&since=2h
GET /admin/system/maintenance
POST /admin/system/maintenance {"enabled":false}
GET /admin/tenants
GET /queues
POST /queues {"name":"$new"}
GET /queues/$busy
GET /queues/$busy/stats
GET /queues/$busy/priority-stats
DELETE /queues/$queue {"strategy":"discard"}
DELETE /queues/$queue {"strategy":"move","target_queue":"$idle"}
POST /queues/$busy/pause
POST /queues/$busy/resume
POST /queues/$queue/drain
GET /queues/$idle/config
PUT /queues/$idle/config {"concurrency":3,"backpressure":{"max_depth":100}}
GET /rate-limits
GET /rate-limits/$key
PUT /rate-limits/$key {"concurrency":2}
PUT /rate-limits/$key/override {"concurrency":2}
DELETE /rate-limits/$key/override
GET /admin/pools
GET /admin/pools/$pool
PUT /admin/pools/$new {"queues":["a"]}
DELETE /admin/pools/$pool
POST /schemas {"uri":"urn:x:$new","type":"typed.$new","version":"1","schema":{"type":"array"}}
409 POST /schemas {"uri":"$uri","type":"typed.$new","version":"1","schema":{"type":"array"}}
GET /schemas
GET /schemas/$uri
DELETE /schemas/$uri
GET /admin/schemas/$schema/1
GET /admin/schemas
GET /admin/schemas/$schema
PUT /admin/schemas/$new/1 {"schema":{"type":"array"}}
PUT /admin/schemas/$schema/1 {"schema":{"type":"array"}}
PUT /admin/schemas/$schema/1 {"schema":{"type":"array"},"enforce":true}
DELETE /admin/schemas/$schema/1
POST /cron {"name":"$new","expression":"0 0 1 1 *","type":"t"}
GET /cron
GET /cron/$cron
PUT /cron/$cron {"expression":"0 0 2 1 *","type":"t"}
PATCH /cron/$cron {"description":"x"}
DELETE /cron/$cron
POST /cron/$cron/pause
POST /cron/$cron/trigger
GET /cron/$cron/history
POST /workflows {"type":"chain","steps":[{"type":"t","args":[]},{"type":"group","jobs":[{"type":"t","args":[]}]}]}
POST /workflows {"steps":[{"id":"a","type":"t","args":[]},{"id":"b","type":"t","args":[],"depends_on":["a"]}]}
GET /workflows
GET /workflows?state=running
GET /workflows/$workflow
GET /workflows/$workflow/progress
DELETE /workflows/$workflow
POST /webhooks {"url":"https://example.com/x","events":["job.completed"],"secret":"whsec_failing-failing-failing"}
GET /webhooks
GET /webhooks/$webhook
PATCH /webhooks/$webhook {"metadata":{"k":1}}
DELETE /webhooks/$webhook
POST /webhooks/$webhook/rotate-secret {"secret":"whsec_failing-failing-failing-2"}
DELETE /webhooks/$rotated/secrets/previous
POST /webhooks/$webhook/replay {"since":"1h"}
GET /webhooks/$webhook/deliveries
GET /webhooks/deliveries
GET /webhooks/deliveries/$delivery
POST /webhooks/deliveries/$delivery/retry
`), "\n")

// TestFailingStatements lets each statement of each request fail, one at a time. The answer must be an error of the server, and nothing is
// stored: an error that is dropped on its way answers 200 for what was not done.
func TestFailingStatements(t *testing.T) {
	t.Parallel()
	const databases = 4
	for part := range databases {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			t.Parallel()
			n := newFailingNode(t)
			for i := part; i < len(failingRequests); i += databases {
				t.Run(strings.ReplaceAll(failingRequests[i], "/", "_"), func(t *testing.T) {
					n.t = t
					n.requireErrors(failingRequests[i])
				})
			}
		})
	}
}

func (n *failingNode) requireErrors(text string) {
	n.t.Helper()
	var unnoticed []string
	status, text, refused := strings.Cut(text, " ")
	if _, err := strconv.Atoi(status); err != nil {
		text, refused = status+" "+text, false
	}
	for i := 0; ; i++ {
		method, path, body := n.request(text)
		before := n.snapshot()
		n.statements.FailAt(i)
		w := call(n.sick, method, path, body)
		failed := n.statements.Heal()
		switch {
		case failed == "":
			if refused {
				require.Equal(n.t, status, strconv.Itoa(w.Code), w.Body)
			} else {
				require.Less(n.t, w.Code, 400, w.Body)
			}
			require.Positive(n.t, i, "it sends no statement")
			require.Empty(n.t, unnoticed)
			return
		case isTolerated(text, failed):
		case w.Code < 500:
			unnoticed = append(unnoticed, fmt.Sprintf("%s failed, the answer is %d %s", failed, w.Code, w.Body))
		case !slices.Equal(before, n.snapshot()):
			unnoticed = append(unnoticed, failed+" failed, and something is stored")
		}
	}
}

// withoutPlace are the reads of failingRequests that need no place among the slow reads (pg.DB.Reading): they read one row, or few.
var withoutPlace = strings.Split(strings.TrimSpace(`
GET /admin/jobs/$completed
GET /admin/pools
GET /admin/pools/$pool
GET /admin/queues
GET /admin/queues/$busy
GET /admin/scheduling/stats
GET /admin/schemas
GET /admin/schemas/$schema
GET /admin/schemas/$schema/1
GET /admin/stats
GET /admin/stats/history?period=1h&since=2h
GET /admin/system/maintenance
GET /cron/$cron
GET /dead-letter/$discarded
GET /events/$event
GET /jobs/$completed
GET /jobs/$completed/result
GET /jobs/$discarded/lineage
GET /jobs/$job
GET /jobs/$progressing/checkpoint
GET /jobs/$progressing/progress
GET /queues/$busy
GET /queues/$busy/stats
GET /queues/$idle/config
GET /rate-limits/$key
GET /schemas
GET /schemas/$uri
GET /webhooks/$webhook
GET /webhooks/deliveries/$delivery
GET /workers/$worker
GET /workers/$worker/health
`), "\n")

// TestReadsWithoutAPlace has each read find all places taken until its time is over. The answer must be an error: one that is dropped
// answers 200 with a list that is empty.
func TestReadsWithoutAPlace(t *testing.T) {
	t.Parallel()
	n := newFailingNode(t)
	busy, b := handlerOn(t, n.pool, func(c *domaintest.Config) { c.Database.StatementTimeout = 300 * time.Millisecond })
	for range max(1, n.pool.Config().MaxConns/2) {
		_, done, err := b.DB.Reading(t.Context())
		require.NoError(t, err)
		defer done()
	}
	var answered []string
	var mu sync.Mutex
	var reads sync.WaitGroup
	for _, text := range failingRequests {
		if !strings.HasPrefix(text, "GET ") && !strings.HasPrefix(text, "POST /jobs/results ") {
			continue
		}
		method, path, body := n.request(text)
		reads.Go(func() {
			if w := call(busy, method, path, body); w.Code < 500 {
				mu.Lock()
				defer mu.Unlock()
				answered = append(answered, text)
			}
		})
	}
	reads.Wait()
	slices.Sort(answered)
	require.Subset(t, withoutPlace, answered)
}
