package e2e_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// Contract 20 §6.5.
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
		held, others := a.push(`"type":"a.b","args":[],"queue":"%s"`, q), a.jobIn("active")
		a.fetch(q, `"worker_id":"last"`)
		a.beat("last", `"labels":{"zone":"b"}`, `"version":"1.2"`, `"memory_mb":5`)
		a.beat("last", fmt.Sprintf(`"active_jobs":["%s","%s"]`, held, others), `"hostname":"h"`, `"memory_mb":6.50`)
		r := a.worker("last").is(200)
		require.Equal(t, []string{held, others}, r.texts("active_job_ids"))
		require.Equal(t, "2", r.at("active_jobs"))
		require.Equal(t, `{"zone":"b"}`, r.at("labels"))
		require.Equal(t, "1.2", r.at("version"))
		require.Equal(t, "6.50", r.at("memory_mb"))
		job := a.job(held)
		require.Equal(t, 1, r.count("jobs"))
		require.Regexp(t, `^\[\{"id":"`+held+`","type":"a.b","queue":"`+q+`","attempt":1,"started_at":"`+job.at("job.started_at")+`","reserved_until":"[^"]+"\}\]$`, r.at("jobs"))
		a.beat("last", `"active_jobs":3`)
		require.Equal(t, `[]`, a.worker("last").at("active_job_ids"))
		require.Equal(t, "3", a.worker("last").at("active_jobs"))
	})

	t.Run("KeepsStrangeFacts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		strange := []string{
			`"active_job_ids":["a\u0000b","ä\ud83d\ude00"]`, `"metadata":{"a":1e999,"a":1.10,"\u0000":["\u0000"]}`, `"labels":{"k":"\u0000v"}`,
			`"version":{"deep":[[[]]]}`, `"memory_mb":1e400`, `"hostname":"h\u0000"`, `"started_at":"yesterday"`,
		}
		for range 2 {
			a.beat("strange", strange...)
			for _, member := range strange {
				a.beat("strange", member)
			}
		}
		a.beat("strange", strange...)
		r := a.worker("strange").is(200)
		require.Equal(t, []string{"a\x00b", "ä😀"}, r.texts("active_job_ids"))
		require.Equal(t, `{"a":1e999,"a":1.10,"":[""]}`, r.at("metadata"))
		require.Equal(t, `{"k":"v"}`, r.at("labels"))
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
		require.Equal(t, []string{"a", "b", "c", "d"}, ids(""))
		require.Equal(t, []string{"a", "d"}, ids("?state=running"))
		require.Equal(t, []string{"b", "c"}, ids("?state=quiet,terminate"))
		require.Equal(t, []string{"a", "b"}, ids("?queue=y"))
		require.Equal(t, []string{"b"}, ids("?queue=y&state=quiet"))
		require.Equal(t, []string{}, ids("?queue=z"))
		require.Equal(t, []string{"b", "c"}, ids("?limit=2&offset=1"))
		require.Equal(t, []string{"c", "d"}, ids("?page=2&per_page=2"))
		r := a.get("/ojs/v1/workers?limit=2&offset=1")
		require.Equal(t, `{"total":4,"limit":2,"offset":1,"page":1,"per_page":2,"has_more":true}`, r.at("pagination"))
		require.Equal(t, r.at("items"), r.at("workers"), "what the CLI reads")
		require.Equal(t, r.body, a.get("/v1/workers?limit=2&offset=1").is(200).body)
		require.Equal(t, "100", a.get("/ojs/v1/admin/workers?per_page=1000").at("pagination.per_page"))
		for _, query := range []string{"?state=busy", "?limit=0", "?limit=x", "?offset=-1", "?page=0", "?queue=%00"} {
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
		held := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"leaver2"`)
		a.beat("leaver2", `"job_id":"`+held+`"`)
		require.Equal(t, `{"ok":true,"worker_id":"leaver"}`, a.do("DELETE", "/ojs/v1/workers/leaver", strings.NewReader(`{"reason":"signal","jobs_completed":12}`)).is(200).body)
		a.post("/ojs/v1/workers/leaver2/deregister", `{"reason":"because","jobs_completed":-1}`).is(200)
		require.Equal(t, "active", a.job(held).at("job.state"), "left to expire")
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

	t.Run("TellsHealth", func(t *testing.T) {
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

// Contract 20 §6.2, §6.3.
func TestWorkerDirectives(t *testing.T) {
	t.Parallel()
	a := setup(t)
	state := func(a *api, worker string, more ...string) string { return a.beat(worker, more...).at("state") }

	t.Run("StayUntilReplaced", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("stay")
		require.Equal(t, `{"worker_id":"stay","directive":"quiet"}`, a.direct("stay", "quiet").is(200).body)
		require.Equal(t, "quiet", state(a, "stay", `"state":"running"`))
		require.Equal(t, "quiet", state(a, "stay", `"state":"running"`))
		require.Equal(t, "quiet", a.beat("stay").at("directive"))
		require.Equal(t, "quiet", a.worker("stay").at("directive"))
		require.Equal(t, "running", a.worker("stay").at("state"), "as reported")
		require.Equal(t, `{"worker_id":"stay","directive":"terminate"}`, a.post("/ojs/v1/admin/workers/stay/directive", `{"directive":"terminate"}`).is(200).body)
		require.Equal(t, "terminate", state(a, "stay", `"state":"quiet"`))
	})

	t.Run("ResumeIsToldUntilTheWorkerRuns", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("res", `"state":"quiet"`)
		require.Equal(t, `{"worker_id":"res","directive":"running"}`, a.direct("res", "resume").is(200).body)
		require.Equal(t, "running", state(a, "res", `"state":"quiet"`))
		require.Equal(t, "running", state(a, "res", `"state":"quiet"`))
		require.Equal(t, "running", a.worker("res").at("directive"))
		require.Equal(t, "running", state(a, "res", `"state":"running"`))
		require.Equal(t, "", a.worker("res").at("directive"))
		require.Equal(t, "quiet", state(a, "res", `"state":"quiet"`), "its own wish again")
	})

	t.Run("ReportedTerminateHasNoWayBack", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("gone", `"shutdown":true`)
		a.direct("gone", "resume").is(200)
		require.Equal(t, "terminate", state(a, "gone", `"state":"running"`))
		require.Equal(t, "terminate", state(a, "gone"))
		a.post("/ojs/v1/workers/register", `{"worker_id":"gone"}`).is(200)
		require.Equal(t, "running", state(a, "gone"), "a new start")
	})

	t.Run("ForAll", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for i := range 3 {
			a.beat(fmt.Sprintf("w%d", i))
		}
		require.JSONEq(t, `{"directive":"quiet","workers":3}`, a.post("/ojs/v1/admin/workers/directive", `{"directive":"quiet"}`).is(200).body)
		require.Equal(t, "quiet", state(a, "w1"))
		a.post("/ojs/v1/admin/workers/directive", `{"directive":"resume"}`).is(200)
		require.Equal(t, "running", state(a, "w1"))
		for _, body := range []string{`{}`, `{"directive":"stop"}`, `{"directive":7}`} {
			a.post("/ojs/v1/admin/workers/directive", body).invalid("directive")
			a.post("/ojs/v1/admin/workers/w1/directive", body).invalid("directive")
		}
		a.post("/ojs/v1/admin/workers/directive", `[]`).is(400)
	})

	t.Run("QuietWorkersGetNoJobs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for name, quieten := range map[string]func(w string){
			"directed quiet":     func(w string) { a.beat(w); a.direct(w, "quiet").is(200) },
			"directed terminate": func(w string) { a.beat(w); a.direct(w, "terminate").is(200) },
			"reported quiet":     func(w string) { a.beat(w, `"state":"quiet"`) },
			"reported terminate": func(w string) { a.beat(w, `"state":"terminate"`) },
		} {
			w, q := newID(), queue()
			id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
			quieten(w)
			start := time.Now()
			require.Equal(t, `{"jobs":[]}`, a.fetch(q, `"worker_id":"`+w+`"`, `"wait_ms":20000`).body, name)
			require.Less(t, time.Since(start), 5*time.Second, name)
			if strings.HasPrefix(name, "directed") {
				a.direct(w, "resume").is(200)
				a.beat(w, `"state":"running"`)
				require.Equal(t, id, a.fetch(q, `"worker_id":"`+w+`"`).at("jobs.0.id"), name)
			}
		}
	})

	t.Run("EndAParkedFetch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("parked")
		got := a.parked(queue(), `"worker_id":"parked"`, `"wait_ms":20000`)
		start := time.Now()
		a.direct("parked", "quiet").is(200)
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), 5*time.Second)
	})

	t.Run("ReachOtherNodes", func(t *testing.T) {
		t.Parallel()
		one, two := nodes(t)
		q := queue()
		one.beat("w")
		got := two.parked(q, `"worker_id":"w"`, `"wait_ms":20000`)
		start := time.Now()
		one.direct("w", "quiet").is(200)
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), 2*time.Second, "1 s, and some for a busy machine")
		id := two.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, `{"jobs":[]}`, two.fetch(q, `"worker_id":"w"`).body)
		one.direct("w", "resume").is(200)
		start = time.Now()
		eventually(t, func() bool { return two.fetch(q, `"worker_id":"w"`).at("jobs.0.id") == id })
		require.Less(t, time.Since(start), 2*time.Second, "1 s, and some for a busy machine")
	})

	t.Run("ReachNodesThatCannotListen", func(t *testing.T) {
		t.Parallel()
		target := dbtest.URL(t)
		one := setup(t, func(c *app.Config) { c.DatabaseURL = target })
		two := setup(t, func(c *app.Config) {
			c.DatabaseURL, c.DatabaseListenURL = target, "postgres://nobody@127.0.0.1:1/none"
		})
		one.beat("w")
		got := two.parked(queue(), `"worker_id":"w"`, `"wait_ms":20000`)
		start := time.Now()
		one.direct("w", "quiet").is(200)
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), 2*time.Second, "1 s, and some for a busy machine")
	})

	t.Run("AreKnownAtStart", func(t *testing.T) {
		t.Parallel()
		target := dbtest.URL(t)
		on := func(c *app.Config) { c.DatabaseURL = target }
		one := setup(t, on)
		one.beat("w", `"state":"quiet"`)
		two, q := setup(t, on), queue()
		two.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, `{"jobs":[]}`, two.fetch(q, `"worker_id":"w"`).body)
	})

	t.Run("TestDirectivesOnlyWithTheSwitch", func(t *testing.T) {
		t.Parallel()
		for on, want := range map[bool][]string{true: {"quiet", "terminate", "running"}, false: {"running", "running", "running"}} {
			a := setup(t, func(c *app.Config) { c.TestDirectives = on })
			for i, wish := range []string{"quiet", "terminate", "sleep"} {
				q := queue()
				id := a.push(`"type":"t","args":[],"queue":"%s","meta":{"nul":"\u0000","test_directive":"%s"}`, q, wish)
				require.Equal(t, "running", state(a, "w", `"job_id":"`+id+`"`), "not active")
				a.fetch(q, `"worker_id":"w"`)
				require.Equal(t, "running", state(a, "v", `"job_id":"`+id+`"`), "not its own")
				require.Equal(t, want[i], state(a, "w", `"job_id":"`+id+`"`), "%t %s", on, wish)
				require.Equal(t, "running", state(a, "w"), "nothing is stored")
				a.ack(id).is(200)
			}
		}
	})
}

// Contract 20 §6.6.
func TestDeadWorkers(t *testing.T) {
	t.Parallel()
	const dead = 1500 * time.Millisecond

	t.Run("LoseTheirJobsAtOnce", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":600000`, q)
		a.fetch(q, `"worker_id":"w"`)
		a.beat("w", `"job_id":"`+id+`"`)
		start := time.Now()
		r := a.fetch(q, `"worker_id":"v"`, `"wait_ms":20000`)
		require.Equal(t, id, r.at("jobs.0.id"))
		require.Equal(t, "2", r.at("jobs.0.attempt"))
		require.GreaterOrEqual(t, time.Since(start), dead-100*time.Millisecond)
		require.Less(t, time.Since(start), dead+2*time.Second, "1 s, and some for a busy machine")
		job := a.job(id)
		require.Equal(t, "1", job.at("job.errors.0.attempt"))
		require.Equal(t, "worker_death", job.at("job.errors.0.code"))
		require.Equal(t, "worker_death", job.at("job.errors.0.type"))
		require.Equal(t, "1.5", job.at("job.errors.0.limit_seconds"))
		require.Equal(t, "stale", a.worker("w").is(200).at("state"))
		require.Equal(t, "stale", a.get("/ojs/v1/workers/w/health").is(503).at("state"))
		eventually(t, func() bool {
			return a.get("/ojs/v1/health").at("workers") == `{"active":0,"connected":0,"stale":1,"total":1}`
		})
		types, data := a.workerEvents("w")
		require.Equal(t, []string{"worker.started", "worker.stopped"}, types)
		require.Equal(t, "error", data[1].at("data.reason"))
		require.Equal(t, "ojs://ojs/scheduler", data[1].at("source"))

		// It comes back.
		a.ack(id, `"worker_id":"w"`).fails(409, "conflict", "not_owner")
		a.nack(id, `"worker_id":"w"`, `"error":{}`).fails(409, "conflict", "not_owner")
		r = a.beat("w", `"job_id":"`+id+`"`)
		require.Equal(t, `["`+id+`"]`, r.at("jobs_lost"))
		a.ack(id, `"worker_id":"v"`).is(200)
		require.Equal(t, "running", a.worker("w").at("state"))
		eventually(t, func() bool { types, _ := a.workerEvents("w"); return len(types) >= 3 })
		types, _ = a.workerEvents("w")
		require.Equal(t, "worker.started", types[2])
	})

	t.Run("ComeBackWithoutTheirJobs", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w"`)
		a.beat("w")
		a.direct("w", "quiet").is(200)
		eventually(t, func() bool { return a.job(id).at("job.state") == "available" })
		a.ack(id, `"worker_id":"w"`).fails(409, "conflict", "invalid_state_transition")
		r := a.beat("w", `"job_id":"`+id+`"`)
		require.Equal(t, `["`+id+`"]`, r.at("jobs_lost"))
		require.Equal(t, "running", r.at("state"), "the directive died with it")
		require.Equal(t, id, a.fetch(q, `"worker_id":"w"`).at("jobs.0.id"))
	})

	t.Run("PoisonEndsInTheDeadLetters", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(200*time.Millisecond))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":600000,"retry":{"max_attempts":2,"on_exhaustion":"dead_letter"}`, q)
		for attempt := range 2 {
			w := newID()
			require.Equal(t, fmt.Sprint(attempt+1), a.fetch(q, `"worker_id":"`+w+`"`, `"wait_ms":20000`).at("jobs.0.attempt"))
			a.beat(w, `"job_id":"`+id+`"`)
		}
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		require.Equal(t, "2", a.job(id).at("job.attempt"))
		require.Equal(t, 2, a.job(id).count("job.errors"))
		require.Equal(t, `[]`, a.fetch(q).at("jobs"))
	})

	t.Run("AreOnlyThoseThatEverReported", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(200*time.Millisecond))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w"`)
		a.beat("other")
		eventually(t, func() bool { return a.worker("other").at("state") == "stale" })
		require.Equal(t, "active", a.job(id).at("job.state"))
		require.Equal(t, "1", a.get("/ojs/v1/workers").at("summary.total"))
	})

	t.Run("AnyCallIsASignOfLife", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		ids := make([]string, 12)
		for i := range ids {
			ids[i] = a.push(`"type":"t","args":[],"queue":"%s"`, q)
		}
		a.beat("w")
		for start := time.Now(); time.Since(start) < 2*dead; time.Sleep(dead / 5) { // calls at intervals are what is tested
			switch len(ids) % 3 {
			case 0:
				a.fetch(q, `"worker_id":"w"`)
			case 1:
				a.ack(newID(), `"worker_id":"w"`).is(404)
			case 2:
				a.nack(newID(), `"worker_id":"w"`, `"error":{}`).is(404)
			}
			ids = ids[1:]
			require.Equal(t, "running", a.worker("w").at("state"))
		}
		eventually(t, func() bool { return a.worker("w").at("state") == "stale" })
	})

	t.Run("AreDeletedByHand", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		first, second := a.push(`"type":"t","args":[],"queue":"%s"`, q), a.push(`"type":"t","args":[],"queue":"%s"`, queue())
		a.fetch(q, `"worker_id":"w"`)
		a.beat("w")
		a.del("/ojs/v1/admin/workers/w").fails(409, "conflict", "invalid_state_transition")
		eventually(t, func() bool { return a.job(first).at("job.state") == "available" })
		require.Equal(t, first, a.fetch(q, `"worker_id":"w"`).at("jobs.0.id"), "a fetch does not bring it back")
		require.Equal(t, "stale", a.worker("w").at("state"))
		require.JSONEq(t, `{"deleted":true,"worker_id":"w","jobs_requeued":1}`, a.del("/ojs/v1/admin/workers/w").is(200).body)
		require.Equal(t, "available", a.job(first).at("job.state"))
		require.Equal(t, "available", a.job(second).at("job.state"))
		a.del("/ojs/v1/admin/workers/w").fails(404, "not_found", "not_found")
	})

	t.Run("GiveTheirJobsBackWhenTheyDeregister", func(t *testing.T) {
		t.Parallel()
		a := setup(t, deadAfter(dead))
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.beat("w")
		eventually(t, func() bool { return a.worker("w").at("state") == "stale" })
		a.fetch(q, `"worker_id":"w"`)
		a.del("/ojs/v1/workers/w").is(200)
		require.Equal(t, "available", a.job(id).at("job.state"))
		require.Equal(t, "worker_death", a.job(id).at("job.error.code"))
		a.worker("w").is(404)
	})

	t.Run("AreBuriedOnceByTwoNodes", func(t *testing.T) {
		t.Parallel()
		one, two := nodes(t, deadAfter(dead))
		q := queue()
		const n = 30
		for range n {
			one.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":600000`, q)
		}
		ids := one.fetch(q, `"worker_id":"w"`, `"count":100`).list("jobs", "id")
		require.Len(t, ids, n)
		one.beat("w")
		two.beat("w")
		for _, id := range ids {
			eventually(t, func() bool { return two.job(id).at("job.state") == "available" })
			job := one.job(id)
			require.Equal(t, "1", job.at("job.attempt"))
			require.Equal(t, 1, job.count("job.errors"))
		}
		eventually(t, func() bool { types, _ := one.workerEvents("w"); return len(types) >= 2 })
		types, _ := one.workerEvents("w")
		require.Equal(t, []string{"worker.started", "worker.stopped"}, types)
		for _, j := range one.fetch(q, `"count":100`).list("jobs", "attempt") {
			require.Equal(t, "2", j)
		}
	})
}
