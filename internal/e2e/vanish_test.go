package e2e_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// soon is how long what a vanished node has locked may stay locked.
const soon = 20 * time.Second

// vanishing is a transaction of one kind in which a node loses its network.
type vanishing struct {
	lock   string             // keeps the transaction in a statement
	within string             // that statement
	begin  func(a *node)      // has the node begin it; called with the lock taken
	works  func(b *node) bool // whether another node can do what the locks of the transaction forbid
	hooked bool               // job.enqueued events are sent to an endpoint
}

// TestNodeVanishes: a node whose packets are lost while its transaction holds locks stops the others for seconds only, although
// its connection stays open.
func TestNodeVanishes(t *testing.T) {
	t.Parallel()
	const ownID, bulkID = "01a20000-0000-7000-8000-000000000001", "01a20000-0000-7000-8000-000000000002"
	const bulk, bulkBody = "/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}],"idempotency_key":"k"}`
	const single, singleBody = "/ojs/v1/jobs", `{"type":"t","args":[],"id":"` + ownID + `"}`
	push := func(a *node) { a.push(`"type":"t","args":[],"queue":"q"`) }
	e := newEndpoint(t)
	kinds := map[string]vanishing{
		"RelayPass": {
			lock: "LOCK TABLE ojs.event_gaps IN ACCESS EXCLUSIVE MODE", within: "RelayScan",
			begin: push,
			works: func(b *node) bool { return b.get("/ojs/v1/events").is(200).at("events.0.id") != "" },
		},
		"WebhookFanOut": {
			lock: "LOCK TABLE ojs.webhook_deliveries IN SHARE MODE", within: "WebhookDeliveryCreate",
			begin: push, hooked: true,
			works: func(*node) bool { return len(e.received("/WebhookFanOut")) > 0 },
		},
		"WebhookClaim": {
			lock: "LOCK TABLE ojs.webhook_secrets IN ACCESS EXCLUSIVE MODE", within: "WebhookSecretList",
			begin: push, hooked: true,
			works: func(*node) bool { return len(e.received("/WebhookClaim")) > 0 },
		},
		"WebhookRecord": { // the outcome is lost with the node; another one may change the subscription, and sends again after the lease
			lock: "LOCK TABLE ojs.webhook_attempts IN SHARE MODE", within: "WebhookDeliveryRecord",
			begin: push, hooked: true,
			works: func(b *node) bool {
				id := b.get("/ojs/v1/webhooks").is(200).at("subscriptions.0.id")
				return b.patch("/ojs/v1/webhooks/"+id, `{"timeout_ms":5000}`).status == http.StatusOK
			},
		},
		"CronFires": {
			lock: "LOCK TABLE ojs.cron_runs IN SHARE MODE", within: "CronRecordTick",
			begin: func(a *node) {
				r := a.post("/ojs/v1/cron", `{"name":"c","expression":"@every 1s","type":"tick","options":{"queue":"cron"}}`)
				require.Contains(t, []int{http.StatusCreated, http.StatusOK}, r.status, r.body) // it may be begun twice
			},
			works: func(b *node) bool { return b.fetch("cron", `"wait_ms":1000`).at("jobs.0.id") != "" },
		},
		"BulkWithKey": {
			lock: "LOCK TABLE ojs.jobs IN SHARE MODE", within: "JobInsertAlike",
			begin: func(a *node) { a.postUnanswered(bulk, bulkBody) },
			works: func(b *node) bool { return b.post(bulk, bulkBody).status == http.StatusCreated },
		},
		"BulkCancel": {
			lock: "LOCK TABLE ojs.jobs_done IN SHARE MODE", within: "JobCancel",
			begin: func(a *node) {
				a.post(single, `{"type":"t","args":[],"id":"`+bulkID+`"}`)
				a.postUnanswered("/ojs/v1/jobs/bulk/cancel", `{"job_ids":["`+bulkID+`"]}`)
			},
			works: func(b *node) bool {
				return b.do(http.MethodDelete, "/ojs/v1/jobs/"+bulkID, nil).status == http.StatusOK
			},
		},
		"ChosenID": {
			lock: "LOCK TABLE ojs.jobs_done IN ACCESS EXCLUSIVE MODE", within: "JobListDoneIDs",
			begin: func(a *node) { a.postUnanswered(single, singleBody) },
			works: func(b *node) bool { return b.post(single, singleBody).status == http.StatusCreated },
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.URL(t)
			p := newProxy(t, url)
			a := setup(t, e.quick, connections(8), on(p.url))
			t.Cleanup(p.end)
			if kind.hooked {
				a.subscribe(e, "/"+name, `"job.enqueued"`)
			}
			a.vanishes(url, p, kind)
			b := setup(t, e.quick, on(url))
			start := time.Now()
			eventually(t, func() bool { return kind.works(b) })
			require.Less(t, time.Since(start), soon)
		})
	}
}

// vanishes lets the node begin the transaction, and loses its packets before the result of a statement.
func (a *node) vanishes(url string, p *proxy, kind vanishing) {
	t := a.t
	t.Helper()
	direct := *a
	direct.database, direct.session = url, &session{}
	defer direct.session.close()
	conn := direct.connect()
	defer func() { _ = conn.Close(context.Background()) }()
	// A session that has not prepared the statement yet waits outside of the transaction: then once more.
	for held := false; !held; {
		_, err := conn.Exec(t.Context(), "ROLLBACK; BEGIN; "+kind.lock)
		require.NoError(t, err)
		kind.begin(a)
		for start := time.Now(); !held && time.Since(start) < 5*time.Second; {
			held = direct.one(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- name: ' || $1 || ' %'
				AND xact_start < query_start AND datname = current_database())::text`, kind.within) == "true"
		}
	}
	p.swallow()
	_, err := conn.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	// The statement ends, and its answer is lost. The session is then idle in its transaction, perhaps for a moment only.
	eventually(t, func() bool {
		return direct.one(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- name: ' || $1 || ' %'
			AND datname = current_database())::text`, kind.within) == "false"
	})
}

// postUnanswered sends a request whose answer does not matter.
func (a *node) postUnanswered(path, body string) {
	go func() {
		res, err := a.client.Post(a.url+path, "application/json", strings.NewReader(body))
		if err == nil {
			_ = res.Body.Close()
		}
	}()
}
