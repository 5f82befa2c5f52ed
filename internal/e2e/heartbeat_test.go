package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeartbeat covers docs/reference/workers.md, Heartbeat.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	a := setup(t)
	beat := func(a *node, body string, args ...any) reply {
		return a.post("/ojs/v1/workers/heartbeat", fmt.Sprintf(body, args...))
	}

	t.Run("AnswersInFull", func(t *testing.T) {
		t.Parallel()
		r := beat(a.in(t), `{"worker_id":"new"}`).is(200)
		now := r.at("server_time")
		require.Regexp(t, serverTime, now)
		require.Equal(t, `{"acknowledged":true,"state":"running","directive":"","jobs_extended":[],"jobs_cancelled":[],"jobs_lost":[],"server_time":"`+now+`"}`, r.body)
	})

	t.Run("TakesIDsFromThreePlaces", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		one, two, three := a.jobIn("active"), a.jobIn("active"), a.jobIn("active")
		r := beat(a, `{"worker_id":"w1","active_jobs":["%s"],"active_job_ids":["job_%s","%s"],"job_id":"%s"}`, one, two, one, three).is(200)
		require.ElementsMatch(t, []string{one, two, three}, r.texts("jobs_extended"))
		r = beat(a, `{"worker_id":"w1","active_jobs":3,"active_job_ids":["%s"]}`, one).is(200)
		require.Equal(t, []string{one}, r.texts("jobs_extended"))
		require.Equal(t, `[]`, beat(a, `{"worker_id":"w1","active_jobs":3}`).is(200).at("jobs_extended"))
	})

	t.Run("ExtendsOnlyTheWorkersOwnJobs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		others, done, cancelled, unknown := a.jobIn("active"), a.jobIn("completed"), a.jobIn("cancelled-active"), newID()
		r := beat(a, `{"worker_id":"w2","active_jobs":["%s"]}`, others).is(200)
		require.Equal(t, `[]`, r.at("jobs_extended"))
		require.Equal(t, `["`+others+`"]`, r.at("jobs_lost"))
		r = beat(a, `{"worker_id":"w1","active_jobs":["%s","%s","%s","strange"]}`, done, cancelled, unknown).is(200)
		require.Equal(t, `[]`, r.at("jobs_extended"))
		require.Equal(t, `["`+cancelled+`"]`, r.at("jobs_cancelled"))
		require.Equal(t, []string{unknown, "strange"}, r.texts("jobs_lost"))
		q := queue()
		ownerless := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q)
		require.Equal(t, `["`+ownerless+`"]`, beat(a, `{"worker_id":"w9","job_id":"%s"}`, ownerless).at("jobs_extended"))
	})

	// docs/reference/http.md, Cancel.
	t.Run("ReturnsCancelledJobsUntilTheWorkerDropsThem", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w1"`)
		require.Equal(t, `["`+id+`"]`, beat(a, `{"worker_id":"w1","job_id":"%s"}`, id).at("jobs_extended"))
		r := a.del("/ojs/v1/jobs/" + id + "?reason=stop").is(200)
		require.Equal(t, "active", r.at("job.previous_state"))
		require.Equal(t, "1", r.at("job.attempt"))
		for range 3 {
			r := beat(a, `{"worker_id":"w1","active_jobs":["%s"]}`, id).is(200)
			require.Equal(t, `["`+id+`"]`, r.at("jobs_cancelled"))
			require.Equal(t, `[]`, r.at("jobs_extended"))
			require.Equal(t, `[]`, r.at("jobs_lost"))
		}
		require.Equal(t, `[]`, beat(a, `{"worker_id":"w1"}`).at("jobs_cancelled"))
		a.nack(id, `"worker_id":"w1"`, `"error":{}`).is(200)
		require.Equal(t, `["`+id+`"]`, beat(a, `{"worker_id":"w1","job_id":"%s"}`, id).at("jobs_cancelled"))
		a.del("/ojs/v1/jobs/"+id).fails(409, "conflict", "invalid_state_transition")
	})

	t.Run("PutsOffTheDeadline", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		kept := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		lost := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"count":2`, `"worker_id":"w1"`, `"visibility_timeout_ms":600000`)
		a.exec(`UPDATE ojs.jobs SET lease_until = now() + interval '20 s', due_at = now() + interval '20 s' WHERE id = $1`, kept)
		beat(a, `{"worker_id":"w1","job_id":"%s","visibility_timeout_ms":60000}`, kept).is(200)
		require.Equal(t, "60", a.leaseSeconds(kept))
		a.leaseEnds(lost)
		require.Equal(t, lost, a.fetch(q, `"wait_ms":20000`).at("jobs.0.id"))
		require.Equal(t, "1", a.job(kept).at("job.attempt"))
		require.Equal(t, "active", a.job(kept).at("job.state"))
		a.ack(kept, `"worker_id":"w1"`).is(200)
	})

	t.Run("ReappliesTheDurationOfTheFetch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":60000`, q)
		a.fetch(q, `"worker_id":"w1"`, `"visibility_timeout_ms":600000`)
		for range 2 {
			require.Equal(t, `["`+id+`"]`, beat(a, `{"worker_id":"w1","job_id":"%s"}`, id).at("jobs_extended"))
			require.Equal(t, "600", a.leaseSeconds(id))
		}
		require.Equal(t, "1", a.job(id).at("job.attempt"))
		a.leaseEnds(id)
		require.Equal(t, "2", a.fetch(q, `"wait_ms":20000`).at("jobs.0.attempt"))
	})

	t.Run("NeverShortensAReservation", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"worker_id":"w1"`, `"visibility_timeout_ms":20000`)
		beat(a, `{"worker_id":"w1","job_id":"%s","visibility_timeout_ms":60000}`, id).is(200)
		const ends = `SELECT lease_until::text || ' ' || due_at::text FROM ojs.jobs WHERE id = $1`
		before := a.one(ends, id)
		for name, renew := range map[string]func() reply{
			"Beat":        func() reply { return beat(a, `{"worker_id":"w1","job_id":"%s"}`, id) },
			"ShorterBeat": func() reply { return beat(a, `{"worker_id":"w1","job_id":"%s","visibility_timeout_ms":500}`, id) },
			"Progress":    func() reply { return a.report(id, `"progress":0.5`) },
			"Checkpoint":  func() reply { return a.put("/ojs/v1/jobs/"+id+"/checkpoint", `{"state":1}`) },
		} {
			renew().is(200)
			require.Equal(t, before, a.one(ends, id), name)
		}
		require.Equal(t, "active", a.job(id).at("job.state"))
	})

	t.Run("ChoosesTheState", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for reported, want := range map[string]string{
			`"state":"running"`: "running", `"state":"quiet"`: "quiet", `"state":"terminate"`: "terminate", `"state":"draining"`: "quiet",
			`"shutdown":true`: "terminate", `"state":"busy"`: "running", `"state":7`: "running",
		} {
			r := beat(a, `{"worker_id":"s-%s",%s}`, newID(), reported).is(200)
			require.Equal(t, want, r.at("state"), reported)
			require.Equal(t, strings.TrimPrefix(want, "running"), r.at("directive"))
		}
	})

	t.Run("RefusesOnlyBadIDsAndTimes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for body, field := range map[string]string{
			`{}`: "worker_id", `{"worker_id":""}`: "worker_id", `{"worker_id":null}`: "worker_id", `{"worker_id":7}`: "worker_id",
			`{"worker_id":"` + repeated('w', 256) + `"}`:          "worker_id",
			`{"worker_id":"w","visibility_timeout_ms":-1}`:        "visibility_timeout_ms",
			`{"worker_id":"w","visibility_timeout_ms":604800001}`: "visibility_timeout_ms",
			`{"worker_id":"w","active_jobs":"x"}`:                 "active_jobs",
			`{"worker_id":"w","active_jobs":[7]}`:                 "active_jobs",
			`{"worker_id":"w","active_job_ids":"x"}`:              "active_job_ids",
			`{"worker_id":"w","job_id":7}`:                        "job_id",
		} {
			a.post("/ojs/v1/workers/heartbeat", body).invalid(field)
		}
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"`+repeated('w', 255)+`","hostname":7,"pid":"x","queues":"q","concurrency":-1,"labels":7,"started_at":1,"metadata":[],"memory_mb":"x"}`).is(200)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w/ä \"","pid":9223372036854775807,"concurrency":99999999999,"queues":["A","ok",7],"active_jobs":-5}`).is(200)
	})
}
