package httpapi_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/queueadmin"
)

// tenants is a running node with data of tenant zulu, which tenant aaa must not reach.
type tenants struct {
	t    *testing.T
	url  string
	db   *pgx.Conn
	ids  map[string]string // of what zulu has, by what stands before it in paths
	leak []string          // texts that are in no answer to aaa
}

func newTenants(t *testing.T, mode queueadmin.TenantMode) *tenants {
	t.Helper()
	c := app.Config{Config: config.Default(), Logger: slog.New(slog.DiscardHandler), Version: "1.2.3"}
	c.Database.URL, c.Server.Listen, c.GRPC.Listen, c.Database.MaxConns, c.Server.Tenancy, c.Tests.EnableReset = dbtest.URL(t), "127.0.0.1:0", "off", 8, string(mode), true
	node, err := app.Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Stop()) })
	db, err := pgx.Connect(t.Context(), c.Database.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return &tenants{t: t, url: "http://" + node.Addr(), db: db, ids: map[string]string{}}
}

// answer is what a call got.
type answer struct {
	status int
	body   string
}

// call sends a request of a tenant; "": of an operator.
func (n *tenants) call(name, method, path, body string) answer {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), method, n.url+path, strings.NewReader(body))
	require.NoError(n.t, err)
	if name != "" {
		req.Header.Set("X-OJS-Tenant", name)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(n.t, err, "%s %s", method, path)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return answer{res.StatusCode, string(text)}
}

// ok requires a status below 300 and returns a text of the answer by its path.
func (n *tenants) ok(name, method, path, body, at string) string {
	n.t.Helper()
	a := n.call(name, method, path, body)
	require.Less(n.t, a.status, 300, "%s %s: %s", method, path, a.body)
	if at == "" {
		return a.body
	}
	var value any
	require.NoError(n.t, json.Unmarshal([]byte(a.body), &value), a.body)
	for part := range strings.SplitSeq(at, ".") {
		if list, ok := value.([]any); ok {
			require.NotEmpty(n.t, list, a.body)
			value = list[0]
			continue
		}
		value = value.(map[string]any)[part]
	}
	return fmt.Sprint(value)
}

// fill makes something of each kind for zulu.
func (n *tenants) fill() {
	n.t.Helper()
	job := func(more string) string {
		return n.ok("zulu", "POST", "/ojs/v1/jobs", `{"type":"zulu.job","args":["zulu-arg"],"queue":"zulu-queue","options":{"visibility_timeout":"PT1H"}`+more+`}`, "job.id")
	}
	dead := job(`,"priority":9,"retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}`)
	require.Equal(n.t, dead, n.ok("zulu", "POST", "/ojs/v1/workers/fetch", `{"queues":["zulu-queue"],"worker_id":"zulu-worker"}`, "jobs.0.id"))
	n.ok("zulu", "POST", "/ojs/v1/workers/nack", `{"job_id":"`+dead+`","error":{"code":"zulu-code","message":"zulu","retryable":false}}`, "")
	done := job(`,"priority":8`)
	require.Equal(n.t, done, n.ok("zulu", "POST", "/ojs/v1/workers/fetch", `{"queues":["zulu-queue"],"worker_id":"zulu-worker"}`, "jobs.0.id"))
	n.ok("zulu", "POST", "/ojs/v1/workers/ack", `{"job_id":"`+done+`","result":{"zulu":1}}`, "")
	active := job(`,"priority":7`)
	require.Equal(n.t, active, n.ok("zulu", "POST", "/ojs/v1/workers/fetch", `{"queues":["zulu-queue"],"worker_id":"zulu-worker"}`, "jobs.0.id"))
	n.ok("zulu", "POST", "/ojs/v1/workers/progress", `{"job_id":"`+active+`","percentage":5}`, "")
	pending := job(`,"pending":true`)
	available := job(`,"unique":{"keys":["type","args"]},"rate_limit":{"key":"zulu-key","concurrency":5}`)
	n.ok("zulu", "POST", "/ojs/v1/workers/register", `{"worker_id":"zulu-worker"}`, "")
	n.ok("zulu", "POST", "/ojs/v1/cron", `{"name":"zulu-cron","expression":"0 0 1 1 *","type":"zulu.cron","args":[]}`, "")
	workflow := n.ok("zulu", "POST", "/ojs/v1/workflows", `{"type":"group","name":"zulu-workflow","jobs":[{"type":"zulu.step","args":[],"queue":"zulu-queue"}]}`, "id")
	hook := n.ok("zulu", "POST", "/ojs/v1/webhooks", `{"url":"https://zulu.example.com/hook","events":["job.*"],"secret":"zulu-secret-of-24-bytes-or-so","active":false}`, "id")
	const delivery = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"
	_, err := n.db.Exec(n.t.Context(), `
		INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, status, created_at, completed_at)
		VALUES ($1, $2, 0, 0, now(), 'job.completed', 'zulu-subject', '{}', 'dead', now(), now())`, delivery, strings.TrimPrefix(hook, "sub_"))
	require.NoError(n.t, err)
	event := n.ok("zulu", "GET", "/ojs/v1/events?job_id="+active, "", "events.0.id")
	n.ids = map[string]string{
		"jobs": active, "checkpoints": active, "dead-letter": dead, "workers": "zulu-worker", "cron": "zulu-cron", "crons": "zulu-cron",
		"workflows": workflow, "webhooks": hook, "subscriptions": hook, "deliveries": "del_" + delivery, "events": event, "tenants": "zulu",
		"queues": "zulu-queue", "rate-limits": "zulu-key", "pending": pending, "available": available, "done": done,
	}
	n.leak = []string{active, dead, done, pending, available, workflow, hook, delivery, event, "zulu"}
}

