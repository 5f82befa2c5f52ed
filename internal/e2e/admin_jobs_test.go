package e2e_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdminJobs covers docs/reference/admin.md, Jobs.
func TestAdminJobs(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("ListFiltersAndSorts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		low := a.push(`"type":"mail.send","args":[1,"ada@example.com"],"queue":"%s","priority":-5`, q)
		later := a.push(`"type":"mail.read","args":[],"queue":"%s","scheduled_at":"PT2H","meta":{"order":"50%%_7"}`, q)
		high := a.push(`"type":"sms.send","args":[],"queue":"%s","priority":9`, q)
		soon := a.push(`"type":"sms","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)
		done := a.push(`"type":"mail","args":[],"queue":"%s","priority":20`, q)
		a.fetch(q)
		a.ack(done).is(200)
		names := map[string]string{low: "low", later: "later", high: "high", soon: "soon", done: "done"}
		for query, want := range map[string]string{
			"":                            "done soon high later low",
			"order=asc":                   "low later high soon done",
			"sort=created_at&order=desc":  "done soon high later low",
			"sort=priority":               "done high soon later low",
			"sort=priority&order=asc":     "low soon later high done",
			"sort=scheduled_at":           "later soon done high low",
			"sort=scheduled_at&order=asc": "soon later done high low",
			"sort=started_at":             "done soon high later low",
			"contains=ada@example":        "low",
			"contains=50%25_7":            "later",
			"contains=%25":                "later",
			"contains=nothing":            "",
			"contains=ada&order=asc":      "low",
			"contains=mail":               "", // a type is no argument
			"state=completed":             "done",
			"state=available,scheduled":   "soon high later low",
			"type=mail.*":                 "later low",
			"type=mail":                   "done",
			"type=mail.*,sms":             "soon later low",
			"type=*":                      "done soon high later low",
			"since=1h":                    "done soon high later low",
			"until=1h":                    "",
			"since=2099-01-01T00:00:00Z":  "",
			"since=2001-01-01T00:00:00Z&until=2099-01-01T00:00:00Z": "done soon high later low",
			"since=9999-12-31T00:00:00Z":                            "",
			"until=0001-01-01T00:00:00Z":                            "",
			"per_page=2":                                            "done soon",
			"per_page=2&page=2":                                     "high later",
			"per_page=2&page=3":                                     "low",
			"limit=2&offset=1":                                      "soon high",
			"sort=priority&per_page=2&page=2":                       "soon later",
			"page=100":                                              "",
		} {
			r := a.get("/ojs/v1/admin/jobs?queue=" + q + "&" + query).is(200)
			var got []string
			for _, id := range r.list("items", "id") {
				got = append(got, names[id])
			}
			require.Equal(t, want, strings.Join(got, " "), query)
		}
		r := a.get("/ojs/v1/admin/jobs?per_page=1&queue=" + q).is(200)
		require.Equal(t, `{"total":5,"limit":1,"offset":0,"page":1,"per_page":1,"has_more":true,"next_cursor":"`+done+`"}`, r.at("pagination"))
		for path, want := range map[string]string{"type": "mail", "queue": q, "state": "completed", "priority": "20", "attempt": "1"} {
			require.Equal(t, want, r.at("items.0."+path))
		}
		require.Regexp(t, serverTime, r.at("items.0.created_at"))
		require.Regexp(t, serverTime, r.at("items.0.completed_at"))
		require.Equal(t, "20", a.get("/ojs/v1/admin/jobs").at("pagination.per_page"))
		require.Equal(t, "100", a.get("/ojs/v1/admin/jobs?per_page=5000").at("pagination.per_page"))
	})

	t.Run("CursorsReadEverythingOnce", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := a.pushMany(t, q, 11)
		for order, want := range map[string][]string{"asc": ids, "desc": reversed(ids)} {
			var got []string
			for path := "/ojs/v1/admin/jobs?per_page=4&queue=" + q + "&order=" + order; ; {
				r := a.get(path).is(200)
				got = append(got, r.list("items", "id")...)
				if r.at("pagination.has_more") != "true" {
					break
				}
				path = "/ojs/v1/admin/jobs?per_page=4&queue=" + q + "&order=" + order + "&cursor=" + r.at("pagination.next_cursor")
			}
			require.Equal(t, want, got)
		}
		pages(a, "/ojs/v1/admin/jobs?sort=priority&queue="+q, "items", "id", 11)
	})

	t.Run("RefusesInvalidQueries", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, query := range []string{
			"sort=size", "order=up", "state=flying", "since=yesterday", "until=%2B1h", "page=0", "per_page=x", "limit=-1", "offset=2000000", "cursor=x",
			"sort=priority&cursor=" + newID(), "contains=%00", "contains=%ff", "contains=" + strings.Repeat("x", 256), "queue=%00", "type=%ff", "type=a%00*",
		} {
			a.get("/ojs/v1/admin/jobs?"+query).fails(400, "invalid_request", "invalid_request")
		}
	})

	t.Run("ShowsLargeJobsWithoutTheirArgs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		large := strings.Repeat("x", 900_000)
		for range 12 {
			a.push(`"type":"t","args":["%s"],"queue":"%s"`, large, q)
		}
		r := a.get("/ojs/v1/admin/jobs?queue=" + q).is(200)
		require.Equal(t, 12, r.count("items"), "a page is whole whatever the sizes")
		require.Less(t, len(r.body), 1<<20)
		require.False(t, r.has("items.0.args"))
	})

	t.Run("Detail", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[1,"\u0000"],"queue":"%s","meta":{"k":"v"},"retry":{"max_attempts":7,"initial_interval":"PT1H"},"metadata_x":1`, queue())
		r := a.get("/ojs/v1/admin/jobs/" + id).is(200)
		for path, want := range map[string]string{
			"id": id, "args": `[1,"\u0000"]`, "meta": `{"k":"v"}`, "state": "available", "errors": "[]", "result": "null", "metadata_x": "1",
			"retry_policy.max_attempts": "7", "retry_policy.initial_interval_ms": "3600000",
			"metadata.started_at": "null", "metadata.completed_at": "null", "metadata.cancelled_at": "null", "metadata.discarded_at": "null", "metadata.scheduled_at": "null",
		} {
			require.Equal(t, want, r.at(path), path)
		}
		require.Equal(t, r.at("created_at"), r.at("metadata.created_at"))
		require.Equal(t, r.at("enqueued_at"), r.at("metadata.enqueued_at"))
		dead := a.get("/ojs/v1/admin/jobs/" + a.jobIn("discarded")).is(200)
		require.Equal(t, "boom", dead.at("errors.0.message"))
		require.Equal(t, dead.at("discarded_at"), dead.at("metadata.discarded_at"))
		require.Equal(t, dead.at("completed_at"), dead.at("metadata.completed_at"))
		require.Equal(t, "3", a.get("/ojs/v1/admin/jobs/"+a.jobIn("completed")).is(200).at("retry_policy.max_attempts"))
		for _, id := range []string{newID(), "x", "bulk"} {
			a.get("/ojs/v1/admin/jobs/"+id).fails(404, "not_found", "not_found")
		}
	})

	t.Run("Cancel", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"available", "active", "scheduled", "retryable", "pending"} {
			id := a.jobIn(state)
			r := a.post("/ojs/v1/admin/jobs/"+id+"/cancel", `{"reason":"late","cancelled_by":"jo"}`).is(200)
			require.Equal(t, "cancelled", r.at("state"))
			require.Equal(t, "cancelled", r.at("job.state"))
			require.Equal(t, state, r.at("previous_state"))
			require.Equal(t, "jo", a.eventOf(t, id, "job.cancelled").at("data.cancelled_by"))
			require.Equal(t, "late", a.eventOf(t, id, "job.cancelled").at("data.reason"))
			a.post("/ojs/v1/admin/jobs/"+id+"/cancel", "").fails(409, "conflict", "invalid_state_transition")
		}
		id := a.jobIn("scheduled")
		for _, body := range []string{`{"reason":7}`, `[]`, `{`, `{"cancelled_by":{}}`} {
			require.Equal(t, 400, a.post("/ojs/v1/admin/jobs/"+id+"/cancel", body).status, body)
		}
		a.post("/ojs/v1/admin/jobs/"+id+"/cancel", `{"reason":"`+repeated('x', 1025)+`"}`).is(400)
		a.post("/ojs/v1/admin/jobs/"+id+"/cancel", `{"reason":"a\u0000"}`).is(400)
		a.post("/ojs/v1/admin/jobs/"+id+"/cancel", "").is(200)
		a.post("/ojs/v1/admin/jobs/"+newID()+"/cancel", "").fails(404, "not_found", "not_found")
	})
}

