package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// querier is the pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// push is a job as SQL and HTTP can say it; nil is NULL there and absent here. id is one of the options in SQL, and of
// the top level over HTTP.
type push struct{ typ, args, queue, options, id any }

// options wraps members of an options object into an ordinary job.
func options(members string) push {
	return push{typ: "mail.send", args: "[]", queue: "default", options: "{" + members + "}"}
}

func (p push) sql(ctx context.Context, db querier) (id [16]byte, err error) {
	opts := p.options
	if p.id != nil {
		opts = strings.Replace(opts.(string), "{", fmt.Sprintf(`{"id":%s,`, p.id), 1)
		opts = strings.Replace(opts.(string), ",}", "}", 1)
	}
	err = db.QueryRow(ctx, "SELECT ojs.enqueue($1, $2::text::json, $3, $4::text::json)", p.typ, p.args, p.queue, opts).Scan(&id)
	return id, err
}

func (p push) http() (*job.Job, *ojs.Error) {
	var b strings.Builder
	b.WriteString("{")
	member := func(name string, value any, quoted bool) {
		if value == nil {
			return
		}
		if quoted {
			text, _ := json.Marshal(value)
			value = string(text)
		}
		if b.Len() > 1 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "%q:%s", name, value)
	}
	member("type", p.typ, true)
	member("args", p.args, false)
	member("queue", p.queue, true)
	member("id", p.id, false)
	member("options", p.options, false)
	return job.DecodeJob([]byte(b.String()+"}"), job.Limits{})
}

// difference sends p both ways and says in what they differ; "" if in nothing.
func (b *bundle) difference(p push) string { return b.differenceOn(b.Pool, p) }

// differenceOn is difference for SQL sent on db.
func (b *bundle) differenceOn(db querier, p push) string {
	in, wire := p.http()
	id, err := p.sql(b.T.Context(), db)
	if wire != nil {
		var pg *pgconn.PgError
		switch {
		case err == nil:
			return "only HTTP refuses: " + wire.Message
		case !errors.As(err, &pg) || pg.Code != "22023" || pg.Message != wire.Message:
			return fmt.Sprintf("HTTP says %q, SQL %v", wire.Message, err)
		}
		return ""
	}
	if err != nil {
		return "only SQL refuses: " + err.Error()
	}
	if in.ClientID {
		require.Equal(b.T, in.ID, id)
		in.ClientID = false
	}
	stored, err := b.Enqueue(b.T.Context(), in)
	require.NoError(b.T, err)
	want, got := b.row(stored.ID, in), b.row(id, in)
	b.Exec("WITH e AS (DELETE FROM ojs.events) DELETE FROM ojs.jobs")
	for i := range want {
		if want[i] != got[i] {
			return fmt.Sprintf("HTTP stores %s, SQL %s", want[i], got[i])
		}
	}
	return ""
}

// rowSQL shows a job and its events without what differs from call to call: id, numbers, times of now.
const rowSQL = `
SELECT ARRAY['type=' || j.type, 'queue=' || j.queue, 'state=' || j.state, 'priority=' || j.priority, 'attempt=' || j.attempt,
    'max_attempts=' || j.max_attempts, 'numbered=' || (j.ready_seq IS NOT NULL), 'due_as=' || concat_ws(',', j.due_at = j.scheduled_at, j.due_at = j.expires_at),
    'enqueued_as=' || (j.enqueued_at = j.created_at),
    'scheduled=' || (j.scheduled_at - CASE WHEN $2 THEN j.created_at ELSE 'epoch' END), 'expires=' || (j.expires_at - CASE WHEN $3 THEN j.created_at ELSE 'epoch' END),
    'visibility=' || j.visibility_ms, 'timeout=' || j.timeout_ms, 'grace=' || j.grace_ms, 'trace=' || j.trace_id, 'retry=' || j.retry::text,
    'args=' || j.args::text, 'meta=' || j.meta::text,
    'extra=' || replace(replace(j.extra::text, CASE WHEN $2 THEN ojs.time_text(j.scheduled_at) ELSE '?' END, 'run'), CASE WHEN $3 THEN ojs.time_text(j.expires_at) ELSE '?' END, 'dead'),
    'others=' || num_nulls(j.started_at, j.finished_at, j.next_attempt_at, j.lease_until, j.lease_ms, j.retry_delay_ms, j.worker_id, j.previous_state,
        j.error, j.errors, j.result) || j.failed,
    'queue_row=' || (SELECT q.status FROM ojs.queues q WHERE q.name = j.queue),
    'fresh=' || (j.created_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()),
    'events=' || (SELECT string_agg(concat_ws(' ', e.type, e.source, e.time = j.created_at, e.job_type, e.queue, e.trace_id, e.to_state, e.internal, e.priority,
            e.ready_seq = j.ready_seq, replace(e.data::text, ojs.time_text(j.scheduled_at), 'run'),
            num_nulls(e.subject, e.attempt, e.worker_id, e.workflow_id, e.from_state, e.duration_ms), e.sub), ';' ORDER BY e.seq)
        FROM ojs.events e WHERE e.job_id = j.id)]
FROM ojs.jobs j WHERE j.id = $1`