// state is all that zulu has, as it is stored. Times of calls of its workers do not count.
func (n *tenants) state() string {
	n.t.Helper()
	var text string
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), `
		SELECT concat_ws(E'\n',
			(SELECT string_agg(to_json(j)::text, E'\n' ORDER BY j.id) FROM ojs.jobs j WHERE j.lane = 'zulu'),
			(SELECT string_agg(to_json(d)::text, E'\n' ORDER BY d.id) FROM ojs.jobs_done d WHERE d.lane = 'zulu'),
			(SELECT string_agg(to_json(c)::text, E'\n') FROM ojs.crons c WHERE c.tenant = 'zulu'),
			(SELECT string_agg(to_json(w)::text, E'\n') FROM ojs.workflows w WHERE w.tenant = 'zulu'),
			(SELECT string_agg(to_json(h)::text, E'\n') FROM ojs.webhooks h WHERE h.tenant = 'zulu'),
			(SELECT string_agg(to_json(x)::text, E'\n') FROM ojs.webhook_deliveries x WHERE x.subject = 'zulu-subject'),
			(SELECT string_agg(k.id || k.state || COALESCE(k.directive, ''), E'\n') FROM ojs.workers k WHERE k.tenant = 'zulu'))`).Scan(&text))
	require.Contains(n.t, text, n.ids["done"])
	return text
}

// allRoutes are the routes of a server with everything switched on.
func allRoutes() iter.Seq2[string, api.Reach] {
	c := config.Default()
	c.Tests.EnableReset = true
	a := httpapi.New(c, httpapi.Deps{
		Streams: api.NewStreams(config.Default().Realtime),
		Metrics: httpapi.Metrics{WriteText: func(context.Context, io.Writer, bool) error { return nil }},
	})
	a.Handler()
	return a.Routes()
}

