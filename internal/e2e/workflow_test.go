package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/app"
)

// workflow creates a workflow and returns the answer.
func (a *node) workflow(body string) reply {
	a.t.Helper()
	return a.post("/ojs/v1/workflows", body).is(http.StatusCreated)
}

// run fetches a job of the queue, checks its type and completes it.
func (a *node) run(queue, kind, result string) reply {
	a.t.Helper()
	j := a.fetch(queue)
	require.Equal(a.t, kind, j.at("jobs.0.type"), j.body)
	a.ack(j.at("jobs.0.id"), `"result":`+result).is(200)
	return j
}

// shownTwice requires that the workflow at the top level is that under workflow.
func (r reply) shownTwice() reply {
	r.t.Helper()
	var top map[string]json.RawMessage
	require.NoError(r.t, json.Unmarshal([]byte(r.body), &top), r.body)
	var wrapped map[string]json.RawMessage
	require.NoError(r.t, json.Unmarshal(top["workflow"], &wrapped))
	delete(top, "workflow")
	require.Equal(r.t, wrapped, top)
	return r
}

// TestWorkflowClients sends exactly what the official clients send, and reads what they read.
func TestWorkflowClients(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("JavaScriptChain", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		r := a.workflow(`{"type":"chain","name":"nightly","steps":[
			{"type":"report.build","args":[7],"options":{"queue":"` + q + `","timeout_ms":60000,"tags":["x"],"retry":{"maxAttempts":1,"initialInterval":"PT1S","backoffCoefficient":2}}},
			{"type":"report.mail","args":[],"options":{"queue":"` + q + `"}}]}`).shownTwice()
		id := r.at("id")
		require.Equal(t, "/ojs/v1/workflows/"+id, r.header.Get("Location"))
		for path, want := range map[string]string{
			"type": "chain", "name": "nightly", "state": "running", "steps_total": "2", "steps_completed": "0", "steps_failed": "0", "jobs_total": "2",
			"metadata.job_count": "2", "metadata.completed_count": "0", "metadata.failed_count": "0", "callbacks": "{}", "meta": "{}",
			"steps.0.index": "0", "steps.0.id": "0", "steps.0.state": "pending", "steps.0.job_state": "available", "steps.0.depends_on": "[]",
			"steps.1.id": "1", "steps.1.state": "waiting", "steps.1.job_state": "null", "steps.1.job_id": "null", "steps.1.job_ids": "[]", "steps.1.depends_on": `["0"]`,
		} {
			require.Equal(t, want, r.at(path), path)
		}
		for _, absent := range []string{"jobs", "started_at", "completed_at", "cancelled_at", "steps.0.result", "steps.0.error", "steps.0.deduplicated", "metadata.started_at", "metadata.errors"} {
			require.False(t, r.has(absent), absent)
		}
		j := a.run(q, "report.build", `{"url":"u"}`)
		require.Equal(t, []string{"1", id, id, "0", "0", "[]"}, []string{j.at("jobs.0.max_attempts"), j.at("jobs.0.workflow_id"), j.at("jobs.0.root_workflow_id"), j.at("jobs.0.workflow_step"), j.at("jobs.0.workflow_step_id"), j.at("jobs.0.parent_results")})
		p := a.get("/ojs/v1/workflows/" + id + "/progress").is(200)
		require.Equal(t, []string{id, "chain", "0.5", "1"}, []string{p.at("workflow_id"), p.at("type"), p.at("progress"), p.at("steps.0.progress")})
		j = a.run(q, "report.mail", `null`)
		require.Equal(t, `[{"url":"u"}]`, j.at("jobs.0.parent_results"))
		require.Equal(t, `{"0":{"url":"u"}}`, j.at("jobs.0.parent_results_map"))
		r = a.get("/ojs/v1/workflows/wf_" + id).is(200).shownTwice()
		require.Equal(t, []string{"completed", "2", "2", `{"url":"u"}`}, []string{r.at("state"), r.at("steps_completed"), r.at("metadata.completed_count"), r.at("steps.0.result")})
		require.Equal(t, r.at("metadata.completed_at"), r.at("completed_at"))
		require.NotEmpty(t, r.at("metadata.started_at"))
	})

	t.Run("ReferenceObject", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		blocks := codeBlocks(t, "../../docs/reference/workflows.md")
		shown := blocks[slices.IndexFunc(blocks, func(b codeBlock) bool { return b.language == "json" && strings.Contains(b.text, `"steps_total"`) })].text
		got := a.workflow(`{"type":"chain","name":"nightly","options":{"queue":"` + q + `"},"steps":[{"type":"report.build","args":[]},{"type":"report.mail","args":[]}]}`).at("workflow")
		for _, path := range []string{"@this", "steps.0", "steps.1", "metadata"} {
			want := slices.Sorted(maps.Keys(membersOf(t, gjson.Get(shown, path).Raw)))
			require.Equal(t, want, slices.Sorted(maps.Keys(membersOf(t, gjson.Get(got, path).Raw))), path)
		}
	})

	t.Run("JavaScriptBatchAndNesting", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		job := func(kind string) string { return `{"type":"` + kind + `","args":[],"options":{"queue":"` + q + `"}}` }
		r := a.workflow(`{"type":"batch","jobs":[` + job("a") + `,` + job("b") + `],"callbacks":{"on_complete":` + job("done") + `,"on_failure":` + job("alarm") + `}}`).shownTwice()
		require.Equal(t, r.at("steps"), r.at("jobs"))
		require.Equal(t, `{"type":"done","fired":false,"state":"waiting","job_id":null}`, r.at("callbacks.on_complete"))
		a.run(q, "a", "1")
		a.run(q, "b", "2")
		j := a.run(q, "done", "3")
		require.Equal(t, []string{"on_complete", "[1,2]"}, []string{j.at("jobs.0.workflow_callback"), j.at("jobs.0.parent_results")})
		r = a.get("/ojs/v1/workflows/" + r.at("id")).is(200)
		require.Equal(t, []string{"completed", "true", "completed", "cancelled", "2"}, []string{r.at("state"), r.at("callbacks.on_complete.fired"), r.at("callbacks.on_complete.state"), r.at("callbacks.on_failure.state"), r.at("steps_total")})

		r = a.workflow(`{"type":"chain","steps":[` + job("first") + `,{"type":"group","jobs":[` + job("left") + `,` + job("right") + `]}]}`)
		require.Equal(t, []string{"3", "2", "waiting", "group", "null"}, []string{r.at("metadata.job_count"), r.at("steps_total"), r.at("steps.1.state"), r.at("steps.1.type"), r.at("steps.1.job_id")})
		a.run(q, "first", "1")
		a.run(q, "left", "2")
		r = a.get("/ojs/v1/workflows/" + r.at("id")).is(200)
		require.Equal(t, []string{"active", "running", "completed", "2"}, []string{r.at("steps.1.state"), r.at("steps.1.workflow.state"), r.at("steps.1.workflow.steps.0.state"), r.at("steps.1.job_ids.#")})
		inner := a.get("/ojs/v1/workflows/" + r.at("steps.1.workflow.id")).is(200)
		require.Equal(t, "group", inner.at("type"))
		a.del("/ojs/v1/workflows/"+inner.at("id")).fails(409, "conflict", "invalid_state_transition")
	})

	t.Run("GoAndPythonSteps", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		r := a.post("/ojs/v1/workflows", `{"options":{"queue":"`+q+`"},"steps":[{"id":"job-0","type":"a","args":[{"x":1}],"depends_on":[]},{"id":"job-1","type":"b","args":[],"depends_on":[]},
			{"id":"on-failure","type":"alarm","args":[],"depends_on":["job-0","job-1"]}]}`, "OJS-Version: 1.0.0-rc.1").is(201)
		require.Equal(t, []string{"batch", "batch", "2", "3", "on_failure", "on-failure", `["job-0","job-1"]`},
			[]string{r.at("workflow.type"), r.at("workflow.name"), r.at("workflow.steps_total"), r.at("workflow.steps.#"), r.at("workflow.steps.2.callback"), r.at("workflow.steps.2.id"), r.at("workflow.steps.2.depends_on")})
		a.run(q, "a", "1")
		a.run(q, "b", "1")
		require.Equal(t, "completed", a.get("/ojs/v1/workflows/"+r.at("id")).at("state"))
		require.Equal(t, "[]", a.fetch(q).at("jobs"), "no failure callback after success")

		r = a.workflow(`{"name":"py","steps":[{"id":"step-0","type":"a","args":[],"depends_on":[],"options":{"queue":"` + q + `","retry":{"max_attempts":1}}},
			{"id":"on_failure","type":"alarm","args":[],"depends_on":["step-0"],"options":{"queue":"` + q + `","callback_type":"on_failure"}}]}`)
		require.Equal(t, []string{"py", "batch"}, []string{r.at("name"), r.at("type")})
		failing := a.fetch(q).at("jobs.0.id")
		a.nack(failing).is(200)
		j := a.run(q, "alarm", "1")
		require.Equal(t, "false", fmt.Sprint(strings.Contains(j.body, "callback_type")))
		r = a.get("/ojs/v1/workflows/" + r.at("id")).is(200)
		require.Equal(t, []string{"completed", "1", "failed", "discarded"}, []string{r.at("state"), r.at("metadata.failed_count"), r.at("steps.0.state"), r.at("steps.0.job_state")})
	})

	t.Run("AdminUIBuilder", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		job := `{"type":"a","args":[],"options":{"queue":"` + q + `"}}`
		require.Equal(t, "group", a.workflow(`{"type":"group","tasks":[`+job+`]}`).at("type"))
		r := a.workflow(`{"type":"batch","tasks":[` + job + `],"on_complete":` + job + `}`)
		require.True(t, r.has("callbacks.on_complete"))
	})
}

