package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestRoutes covers docs/reference/http.md, Routes and Unmatched requests.
func TestRoutes(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("AnswerOnTheirMethod", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		pending, active := a.jobIn("pending"), a.jobIn("active")
		for _, route := range []struct {
			method, path, body string
			status             int
		}{
			{"GET", "/ojs/manifest", "", 200},
			{"GET", "/ojs/v1/health", "", 200},
			{"GET", "/health", "", 200},
			{"GET", "/healthz", "", 200},
			{"GET", "/livez", "", 200},
			{"GET", "/readyz", "", 200},
			{"GET", "/ready", "", 200},
			{"GET", "/ojs/v1/metrics", "", 200},
			{"POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"` + q + `"}`, 201},
			{"GET", "/ojs/v1/jobs", "", 200},
			{"POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"t","args":[]}]}`, 201},
			{"POST", "/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}]}`, 201},
			{"POST", "/ojs/v1/jobs/bulk/cancel", `{"job_ids":["` + newID() + `"]}`, 422},
			{"POST", "/ojs/v1/jobs/bulk/retry", `{"job_ids":["` + newID() + `"]}`, 422},
			{"POST", "/ojs/v1/jobs/bulk/delete", `{"job_ids":["` + newID() + `"]}`, 422},
			{"POST", "/ojs/v1/jobs/" + pending + "/activate", "", 200},
			{"GET", "/ojs/v1/jobs/" + pending, "", 200},
			{"PATCH", "/ojs/v1/jobs/" + newID(), `{"priority":1}`, 404},
			{"PATCH", "/ojs/v1/admin/jobs/" + newID(), `{"priority":1}`, 404},
			{"DELETE", "/ojs/v1/jobs/" + pending, "", 200},
			{"POST", "/ojs/v1/workflows", `{"type":"group","jobs":[{"type":"t","args":[]}]}`, 201},
			{"GET", "/ojs/v1/workflows", "", 200},
			{"GET", "/ojs/v1/workflows/" + newID(), "", 404},
			{"GET", "/ojs/v1/workflows/" + newID() + "/progress", "", 404},
			{"DELETE", "/ojs/v1/workflows/" + newID(), "", 404},
			{"POST", "/ojs/v1/workflows/" + newID() + "/cancel", "", 404},
			{"POST", "/ojs/v1/workers/fetch", `{"queues":["` + q + `"]}`, 200},
			{"POST", "/ojs/v1/workers/ack", `{"job_id":"` + newID() + `"}`, 404},
			{"POST", "/ojs/v1/workers/nack", `{"job_id":"` + newID() + `","error":{}}`, 404},
			{"POST", "/ojs/v1/workers/ack/batch", `{"acks":[{"job_id":"` + newID() + `"}]}`, 200},
			{"POST", "/ojs/v1/workers/nack/batch", `{"nacks":[{"job_id":"` + newID() + `","error":{}}]}`, 200},
			{"POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w"}`, 200},
			{"POST", "/ojs/v1/workers/beat", `{"worker_id":"w"}`, 200},
			{"POST", "/ojs/v1/workers/register", `{"worker_id":"w"}`, 200},
			{"GET", "/ojs/v1/workers", "", 200},
			{"GET", "/ojs/v1/workers/w", "", 200},
			{"GET", "/ojs/v1/workers/w/health", "", 200},
			{"GET", "/ojs/v1/admin/workers", "", 200},
			{"GET", "/ojs/v1/admin/workers/w", "", 200},
			{"POST", "/ojs/v1/admin/workers/directive", `{"directive":"resume"}`, 200},
			{"POST", "/ojs/v1/admin/workers/w/directive", `{"directive":"quiet"}`, 200},
			{"POST", "/ojs/v1/admin/workers/w/terminate", "", 200},
			{"POST", "/ojs/v1/admin/workers/w/quiet", "", 200},
			{"POST", "/ojs/v1/admin/workers/w/resume", "", 200},
			{"DELETE", "/ojs/v1/admin/workers/w", "", 409},
			{"POST", "/ojs/v1/workers/w/deregister", "", 200},
			{"DELETE", "/ojs/v1/workers/w", "", 404},
			{"GET", "/ojs/v1/queues/" + q + "/stats", "", 200},
			{"GET", "/ojs/v1/queues", "", 200},
			{"POST", "/ojs/v1/queues", `{"name":"` + queue() + `"}`, 201},
			{"GET", "/ojs/v1/queues/" + q, "", 200},
			{"DELETE", "/ojs/v1/queues/" + queue(), "", 404},
			{"POST", "/ojs/v1/queues/" + q + "/pause", "", 200},
			{"POST", "/ojs/v1/queues/" + q + "/resume", "", 200},
			{"POST", "/ojs/v1/queues/" + queue() + "/drain", "", 200},
			{"POST", "/ojs/v1/queues/" + q + "/purge", `{"states":["completed"]}`, 200},
			{"GET", "/ojs/v1/queues/_default/config", "", 200},
			{"PUT", "/ojs/v1/queues/" + q + "/config", `{}`, 200},
			{"PUT", "/ojs/v1/admin/queues/" + q + "/config", `{}`, 200},
			{"GET", "/ojs/v1/queues/" + q + "/priority-stats", "", 200},
			{"POST", "/ojs/v1/jobs/" + newID() + "/ack", "", 404},
			{"POST", "/ojs/v1/jobs/" + newID() + "/nack", `{"error":{}}`, 404},
			{"GET", "/ojs/v1/dead-letter", "", 200},
			{"GET", "/ojs/v1/dead-letter/stats", "", 200},
			{"GET", "/ojs/v1/dead-letter/" + newID(), "", 404},
			{"DELETE", "/ojs/v1/dead-letter/" + newID(), "", 404},
			{"DELETE", "/ojs/v1/dead-letter?confirm=true&queue=none", "", 200},
			{"POST", "/ojs/v1/dead-letter/" + newID() + "/retry", "", 404},
			{"POST", "/ojs/v1/dead-letter/retry", `{"filter":{"queue":"none"},"confirm":true}`, 200},
			{"POST", "/ojs/v1/dead-letter/purge?queue=none", "", 200},
			{"GET", "/ojs/v1/admin/dead-letter", "", 200},
			{"GET", "/ojs/v1/admin/dead-letter/stats", "", 200},
			{"DELETE", "/ojs/v1/admin/dead-letter", `{"queue":"none","confirm":true}`, 200},
			{"DELETE", "/ojs/v1/admin/dead-letter/" + newID(), "", 404},
			{"POST", "/ojs/v1/admin/dead-letter/" + newID() + "/retry", "", 404},
			{"POST", "/ojs/v1/admin/dead-letter/retry", `{"queue":"none","confirm":true}`, 200},
			{"POST", "/ojs/v1/admin/jobs/" + newID() + "/retry", "", 404},
			{"GET", "/ojs/v1/admin/jobs", "", 200},
			{"GET", "/ojs/v1/admin/jobs/" + active, "", 200},
			{"POST", "/ojs/v1/admin/jobs/" + newID() + "/cancel", "", 404},
			{"POST", "/ojs/v1/admin/jobs/bulk/cancel", `{"queue":"none","confirm":true}`, 200},
			{"POST", "/ojs/v1/admin/jobs/bulk/retry", `{"queue":"none","confirm":true}`, 200},
			{"POST", "/ojs/v1/admin/jobs/bulk/delete", `{"queue":"none","state":"completed","confirm":true}`, 200},
			{"GET", "/ojs/v1/admin/queues", "", 200},
			{"GET", "/ojs/v1/admin/queues/none", "", 404},
			{"POST", "/ojs/v1/admin/queues/" + q + "/pause", "", 200},
			{"POST", "/ojs/v1/admin/queues/" + q + "/resume", "", 200},
			{"PUT", "/ojs/v1/admin/queues/" + q + "/config", `{}`, 200},
			{"DELETE", "/ojs/v1/admin/queues/none/jobs", `{"states":["completed"],"confirm":true}`, 200},
			{"GET", "/ojs/v1/admin/stats", "", 200},
			{"GET", "/ojs/v1/admin/stats/history", "", 200},
			{"GET", "/ojs/v1/admin/system/maintenance", "", 200},
			{"POST", "/ojs/v1/admin/system/maintenance", `{"enabled":false}`, 200},
			{"GET", "/ojs/v1/admin/maintenance", "", 200},
			{"POST", "/ojs/v1/admin/maintenance", `{"enabled":false}`, 200},
			{"GET", "/ojs/v1/admin/system/config", "", 200},
			{"GET", "/ojs/v1/admin/config", "", 200},
			{"GET", "/ojs/v1/middleware", "", 200},
			{"GET", "/ojs/v1/events", "", 200},
			{"PUT", "/ojs/v1/jobs/" + active + "/progress", `{"progress":0.5}`, 200},
			{"POST", "/ojs/v1/workers/progress", `{"job_id":"` + active + `","percentage":50}`, 200},
			{"GET", "/ojs/v1/jobs/" + active + "/progress", "", 200},
			{"PUT", "/ojs/v1/jobs/" + active + "/checkpoint", `{"state":1}`, 200},
			{"POST", "/ojs/v1/jobs/" + active + "/checkpoint", `{"state":1}`, 200},
			{"GET", "/ojs/v1/jobs/" + active + "/checkpoint", "", 200},
			{"DELETE", "/ojs/v1/jobs/" + active + "/checkpoint", "", 200},
			{"POST", "/ojs/v1/checkpoints/" + active, `{"state":1}`, 200},
			{"GET", "/ojs/v1/checkpoints/" + active + "/resume", "", 200},
			{"DELETE", "/ojs/v1/checkpoints/" + active, "", 200},
			{"POST", "/ojs/v1/ojs/v1/checkpoints/" + active, `{"state":1}`, 200},
			{"GET", "/ojs/v1/ojs/v1/checkpoints/" + active + "/resume", "", 200},
			{"DELETE", "/ojs/v1/ojs/v1/checkpoints/" + active, "", 200},
			{"GET", "/ojs/v1/jobs/" + active + "/result", "", 200},
			{"POST", "/ojs/v1/jobs/results", `{"ids":[]}`, 200},
			{"GET", "/ojs/v1/jobs/" + active + "/history", "", 200},
			{"GET", "/ojs/v1/jobs/" + active + "/retries", "", 200},
			{"GET", "/ojs/v1/jobs/" + active + "/lineage", "", 200},
			{"GET", "/ojs/v1/history", "", 200},
			{"POST", "/ojs/v1/cron", `{"name":"` + q + `","expression":"@daily","type":"t"}`, 201},
			{"PUT", "/ojs/v1/crons/" + q, `{"expression":"@daily","type":"t"}`, 200},
			{"PATCH", "/ojs/v1/cron/" + q, `{}`, 200},
			{"GET", "/ojs/v1/cron", "", 200},
			{"PUT", "/ojs/v1/admin/pools/" + q, `{"queues":["` + q + `-pool"]}`, 201},
			{"GET", "/ojs/v1/admin/pools", "", 200},
			{"GET", "/ojs/v1/admin/pools/" + q, "", 200},
			{"DELETE", "/ojs/v1/admin/pools/" + q, "", 204},
			{"GET", "/ojs/v1/admin/scheduling/stats", "", 200},
			{"GET", "/ojs/v1/crons", "", 200},
			{"GET", "/ojs/v1/cron/" + q, "", 200},
			{"POST", "/ojs/v1/cron/" + q + "/pause", "", 200},
			{"POST", "/ojs/v1/cron/" + q + "/resume", "", 200},
			{"POST", "/ojs/v1/cron/" + q + "/trigger", "", 201},
			{"GET", "/ojs/v1/cron/" + q + "/history", "", 200},
			{"DELETE", "/ojs/v1/cron/" + q, "", 200},
		} {
			r := a.do(route.method, route.path, strings.NewReader(route.body))
			require.Equal(t, route.status, r.status, "%s %s: %s", route.method, route.path, r.body)
			require.Equal(t, mediaOJS, r.header.Get("Content-Type"))
		}
	})

	t.Run("UnknownPathIs404", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/", "/ojs", "/ojs/v1", "/ojs/v1/", "/ojs/v2/jobs", "/ojs/v1/jobs/x/y", "/ojs/v1/workers/x/y", "/OJS/v1/jobs", "/ojs//v1/jobs", "/v2/jobs"} {
			for _, method := range []string{"GET", "POST", "DELETE", "OPTIONS", "ASSERT"} {
				r := a.do(method, path, nil).fails(404, "not_found", "not_found")
				require.Equal(t, "route", r.at("error.details.resource_type"), path)
				require.Equal(t, path, r.at("error.details.resource_id"))
			}
		}
	})

	t.Run("OtherMethodIs405WithAllow", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := newID()
		for _, c := range []struct{ path, allow string }{
			{"/ojs/manifest", "GET HEAD"},
			{"/healthz", "GET HEAD"},
			{"/ojs/v1/jobs", "GET HEAD POST"},
			{"/ojs/v1/jobs/" + id, "DELETE GET HEAD PATCH"},
			{"/ojs/v1/jobs/" + id + "/activate", "POST"},
			{"/ojs/v1/jobs/batch", "POST"},
			{"/ojs/v1/jobs/bulk", "POST"},
			{"/ojs/v1/jobs/bulk/cancel", "POST"},
			{"/ojs/v1/workers/fetch", "POST"},
			{"/ojs/v1/workers/register", "POST"},
			{"/ojs/v1/workers", "GET HEAD"},
			{"/ojs/v1/workers/w", "DELETE GET HEAD"},
			{"/ojs/v1/workers/w/health", "GET HEAD"},
			{"/ojs/v1/workers/w/deregister", "POST"},
			{"/ojs/v1/admin/workers", "GET HEAD"},
			{"/ojs/v1/admin/workers/w", "DELETE GET HEAD"},
			{"/ojs/v1/admin/workers/w/quiet", "POST"},
			{"/ojs/v1/queues/q/stats", "GET HEAD"},
			{"/ojs/v1/queues/q/priority-stats", "GET HEAD"},
			{"/ojs/v1/jobs/" + id + "/progress", "GET HEAD PUT"},
			{"/ojs/v1/workers/progress", "POST"},
			{"/ojs/v1/jobs/" + id + "/checkpoint", "DELETE GET HEAD POST PUT"},
			{"/ojs/v1/checkpoints/" + id, "DELETE POST"},
			{"/ojs/v1/checkpoints/" + id + "/resume", "GET HEAD"},
			{"/ojs/v1/jobs/" + id + "/result", "GET HEAD"},
			{"/ojs/v1/jobs/results", "POST"},
			{"/ojs/v1/jobs/" + id + "/history", "GET HEAD"},
			{"/ojs/v1/history", "GET HEAD"},
			{"/ojs/v1/jobs/" + id + "/ack", "POST"},
			{"/ojs/v1/dead-letter", "DELETE GET HEAD"},
			{"/ojs/v1/dead-letter/" + id, "DELETE GET HEAD"},
			{"/ojs/v1/dead-letter/" + id + "/retry", "POST"},
			{"/ojs/v1/admin/jobs/" + id + "/retry", "POST"},
			{"/ojs/v1/admin/reset", "POST"},
			{"/ojs/v1/events/stream", "GET HEAD"},
			{"/ojs/v1/jobs/" + id + "/events", "GET HEAD"},
			{"/ojs/v1/jobs/" + id + "/progress/stream", "GET HEAD"},
			{"/ojs/v1/queues/q/events", "GET HEAD"},
			{"/ojs/v1/admin/stats/stream", "GET HEAD"},
			{"/ojs/v1/ws", "GET HEAD"},
			{"/ojs/v1/events/ws", "GET HEAD"},
		} {
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "ASSERT"} {
				if slices.Contains(strings.Fields(c.allow), method) {
					continue
				}
				r := a.do(method, c.path, nil).fails(405, "invalid_request", "method_not_allowed")
				require.Equal(t, c.allow, allowed(r), "%s %s", method, c.path)
				require.Equal(t, mediaOJS, r.header.Get("Content-Type"))
			}
		}
	})

	t.Run("OptionsListsMethods", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).do("OPTIONS", "/ojs/v1/jobs", nil).is(204)
		require.Equal(t, "GET HEAD POST", allowed(r))
		require.Empty(t, r.body)
	})

	t.Run("HeadMirrorsGet", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[]`)
		for _, path := range []string{"/ojs/v1/jobs/" + id, "/ojs/manifest", "/healthz", "/ojs/v1/jobs/" + newID(), "/nowhere"} {
			get := a.get(path, "X-Request-Id: same")
			head := a.do("HEAD", path, nil, "X-Request-Id: same").is(get.status)
			require.Empty(t, head.body)
			get.header.Del("Date")
			head.header.Del("Date")
			require.Equal(t, get.header, head.header, path)
		}
	})

	t.Run("SegmentsAreDecoded", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[]`)
		escaped := strings.ReplaceAll(id, "-", "%2D")
		require.Equal(t, id, a.get("/ojs/v1/jobs/"+escaped).is(200).at("job.id"))
		require.Equal(t, id, a.get("/ojs/v1/%6Aobs/"+escaped).is(200).at("job.id"))
		require.Equal(t, id, a.get("/ojs/v1/jobs/job_"+id).is(200).at("job.id"))
		// A slash inside a segment does not split it.
		require.Equal(t, "a/b", a.get("/ojs/v1/jobs/a%2Fb").is(404).at("error.details.resource_id"))
		require.Equal(t, "a/activate", a.get("/ojs/v1/jobs/a%2factivate").is(404).at("error.details.resource_id"))
		require.Equal(t, "a%2Fb", a.get("/ojs/v1/jobs/a%252Fb").is(404).at("error.details.resource_id"))
		require.Equal(t, "ä €", a.get("/ojs/v1/jobs/%C3%A4%20%E2%82%AC").is(404).at("error.details.resource_id"))
	})

	t.Run("InvalidIDsAreUnknownJobs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		upper := strings.ToUpper(a.push(`"type":"t","args":[]`))
		for _, id := range []string{"x", upper, "job_", "job_job_" + newID(), "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "%00", "%ff", "evt_" + newID()} {
			r := a.get("/ojs/v1/jobs/"+id).fails(404, "not_found", "not_found")
			require.Equal(t, "job", r.at("error.details.resource_type"))
			a.del("/ojs/v1/jobs/"+id).fails(404, "not_found", "not_found")
			a.post("/ojs/v1/jobs/"+id+"/activate", "").fails(404, "not_found", "not_found")
		}
		for _, id := range []string{"x", upper, "\\u0000", "job_", " "} {
			r := a.ack(id).fails(404, "not_found", "not_found")
			require.Equal(t, "job", r.at("error.details.resource_type"))
			a.nack(id).fails(404, "not_found", "not_found")
		}
	})

	t.Run("V1AliasServesGet", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[]`)
		require.Equal(t, id, a.get("/v1/jobs/"+id).is(200).at("job.id"))
		a.do("HEAD", "/v1/health", nil).is(200)
		a.post("/v1/jobs", `{"type":"t","args":[]}`).fails(404, "not_found", "not_found")
	})

	t.Run("ResetEmptiesEverything", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		id := a.push(`"type":"t","args":[],"queue":"q"`)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w"}`).is(200)
		require.Equal(t, `{"reset":true}`, a.do("POST", "/ojs/v1/admin/reset", nil).is(200).body)
		a.get("/ojs/v1/jobs/" + id).is(404)
		require.Equal(t, "0", a.get("/ojs/v1/queues/q/stats").at("queue.available"))
		require.Equal(t, `[]`, a.fetch("q").at("jobs"))
		require.Equal(t, "0", a.get("/ojs/v1/jobs").at("total"))
		again := a.push(`"type":"t","args":[],"queue":"q","id":"%s"`, id)
		require.Equal(t, again, a.fetch("q").at("jobs.0.id"))
	})

	t.Run("SwitchedOffRoutesAreUnknown", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Tests.EnableReset = false })
		a.post("/ojs/v1/admin/reset", "").fails(404, "not_found", "not_found")
	})
}