// others are the routes of which a tenant gets more than a 403, or a 404 for what the path names, with a call of aaa that would reach data
// of zulu, and what it gets. Streams have a test of their own.
func (n *tenants) others() map[string]struct {
	status int
	query  string
	body   string
} {
	type want = struct {
		status int
		query  string
		body   string
	}
	active, dead, pending := n.ids["jobs"], n.ids["dead-letter"], n.ids["pending"]
	ids := `{"job_ids":["` + active + `","` + dead + `","` + pending + `","` + n.ids["available"] + `","` + n.ids["done"] + `"]`
	cron := `{"name":"zulu-cron","expression":"@daily","type":"t","args":[]}`
	anonymous := strings.Replace(cron, `"name":"zulu-cron",`, "", 1)
	ack := `{"job_id":"` + active + `"}`
	nack := `{"job_id":"` + active + `","error":{"code":"x","message":"x"}}`
	beat := `{"worker_id":"aaa-worker","active_jobs":["` + active + `"]}`
	forged := `{"type":"t","args":[],"meta":{"tenant_id":"zulu"}}`
	m := map[string]want{
		"POST /ojs/v1/jobs":             {403, "", forged},
		"POST /ojs/v1/jobs/batch":       {403, "", `{"jobs":[` + forged + `]}`},
		"POST /ojs/v1/jobs/bulk":        {422, "", `{"jobs":[` + forged + `]}`},
		"POST /ojs/v1/workflows":        {403, "", `{"type":"group","meta":{"tenant_id":"zulu"},"jobs":[{"type":"t","args":[]}]}`},
		"POST /ojs/v1/cron":             {409, "", cron},
		"POST /ojs/v1/crons":            {409, "", cron},
		"PUT /ojs/v1/cron/:name":        {409, "", anonymous},
		"PUT /ojs/v1/crons/:name":       {409, "", anonymous},
		"POST /ojs/v1/jobs/bulk/cancel": {422, "", ids + `}`},
		"POST /ojs/v1/jobs/bulk/retry":  {200, "", `{"filter":{"state":"discarded"}}`},
		"POST /ojs/v1/jobs/bulk/delete": {200, "", `{"filter":{"state":["discarded","completed"]}}`},
		"POST /ojs/v1/jobs/results":     {200, "", `{"ids":["` + n.ids["done"] + `"]}`},
		"POST /ojs/v1/workers/fetch":    {200, "", `{"queues":["zulu-queue"],"count":100,"worker_id":"aaa-worker"}`},
		"POST /ojs/v1/workers/ack":      {404, "", ack}, "POST /ojs/v1/workers/nack": {404, "", nack},
		"POST /ojs/v1/workers/ack/batch":        {200, "", `{"acks":[` + ack + `],"fetch":{"queues":["zulu-queue"],"count":9}}`},
		"POST /ojs/v1/workers/nack/batch":       {200, "", `{"nacks":[` + nack + `]}`},
		"POST /ojs/v1/workers/heartbeat":        {200, "", beat},
		"POST /ojs/v1/workers/beat":             {409, "", `{"worker_id":"zulu-worker","state":"quiet"}`},
		"POST /ojs/v1/workers/register":         {409, "", `{"worker_id":"zulu-worker"}`},
		"POST /ojs/v1/workers/progress":         {404, "", `{"job_id":"` + active + `","percentage":50}`},
		"POST /ojs/v1/dead-letter/retry":        {200, "", `{"filter":{"state":"discarded"},"confirm":true}`},
		"POST /ojs/v1/admin/dead-letter/retry":  {200, "", `{"ids":["` + dead + `"],"confirm":true}`},
		"POST /ojs/v1/dead-letter/purge":        {200, "", ``},
		"DELETE /ojs/v1/dead-letter":            {200, "?confirm=true", ``},
		"DELETE /ojs/v1/admin/dead-letter":      {200, "", `{"confirm":true,"ids":["` + dead + `"]}`},
		"GET /ojs/v1/events":                    {200, "?job_id=" + active, ``},
		"GET /ojs/v1/workers":                   {200, "?queue=zulu-queue", ``}, // that aaa-worker has asked for
		"GET /ojs/v1/admin/workers":             {200, "?queue=zulu-queue", ``},
		"GET /ojs/v1/jobs":                      {200, "?queue=zulu-queue", ``},
		"GET /ojs/v1/webhooks/deliveries":       {200, "?subscription_id=" + n.ids["webhooks"], ``},
		"GET /ojs/v1/queues/:name":              {404, "", ``},
		"GET /ojs/v1/queues/:name/stats":        {404, "", ``},
		"GET /ojs/v1/admin/jobs":                {200, "?queue=zulu-queue", ``},
		"POST /ojs/v1/admin/jobs/bulk/cancel":   {200, "", `{"filter":{"queue":"zulu-queue"},"confirm":true}`},
		"POST /ojs/v1/admin/jobs/bulk/retry":    {200, "", `{"filter":{"queue":"zulu-queue"},"confirm":true}`},
		"POST /ojs/v1/admin/jobs/bulk/delete":   {200, "", `{"filter":{"queue":"zulu-queue","state":["completed","discarded"]},"confirm":true}`},
		"PUT /ojs/v1/rate-limits/:key":          {400, "", `{}`}, // see rateLimits
		"PUT /ojs/v1/rate-limits/:key/override": {400, "", `{}`},
		"POST /ojs/v1/admin/workers/directive":  {403, "", `{"directive":"quiet"}`},
		"POST /ojs/v1/admin/reset":              {403, "", ``},
		"GET /metrics":                          {403, "", ``},
		"GET /ojs/v1/metrics":                   {403, "", ``},
		"GET /ojs/v1/admin/stats/stream":        {403, "", ``},
		"POST /ojs/v1/webhooks":                 {201, "", `{"url":"https://a.example.com/","events":["job.*"],"secret":"a-secret-of-24-bytes-or-so","active":false}`},
		"POST /ojs/v1/webhooks/subscriptions":   {201, "", `{"url":"https://a.example.com/","events":["job.*"],"secret":"a-secret-of-24-bytes-or-so","active":false}`},
	}
	for _, path := range []string{
		"/ojs/manifest", "/ojs/v1/health", "/health", "/ready", "/readyz", "/healthz", "/livez",
		"/ojs/v1/dead-letter", "/ojs/v1/dead-letter/stats", "/ojs/v1/admin/dead-letter", "/ojs/v1/admin/dead-letter/stats", "/ojs/v1/unique-jobs",
		"/ojs/v1/cron", "/ojs/v1/crons", "/ojs/v1/workflows", "/ojs/v1/history", "/ojs/v1/webhooks", "/ojs/v1/webhooks/subscriptions", "/ojs/v1/admin/tenants",
		"/ojs/v1/queues", "/ojs/v1/rate-limits",
	} {
		m["GET "+path] = want{200, "", ""}
	}
	return m
}

