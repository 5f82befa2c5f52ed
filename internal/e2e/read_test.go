package e2e_test

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInfo covers docs/reference/http.md, Read.
func TestInfo(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("IsByteIdentical", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range states {
			id := a.jobIn(state)
			for _, headers := range [][]string{nil, {"OJS-Version: 1.0"}} {
				first := a.get("/ojs/v1/jobs/"+id, headers...).is(200)
				for range 3 {
					require.Equal(t, first.body, a.get("/ojs/v1/jobs/"+id, headers...).body)
				}
			}
		}
	})

	t.Run("UnknownIs404WithHelp", func(t *testing.T) {
		t.Parallel()
		id := newID()
		r := a.in(t).get("/ojs/v1/jobs/"+id).fails(404, "not_found", "not_found")
		require.Equal(t, id, r.at("error.details.resource_id"))
		require.NotEmpty(t, r.at("error.hint"))
		require.Equal(t, "https://openjobspec.org/errors/NOT_FOUND", r.at("error.docs_url"))
		require.Equal(t, "false", r.at("error.retryable"))
	})
}

// TestJobList covers docs/reference/http.md, Pagination.
func TestJobList(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q, other := queue(), queue()
	var ids []string // newest first
	for i := range 25 {
		ids = append(ids, a.push(`"type":"type%d","args":[],"queue":"%s"`, i%2, q))
	}
	slices.Reverse(ids)
	foreign := a.push(`"type":"type0","args":[],"queue":"%s"`, other)
	a.del("/ojs/v1/jobs/" + ids[3]).is(200)
	list := func(a *node, query string) reply {
		return a.get("/ojs/v1/jobs?" + query)
	}

	t.Run("NewestFirst", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := list(a, "queue="+q).is(200)
		require.Equal(t, ids, r.list("jobs", "id"))
		require.Equal(t, "25", r.at("total"))
		require.Equal(t, `{"total":25,"limit":50,"offset":0,"page":1,"per_page":50,"has_more":false}`, r.at("pagination"))
		require.Equal(t, a.job(ids[0]).at("job"), r.at("jobs.0"))
		require.Equal(t, "cancelled", r.at("jobs.3.state"))
	})

	t.Run("Filters", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for query, want := range map[string]int{
			"queue=" + q + "&state=cancelled":                   1,
			"queue=" + q + "&state=available":                   24,
			"queue=" + q + "&state=available,cancelled":         25,
			"queue=" + q + "&state=available&state=cancelled":   25,
			"queue=" + q + "&state=completed":                   0,
			"queue=" + q + "&type=type0":                        13,
			"queue=" + q + "&type=type0,type1":                  25,
			"queue=" + q + "," + other:                          26,
			"queue=" + q + "," + other + "&type=type0":          14,
			"queue=" + q + "&type=none":                         0,
			"queue=" + queue():                                  0,
			"queue=" + q + "&state=":                            25,
			"queue=" + q + "&queue=,,&type=":                    25,
			"queue=" + url.QueryEscape("no such queue, "+other): 1,
		} {
			r := list(a, query+"&limit=200").is(200)
			require.Equal(t, want, r.count("jobs"), query)
			require.Equal(t, strconv.Itoa(want), r.at("total"), query)
		}
		require.Equal(t, []string{foreign}, list(a, "queue="+other).list("jobs", "id"))
	})

	t.Run("PagesByCursor", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		var got []string
		cursor, pages := "", 0
		for {
			r := list(a, "limit=10&offset=7&queue="+q+"&cursor="+cursor).is(200)
			if cursor == "" { // only then offset counts
				r = list(a, "limit=10&queue="+q)
			}
			require.Equal(t, "0", r.at("pagination.offset"))
			got = append(got, r.list("jobs", "id")...)
			pages++
			require.Equal(t, r.at("pagination.has_more") == "true", r.has("pagination.next_cursor"))
			require.Equal(t, "25", r.at("total"))
			if cursor = r.at("pagination.next_cursor"); cursor == "" {
				break
			}
		}
		require.Equal(t, ids, got)
		require.Equal(t, 3, pages)
	})

	t.Run("PagesByOffsetAndByPage", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, queries := range [][]string{{"limit=10&offset=0", "limit=10&offset=10", "limit=10&offset=20"}, {"per_page=10&page=1", "per_page=10&page=2", "per_page=10&page=3"}} {
			var got []string
			for n, query := range queries {
				r := list(a, query+"&queue="+q).is(200)
				got = append(got, r.list("jobs", "id")...)
				want := fmt.Sprintf(`{"total":25,"limit":10,"offset":%d,"page":%d,"per_page":10,"has_more":%t`, 10*n, n+1, n < 2)
				require.Contains(t, r.at("pagination"), want)
			}
			require.Equal(t, ids, got)
		}
		require.Equal(t, `[]`, list(a, "offset=25&queue="+q).at("jobs"))
		require.Equal(t, "25", list(a, "offset=25&queue="+q).at("total"))
		require.Equal(t, ids[:5], list(a, "limit=5&page=1&offset=&queue="+q).list("jobs", "id"))
	})

	t.Run("ClampsAndRefuses", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		require.Equal(t, "200", list(a, "limit=201").is(200).at("pagination.limit"))
		require.Equal(t, "200", list(a, "limit=100000").is(200).at("pagination.limit"))
		require.Equal(t, "50", list(a, "limit=").is(200).at("pagination.limit"))
		for query, parameter := range map[string]string{
			"limit=0": "limit", "limit=-1": "limit", "limit=x": "limit", "limit=1.5": "limit", "limit=99999999999999999999": "limit",
			"offset=-1": "offset", "offset=x": "offset", "page=0": "page", "page=x": "page", "per_page=0": "per_page", "per_page=x": "per_page",
			"cursor=x": "cursor", "cursor=%00": "cursor", "queue=%00": "queue", "type=a,%ff": "type", "offset=1000001": "offset", "page=99999999": "offset", "state=flying": "state", "state=available,flying": "state", "state=Available": "state",
		} {
			r := list(a, query).fails(400, "invalid_request", "invalid_request")
			require.Equal(t, parameter, r.at("error.details.parameter"), query)
		}
	})
}

