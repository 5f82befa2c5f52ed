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

// TestDeadLetterList covers docs/reference/retries.md, Dead letters and Dead-letter endpoints.
func TestDeadLetterList(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("ListsMarkedJobsOnly", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		dead := a.deadLetter(q, "email.send", `{"message":"boom"}`)
		plain := a.push(`"type":"t","args":[],"queue":"%s","retry":{"max_attempts":1,"on_exhaustion":"discard"}`, q)
		a.fetch(q)
		a.nack(plain).is(200)
		forced := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q)
		a.nack(forced, `"error":{"code":"DEAD_LETTER"}`).is(200)
		refused := a.push(`"type":"t","args":[],"queue":"%s","retry":{"on_exhaustion":"dead_letter"}`, q)
		a.fetch(q)
		a.nack(refused, `"error":{"code":"DISCARD"}`).is(200)

		r := a.get("/ojs/v1/dead-letter?queue=" + q).is(200)
		require.Equal(t, []string{forced, dead}, r.list("jobs", "id"))
		require.Equal(t, "2", r.at("total"))
		require.Equal(t, "2", r.at("pagination.total"))
		require.Equal(t, "false", r.at("pagination.has_more"))
		require.False(t, r.has("pagination.next_cursor"))
		require.Equal(t, "1", r.at("jobs.1.total_attempts"))
		require.Equal(t, "boom", r.at("jobs.1.errors.0.message"))
		require.Equal(t, r.at("jobs.1.discarded_at"), r.at("jobs.1.dead_lettered_at"))
		require.Equal(t, a.job(dead).at("job"), r.at("jobs.1"))

		all := a.get("/ojs/v1/dead-letter?include=all&queue=" + q).is(200)
		require.Equal(t, []string{refused, forced, plain, dead}, all.list("jobs", "id"))
		admin := a.get("/ojs/v1/admin/dead-letter?per_page=1&page=2&queue=" + q).is(200)
		require.Equal(t, []string{dead}, admin.list("items", "id"))
		require.Equal(t, "2", admin.at("pagination.page"))
		require.Equal(t, "1", admin.at("pagination.per_page"))
		require.Equal(t, "20", a.get("/ojs/v1/admin/dead-letter?queue=nobody").is(200).at("pagination.per_page"))
		require.Equal(t, `{"jobs":[],"total":0,"pagination":{"total":0,"limit":50,"offset":0,"page":1,"per_page":50,"has_more":false}}`,
			a.get("/ojs/v1/dead-letter?queue=nobody").is(200).body)

		require.Equal(t, plain, a.get("/ojs/v1/dead-letter/"+plain).is(200).at("job.id"))
		for _, other := range []string{newID(), "strange", a.jobIn("available"), a.jobIn("completed")} {
			r := a.get("/ojs/v1/dead-letter/"+other).fails(404, "not_found", "not_found")
			require.Equal(t, "dead_letter_job", r.at("error.details.resource_type"))
		}
	})

	t.Run("Filters", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		one := a.deadLetter(q, "email.send", `{"code":"smtp","type":"TimeoutError","message":"\u0000"}`)
		made := time.Now()
		eventually(t, func() bool { return time.Since(made) > 2*time.Millisecond })
		two := a.deadLetter(q, "email.sent", `{"code":"say \"x\"\\","details":{"code":"smtp","error_class":"Zürich","type":"TimeoutError","x":"\u0000"}}`)
		at := a.job(two).at("job.discarded_at")
		for query, want := range map[string][]string{
			"type=email.send":                           {one},
			"type=email.send,email.sent":                {two, one},
			"type=email.*":                              {two, one},
			"type=mail.*":                               {},
			"error_type=TimeoutError":                   {one},
			"error_type=" + url.QueryEscape("Zürich"):   {two},
			"error_code=smtp":                           {one},
			"error_code=" + url.QueryEscape(`say "x"\`): {two},
			"error_code=smtp&error_type=Other":          {},
			"since=2000-01-01T00:00:00Z":                {two, one},
			"until=2000-01-01T00:00:00Z":                {},
			"since=1h":                                  {two, one},
			"older_than=1h":                             {},
			"since=" + at:                               {two},
			"until=" + at:                               {two, one},
		} {
			r := a.get("/ojs/v1/dead-letter?queue=" + q + "&" + query).is(200)
			require.Equal(t, want, r.list("jobs", "id"), query)
			require.Equal(t, strconv.Itoa(len(want)), r.at("total"), query)
		}
	})

	t.Run("FiltersWhatTheServerMade", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"2020-01-01T00:00:00Z","retry":{"on_exhaustion":"dead_letter"}`, q)
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		for _, name := range []string{"error_type", "error_code"} {
			r := a.get("/ojs/v1/dead-letter?" + name + "=expired&queue=" + q).is(200)
			require.Equal(t, []string{id}, r.list("jobs", "id"))
			require.False(t, r.has("jobs.0.completed_at"))
			require.Equal(t, "0", r.at("jobs.0.total_attempts"))
		}
		require.Equal(t, `{"expired":1}`, a.get("/ojs/v1/dead-letter/stats?queue="+q).at("by_error_type"))
	})

	t.Run("RefusesBadQueries", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, query := range []string{
			"limit=x", "limit=0", "limit=-1", "limit=1.5", "offset=-1", "offset=x", "offset=1000001", "page=0", "cursor=x", "cursor=AAAA", "since=yesterday", "until=1", "since=%2B1h",
			"older_than=7x", "include=some", "queue=%00", "type=%ff", "error_type=%00", "cursor=" + strings.Repeat("7", 32), "limit=99999999999999999999",
		} {
			require.Equal(t, "invalid_request", a.get("/ojs/v1/dead-letter?"+query).is(400).at("error.code"), query)
		}
		require.Equal(t, "200", a.get("/ojs/v1/dead-letter?limit=201").is(200).at("pagination.limit"))
		require.Zero(t, a.get("/ojs/v1/dead-letter?offset=1000000").is(200).count("jobs"))
	})

	t.Run("PagesAreStableUnderInserts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		var made []string
		for range 7 {
			made = append(made, a.deadLetter(q, "t", `{}`))
		}
		slices.Reverse(made)
		var got []string
		path := "/ojs/v1/dead-letter?limit=2&queue=" + q
		for next := ""; ; {
			r := a.get(path + next).is(200)
			got = append(got, r.list("jobs", "id")...)
			a.deadLetter(q, "late", `{}`)
			if r.at("pagination.has_more") == "false" {
				require.False(t, r.has("pagination.next_cursor"))
				break
			}
			next = "&cursor=" + r.at("pagination.next_cursor")
		}
		require.Equal(t, made, got)
	})

	t.Run("Statistics", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		r := a.get("/ojs/v1/dead-letter/stats").is(200)
		require.Equal(t, "0", r.at("total"))
		require.Equal(t, "{}", r.at("by_queue"))
		require.False(t, r.has("oldest_at"))
		one := a.deadLetter("email", "email.send", `{"type":"TimeoutError"}`)
		a.deadLetter("email", "email.sent", `{"type":"say \"x\""}`)
		two := a.deadLetter("other", "email.send", `{"type":"TimeoutError"}`)
		for _, path := range []string{"/ojs/v1/dead-letter/stats", "/ojs/v1/admin/dead-letter/stats"} {
			r := a.get(path).is(200)
			require.Equal(t, "3", r.at("total"))
			require.Equal(t, `{"email":2,"other":1}`, r.at("by_queue"))
			require.Equal(t, `{"email.send":2,"email.sent":1}`, r.at("by_type"))
			require.Equal(t, `{"TimeoutError":2,"say \"x\"":1}`, r.at("by_error_type"))
			require.Equal(t, a.job(one).at("job.discarded_at"), r.at("oldest_at"))
			require.Equal(t, a.job(two).at("job.discarded_at"), r.at("newest_at"))
			require.Equal(t, "P180D", r.at("retention.max_age"))
			require.Equal(t, "10000", r.at("retention.max_count"))
			next, err := time.Parse(time.RFC3339, r.at("retention.next_prune_at"))
			require.NoError(t, err)
			require.WithinDuration(t, time.Now().Add(time.Minute), next, 20*time.Second)
		}
		require.Equal(t, "1", a.get("/ojs/v1/dead-letter/stats?queue=other").is(200).at("total"))
	})
}

