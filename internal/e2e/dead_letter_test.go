package e2e_test

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Contract 20 §8.1 and §8.2.
func TestDeadLetterList(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("HoldsMarkedJobsOnly", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		dead := a.deadLetter(q, "email.send", `{"message":"boom"}`)
		plain := a.push(`"type":"t","args":[],"queue":"%s","retry":{"max_attempts":1}`, q)
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

// Contract 20 §8.3.
func TestManualRetry(t *testing.T) {
	t.Parallel()
	a := setup(t)
	routes := []string{"/ojs/v1/dead-letter/%s/retry", "/ojs/v1/admin/dead-letter/%s/retry", "/ojs/v1/admin/jobs/%s/retry"}

	t.Run("StartsAnew", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for n, route := range routes {
			q := queue()
			id := a.push(`"type":"t","args":[1],"meta":{"k":"v"},"queue":"%s","total_timeout":3600,"retry":{"max_attempts":2,"initial_interval":"PT0.001S","on_exhaustion":"dead_letter"}`, q)
			for range 2 {
				require.Equal(t, id, a.fetch(q, `"wait_ms":5000`).at("jobs.0.id"))
				a.nack(id, `"error":{"message":"boom"}`).is(200)
			}
			before := a.job(id)
			r := a.post(fmt.Sprintf(route, id), []string{"", "{}", `{"override":null}`}[n]).is(200)
			job := a.job(id)
			require.Equal(t, job.at("job"), r.at("job"))
			if n > 0 {
				require.Equal(t, id, r.at("id"))
			}
			require.Equal(t, "available", job.at("job.state"))
			require.Equal(t, "0", job.at("job.attempt"))
			require.Equal(t, "2", job.at("job.max_attempts"))
			require.Equal(t, "1", job.at("job.replay_count"))
			require.Equal(t, job.at("job.enqueued_at"), job.at("job.re_enqueued_at"))
			require.Equal(t, before.at("job.errors"), job.at("job.previous_errors"))
			for _, kept := range []string{"created_at", "type", "args", "meta", "queue", "retry", "total_timeout"} {
				require.Equal(t, before.at("job."+kept), job.at("job."+kept))
			}
			for _, gone := range []string{"error", "errors", "completed_at", "discarded_at", "started_at", "retry_delay_ms", "dead_lettered_at", "total_attempts"} {
				require.False(t, job.has("job."+gone), gone)
			}
			require.Equal(t, "1", a.fetch(q).at("jobs.0.attempt"))
			require.Equal(t, "retryable", a.nack(id, `"error":{"message":"again"}`).is(200).at("state"), "all attempts again")
			job = a.job(id)
			require.Equal(t, []string{"again"}, job.list("job.errors", "message"))
			require.Equal(t, []string{"boom", "boom"}, job.list("job.previous_errors", "message"))
		}
	})

	t.Run("TakesDiscardedJobsOnly", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.post(fmt.Sprintf(routes[0], a.jobIn("discarded")), "").is(200)
		for _, state := range states {
			if state == "discarded" {
				continue
			}
			id := a.jobIn(state)
			before := a.job(id).body
			for _, route := range routes[:2] {
				r := a.post(fmt.Sprintf(route, id), "").fails(404, "not_found", "not_found")
				require.Equal(t, "dead_letter_job", r.at("error.details.resource_type"))
			}
			a.post(fmt.Sprintf(routes[2], id), "").fails(409, "conflict", "invalid_state_transition")
			require.Equal(t, before, a.job(id).body)
		}
		for _, id := range []string{newID(), "strange"} {
			require.Equal(t, "dead_letter_job", a.post(fmt.Sprintf(routes[0], id), "").is(404).at("error.details.resource_type"))
			require.Equal(t, "job", a.post(fmt.Sprintf(routes[2], id), "").is(404).at("error.details.resource_type"))
		}
	})

	t.Run("Overrides", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		from, to := queue(), queue()
		id := a.push(`"type":"t","args":[1],"meta":{"a":1,"b":"\u0000"},"queue":"%s","x_tail":"\u0000","retry":{"maxAttempts":1,"jitter":false,"on_exhaustion":"dead_letter"}`, from)
		a.fetch(from)
		a.nack(id).is(200)
		waiting := a.parked(to, `"wait_ms":10000`)
		a.post(fmt.Sprintf(routes[0], id), `{"override":{"queue":"`+to+`","args":[{"n":1.0}],"priority":"HIGH","meta":{"a":2,"c":"\u0000"},"retry":{"max_attempts":5,"initial_interval":"PT10M","jitter":null}}}`).is(200)
		require.Equal(t, id, (<-waiting).at("jobs.0.id"))
		job := a.job(id)
		require.Equal(t, to, job.at("job.queue"))
		require.Equal(t, `[{"n":1.0}]`, job.at("job.args"))
		require.Equal(t, "10", job.at("job.priority"))
		require.Equal(t, `{"a":2,"b":"\u0000","c":"\u0000"}`, job.at("job.meta"))
		require.Equal(t, `{"jitter":false,"on_exhaustion":"dead_letter","max_attempts":5,"initial_interval":"PT10M"}`, job.at("job.retry"))
		require.Equal(t, "5", job.at("job.max_attempts"))
		require.Equal(t, "600000", a.nack(id).is(200).at("retry_delay_ms"))
		for _, state := range []string{"discarded", "available", "active", "retryable"} {
			require.Equal(t, "0", a.get("/ojs/v1/queues/"+from+"/stats").at("stats."+state), state)
		}
		require.Equal(t, "1", a.get("/ojs/v1/queues/"+to+"/stats").at("stats.retryable"))
		require.Equal(t, "0", a.get("/ojs/v1/queues/"+to+"/stats").at("stats.discarded"))
	})

	t.Run("ValidatesOverridesAsAtEnqueue", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("discarded")
		before := a.job(id).body
		for override, field := range map[string]string{
			`7`: "override", `[]`: "override", `{"queue":"NOT OK"}`: "override.queue", `{"queue":7}`: "override.queue", `{"args":{}}`: "override.args", `{"args":"x"}`: "override.args",
			`{"priority":101}`: "override.priority", `{"priority":1.5}`: "override.priority", `{"meta":[]}`: "override.meta", `{"type":"other"}`: "override.type",
			`{"max_attempts":3}`: "override.max_attempts", `{"args":` + repeated('[', 200) + repeated(']', 200) + `}`: "override.args",
		} {
			r := a.post(fmt.Sprintf(routes[0], id), `{"override":`+override+`}`).is(400)
			require.Equal(t, field, r.at("error.details.field"), override)
		}
		for _, policy := range []string{`7`, `{"max_attempts":-1}`, `{"backoff_coefficient":0.5}`, `{"initial_interval":"PT9M","max_interval":"PT1M"}`} {
			a.post(fmt.Sprintf(routes[0], id), `{"override":{"retry":`+policy+`}}`).fails(422, "validation_error", "validation_error")
		}
		a.post(fmt.Sprintf(routes[0], id), `{"override":{"meta":{"k":"`+repeated('x', 66_000)+`"}}}`).is(413)
		for _, body := range []string{`[]`, `x`, `{"override":{}`, "{\"override\":{\"meta\":{\"a\":\"\xff\"}}}"} {
			a.post(fmt.Sprintf(routes[0], id), body).is(400)
		}
		require.Equal(t, before, a.job(id).body)
	})

	t.Run("DropsAnExpiryThatIsOver", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		over := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"2020-01-01T00:00:00Z","x_note":"\u0000"`, q)
		eventually(t, func() bool { return a.job(over).at("job.state") == "discarded" })
		require.True(t, a.job(over).has("job.expires_at"))
		a.post(fmt.Sprintf(routes[0], over), "").is(200)
		require.False(t, a.job(over).has("job.expires_at"))
		require.True(t, a.job(over).has("job.x_note"))
		require.Equal(t, over, a.fetch(q).at("jobs.0.id"))

		ahead := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"2999-01-01T00:00:00Z"`, q)
		a.fetch(q)
		a.nack(ahead, `"error":{"code":"FAIL"}`).is(200)
		a.post("/ojs/v1/jobs/bulk/retry", `{"job_ids":["`+ahead+`"]}`).is(200)
		require.Equal(t, "2999-01-01T00:00:00Z", a.job(ahead).at("job.expires_at"))
	})

	t.Run("OneOfManyWins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for range 5 {
			id := a.jobIn("discarded")
			outcomes := make([]int, 8)
			var wg sync.WaitGroup
			for i := range outcomes {
				wg.Go(func() {
					if i%4 == 3 {
						outcomes[i] = a.del("/ojs/v1/dead-letter/" + id).status
					} else {
						outcomes[i] = a.post(fmt.Sprintf(routes[0], id), "").status
					}
				})
			}
			wg.Wait()
			slices.Sort(outcomes)
			require.Equal(t, []int{200, 404, 404, 404, 404, 404, 404, 404}, outcomes)
		}
	})
}

