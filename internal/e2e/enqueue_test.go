package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPush covers docs/reference/jobs.md, Attributes; docs/reference/http.md, Enqueue.
func TestPush(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("FillsInDefaults", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).post("/ojs/v1/jobs", `{"type":"t","args":[]}`, "OJS-Version: 1.0").is(201)
		id, created := r.at("job.id"), r.at("job.created_at")
		require.Regexp(t, uuidV7, id)
		require.Regexp(t, serverTime, created)
		require.Equal(t, fmt.Sprintf(`{"job":{"specversion":"1.0","id":"%s","type":"t","queue":"default","args":[],"meta":{},"priority":0,"state":"available","attempt":0,"max_attempts":3,"created_at":"%s","enqueued_at":"%s"}}`, id, created, created), r.body)
		require.Equal(t, "/ojs/v1/jobs/"+id, r.header.Get("Location"))
	})

	t.Run("ReturnsWholeEnvelope", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		body := `{"specversion":"1.0.0-rc.1","type":"a-b.c_d","queue":"x.y-1","args":[1,"two",null,true,{"k":[]}],"meta":{"tenant":"t-9"},"priority":-100,
			"schema":"urn:example:v1","timeout_ms":45000,"visibility_timeout_ms":1000,"scheduled_at":"2099-01-02T03:04:05.123456789+05:30","expires_at":"2099-01-03T00:00:00Z",
			"retry":{"max_attempts":4,"x":1},"tags":["b","a","b"],"rate_limit":{"key":"k"},"x_region":"eu","version":7,"ext_budget":{"a":1.0}}`
		r := a.post("/ojs/v1/jobs", body, "OJS-Version: 1.0").is(201)
		for member, want := range map[string]string{
			"specversion": "1.0", "type": "a-b.c_d", "queue": "x.y-1", "args": `[1,"two",null,true,{"k":[]}]`, "meta": `{"tenant":"t-9"}`, "priority": "-100",
			"schema": "urn:example:v1", "timeout_ms": "45000", "visibility_timeout_ms": "1000", "scheduled_at": "2099-01-02T03:04:05.123456789+05:30",
			"expires_at": "2099-01-03T00:00:00Z", "retry": `{"max_attempts":4,"x":1}`, "tags": `["b","a"]`, "rate_limit": `{"key":"k"}`,
			"x_region": "eu", "version": "7", "ext_budget": `{"a":1.0}`, "max_attempts": "4", "state": "scheduled", "attempt": "0",
		} {
			require.Equal(t, want, r.at("job."+member), member)
		}
		for _, absent := range []string{"enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at", "retry_delay_ms", "error", "errors", "result", "worker_id", "timeout"} {
			require.False(t, r.has("job."+absent), absent)
		}
		require.Equal(t, r.body, a.job(r.at("job.id")).body)
	})

	t.Run("RepeatsFieldsFlatForClientsWithoutVersion", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.post("/ojs/v1/jobs", `{"type":"t","args":[1.0],"x":"y"}`).is(201)
		id := r.at("id")
		for _, r := range []reply{r, a.get("/ojs/v1/jobs/" + id), a.del("/ojs/v1/jobs/" + id)} {
			for _, member := range []string{"id", "type", "state", "args", "x", "created_at"} {
				require.Equal(t, r.at("job."+member), r.at(member))
				require.NotEmpty(t, r.at(member))
			}
		}
		for _, name := range []string{"job", `j\u006fb`} { // the wrapper wins the name
			r = a.post("/ojs/v1/jobs", `{"type":"t","args":[],"`+name+`":{"x":1},"after":2}`).is(201)
			require.Equal(t, `{"x":1}`, r.at("job.job"))
			require.Equal(t, 1, strings.Count(r.body, `"`+name+`":{"x":1}`))
			require.Equal(t, "2", r.at("after"))
			require.Equal(t, "2", a.get("/ojs/v1/jobs/"+r.at("id")).at("job.after"))
		}
		for _, path := range []string{"/ojs/v1/jobs/" + id, "/ojs/v1/jobs?limit=1"} {
			require.False(t, a.get(path, "OJS-Version: 1.0").has("id"))
		}
	})

	t.Run("RefusesBadFields", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, c := range []struct{ body, field, kind string }{
			{`"args":[]`, "type", "invalid_job_type"},
			{`"type":"","args":[]`, "type", "invalid_job_type"},
			{`"type":"A","args":[]`, "type", "invalid_job_type"},
			{`"type":"a.","args":[]`, "type", "invalid_job_type"},
			{`"type":".a","args":[]`, "type", "invalid_job_type"},
			{`"type":"a..b","args":[]`, "type", "invalid_job_type"},
			{`"type":"a.1","args":[]`, "type", "invalid_job_type"},
			{`"type":"a b","args":[]`, "type", "invalid_job_type"},
			{`"type":"a\n","args":[]`, "type", "invalid_job_type"},
			{`"type":1,"args":[]`, "type", "invalid_job_type"},
			{`"type":"t"`, "args", "invalid_args"},
			{`"type":"t","args":{}`, "args", "invalid_args"},
			{`"type":"t","args":"[]"`, "args", "invalid_args"},
			{`"type":"t","args":1`, "args", "invalid_args"},
			{`"type":"t","args":false`, "args", "invalid_args"},
			{`"type":"t","args":[],"queue":""`, "queue", "invalid_queue"},
			{`"type":"t","args":[],"queue":"A"`, "queue", "invalid_queue"},
			{`"type":"t","args":[],"queue":"-a"`, "queue", "invalid_queue"},
			{`"type":"t","args":[],"queue":"a_b"`, "queue", "invalid_queue"},
			{`"type":"t","args":[],"queue":"a\n"`, "queue", "invalid_queue"},
			{`"type":"t","args":[],"queue":1`, "queue", "invalid_queue"},
			{`"type":"t","args":[],"meta":[]`, "meta", "invalid_metadata"},
			{`"type":"t","args":[],"meta":"x"`, "meta", "invalid_metadata"},
			{`"type":"t","args":[],"options":{"metadata":1}`, "metadata", "invalid_metadata"},
			{`"type":"t","args":[],"priority":101`, "priority", "invalid_payload"},
			{`"type":"t","args":[],"priority":-101`, "priority", "invalid_payload"},
			{`"type":"t","args":[],"priority":"HIGHEST"`, "priority", "invalid_payload"},
			{`"type":"t","args":[],"schema":"not absolute"`, "schema", "invalid_payload"},
			{`"type":"t","args":[],"schema":7`, "schema", "invalid_payload"},
			{`"type":"t","args":[],"timeout_ms":-1`, "timeout_ms", "invalid_payload"},
			{`"type":"t","args":[],"timeout":1.5`, "timeout", "invalid_payload"},
			{`"type":"t","args":[],"visibility_timeout":"soon"`, "visibility_timeout", "invalid_payload"},
			{`"type":"t","args":[],"tags":"a"`, "tags", "invalid_payload"},
			{`"type":"t","args":[],"tags":["a",""]`, "tags", "invalid_payload"},
			{`"type":"t","args":[],"tags":[1]`, "tags", "invalid_payload"},
			{`"type":"t","args":[],"rate_limit":1`, "rate_limit", "invalid_payload"},
			{`"type":"t","args":[],"pending":"yes"`, "pending", "invalid_payload"},
			{`"type":"t","args":[],"pending":true,"scheduled_at":"PT1H"`, "scheduled_at", "invalid_payload"},
			{`"type":"t","args":[],"specversion":1`, "specversion", "invalid_payload"},
			{`"type":"t","args":[],"options":[]`, "options", "invalid_payload"},
			{`"type":"t","args":[],"options":"x"`, "options", "invalid_payload"},
		} {
			r := a.post("/ojs/v1/jobs", "{"+c.body+"}").invalid(c.field)
			require.Equal(t, c.kind, r.at("error.type"), c.body)
			require.Contains(t, r.at("error.message"), "'"+c.field+"'")
			require.NotEmpty(t, r.at("error.details.expected"))
			require.Contains(t, r.at("error.details.validation_errors.0.path"), "."+c.field)
		}
		r := a.post("/ojs/v1/jobs", `{"type":"A","queue":"B","priority":1000}`)
		require.Equal(t, []string{"$.type", "$.args", "$.queue", "$.priority"}, r.list("error.details.validation_errors", "path"))
	})

	t.Run("RefusesBadPolicies", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, c := range []struct{ body, word string }{
			{`"retry":{"max_attempts":-1}`, "max_attempts"},
			{`"retry":{"backoff_coefficient":0.5}`, "backoff_coefficient"},
			{`"max_attempts":-1`, "max_attempts"},
			{`"options":{"retry":{"initial_interval":"soon"}}`, "initial_interval"},
		} {
			r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],`+c.body+`}`).fails(422, "validation_error", "validation_error")
			require.Contains(t, r.at("error.message"), c.word)
		}
		for _, version := range []string{"2.0", "1.1", ""} {
			r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"specversion":"`+version+`"}`).fails(422, "unsupported", "unsupported")
			require.Equal(t, version, r.at("error.details.requested"))
		}
	})

	t.Run("DropsWhatOnlyTheServerSets", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).post("/ojs/v1/jobs", `{"type":"t","args":[],"state":"completed","attempt":9,"created_at":"x","enqueued_at":1,"started_at":"x","completed_at":"x","cancelled_at":"x",
			"discarded_at":"x","next_attempt_at":"x","retry_delay_ms":5,"error":{},"errors":[1],"result":1,"worker_id":"w","previous_state":"x","activated_at":"x","parent_results":[],
			"progress":1,"workflow_id":"x","options":{"state":"active","result":2}}`, "OJS-Version: 1.0").is(201)
		require.Equal(t, "available", r.at("job.state"))
		require.Equal(t, "0", r.at("job.attempt"))
		for _, absent := range []string{"started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at", "retry_delay_ms", "error", "errors", "result", "worker_id", "previous_state", "activated_at", "parent_results", "progress", "workflow_id"} {
			require.False(t, r.has("job."+absent), absent)
		}
		require.Regexp(t, serverTime, r.at("job.created_at"))
	})

	t.Run("MaxAttempts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for body, want := range map[string]string{
			`"x":1`:                        "3",
			`"max_attempts":7`:             "7",
			`"options":{"max_attempts":0}`: "0",
			`"retry":{"max_attempts":2},"max_attempts":7`:                              "2",
			`"retry":{},"options":{"max_attempts":5}`:                                  "5",
			`"options":{"retry_policy":{"max_attempts":9}},"retry":{"max_attempts":2}`: "9",
		} {
			require.Equal(t, want, a.post("/ojs/v1/jobs", `{"type":"t","args":[],`+body+`}`).is(201).at("job.max_attempts"), body)
		}
	})
}
