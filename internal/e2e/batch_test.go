package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBatch covers docs/reference/http.md, Batch.
func TestBatch(t *testing.T) {
	t.Parallel()
	a := setup(t, slowStatements)
	job := func(queue, more string) string { return `{"type":"t","args":[],"queue":"` + queue + `"` + more + `}` }
	send := func(a *node, jobs ...string) reply {
		return a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.Join(jobs, ",")+`]}`)
	}
	stored := func(a *node, queue string) string { return a.get("/ojs/v1/jobs?queue=" + queue).is(200).at("total") }

	t.Run("StoresAllInOrder", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		chosen := newID()
		r := send(a, job(q, `,"x":1`), job(q, `,"id":"`+chosen+`"`), job(q, `,"scheduled_at":"PT1H"`), job(q, `,"pending":true`)).is(201)
		require.Equal(t, "4", r.at("count"))
		require.Equal(t, "4", r.at("enqueued"))
		require.Equal(t, "0", r.at("failed"))
		require.Equal(t, []string{"available", "available", "scheduled", "pending"}, r.list("jobs", "state"))
		require.Equal(t, chosen, r.at("jobs.1.id"))
		require.Empty(t, r.header.Get("Location"))
		for i, id := range r.list("jobs", "id") {
			require.Equal(t, r.at(fmt.Sprintf("jobs.%d", i)), a.job(id).at("job"))
		}
		require.Equal(t, r.list("jobs", "id")[:2], a.fetch(q, `"count":9`).list("jobs", "id"))
	})

	t.Run("AppearsInStatistics", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		jobs := make([]string, 100)
		for i := range jobs {
			jobs[i] = job(q, "")
		}
		require.Equal(t, "100", send(a, jobs...).is(201).at("count"))
		require.Equal(t, "100", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.available"))
	})

	t.Run("StoresNothingIfOneFails", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		taken := a.jobIn("completed")
		live := a.jobIn("available")
		twice := newID()
		for _, c := range []struct {
			bad    string
			status int
			code   string
			field  string
		}{
			{`{"args":[]}`, 400, "invalid_payload", "type"},
			{`{"type":"t","args":{}}`, 400, "invalid_payload", "args"},
			{`7`, 400, "invalid_payload", "job"},
			{`null`, 400, "invalid_payload", "job"},
			{job(q, `,"retry":{"max_attempts":-1}`), 422, "validation_error", "retry.max_attempts"},
			{job(q, `,"specversion":"7"`), 422, "unsupported", "specversion"},
			{job(q, `,"meta":{"m":"`+repeated('m', 70_000)+`"}`), 413, "metadata_too_large", "meta"},
			{job(q, `,"x":"`+repeated('x', 1_048_576)+`"`), 413, "payload_too_large", "envelope"},
			{job(q, `,"id":"`+taken+`"`), 409, "duplicate", "id"},
			{job(q, `,"id":"`+live+`"`), 409, "duplicate", "id"},
			{job(q, `,"id":"`+twice+`"`) + "," + job(q, `,"id":"`+twice+`"`), 409, "duplicate", "id"},
		} {
			r := send(a, job(q, ""), job(q, ""), c.bad, job(q, "")).is(c.status)
			require.Equal(t, c.code, r.at("error.code"))
			require.Equal(t, c.field, r.at("error.details.field"))
			index := "2"
			if strings.Contains(c.bad, twice) {
				index = "3"
			}
			require.Equal(t, index, r.at("error.details.index"))
			require.Contains(t, r.at("error.message"), "job at index "+index)
			require.Equal(t, "0", stored(a, q))
			require.Equal(t, `[]`, a.fetch(q).at("jobs"))
			require.Equal(t, "0", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.total"))
		}
		a.get("/ojs/v1/jobs/" + twice).is(404)
	})

	t.Run("LowestIndexDecidesAndAllAreListed", func(t *testing.T) {
		t.Parallel()
		r := send(a.in(t), job("q", ""), `{"type":"t"}`, `{"args":[]}`, `7`).fails(400, "invalid_payload", "invalid_args")
		require.Equal(t, "1", r.at("error.details.index"))
		require.Equal(t, []string{"$.jobs[1].args", "$.jobs[2].type", "$.jobs[3]"}, r.list("error.details.validation_errors", "path"))
	})

	t.Run("RefusesBadBodies", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"batch", "bulk"} {
			for _, body := range []string{`{}`, `{"jobs":null}`, `{"jobs":[]}`, `{"jobs":{}}`, `{"jobs":"x"}`} {
				a.post("/ojs/v1/jobs/"+path, body).invalid("jobs")
			}
			a.post("/ojs/v1/jobs/"+path, `{"job":[`+job("q", "")+`]}`).unknown("job")
			tooMany := `{"jobs":[` + strings.TrimSuffix(strings.Repeat(`{},`, 10_001), ",") + `]}`
			r := a.post("/ojs/v1/jobs/"+path, tooMany).fails(413, "batch_size_exceeded", "batch_size_exceeded")
			require.Equal(t, "10000", r.at("error.details.max_batch_size"))
			require.Equal(t, "10000", r.at("error.max_batch_size"))
			require.Equal(t, "10000", r.header.Get("X-OJS-Max-Batch-Size"))
		}
	})

	t.Run("TakesTenThousand", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		body := `{"jobs":[` + strings.TrimSuffix(strings.Repeat(job(q, "")+",", 10_000), ",") + `]}`
		require.Equal(t, "10000", a.post("/ojs/v1/jobs/batch", body).is(201).at("count"))
		require.Equal(t, "10000", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.available"))
		q = queue()
		body = `{"jobs":[` + strings.TrimSuffix(strings.Repeat(job(q, "")+",", 10_000), ",") + `]}`
		require.Equal(t, "10000", a.post("/ojs/v1/jobs/bulk", body).is(201).at("succeeded"))
		require.Equal(t, "10000", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.available"))
	})

	t.Run("ConcurrentBatchesWithCrossedIDs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for range 10 {
			q, ids := queue(), make([]string, 20)
			forth, back := make([]string, len(ids)), make([]string, len(ids))
			for i := range ids {
				ids[i] = newID()
				forth[i] = job(q, `,"id":"`+ids[i]+`"`)
				back[len(ids)-1-i] = forth[i]
			}
			statuses := make([]int, 4)
			var wg sync.WaitGroup
			for i := range statuses {
				wg.Go(func() { statuses[i] = send(a, [][]string{forth, back}[i%2]...).status })
			}
			wg.Wait()
			require.ElementsMatch(t, []int{201, 409, 409, 409}, statuses)
			require.Equal(t, "20", stored(a, q))
		}
	})
}

