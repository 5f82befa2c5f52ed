package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const daily = `"expression":"0 9 * * *","type":"report.run"`

// TestCronEndpoints covers docs/reference/scheduling.md, Cron fields and Cron endpoints.
func TestCronEndpoints(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("OneObjectWithEverySpelling", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, body := range []string{
			`{"name":"%s","expression":"@daily","type":"report.run","args":[1.50],"meta":{"b":1,"a":2},"options":{"queue":"reports","priority":"HIGH"},"timezone":"Asia/Tokyo"}`,
			`{"name":"%s","cron":"@daily","job_template":{"type":"report.run","args":[1.50],"meta":{"b":1,"a":2},"options":{"queue":"reports","priority":"HIGH"}},"timezone":"Asia/Tokyo"}`,
			`{"name":"%s","schedule":"@daily","type":"report.run","args":[1.50],"meta":{"b":1,"a":2},"options":{"priority":"HIGH","queue":"reports"},"timezone":"Asia/Tokyo","id":"x","status":"paused","run_count":7,"next_run_at":"x"}`,
		} {
			name := queue()
			r := a.post("/ojs/v1/cron", fmt.Sprintf(body, name)).is(201)
			require.Equal(t, r.at("cron"), r.at("cron_job"))
			for path, want := range map[string]string{
				"id": name, "name": name, "expression": "@daily", "cron": "@daily", "schedule": "@daily", "timezone": "Asia/Tokyo", "type": "report.run", "args": "[1.50]",
				"meta": `{"b":1,"a":2}`, "queue": "reports", "job_template.type": "report.run", "job_template.args": "[1.50]", "job_template.meta": `{"b":1,"a":2}`,
				"options.priority": "HIGH", "job_template.options.queue": "reports", "overlap_policy": "skip", "enabled": "true", "status": "active",
				"description": "null", "last_run_at": "null", "run_count": "0",
			} {
				require.Equal(t, want, r.at("cron."+path), path)
			}
			require.Regexp(t, `T15:00:00\.000Z$`, r.at("cron.next_run_at"))
			require.Equal(t, r.at("cron.created_at"), r.at("cron.updated_at"))
			got := a.get("/ojs/v1/crons/" + name).is(200)
			require.Equal(t, r.at("cron"), got.at("cron"))
			require.Equal(t, r.at("cron"), got.at("cron_job"))
			require.Equal(t, "@daily", got.at("schedule"))
			require.Equal(t, "report.run", got.at("job_template.type"))
		}
	})

	t.Run("RegisteringAgainKeepsTheNextRun", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		name := queue()
		first := a.put("/ojs/v1/cron/"+name, `{"expression":"@every 1h","type":"a"}`).is(201)
		again := a.post("/ojs/v1/cron", `{"name":"`+name+`","expression":"@every 1h","type":"b","description":"d"}`).is(200)
		require.Equal(t, first.at("cron.next_run_at"), again.at("cron.next_run_at"))
		require.Equal(t, first.at("cron.created_at"), again.at("cron.created_at"))
		require.Equal(t, "b", again.at("cron.type"))
		require.Equal(t, "d", again.at("cron.description"))
		other := a.put("/ojs/v1/cron/"+name, `{"name":"`+name+`","expression":"@every 2h","type":"b"}`).is(200)
		require.NotEqual(t, first.at("cron.next_run_at"), other.at("cron.next_run_at"))
		require.Equal(t, "null", other.at("cron.description"), "replaced as a whole")
	})

	t.Run("Patch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		path := "/ojs/v1/cron/" + queue()
		a.put(path, `{`+daily+`,"args":[1],"meta":{"m":1},"options":{"queue":"q","priority":5,"tags":["x"]}}`).is(201)
		r := a.patch(path, `{"options":{"priority":7,"tags":null}}`).is(200)
		require.Equal(t, `{"queue":"q","priority":7}`, r.at("cron.options"))
		r = a.patch(path, `{"schedule":"@hourly","job_template":{"type":"other","options":{"queue":"r"}},"enabled":false}`).is(200)
		require.Equal(t, `{"queue":"r","priority":7}`, r.at("cron.options"))
		require.Equal(t, "r", r.at("cron.queue"))
		require.Equal(t, "other", r.at("cron.type"))
		require.Equal(t, "[1]", r.at("cron.args"))
		require.Equal(t, `{"m":1}`, r.at("cron.meta"))
		require.Equal(t, "@hourly", r.at("cron.expression"))
		require.Equal(t, "paused", r.at("cron.status"))
		require.Equal(t, "null", r.at("cron.next_run_at"))
		require.Equal(t, "other", a.patch(path, `{}`).is(200).at("cron.type"), "nothing changes")
		require.Equal(t, "d", a.patch(path, `{"description":"d"}`).is(200).at("cron.description"))
		require.Equal(t, "d", a.patch(path, `{"enabled":false}`).is(200).at("cron.description"))
		require.Equal(t, "null", a.patch(path, `{"description":null}`).is(200).at("cron.description"))
		a.patch(path, `{"expression":"bad"}`).invalid("expression")
		a.patch(path, `{"options":{"priority":1000}}`).invalid("priority")
		a.patch(path, `{"name":"another"}`).invalid("name")
		require.Equal(t, "@hourly", a.get(path).at("expression"))
	})

	t.Run("PauseResumeDelete", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		name := queue()
		path := "/ojs/v1/cron/" + name
		created := a.put(path, `{`+daily+`}`).is(201)
		for range 2 {
			r := a.post(path+"/pause", "").is(200)
			require.Equal(t, []string{name, "true", "false", "null"}, []string{r.at("name"), r.at("paused"), r.at("cron.enabled"), r.at("cron_job.next_run_at")})
		}
		for range 2 {
			r := a.post(path+"/resume", "{}").is(200)
			require.Equal(t, []string{"false", "active", created.at("cron.next_run_at")}, []string{r.at("paused"), r.at("cron.status"), r.at("cron.next_run_at")})
		}
		r := a.del(path).is(200)
		require.Equal(t, []string{"true", name, name, name}, []string{r.at("deleted"), r.at("name"), r.at("cron.name"), r.at("cron_job.name")})
		for _, r := range []reply{
			a.get(path), a.del(path), a.patch(path, `{}`), a.post(path+"/pause", ""), a.post(path+"/resume", ""), a.post(path+"/trigger", ""), a.get(path + "/history"),
			a.get("/ojs/v1/cron/NO_NAME"), a.get("/ojs/v1/cron/a%00b"), a.patch("/ojs/v1/cron/%ff", `{}`),
		} {
			require.Equal(t, "cron", r.fails(404, "not_found", "not_found").at("error.details.resource_type"))
		}
	})

	t.Run("Trigger", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		path := "/ojs/v1/crons/" + q
		before := a.put(path, `{`+daily+`,"options":{"queue":"`+q+`"}}`).is(201)
		a.post(path+"/pause", "").is(200)
		for range 2 { // overlap does not matter
			r := a.post(path+"/trigger", "").is(201)
			require.Equal(t, q, r.at("cron_name"))
			require.Equal(t, r.at("job_id"), r.at("job.id"))
			require.Equal(t, "/ojs/v1/jobs/"+r.at("job_id"), r.header.Get("Location"))
			require.Equal(t, "available", r.at("job.state"))
			require.Equal(t, q, r.at("job.meta.cron_name"))
		}
		a.post(path+"/resume", "").is(200)
		after := a.get(path)
		require.Equal(t, "2", after.at("run_count"))
		require.NotEqual(t, "null", after.at("last_run_at"))
		require.Equal(t, before.at("cron.next_run_at"), after.at("next_run_at"))
		a.ack(a.fetch(q).at("jobs.0.id")).is(200)
		h := a.get(path + "/history?limit=5").is(200)
		require.Equal(t, []string{"manual", "manual"}, h.list("executions", "outcome"))
		require.ElementsMatch(t, []string{"available", "completed"}, h.list("executions", "state"))
		require.Equal(t, "2", h.at("pagination.total"))
		require.Equal(t, 1, a.get(path+"/history?limit=1&offset=1").is(200).count("executions"))
		require.Equal(t, "200", a.get(path+"/history?limit=1000").is(200).at("pagination.limit"))
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for body, field := range map[string]string{
			`{` + daily + `}`: "name", `{"name":"Big",` + daily + `}`: "name", `{"name":5,` + daily + `}`: "name", `{"name":"a\u0000",` + daily + `}`: "name",
			`{"name":"` + strings.Repeat("a", 256) + `",` + daily + `}`: "name", `{"name":"-a",` + daily + `}`: "name",
			`{"name":"x","type":"t"}`: "expression", `{"name":"x","expression":5,"type":"t"}`: "expression", `{"name":"x","cron":"* * *","type":"t"}`: "expression",
			`{"name":"x","expression":"0 0 30 2 *","type":"t"}`: "expression", `{"name":"x","expression":"` + strings.Repeat("*", 10_000) + `","type":"t"}`: "expression",
			`{"name":"x",` + daily + `,"timezone":"EST"}`: "timezone", `{"name":"x",` + daily + `,"timezone":5}`: "timezone", `{"name":"x",` + daily + `,"timezone":"Europe/\u0000"}`: "timezone",
			`{"name":"x",` + daily + `,"overlap_policy":"both"}`: "overlap_policy", `{"name":"x",` + daily + `,"overlap_policy":1}`: "overlap_policy",
			`{"name":"x",` + daily + `,"args":{}}`: "args", `{"name":"x",` + daily + `,"meta":[]}`: "meta", `{"name":"x",` + daily + `,"options":[]}`: "options",
			`{"name":"x",` + daily + `,"enabled":"yes"}`: "enabled", `{"name":"x",` + daily + `,"description":"\u0000"}`: "description", `{"name":"x","expression":"@daily"}`: "type",
			`{"name":"x","expression":"@daily","type":5}`: "type", `{"name":"x","expression":"@daily","type":"No Type"}`: "type", `{"name":"x","expression":"@daily","job_template":"t"}`: "job_template",
			`{"name":"x",` + daily + `,"options":{"queue":"NO"}}`: "queue", `{"name":"x",` + daily + `,"options":{"scheduled_at":"tomorrow"}}`: "scheduled_at", ``: "body", `[]`: "body",
		} {
			r := a.post("/ojs/v1/cron", body).invalid(field)
			if field == "expression" {
				require.Equal(t, "invalid_cron_expression", r.at("error.type"), body)
				require.Contains(t, r.at("error.message"), "cron expression", body)
			}
		}
		r := a.post("/ojs/v1/cron", `{"name":"x",`+daily+`,"options":{"retry":{"max_attempts":-1}}}`).fails(422, "validation_error", "validation_error")
		require.Equal(t, "retry.max_attempts", r.at("error.details.field"))
		a.get("/ojs/v1/cron/x").is(404)
		a.get("/ojs/v1/cron?enabled=maybe").is(400)
		a.get("/ojs/v1/cron?limit=0").is(400)
	})
}

