package e2e_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// soon is how long what a vanished node has locked may stay locked.
const soon = 20 * time.Second

// vanishing is a transaction of one kind in which a node loses its network.
type vanishing struct {
	lock  string             // what the transaction waits for when it holds its locks
	begin func(a *node)      // has the node begin it; called with the lock taken
	works func(b *node) bool // whether another node can do what the locks forbid
}

// TestNodeVanishes: a node whose packets are lost while its transaction holds locks stops the others for seconds only, although
// its connection stays open.
func TestNodeVanishes(t *testing.T) {
	t.Parallel()
	const ownID = "01a20000-0000-7000-8000-000000000001"
	bulk := func(a *node) reply {
		return a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}],"idempotency_key":"k"}`)
	}
	chosen := func(a *node) reply { return a.post("/ojs/v1/jobs", `{"type":"t","args":[],"id":"`+ownID+`"}`) }
	async := func(call func(a *node) reply) func(a *node) {
		return func(a *node) { go func() { call(a) }() }
	}
	e := newEndpoint(t)
	kinds := map[string]vanishing{
		"RelayPass": {
			lock:  "LOCK TABLE ojs.event_gaps IN ACCESS EXCLUSIVE MODE",
			begin: func(a *node) { a.push(`"type":"t","args":[],"queue":"q"`) },
			works: func(b *node) bool { return b.get("/ojs/v1/events").is(200).at("events.0.id") != "" },
		},
		"WebhookFanOut": {
			lock:  "LOCK TABLE ojs.webhook_deliveries IN SHARE MODE",
			begin: func(a *node) { a.push(`"type":"t","args":[],"queue":"q"`) },
			works: func(*node) bool { return len(e.received("/WebhookFanOut")) > 0 },
		},
		"CronFires": {
			lock: "LOCK TABLE ojs.cron_runs IN SHARE MODE",
			begin: func(a *node) {
				a.post("/ojs/v1/cron", `{"name":"c","expression":"@every 1s","type":"tick","options":{"queue":"cron"}}`).is(201)
			},
			works: func(b *node) bool { return b.fetch("cron", `"wait_ms":1000`).at("jobs.0.id") != "" },
		},
		"BulkWithKey": {
			lock: "LOCK TABLE ojs.jobs IN SHARE MODE", begin: async(bulk),
			works: func(b *node) bool { return bulk(b).status == http.StatusCreated },
		},
		"ChosenID": {
			lock: "LOCK TABLE ojs.jobs_done IN ACCESS EXCLUSIVE MODE", begin: async(chosen),
			works: func(b *node) bool { return chosen(b).status == http.StatusCreated },
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.URL(t)
			p := newProxy(t, url)
			a := setup(t, e.quick, on(p.url), func(c *app.Config) { c.DatabaseListenURL = url })
			t.Cleanup(p.end)
			if name == "WebhookFanOut" {
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
	direct.database = url
	conn := direct.connect()
	defer func() { _ = conn.Close(context.Background()) }()
	_, err := conn.Exec(t.Context(), "BEGIN; "+kind.lock)
	require.NoError(t, err)
	kind.begin(a)
	eventually(t, func() bool {
		return direct.one(`SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))::text`) == "true"
	})
	p.swallow()
	_, err = conn.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	eventually(t, func() bool {
		return direct.one(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database())::text`) == "true"
	})
}