// TestAckAndNackBatches covers docs/reference/http.md, Ack and nack batches.
func TestAckAndNackBatches(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("EachItemAsIfSentAlone", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		one, two, owned, done, unknown := a.jobIn("active"), a.jobIn("active"), a.jobIn("active"), a.jobIn("completed"), newID()
		r := a.post("/ojs/v1/workers/ack/batch", fmt.Sprintf(`{"acks":[{"job_id":"%s","result":{"n":1.0}},{"job_id":"%s"},{"job_id":"%s"},{"job_id":"%s","worker_id":"w2"},
			{"job_id":"%s"},{"job_id":"strange"},{"job_id":7},{},5,{"job_id":"job_%s","attempt":1},{"job_id":"%s","result":%s}]}`,
			one, unknown, done, owned, one, two, owned, repeated('[', 33)+repeated(']', 33))).is(200)
		require.Equal(t, []string{"ok", "failed", "failed", "failed", "failed", "failed", "failed", "failed", "failed", "ok", "failed"}, r.list("items", "status"))
		require.Equal(t, []string{one, unknown, done, owned, one, "strange", "", "", "", two, owned}, r.list("items", "job_id"))
		require.Equal(t, []string{"", "not_found", "conflict", "conflict", "conflict", "not_found", "invalid_payload", "invalid_payload", "invalid_payload", "", "invalid_payload"}, errorCodes(r))
		require.Equal(t, a.job(one).at("job"), r.at("items.0.job"))
		require.Equal(t, `{"n":1.0}`, r.at("items.0.job.result"))
		require.Equal(t, "not_owner", r.at("items.3.error.type"))
		require.False(t, r.has("items.3.error.request_id"))
		require.True(t, r.has("items.3.error.hint"))
		require.Equal(t, "active", a.job(owned).at("job.state"))
	})

	t.Run("Nacks", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		failed, back, dead, done := a.jobIn("active"), a.jobIn("active"), a.jobIn("active"), a.jobIn("completed")
		r := a.post("/ojs/v1/workers/nack/batch", fmt.Sprintf(`{"nacks":[{"job_id":"%s","error":{"message":"m"}},{"job_id":"%s","requeue":true},{"job_id":"%s","error":{"retryable":false}},{"job_id":"%s","error":{}},{"job_id":"%s"}]}`,
			failed, back, dead, done, failed)).is(200)
		require.Equal(t, []string{"ok", "ok", "ok", "failed", "failed"}, r.list("items", "status"))
		require.Equal(t, "retryable", r.at("items.0.job.state"))
		require.Equal(t, "available", r.at("items.1.job.state"))
		require.Equal(t, "discarded", r.at("items.2.job.state"))
		require.Equal(t, []string{"", "", "", "conflict", "invalid_payload"}, errorCodes(r))
	})

	t.Run("FetchesTheNextJobs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := a.pushMany(t, q, 3)
		first, second, third := ids[0], ids[1], ids[2]
		require.Equal(t, []string{first}, a.fetch(q).list("jobs", "id"))
		next := func(path, key, item, count string) reply {
			return a.post("/ojs/v1/workers/"+path+"/batch", `{"`+key+`":[`+item+`],"fetch":{"queues":["`+q+`"],"count":`+count+`,"worker_id":"w7"}}`).is(200)
		}
		r := next("ack", "acks", `{"job_id":"`+first+`"}`, "1")
		require.Equal(t, []string{"ok"}, r.list("items", "status"))
		require.Equal(t, []string{second}, r.list("jobs", "id"))
		require.Equal(t, "w7", a.job(second).at("job.worker_id"))
		r = next("nack", "nacks", `{"job_id":"`+second+`","worker_id":"w7","error":{"retryable":false}}`, "5")
		require.Equal(t, []string{"ok"}, r.list("items", "status"))
		require.Equal(t, []string{third}, r.list("jobs", "id"))
		r = next("ack", "acks", `{"job_id":"`+newID()+`"}`, "5")
		require.Equal(t, []string{"failed"}, r.list("items", "status"))
		require.Equal(t, "[]", r.at("jobs"))
	})

	t.Run("RefusesABadFetchBeforeAnyAck", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		for _, fetch := range []string{`5`, `{}`, `{"queues":["a"],"wait_ms":1}`, `{"queues":["Not a queue"]}`, `{"queues":["a"],"count":"many"}`} {
			a.post("/ojs/v1/workers/ack/batch", `{"acks":[{"job_id":"`+id+`"}],"fetch":`+fetch+`}`).is(400)
		}
		r := a.post("/ojs/v1/workers/ack/batch", `{"acks":[{"job_id":"`+id+`"}],"fetch":{"queues":["a"],"wait_ms":1}}`).is(400)
		require.Equal(t, "$.fetch.wait_ms", r.at("error.details.validation_errors.0.path"))
		require.Equal(t, "active", a.job(id).at("job.state"))
	})

	t.Run("RefusesBadBodies", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for path, key := range map[string]string{"ack": "acks", "nack": "nacks"} {
			for _, list := range []string{`null`, `[]`, `{}`, `"x"`} {
				a.post("/ojs/v1/workers/"+path+"/batch", `{"`+key+`":`+list+`}`).invalid(key)
			}
			a.post("/ojs/v1/workers/"+path+"/batch", `{}`).invalid(key)
			tooMany := `{"` + key + `":[` + strings.TrimSuffix(strings.Repeat(`{},`, 10_001), ",") + `]}`
			r := a.post("/ojs/v1/workers/"+path+"/batch", tooMany).fails(413, "batch_size_exceeded", "batch_size_exceeded")
			require.Equal(t, "10000", r.header.Get("X-OJS-Max-Batch-Size"))
		}
	})

	t.Run("AThousandAtOnce", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[],"queue":"`+q+`"},`, 1500), ",")+`]}`).is(201)
		var acks []string
		for _, id := range append(a.fetch(q, `"count":1000`).list("jobs", "id"), a.fetch(q, `"count":1000`).list("jobs", "id")...) {
			acks = append(acks, `{"job_id":"`+id+`"}`)
		}
		r := a.post("/ojs/v1/workers/ack/batch", `{"acks":[`+strings.Join(acks, ",")+`]}`).is(200)
		require.Equal(t, 1500, strings.Count(r.body, `"status":"ok"`))
		require.Equal(t, "1500", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.completed"))
	})
}

// errorCodes of the items, "" for those without error.
func errorCodes(r reply) []string {
	var codes []string
	for i := range r.count("items") {
		codes = append(codes, r.at(fmt.Sprintf("items.%d.error.code", i)))
	}
	return codes
}
