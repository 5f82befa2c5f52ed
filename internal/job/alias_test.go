package job

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Precedence of docs/reference/jobs.md, Accepted names: options left to right, then the top level; null never wins.
func TestAliasPrecedence(t *testing.T) {
	t.Parallel()
	queue := func(j *Job) any { return j.Queue }
	priority := func(j *Job) any { return j.Priority }
	timeout := func(j *Job) any { return j.TimeoutMS }
	visibility := func(j *Job) any { return j.VisibilityMS }
	schedule := func(j *Job) any { return j.ScheduledAt.In }
	attempts := func(j *Job) any { return j.MaxAttempts }
	extra := func(j *Job) any { return string(j.Extra) }
	for _, c := range []struct {
		body string
		see  func(*Job) any
		want any
	}{
		{job(`"queue":"top"`), queue, "top"},
		{job(`"queue":"top"`, options(`"queue":"opt"`)), queue, "opt"},
		{job(`"queue":"top"`, options(`"queue":null`)), queue, "top"},
		{job(`"priority":1`, options(`"priority":2`)), priority, int16(2)},
		{job(`"timeout_ms":1`, `"timeout":2`), timeout, int64(1)},
		{job(`"timeout":2`), timeout, int64(2000)},
		{job(`"timeout_ms":1`, options(`"timeout":2`)), timeout, int64(2000)},
		{job(options(`"timeout":2`, `"timeout_ms":5`)), timeout, int64(5)},
		{job(options(`"timeout":"losing and ignored"`, `"timeout_ms":5`)), timeout, int64(5)},
		{job(`"visibility_timeout_ms":1`, options(`"visibility_timeout":2`)), visibility, int64(2000)},
		{job(`"visibility_timeout":"PT1.5S"`), visibility, int64(1500)},
		{job(`"visibility_timeout":"5m"`), visibility, int64(300_000)},
		{job(`"visibility_timeout":604800`), visibility, int64(604_800_000)},
		{job(options(`"visibility_timeout":2`, `"visibility_timeout_ms":7`)), visibility, int64(7)},
		{job(`"scheduled_at":"PT1S"`, `"delay_until":"PT2S"`), schedule, time.Second},
		{job(`"delay_until":"PT2S"`), schedule, 2 * time.Second},
		{job(`"scheduled_at":"PT1S"`, options(`"delay_until":"PT2S"`)), schedule, 2 * time.Second},
		{job(options(`"delay_until":"PT2S"`, `"scheduled_at":"PT3S"`)), schedule, 3 * time.Second},
		{job(`"max_attempts":7`), attempts, int64(7)},
		{job(`"max_attempts":7`, options(`"max_attempts":8`)), attempts, int64(8)},
		{job(`"max_attempts":0`), attempts, int64(0)},
		{job(options(`"max_attempts":8`, `"retry":{"max_attempts":2}`)), attempts, int64(2)},
		{job(options(`"max_attempts":8`, `"retry":{"jitter":false}`)), attempts, int64(8)},
		{job(options(`"max_attempts":"bad but unused"`, `"retry":{"max_attempts":2}`)), attempts, int64(2)},
		{job(options(`"max_attempts":8`, `"retry":{"max_attempts":null}`)), attempts, int64(8)},
		{job(`"retry":{"max_attempts":2}`, options(`"retry_policy":{"max_attempts":4}`)), attempts, int64(4)},
		{job(options(`"retry_policy":{"max_attempts":4}`, `"retry":{"max_attempts":5}`)), attempts, int64(5)},
		{job(`"retry_policy":{"maxAttempts":6}`), attempts, int64(6)},

		{job(`"timeout":2`), extra, `{"timeout":2,"timeout_ms":2000}`},
		{job(`"timeout":2`, `"timeout_ms":5`), extra, `{"timeout_ms":5}`},
		{job(`"timeout_ms":5.0`), extra, `{"timeout_ms":5}`},
		{job(`"timeout_ms":0`), extra, `{"timeout_ms":0}`},
		{job(`"visibility_timeout":"PT2S"`), extra, `{"visibility_timeout_ms":2000}`},
		{job(`"visibility_timeout_ms":0`), extra, ``},
		{job(options(`"delay_until":"2030-01-01T00:00:00.123456789+02:00"`)), extra, `{"scheduled_at":"2030-01-01T00:00:00.123456789+02:00"}`},
		{job(`"scheduled_at":"+PT5S"`, `"expires_at":"5m"`), extra, ``},
		{job(`"expires_at":"2001-01-01T00:00:00Z"`), extra, `{"expires_at":"2001-01-01T00:00:00Z"}`},
		{job(options(`"retry_policy": { "max_attempts" : 4.0, "z": [ 1 ] }`)), extra, `{"retry":{"max_attempts":4.0,"z":[1]}}`},
		{job(`"retry":{"jitter":true}`, options(`"retry":{"max_attempts":1}`)), extra, `{"retry":{"max_attempts":1}}`},
		{job(`"unique":{"keys":["queue"]}`), extra, `{"unique":{"keys":["queue"]}}`},
		{job(options(`"unique_key":"` + strings.Repeat("a1", 32) + `"`)), extra, `{"unique_key":"` + strings.Repeat("a1", 32) + `"}`},
		{job(options(`"rate_limit":{"key":"k","max_per_second":1.0}`)), extra, `{"rate_limit":{"key":"k","max_per_second":1.0}}`},
		{job(`"tags":["b","a","b","\u0061"]`), extra, `{"tags":["b","a"]}`},
		{job(`"tags":[]`), extra, ``},
		{job(`"tags":["a"]`, options(`"tags":["b"]`)), extra, `{"tags":["b"]}`},
		{job(options(`"grace_period":1`, `"total_timeout":2.0`, `"enqueue_ttl":3`, `"heartbeat_timeout":4`, `"result_ttl":-1`)), extra,
			`{"grace_period":1,"total_timeout":2,"enqueue_ttl":3,"heartbeat_timeout":4,"result_ttl":-1}`},
		{job(`"pending":true`, `"max_attempts":5`, `"priority":1`, `"specversion":"1.0"`), extra, ``},
	} {
		require.Equal(t, c.want, c.see(accept(t, c.body)), c.body)
	}
}