func reversed(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Reverse(ids)
	return ids
}

// TestAdminBulk covers docs/reference/admin.md, Bulk change.
func TestAdminBulk(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("ChangesAndReports", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := a.pushMany(t, q, 3)
		a.fetch(q)
		r := a.post("/ojs/v1/admin/jobs/bulk/cancel", `{"filter":{"queue":"`+q+`","state":["available","active"]},"confirm":true}`, "X-OJS-Actor: jo").is(200)
		require.Equal(t, `{"action":"cancel","cancelled":2,"errors":[{"job_id":"`+ids[0]+`","error":"job is active"}],"failed":1,"matched":3,"succeeded":2}`, r.body)
		require.Equal(t, "jo", a.eventOf(t, ids[1], "job.cancelled").at("data.cancelled_by"))

		dead := a.jobIn("discarded")
		r = a.post("/ojs/v1/admin/jobs/bulk/retry", `{"filter":{"queue":"`+a.job(dead).at("job.queue")+`","type":"t*"},"confirm":true}`).is(200)
		require.Equal(t, `{"action":"retry","errors":[],"failed":0,"matched":1,"retried":1,"succeeded":1}`, r.body)
		require.Equal(t, "available", a.job(dead).at("job.state"))

		r = a.post("/ojs/v1/admin/jobs/bulk/delete", `{"queue":"`+q+`","state":"cancelled","confirm":true}`).is(200)
		require.Equal(t, `{"action":"delete","deleted":2,"errors":[],"failed":0,"matched":2,"succeeded":2}`, r.body)
		a.get("/ojs/v1/jobs/" + ids[1]).is(404)

		r = a.post("/ojs/v1/admin/jobs/bulk/delete", `{"filter":{"queue":"`+q+`","state":"cancelled"},"confirm":true}`).is(200)
		require.Equal(t, "0", r.at("matched"))
	})

	t.Run("NeedsConfirmationAndAFilter", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("available")
		q := a.job(id).at("job.queue")
		for _, body := range []string{
			`{"filter":{"queue":"` + q + `"}}`, `{"filter":{"queue":"` + q + `"},"confirm":false}`, `{"queue":"` + q + `"}`, `{"queue":"` + q + `","confirm":"true"}`,
		} {
			a.post("/ojs/v1/admin/jobs/bulk/cancel", body).invalid("confirm")
		}
		for body, field := range map[string]string{
			`{"confirm":true}`: "filter", `{"filter":{},"confirm":true}`: "filter", `{"filter":[],"confirm":true}`: "filter",
			`{"state":"flying","confirm":true}`: "state",
		} {
			a.post("/ojs/v1/admin/jobs/bulk/cancel", body).invalid(field)
		}
		a.post("/ojs/v1/admin/jobs/bulk/delete", `{"queue":"`+q+`","confirm":true}`).invalid("state")
		a.post("/ojs/v1/admin/jobs/bulk/cancel", "").is(400)
		require.Equal(t, "available", a.job(id).at("job.state"))
	})
}

// The queries of the CLI and the admin UI meet in one list.
func TestAdminJobsEscapes(t *testing.T) {
	t.Parallel()
	a := setup(t)
	require.Equal(t, "[]", a.get("/ojs/v1/admin/jobs?type="+url.QueryEscape(fmt.Sprintf("%s%%'\"*", repeated('a', 300)))).is(200).at("items"))
}
