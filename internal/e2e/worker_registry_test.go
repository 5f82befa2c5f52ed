package e2e_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorkerRegistry covers docs/reference/workers.md, Registry.
func TestWorkerRegistry(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Registers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.post("/ojs/v1/workers/register", `{"worker_id":"reg","hostname":"h1","pid":7,"queues":["email","sms"],"concurrency":10,"labels":["eu"],"started_at":"2026-01-02T03:04:05Z"}`).is(200)
		require.Equal(t, `{"ok":true,"worker_id":"reg","server_time":"`+r.at("server_time")+`","heartbeat_interval":5,"heartbeat_timeout":60,"visibility_timeout_default":30}`, r.body)
		item := a.worker("reg").is(200)
		beat := item.at("last_heartbeat_at")
		require.Equal(t, `{"id":"reg","worker_id":"reg","state":"running","directive":"","queues":["email","sms"],"concurrency":10,"active_jobs":0,"active_job_ids":[],"hostname":"h1","pid":7,"labels":["eu"],"started_at":"2026-01-02T03:04:05.000Z","last_heartbeat_at":"`+beat+`","last_heartbeat":"`+beat+`","jobs":[]}`, item.body)
		require.Equal(t, item.body, a.get("/ojs/v1/admin/workers/reg").is(200).body)
		a.post("/ojs/v1/workers/register", `{}`).invalid("worker_id")
		a.post("/ojs/v1/workers/register", `{"worker_id":"reg"}`).is(200)
		eventually(t, func() bool { types, _ := a.workerEvents("reg"); return len(types) > 0 })
		types, data := a.workerEvents("reg")
		require.Equal(t, []string{"worker.started"}, types)
		require.Equal(t, `{"worker_id":"reg","queues":["email","sms"],"concurrency":10,"hostname":"h1","pid":7}`, data[0].at("data"))
		require.Equal(t, "ojs://ojs/workers/reg", data[0].at("source"))
	})

	t.Run("ShowsWhatWasReportedLast", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		reserved, others := a.push(`"type":"a.b","args":[],"queue":"%s"`, q), a.jobIn("active")
		a.fetch(q, `"worker_id":"last"`)
		a.beat("last", `"labels":{"zone":"b"}`, `"version":"1.2"`, `"memory_mb":5`)
		a.beat("last", fmt.Sprintf(`"active_jobs":["%s","%s"]`, others, reserved), `"hostname":"h"`, `"memory_mb":6.50`)
		r := a.worker("last").is(200)
		require.Equal(t, []string{others, reserved}, r.texts("active_job_ids"))
		require.Equal(t, "2", r.at("active_jobs"))
		require.Equal(t, `{"zone":"b"}`, r.at("labels"))
		require.Equal(t, "1.2", r.at("version"))
		require.Equal(t, "6.50", r.at("memory_mb"))
		job := a.job(reserved)
		require.Equal(t, 1, r.count("jobs"))
		require.Regexp(t, `^\[\{"id":"`+reserved+`","type":"a.b","queue":"`+q+`","attempt":1,"started_at":"`+job.at("job.started_at")+`","reserved_until":"[^"]+"\}\]$`, r.at("jobs"))
		a.beat("last", `"active_jobs":3`)
		require.Equal(t, `[]`, a.worker("last").at("active_job_ids"))
		require.Equal(t, "3", a.worker("last").at("active_jobs"))
	})

	t.Run("KeepsUnusualFacts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		unusual := []string{
			`"active_job_ids":["a\u0000b","ä\ud83d\ude00"]`, `"metadata":{"a":1e999,"a":1.10,"\u0000":["\u0000"]}`, `"labels":{"k":"\u0000v","\ud800":"\udc00"}`,
			`"version":{"deep":[[[]]]}`, `"memory_mb":1e400`, `"hostname":"h\u0000"`, `"started_at":"yesterday"`,
		}
		for range 2 {
			a.beat("strange", unusual...)
			for _, member := range unusual {
				a.beat("strange", member)
			}
		}
		a.beat("strange", unusual...)
		r := a.worker("strange").is(200)
		require.Equal(t, []string{"a\x00b", "ä😀"}, r.texts("active_job_ids"))
		require.Equal(t, `{"a":1e999,"a":1.10,"":[""]}`, r.at("metadata"))
		require.Equal(t, `{"k":"v","�":"�"}`, r.at("labels"))
		a.get("/ojs/v1/admin/pools").is(200) // reads the facts of all workers in SQL
		require.Equal(t, "1e400", r.at("memory_mb"))
		require.Equal(t, "h", r.at("hostname"))
		require.Regexp(t, serverTime, r.at("started_at"))
	})

	t.Run("TakesQueuesAndConcurrencyFromFetches", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		one, two := queue(), queue()
		a.fetch(one, `"worker_id":"python"`, `"count":3`)
		a.fetch(two, `"worker_id":"python"`)
		a.worker("python").fails(404, "not_found", "not_found")
		a.beat("python")
		require.Equal(t, []string{one, two}, a.worker("python").texts("queues"))
		require.Equal(t, "3", a.worker("python").at("concurrency"))
	})

	t.Run("AnyTextIsAnID", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, id := range []string{"host/1:7", "ä €", "a%2Fb", "w;x?y#z", `q"\`, repeated('w', 255), ".."} {
			a.beat(id)
			require.Equal(t, id, a.worker(id).is(200).at("id"))
			require.Equal(t, id, a.get("/ojs/v1/workers/"+url.PathEscape(id)+"/health").is(200).at("worker_id"))
			require.Equal(t, id, a.direct(id, "quiet").is(200).at("worker_id"))
			require.Equal(t, "quiet", a.beat(id).at("state"))
			require.Equal(t, id, a.post("/ojs/v1/workers/"+url.PathEscape(id)+"/deregister", "").is(200).at("worker_id"))
			a.worker(id).fails(404, "not_found", "not_found")
		}
		for _, id := range []string{"nobody", "%00", "%ff", repeated('w', 256)} {
			r := a.get("/ojs/v1/workers/"+id).fails(404, "not_found", "not_found")
			require.Equal(t, "worker", r.at("error.details.resource_type"))
			a.get("/ojs/v1/workers/"+id+"/health").fails(404, "not_found", "not_found")
			a.del("/ojs/v1/workers/"+id).fails(404, "not_found", "not_found")
			a.del("/ojs/v1/admin/workers/"+id).fails(404, "not_found", "not_found")
			a.post("/ojs/v1/admin/workers/"+id+"/quiet", "").fails(404, "not_found", "not_found")
			a.post("/ojs/v1/admin/workers/"+id+"/directive", `{"directive":"quiet"}`).fails(404, "not_found", "not_found")
		}
	})

	t.Run("ListsTheLivingFirst", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		a.exec(`INSERT INTO ojs.workers (id, state, stale_at, dead_at, started_at, last_beat_at, last_seen_at)
			SELECT 'stale-' || i, 'stale', now(), now(), now(), now(), now() - i * interval '1 s' FROM generate_series(1, 114) i`)
		a.exec(`INSERT INTO ojs.workers (id, started_at, last_beat_at, last_seen_at)
			SELECT 'w-' || i, now(), now(), now() - i % 20 * interval '1 s' FROM generate_series(1, 22) i`)
		a.beat("zz")
		want := strings.Split(a.one(`SELECT string_agg(id, ' ' ORDER BY stale_at IS NOT NULL, last_seen_at DESC, id DESC) FROM ojs.workers`), " ")
		require.Equal(t, "zz", want[0])
		require.Len(t, want, 137)
		for _, limit := range []string{"1", "23", "50"} {
			var got []string
			for cursor := ""; ; {
				r := a.get("/ojs/v1/workers?limit=" + limit + "&cursor=" + cursor).is(200)
				got = append(got, r.list("items", "id")...)
				require.Equal(t, "137", r.at("pagination.total"))
				if cursor = r.at("pagination.next_cursor"); cursor == "" {
					require.Equal(t, "false", r.at("pagination.has_more"))
					break
				}
			}
			require.Equal(t, want, got)
		}
		require.Equal(t, want[20:40], a.get("/ojs/v1/admin/workers?page=2").is(200).list("items", "id"))
	})

	t.Run("Lists", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		require.Equal(t, `{"items":[],"summary":{"total":0,"running":0,"quiet":0,"terminate":0,"stale":0},"pagination":{"total":0,"limit":20,"offset":0,"page":1,"per_page":20,"has_more":false}}`,
			a.get("/ojs/v1/admin/workers").is(200).body)
		a.beat("a", `"queues":["x","y"]`)
		a.beat("b", `"queues":["y"]`, `"state":"quiet"`)
		a.beat("c", `"state":"terminate"`)
		a.beat("d")
		ids := func(query string) []string {
			r := a.get("/ojs/v1/workers" + query).is(200)
			require.Equal(t, `{"total":4,"running":2,"quiet":1,"terminate":1,"stale":0}`, r.at("summary"))
			require.Equal(t, r.at("items"), a.get("/ojs/v1/admin/workers"+query).is(200).at("items"))
			return r.list("items", "id")
		}
		require.Equal(t, []string{"d", "c", "b", "a"}, ids(""))
		require.Equal(t, []string{"d", "a"}, ids("?state=running"))
		require.Equal(t, []string{"c", "b"}, ids("?state=quiet,terminate"))
		require.Equal(t, []string{"b", "a"}, ids("?queue=y"))
		require.Equal(t, []string{"b"}, ids("?queue=y&state=quiet"))
		require.Equal(t, []string{}, ids("?queue=z"))
		require.Equal(t, []string{"c", "b"}, ids("?limit=2&offset=1"))
		require.Equal(t, []string{"b", "a"}, ids("?page=2&per_page=2"))
		r := a.get("/ojs/v1/workers?limit=2&offset=1")
		require.Equal(t, `{"total":4,"limit":2,"offset":1,"page":1,"per_page":2,"has_more":true,"next_cursor":"`+r.at("pagination.next_cursor")+`"}`, r.at("pagination"))
		require.Equal(t, []string{"a"}, ids("?limit=2&cursor="+r.at("pagination.next_cursor")))
		require.Equal(t, r.at("items"), r.at("workers"), "what the CLI reads")
		require.Equal(t, r.body, a.get("/v1/workers?limit=2&offset=1").is(200).body)
		require.Equal(t, "100", a.get("/ojs/v1/admin/workers?per_page=1000").at("pagination.per_page"))
		for _, query := range []string{"?state=busy", "?limit=0", "?limit=x", "?offset=-1", "?page=0", "?queue=%00", "?cursor=x", "?cursor=AA"} {
			a.get("/ojs/v1/workers"+query).fails(400, "invalid_request", "invalid_request")
		}
		eventually(t, func() bool {
			return a.get("/ojs/v1/health").at("workers") == `{"active":4,"connected":4,"stale":0,"total":4}`
		})
	})

	t.Run("Deregisters", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("leaver", `"state":"quiet"`)
		q := queue()
		reserved := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"leaver2"`)
		a.beat("leaver2", `"job_id":"`+reserved+`"`)
		require.Equal(t, `{"ok":true,"worker_id":"leaver"}`, a.do("DELETE", "/ojs/v1/workers/leaver", strings.NewReader(`{"reason":"signal","jobs_completed":12}`)).is(200).body)
		a.post("/ojs/v1/workers/leaver2/deregister", `{"reason":"because","jobs_completed":-1}`).is(200)
		require.Equal(t, "active", a.job(reserved).at("job.state"), "left to expire")
		// Of a worker that has said before that it stops, nothing more is to be told.
		a.beat("left", `"state":"terminate"`)
		a.post("/ojs/v1/workers/left/deregister", `{"jobs_completed":3}`).is(200)
		types, _ := a.workerEvents("left")
		require.Equal(t, []string{"worker.started", "worker.stopped"}, types)
		a.post("/ojs/v1/workers/leaver/deregister", ``).is(404)
		a.post("/ojs/v1/workers/leaver/deregister", `[]`).is(400)
		require.Equal(t, a.push(`"type":"t","args":[],"queue":"%s"`, q), a.fetch(q, `"worker_id":"leaver"`).at("jobs.0.id"), "no longer quiet")
		eventually(t, func() bool { types, _ := a.workerEvents("leaver2"); return len(types) == 2 })
		types, data := a.workerEvents("leaver")
		require.Equal(t, []string{"worker.started", "worker.quiet", "worker.stopped"}, types)
		require.Regexp(t, `^\{"worker_id":"leaver","reason":"signal","jobs_completed":12,"uptime_ms":\d+\}$`, data[2].at("data"))
		_, data = a.workerEvents("leaver2")
		require.Regexp(t, `^\{"worker_id":"leaver2","reason":"shutdown","uptime_ms":\d+\}$`, data[1].at("data"))
	})

	t.Run("ShowsHealth", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		health := func(status int, state string) {
			t.Helper()
			r := a.get("/ojs/v1/workers/healthy/health").is(status)
			require.Equal(t, `{"state":"`+state+`","worker_id":"healthy"}`, r.body)
			if status == 503 {
				requireRetryAfter(t, r)
			}
		}
		a.beat("healthy")
		health(200, "running")
		a.direct("healthy", "quiet").is(200)
		health(503, "draining")
		a.direct("healthy", "resume").is(200)
		health(200, "running")
		a.beat("healthy", `"state":"quiet"`)
		a.beat("healthy", `"state":"running"`)
		a.beat("healthy", `"state":"quiet"`)
		health(503, "draining")
		a.direct("healthy", "terminate").is(200)
		health(503, "shutting_down")
	})

	t.Run("WritesEachEventOnce", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, more := range []string{`"state":"running"`, `"state":"drain"`, `"state":"quiet"`, `"state":"terminate","active_jobs":2`, `"state":"terminate"`, `"state":"terminate"`} {
			a.beat("once", more)
		}
		eventually(t, func() bool { types, _ := a.workerEvents("once"); return len(types) == 3 })
		types, data := a.workerEvents("once")
		require.Equal(t, []string{"worker.started", "worker.quiet", "worker.stopped"}, types)
		require.Equal(t, `{"worker_id":"once","queues":[],"concurrency":1}`, data[0].at("data"))
		require.Equal(t, `{"worker_id":"once","active_jobs":0}`, data[1].at("data"))
		require.Regexp(t, `^\{"worker_id":"once","reason":"signal","uptime_ms":\d+\}$`, data[2].at("data"))
	})

	t.Run("HeartbeatEventCarriesTheLoad", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		a.beat("loaded", `"active_jobs":2`, `"queues":["q"]`, `"memory_mb":12.5`, `"cpu_percent":80`)
		a.beat("loaded", `"memory_mb":"much"`)
		beats := func() reply { return a.get("/ojs/v1/events?types=worker.heartbeat").is(200) }
		eventually(t, func() bool { return beats().count("events") == 2 })
		require.Equal(t, `{"worker_id":"loaded","active_jobs":2,"queues":["q"],"memory_mb":12.5,"cpu_percent":80}`, beats().at("events.0.data"))
		require.Equal(t, `{"worker_id":"loaded","active_jobs":0,"queues":["q"]}`, beats().at("events.1.data"))
		require.Equal(t, "loaded", beats().at("events.0.worker_id"))
	})
}