func TestDurationsInMilliseconds(t *testing.T) {
	t.Parallel()
	j := accept(t, job(`"grace_period":1`, `"total_timeout":2`, `"enqueue_ttl":3`, `"heartbeat_timeout":4`, `"result_ttl":0`, `"timeout_ms":2000`))
	require.Equal(t, []int64{1000, 2000, 3000, 4000, 0, 2000}, []int64{j.GraceMS, j.TotalTimeoutMS, j.EnqueueTTLMS, j.HeartbeatTimeoutMS, *j.ResultTTL, j.TimeoutMS})
	require.Nil(t, accept(t, job()).ResultTTL)
	require.Zero(t, accept(t, job(`"total_timeout":0`, `"timeout":9`)).TotalTimeoutMS, "0 is none, so it is not too short")
}

// Unknown attributes, docs/reference/jobs.md, Unknown attributes.
func TestUnknownAttributes(t *testing.T) {
	t.Parallel()
	many, manyWant := make([]string, 0, 100), make([]string, 0, 100)
	for _, a := range "abcdefghij" {
		for _, b := range "abcdefghij" {
			many = append(many, `"x_`+string(a)+string(b)+`":1`)
			manyWant = append(manyWant, `"x_`+string(a)+string(b)+`":2`)
		}
	}
	for _, c := range []struct{ body, want string }{
		{job(`"x_region":"eu"`, `"version":2`, `"ext_budget":{"a":1}`), `{"x_region":"eu","version":2,"ext_budget":{"a":1}}`},
		{job(`"x_null":null`), `{"x_null":null}`},
		{job(options(`"x_a":1`)), `{"x_a":1}`},
		{job(options(`"x_a":1`), `"x_a":2`), `{"x_a":2}`},
		{job(`"x_a":2`, options(`"x_a":1`)), `{"x_a":2}`},
		{job(`"x_a":null`, options(`"x_a":1`)), `{"x_a":null}`},
		{job(options(`"x_a":1`, `"x_a":3`), `"x_b":2`), `{"x_b":2,"x_a":3}`},
		{job(`"\u0078_a":1`, `"x_a":2`), `{"\u0078_a":2}`},
		{job(options(`"type":"b"`, `"args":[1]`, `"id":"x"`, `"specversion":"9"`, `"options":{}`)), ``},
		{job(options(`"state":"active"`, `"attempt":5`)), ``},
		{job(`"":1`, `"a\u0000b":"\u0000"`), `{"":1,"a\u0000b":"\u0000"}`},
		{job(`"timeOut":1`, `"Queue":"x"`), `{"timeOut":1,"Queue":"x"}`},
		{job(append(many, strings.ReplaceAll(strings.Join(many, ","), ":1", ":2"))...), `{` + strings.Join(manyWant, ",") + `}`},
		{job(append(manyWant, options(many...))...), `{` + strings.Join(manyWant, ",") + `}`},
	} {
		require.Equal(t, c.want, string(accept(t, c.body).Extra), "%.200s", c.body)
	}
}

