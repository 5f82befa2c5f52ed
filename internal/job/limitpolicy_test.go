package job

import (
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/jsonread"
)

func TestRateLimit(t *testing.T) {
	t.Parallel()
	count := func(n int64) *int64 { return &n }
	second := func(n int64) *Window { return &Window{n, time.Second, "PT1S"} }
	for text, want := range map[string]Job{
		`{"max_per_second":5}`:                 {Limit: &LimitPolicy{Rate: second(5)}},
		`{"limit":5,"period":"minute"}`:        {Limit: &LimitPolicy{Rate: &Window{5, time.Minute, "minute"}}},
		`{"rate":5,"period":"PT0.5S"}`:         {Limit: &LimitPolicy{Rate: &Window{5, 500 * time.Millisecond, "PT0.5S"}}},
		`{"key":"k","max_per_second":1.0}`:     {LimitKey: "k", Limit: &LimitPolicy{Rate: second(1)}},
		`{"key":"k","rate":2,"period":"1d"}`:   {LimitKey: "k", Limit: &LimitPolicy{Rate: &Window{2, 24 * time.Hour, "1d"}}},
		`{"key":"k","limit":2,"period":"day"}`: {LimitKey: "k", Limit: &LimitPolicy{Rate: &Window{2, 24 * time.Hour, "day"}}},
		`{"key":"k","concurrency":0}`:          {LimitKey: "k", Limit: &LimitPolicy{Concurrency: count(0)}},
		`{"key":"k","on_limit":null}`:          {LimitKey: "k", Limit: &LimitPolicy{}},
		`{"key":"A:b._-9","on_limit":"drop"}`:  {LimitKey: "A:b._-9", OnLimit: LimitDrop, Limit: &LimitPolicy{OnLimit: LimitDrop}},
		`{"key":"k","scope":"global"}`:         {LimitKey: "k", Limit: &LimitPolicy{Scope: LimitGlobal}},
		`{"key":"k","scope":"tenant"}`:         {LimitKey: "k", Limit: &LimitPolicy{}},
		`{"key":"k","concurrency":4,"rate":{"limit":30,"period":"PT10S"},"throttle":{"limit":2,"period":"1s"},"on_limit":"reschedule"}`: {
			LimitKey: "k", OnLimit: LimitReschedule,
			Limit: &LimitPolicy{Concurrency: count(4), Rate: &Window{30, 10 * time.Second, "PT10S"}, Throttle: &Window{2, time.Second, "1s"}, OnLimit: LimitReschedule},
		},
	} {
		j := accept(t, job(options(`"rate_limit":`+text)))
		require.Equal(t, want.Limit, j.Limit, text)
		require.Equal(t, []string{want.LimitKey, want.OnLimit}, []string{j.LimitKey, j.OnLimit}, text)
		require.Contains(t, string(j.Extra), text, "shown as it was sent")
	}
	require.Nil(t, accept(t, job()).Limit)
	require.Nil(t, accept(t, job(`"rate_limit":null`)).Limit)
}