// lastWord is the last segment of a path that is no parameter.
func lastWord(path string) string {
	segments := slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return strings.HasPrefix(s, ":") })
	return segments[len(segments)-1]
}

// streamed have TestTenantStreams.
var streamed = []string{"GET /ojs/v1/events/stream", "GET /ojs/v1/queues/:name/events", "GET /ojs/v1/ws", "GET /ojs/v1/events/ws"}

// TestTenantsReachOnlyTheirOwn calls every route of the server as one tenant with the data of another one. A route that is added fails if
// it answers, unless it is in others.
func TestTenantsReachOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	n := newTenants(t, queueadmin.TenantsOptional)
	n.fill()
	before, others := n.state(), n.others()
	for route, reach := range allRoutes() {
		if slices.Contains(streamed, route) {
			continue
		}
		want, listed := others[route]
		require.True(t, listed || reach != api.Confined || strings.Contains(route, ":"), "%s is new, and its handler alone keeps tenants apart: say in others what it answers", route)
		method, template, _ := strings.Cut(route, " ")
		segments := strings.Split(template, "/")
		named := false
		for i, s := range segments {
			if strings.HasPrefix(s, ":") {
				kind := segments[i-1]
				if kind == "events" && i+1 < len(segments) {
					kind = "jobs" // /events/:id/history is about a job
				}
				// What zulu has none of must be refused, whatever its name.
				segments[i], named = cmp.Or(n.ids[kind], "any"), n.ids[kind] != ""
			}
		}
		if !listed {
			// What the route takes, so that it is not refused for its body.
			want.body = map[string]string{"nack": `{"error":{"code":"x","message":"x"}}`, "progress": `{"progress":0.5}`, "checkpoint": `{"state":1}`,
				"checkpoints": `{"state":1}`, "directive": `{"directive":"quiet"}`, "replay": `{"since":"1h"}`}[lastWord(template)]
		}
		path := strings.Join(segments, "/")
		got := n.call("aaa", method, path+want.query, want.body)
		switch {
		case listed:
			require.Equal(t, want.status, got.status, "%s: %s", route, got.body)
		case named:
			require.Contains(t, []int{http.StatusNotFound, http.StatusForbidden}, got.status, "%s: %s", route, got.body)
		default:
			require.Equal(t, http.StatusForbidden, got.status, "%s is new, and shows tenants something: say in others what. %s", route, got.body)
		}
		for _, text := range n.leak {
			// What the caller has sent may be repeated.
			if !strings.Contains(path+want.query+want.body, text) {
				require.NotContains(t, got.body, text, route)
			}
		}
		if want.status < 300 && listed {
			require.NotContains(t, got.body, "zulu-arg", route)
		}
	}
	require.Equal(t, before, n.state(), "a call of aaa has changed something of zulu")
	require.Contains(t, n.ok("zulu", "GET", "/ojs/v1/jobs", "", ""), n.ids["jobs"], "zulu sees its own")
	require.Equal(t, "1", n.ok("zulu", "GET", "/ojs/v1/queues", "", "total"))
	require.Equal(t, "zulu-queue", n.ok("zulu", "GET", "/ojs/v1/queues", "", "queues.0.name"))
	require.Equal(t, "1", n.ok("zulu", "GET", "/ojs/v1/queues/zulu-queue", "", "running"))
	require.Equal(t, "active", n.ok("zulu", "GET", "/ojs/v1/jobs/"+n.ids["jobs"]+"/explain", "", "state"))
	n.rateLimits()
	require.Equal(t, "6", n.ok("zulu", "GET", "/ojs/v1/queues/zulu-queue/stats", "", "stats.total"))
	require.Equal(t, "6", n.ok("", "GET", "/ojs/v1/queues/zulu-queue/stats", "", "stats.total"), "operators see all")
	require.Equal(t, "7", n.ok("zulu", "GET", "/ojs/v1/admin/tenants/zulu/stats", "", "total_jobs"))
	require.Equal(t, "1", n.ok("", "GET", "/ojs/v1/admin/tenants/zulu", "", "by_state.active"))
	require.Equal(t, "limited", n.ok("", "GET", "/ojs/v1/admin/tenants/zulu", "", "queues.0.name"))
	require.Equal(t, "zulu", n.ok("", "GET", "/ojs/v1/admin/tenants", "", "tenants.0.tenant_id"))
}