func (b *bundle) row(id [16]byte, in *job.Job) []string {
	b.T.Helper()
	var cells []*string
	require.NoError(b.T, b.Pool.QueryRow(b.T.Context(), rowSQL, id, in.ScheduledAt.Relative, in.ExpiresAt.Relative).Scan(&cells))
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = "NULL"
		if cell != nil {
			row[i] = *cell
		}
	}
	return row
}

// values has for each option what is tried: right, wrong and on the border.
var values = map[string][]string{
	"queue": {`"q"`, `"9-a.b"`, `""`, `"Q"`, `"_"`, `"a b"`, `"-a"`, `".a"`, `"a\u0000"`, `"\u0061b"`, `"é"`, `5`, `{}`, `null`, `"` + strings.Repeat("a", 128) + `"`,
		`"` + strings.Repeat("a", 129) + `"`, `"` + strings.Repeat("é", 65) + `"`},
	"priority": {`0`, `5`, `-100`, `100`, `101`, `-101`, `5.0`, `1e1`, `-0`, `0.5`, `1e-1`, `50e-1`, `1e99`, `1e999999999`, `1E-999999999`, `0e999999999999`, `9223372036854775808`,
		`"HIGH"`, `"normal"`, `"Low"`, `"\u0068igh"`, `"medium"`, `"5"`, `true`, `[]`, `null`, `1.00000000000000000000000000000000000001`},
	"meta": {`{}`, `{"a":1}`, `{ "a" : 1.0 , "b" : " x " }`, `{"a":null,"a":2}`, `{"\u0061":1}`, `{"a\u0000":"\u0000","c":"\ud800"}`, `[]`, `"x"`, `5`, `null`, nested(32), nested(33),
		`{"trace_id":"t1"}`, `{"trace_id":""}`, `{"trace_id":"a\u0000"}`, `{"trace\u005fid":"t2"}`, `{"trace_id":5,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`,
		`{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x"}`, `{"traceparent":"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x"}`,
		`{"traceparent":"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"}`, `{"traceparent":"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`,
		`{"traceparent":"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}`, `{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"}`,
		`{"ojs.otel.traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`, `{"trace_id":"` + strings.Repeat("x", 256) + `"}`,
		`{"a":"` + strings.Repeat("x", 65_536-8) + `"}`, `{"a":"` + strings.Repeat("x", 65_536-7) + `"}`},
	"metadata":     {`{}`, `{"a":2,"b":3}`, `{"b":1,"b":2,"\u0061":9}`, `{"trace_id":"t3"}`, `false`, `[1]`, `null`, nested(33), `{"b":"` + strings.Repeat("x", 65_536-30) + `"}`},
	"scheduled_at": times, "delay_until": times, "expires_at": times,
	"timeout_ms": durations("3153600000000"), "timeout": durations("3153600000"), "grace_period": durations("3153600000"), "total_timeout": durations("3153600000"),
	"enqueue_ttl": durations("3153600000"), "heartbeat_timeout": durations("3153600000"), "result_ttl": durations("3153600000"),
	"visibility_timeout_ms": append(durations("604800000"), `604800001`),
	"visibility_timeout": append(durations("604800"), `"PT1.5S"`, `"5m"`, `"P7D"`, `"P7DT0.0004S"`, `"P7DT0.001S"`, `"P8D"`, `"soon"`, `"+PT5S"`, `""`, `"2026-05-04T03:02:01Z"`, `604801`,
		`9223372036854775807`, `-9223372036854775808`),
	"max_attempts": {`0`, `3`, `7`, `-1`, `1.5`, `"3"`, `true`, `{}`, `1e30`, `9223372036854775807`, `9223372036854775808`, `1e2`, `null`},
	"unique_key":   {`"` + strings.Repeat("a1", 32) + `"`, `"abc"`, `"` + strings.Repeat("A", 64) + `"`, `5`, `null`, `"\u0061` + strings.Repeat("1", 63) + `"`},
	"unique":       {`null`, `true`, `5`, `[]`, nested(33)},
	"tags":         {`[]`, `["a"]`, `["b","a","b","\u0061"]`, `[ "a b" , "c" ]`, `"x"`, `[""]`, `[1]`, `["a",null]`, `["a\u0000"]`, `["\uffff"]`, `{}`, `null`, `["\ud800","\udfff"]`, `["a",["b"]]`, `[[]]`, `5`},
	"rate_limit":   {`{"key":"k","max_per_second":1.0}`, `{ }`, `5`, `[]`, `null`, nested(32), nested(33)},
	"pending":      {`true`, `false`, `null`, `1`, `"true"`, `[]`},
	"schema": {`"urn:example:invoice:v1"`, `"https://example.org/schema.json"`, `"ojs:x"`, `"no uri"`, `"relative/path"`, `""`, `5`, `"urn:a\u0000"`, `"urn:"`, `null`, `":a"`, `"1a:b"`, `"a:/"`, `"a:/%zz"`, `"a:b%zz"`,
		`"a:b#%zz"`, `"a:b#"`, `"a:b#%41"`, `"a:?q"`, `"a:b?q#f?#g"`, `"a:"`, `"a:#f"`, `"http://"`, `"http:///"`, `"http://h"`, `"http://h:80/x"`, `"http://h:x/"`, `"http://a:b:1"`, `"x://a:b:1"`,
		`"x://u@h"`, `"x://u@"`, `"x://u%zz@h"`, `"x://u{@h"`, `"x://u:p@w@h"`, `"x://a b"`, `"x://é"`, `"x://a^b"`, `"x://a|b"`, `"x://%41"`, `"x://%C3"`, `"x://%25"`, `"x://[::1]:80/"`, `"x://[::1"`, `"x://a[::1]"`,
		`"x://[g]"`, `"x://[127.0.0.1]"`, `"a\u0062:c"`, `"urn:\ud800"`, `"x:\u007f"`, `"x:a\\b"`, `"x://a\\b"`, `"x://a\"b"`, `"HTTP://a:b:1"`, `"x://?q"`, `"x:///p"`, `"a+b.c-1:x"`, `"a_b:x"`},
	"retry": policies, "retry_policy": policies,
	"x_region": {`"eu"`, `null`, `{ "a" : [ 1 , 2 ] }`, `[12345678901234567890,1.0,1,-0,1E+2,{"b":1,"a":2,"b":3},"\u0000","\ud800","\/","é","😀","\ud83d\ude00",[],{},null,true,"  "]`, nested(32), nested(33),
		`"\\u0000"`, `"\\\"\\"`, "\"\x7f\"", "\"\x7f3u0041\x7f0\"", `"a\"b"`, `"{\"a\": [1]}"`},
	"x_\\u0061": {`1`, `2`}, "x_a": {`3`, nested(33)}, "a\\u0000b": {`"\u0000"`}, "": {`1`}, "\x7f": {`1`}, "\\\"": {`" "`}, "state": {`"active"`, `null`, `[ ]`}, "type": {`"b"`}, "args": {`[1]`}, "specversion": {`"9"`}, "options": {`{}`},
	"pri\\u006frity": {`7`, `"x"`}, "Queue": {`"x"`}, "version": {`2`},
}

