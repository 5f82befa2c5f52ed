package e2e_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestAdminQueues covers docs/reference/admin.md, Queues.
func TestAdminQueues(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q, other := "q-a", "q-b"
	for range 3 {
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
	}
	a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)
	a.push(`"type":"t","args":[],"queue":"%s"`, other)
	a.ack(a.fetch(q).at("jobs.0.id")).is(200)
	a.fetch(q)

	r := a.get("/ojs/v1/admin/queues").is(200)
	require.Equal(t, []string{q, other}, r.list("items", "name"))
	require.Equal(t, `{"available":1,"active":1,"scheduled":1,"retryable":0,"pending":0,"completed":1,"discarded":0,"cancelled":0}`, r.at("items.0.counts"), "before anything is published")
	require.Equal(t, "2", r.at("pagination.total"))
	for path, want := range map[string]string{"state": "active", "status": "active", "paused": "false"} {
		require.Equal(t, want, r.at("items.1."+path))
	}
	require.Regexp(t, serverTime, r.at("items.0.created_at"))
	r = a.get("/ojs/v1/admin/queues?per_page=1").is(200)
	require.Equal(t, []string{q}, r.list("items", "name"))
	require.Equal(t, "true", r.at("pagination.has_more"))
	r = a.get("/ojs/v1/admin/queues?per_page=1&cursor=" + r.at("pagination.next_cursor")).is(200)
	require.Equal(t, []string{other}, r.list("items", "name"))
	require.Equal(t, []string{other}, a.get("/ojs/v1/admin/queues?per_page=1&page=2").list("items", "name"))
	require.Equal(t, "[]", a.get("/ojs/v1/admin/queues?page=9").at("items"))
	a.get("/ojs/v1/admin/queues?cursor=NO").fails(400, "invalid_request", "invalid_request")

	a.publishedAll()
	one := a.get("/ojs/v1/admin/queues/" + q).is(200)
	require.Equal(t, "1", one.at("counts.available"))
	require.Regexp(t, serverTime, one.at("oldest_available_at"))
	require.NotEqual(t, "0", one.at("throughput.processed_per_minute"))
	require.NotEmpty(t, one.at("latency_ms.p99"))
	a.exec(`UPDATE ojs.queues SET status = 'paused', paused_at = '2026-03-01T10:00:00Z' WHERE name = $1`, other)
	paused := a.get("/ojs/v1/admin/queues/" + other).is(200)
	require.Equal(t, "true paused 2026-03-01T10:00:00.000Z", paused.at("paused")+" "+paused.at("status")+" "+paused.at("paused_at"))
	for _, name := range []string{"none", "NO", "%00", "%ff"} {
		a.get("/ojs/v1/admin/queues/"+name).fails(404, "not_found", "not_found")
	}
}

func TestAdminQueueCommands(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	r := a.post("/ojs/v1/admin/queues/"+q+"/pause", `{"paused_by":"jo"}`, "OJS-Version: 1.0").is(200)
	require.Equal(t, q+" true paused", r.at("name")+" "+r.at("paused")+" "+r.at("status"))
	require.Regexp(t, serverTime, r.at("paused_at"))
	require.Equal(t, "[]", a.fetch(q).at("jobs"))
	detail := a.get("/ojs/v1/admin/queues/" + q).is(200)
	require.Equal(t, r.at("paused_at"), detail.at("paused_at"))
	r = a.post("/ojs/v1/admin/queues/"+q+"/resume", "").is(200)
	require.Equal(t, q+" false active", r.at("name")+" "+r.at("paused")+" "+r.at("status"))
	require.Regexp(t, serverTime, r.at("resumed_at"))
	require.Equal(t, id, a.fetch(q).at("jobs.0.id"))

	r = a.put("/ojs/v1/admin/queues/"+q+"/config", `{"concurrency":5,"max_size":9,"retention":"24h"}`).is(200)
	require.Equal(t, "5 24h 9", r.at("configuration.concurrency")+" "+r.at("configuration.retention.completed")+" "+r.at("configuration.backpressure.max_depth"))
	require.Equal(t, "1", r.at("counts.active"))
	require.False(t, a.put("/ojs/v1/admin/queues/"+q+"/config", `{"concurrency":null}`).is(200).has("configuration.concurrency"))
	fresh := queue()
	require.Equal(t, fresh, a.put("/ojs/v1/admin/queues/"+fresh+"/config", `{"concurrency":1}`).is(200).at("name"))
	a.put("/ojs/v1/admin/queues/"+q+"/config", `{"concurrency":-1}`).is(400)
	for _, call := range []string{"pause", "resume"} {
		a.post("/ojs/v1/admin/queues/NO/"+call, "").is(400)
		a.post("/ojs/v1/admin/queues/"+q+"/"+call, "[").is(400)
	}
}