// TestQueueStatistics covers docs/reference/http.md, Queue statistics.
func TestQueueStatistics(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q := queue()
	for range 3 {
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
	}
	a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)
	a.push(`"type":"t","args":[],"queue":"%s","pending":true`, q)
	cancelled := a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)
	a.del("/ojs/v1/jobs/" + cancelled).is(200)
	for _, end := range []string{"", "ack", `"error":{"retryable":false}`, `"error":{}`} {
		id := a.push(`"type":"t","args":[],"queue":"%s","priority":9,"retry":{"initial_interval":"PT1H"}`, q)
		// Subtests may wait for their turn for longer than the default visibility timeout.
		require.Equal(t, id, a.fetch(q, `"visibility_timeout_ms":3600000`).at("jobs.0.id"))
		switch end {
		case "":
		case "ack":
			a.ack(id).is(200)
		default:
			a.nack(id, end).is(200)
		}
	}
	counts := map[string]string{"available": "3", "active": "1", "scheduled": "1", "retryable": "1", "pending": "1", "completed": "1", "discarded": "1", "cancelled": "1", "total": "10", "depth": "3"}
	path := "/ojs/v1/queues/" + q + "/stats"

	t.Run("ObjectWithoutVersion", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).get(path).is(200)
		require.Equal(t, q, r.at("queue.name"))
		require.Equal(t, "active", r.at("queue.status"))
		require.Equal(t, "false", r.at("queue.paused"))
		for member, want := range counts {
			require.Equal(t, want, r.at("queue."+member), member)
			require.Equal(t, want, r.at("stats."+member), member)
		}
		require.Regexp(t, serverTime, r.at("computed_at"))
		require.Equal(t, "OJS-Version", r.header.Get("Vary"))
	})

	t.Run("NameWithVersion", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).get(path, "OJS-Version: 1.0.0-rc.1").is(200)
		require.Equal(t, q, r.at("queue"))
		require.Equal(t, q, r.at("name"))
		require.Equal(t, "active", r.at("status"))
		require.Equal(t, "false", r.at("paused"))
		for member, want := range counts {
			require.Equal(t, want, r.at("stats."+member), member)
			require.Equal(t, want, r.at(member), member)
		}
		require.Equal(t, q, r.at("stats.queue"))
		require.Equal(t, "1", r.at("stats.dead"))
		for _, member := range []string{"completed_last_hour", "failed_last_hour"} {
			require.Regexp(t, `^\d+$`, r.at("stats."+member))
		}
		for _, member := range []string{"avg_duration_ms", "avg_wait_ms", "throughput_per_second"} {
			require.Regexp(t, `^\d+(\.\d+)?(e-\d+)?$`, r.at("stats."+member))
		}
		require.Equal(t, "OJS-Version", r.header.Get("Vary"))
	})

	t.Run("UnknownQueueHasZerosAndIsNotCreated", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.get("/ojs/v1/queues/" + queue() + "/stats").is(200)
		require.Equal(t, "0", r.at("queue.total"))
		require.Equal(t, "active", r.at("queue.status"))
		for _, bad := range []string{"A", "a_b", "-a", repeated('q', 129), "%00", "a%2Fb"} {
			a.get("/ojs/v1/queues/"+bad+"/stats").fails(400, "invalid_request", "invalid_request")
		}
	})

	t.Run("RatesFollowTheEventLog", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		eventually(t, func() bool { return a.get(path).at("stats.completed_last_hour") == "1" })
		eventually(t, func() bool { return a.get(path).at("stats.failed_last_hour") == "2" })
		for member, want := range counts { // published or not, the counts are exact
			require.Equal(t, want, a.get(path).at("queue."+member))
		}
	})
}