func TestCronList(t *testing.T) {
	t.Parallel()
	a := setup(t)
	require.Equal(t, "[]", a.get("/ojs/v1/cron").is(200).at("crons"))
	for _, name := range []string{"b", "a-1", "a.1", "c"} {
		a.put("/ojs/v1/cron/"+name, `{`+daily+`,"options":{"queue":"`+name[:1]+`"}}`).is(201)
	}
	a.post("/ojs/v1/cron/b/pause", "").is(200)
	r := a.get("/ojs/v1/cron").is(200)
	require.Equal(t, []string{"a-1", "a.1", "b", "c"}, r.list("crons", "name"))
	require.Equal(t, r.at("crons"), r.at("cron_jobs"))
	require.Equal(t, []string{"4", "4", "1000", "false"}, []string{r.at("count"), r.at("total"), r.at("pagination.limit"), r.at("pagination.has_more")})
	require.False(t, r.has("items"))
	r = a.get("/ojs/v1/crons?page=2&per_page=3").is(200)
	require.Equal(t, []string{"c"}, r.list("items", "id"))
	require.Equal(t, []string{"1", "4", "2"}, []string{r.at("count"), r.at("total"), r.at("pagination.page")})
	require.Equal(t, []string{"b"}, a.get("/ojs/v1/cron?enabled=false").is(200).list("crons", "name"))
	require.Equal(t, []string{"a-1", "a.1"}, a.get("/ojs/v1/cron?enabled=true&queue=a&limit=5").is(200).list("crons", "name"))
	require.Equal(t, "true", a.get("/ojs/manifest").at("capabilities.cron_jobs"))
}