// Contract 20 §8.2, bulk calls.
func TestDeadLetterBulk(t *testing.T) {
	t.Parallel()

	t.Run("Retry", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		one, two, three := a.deadLetter("q", "a.b", `{"code":"x"}`), a.deadLetter("q", "a.c", `{"type":"y"}`), a.deadLetter("p", "a.b", `{"code":"x"}`)
		plain := a.jobIn("discarded")
		for _, body := range []string{``, `{}`, `{"confirm":false}`, `{"filter":{"queue":"q"}}`, `{"filter":{},"confirm":"yes"}`, `{"filter":[],"confirm":true}`, `{"filter":{"strange":1},"confirm":true}`,
			`{"filter":{"queue":7},"confirm":true}`, `{"filter":{"since":"x"},"confirm":true}`, `{"filter":{"ids":[7]},"confirm":true}`, `{"filter":{"state":"active"},"confirm":true}`, `{"strange":1,"confirm":true}`,
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
		plain := a.jobIn("discarded")
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

// Contract 20 §3.1 and §3.2, the aliases.
func TestAckAndNackByPath(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, body := range []string{"", " ", "{}", `{"job_id":"ignored","worker_id":"w1","attempt":1}`} {
		id := a.jobIn("active")
		r := a.post("/ojs/v1/jobs/"+id+"/ack", body).is(200)
		require.Equal(t, "true", r.at("acknowledged"))
		require.Equal(t, id, r.at("job_id"))
		a.post("/ojs/v1/jobs/"+id+"/ack", body).fails(409, "conflict", "invalid_state_transition")
	}
	id := a.jobIn("active")
	a.post("/ojs/v1/jobs/"+id+"/ack", `{"result":"`+repeated('x', 1_048_576)+`"}`).is(413)
	a.post("/ojs/v1/jobs/"+id+"/ack", `{"attempt":2}`).fails(409, "conflict", "stale_attempt")
	a.post("/ojs/v1/jobs/"+id+"/ack", `{"worker_id":"w2"}`).fails(409, "conflict", "not_owner")
	a.post("/ojs/v1/jobs/"+id+"/nack", ``).is(400)
	a.post("/ojs/v1/jobs/"+id+"/nack", `{}`).invalid("error")
	a.post("/ojs/v1/jobs/"+id+"/nack", `{"error":7}`).invalid("error")
	r := a.post("/ojs/v1/jobs/"+id+"/nack", `{"error":"it broke"}`).is(200)
	require.Equal(t, "retryable", r.at("state"))
	require.Equal(t, "handler_error", r.at("job.error.code"))
	require.Equal(t, "it broke", r.at("job.error.message"))
	held := a.jobIn("active")
	require.Equal(t, "0", a.post("/ojs/v1/jobs/"+held+"/nack", `{"requeue":true}`).is(200).at("attempt"))
	for _, path := range []string{newID(), "strange"} {
		a.post("/ojs/v1/jobs/"+path+"/ack", "").is(404)
		a.post("/ojs/v1/jobs/"+path+"/nack", `{"error":{}}`).is(404)
	}
	a.nack(held, `"error":"a text"`).invalid("error")
}

// Contract 20 §2.7 and §8.1: what a failure makes of a job, and whether it is listed.
func TestFailureOutcomes(t *testing.T) {
	t.Parallel()
	a := setup(t)
	const dead = `"on_exhaustion":"dead_letter"`
	for name, c := range map[string]struct {
		retry, failure, state string
		listed                bool
	}{
		"Discard":                     {dead, `{"code":"DISCARD"}`, "discarded", false},
		"Fail":                        {dead, `{"code":"FAIL","retryable":true}`, "discarded", false},
		"DiscardIsExact":              {dead, `{"code":"discard"}`, "retryable", false},
		"DeadLetter":                  {``, `{"code":"DEAD_LETTER"}`, "discarded", true},
		"DeadLetterIsExact":           {``, `{"code":"dead_letter"}`, "retryable", false},
		"Exhausted":                   {`"max_attempts":1`, `{}`, "discarded", false},
		"ExhaustedToDeadLetter":       {`"max_attempts":1,` + dead, `{}`, "discarded", true},
		"ZeroAttemptsIsOne":           {`"max_attempts":0,` + dead, `{"retryable":true}`, "discarded", true},
		"ExhaustedInSpiteOfRetry":     {`"max_attempts":1`, `{"code":"RETRY","retryable":true}`, "discarded", false},
		"NonRetryableByType":          {`"non_retryable_errors":["auth.*"],` + dead, `{"type":"auth.token","retryable":true}`, "discarded", true},
		"NonRetryableByClass":         {`"non_retryable_errors":["Auth.*"]`, `{"details":{"error_class":"AuthenticationError"}}`, "discarded", false},
		"NonRetryableByCode":          {`"non_retryable_errors":["handler_error"]`, `{"message":"x"}`, "discarded", false},
		"NonRetryableNotByMessage":    {`"non_retryable_errors":["Fatal"]`, `{"message":"Fatal"}`, "retryable", false},
		"NonRetryableIsCaseSensitive": {`"non_retryable_errors":["fatal"]`, `{"type":"Fatal"}`, "retryable", false},
		"NonRetryableBeatsRetry":      {`"non_retryable_errors":["RETRY"]`, `{"code":"RETRY"}`, "discarded", false},
		"FlagFalse":                   {dead, `{"code":"x","retryable":false}`, "discarded", true},
		"FlagFalseWithRetry":          {``, `{"code":"RETRY","retryable":false}`, "retryable", false},
		"HopelessCode":                {dead, `{"code":"Not_Found"}`, "discarded", true},
		"HopelessCodeWithFlag":        {``, `{"code":"not_found","retryable":true}`, "retryable", false},
		"UnknownCode":                 {``, `{"code":"handler_not_found"}`, "retryable", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			q := queue()
			id := a.push(`"type":"t","args":[],"queue":"%s","retry":{%s}`, q, c.retry)
			a.fetch(q)
			r := a.nack(id, `"error":`+c.failure).is(200)
			require.Equal(t, c.state, r.at("state"))
			require.Equal(t, c.state == "discarded", r.has("discarded_at"))
			require.Equal(t, c.state == "retryable", r.has("next_attempt_at"))
			require.Equal(t, c.listed, a.get("/ojs/v1/dead-letter?queue="+q).at("total") == "1")
			require.Equal(t, c.listed, a.job(id).has("job.dead_lettered_at"))
		})
	}

	t.Run("NoTimeForAnotherAttempt", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for interval, state := range map[string]string{"PT5S": "retryable", "PT9M": "discarded"} {
			q := queue()
			id := a.push(`"type":"t","args":[],"queue":"%s","total_timeout":600,"timeout":100,"retry":{"initial_interval":"%s","max_interval":"PT1H","jitter":false,`+dead+`}`, q, interval)
			a.fetch(q)
			require.Equal(t, state, a.nack(id).is(200).at("state"), interval)
			require.Equal(t, state == "discarded", a.job(id).has("job.dead_lettered_at"))
		}
	})

	t.Run("DelayIsShownInTheNextFetch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.02S","jitter":false}`, q)
		a.fetch(q, `"worker_id":"w1"`)
		r := a.nack(id, `"error":{"type":"X","message":"m","stack_trace":"a\nb"}`).is(200)
		require.Equal(t, "20", r.at("retry_delay_ms"))
		next := a.fetch(q, `"wait_ms":5000`)
		require.Equal(t, "20", next.at("jobs.0.retry_delay_ms"))
		require.False(t, next.has("jobs.0.next_attempt_at"))
		failure := next.at("jobs.0.errors.0")
		require.Equal(t, next.at("jobs.0.error"), failure)
		e := reply{t: t, body: failure}
		require.Equal(t, "1", e.at("attempt"))
		require.Equal(t, "handler_error", e.at("code"))
		require.Equal(t, "X", e.at("type"))
		require.Equal(t, "w1", e.at("worker_id"))
		require.Equal(t, []string{"a", "b"}, e.texts("backtrace"))
		require.Equal(t, e.at("occurred_at"), e.at("timestamp"))
		done := a.ack(id).is(200)
		require.False(t, done.has("job.error"))
		require.True(t, done.has("job.errors"))
	})
}

// What deletes must not take an unset variable of a script for "all".
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
