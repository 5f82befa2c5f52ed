package e2e_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stored is a digest of what calls that change many things could change.
func (a *node) stored() string {
	a.t.Helper()
	return a.one(`SELECT md5(string_agg(r.line, E'\n' ORDER BY r.line)) FROM (
		SELECT 'job ' || j AS line FROM ojs.jobs j UNION ALL SELECT 'done ' || d FROM ojs.jobs_done d UNION ALL SELECT 'queue ' || q FROM ojs.queues q
		UNION ALL SELECT 'cron ' || c FROM ojs.crons c UNION ALL SELECT 'workflow ' || w FROM ojs.workflows w
		UNION ALL SELECT 'events ' || count(*) FROM ojs.events) r`)
}

// TestUnknownNames covers docs/reference/http.md, Unknown names: calls that change many things. The goldens have each route with an
// unknown parameter and an unknown member.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.deadLetter("q", "a.b", `{"code":"x"}`)
	a.jobIn("completed")
	waiting := a.jobIn("available")
	q := a.job(waiting).at("job.queue")
	before := a.stored()
	for _, call := range []struct{ method, path, body, field, nearest string }{
		{"DELETE", "/dead-letter?confirm=true&job_type=x", ``, "job_type", "type"},
		{"DELETE", "/admin/dead-letter?confirm=true&queu=x", ``, "queu", "queue"},
		{"DELETE", "/dead-letter?confirm=true&older_than=1d&olderthan=2d", ``, "olderthan", "older_than"},
		{"DELETE", "/dead-letter", `{"filter":{"queu":"x"},"confirm":true}`, "filter.queu", "queue"},
		{"DELETE", "/dead-letter", `{"queue":"q","confirm":true,"dry_runn":true}`, "dry_runn", ""},
		{"DELETE", "/dead-letter", `{"filter":{"queue":"q"},"confirm":true,"limit":1}`, "limit", ""},
		{"POST", "/dead-letter/purge?tpye=x", ``, "tpye", "type"},
		{"POST", "/dead-letter/purge", `{"type":"x"}`, "type", ""},
		{"POST", "/dead-letter/retry?type=x", `{"confirm":true}`, "type", ""},
		{"POST", "/queues/" + q + "/purge", `{"states":["available"],"confirm":true,"olderthan":"30d"}`, "olderthan", "older_than"},
		{"POST", "/queues/" + q + "/purge?dry_run=true", `{"states":["available"],"confirm":true}`, "dry_run", ""},
		{"DELETE", "/admin/queues/" + q + "/jobs", `{"states":["available"],"confirm":true,"type":"t"}`, "type", ""},
		{"POST", "/jobs/bulk/cancel", `{"job_ids":["` + waiting + `"],"dryrun":true}`, "dryrun", "dry_run"},
		{"POST", "/admin/jobs/bulk/cancel", `{"filter":{"queue":"` + q + `"},"confirm":true,"dryrun":true}`, "dryrun", "dry_run"},
		{"DELETE", "/queues/" + q + "?stategy=discard", ``, "stategy", "strategy"},
		{"DELETE", "/queues/" + q, `{"strategy":"discard","target":"x"}`, "target", "target_queue"},
		{"POST", "/queues/" + q + "/pause", `{"resumed_by":"x"}`, "resumed_by", ""},
		{"PUT", "/queues/" + q + "/config", `{"concurency":1}`, "concurency", "concurrency"},
		{"PUT", "/queues/" + q + "/config", `{"backpressure":{"maxdepth":1}}`, "backpressure.maxdepth", "max_depth"},
		{"POST", "/cron", `{"name":"n","expression":"@daily","type":"t","enable":true}`, "enable", "enabled"},
		{"POST", "/workflows", `{"type":"group","jobs":[{"type":"t","args":[]}],"calbacks":{}}`, "calbacks", "callbacks"},
		{"GET", "/admin/jobs?status=available", ``, "status", "state"},
		{"GET", "/jobs?filter=x", ``, "filter", ""},
		{"GET", "/admin/jobs?state=available&state=completed&limit=5&limit=6", ``, "limit", "twice"},
		{"DELETE", "/dead-letter?confirm=true&queue=%zz", ``, "query", "cannot be read"},
		{"DELETE", "/dead-letter?confirm=true;queue=x", ``, "query", "cannot be read"},
	} {
		r := a.do(call.method, "/ojs/v1"+call.path, strings.NewReader(call.body)).unknown(call.field)
		switch {
		case call.nearest == "twice" || call.field == "query":
			require.Contains(t, r.at("error.message"), call.nearest)
		case call.nearest != "":
			require.Contains(t, r.at("error.message"), "the nearest known name is '"+call.nearest+"'", r.body)
		}
	}
	require.Equal(t, before, a.stored())

	// These may be sent.
	a.get("/healthz?x=1").is(200)
	a.get("/ojs/v1/health?x=1").is(200)
	a.get("/metrics?x=1").is(200)
	a.get("/ojs/manifest?x=1").is(200)
	a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","x":1}`).is(200)
	require.Equal(t, "1", a.post("/ojs/v1/jobs", `{"type":"t","args":[],"x":1,"queue":"`+queue()+`"}`).is(201).at("job.x"))
	a.get("/ojs/v1/jobs?state=available&state=completed&queue=&limit=5&limit=5").is(200)
	cron := a.post("/ojs/v1/cron", `{"name":"n","expression":"@daily","type":"t","queue":"`+queue()+`"}`).is(201).at("cron_job")
	a.put("/ojs/v1/cron/n", cron).is(200)
}