var times = []string{`"PT5M"`, `"+PT5S"`, `"5m"`, `"+1.5s"`, `"PT0S"`, `"P1D"`, `"P1Y2M3W4DT5H6M7.0085S"`, `"P1M"`, `"PT1M"`, `"P36500D"`, `"P36500DT0.0000001S"`, `"P36501D"`, `"+P36501D"`, `"36500d"`, `"36500.5d"`, `"1.5h"`, `"0.4ms"`,
	`"2w"`, `"99999999999999999999h"`, `"00000000000000000000000000000000000000000000000000000000000000000007s"`, `"PT99999999999999999999H"`, `"PT0.00049999999999S"`, `"1000000.0005s"`, `"PT1000000.0005S"`, `"1e3s"`, `"1..5s"`, `"5.s"`, `".5s"`,
	`"2030-01-01T00:00:00Z"`, `"2030-01-01T00:00:00.123456789+02:00"`, `"2001-01-01T00:00:00Z"`, `"2024-02-29T23:59:59-23:59"`, `"0000-02-29T23:59:59.5Z"`, `"0001-01-01T00:00:00+23:59"`, `"9999-12-31T23:59:59-01:00"`,
	`"\u0032030-01-01T00:00:00Z"`, `"2100-02-29T00:00:00Z"`, `"2000-02-29T00:00:00Z"`, `"2026-04-31T00:00:00Z"`, `"2026-00-01T00:00:00Z"`, `"2026-13-01T00:00:00Z"`, `"2026-05-00T00:00:00Z"`, `"2026-05-04T03:02:60Z"`, `"2026-05-04T24:00:00Z"`,
	`"2026-05-04T03:02:01"`, `"2026-05-04t03:02:01Z"`, `"2026-05-04T03:02:01z"`, `"2026-05-04 03:02:01Z"`, `"2026-05-04T3:02:01Z"`, `"2026-05-04T03:02:01,5Z"`, `"2026-05-04T03:02:01.Z"`, `"2026-05-04T03:02:01.1234567890Z"`,
	`"2026-05-04T03:02:01+24:00"`, `"2026-05-04T03:02:01+02:60"`, `"2026-05-04T03:02:01+0200"`, `"2026-05-04T03:02:01Z\u0000"`, `"2026-05-04"`, `"-PT5S"`, `"++PT5S"`, `"+-PT5S"`, `"P"`, `"PT"`, `"P1DT"`, `"P1D1D"`, `"PT1M1H"`, `"PT1.5H"`, `"pt1s"`,
	`""`, `"+"`, `"now"`, `"infinity"`, `5`, `{}`, `null`}

