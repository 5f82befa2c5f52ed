package e2e_test

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEvents covers docs/reference/events.md, Polling. What the log holds is tested in the packages of the domains, and how it is read in eventlog.
func TestEvents(t *testing.T) {
	t.Parallel()
	a := setup(t)
	start := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	q := queue()
	id := a.push(`"type":"mail.send","args":[],"queue":"%s"`, q)
	require.Equal(t, id, a.fetch(q, `"worker_id":"w/1"`).at("jobs.0.id"))
	a.nack(id).is(200)
	a.del("/ojs/v1/jobs/"+id+"?reason=no+longer+needed", "X-OJS-Actor: anna").is(200)
	other := a.push(`"type":"sms.send","args":[],"queue":"%s"`, q)
	require.Equal(t, other, a.fetch(q).at("jobs.0.id"))
	a.ack(other, `"result":{"n":1.0}`).is(200)
	types := []string{"job.enqueued", "job.started", "job.failed", "job.retrying", "job.cancelled", "job.enqueued", "job.started", "job.completed"}
	list := func(a *node, query string) reply { return a.get("/ojs/v1/events?queues=" + q + query) }
	eventually(t, func() bool { return len(list(a, "").list("events", "type")) == len(types) })

	t.Run("OldestFirst", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := list(a, "").is(200)
		require.Equal(t, types, r.list("events", "type"))
		require.Equal(t, types, r.list("events", "event"))
		require.Equal(t, "false", r.at("has_more"))
		for _, eventID := range r.list("events", "id") {
			require.Regexp(t, `^evt_[0-9a-f-]{36}$`, eventID)
		}
		for _, at := range r.list("events", "time") {
			require.Regexp(t, serverTime, at)
		}
		require.Equal(t, "mail.send", r.at("events.0.data.job_type"))
		require.Equal(t, q, r.at("events.0.data.queue"))
		require.Equal(t, id, r.at("events.0.subject"))
		require.Equal(t, "ojs://ojs/workers/w%2F1", r.at("events.1.source"))
		require.Equal(t, "boom", r.at("events.2.data.error.message"))
		require.Equal(t, "anna", r.at("events.4.data.cancelled_by"))
		require.Equal(t, "no longer needed", r.at("events.4.data.reason"))
		require.Equal(t, "1", r.at("events.7.data.attempt"))
		require.Regexp(t, `^\d+$`, r.at("events.7.data.duration_ms"))
		require.Equal(t, `{"n":1.0}`, r.at("events.7.data.result"))
		require.Equal(t, []string{"", "available", "", "active", "retryable", "", "available", "active"}, r.list("events", "from"))
		require.Equal(t, []string{"available", "active", "", "retryable", "cancelled", "available", "active", "completed"}, r.list("events", "to"))
	})

	t.Run("Filters", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for query, want := range map[string]int{
			"&types=job.completed": 1, "&type=job.completed": 1, "&event_types=job.completed": 1, "&types=job.completed,job.failed": 2, "&types=job.completed&types=job.failed": 2,
			"&types=job.*": 8, "&types=*": 8, "&types=worker.*": 0, "&types=job.unknown": 0, "&types=": 8, "&types=,,": 8, "&types=job.dead": 0, "&types=job.retried": 1,
			"&job_types=mail.send": 5, "&job_type=sms.send": 3, "&job_types=mail.send,sms.send": 8, "&job_types=none": 0,
			"&job_id=" + id: 5, "&job_id=job_" + other: 3, "&job_id=" + newID(): 0, "&workflow_id=" + newID(): 0,
			"&sources=ojs://ojs/api": 3, "&sources=ojs://ojs/workers/*": 5, "&source=ojs://ojs/scheduler": 0,
			"&since=" + url.QueryEscape(start): 8, "&until=" + url.QueryEscape(start): 0, "&since=2099-01-01T00:00:00Z": 0, "&queue=none": 8, "&page=&per_page=": 8,
		} {
			r := list(a, query+"&limit=1000").is(200)
			require.Equal(t, want, r.count("events"), query)
			require.True(t, r.has("cursor"))
		}
		require.Equal(t, `[]`, a.get("/ojs/v1/events?queues="+queue()).is(200).at("events"))
	})

	t.Run("OfASubject", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		id := a.jobIn("completed")
		worker := newID() // many SDKs make ids of workers like this
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"`+worker+`"}`).is(200)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w\"2"}`).is(200)
		a.publishedAll()
		for subject, want := range map[string]string{id: "job.enqueued job.started job.completed", worker: "worker.started worker.heartbeat", `w"2`: "worker.started worker.heartbeat", newID(): "", "nobody": ""} {
			query := "/ojs/v1/events?subject=" + url.QueryEscape(subject)
			r := a.get(query).is(200)
			require.Equal(t, want, strings.Join(r.list("events", "type"), " "), subject)
			newest := a.get(query+"&per_page=50").is(200).list("events", "type")
			slices.Reverse(newest)
			require.Equal(t, want, strings.Join(newest, " "), subject)
			rest := a.get(query + "&after=" + r.at("cursor")).is(200)
			require.Empty(t, rest.list("events", "id"))
			first := a.get(query + "&limit=1").is(200)
			require.Equal(t, strconv.FormatBool(want != ""), first.at("has_more"))
		}
		require.Empty(t, a.get("/ojs/v1/events?subject="+worker+"&job_id="+id).is(200).list("events", "id"))
		a.get("/ojs/v1/events?subject=%00").fails(400, "invalid_request", "invalid_request")
	})

	t.Run("CursorsReadEverythingOnce", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		var got []string
		after := ""
		for {
			r := list(a, "&limit=3&after="+after).is(200)
			got = append(got, r.list("events", "type")...)
			after = r.at("cursor")
			require.NotEmpty(t, after)
			if r.at("has_more") == "false" {
				break
			}
			require.Equal(t, r.at("events.2.id"), after)
		}
		require.Equal(t, types, got)
		require.Equal(t, `[]`, list(a, "&after="+after).at("events"))
	})

	t.Run("AdminListingIsNewestFirst", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		newest := slices.Clone(types)
		slices.Reverse(newest)
		r := list(a, "&page=1&per_page=5").is(200)
		require.Equal(t, newest[:5], r.list("events", "type"))
		require.Equal(t, r.at("events"), r.at("items"))
		require.Equal(t, `{"total":8,"limit":5,"offset":0,"page":1,"per_page":5,"has_more":true,"next_cursor":"5"}`, r.at("pagination"))
		require.Equal(t, newest[5:], list(a, "&per_page=5&cursor=5").list("events", "type"))
		r = list(a, "&page=2&per_page=5").is(200)
		require.Equal(t, newest[5:], r.list("events", "type"))
		require.Equal(t, "false", r.at("pagination.has_more"))
		require.Equal(t, "50", list(a, "&page=1").at("pagination.limit"))
		require.Equal(t, "200", list(a, "&per_page=500").at("pagination.limit"))
		require.Equal(t, newest[:1], list(a, "&page=1&type=job.completed").list("items", "type"))
	})

	t.Run("CloudEventsForm", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := list(a, "&format=cloudevents").is(200)
		require.Equal(t, "org.openjobspec.job.enqueued", r.at("events.0.type"))
		require.Equal(t, "application/json", r.at("events.0.datacontenttype"))
		require.False(t, r.has("events.0.event"))
		require.Equal(t, list(a, "&format=ojs").at("events"), list(a, "").at("events"))
	})

	t.Run("RefusesBadParameters", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		many := strings.TrimSuffix(strings.Repeat("a,", 51), ",")
		for query, parameter := range map[string]string{
			"limit=0": "limit", "limit=-1": "limit", "limit=x": "limit", "limit=1.5": "limit", "after=x": "after", "after=evt_x": "after", "after=" + newID(): "after",
			"types=Job": "types", "types=job.*x": "types", "types=**": "types", "types=" + many: "types", "queues=" + many: "queues", "job_types=" + many: "job_types", "sources=" + many: "sources",
			"queues=%00": "queues", "job_types=%ff": "job_types", "job_id=x": "job_id", "workflow_id=x": "workflow_id", "since=yesterday": "since", "since=2026-01-01T00:00:00": "since",
			"until=1h": "until", "format=xml": "format", "page=0": "page", "per_page=x": "per_page",
		} {
			r := a.get("/ojs/v1/events?"+query).fails(400, "invalid_request", "invalid_request")
			require.Equal(t, parameter, r.at("error.details.parameter"), query)
		}
		require.Equal(t, 8, list(a, "&limit=100000").count("events"))
	})

	t.Run("SingleEvent", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := list(a, "&limit=1")
		one := a.get("/ojs/v1/events/" + r.at("events.0.id")).is(200)
		require.Equal(t, r.at("events.0"), one.body)
		require.Equal(t, "org.openjobspec.job.enqueued", a.get("/ojs/v1/events/"+r.at("events.0.id")+"?format=cloudevents").at("type"))
		for _, unknown := range []string{"x", "evt_x", newID(), "evt_" + newID(), "%00"} {
			missing := a.get("/ojs/v1/events/"+unknown).fails(404, "not_found", "not_found")
			require.Equal(t, "event", missing.at("error.details.resource_type"))
		}
	})

	t.Run("HistoryOfAJob", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.get("/ojs/v1/events/" + id + "/history").is(200)
		require.Equal(t, id, r.at("job_id"))
		require.Equal(t, types[:5], r.list("events", "type"))
		require.Equal(t, []string{"available", "active", "", "retryable", "cancelled"}, r.list("events", "state"))
		require.Equal(t, "boom", r.at("events.2.data.error.message"))
		require.Regexp(t, serverTime, r.at("events.0.timestamp"))
		pending := a.jobIn("pending") // has an internal row only
		eventually(t, func() bool { return a.get("/ojs/v1/events/"+pending+"/history").is(200).count("events") == 1 })
		for _, unknown := range []string{"x", newID()} {
			require.Equal(t, "job", a.get("/ojs/v1/events/"+unknown+"/history").fails(404, "not_found", "not_found").at("error.details.resource_type"))
		}
	})

	t.Run("AreVisibleAtOnceToTheirCaller", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		seen := 0
		for range 20 {
			q := queue()
			a.push(`"type":"t","args":[],"queue":"%s"`, q)
			seen += a.get("/ojs/v1/events?queues=" + q).count("events")
			eventually(t, func() bool { return a.get("/ojs/v1/events?queues="+q).count("events") == 1 })
		}
		require.Positive(t, seen) // 20, unless the machine is busy: a poll waits 100 ms for what its node has committed
	})

	t.Run("EmptyLogHasNoCursor", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, `{"events":[],"cursor":null,"has_more":false}`, setup(t).get("/ojs/v1/events").is(200).body)
	})
}
