package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNack covers docs/reference/http.md, Nack; docs/reference/jobs.md, Job error.
func TestNack(t *testing.T) {
	t.Parallel()
	a := setup(t)

	// active makes an active job with the given attributes.
	active := func(a *node, more string) string {
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"%s`, q, more)
		require.Equal(a.t, id, a.fetch(q, `"worker_id":"w1"`).at("jobs.0.id"))
		return id
	}

	t.Run("Retries", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := active(a, `,"retry":{"max_attempts":4,"initial_interval":"PT10S","jitter":false}`)
		r := a.nack(id, `"error":{"code":"smtp_down","message":"refused","retryable":true,"details":{"host":"x"}}`).is(200)
		require.Equal(t, id, r.at("id"))
		require.Equal(t, id, r.at("job_id"))
		require.Equal(t, "retryable", r.at("state"))
		require.Equal(t, "1", r.at("attempt"))
		require.Equal(t, "4", r.at("max_attempts"))
		require.Equal(t, "10000", r.at("retry_delay_ms"))
		require.Regexp(t, serverTime, r.at("next_attempt_at"))
		job := a.job(id)
		require.Equal(t, job.at("job"), r.at("job"))
		require.Equal(t, r.at("next_attempt_at"), job.at("job.next_attempt_at"))
		require.Equal(t, "10000", job.at("job.retry_delay_ms"))
		require.True(t, job.has("job.started_at"))
		for _, absent := range []string{"completed_at", "discarded_at", "worker_id", "result"} {
			require.False(t, job.has("job."+absent), absent)
		}
		require.Equal(t, job.at("job.error"), job.at("job.errors.0"))
	})

	t.Run("Discards", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, c := range []struct{ job, failure string }{
			{`,"retry":{"max_attempts":1}`, `{"retryable":true}`},
			{`,"retry":{"max_attempts":0}`, `{"message":"m"}`},
			{``, `{"retryable":false}`},
			{`,"retry":{"non_retryable_errors":["bad.*"]}`, `{"code":"bad.input"}`},
			{`,"retry":{"non_retryable_errors":["Bad"]}`, `{"type":"Bad"}`},
		} {
			id := active(a, c.job)
			r := a.nack(id, `"error":`+c.failure).is(200)
			require.Equal(t, "discarded", r.at("state"), c.job)
			require.Regexp(t, serverTime, r.at("discarded_at"))
			require.Equal(t, r.at("discarded_at"), r.at("completed_at"))
			job := a.job(id)
			require.Equal(t, r.at("discarded_at"), job.at("job.discarded_at"))
			require.Equal(t, r.at("discarded_at"), job.at("job.completed_at"))
			require.False(t, job.has("job.next_attempt_at"))
			require.False(t, job.has("job.worker_id"))
		}
	})

	t.Run("ExhaustsAttempts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT0.001S","jitter":false}`, q)
		for attempt, state := range []string{"retryable", "retryable", "discarded"} {
			require.Equal(t, id, a.fetch(q, `"wait_ms":5000`).at("jobs.0.id"))
			r := a.nack(id, fmt.Sprintf(`"error":{"message":"m%d"}`, attempt+1)).is(200)
			require.Equal(t, state, r.at("state"))
		}
		require.Equal(t, []string{"m1", "m2", "m3"}, a.job(id).list("job.errors", "message"))
		require.Equal(t, []string{"1", "2", "3"}, a.job(id).list("job.errors", "attempt"))
	})

	t.Run("Requeues", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := active(a, ``)
		before := a.job(id)
		r := a.nack(id, `"requeue":true`).is(200)
		require.Equal(t, "available", r.at("state"))
		require.Equal(t, "0", r.at("attempt"))
		require.Regexp(t, serverTime, r.at("enqueued_at"))
		require.Greater(t, r.at("enqueued_at"), before.at("job.created_at"))
		job := a.job(id)
		for _, absent := range []string{"error", "errors", "started_at", "worker_id", "next_attempt_at", "retry_delay_ms"} {
			require.False(t, job.has("job."+absent), absent)
		}
		require.Equal(t, "1", a.fetch(job.at("job.queue")).at("jobs.0.attempt"))
	})

	t.Run("RequeuesWithADelay", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		limited := `"type":"t","args":[],"options":{"queue":"%s","priority":%d,"rate_limit":{"key":"%[1]s","concurrency":1}}`
		id, other := a.push(limited, q, 3), a.push(limited, q, 0)
		require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
		for n, ms := range []int64{3_600_000, 7_200_000} {
			before := time.Now()
			r := a.nack(id, `"requeue":true`, fmt.Sprint(`"delay_ms":`, ms)).is(200)
			require.Equal(t, []string{"scheduled", "0"}, []string{r.at("state"), r.at("attempt")})
			job := a.job(id)
			for _, absent := range []string{"error", "errors", "started_at", "worker_id", "next_attempt_at", "retry_delay_ms"} {
				require.False(t, job.has("job."+absent), absent)
			}
			require.Equal(t, r.at("scheduled_at"), job.at("job.scheduled_at"))
			at, err := time.Parse(time.RFC3339, job.at("job.scheduled_at"))
			require.NoError(t, err)
			require.WithinDuration(t, before.Add(time.Duration(ms)*time.Millisecond), at, 10*time.Minute)
			require.Equal(t, 1, strings.Count(job.body, `"scheduled_at"`))
			if n == 0 { // its place under the limit is free, and the time comes
				require.Equal(t, other, a.fetch(q, `"wait_ms":20000`).at("jobs.0.id"))
				a.nack(other, `"requeue":true`, `"delay_ms":3600000`).is(200)
				a.exec(`UPDATE ojs.jobs SET due_at = now() WHERE id = '` + id + `'`)
				require.Equal(t, "1", a.fetch(q, `"wait_ms":20000`).at("jobs.0.attempt"))
			}
		}
		id = active(a, ``)
		a.nack(id, `"requeue":true`, `"delay_ms":1`).is(200)
		require.Equal(t, "1", a.fetch(a.job(id).at("job.queue"), `"wait_ms":20000`).at("jobs.0.attempt"))
		a.nack(id, `"requeue":true`, `"delay_ms":0`).is(200)
		require.Equal(t, "available", a.job(id).at("job.state"))
	})

	t.Run("AFailureWithADelayIsRetriedNoEarlier", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for delay, want := range map[string]string{"90000": "90000", "5000": "10000", "0": "10000"} {
			id := active(a, `,"retry":{"initial_interval":"PT10S","max_interval":"PT20S","jitter":false}`)
			r := a.nack(id, `"error":{"message":"busy"}`, `"delay_ms":`+delay).is(200)
			require.Equal(t, []string{"retryable", want}, []string{r.at("state"), r.at("retry_delay_ms")})
		}
		last := active(a, `,"retry":{"max_attempts":1}`)
		require.Equal(t, "discarded", a.nack(last, `"error":{"message":"busy"}`, `"delay_ms":90000`).is(200).at("state"))
	})

	t.Run("RefusesBadFields", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := active(a, ``)
		a.nack(id, `"delay_ms":1`).invalid("error")
		a.nack(id, `"requeue":false`).invalid("error")
		for _, bad := range []string{`null`, `"boom"`, `[]`, `7`} {
			a.nack(id, `"error":`+bad).invalid("error")
		}
		a.nack(id, `"requeue":"yes"`, `"error":{}`).invalid("requeue")
		for _, bad := range []string{`-1`, `1.5`, `"PT1S"`, `3153600000001`} {
			a.nack(id, `"requeue":true,"delay_ms":`+bad).invalid("delay_ms")
		}
		a.nack(id, `"error":{},"delay_ms":-1`).invalid("delay_ms")
		require.Equal(t, "active", a.job(id).at("job.state"))
	})

	t.Run("NormalisesTheError", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		frames := `"f0"` + strings.Repeat(`,"f"`, 99)
		for _, c := range []struct{ sent, member, want string }{
			{`{}`, "type", "handler_error"},
			{`{}`, "code", "handler_error"},
			{`{}`, "message", "handler_error"},
			{`{}`, "retryable", "true"},
			{`{}`, "attempt", "1"},
			{`{}`, "details", ""},
			{`{}`, "backtrace", ""},
			{`{"code":"c"}`, "type", "c"},
			{`{"code":"c"}`, "message", "c"},
			{`{"code":"c","type":"T"}`, "type", "T"},
			{`{"code":"c","type":"T"}`, "code", "c"},
			{`{"type":"T","message":""}`, "message", "T"},
			{`{"code":"c","details":{"error_class":"E"}}`, "type", "E"},
			{`{"code":"c","type":"T","details":{"error_class":"E"}}`, "type", "T"},
			{`{"details":{"error_class":7},"code":"c"}`, "type", "c"},
			{`{"details":[1]}`, "details", `{"value":[1]}`},
			{`{"details":"x"}`, "details", `{"value":"x"}`},
			{`{"details":{"a":"` + repeated('x', 65_528) + `"}}`, "details", `{"a":"` + repeated('x', 65_528) + `"}`},
			{`{"details":{"a":"` + repeated('x', 65_529) + `"}}`, "details", `{"truncated":true,"original_bytes":65537}`},
			{`{"message":"` + repeated('m', 16_384) + `"}`, "message", repeated('m', 16_384)},
			{`{"message":"` + repeated('m', 16_385) + `"}`, "message", repeated('m', 16_384)},
			{`{"message":"` + repeated('m', 16_383) + `é"}`, "message", repeated('m', 16_383)},
			{`{"backtrace":["a","b"]}`, "backtrace", `["a","b"]`},
			{`{"backtrace":"a\nb\r\nc"}`, "backtrace", `["a","b","c"]`},
			{`{"backtrace":[` + frames + `]}`, "backtrace", `["f0"` + strings.Repeat(`,"f"`, 49) + `]`},
			{`{"backtrace":["` + repeated('x', 9_999) + `","abc"]}`, "backtrace", `["` + repeated('x', 9_999) + `","a"]`},
			{`{"retryable":"no"}`, "retryable", "true"},
			{`{"message":7}`, "message", "7"},
			{`{"message":"a\u0000b"}`, "message", "a\x00b"},
			{`{"message":"\ud800"}`, "message", "�"},
		} {
			id := active(a, `,"retry":{"initial_interval":"PT1M"}`) // it does not become available before it is read
			r := a.nack(id, `"error":`+c.sent).is(200)
			require.Equal(t, c.want, r.at("job.error."+c.member), "%.100s", c.sent)
			require.Regexp(t, serverTime, r.at("job.error.occurred_at"))
			require.Equal(t, r.at("job"), a.job(id).at("job"))
		}
		// Huge and empty errors are accepted.
		id := active(a, ``)
		a.nack(id, `"error":{"message":"`+repeated('m', 3_000_000)+`","details":{"d":"`+repeated('d', 3_000_000)+`"},"backtrace":"`+strings.Repeat(`x\n`, 1_000_000)+`"}`).is(200)
		deep := active(a, ``)
		a.nack(deep, `"error":{"details":`+repeated('[', 500)+repeated(']', 500)+`}`).is(200)
	})

	t.Run("KeepsTheNewestFifty", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"max_attempts":100,"initial_interval":"PT0.001S","max_interval":"PT0.001S","jitter":false}`, q)
		for attempt := 1; attempt <= 52; attempt++ {
			require.Equal(t, id, a.fetch(q, `"wait_ms":5000`).at("jobs.0.id"))
			a.nack(id).is(200)
		}
		attempts := a.job(id).list("job.errors", "attempt")
		require.Len(t, attempts, 50)
		require.Equal(t, "3", attempts[0])
		require.Equal(t, "52", attempts[49])
	})
}