// The first job of each lane and priority is looked at.
func TestOldestAvailable(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	q := queue()
	oldest := func() string { return a.get("/ojs/v1/admin/queues/" + q).is(200).at("oldest_available_at") }
	ids := a.pushMany(t, q, 4)
	at := func(id, lane string, priority int, minutes int) {
		a.exec(`UPDATE ojs.jobs SET lane = $2, priority = $3, enqueued_at = '2026-03-01T10:00:00Z'::timestamptz + $4 * interval '1 minute' WHERE id = $1`, id, lane, priority, minutes)
	}
	at(ids[0], "", 5, 9)
	at(ids[1], "", 0, 7)
	at(ids[2], "b", 3, 8)
	at(ids[3], "b", -1, 6)
	require.Equal(t, "2026-03-01T10:06:00.000Z", oldest())
	at(ids[3], "b", -1, 20)
	require.Equal(t, "2026-03-01T10:07:00.000Z", oldest())
	a.exec(`UPDATE ojs.jobs SET ready_seq = NULL WHERE queue = $1`, q)
	require.Empty(t, oldest())
}

// The longest running jobs first, of each type the slowest first.
func TestWhatIsSlow(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	require.Equal(t, `{"items":[]}`, a.get("/ojs/v1/admin/stats/types").is(200).body)
	for i, age := range []string{"1 hour", "3 hours", "2 hours"} {
		id := a.busy(fmt.Sprint("q", i), "")
		a.exec(`UPDATE ojs.jobs SET started_at = now() - $2::text::interval WHERE id = $1::text::uuid`, id, age)
	}
	require.Equal(t, []string{"q1", "q2", "q0"}, a.get("/ojs/v1/admin/jobs?state=active&sort=started_at&order=asc").is(200).list("items", "queue"))

	for i, kind := range []string{"fast", "slow", "slow", "fast", "waits"} {
		id := a.push(`"type":"%s","args":[],"queue":"work"`, kind)
		if kind == "waits" {
			continue
		}
		a.fetch("work")
		switch i {
		case 3:
			a.nack(id, `"error":{"message":"m","retryable":false}`).is(200)
		default:
			a.ack(id).is(200)
		}
		a.settled(id)
	}
	a.exec(`UPDATE ojs.events SET duration_ms = CASE job_type WHEN 'slow' THEN 5000 ELSE 7 END WHERE type IN ('job.completed', 'job.failed') AND queue = 'work'`)
	a.exec(`UPDATE ojs.events SET duration_ms = 3 WHERE type = 'job.started' AND queue = 'work'`)
	r := a.get("/ojs/v1/admin/stats/types?queue=work").is(200)
	times := func(ms int) string { return fmt.Sprintf(`{"p50":%d,"p95":%d,"p99":%d}`, ms, ms, ms) }
	require.Equal(t, fmt.Sprintf(`[{"type":"slow","completed":2,"failed":0,"run_ms":%s,"wait_ms":%s},{"type":"fast","completed":1,"failed":1,"run_ms":%s,"wait_ms":%s}]`,
		times(5000), times(3), times(7), times(3)), r.at("items"))
	require.Regexp(t, serverTime, r.at("since"))
	require.Equal(t, []string{"slow", "fast", "t"}, a.get("/ojs/v1/admin/stats/types").is(200).list("items", "type"), "t has only begun")
	require.Equal(t, `{"items":[]}`, a.get("/ojs/v1/admin/stats/types?queue=none").is(200).body)
	a.get("/ojs/v1/admin/stats/types?queue=%00").is(400)
}

