package e2e_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimes covers docs/reference/jobs.md, Times and durations.
func TestTimes(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("ClientTextIsEchoed", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, at := range []string{"2099-12-31T23:59:59Z", "2099-12-31T23:59:59.1Z", "2099-12-31T23:59:59.123456789-12:00", "2096-02-29T00:00:00+14:00", "2099-06-01T00:00:00.000+00:00",
			"2099-06-01T00:00:00+0530", "2099-06-01T00:00:00.5-05", "2099-06-01T00:00+02:00", "20990601T000000Z", "20990601T000000.25+0530", "20990601T0000-05"} {
			r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"scheduled_at":"`+at+`","expires_at":"`+at+`"}`, "OJS-Version: 1.0").is(201)
			require.Equal(t, at, r.at("job.scheduled_at"))
			require.Equal(t, at, r.at("job.expires_at"))
			require.Equal(t, r.body, a.job(r.at("job.id")).body)
		}
	})

	t.Run("MeanTheSameEverywhere", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		const in = "2099-06-01T05:30:00+05:30"
		for _, at := range []string{"2099-06-01T05:30:00+0530", "20990601T053000+0530", "2099-06-01T05:30+0530", "20990531T1900-05"} {
			q := queue()
			id := a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"%s"`, q, at)
			require.Equal(t, "true", a.one(`SELECT (scheduled_at = $2::text::timestamptz)::text FROM ojs.jobs WHERE id = $1`, id, in), at)
			bulk := `{"filter":{"queue":"` + q + `","enqueued_before":"` + at + `","since":"` + strings.Replace(at, "20", "19", 1) + `"}}`
			require.Equal(t, "1", a.post("/ojs/v1/jobs/bulk/cancel", bulk).is(200).at("cancelled"), at)
			for _, path := range []string{"events?since=%s&until=%s", "history?start=%s&end=%s", "dead-letter?since=%s&until=%s"} {
				a.get("/ojs/v1/" + fmt.Sprintf(path, at, url.QueryEscape(at))).is(200)
			}
			a.post("/ojs/v1/dead-letter/retry", `{"filter":{"since":"`+at+`"},"confirm":true}`).is(200)
		}
	})

	t.Run("DurationsAreResolved", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for text, length := range map[string]time.Duration{"+PT5S": 5 * time.Second, "PT5M": 5 * time.Minute, "P1DT1H": 25 * time.Hour, "P1W": 168 * time.Hour, "90s": 90 * time.Second, "+2h": 2 * time.Hour, "PT0.5S": 500 * time.Millisecond} {
			r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"scheduled_at":"`+text+`","expires_at":"`+text+`","x":1}`).is(201)
			created, err := time.Parse(time.RFC3339Nano, r.at("job.created_at"))
			require.NoError(t, err)
			for _, member := range []string{"job.scheduled_at", "job.expires_at"} {
				require.Regexp(t, serverTime, r.at(member))
				at, err := time.Parse(time.RFC3339Nano, r.at(member))
				require.NoError(t, err)
				require.Equal(t, length, at.Sub(created), text)
			}
			require.Equal(t, "1", r.at("job.x"))
		}
	})

	t.Run("RefusesOthers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, bad := range []string{
			`"2099-01-01T00:00:00"`, `"2099-01-01"`, `"2099-01-01 00:00:00Z"`, `"2099-01-01t00:00:00Z"`, `"2099-01-01T00:00:00z"`, `"2099-02-30T00:00:00Z"`, `"2099-01-01T24:00:00Z"`,
			`"2099-01-01T00:00:60Z"`, `"2099-01-01T00:00:00.Z"`, `"2099-01-01T00:00:00.1234567890Z"`, `"2099-01-01T00:00:00,1Z"`, `"2099-01-01T00:00:00+010"`, `"2099-01-01T00:00.5Z"`, `"2099-01-01T00Z"`, `"20990101T00:00:00Z"`, `"2099-01-01T000000Z"`, `"2099-01-01T00:00:00+24:00"`,
			`""`, `"soon"`, `"P"`, `"PT"`, `"-PT5S"`, `"++PT5S"`, `"5"`, `"-5s"`, `1767225600`, `true`,
		} {
			a.post("/ojs/v1/jobs", `{"type":"t","args":[],"scheduled_at":`+bad+`}`).invalid("scheduled_at")
			a.post("/ojs/v1/jobs", `{"type":"t","args":[],"options":{"expires_at":`+bad+`}}`).invalid("expires_at")
		}
	})

	t.Run("PastScheduleIsImmediate", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, at := range []string{"2001-01-01T00:00:00Z", "PT0S", "1970-01-01T00:00:00+14:00"} {
			r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"scheduled_at":"`+at+`"}`).is(201)
			require.Equal(t, "available", r.at("job.state"), at)
			require.Equal(t, r.at("job.created_at"), r.at("job.enqueued_at"))
			if at == "PT0S" {
				require.Equal(t, r.at("job.created_at"), r.at("job.scheduled_at"))
			}
		}
	})

	t.Run("ScheduledJobBecomesAvailable", func(t *testing.T) {
		t.Parallel()
		a := setup(t, rarePolls)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT4S"`, q) // a busy machine must look before it is due
		require.Equal(t, `[]`, a.fetch(q).at("jobs"))
		require.Equal(t, "scheduled", a.job(id).at("job.state"))
		require.Equal(t, id, a.fetch(q, `"wait_ms":20000`).at("jobs.0.id"))
		job := a.job(id)
		require.GreaterOrEqual(t, job.at("job.enqueued_at"), job.at("job.scheduled_at"))
	})

	t.Run("ExpiredJobIsDiscarded", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"2001-01-01T00:00:00Z"`, q)
		require.Equal(t, `[]`, a.fetch(q).at("jobs"))
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		job := a.job(id)
		require.Equal(t, "expired", job.at("job.error.code"))
		require.Equal(t, "expired", job.at("job.error.type"))
		require.False(t, job.has("job.completed_at"))
		require.True(t, job.has("job.discarded_at"))
		require.Equal(t, "2001-01-01T00:00:00Z", job.at("job.expires_at"))
	})
}