// rateLimits checks that each tenant has its own partition of a key, and that explanations name it as the job does.
func (n *tenants) rateLimits() {
	n.t.Helper()
	require.Equal(n.t, "zulu-key", n.ok("zulu", "GET", "/ojs/v1/rate-limits", "", "rate_limits.0.key"))
	require.Equal(n.t, "zulu/zulu-key", n.ok("", "GET", "/ojs/v1/rate-limits", "", "rate_limits.0.key"))
	require.Equal(n.t, "0", n.ok("aaa", "PUT", "/ojs/v1/rate-limits/zulu-key", `{"concurrency":0}`, "concurrency.limit"))
	require.Equal(n.t, "zulu-key", n.ok("aaa", "DELETE", "/ojs/v1/rate-limits/zulu-key/override", "", "key"))
	require.Equal(n.t, "5", n.ok("", "GET", "/ojs/v1/rate-limits/zulu%2Fzulu-key", "", "concurrency.limit"))
	require.Equal(n.t, "0", n.ok("zulu", "PUT", "/ojs/v1/rate-limits/zulu-key/override", `{"concurrency":0}`, "concurrency.limit"))
	id := n.ok("zulu", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"limited","rate_limit":{"key":"zulu-key"}}`, "job.id")
	require.Equal(n.t, "zulu-key", n.ok("zulu", "GET", "/ojs/v1/jobs/"+id+"/explain", "", "reasons.0.key"))
	require.Contains(n.t, n.ok("zulu", "GET", "/ojs/v1/jobs/"+id+"/explain", "", "summary"), "Its rate limit zulu-key lets")
	require.Equal(n.t, "zulu/zulu-key", n.ok("", "GET", "/ojs/v1/jobs/"+id+"/explain", "", "reasons.0.key"))
	n.ok("zulu", "DELETE", "/ojs/v1/jobs/"+id, "", "")
	n.ok("", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"whole","rate_limit":{"max_per_second":9}}`, "")
	require.Equal(n.t, 404, n.call("zulu", "GET", "/ojs/v1/rate-limits/queue:whole", "").status)
	require.Equal(n.t, 404, n.call("zulu", "PUT", "/ojs/v1/rate-limits/queue:whole", `{"concurrency":0}`).status)
	require.Equal(n.t, 403, n.call("zulu", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"whole","rate_limit":{"max_per_second":1}}`).status)
}

// TestTenantStreams: a stream shows the events of its tenant alone. The job of aaa comes last, so that events of zulu would come before.
func TestTenantStreams(t *testing.T) {
	t.Parallel()
	n := newTenants(t, queueadmin.TenantsOptional)
	n.ok("zulu", "POST", "/ojs/v1/jobs", `{"type":"b.job","args":[],"queue":"q"}`, "")
	for _, path := range []string{"/ojs/v1/events/stream", "/ojs/v1/queues/q/events"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+path, nil)
		require.NoError(t, err)
		req.Header.Set("X-OJS-Tenant", "aaa")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, res.StatusCode)
		n.ok("zulu", "POST", "/ojs/v1/jobs", `{"type":"b.job","args":[],"queue":"q"}`, "")
		n.ok("", "POST", "/ojs/v1/jobs", `{"type":"o.job","args":[],"queue":"q"}`, "")
		own := n.ok("aaa", "POST", "/ojs/v1/jobs", `{"type":"a.job","args":[],"queue":"q"}`, "job.id")
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			require.NotContains(t, lines.Text(), "b.job")
			require.NotContains(t, lines.Text(), "o.job")
			if strings.Contains(lines.Text(), own) {
				break
			}
		}
		require.NoError(t, ctx.Err())
		cancel()
		_ = res.Body.Close()
	}
}

// TestTenancySetting covers docs/reference/tenants.md, Setting and Enqueue.
func TestTenancySetting(t *testing.T) {
	t.Parallel()
	const job = `{"type":"t","args":[],"meta":{"tenant_id":"x"}}`
	lane := func(n *tenants, id string) (text string) {
		require.NoError(n.t, n.db.QueryRow(n.t.Context(), `SELECT lane FROM ojs.jobs WHERE id = $1`, id).Scan(&text))
		return text
	}
	t.Run("Optional", func(t *testing.T) {
		t.Parallel()
		n := newTenants(t, "")
		require.Equal(t, "x", lane(n, n.ok("", "POST", "/ojs/v1/jobs", job, "job.id")))
		require.Equal(t, "x", n.ok("x", "POST", "/ojs/v1/jobs", `{"type":"t","args":[]}`, "job.meta.tenant_id"))
		require.Equal(t, "", lane(n, n.ok("", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"meta":{"tenant_id":"Acme Corp"}}`, "job.id")))
		for _, name := range []string{"a b", "a/b", "ä", strings.Repeat("x", 129), " "} {
			a := n.call(name, "GET", "/ojs/v1/jobs", "")
			require.Equal(t, 400, a.status, name)
			require.Contains(t, a.body, "X-OJS-Tenant")
		}
		require.Equal(t, 400, n.call("x", "GET", "/ojs/v1/admin/tenants?cursor=a/b", "").status)
		require.Equal(t, 404, n.call("", "GET", "/ojs/v1/admin/tenants/never", "").status)
		for path, tenant := range map[string]string{"/ojs/v1/admin/tenants": "", "/ojs/v1/queues": "x"} {
			n.ok(tenant, "GET", path+"?offset=10000", "", "")
			for _, query := range []string{"?offset=10001", "?page=1002&per_page=10"} {
				a := n.call(tenant, "GET", path+query, "")
				require.Equal(t, 400, a.status, path+query)
				require.Equal(t, []any{"offset", "at most 10000"}, []any{gjson.Get(a.body, "error.details.parameter").Value(), gjson.Get(a.body, "error.details.expected").Value()}, a.body)
			}
		}
		require.Equal(t, 404, n.call("x", "GET", "/ojs/v1/nowhere", "").status)
		require.Equal(t, 405, n.call("x", "PATCH", "/ojs/v1/jobs/batch", "").status)

		// Unique keys are those of a tenant, in SQL as well.
		unique := `{"type":"u","args":[],"unique":{"keys":["type"]}}`
		n.ok("x", "POST", "/ojs/v1/jobs", unique, "")
		n.ok("y", "POST", "/ojs/v1/jobs", unique, "")
		n.ok("", "POST", "/ojs/v1/jobs", unique, "")
		require.Equal(t, 409, n.call("y", "POST", "/ojs/v1/jobs", unique).status)
		key := strings.Repeat("ab", 32)
		n.ok("x", "POST", "/ojs/v1/jobs", `{"type":"k","args":[],"unique_key":"`+key+`","unique":{"keys":["type"]}}`, "")
		enqueue := `SELECT ojs.enqueue('k', '[]', options => json_build_object('unique', json_build_object('on_conflict', 'reject'), 'unique_key', $1::text, 'meta', json_build_object('tenant_id', $2::text)))::text`
		var id string
		require.ErrorContains(t, n.db.QueryRow(t.Context(), enqueue, key, "x").Scan(&id), "equivalent")
		require.NoError(t, n.db.QueryRow(t.Context(), enqueue, key, "y").Scan(&id))
		require.Equal(t, "y", lane(n, id))
		n.ok("y", "GET", "/ojs/v1/jobs/"+id, "", "")

		// An idempotency key is that of a tenant.
		require.NotEqual(t, n.ok("x", "POST", "/ojs/v1/jobs/bulk", `{"idempotency_key":"k","jobs":[{"type":"t","args":[]}]}`, "items.0.job.id"),
			n.ok("y", "POST", "/ojs/v1/jobs/bulk", `{"idempotency_key":"k","jobs":[{"type":"t","args":[]}]}`, "items.0.job.id"))
	})
	t.Run("Required", func(t *testing.T) {
		t.Parallel()
		n := newTenants(t, queueadmin.TenantsRequired)
		for path, body := range map[string]string{
			"/ojs/v1/jobs": job, "/ojs/v1/jobs/batch": `{"jobs":[` + job + `]}`, "/ojs/v1/workflows": `{"type":"group","jobs":[` + job + `]}`,
			"/ojs/v1/cron": `{"name":"c","expression":"@daily","type":"t","args":[]}`,
		} {
			a := n.call("", "POST", path, body)
			require.Equal(t, 400, a.status, path)
			require.Contains(t, a.body, "X-OJS-Tenant", path)
		}
		n.ok("x", "POST", "/ojs/v1/jobs", job, "")
		n.ok("", "GET", "/ojs/v1/jobs", "", "jobs.0.id")
	})
	t.Run("Off", func(t *testing.T) {
		t.Parallel()
		n := newTenants(t, queueadmin.TenantsOff)
		id := n.ok("a b", "POST", "/ojs/v1/jobs", job, "job.id")
		require.Equal(t, "", lane(n, id))
		n.ok("other", "GET", "/ojs/v1/jobs/"+id, "", "")
		require.NoError(t, n.db.QueryRow(t.Context(), `SELECT ojs.enqueue('k', '[]', options => '{"meta":{"tenant_id":"x"}}')::text`).Scan(&id))
		require.Equal(t, "", lane(n, id))
	})
}