var policies = []string{`{}`, `{ "max_attempts" : 4.0 , "z" : [ 1 ] }`, `{"max_attempts":9}`, `{"max_attempts":-1}`, `{"maxAttempts":6}`, `{"maxAttempts":"x"}`, `{"max_attempts":null,"maxAttempts":2}`, `{"max_attempts":1e30}`, `{"max_attempts":0}`,
	`{"jitter":false}`, `{"jitter":true}`, `{"jitter":1}`, `{"jitter":null}`, `{"initial_interval":"PT1S"}`, `{"initial_interval":"PT0.5S"}`, `{"initial_interval":"PT0.0004S"}`, `{"initial_interval":"5s"}`, `{"initial_interval":5}`, `{"initial_interval":"P1D"}`,
	`{"initial_interval_ms":5}`, `{"initial_interval_ms":0,"initial_delay_ms":7}`, `{"initial_interval_ms":0}`, `{"initial_interval_ms":-1}`, `{"initial_delay_ms":3153600000001}`, `{"initialInterval":"PT7S"}`, `{"initialInterval":"x"}`,
	`{"initial_interval":"PT2S","initial_interval_ms":5}`, `{"max_interval":"PT0.5S"}`, `{"max_interval_ms":600000}`, `{"maxInterval":"P36500D"}`, `{"max_interval":"P36501D"}`, `{"initial_interval":"PT1.5S","max_interval":"PT1S"}`,
	`{"initial_interval_ms":90061001,"max_interval_ms":5}`, `{"initial_interval_ms":59999,"maxInterval":"PT1S"}`, `{"initial_interval_ms":3600000,"max_interval":"PT1S"}`, `{"initial_interval_ms":60000,"max_interval":"PT1S"}`,
	`{"backoff_coefficient":1}`, `{"backoff_coefficient":2.0}`, `{"backoff_coefficient":0.5}`, `{"backoff_coefficient":"2"}`, `{"multiplier":1.5}`, `{"multiplier":-1}`, `{"backoffCoefficient":1e21}`, `{"backoffCoefficient":1e400}`, `{"multiplier":1e-5}`,
	`{"multiplier":1234567890123456789}`, `{"multiplier":1.7976931348623157e308}`, `{"multiplier":1.8e308}`, `{"multiplier":0.99999999999999999999}`, `{"multiplier":1e999999999}`, `{"multiplier":15E-1}`, `{"multiplier":4.35}`, `{"multiplier":1e15}`, `{"multiplier":1.5e300}`,
	`{"multiplier":3.` + strings.Repeat("1", 500) + `}`, `{"multiplier":true}`, `{"non_retryable_errors":[]}`, `{"non_retryable_errors":["A.*","\u0042","é","\u0000","a\"\\\/\n\u001f","\ud800","\ud83d\ude00","` + "\x7f" + `"]}`, `{"nonRetryableErrors":["x"]}`,
	`{"non_retryable_errors":[""]}`, `{"nonRetryableErrors":[1]}`, `{"non_retryable_errors":"x"}`, `{"non_retryable_errors":[ "a" , "b c" ]}`, `{"on_exhaustion":"dead_letter"}`, `{"on_exhaustion":"discard"}`, `{"onExhaustion":"x"}`, `{"on_exhaustion":5}`,
	`{"backoff_strategy":"linear"}`, `{"backoff_type":"none"}`, `{"strategy":"polynomial"}`, `{"backoff":"constant"}`, `{"backoff":"nonex"}`, `{"backoff_strategy":["linear"]}`, `{"strategy":"exponential","backoff":"x"}`, `{"j\u0069tter":false}`,
	`{"max_attempts":-1,"jitter":5,"multiplier":0}`, `{"jitter":5,"multiplier":0}`, `5`, `"x"`, `[]`, `null`, `true`, nested(32), nested(33), strings.Repeat("[", 33) + strings.Repeat("]", 33), `{"jitter":"` + strings.Repeat("x", 80) + `"}`}