func TestCronFires(t *testing.T) {
	t.Parallel()

	t.Run("EverySecondInOrder", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		a.post("/ojs/v1/cron", `{"name":"tick","expression":"@every 1s","overlap_policy":"allow","type":"a.b","options":{"queue":"cq"}}`).is(201)
		eventually(t, func() bool { return a.get("/ojs/v1/cron/tick").at("run_count") >= "2" })
		h := a.get("/ojs/v1/cron/tick/history").is(200)
		require.Equal(t, "fired", h.at("executions.0.outcome"))
		require.Greater(t, h.at("executions.0.scheduled_at"), h.at("executions.1.scheduled_at"), "newest first")
		a.publishedAll()
		e := a.get("/ojs/v1/events?types=cron.triggered").is(200)
		require.Equal(t, []string{"ojs://ojs/cron", "tick", "tick", "@every 1s", "a.b", "cq"},
			[]string{e.at("events.0.source"), e.at("events.0.subject"), e.at("events.0.data.cron_name"), e.at("events.0.data.cron_expr"), e.at("events.0.data.job_type"), e.at("events.0.data.queue")})
		job := a.job(e.at("events.0.data.job_id"))
		require.Equal(t, e.at("events.0.data.scheduled_at"), job.at("job.meta.cron_triggered_at"))
	})

	t.Run("AnotherNodeTakesOver", func(t *testing.T) {
		t.Parallel()
		a, b := nodes(t, rarePolls)
		// It is registered after b has looked, which looks again in an hour.
		a.post("/ojs/v1/cron", `{"name":"once","expression":"@every 3s","type":"a.b","options":{"queue":"cq"}}`).is(201)
		require.NoError(t, a.app.Stop())
		eventually(t, func() bool { return b.fetch("cq").count("jobs") == 1 })
		require.Equal(t, "true", b.one(`SELECT bool_and(e.time >= r.scheduled_at)::text FROM ojs.cron_runs r JOIN ojs.events e ON e.type = 'cron.triggered'`), "not before its time")
	})
}

