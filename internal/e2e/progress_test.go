package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProgress covers docs/reference/jobs.md, Progress; docs/reference/events.md, Progress stream.
func TestProgress(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("IsAnsweredTheSameThreeTimes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		r := a.report(id, `"progress":0.5,"message":"half way","data":{"rows":7}`).is(200)
		require.Regexp(t, serverTime, r.at("updated_at"))
		want := `{"job_id":"` + id + `","state":"active","progress":0.5,"message":"half way","data":{"rows":7},"updated_at":"`
		require.Equal(t, want+r.at("updated_at")+`"}`, r.body)
		get := a.get("/ojs/v1/jobs/" + id + "/progress").is(200)
		require.Equal(t, r.body, get.body)
		require.Equal(t, "no-cache", get.header.Get("Cache-Control"))
		require.Equal(t, "0.5", get.header.Get("X-OJS-Progress"))
		require.NotEmpty(t, get.header.Get("Last-Modified"))
		sdk := a.post("/ojs/v1/workers/progress", `{"job_id":"`+id+`","percentage":55,"message":"more"}`).is(200)
		require.Equal(t, `0.55`, sdk.at("progress"))
		require.Equal(t, "more", sdk.at("message"))
		require.Equal(t, `{"rows":7}`, sdk.at("data"))
		require.Equal(t, "0.55", a.job(id).at("job.progress"))
		require.Equal(t, `{"rows":7}`, a.job(id).at("job.progress_data"))
	})

	t.Run("IsNullUntilReported", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"scheduled", "pending", "available", "active", "retryable", "completed", "discarded", "cancelled"} {
			id := a.jobIn(state)
			r := a.get("/ojs/v1/jobs/" + id + "/progress").is(200)
			require.Equal(t, `{"job_id":"`+id+`","state":"`+state+`","progress":null,"message":null,"data":null,"updated_at":"`+r.at("updated_at")+`"}`, r.body)
			require.Regexp(t, serverTime, r.at("updated_at"))
			require.Empty(t, r.header.Get("X-OJS-Progress"))
			require.False(t, a.job(id).has("job.progress"))
		}
	})

	t.Run("IsClampedAndNeverGoesDown", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		for _, step := range []struct{ sent, stored string }{
			{"-5", "0"}, {"-1e999", "0"}, {"-0.0", "0"}, {"0.25", "0.25"}, {"1e-999", "0.25"}, {"0.1", "0.25"}, {"0.99", "0.99"}, {"1.5", "1"}, {"0", "1"}, {"1e999", "1"},
		} {
			require.Equal(t, step.stored, a.report(id, `"progress":%s`, step.sent).is(200).at("progress"), step.sent)
		}
		r := a.report(id, `"progress":0.1,"message":"again","data":{}`).is(200)
		require.Equal(t, []string{"1", "again", "{}"}, []string{r.at("progress"), r.at("message"), r.at("data")})
		other := a.jobIn("active")
		require.Equal(t, "1", a.post("/ojs/v1/workers/progress", `{"job_id":"`+other+`","percentage":250}`).is(200).at("progress"))
	})

	t.Run("ChangesNothingUnlessActive", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"scheduled", "pending", "available", "retryable", "completed", "discarded", "cancelled"} {
			id := a.jobIn(state)
			r := a.report(id, `"progress":0.5,"data":{"a":1},"checkpoint":{"b":1}`).is(200)
			require.Equal(t, []string{"false", "null", "null", state}, []string{r.at("accepted"), r.at("progress"), r.at("data"), r.at("state")})
			require.Equal(t, `false`, a.post("/ojs/v1/workers/progress", `{"job_id":"`+id+`","percentage":5}`).is(200).at("accepted"))
			a.get("/ojs/v1/jobs/" + id + "/checkpoint").is(404)
		}
		for _, id := range []string{newID(), "x", "%00"} {
			a.report(id, `"progress":0.5`).fails(404, "not_found", "not_found")
			a.get("/ojs/v1/jobs/"+id+"/progress").fails(404, "not_found", "not_found")
		}
		a.post("/ojs/v1/workers/progress", `{"job_id":"`+newID()+`","percentage":5}`).fails(404, "not_found", "not_found")
	})

	t.Run("ChecksWhoReports", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		a.report(id, `"progress":0.5,"worker_id":"w2"`).fails(409, "conflict", "not_owner")
		a.report(id, `"progress":0.5,"attempt":2`).fails(409, "conflict", "stale_attempt")
		require.Equal(t, "null", a.get("/ojs/v1/jobs/"+id+"/progress").at("progress"))
		a.report(id, `"progress":0.5,"worker_id":"w1","attempt":1`).is(200)
		q := queue()
		nobodys := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q)
		a.report(nobodys, `"progress":0.5,"worker_id":"anybody"`).is(200)
	})

	t.Run("CountsAsABeat", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","heartbeat_timeout":3600,"options":{"visibility_timeout_ms":7200000}`, q)
		a.fetch(q)
		for _, call := range []func() reply{
			func() reply { return a.report(id, `"progress":0.5`) },
			func() reply { return a.put("/ojs/v1/jobs/"+id+"/checkpoint", `{"state":1}`) },
		} {
			a.exec(`UPDATE ojs.jobs SET lease_until = now() + interval '1 min', stall_due_at = lease_until, due_at = lease_until WHERE id = $1`, id)
			require.False(t, call().is(200).has("accepted"))
			require.Equal(t, "true true true", a.one(`SELECT concat_ws(' ', (lease_until > now() + interval '110 min')::text,
				(stall_due_at > now() + interval '50 min')::text, (due_at > now() + interval '20 min')::text) FROM ojs.jobs WHERE id = $1`, id))
		}
		require.Equal(t, "1", a.job(id).at("job.attempt"))
		a.leaseEnds(id)
		eventually(t, func() bool { return a.job(id).at("job.state") != "active" })
	})

	t.Run("LivesAsLongAsTheAttempt", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.01S","jitter":false}`, q)
		a.fetch(q)
		a.report(id, `"progress":0.5,"message":"m","data":{"a":1}`).is(200)
		a.nack(id).is(200)
		require.Equal(t, "0.5", a.get("/ojs/v1/jobs/"+id+"/progress").at("progress"))
		job := a.fetch(q, `"wait_ms":5000`)
		require.Equal(t, id, job.at("jobs.0.id"))
		require.False(t, job.has("jobs.0.progress"))
		require.Equal(t, "null", a.get("/ojs/v1/jobs/"+id+"/progress").at("message"))
		require.False(t, a.ack(id).is(200).has("job.progress"))

		done := a.jobIn("active")
		a.report(done, `"progress":0.25,"data":{"a":1}`).is(200)
		require.Equal(t, "1", a.ack(done).is(200).at("job.progress"))
		require.Equal(t, "1", a.job(done).at("job.progress"))
		require.Equal(t, `{"a":1}`, a.job(done).at("job.progress_data"))
		cancelled := a.jobIn("active")
		a.report(cancelled, `"progress":0.25`).is(200)
		a.del("/ojs/v1/jobs/" + cancelled).is(200)
		require.Equal(t, "0.25", a.get("/ojs/v1/jobs/"+cancelled+"/progress").at("progress"))
	})

	t.Run("EmitsAtMostOneEventASecond", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		start := time.Now()
		for n := range 20 {
			a.report(id, `"progress":%f,"message":"m%d","worker_id":"w1"`, float64(n)/20, n).is(200)
		}
		a.report(id, `"progress":1`).is(200)
		a.report(id, `"progress":1`).is(200)
		most := 3 + int(time.Since(start)/time.Second) // the first, that of 100 %, that of the last report, and one a second
		a.ack(id).is(200)
		eventually(t, func() bool { return a.events(id, "job.completed").count("events") == 1 })
		r := a.events(id, "job.progress")
		require.GreaterOrEqual(t, r.count("events"), 2, r.body)
		require.LessOrEqual(t, r.count("events"), most, r.body)
		last := fmt.Sprint(r.count("events") - 1)
		require.Equal(t, []string{"100", "w1", "1", "100"}, []string{
			r.at("events." + last + ".data.progress_percent"), r.at("events." + last + ".data.worker_id"), r.at("events." + last + ".data.attempt"), r.at("events." + last + ".progress"),
		}, r.body)
		require.Equal(t, "0", r.at("events.0.data.progress_percent"))
		require.Equal(t, "m0", r.at("events.0.data.progress_message"))
		require.Regexp(t, serverTime, r.at("events.0.data.visible_until"))
		require.Equal(t, "ojs://ojs/workers/w1", r.at("events."+last+".source"))
		require.Equal(t, 0, a.events(id, "job.heartbeat").count("events"))

		slow := a.jobIn("active")
		a.report(slow, `"progress":0.333`).is(200)
		eventually(t, func() bool { // many reports, an event again after a second
			a.report(slow, `"data":{}`).is(200)
			return a.events(slow, "job.progress").count("events") >= 2
		})
		r = a.events(slow, "job.progress")
		require.Equal(t, "33.3", r.at("events.1.data.progress_percent"))
		first, err := time.Parse(time.RFC3339, r.at("events.0.time"))
		require.NoError(t, err)
		second, err := time.Parse(time.RFC3339, r.at("events.1.time"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, second.Sub(first), time.Second)
	})

	t.Run("RefusesBadReports", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		for body, field := range map[string]string{
			`{}`: "progress", `{"message":"m"}`: "progress", `{"checkpoint":{}}`: "progress", `{"progress":null,"data":null}`: "progress", `{"percentage":5}`: "progress",
			`{"progress":"NaN"}`: "progress", `{"progress":"0.5"}`: "progress", `{"progress":[]}`: "progress", `{"progress":true}`: "progress", `{"progress":{}}`: "progress",
			`{"data":[]}`: "data", `{"data":"x"}`: "data", `{"data":7}`: "data", `{"progress":0,"message":7}`: "message",
			`{"progress":0,"checkpoint":7}`: "checkpoint", `{"progress":0,"worker_id":7}`: "worker_id", `{"progress":0,"attempt":"1"}`: "attempt",
			`{"data":{"a":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}}`: "data",
			``: "body", `[]`: "body", `{"progress":NaN}`: "body", "{\"message\":\"\xff\",\"progress\":0}": "body", "{\"progress\":0,\"message\":\"\x00\"}": "body",
		} {
			a.put("/ojs/v1/jobs/"+id+"/progress", body).invalid(field)
		}
		for body, field := range map[string]string{`{"percentage":5}`: "job_id", `{"job_id":7,"percentage":5}`: "job_id", `{"job_id":"` + id + `","progress":0.5}`: "percentage"} {
			a.post("/ojs/v1/workers/progress", body).invalid(field)
		}
		r := a.report(id, `"data":{"a":"%s"}`, repeated('x', 65_536)).fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "data", r.at("error.details.field"))
		a.report(id, `"progress":0.5,"message":"%s"`, repeated('x', 2<<20)).is(413)
		a.report(id, `"progress":0.5,"checkpoint":{"a":"%s"}`, repeated('x', 1<<20)).is(413)
		require.Equal(t, "null", a.get("/ojs/v1/jobs/"+id+"/progress").at("progress"))
		require.Equal(t, 0, a.events(id, "job.progress").count("events"))

		exact := `{"a":"` + repeated('x', 65_536-8) + `"}`
		require.Equal(t, exact, a.report(id, `"data": %s`, exact).is(200).at("data"))
		odd := `{"n":1.0,"z":"\u0000","s":"\ud800","big":12345678901234567890}`
		require.Equal(t, odd, a.report(id, `"progress":0.5,"message":"a\u0000b\ud800","data":%s`, odd).is(200).at("data"))
		require.Equal(t, "ab\ufffd", a.get("/ojs/v1/jobs/"+id+"/progress").at("message"))
		require.Contains(t, a.job(id).body, `"progress_data":`+odd)
		require.Len(t, a.report(id, `"progress":0.5,"message":"%s"`, repeated('x', 40_000)).is(200).at("message"), 16_384)
		a.report(id, `"progress":1,"message":"%s"`, strings.Repeat(`\u0001`, 10_000)).is(200)
		eventually(t, func() bool { return a.events(id, "job.progress").count("events") >= 2 }) // one more for each second that the reports took
	})

	t.Run("NeverBringsAFinishedJobBack", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for range 20 {
			id := a.jobIn("active")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() { a.report(id, `"progress":0.5,"checkpoint":{"a":1}`).is(200) })
			}
			wg.Go(func() { a.ack(id).is(200) })
			wg.Wait()
			require.Equal(t, "completed", a.job(id).at("job.state"))
			require.Contains(t, []string{"", "1"}, a.job(id).at("job.progress"))
			require.Equal(t, "1", a.get("/ojs/v1/jobs?type=t&state=completed&queue="+a.job(id).at("job.queue")).at("total"))
		}
	})
}