// TestDeadLetterBulk covers docs/reference/retries.md, Dead-letter endpoints: bulk calls.
func TestDeadLetterBulk(t *testing.T) {
	t.Parallel()

	t.Run("Retry", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		one, two, three := a.deadLetter("q", "a.b", `{"code":"x"}`), a.deadLetter("q", "a.c", `{"type":"y"}`), a.deadLetter("p", "a.b", `{"code":"x"}`)
		plain := a.discardedJob()
		for _, body := range []string{``, `{}`, `{"confirm":false}`, `{"filter":{"queue":"q"}}`, `{"filter":{},"confirm":"yes"}`, `{"filter":[],"confirm":true}`,
			`{"filter":{"queue":7},"confirm":true}`, `{"filter":{"since":"x"},"confirm":true}`, `{"filter":{"ids":[7]},"confirm":true}`, `{"filter":{"state":"active"},"confirm":true}`,
			`{"filter":{"queue":[]},"confirm":true}`, `{"filter":{"queue":"\u0000"},"confirm":true}`} {
			require.Equal(t, "invalid_payload", a.post("/ojs/v1/dead-letter/retry", body).is(400).at("error.code"), body)
		}
		require.Equal(t, `{"action":"retry","errors":[],"failed":0,"matched":0,"retried":0,"succeeded":0}`,
			a.post("/ojs/v1/dead-letter/retry", `{"filter":{"ids":["`+newID()+`","strange","`+plain+`"]},"confirm":true}`).is(200).body)
		require.Equal(t, "0", a.post("/ojs/v1/dead-letter/retry", `{"filter":{"ids":[]},"confirm":true}`).is(200).at("matched"))
		require.Equal(t, "1", a.post("/ojs/v1/dead-letter/retry", `{"filter":{"queue":"q","error_code":"x"},"confirm":true}`).is(200).at("succeeded"))
		require.Equal(t, "1", a.post("/ojs/v1/admin/dead-letter/retry", `{"error_type":"y","since":"2000-01-01T00:00:00Z","confirm":true}`).is(200).at("retried"))
		require.Equal(t, "1", a.post("/ojs/v1/dead-letter/retry", `{"confirm":true}`).is(200).at("succeeded"))
		for _, id := range []string{one, two, three} {
			require.Equal(t, "available", a.job(id).at("job.state"))
			require.Equal(t, "1", a.job(id).at("job.replay_count"))
		}
		require.Equal(t, "discarded", a.job(plain).at("job.state"))
	})

	t.Run("Delete", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		one, two := a.deadLetter("q", "a.b", `{}`), a.deadLetter("q", "a.b", `{}`)
		require.Equal(t, `{"deleted":true,"job_id":"`+one+`"}`, a.del("/ojs/v1/dead-letter/"+one).is(200).body)
		require.Empty(t, a.del("/ojs/v1/admin/dead-letter/"+two).is(204).body)
		for _, id := range []string{one, two, newID(), "strange", a.jobIn("active")} {
			for _, path := range []string{"/ojs/v1/dead-letter/", "/ojs/v1/admin/dead-letter/"} {
				require.Equal(t, "dead_letter_job", a.del(path+id).is(404).at("error.details.resource_type"))
			}
		}
		a.get("/ojs/v1/jobs/" + one).is(404)
		require.Equal(t, "0", a.get("/ojs/v1/queues/q/stats").at("stats.discarded"))
	})

	t.Run("Purge", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for range 3 {
			a.deadLetter("q", "a.b", `{"type":"x"}`)
		}
		a.deadLetter("p", "a.b", `{}`)
		plain := a.discardedJob()
		for _, c := range [][3]string{{"GET", "retry", "POST"}, {"GET", "purge", "POST"}, {"DELETE", "retry", "POST"}, {"DELETE", "stats", "GET HEAD"}} {
			require.Equal(t, c[2], allowed(a.do(c[0], "/ojs/v1/dead-letter/"+c[1], nil).fails(405, "invalid_request", "method_not_allowed")))
		}
		for _, query := range []string{"", "?confirm=false", "?queue=q"} {
			a.del("/ojs/v1/dead-letter"+query).fails(400, "invalid_request", "invalid_request")
		}
		a.del("/ojs/v1/dead-letter?confirm=true&older_than=7x").is(400)
		a.post("/ojs/v1/dead-letter/purge?older_than=7x", "").is(400)
		a.do("DELETE", "/ojs/v1/admin/dead-letter", strings.NewReader(`{"older_than":"30d"}`)).is(400)
		for _, age := range []string{"7d", "24h", "30m", "P7D", "2020-01-01T00:00:00Z"} {
			require.Equal(t, `{"action":"purge","deleted":0,"purged_count":0}`, a.post("/ojs/v1/dead-letter/purge?older_than="+age, "").is(200).body)
		}
		require.Equal(t, "0", a.do("DELETE", "/ojs/v1/admin/dead-letter", strings.NewReader(`{"older_than":"30d","confirm":true}`)).is(200).at("deleted"))
		require.Equal(t, "3", a.del("/ojs/v1/dead-letter?confirm=true&queue=q&error_type=x").is(200).at("deleted"))
		require.Equal(t, "1", a.post("/ojs/v1/dead-letter/purge?older_than=0s", "{}").is(200).at("purged_count"))
		require.Equal(t, "discarded", a.job(plain).at("job.state"))
		require.Equal(t, "0", a.get("/ojs/v1/queues/q/stats").at("stats.discarded"))
	})
}