// TestCronOptionsAtTheRoot covers docs/reference/jobs.md, Accepted names: every option is read from options, else from the root.
func TestCronOptionsAtTheRoot(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.post("/ojs/v1/cron", `{"name":"bad","type":"a.b","cron":"@daily","retry":{"max_attempts":-1}}`).is(422)
	a.get("/ojs/v1/cron/bad").is(404)

	r := a.post("/ojs/v1/cron", `{"name":"c","type":"a.b","cron":"@daily","priority":5,"tags":["x"],"queue":"q","options":{"priority":7}}`).is(201)
	require.Equal(t, "7", r.at("cron.options.priority"), "options win")
	require.Equal(t, `["x"]`, r.at("cron.options.tags"))
	job := a.post("/ojs/v1/cron/c/trigger", "").is(201)
	require.Equal(t, "7", job.at("job.priority"))
	require.Equal(t, `["x"]`, job.at("job.tags"))
	require.Equal(t, "q", job.at("job.queue"))

	r = a.patch("/ojs/v1/cron/c", `{"max_attempts":9,"tags":null}`).is(200)
	require.Equal(t, "9", r.at("cron.options.max_attempts"))
	require.Equal(t, "7", r.at("cron.options.priority"))
	require.False(t, r.has("cron.options.tags"))
}