// TestExplain covers docs/reference/jobs.md, Explain.
func TestExplain(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	r := a.get("/ojs/v1/jobs/" + id + "/explain").is(200)
	require.Equal(t, []string{id, "available", q, "false", "no_workers"}, []string{r.at("job_id"), r.at("state"), r.at("queue"), r.at("running"), r.at("reasons.0.code")})
	require.Equal(t, r.at("reasons.0.message"), r.at("summary"))
	require.Contains(t, r.body, `"state":"available"`, "answers are compact")
	require.Regexp(t, serverTime, r.at("computed_at"))
	require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
	require.Equal(t, "running", a.get("/ojs/v1/jobs/job_"+id+"/explain").is(200).at("reasons.0.code"))
	a.ack(id).is(200)
	require.Equal(t, "ended", a.get("/ojs/v1/jobs/"+id+"/explain").is(200).at("reasons.0.code"))
	for _, unknown := range []string{newID(), "x", "%00"} {
		require.Equal(t, "not_found", a.get("/ojs/v1/jobs/"+unknown+"/explain").is(404).at("error.code"))
	}
	a.post("/ojs/v1/jobs/"+id+"/explain", "").is(405)
}

// pages follows the cursors of a list, a path with a query, in pages of two, which must show want entries, each once.
func pages(a *node, list, items, id string, want int) {
	a.t.Helper()
	seen, cursor := map[string]bool{}, ""
	for n := 0; ; n++ {
		r := a.get(list + "&per_page=2&cursor=" + url.QueryEscape(cursor)).is(200)
		for _, name := range r.list(items, id) {
			require.False(a.t, seen[name], "%s: %s is on two pages", list, name)
			seen[name] = true
		}
		require.Equal(a.t, r.at("pagination.has_more") == "true", r.has("pagination.next_cursor"), r.body)
		if cursor = r.at("pagination.next_cursor"); cursor == "" {
			break
		}
		require.Less(a.t, n, want, "the pages of %s do not end", list)
	}
	require.Len(a.t, seen, want, list)
}

// TestCursorsOfNumberedLists has every list with has_more lead on by next_cursor, which beats page.
func TestCursorsOfNumberedLists(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		a.put("/ojs/v1/admin/pools/"+name, `{"queues":["`+name+`"]}`).is(201)
		a.put("/ojs/v1/cron/"+name, `{"expression":"@daily","type":"t"}`).is(201)
		a.put("/ojs/v1/admin/schemas/"+name+"/1", `{"schema":{}}`).is(201)
		a.post("/ojs/v1/cron/a/trigger", "").is(201)
	}
	a.publishedAll() // lists of events have what is published
	for list, of := range map[string][2]string{
		"/ojs/v1/admin/pools?": {"items", "name"}, "/ojs/v1/cron?": {"crons", "name"}, "/ojs/v1/cron/a/history?": {"executions", "job_id"},
		"/ojs/v1/schemas?": {"schemas", "uri"}, "/ojs/v1/admin/schemas?": {"schemas", "uri"}, "/ojs/v1/events?types=job.enqueued": {"events", "id"},
	} {
		pages(a, list, of[0], of[1], 5)
		r := a.get(list + "&per_page=2&page=1&cursor=4").is(200)
		require.Equal(t, "3 4 false", r.at("pagination.page")+" "+r.at("pagination.offset")+" "+r.at("pagination.has_more"), list)
		for _, cursor := range []string{"x", "0", "-1", "1000001", "%00"} {
			a.get(list+"&per_page=2&cursor="+cursor).fails(400, "invalid_request", "invalid_request")
		}
	}
}