func durations(limit string) []string {
	return []string{`0`, `1`, `1500`, limit, limit + ".0", limit + "1", `-1`, `-2`, `1.5`, `1e2`, `"5"`, `true`, `[ 1 ]`, `99999999999999999999`, `null`}
}

func nested(levels int) string {
	return strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
}

// TestSQLEnqueueEqualsHTTP sends everything in values both ways, alone.
func TestSQLEnqueueEqualsHTTP(t *testing.T) {
	t.Parallel()
	for name, list := range values {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, unchecked)
			for _, value := range list {
				require.Empty(t, b.difference(options(`"`+name+`":`+value)), "%s: %.300s", name, value)
			}
		})
	}
}

func TestSQLEnqueueEqualsHTTPInOtherParts(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	const id = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"
	arrays := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	var cases []push
	for _, typ := range []any{nil, "", "a", "a_b-c9.d", "A", "a.", ".a", "a..b", "1a", "a b", "é", "a\n", strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("é", 128), strings.Repeat("A", 57), strings.Repeat("A", 59), `a"\`} {
		cases = append(cases, push{typ: typ, args: "[]"}, push{typ: typ, args: "[]", options: `{"priority":500}`})
	}
	for _, args := range []any{nil, "null", " null ", "{}", `"x"`, "5", "true", "[]", ` [ 1 , { "a b" : " c\" , " } , [ ] ]` + "\n", `["\u0000","\ud800",12345678901234567890,1.0,{"b":1,"a":2,"b":3}]`, "[\"\x7f\\u0000\x7f3\", \"\\\\\"]",
		arrays(32), arrays(33), "[" + strings.Repeat("[[]],", 500) + "[]]", `[` + strings.Repeat(`"{[",`, 40) + `1]`, "[" + nested(31) + "]", "[" + nested(32) + "]", `{"a":` + strings.Repeat(" ", 80) + `1}`, `{"a": 1}`} {
		cases = append(cases, push{typ: "a", args: args}, push{typ: "a", args: args, options: `{"x": " "}`})
	}
	for _, queue := range []any{nil, "", "q", "Q", strings.Repeat("a", 129), "é", `a"`} {
		cases = append(cases, push{typ: "a", args: "[]", queue: queue}, push{typ: "a", args: "[]", queue: queue, options: `{"priority":500}`}, push{typ: "a", args: "[]", queue: queue, options: `{"queue":"r"}`})
	}
	for _, opts := range []any{nil, "null", "{}", "[]", "5", `"x"`, ` {"queue" : "s", "x":" " } `, `{"x_a":1,"queue":"t","x_b":2,"x_a":3,"queue":null}`} {
		cases = append(cases, push{typ: "a", args: "[]", options: opts}, push{typ: "A", args: "{}", options: opts})
	}
	for _, text := range []string{`"` + id + `"`, `"\u0030` + id[1:] + `"`, `"` + strings.ToUpper(id) + `"`, `"019a3c10-5a00-4b11-9c22-0a1b2c3d4e5f"`, `"x"`, `""`, `5`, `null`, `"job_` + id + `"`} {
		cases = append(cases, push{typ: "a", args: "[]", options: `{}`, id: text})
	}
	for _, several := range []string{
		`"priority":500,"queue":"_","tags":[""],"retry":5`, `"retry":5,"max_attempts":-1,"meta":{"a":"` + strings.Repeat("x", 70_000) + `"}`, `"meta":5,"metadata":6`,
		`"pending":true,"scheduled_at":"PT5S"`, `"pending":true,"delay_until":"9999-01-01T00:00:00Z"`, `"pending":true,"scheduled_at":"2020-01-01T00:00:00Z"`, `"pending":false,"scheduled_at":"PT1H"`,
		`"scheduled_at":"x","delay_until":"PT1S"`, `"scheduled_at":null,"delay_until":"PT1S"`, `"total_timeout":1,"timeout_ms":1001`, `"total_timeout":1,"timeout":2`, `"total_timeout":0,"timeout":9`,
		`"timeout":"losing","timeout_ms":5`, `"timeout":2,"timeout_ms":null`, `"visibility_timeout":"bad","visibility_timeout_ms":7`, `"retry":{"max_attempts":2},"max_attempts":"bad but unused"`,
		`"retry":{"jitter":false},"max_attempts":8`, `"retry":null,"retry_policy":{"jitter":false},"max_attempts":-3`, `"retry":{"jitter":5},"retry_policy":{"max_attempts":3}`,
		`"meta":{"a":"` + strings.Repeat("x", 40_000) + `"},"metadata":{"b":"` + strings.Repeat("x", 40_000) + `"}`, `"priority":1,"pri\u006frity":2`, `"x":` + nested(33) + `,"x":1`, `"x":1,"x":` + nested(33) + `,"y":2`,
		`"expires_at":"PT5M","scheduled_at":"2040-01-01T00:00:00Z","x_last":1`, `"expires_at":"2040-01-01T00:00:00Z","scheduled_at":"PT5M"`, `"expires_at":"PT1S","scheduled_at":"PT5M","grace_period":1,"schema":"a:b"`,
	} {
		cases = append(cases, options(several))
	}
	for _, p := range cases {
		require.Empty(t, b.difference(p), "%.300v", p)
	}
}