// TestAdminStats covers docs/reference/admin.md, Statistics.
func TestAdminStats(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	empty := a.get("/ojs/v1/admin/stats").is(200)
	require.Equal(t, `{"available":0,"active":0,"scheduled":0,"retryable":0,"pending":0,"completed":0,"discarded":0,"cancelled":0}`, empty.at("jobs"))
	require.Equal(t, "0", empty.at("queues"))
	q, other := queue(), queue()
	a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT1H"}`, q)
	a.pushMany(t, q, 2)
	a.push(`"type":"t","args":[],"queue":"%s","pending":true`, other)
	a.nack(a.fetch(q).at("jobs.0.id")).is(200)
	a.ack(a.fetch(q).at("jobs.0.id")).is(200)
	a.beat("w1")
	a.exec(`UPDATE ojs.queues SET status = 'paused', paused_at = now() WHERE name = $1`, other)

	r := a.get("/ojs/v1/admin/stats").is(200)
	for path, want := range map[string]string{
		"queues": "2", "workers": "1", "jobs.available": "1", "jobs.retryable": "1", "jobs.completed": "1", "jobs.pending": "1",
		"queue_summary": `{"total":2,"active":1,"paused":1}`, "worker_summary": `{"total":1,"running":1,"quiet":0,"terminate":0,"stale":0}`,
	} {
		require.Equal(t, want, r.at(path), path)
	}
	require.Regexp(t, `^\d+$`, r.at("uptime_seconds"))
	a.exec(`UPDATE ojs.workers SET state = 'stale', stale_at = now()`)
	r = a.get("/ojs/v1/admin/stats").is(200)
	require.Equal(t, "0", r.at("workers"), "those that are not stale")
	require.Equal(t, "1", r.at("worker_summary.total"))
	require.Equal(t, "0", a.get("/ojs/v1/admin/stats?queue="+q).is(200).at("jobs.pending"))
	require.Equal(t, "1", a.get("/ojs/v1/admin/stats?queue="+other).is(200).at("jobs.pending"))
	require.Equal(t, "0", a.get("/ojs/v1/admin/stats?queue=none").is(200).at("jobs.pending"))
	a.get("/ojs/v1/admin/stats?queue=NO").fails(400, "invalid_request", "invalid_request")

	a.publishedAll()
	r = a.get("/ojs/v1/admin/stats").is(200)
	require.Equal(t, "1 1 3", r.at("throughput.completed_per_min")+" "+r.at("throughput.failed_per_min")+" "+r.at("throughput.enqueued_per_min"))
	require.NotEqual(t, "0", r.at("throughput.processed_per_minute"))
}

