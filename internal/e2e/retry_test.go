package e2e_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestManualRetry covers docs/reference/retries.md, Manual retry.
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
		waiting := a.parked(to, `"wait_ms":20000`)
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

// TestFailureOutcomes covers docs/reference/retries.md, Failure and Dead letters: what a failure makes of a job, and whether it is listed.
func TestFailureOutcomes(t *testing.T) {
	t.Parallel()
	a := setup(t)
	const dead, discard = `"on_exhaustion":"dead_letter"`, `"on_exhaustion":"discard"`
	for name, c := range map[string]struct {
		retry, failure, state string
		listed                bool
	}{
		"Discard":                     {dead, `{"code":"DISCARD"}`, "discarded", false},
		"Fail":                        {dead, `{"code":"FAIL","retryable":true}`, "discarded", false},
		"DiscardIsExact":              {dead, `{"code":"discard"}`, "retryable", false},
		"DeadLetter":                  {``, `{"code":"DEAD_LETTER"}`, "discarded", true},
		"DeadLetterIsExact":           {``, `{"code":"dead_letter"}`, "retryable", false},
		"Exhausted":                   {`"max_attempts":1`, `{}`, "discarded", true},
		"ExhaustedByDefault":          {``, `{"retryable":false}`, "discarded", true},
		"ExhaustedToDiscard":          {`"max_attempts":1,` + discard, `{}`, "discarded", false},
		"NonRetryableToDiscard":       {discard, `{"retryable":false}`, "discarded", false},
		"ExhaustedToDeadLetter":       {`"max_attempts":1,` + dead, `{}`, "discarded", true},
		"ZeroAttemptsIsOne":           {`"max_attempts":0,` + dead, `{"retryable":true}`, "discarded", true},
		"ExhaustedInSpiteOfRetry":     {`"max_attempts":1`, `{"code":"RETRY","retryable":true}`, "discarded", true},
		"NonRetryableByType":          {`"non_retryable_errors":["auth.*"],` + dead, `{"type":"auth.token","retryable":true}`, "discarded", true},
		"NonRetryableByClass":         {`"non_retryable_errors":["Auth.*"]`, `{"details":{"error_class":"AuthenticationError"}}`, "discarded", true},
		"NonRetryableByCode":          {`"non_retryable_errors":["handler_error"]`, `{"message":"x"}`, "discarded", true},
		"NonRetryableNotByMessage":    {`"non_retryable_errors":["Fatal"]`, `{"message":"Fatal"}`, "retryable", false},
		"NonRetryableIsCaseSensitive": {`"non_retryable_errors":["fatal"]`, `{"type":"Fatal"}`, "retryable", false},
		"NonRetryableBeatsRetry":      {`"non_retryable_errors":["RETRY"]`, `{"code":"RETRY"}`, "discarded", true},
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