// TestSQLEnqueueKnowsTheNamesOfEnvelope finds names that were added there and not here.
func TestSQLEnqueueKnowsTheNamesOfEnvelope(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	source, err := os.ReadFile("../job/attrs.go")
	require.NoError(t, err)
	names := regexp.MustCompile(`"([a-z_]+)"`).FindAllSubmatch(source, -1)
	require.Greater(t, len(names), 50)
	for _, name := range names {
		for _, value := range []string{`1`, `"x"`, `null`} {
			if string(name[1]) == "id" { // an option only in SQL
				continue
			}
			require.Empty(t, b.difference(options(`"`+string(name[1])+`":`+value)), "%s: %s", name[1], value)
		}
	}
}

// TestSQLEnqueueEqualsHTTPForAnyOptions combines values.
func TestSQLEnqueueEqualsHTTPForAnyOptions(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	member := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom(names).Draw(t, "name")
		space := rapid.SampledFrom([]string{"", "", "", " ", "\n\t"})
		value := rapid.SampledFrom(values[name])
		return space.Draw(t, "before") + `"` + name + `"` + space.Draw(t, "between") + ":" + value.Draw(t, "value") + space.Draw(t, "after")
	})
	rapid.Check(t, func(t *rapid.T) {
		p := options(strings.Join(rapid.SliceOfN(member, 0, 6).Draw(t, "members"), ","))
		p.queue = rapid.SampledFrom([]any{nil, "default", "q", "Q"}).Draw(t, "queue")
		p.args = rapid.SampledFrom([]any{"[]", `[ "\u0000" , {"a b":[ ]} ]`, "5"}).Draw(t, "args")
		if diff := b.difference(p); diff != "" {
			t.Fatalf("%s: %v", diff, p)
		}
	})
}