func TestServerAttributesAreDropped(t *testing.T) {
	t.Parallel()
	for _, name := range serverNames {
		for _, value := range []string{`1`, `"x"`, `null`, `{"a":[]}`} {
			require.Nil(t, accept(t, job(`"`+name+`":`+value, options(`"`+name+`":`+value))).Extra, name)
		}
	}
}

func TestMetaMerge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, want string }{
		{job(`"meta":{}`), ``},
		{job(`"meta":{ }`, options(`"metadata":{}`)), ``},
		{job(`"metadata":{"a":1}`), `{"a":1}`},
		{job(options(`"meta":{"a":1}`)), `{"a":1}`},
		{job(`"meta":{"a":1}`, options(`"metadata":{"a":2,"b":3}`)), `{"a":1,"b":3}`},
		{job(`"meta":{"a":null}`, options(`"metadata":{"a":2}`)), `{"a":null}`},
		{job(`"metadata":{"a":4,"d":4}`, `"meta":{"a":1}`, options(`"meta":{"a":3,"b":3,"c":3}`, `"metadata":{"a":2,"b":2}`)), `{"a":1,"b":2,"c":3,"d":4}`},
		{job(`"meta":{"a":1,"a":2}`, options(`"metadata":{"b":1,"b":2}`)), `{"a":2,"b":2}`},
		{job(`"meta":{"\u0061":1}`, options(`"metadata":{"a":2}`)), `{"\u0061":1}`},
		{job(`"meta":{"b":1,"a":{"y":1.0,"x":2}}`), `{"b":1,"a":{"y":1.0,"x":2}}`},
	} {
		require.Equal(t, c.want, string(accept(t, c.body).Meta), c.body)
	}
}

func TestTraceID(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent := "00-" + trace + "-00f067aa0ba902b7-01"
	for meta, want := range map[string]string{
		`{}`:                 "",
		`{"trace_id":"abc"}`: "abc",
		`{"trace_id":"abc","traceparent":"` + parent + `"}`:                         "abc",
		`{"trace_id":5,"traceparent":"` + parent + `"}`:                             trace,
		`{"trace_id":"","traceparent":"` + parent + `"}`:                            trace,
		`{"trace_id":"a\u0000","traceparent":"` + parent + `"}`:                     trace,
		`{"traceparent":"` + parent + `"}`:                                          trace,
		`{"ojs.otel.traceparent":"` + parent + `"}`:                                 trace,
		`{"traceparent":"nonsense","ojs.otel.traceparent":"` + parent + `"}`:        trace,
		`{"traceparent":"` + strings.ToUpper(parent) + `"}`:                         "",
		`{"traceparent":"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}`: "",
		`{"traceparent":"00-` + trace + `-0000000000000000-01"}`:                    "",
		`{"traceparent":"ff-` + trace + `-00f067aa0ba902b7-01"}`:                    "",
		`{"traceparent":"` + parent + `-extra"}`:                                    "",
		`{"traceparent":"01-` + trace + `-00f067aa0ba902b7-01-what-comes-later"}`:   trace,
		`{"traceparent":"01-` + trace + `-00f067aa0ba902b7-01x"}`:                   "",
		`{"traceparent":["` + parent + `"]}`:                                        "",
		`{"trace_id":"` + strings.Repeat("x", 256) + `"}`:                           "",
		`{"trace_id":"first","trace_id":"last"}`:                                    "last",
		`{"nested":{"trace_id":"abc"}}`:                                             "",
		`{"traceparent":"00-` + trace + `-00f067aa0ba902b7-0"}`:                     "",
		`{"traceparent":"00_` + trace + `-00f067aa0ba902b7-01"}`:                    "",
	} {
		j := accept(t, job(`"meta":`+meta))
		require.Equal(t, want, j.TraceID, meta)
	}
	require.Equal(t, "t", accept(t, job(options(`"metadata":{"trace_id":"t"}`))).TraceID)
	require.Empty(t, TraceID(nil))
}

func TestWithoutTimeout(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		``: ``, `{"timeout_ms":5}`: `{"timeout_ms":5}`, `{"timeout":2,"timeout_ms":2000,"x":{"timeout":1}}`: `{"timeout_ms":2000,"x":{"timeout":1}}`, `{"timeout":2}`: ``,
	} {
		require.Equal(t, want, string(WithoutTimeout([]byte(in))))
	}
	extra := accept(t, job(`"x_first":1`, `"timeout":3`, `"timeout_x":1`)).Extra
	kept := string(extra)
	require.Equal(t, `{"timeout_ms":3000,"x_first":1,"timeout_x":1}`, string(WithoutTimeout(extra)))
	require.Equal(t, kept, string(extra), "the stored text is not touched")
}