func TestStatsHistory(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	q := queue()
	// 100 jobs took 1 to 100 ms in a minute half an hour ago, and as many three days ago.
	a.exec(`INSERT INTO ojs.stats_minute (queue, minute, enqueued, completed, failed, duration_ms, durations)
		SELECT q, date_trunc('minute', now()) - interval '30 minutes', 100, 100, 7, 5050, '{1,1,3,5,10,30,50,0,0,0,0,0,0,0,0,0,0,0}' FROM unnest(ARRAY[$1, '']) q`, q)
	a.exec(`INSERT INTO ojs.stats_hour (queue, hour, enqueued, completed, failed, duration_ms)
		SELECT q, date_trunc('hour', now()) - interval '3 days', 5, 5, 0, 50 FROM unnest(ARRAY[$1, '']) q`, q)

	for _, query := range []string{"", "&queue=" + q} {
		r := a.get("/ojs/v1/admin/stats/history?period=1m" + query).is(200)
		require.Equal(t, r.at("data"), r.at("data_points"))
		require.InDelta(t, 60, r.count("data"), 1.5)
		found := r.at(`data.#(completed==100)`)
		require.Contains(t, found, `"processed":100,"completed":100,"failed":7,"enqueued":100,"discarded":0,"cancelled":0,"latency_p50_ms":50,"latency_p99_ms":99,"avg_latency_ms":50.5`)
		require.Regexp(t, `^\{"timestamp":"[^"]+:00\.000Z"`, found)
	}
	require.Empty(t, a.get("/ojs/v1/admin/stats/history?period=1m&queue=none").is(200).at(`data.#(completed>0)`))
	require.InDelta(t, 12, a.get("/ojs/v1/admin/stats/history").is(200).count("data"), 1)
	require.Equal(t, "5m", a.get("/ojs/v1/admin/stats/history").at("period"))

	sum := func(query string) (n int) {
		for _, text := range a.get("/ojs/v1/admin/stats/history?"+query).is(200).list("data", "completed") {
			var c int
			_, err := fmt.Sscan(text, &c)
			require.NoError(t, err)
			n += c
		}
		return n
	}
	require.Equal(t, 105, sum("period=1h&since=7d"))
	require.Equal(t, 105, sum("period=1d&since=30d"))
	require.Equal(t, 5, sum("period=1d&since=30d&until=2d"))
	require.Equal(t, 100, sum("period=5m&since=30d"))
	require.InDelta(t, 1440, a.get("/ojs/v1/admin/stats/history?period=1m&since=2001-01-01T00:00:00Z").count("data"), 1.5, "it begins when the data do")
	require.InDelta(t, 31, a.get("/ojs/v1/admin/stats/history?period=1d&since=2001-01-01T00:00:00Z").count("data"), 1)
	require.Equal(t, "[]", a.get("/ojs/v1/admin/stats/history?since=2h&until=3h").at("data"))
	require.Equal(t, "[]", a.get("/ojs/v1/admin/stats/history?since=2099-01-01T00:00:00Z").at("data"))
	for _, query := range []string{"period=2m", "since=x", "until=y", "queue=NO"} {
		a.get("/ojs/v1/admin/stats/history?"+query).fails(400, "invalid_request", "invalid_request")
	}

	// A point has only what is within since and until, both of which may lie inside of it.
	part := queue()
	hour, day := time.Now().UTC().Truncate(time.Hour).Add(-2*time.Hour), time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -2)
	for i := range 3 {
		a.exec(`INSERT INTO ojs.stats_minute (queue, minute, completed) VALUES ($1, $2, $3)`, part, hour.Add(time.Duration(i)*time.Minute), 1<<i)
		a.exec(`INSERT INTO ojs.stats_hour (queue, hour, completed) VALUES ($1, $2, $3)`, part, day.Add(time.Duration(i)*time.Hour), 16<<i)
	}
	until := func(period string, since, until time.Time) int {
		return sum(fmt.Sprintf("queue=%s&period=%s&since=%s&until=%s", part, period, since.Format(time.RFC3339), until.Format(time.RFC3339)))
	}
	require.Equal(t, 1+2, until("1h", hour, hour.Add(2*time.Minute)))
	require.Equal(t, 1+2+4, until("1h", hour, hour.Add(2*time.Minute+time.Second)))
	require.Equal(t, 16+32, until("1d", day, day.Add(2*time.Hour)))
	require.Equal(t, 16+32+64, until("1d", day, day.AddDate(0, 0, 1)))

	// What the relay counts is there, too.
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.fetch(q)
	a.ack(id).is(200)
	a.publishedAll()
	require.Equal(t, 101, sum("period=1m"))
	require.Equal(t, 101, sum("period=1m&queue="+q))
}