// TestDryRun covers docs/reference/http.md, Dry run: the answer has the numbers that the same call has without dry_run, and nothing is
// changed.
func TestDryRun(t *testing.T) {
	t.Parallel()
	a := setup(t)
	dead := []string{a.deadLetter("d", "a.b", `{"code":"x"}`), a.deadLetter("d", "a.c", `{"code":"y"}`)}
	a.deadLetter("e", "a.b", `{"code":"x"}`)
	q, moved := queue(), queue()
	one, two := a.push(`"type":"t","args":[],"queue":"%s"`, q), a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+q+`","scheduled_at":"2099-01-01T00:00:00Z"}`).is(201)
	a.pushMany(t, moved, 12)
	for _, call := range []struct {
		name, method, path, body, dryBody string
		numbers                           []string
		sample                            []string
		items                             int
	}{
		{"RetryDeadLetters", "POST", "/dead-letter/retry", `{"filter":{"type":"a.c"},"confirm":true}`, `{"filter":{"type":"a.c"},"dry_run":true}`, []string{"matched", "succeeded", "retried", "failed"}, dead[1:], 0},
		{"PurgeByQuery", "DELETE", "/dead-letter?queue=d&confirm=true", ``, ``, []string{"deleted", "purged_count"}, dead[:1], 0},
		{"PurgeByBody", "DELETE", "/admin/dead-letter", `{"queue":"e","confirm":true}`, `{"queue":"e","dry_run":true}`, []string{"deleted", "purged_count"}, nil, 0},
		{"CancelIDs", "POST", "/jobs/bulk/cancel", `{"job_ids":["` + one + `","` + newID() + `"]}`, `{"job_ids":["` + one + `","` + newID() + `"],"dry_run":true,"idempotency_key":"k"}`, []string{"total", "cancelled", "skipped"}, nil, 2},
		{"CancelConfirmed", "POST", "/admin/jobs/bulk/cancel", `{"queue":"` + q + `","state":"available","confirm":true}`, `{"queue":"` + q + `","state":"available","dry_run":true}`, []string{"matched", "succeeded", "cancelled"}, []string{two}, 0},
		{"PurgeQueue", "POST", "/queues/" + q + "/purge", `{"states":["scheduled","cancelled"],"confirm":true}`, `{"states":["scheduled","cancelled"],"dry_run":true}`, []string{"deleted", "purged_count"}, nil, 0},
		{"PurgeMany", "DELETE", "/admin/queues/" + moved + "/jobs", `{"states":["available"],"confirm":true,"older_than":"2099-01-01T00:00:00Z"}`, `{"states":["available"],"dry_run":true,"older_than":"2099-01-01T00:00:00Z"}`, []string{"purged_count"}, nil, 0},
	} {
		before := a.stored()
		path := strings.Replace(call.path, "confirm=true", "dry_run=true", 1)
		dry := a.do(call.method, "/ojs/v1"+path, strings.NewReader(call.dryBody))
		require.Less(t, dry.status, 300, "%s: %s", call.name, dry.body)
		require.Equal(t, before, a.stored(), call.name)
		require.Equal(t, "true", dry.at("dry_run"), call.name)
		if call.items == 0 {
			matches, err := strconv.Atoi(dry.at(call.numbers[0]))
			require.NoError(t, err)
			require.Equal(t, min(10, matches), dry.count("sample"), call.name)
			require.Positive(t, matches)
		} else {
			require.Equal(t, call.items, dry.count("items"))
		}
		for _, id := range call.sample {
			require.Contains(t, dry.texts("sample"), id, call.name)
		}
		done := a.do(call.method, "/ojs/v1"+call.path, strings.NewReader(call.body))
		require.Equal(t, dry.status, done.status, "%s: %s", call.name, done.body)
		require.False(t, done.has("dry_run"))
		require.False(t, done.has("sample"))
		for _, name := range call.numbers {
			require.Equal(t, done.at(name), dry.at(name), "%s: %s", call.name, name)
		}
		require.NotEqual(t, before, a.stored(), call.name)
	}

	t.Run("DeletionOfAQueue", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, target := queue(), queue()
		a.pushMany(t, q, 2)
		active := a.fetch(q).at("jobs.0.id")
		before := a.job(active).body
		for _, path := range []string{"?strategy=discard&dry_run=true", "?strategy=move&target_queue=" + target + "&dry_run=true"} {
			r := a.del("/ojs/v1/queues/" + q + path).is(http.StatusAccepted)
			require.Equal(t, []string{"1", "draining", "true"}, []string{r.at("jobs_affected"), r.at("state"), r.at("dry_run")})
		}
		a.do("DELETE", "/ojs/v1/queues/"+q, strings.NewReader(`{"dry_run":true}`)).fails(409, "conflict", "invalid_state_transition")
		a.get("/ojs/v1/queues/" + target).is(404)
		require.Equal(t, before, a.job(active).body)
		a.pushMany(t, q, 1) // it still takes jobs
	})
}