func TestRateLimitRefuses(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`5`: "rate_limit", `[]`: "rate_limit", `{}`: "rate_limit.key", `{"on_limit":"wait"}`: "rate_limit.key",
		`{"key":""}`: "rate_limit.key", `{"key":5}`: "rate_limit.key", `{"key":"-a"}`: "rate_limit.key", `{"key":"a/b"}`: "rate_limit.key", `{"key":"a\u0000"}`: "rate_limit.key",
		`{"key":"` + strings.Repeat("a", 256) + `"}`: "rate_limit.key", `{"key":"queue:email"}`: "rate_limit.key", `{"key":"ä"}`: "rate_limit.key",
		`{"concurrency":1}`: "rate_limit.concurrency", `{"throttle":{"limit":1,"period":"1s"}}`: "rate_limit.throttle", `{"rate":{"limit":1,"period":"1s"}}`: "rate_limit.rate",
		`{"key":"k","concurrency":-1}`: "rate_limit.concurrency", `{"key":"k","concurrency":1.5}`: "rate_limit.concurrency", `{"key":"k","concurrency":"1"}`: "rate_limit.concurrency",
		`{"key":"k","concurrency":1e30}`: "rate_limit.concurrency", `{"key":"k","concurrency":99999999999999999999}`: "rate_limit.concurrency",
		`{"max_per_second":0}`: "rate_limit.max_per_second", `{"max_per_second":"1"}`: "rate_limit.max_per_second",
		`{"limit":1}`: "rate_limit.period", `{"period":"1s"}`: "rate_limit.limit", `{"limit":0,"period":"1s"}`: "rate_limit.limit", `{"limit":1,"period":"PT0S"}`: "rate_limit.period",
		`{"limit":1,"period":"week"}`: "rate_limit.period", `{"limit":1,"period":60}`: "rate_limit.period", `{"limit":1,"period":"P999999D"}`: "rate_limit.period",
		`{"key":"k","rate":{}}`: "rate_limit.rate.limit", `{"key":"k","rate":{"limit":1}}`: "rate_limit.rate.period", `{"key":"k","rate":"5"}`: "rate_limit.rate",
		`{"key":"k","rate":{"limit":1,"period":"1s","burst":2}}`: "rate_limit.rate.burst", `{"key":"k","throttle":5}`: "rate_limit.throttle", `{"key":"k","throttle":{"limit":0,"period":"1s"}}`: "rate_limit.throttle.limit",
		`{"key":"k","limit":1,"period":"1s","max_per_second":1}`: "rate_limit.max_per_second", `{"key":"k","rate":{"limit":1,"period":"1s"},"limit":1}`: "rate_limit.limit",
		`{"key":"k","on_limit":"block"}`: "rate_limit.on_limit", `{"key":"k","scope":"all"}`: "rate_limit.scope", `{"key":"k","burst":1}`: "rate_limit.burst",
		strings.Repeat(`{"a":`, 33) + "1" + strings.Repeat("}", 33): "rate_limit",
	} {
		e := refuse(t, job(options(`"rate_limit":`+text)))
		require.Equal(t, 400, stage(e), text)
		require.Equal(t, "invalid_payload", e.Type, text)
		require.Equal(t, field, e.Details["field"], text)
		require.Equal(t, "$.options."+field, e.Details["validation_errors"].([]jsonread.Violation)[0].Path, text)
	}
}

func TestQueueLimit(t *testing.T) {
	t.Parallel()
	parse := func(text string) (*LimitPolicy, int) {
		var problems jsonread.Problems
		return ParseQueueLimit(jsontext.Value(text), "rate_limit", "$.rate_limit", &problems), problems.Len()
	}
	for text, shown := range map[string]string{
		`{"limit":5,"period":"PT1M"}`: `{"rate":{"limit":5,"period":"PT1M"}}`,
		`{"max_per_second":5}`:        `{"rate":{"limit":5,"period":"PT1S"}}`,
		`{"concurrency":8,"rate":{"limit":250,"period":"PT5M"},"on_limit":"wait"}`: `{"concurrency":8,"rate":{"limit":250,"period":"PT5M"}}`,
		`{"throttle":{"limit":2,"period":"second"},"on_limit":"drop"}`:             `{"throttle":{"limit":2,"period":"second"},"on_limit":"drop"}`,
	} {
		p, problems := parse(text)
		require.Zero(t, problems, text)
		require.Equal(t, shown, string(p.Encode()), text)
		again, problems := parse(shown)
		require.Zero(t, problems, text)
		require.True(t, p.Equal(again), text)
		require.Equal(t, p, again)
	}
	for _, text := range []string{`5`, `{}`, `{"key":"k","limit":1,"period":"1s"}`, `{"limit":1,"period":"1s","scope":"global"}`, `{"limit":1}`, `{"on_limit":"drop"}`} {
		p, problems := parse(text)
		require.Nil(t, p, text)
		require.NotZero(t, problems, text)
	}
}

func TestLimitOverride(t *testing.T) {
	t.Parallel()
	o, err := DecodeLimitOverride([]byte(`{"concurrency":0,"limit":15,"period":"PT10S","expires_at":"2026-03-01T18:00:00Z"}`))
	require.Nil(t, err)
	require.Equal(t, int64(0), *o.Concurrency)
	require.Equal(t, &Window{15, 10 * time.Second, "PT10S"}, o.Rate)
	require.True(t, o.ExpiresAt.Equal(time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)))
	for _, body := range []string{``, `[]`, `{}`, `{"expires_at":"2026-03-01T18:00:00Z"}`, `{"concurrency":1,"expires_at":"soon"}`, `{"concurrency":1,"expires_at":5}`,
		`{"concurrency":1,"key":"k"}`, `{"concurrency":1,"on_limit":"drop"}`, `{"limit":1}`, `{"concurrency":1,"expires_at":"+PT1H"}`} {
		_, err := DecodeLimitOverride([]byte(body))
		require.NotNil(t, err, body)
		require.Equal(t, "invalid_payload", err.Type, body)
	}
}