// TestMaintenance covers docs/reference/admin.md, Maintenance.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	const on = `{"enabled":true,"reason":"upgrade"}`
	const off = `{"enabled":false}`

	t.Run("BoundsTheReason", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		long := `{"enabled":true,"reason":"` + strings.Repeat("x", 1024)
		a.post("/ojs/v1/admin/system/maintenance", long+`x"}`).invalid("reason")
		a.post("/ojs/v1/admin/system/maintenance", long+`"}`).is(200)
	})

	t.Run("HoldsJobsOnAllNodes", func(t *testing.T) {
		t.Parallel()
		a, b := nodes(t, rarePolls)
		q := queue()
		waiting := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		running := a.busy(queue(), "")
		due := a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)
		failed := a.jobIn("active")
		r := a.post("/ojs/v1/admin/system/maintenance", on, "X-OJS-Actor: jo").is(200)
		for path, want := range map[string]string{"enabled": "true", "maintenance": "true", "reason": "upgrade", "started_by": "jo"} {
			require.Equal(t, want, r.at(path))
		}
		require.Equal(t, r.at("started_at"), r.at("enabled_at"))
		require.False(t, r.has("ends_at"))
		require.Equal(t, "[]", a.fetch(q).at("jobs"))
		eventually(t, func() bool { return b.app.Domains().Maintenance.On() })
		require.Equal(t, "[]", b.fetch(q).at("jobs"))
		require.Equal(t, "[]", b.fetch(q, `"wait_ms":300`).at("jobs"))

		a.exec(`UPDATE ojs.jobs SET scheduled_at = now(), due_at = now() WHERE id = $1`, due)

		// Everything else goes on.
		fresh := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.ack(running).is(200)
		a.nack(failed, `"error":{"message":"boom"}`).is(200)
		a.beat("w1")
		expires := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"%s"`, q, time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano))
		expiresLater := a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT0.1S","expires_at":"%s"`, q, time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano))
		for _, id := range []string{expires, expiresLater} {
			eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		}
		require.Equal(t, "scheduled", a.job(due).at("job.state"))
		require.Equal(t, "[]", a.fetch(q).at("jobs"))

		parked := b.parked(q, `"wait_ms":20000`, `"count":1`)
		r = b.post("/ojs/v1/admin/maintenance", off).is(200)
		require.Equal(t, `{"enabled":false,"maintenance":false}`, r.body)
		require.Equal(t, r.body, a.get("/ojs/v1/admin/system/maintenance").is(200).body)
		require.Equal(t, waiting, (<-parked).at("jobs.0.id"), "a parked fetch goes on")
		eventually(t, func() bool { return a.job(due).at("job.state") == "available" })
		eventually(t, func() bool { return !a.app.Domains().Maintenance.On() })
		require.Equal(t, fresh, a.fetch(q).at("jobs.0.id"))
	})

	t.Run("EndsByItself", func(t *testing.T) {
		t.Parallel()
		a, b := nodes(t, rarePolls)
		q := queue()
		r := a.post("/ojs/v1/admin/maintenance", `{"enabled":true,"duration":"3s"}`).is(200)
		require.Equal(t, r.at("ends_at"), r.at("estimated_end"))
		ends, err := time.Parse(time.RFC3339, r.at("ends_at"))
		require.NoError(t, err)
		eventually(t, func() bool { return b.app.Domains().Maintenance.On() || time.Now().After(ends) })
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		due := a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT0.1S"`, queue())
		require.Equal(t, id, b.fetch(q, `"wait_ms":20000`).at("jobs.0.id"))
		require.False(t, b.job(id).at("job.started_at") < ends.UTC().Format("2006-01-02T15:04:05.000Z"), "not before its end")
		eventually(t, func() bool { return a.job(due).at("job.state") == "available" })
		require.Equal(t, `{"enabled":false,"maintenance":false}`, b.get("/ojs/v1/admin/maintenance").is(200).body)
	})

	t.Run("CronsWait", func(t *testing.T) {
		t.Parallel()
		a := setup(t, rarePolls)
		a.post("/ojs/v1/cron", `{"name":"c","expression":"@hourly","type":"t"}`).is(201)
		a.post("/ojs/v1/admin/maintenance", on).is(200)
		a.exec(`UPDATE ojs.crons SET next_run_at = now() - interval '5 hours'`)
		a.exec(`NOTIFY ojs_cron`)
		probe := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"%s"`, queue(), time.Now().Add(500*time.Millisecond).UTC().Format(time.RFC3339Nano))
		eventually(t, func() bool { return a.job(probe).at("job.state") == "discarded" })
		require.Equal(t, "0", a.one(`SELECT count(*)::text FROM ojs.cron_runs`))
		a.post("/ojs/v1/admin/maintenance", off).is(200)
		eventually(t, func() bool { return a.one(`SELECT count(*)::text FROM ojs.cron_runs`) == "1" })
	})

	t.Run("SurvivesARestartAndIsResetWithTheRest", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		started := a.post("/ojs/v1/admin/maintenance", `{"enabled":true,"reason":"one","estimated_duration":"PT1H"}`).is(200)
		require.False(t, started.has("ends_at"))
		require.NotEmpty(t, started.at("estimated_end"))
		b := a.another()
		q := queue()
		b.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, "[]", b.fetch(q).at("jobs"))
		again := b.post("/ojs/v1/admin/maintenance", `{"enabled":true,"reason":"two","duration":"1h"}`).is(200)
		require.Equal(t, started.at("started_at"), again.at("started_at"))
		require.Equal(t, "two", a.get("/ojs/v1/admin/maintenance").at("reason"))
		a.post("/ojs/v1/admin/reset", "").is(200)
		require.Equal(t, "false", b.get("/ojs/v1/admin/maintenance").at("enabled"))
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
	})

	t.Run("RefusesInvalidBodies", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for body, field := range map[string]string{
			`{}`: "enabled", `{"enabled":"yes"}`: "enabled", `{"enabled":null}`: "enabled", `{"enabled":true,"duration":"soon"}`: "duration", `{"enabled":true,"duration":30}`: "duration",
			`{"enabled":true,"duration":"0s"}`: "duration", `{"enabled":true,"duration":"P40000D"}`: "duration", `{"enabled":true,"estimated_duration":"x"}`: "estimated_duration",
			`{"enabled":true,"reason":7}`: "reason", `{"enabled":true,"reason":"\u0000"}`: "reason", `{"enabled":true,"reason":"` + repeated('x', 1025) + `"}`: "reason",
		} {
			a.post("/ojs/v1/admin/maintenance", body).invalid(field)
		}
		for _, body := range []string{"", "[]", "{", strings.Repeat("[", 5000)} {
			a.post("/ojs/v1/admin/maintenance", body).is(400)
		}
		require.Equal(t, "false", a.get("/ojs/v1/admin/maintenance").at("enabled"))
		a.post("/ojs/v1/admin/maintenance", off).is(200)
	})
}

func TestAdminConfig(t *testing.T) {
	t.Parallel()
	a := setup(t)
	r := a.get("/ojs/v1/admin/system/config").is(200)
	for path, want := range map[string]string{
		"version": "1.2.3", "max_batch_size": "10000", "max_workflow_depth": "5", "retention.completed": "P7D", "default_visibility_timeout": "PT30S",
		"worker_dead_after": "PT1M", "authentication": "false", "retention.dead_letter_max_count": "10000",
	} {
		require.Equal(t, want, r.at(path), path)
	}
	require.Equal(t, r.body, a.get("/ojs/v1/admin/config").is(200).body)
	m := a.get("/ojs/v1/middleware").is(200)
	require.Equal(t, "[]", m.at("execution"))
	require.Equal(t, "enqueue 1", m.at("enqueue.0.phase")+" "+m.at("enqueue.0.order"))
	require.Contains(t, m.list("enqueue", "name"), "unique")
}

func TestQueueConfiguration(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q := queue()
	a.pushMany(t, q, 2)
	config := func() string { return a.get("/ojs/v1/admin/queues/" + q).is(200).at("configuration") }
	require.Equal(t, `{"retention":{"cancelled":"P7D","completed":"P7D","discarded":"P30D"}}`, config())
	set := func(name, config string) {
		a.exec(`INSERT INTO ojs.queues (name, config) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET config = EXCLUDED.config`, name, config)
	}
	set("_default", `{"concurrency":7,"retention":{"completed":"P1D","cancelled":"24h"}}`)
	set(q, `{"rate_limit":{"limit":9,"period":"1m"},"backpressure":{"max_depth":10},"retention":{"completed":"P3D"}}`)
	require.Equal(t, `{"concurrency":7,"rate_limit":{"limit":9,"period":"1m"},"retention":{"cancelled":"24h","completed":"P3D","discarded":"P30D"},`+
		`"backpressure":{"enabled":true,"strategy":"reject","threshold":10,"max_depth":10,"warning_threshold":0.8,"current_depth":2,"state":"normal"}}`, config())
	for depth, want := range map[string]string{"3": "normal", "2": "critical", "1": "critical"} {
		set(q, `{"backpressure":{"max_depth":`+depth+`,"strategy":"drop_oldest"}}`)
		require.Equal(t, want, a.get("/ojs/v1/admin/queues/"+q).at("configuration.backpressure.state"), depth)
	}
	set(q, `{"backpressure":{"max_depth":4,"warning_threshold":0.5}}`)
	require.Equal(t, "warning", a.get("/ojs/v1/admin/queues/"+q).at("configuration.backpressure.state"))
	require.NotContains(t, a.get("/ojs/v1/admin/queues").is(200).body, "_default")
	a.get("/ojs/v1/admin/queues/_default").is(404)
}

// TestPurge covers docs/reference/admin.md, Purge.
func TestPurge(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	purge := func(a *node, q, body string) reply {
		return a.do("DELETE", "/ojs/v1/admin/queues/"+q+"/jobs", strings.NewReader(body))
	}

	t.Run("RemovesJobsInTheStates", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, other := queue(), queue()
		kept := a.push(`"type":"t","args":[],"queue":"%s"`, other)
		ids := map[string]string{"available": a.push(`"type":"t","args":[],"queue":"%s"`, q)}
		move := func(state string) {
			id := a.jobIn(state)
			ids[state] = id
			a.exec(`UPDATE ojs.jobs SET queue = $2 WHERE id = $1`, id, q)
			a.exec(`UPDATE ojs.jobs_done SET queue = $2 WHERE id = $1`, id, q)
		}
		for _, state := range []string{"active", "scheduled", "pending", "retryable", "completed", "discarded", "cancelled"} {
			move(state)
		}
		r := purge(a, q, `{"states":["completed"],"older_than":"1h","confirm":true}`).is(200)
		require.Equal(t, `{"purged_count":0,"states":["completed"]}`, r.body)
		r = purge(a, q, `{"states":["completed","discarded","completed"],"confirm":true}`).is(200)
		require.Equal(t, `{"purged_count":2,"states":["completed","discarded"]}`, r.body)
		a.get("/ojs/v1/jobs/" + ids["completed"]).is(404)
		a.get("/ojs/v1/jobs/" + ids["cancelled"]).is(200)
		a.get("/ojs/v1/jobs/" + ids["available"]).is(200)
		r = a.do("DELETE", "/ojs/v1/admin/queues/"+q+"/jobs", strings.NewReader(`{"states":["available","scheduled","pending","retryable"],"confirm":true,"cancelled_by":"jo"}`)).is(200)
		require.Equal(t, "4", r.at("purged_count"))
		for _, state := range []string{"available", "scheduled", "pending", "retryable"} {
			a.get("/ojs/v1/jobs/" + ids[state]).is(404)
			require.Equal(t, "jo", a.eventOf(t, ids[state], "job.cancelled").at("data.cancelled_by"))
		}
		require.Equal(t, "active", a.job(ids["active"]).at("job.state"))
		require.Equal(t, "cancelled", a.job(ids["cancelled"]).at("job.state"))
		require.Equal(t, "available", a.job(kept).at("job.state"))
	})

	t.Run("WorkflowsFollow", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		flow := a.post("/ojs/v1/workflows", `{"type":"chain","options":{"queue":"`+q+`"},"steps":[{"type":"t","args":[]},{"type":"t","args":[]}]}`).is(201).at("id")
		require.Equal(t, "1", purge(a, q, `{"states":["available"],"confirm":true}`).is(200).at("purged_count"))
		require.NotEqual(t, "running", a.get("/ojs/v1/workflows/"+flow).is(200).at("state"))
	})

	t.Run("GoesOnUntilNothingIsLeft", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		for range 3 {
			a.pushMany(t, q, 900)
		}
		require.Equal(t, "2700", purge(a, q, `{"states":["available"],"confirm":true}`).is(200).at("purged_count"))
		counts := a.get("/ojs/v1/queues/" + q + "/stats").is(200)
		require.Equal(t, "0 0", counts.at("queue.available")+" "+counts.at("queue.cancelled"))
	})

	// Two nodes that purge the same queue remove each job once, and none that a fetch has.
	t.Run("BesideOthers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		b := a.another()
		q := queue()
		for range 2 {
			a.pushMany(t, q, 900)
		}
		replies := make(chan reply, 2)
		for _, n := range []*node{a, b} {
			go func() { replies <- purge(n, q, `{"states":["available"],"confirm":true}`) }()
		}
		fetched := a.fetch(q, `"count":10`).count("jobs")
		total := fetched
		for range 2 {
			n, err := strconv.Atoi((<-replies).is(200).at("purged_count"))
			require.NoError(t, err)
			total += n
		}
		require.Equal(t, 1800, total)
		counts := a.get("/ojs/v1/queues/" + q + "/stats").is(200)
		require.Equal(t, fmt.Sprintf("0 %d 0", fetched), counts.at("queue.available")+" "+counts.at("queue.active")+" "+counts.at("queue.cancelled"))
	})

	t.Run("RefusesInvalidBodies", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		for body, field := range map[string]string{
			`{"confirm":true}`: "states", `{"states":[],"confirm":true}`: "states", `{"states":["active"],"confirm":true}`: "states", `{"states":"completed","confirm":true}`: "states",
			`{"states":["flying"],"confirm":true}`: "states", `{"states":[7],"confirm":true}`: "states", `{"states":["completed"]}`: "confirm",
			`{"states":["completed"],"confirm":false}`: "confirm", `{"states":["completed"],"confirm":true,"older_than":7}`: "older_than",
			`{"states":["completed"],"confirm":true,"older_than":"soon"}`: "older_than",
		} {
			purge(a, q, body).invalid(field)
		}
		purge(a, q, "").is(400)
		purge(a, "NO", `{"states":["completed"],"confirm":true}`).is(404)
		require.Equal(t, "0", purge(a, "none", `{"states":["completed"],"confirm":true}`).is(200).at("purged_count"))
	})
}