// TestSQLEnqueueReadsAnyJSON: literals of all kinds reach the row as they came.
func TestSQLEnqueueReadsAnyJSON(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	char := rapid.SampledFrom([]string{"a", " ", "{", "]", ",", ":", "é", "😀", "\x7f", "0", "3", `\\`, `\"`, `\n`, `\/`, `\u0000`, `\ud83d`, `\ude00`, `\u0061`, `\u005c`, `\uFFFF`})
	str := rapid.Map(rapid.SliceOfN(char, 0, 8), func(parts []string) string { return `"` + strings.Join(parts, "") + `"` })
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		scalar := rapid.OneOf(str, rapid.SampledFrom([]string{"1", "-0.50e+3", "true", "null"}))
		if depth == 0 {
			return scalar
		}
		space := rapid.SampledFrom([]string{"", "", " ", "\r\n"})
		list := rapid.Custom(func(t *rapid.T) string {
			return "[" + strings.Join(rapid.SliceOfN(value(depth-1), 0, 3).Draw(t, "elements"), ","+space.Draw(t, "space")) + space.Draw(t, "end") + "]"
		})
		object := rapid.Custom(func(t *rapid.T) string {
			var members []string
			for range rapid.IntRange(0, 3).Draw(t, "members") {
				members = append(members, str.Draw(t, "name")+space.Draw(t, "space")+":"+value(depth-1).Draw(t, "value"))
			}
			return "{" + strings.Join(members, ",") + space.Draw(t, "end") + "}"
		})
		return rapid.OneOf(scalar, list, object)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := options(str.Draw(t, "name") + ":" + value(3).Draw(t, "option") + `,"meta":{` + str.Draw(t, "key") + ":" + value(2).Draw(t, "meta") + `},"metadata":{` +
			str.Draw(t, "other key") + `:1},"tags":[` + str.Draw(t, "tag") + "," + str.Draw(t, "another tag") + `],"retry":{"non_retryable_errors":[` + str.Draw(t, "pattern") + `]}`)
		p.args = "[" + value(3).Draw(t, "args") + "]"
		if diff := b.difference(p); diff != "" {
			t.Fatalf("%s: %v", diff, p)
		}
	})
}