func TestStoredRetry(t *testing.T) {
	t.Parallel()
	require.Nil(t, accept(t, job(`"retry":{"max_attempts":9}`)).Retry, "max_attempts has a column of its own")
	require.Nil(t, accept(t, job(`"retry":{"jitter":true,"initial_interval":"PT1S"}`)).Retry)
	j := accept(t, job(`"max_attempts":6`, options(`"retry":{"jitter":false}`)))
	p, err := ParseStoredRetry(j.Retry)
	require.NoError(t, err)
	want := DefaultRetry()
	want.MaxAttempts, want.Jitter = 6, false
	require.Equal(t, want, p)
}

func TestParseWhen(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2026-05-04T03:02:01Z": "2026-05-04T03:02:01Z", "2026-05-04T03:02:01.1Z": "2026-05-04T03:02:01.1Z", "2026-05-04T05:02:01+02:00": "2026-05-04T03:02:01Z",
		"2026-05-04T03:02:01.123456789Z": "2026-05-04T03:02:01.123456Z", "2024-02-29T23:59:59-23:59": "2024-03-01T23:58:59Z", "0001-01-01T00:00:00Z": "0001-01-01T00:00:00.000001Z",
		"2026-05-04T03:02:01.123456789-00:30": "2026-05-04T03:32:01.123456Z", "9999-12-31T23:59:59Z": "9999-12-31T23:59:59Z",
		"2026-05-04T03:02:01.5+0530": "2026-05-03T21:32:01.5Z", "2026-05-04T03:02:01-05": "2026-05-04T08:02:01Z", "2026-05-04T03:02Z": "2026-05-04T03:02:00Z", "2026-05-04T03:02+0200": "2026-05-04T01:02:00Z",
		"20260504T030201Z": "2026-05-04T03:02:01Z", "20260504T030201.123456789+0530": "2026-05-03T21:32:01.123456Z", "20260504T0302-0030": "2026-05-04T03:32:00Z", "20260504T030201+02:00": "2026-05-04T01:02:01Z",
	} {
		w, ok := parseWhen(text)
		require.True(t, ok, text)
		require.False(t, w.Relative)
		require.True(t, w.Set)
		require.Equal(t, want, w.At.UTC().Format(time.RFC3339Nano), text)
	}
	for text, want := range map[string]time.Duration{"+PT5S": 5 * time.Second, "PT5M": 5 * time.Minute, "5m": 5 * time.Minute, "+1.5s": 1500 * time.Millisecond, "PT0S": 0, "P1D": 24 * time.Hour} {
		w, ok := parseWhen(text)
		require.True(t, ok, text)
		require.Equal(t, When{Set: true, Relative: true, In: want}, w)
	}
	for _, text := range []string{
		"", "now", "2026-05-04", "2026-05-04T03:02:01", "2026-05-04t03:02:01Z", "2026-05-04T03:02:01z", "2026-05-04 03:02:01Z", "2026-05-04T03:02.5Z", "2026-05-04T03Z", "20260504T03Z", "2026-05-04T3:02:01Z", "2026-05-04T3:02:01.5Z", "2026-05-04T03:2:01.5Z",
		"2026-05-04T03:02:60Z", "2026-05-04T24:00:00Z", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2025-02-29T00:00:00Z",
		"2026-05-04T03:02:01,5Z", "2026-05-04T03:02:01.Z", "2026-05-04T03:02:01.1234567890Z", "2026-05-04T03:02:01.1234567890+00:00", "2026-05-04T03:02:01+020", "2026-05-04T03:02:01+2",
		"20260504T03:02:01Z", "2026-05-04T030201Z", "2026-0504T03:02:01Z", "20260504T030201", "20260504T030201.Z", "20260504T03020Z", "20260504T0302.5Z", "20260230T030201Z", "20260504T030201+2400", "20260504T240000Z", "2026-05-04T03:02:", "2026-05-04T03:02", "20260504T0302",
		"2026-05-04T03:02:01+24:00", "2026-05-04T03:02:01+02:60", "2026-05-04T03:02:01 Z", " 2026-05-04T03:02:01Z", "26-05-04T03:02:01Z", "2026-05-04T03:02:01Z\x00",
		"++PT5S", "+-PT5S", "-PT5S", "+", "P", "+P36501D", "PT", "5", "-5s", "+2026-05-04T03:02:01Z",
	} {
		_, ok := parseWhen(text)
		require.False(t, ok, text)
	}
}