// An empty parameter, from an unset variable of a script, does not mean all.
func TestDeadLetterPurgeIsCareful(t *testing.T) {
	t.Parallel()
	a := setup(t)
	id := a.deadLetter("q", "email.send", `{"message":"boom"}`)
	for _, name := range []string{"queue", "type", "error_type", "error_code", "since", "until", "older_than"} {
		a.del("/ojs/v1/dead-letter?confirm=true&" + name + "=").is(400)
		a.post("/ojs/v1/dead-letter/purge?"+name+"=", "").is(400)
	}
	for _, body := range []string{`{"filter":{"queue":"other"}}`, `{"queue":"other"}`, `{"confirm":false}`} {
		require.Equal(t, 400, a.post("/ojs/v1/dead-letter/purge", body).status)
	}
	require.Equal(t, "0", a.del("/ojs/v1/dead-letter?confirm=true&until=0001-01-01T00:00:00Z").is(200).at("deleted"))
	a.job(id)
	require.Equal(t, "1", a.post("/ojs/v1/dead-letter/purge", "{}").is(200).at("deleted"))
}

// discardedJob makes a discarded job that is no dead letter.
func (a *node) discardedJob() string {
	a.t.Helper()
	q := queue()
	id := a.busy(q, `,"retry":{"on_exhaustion":"discard"}`)
	a.nack(id, `"error":{"message":"boom","retryable":false}`).is(200)
	return id
}