func TestWorkflowEndpoints(t *testing.T) {
	t.Parallel()
	a := setup(t)
	group := func(q, name string) string {
		return `{"type":"group","name":"` + name + `","options":{"queue":"` + q + `","retry":{"max_attempts":1}},"jobs":[{"type":"a","args":[]},{"type":"b","args":[]}]}`
	}

	t.Run("Cancel", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		id := a.workflow(group(q, "c")).at("id")
		active := a.fetch(q).at("jobs.0.id")
		r := a.del("/ojs/v1/workflows/" + id).is(200).shownTwice()
		require.Equal(t, []string{"cancelled", "1", "1", "0", "active", "cancelled"}, []string{
			r.at("state"), r.at("steps_cancelled"), r.at("cancelled_steps"), r.at("steps_already_completed"), r.at("steps.0.state"), r.at("steps.1.state"),
		})
		require.Equal(t, r.at("completed_at"), r.at("cancelled_at"))
		a.ack(active).is(200)
		for _, again := range []reply{a.del("/ojs/v1/workflows/" + id), a.post("/ojs/v1/workflows/"+id+"/cancel", "")} {
			again.fails(409, "conflict", "invalid_state_transition")
			require.Equal(t, "cancelled", again.at("error.details.current_state"))
		}
		id = a.workflow(group(q, "c")).at("id")
		active = a.fetch(q).at("jobs.0.id")
		require.Equal(t, "2", a.post("/ojs/v1/workflows/job_"+id+"/cancel?force=true", "").is(200).at("steps_cancelled"))
		require.Equal(t, "cancelled", a.job(active).at("job.state"))
		a.del("/ojs/v1/workflows/"+id+"?force=maybe").fails(400, "invalid_request", "invalid_request")
	})

	t.Run("Failures", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		r := a.workflow(`{"type":"chain","options":{"queue":"` + q + `","retry":{"max_attempts":1}},"steps":[{"type":"a","args":[]},{"id":"g","type":"group","jobs":[{"id":"x","type":"b","args":[]}]},{"type":"c","args":[]}]}`)
		a.run(q, "a", "1")
		failing := a.fetch(q).at("jobs.0.id")
		a.post("/ojs/v1/workers/nack", `{"job_id":"`+failing+`","error":{"code":"no_disk","message":"The disk is full."}}`).is(200)
		r = a.get("/ojs/v1/workflows/" + r.at("id")).is(200)
		require.Equal(t, []string{"failed", "1", `["` + failing + `"]`, "cancelled"}, []string{r.at("state"), r.at("metadata.failed_step_index"), r.at("metadata.failed_job_ids"), r.at("steps.2.state")})
		require.JSONEq(t, `[{"step_id":"g.x","job_id":"`+failing+`","code":"no_disk","message":"The disk is full.","attempt":1}]`, r.at("metadata.errors"))
		require.Equal(t, "no_disk", r.at("steps.1.workflow.steps.0.error.code"))
	})

	t.Run("List", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		name := queue()
		var ids []string
		for range 3 {
			ids = append(ids, a.workflow(group(name, name)).at("id"))
		}
		a.del("/ojs/v1/workflows/" + ids[0]).is(200)
		r := a.get("/ojs/v1/workflows?name=" + name).is(200)
		require.Equal(t, []string{ids[2], ids[1], ids[0]}, r.list("workflows", "id"))
		require.Equal(t, []string{"running", "running", "cancelled"}, r.list("workflows", "state"))
		require.Equal(t, []string{"active", "active", "cancelled"}, r.list("items", "state"))
		require.Equal(t, []string{"3", "3", "1", "50", "2", "2"}, []string{r.at("total"), r.at("pagination.total"), r.at("pagination.page"), r.at("pagination.per_page"), r.at("workflows.0.step_count"), r.at("workflows.0.steps_total")})
		for _, absent := range []string{"steps", "jobs", "callbacks"} {
			require.False(t, r.has("workflows.0."+absent))
		}
		require.Equal(t, ids[1:2], a.get("/ojs/v1/workflows?state=active&page=2&per_page=1&name="+name).list("items", "id"))
		require.Equal(t, ids[:1], a.get("/ojs/v1/workflows?state=cancelled&name="+name).list("workflows", "id"))
		require.Equal(t, "[]", a.get("/ojs/v1/workflows?state=pending").at("workflows"))
		require.Equal(t, "[]", a.get("/ojs/v1/workflows?type=chain&name="+name).at("items"))
		first := a.get("/ojs/v1/workflows?limit=2&name=" + name)
		require.Equal(t, "true", first.at("pagination.has_more"))
		require.Equal(t, ids[:1], a.get("/ojs/v1/workflows?limit=2&name="+name+"&cursor="+first.at("pagination.next_cursor")).list("workflows", "id"))
		for _, wrong := range []string{"state=lost", "limit=x", "cursor=x", "name=%00"} {
			require.Equal(t, 400, a.get("/ojs/v1/workflows?"+wrong).status, wrong)
		}
	})

	t.Run("Refusals", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		r := a.post("/ojs/v1/workflows", `{"type":"group","jobs":[{"type":"ok","args":[],"queue":"`+q+`"},{"type":"BAD","args":[]}]}`).fails(400, "invalid_payload", "invalid_job_type")
		require.Equal(t, "$.jobs[1].type", r.at("error.details.validation_errors.0.path"))
		require.Equal(t, "[]", a.fetch(q).at("jobs"), "nothing is stored")
		a.post("/ojs/v1/workflows", `{"type":"saga","steps":[]}`).fails(422, "unsupported", "unsupported")
		a.post("/ojs/v1/workflows", `{"type":"group","jobs":[{"type":"a","args":[],"retry":{"max_attempts":-1}}]}`).fails(422, "validation_error", "validation_error")
		for _, id := range []string{newID(), "x", "wf_x"} {
			for _, missing := range []reply{a.get("/ojs/v1/workflows/" + id), a.get("/ojs/v1/workflows/" + id + "/progress"), a.del("/ojs/v1/workflows/" + id)} {
				missing.fails(404, "not_found", "not_found")
				require.Equal(t, "workflow", missing.at("error.details.resource_type"))
			}
		}
		id := newID()
		body := `{"type":"group","id":"wf_` + id + `","jobs":[{"type":"a","args":[],"queue":"` + q + `"}]}`
		require.Equal(t, id, a.workflow(body).at("id"))
		a.post("/ojs/v1/workflows", body).fails(409, "duplicate", "duplicate_job")
	})

	t.Run("Idempotency", func(t *testing.T) {
		t.Parallel()
		a, q := a.in(t), queue()
		key := newID()
		first := a.post("/ojs/v1/workflows", group(q, "i"), "Idempotency-Key: "+key).is(201).shownTwice()
		require.Equal(t, "/ojs/v1/workflows/"+first.at("id"), first.header.Get("Location"))
		a.run(q, "a", "1")
		again := a.post("/ojs/v1/workflows", group(q, "i"), "Idempotency-Key: "+key).is(201)
		require.Equal(t, first.body, again.body)
		require.Equal(t, []string{"true", first.header.Get("Location")}, []string{again.header.Get("Idempotent-Replayed"), again.header.Get("Location")})
		require.Equal(t, "1", a.get("/ojs/v1/workflows?name=i").at("total"))
		a.post("/ojs/v1/workflows", group(q, "other"), "Idempotency-Key: "+key).fails(409, "conflict", "idempotency_key_conflict")
	})
}

// TestWorkflowDepthIsASetting also shows a large workflow, whose answer is streamed.
func TestWorkflowDepthIsASetting(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Workflows.MaxDepth = 1 })
	job := `{"type":"a","args":[]}`
	a.post("/ojs/v1/workflows", `{"type":"group","jobs":[{"type":"group","jobs":[`+job+`]}]}`).is(400)
	r := a.workflow(`{"type":"group","jobs":[` + strings.Repeat(job+",", 1999) + job + `]}`)
	require.Empty(t, r.header.Get("Content-Length"))
	require.Equal(t, []string{"2000", "2000", "2000"}, []string{r.at("steps.#"), r.at("jobs.#"), r.at("workflow.steps.#")})
}
