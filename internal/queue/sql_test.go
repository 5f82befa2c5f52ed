package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// querier is the pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// push is a job as the arguments of ojs.enqueue and as the body of an HTTP request. nil is NULL in SQL and absent in HTTP. id
// is an option in SQL and a top-level member in HTTP.
type push struct{ typ, args, queue, options, id any }

// options returns a job with these members of the options object.
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

// difference enqueues p in SQL and over HTTP and describes the difference; "" if there is none.
func (b *bundle) difference(p push) string { return b.differenceOn(b.Pool, p) }

// differenceOn is difference for SQL sent on db.
func (b *bundle) differenceOn(db querier, p push) string {
	j, wire := p.http()
	if wire != nil {
		return "HTTP refuses: " + wire.Message
	}
	id, err := p.sql(b.T.Context(), db)
	if err != nil {
		return "SQL refuses: " + err.Error()
	}
	if j.ClientID {
		require.Equal(b.T, j.ID, id)
		j.ClientID = false
	}
	stored, err := b.Enqueue(b.T.Context(), j)
	require.NoError(b.T, err)
	want, got := b.row(stored.ID, j), b.row(id, j)
	b.Exec("WITH e AS (DELETE FROM ojs.events) DELETE FROM ojs.jobs")
	for i := range want {
		if want[i] != got[i] {
			return fmt.Sprintf("HTTP stores %s, SQL %s", want[i], got[i])
		}
	}
	return ""
}

// rowSQL reads a job and its events without the values that differ from call to call: ids, sequence numbers, times.
const rowSQL = `
SELECT ARRAY['type=' || j.type, 'queue=' || j.queue, 'state=' || j.state, 'priority=' || j.priority, 'attempt=' || j.attempt,
    'max_attempts=' || j.max_attempts, 'numbered=' || (j.ready_seq IS NOT NULL), 'due_as=' || concat_ws(',', j.due_at = j.scheduled_at, j.due_at = j.expires_at, j.due_at = j.total_due_at, j.due_at = j.ttl_due_at),
    'enqueued_as=' || (j.enqueued_at = j.created_at),
    'scheduled=' || (j.scheduled_at - CASE WHEN $2 THEN j.created_at ELSE 'epoch' END), 'expires=' || (j.expires_at - CASE WHEN $3 THEN j.created_at ELSE 'epoch' END),
    'visibility=' || j.visibility_ms, 'timeout=' || j.timeout_ms, 'grace=' || j.grace_ms, 'stall=' || j.stall_ms, 'result_ttl=' || j.result_ttl_s,
    'total_due=' || (j.total_due_at - j.created_at), 'ttl_due=' || (j.ttl_due_at - j.created_at), 'on_exhaustion=' || j.on_exhaustion, 'lane=' || j.lane,
    'trace=' || j.trace_id,
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

func (b *bundle) row(id [16]byte, j *job.Job) []string {
	b.T.Helper()
	var cells []*string
	require.NoError(b.T, b.Pool.QueryRow(b.T.Context(), rowSQL, id, j.ScheduledAt.Relative, j.ExpiresAt.Relative).Scan(&cells))
	var stored []byte
	require.NoError(b.T, b.Pool.QueryRow(b.T.Context(), "SELECT retry FROM ojs.jobs WHERE id = $1", id).Scan(&stored))
	policy, err := job.ParseStoredRetry(stored)
	require.NoError(b.T, err)
	policy.MaxAttempts = 0 // a column of its own decides
	row := make([]string, len(cells), len(cells)+1)
	for i, cell := range cells {
		row[i] = "NULL"
		if cell != nil {
			row[i] = *cell
		}
	}
	return append(row, fmt.Sprintf("%+v", policy))
}

// values has, for each option, values for which SQL and HTTP must agree.
var values = map[string][]string{
	"priority":     {`0`, `5`, `-100`, `100`, `5.0`, `1e1`, `-0`, `50e-1`, `null`},
	"pending":      {`true`, `false`, `null`},
	"scheduled_at": times, "expires_at": times,
	"timeout_ms": seconds("3153600000000"), "grace_period": seconds("3153600000"), "total_timeout": seconds("3153600000"),
	"enqueue_ttl": seconds("3153600000"), "heartbeat_timeout": seconds("3153600000"), "result_ttl": append(seconds("3153600000"), `-1`),
	"visibility_timeout_ms": seconds("604800000"),
	"max_attempts":          {`0`, `3`, `7`, `1e2`, `9223372036854775807`, `null`},
	"meta": {`{}`, `{"a":1}`, `{"b":1.0,"a":" x "}`, `{"a":null}`, `{"a":12345678901234567890.00,"é":"\u0061"}`, nested(32), `null`, `{"a":"` + strings.Repeat("x", 65_536-8) + `"}`,
		`{"trace_id":"t1"}`, `{"trace_id":""}`, `{"trace_id":"` + strings.Repeat("x", 255) + `"}`, `{"trace_id":"` + strings.Repeat("x", 256) + `"}`,
		`{"trace_id":5,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`,
		`{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x"}`, `{"traceparent":"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x"}`,
		`{"traceparent":"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x"}`, `{"traceparent":"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`,
		`{"traceparent":"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}`, `{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"}`,
		`{"ojs.otel.traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`},
	"tags":   {`[]`, `["a"]`, `["b","a","b"]`, `["a b","é","\"","x"]`, `null`},
	"schema": {`"urn:example:invoice:v1"`, `"https://example.org/schema.json"`, `null`},
	"retry": {`{}`, `{"max_attempts":9}`, `{"max_attempts":0}`, `{"max_attempts":null,"jitter":null}`, `{"jitter":false}`, `{"jitter":true}`, `{"initial_interval":"PT0.5S"}`, `{"initial_interval":"P1D"}`,
		`{"max_interval":"PT0.5S"}`, `{"initial_interval":"PT1.5S","max_interval":"PT10S"}`, `{"backoff_coefficient":1.5}`, `{"backoff_coefficient":1e21}`, `{"backoff_coefficient":4.35}`,
		`{"non_retryable_errors":["A.*","é","a\"\\\n"]}`, `{"on_exhaustion":"dead_letter"}`, `{"backoff_strategy":"none"}`, `{"max_attempts":4,"backoff_strategy":"polynomial","jitter":false}`, `null`},
}

var times = []string{`"PT5M"`, `"+PT5S"`, `"PT0S"`, `"P1D"`, `"P2W3DT5H6M7.0085S"`, `"P36500D"`, `"PT0.1S"`,
	`"2030-01-01T00:00:00Z"`, `"2030-01-01T00:00:00.123456789+02:00"`, `"2001-01-01T00:00:00Z"`, `"2030-01-01T00:00:00.1+0530"`, `"2030-01-01T00:00:00-05"`, `"2030-01-01T00:00Z"`, `"20300101T000000.123456789+0200"`, `"20300101T0000+02"`, `"20300101T000059Z"`, `"2024-02-29T23:59:59-12:59"`, `"9999-12-31T23:59:59-01:00"`, `null`}

func seconds(limit string) []string {
	return []string{`0`, `1`, `1500`, limit, limit + ".0", `1e2`, `null`}
}

// refused has, for each option, values that SQL refuses.
var refused = map[string][]string{
	"priority": {`101`, `-101`, `0.5`, `1e99`, `1e-1`, `9223372036854775808`, `"HIGH"`, `"5"`, `true`, `[]`, `1.00000000000000000000000000000000000001`},
	"pending":  {`1`, `"true"`, `[]`}, "notify": {`1`, `"yes"`},
	"scheduled_at": noTimes, "expires_at": noTimes,
	"timeout_ms": noNumbers("3153600000001"), "grace_period": noNumbers("3153600001"), "total_timeout": noNumbers("3153600001"), "enqueue_ttl": noNumbers("3153600001"),
	"heartbeat_timeout": noNumbers("3153600001"), "result_ttl": noNumbers("-2"), "visibility_timeout_ms": noNumbers("604800001"), "max_attempts": {`9223372036854775808`, `-1`, `1.5`, `"3"`, `true`, `{}`, `1e30`},
	"meta":   {`[]`, `"x"`, `5`, `{"a":"` + strings.Repeat("x", 65_536-7) + `"}`, `{"a":"` + strings.Repeat("é", 32_768) + `"}`},
	"tags":   {`"x"`, `[""]`, `[1]`, `["a",null]`, `["a",["b"]]`, `[[]]`, `{}`, `5`},
	"schema": {`"no uri"`, `"relative/path"`, `""`, `5`, `":a"`, `"1a:b"`, `"a:"`, `"x://a b"`},
	"retry":  {`5`, `"x"`, `[]`, `true`, `{"maxAttempts":6}`, `{"initial_interval_ms":5}`, `{"x":null,"y":1}`},
	"id":     {`"x"`, `""`, `5`, `"019A3C10-5A00-7B11-9C22-0A1B2C3D4E5F"`, `"019a3c10-5a00-4b11-9c22-0a1b2c3d4e5f"`},
	"unique": {`5`, `"x"`, `[]`}, "unique_key": {`"` + strings.Repeat("a1", 32) + `"`}, "rate_limit": {`{"key":"k"}`},
	"queue": {`"q"`}, "type": {`"b"`}, "args": {`[]`}, "specversion": {`"1.0"`}, "metadata": {`{}`}, "delay_until": {`"PT5M"`}, "timeout": {`5`}, "retry_policy": {`{}`},
	"state": {`"active"`}, "x_region": {`"eu"`, `null`}, "": {`1`}, "é": {`1`}, "Priority": {`1`},
	"options": {`"\u0000"`, `{"a":"\ud800"}`, nested(33), `[` + nested(33) + `]`, `1e999999999`, `-1E+131073`},
}

var noTimes = []string{`5`, `{}`, `""`, `"+"`, `"P"`, `"PT"`, `"P1DT"`, `"P1Y"`, `"P1M"`, `"5m"`, `"PT1M1H"`, `"PT1.5H"`, `"pt1s"`, `"-PT5S"`, `"++PT5S"`, `"P36501D"`, `"P99999999999999999999D"`, `"PT99999999999999999999H"`,
	`"P1000000000W"`, `"now"`, `"infinity"`, `"-infinity"`, `"epoch"`, `"tomorrow"`, `"200000-01-01T00:00:00Z"`, `"0000-01-01T00:00:00Z"`, `"2100-02-29T00:00:00Z"`, `"2026-04-31T00:00:00Z"`, `"2026-00-01T00:00:00Z"`,
	`"2026-13-01T00:00:00Z"`, `"2026-05-00T00:00:00Z"`, `"2026-05-04T03:02:60Z"`, `"2026-05-04T24:00:00Z"`, `"2026-05-04T03:02:01"`, `"2026-05-04t03:02:01Z"`, `"2026-05-04 03:02:01Z"`, `"2026-05-04T03:02:01.Z"`,
	`"2026-05-04T03:02:01.1234567890Z"`, `"2026-05-04T03:02:01+24:00"`, `"2026-05-04T03:02:01+02:60"`, `"2026-05-04T03:02:01+020"`, `"2026-05-04T03:02.5Z"`, `"20260504T03:02:01Z"`, `"2026-05-04T030201Z"`, `"202605-04T030201Z"`, `"20260504T030Z"`, `"20260504T03:02Z"`, `"2026-05-04"`, `"2026-05-04T03:02:01Z BC"`, `"٢٠٢٦-05-04T03:02:01Z"`}

func noNumbers(above string) []string {
	return []string{above, `1000000000000000000`, `-3`, `1.5`, `"5"`, `"NaN"`, `true`, `[1]`, `{}`, `99999999999999999999`, `1e300`}
}

func nested(levels int) string {
	return strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels)
}

// TestSQLEnqueueEqualsHTTP compares SQL and HTTP for each value of values alone.
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

// TestSQLEnqueueRefusesOptions: the error names the invalid or unknown option, and nothing is stored.
func TestSQLEnqueueRefusesOptions(t *testing.T) {
	t.Parallel()
	for name, list := range refused {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, unchecked)
			for _, value := range list {
				_, err := options(`"`+name+`":`+value).sql(t.Context(), b.Pool)
				require.Equal(t, "22023", sqlState(err), "%.300s: %v", value, err)
				require.ErrorContains(t, err, "ERROR: '"+name+"' must ", value)
				require.Less(t, len(err.Error()), 400)
			}
			require.Zero(t, b.Number("SELECT (SELECT count(*) FROM ojs.jobs) + (SELECT count(*) FROM ojs.events) + (SELECT count(*) FROM ojs.queues)"))
		})
	}
}

func TestSQLEnqueueEqualsHTTPInOtherParts(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	arrays := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	var cases, wrong []push
	for _, typ := range []any{"a", "a_b-c9.d", strings.Repeat("a", 255)} {
		cases = append(cases, push{typ: typ, args: "[]"})
	}
	for _, typ := range []any{nil, "", "A", "a.", ".a", "a..b", "1a", "a b", "é", "a\n", strings.Repeat("a", 256), `a"\`} {
		wrong = append(wrong, push{typ: typ, args: "[]"})
	}
	for _, args := range []any{"[]", `["\u0000","\ud800",12345678901234567890,1.0,1e999999999,{"b":1,"a":2,"b":3}]`, `["\"[[","\\","{"]`, arrays(32), "[" + strings.Repeat("[[]],", 500) + "[]]",
		`["` + strings.Repeat(`{[\"`, 40) + `"]`, "[" + nested(31) + "]"} {
		cases = append(cases, push{typ: "a", args: args}, push{typ: "a", args: args, options: `{"priority":1}`})
	}
	for _, args := range []any{nil, "null", "{}", `"x"`, "5", "true", arrays(33), "[" + nested(32) + "]", arrays(1000), `["` + strings.Repeat("x", 1_048_576) + `"]`} {
		wrong = append(wrong, push{typ: "a", args: args})
	}
	for _, queue := range []any{nil, "q", "9-a.b", strings.Repeat("a", 128)} {
		cases = append(cases, push{typ: "a", args: "[]", queue: queue})
	}
	for _, queue := range []any{"", "Q", strings.Repeat("a", 129), "é", "-a", ".a", `a"`, "a\n"} {
		wrong = append(wrong, push{typ: "a", args: "[]", queue: queue})
	}
	for _, opts := range []any{nil, "null", "{}", ` {"priority" : 1 } `, `{"priority":1,"priority":2}`, `{"\u0070riority":7}`} {
		cases = append(cases, push{typ: "a", args: "[]", options: opts})
	}
	for _, opts := range []any{"[]", "5", `"x"`, `{"meta":{"a":"` + strings.Repeat("x", 1_048_576) + `"}}`} {
		wrong = append(wrong, push{typ: "a", args: "[]", options: opts})
	}
	cases = append(cases, push{typ: "a", args: "[]", options: `{}`, id: `"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"`})
	for _, several := range []string{
		`"pending":true,"scheduled_at":"2020-01-01T00:00:00Z"`, `"pending":false,"scheduled_at":"PT1H"`, `"total_timeout":0,"timeout_ms":9000`, `"total_timeout":2,"timeout_ms":2000`,
		`"retry":{"max_attempts":2},"max_attempts":5`, `"retry":{"jitter":false},"max_attempts":8`,
		`"expires_at":"PT5M","scheduled_at":"2040-01-01T00:00:00Z"`, `"expires_at":"2040-01-01T00:00:00Z","scheduled_at":"PT5M"`, `"expires_at":"PT1S","scheduled_at":"PT5M","grace_period":1,"schema":"a:b"`,
	} {
		cases = append(cases, options(several))
	}
	for _, several := range []string{`"pending":true,"scheduled_at":"PT5S"`, `"total_timeout":1,"timeout_ms":1001`, `"retry":{"max_attempts":-1},"max_attempts":5`, `"meta":` + nested(33)} {
		wrong = append(wrong, options(several))
	}
	for _, p := range cases {
		require.Empty(t, b.difference(p), "%.300v", p)
	}
	b.Exec("TRUNCATE ojs.queues")
	for _, p := range wrong {
		_, err := p.sql(t.Context(), b.Pool)
		require.Equal(t, "22023", sqlState(err), "%.300v: %v", p, err)
		require.Regexp(t, `ERROR: '(type|args|queue|options|meta|scheduled_at|total_timeout|max_attempts)' must `, err.Error())
	}
	require.Zero(t, b.Number("SELECT (SELECT count(*) FROM ojs.jobs) + (SELECT count(*) FROM ojs.events) + (SELECT count(*) FROM ojs.queues)"))
}

// TestSQLEnqueueKeepsArgsAndMeta: white space, order, repeated names and number literals included.
func TestSQLEnqueueKeepsArgsAndMeta(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	p := options(`"meta": { "b" : 1.00 , "a" : 12345678901234567890 , "a" : "\u0061" } `)
	p.args = ` [ 1 , { "a b" : "\u0000" , "a b" : 1E+2 } , [ ] ]` + "\n"
	id := b.sqlEnqueue(b.Pool, p)
	require.Equal(t, 1, b.Number("SELECT count(*) FROM ojs.jobs WHERE id = $1 AND args::text = $2 AND meta::text = $3", id, p.args,
		`{ "b" : 1.00 , "a" : 12345678901234567890 , "a" : "\u0061" }`))
	jobs := b.Fetched(1, "default")
	require.Len(t, jobs, 1)
	require.True(t, json.Valid(jobs[0].Args))
}

// TestSQLEnqueueReadsLargeDocuments: the cost of 1 MB does not depend on its content. As jsonb text, the numbers here would
// take 10 GB.
func TestSQLEnqueueReadsLargeDocuments(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	list := func(element string, size int) string {
		return "[" + strings.Repeat(element+",", size/(len(element)+1)-1) + element + "]"
	}
	numbers := list(`1e100000`, 1_000_000)
	for _, members := range []string{`"id":`, `"priority":`, `"pending":`, `"tags":`, `"meta":`, `"scheduled_at":`, `"retry":`, `"schema":`} {
		_, err := options(members+numbers).sql(t.Context(), b.Pool)
		require.Equal(t, "22023", sqlState(err), "%s: %v", members, err)
	}
	for _, members := range []string{`"retry":{"non_retryable_errors":` + numbers + `}`, `"meta":{"trace_id":` + list(`1e100000`, 60_000) + `,"traceparent":[1e100000]}`} {
		b.sqlEnqueue(b.Pool, options(members))
	}
	for _, element := range []string{`[]`, `{"a":[]}`, `"[\"{\\"`, `1e100000`} {
		b.sqlEnqueue(b.Pool, push{typ: "a", args: list(element, 1_000_000)})
	}
}

// TestSQLEnqueueKnowsTheNamesOfPackageJob finds options that HTTP accepts and that neither values nor refused contains.
func TestSQLEnqueueKnowsTheNamesOfPackageJob(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../job/new_job.go")
	require.NoError(t, err)
	table := regexp.MustCompile(`(?s)var attrNames.*?\n}`).Find(source)
	names := regexp.MustCompile(`"([a-z_]+)"`).FindAllSubmatch(table, -1)
	require.Greater(t, len(names), 25)
	for _, name := range names {
		_, takes := values[string(name[1])]
		_, refuses := refused[string(name[1])]
		require.True(t, takes || refuses || string(name[1]) == "visibility_timeout", "%s", name[1])
	}
}

// TestSQLEnqueueEqualsHTTPForAnyOptions compares SQL and HTTP for combinations of values.
func TestSQLEnqueueEqualsHTTPForAnyOptions(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	names := slices.Sorted(maps.Keys(values))
	rapid.Check(t, func(t *rapid.T) {
		var members []string
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 6, rapid.ID).Draw(t, "names") {
			members = append(members, `"`+name+`":`+rapid.SampledFrom(values[name]).Draw(t, name))
		}
		p := options(strings.Join(members, ","))
		p.queue = rapid.SampledFrom([]any{nil, "default", "q"}).Draw(t, "queue")
		if _, wire := p.http(); wire != nil {
			_, err := p.sql(b.T.Context(), b.Pool)
			if sqlState(err) != "22023" {
				t.Fatalf("HTTP says %q, SQL %v: %v", wire.Message, err, p)
			}
		} else if diff := b.difference(p); diff != "" {
			t.Fatalf("%s: %v", diff, p)
		}
	})
}

// TestSQLEnqueueCannotStopTheServer: a job that SQL accepts, with a policy that Go refuses, does not affect other jobs.
func TestSQLEnqueueCannotStopTheServer(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	var log bytes.Buffer
	b := &bundle{domaintest.On(t, pool, unchecked, func(c *domaintest.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})}
	nonsense := []string{
		`{"initial_interval":"soon"}`, `{"initial_interval":5}`, `{"initial_interval":"PT99999999999999999999H"}`, `{"max_interval":"PT1S","initial_interval":"PT2S"}`, `{"jitter":"x"}`,
		`{"backoff_coefficient":0}`, `{"backoff_coefficient":1e100000}`, `{"backoff_coefficient":"NaN"}`, `{"non_retryable_errors":[1]}`, `{"non_retryable_errors":"x"}`, `{"non_retryable_errors":[""]}`,
		`{"on_exhaustion":"explode"}`, `{"on_exhaustion":["dead_letter"]}`, `{"backoff_strategy":{}}`, `{"jitter":` + nested(31) + `}`, `{"max_attempts":9223372036854775807,"jitter":0}`,
	}
	extremes := []string{
		`"timeout_ms":3153600000000,"grace_period":3153600000,"total_timeout":3153600000,"enqueue_ttl":3153600000,"heartbeat_timeout":3153600000,"result_ttl":3153600000,"visibility_timeout_ms":604800000`,
		`"timeout_ms":1,"visibility_timeout_ms":1,"total_timeout":1,"enqueue_ttl":1,"heartbeat_timeout":1`, `"scheduled_at":"9999-12-31T23:59:59Z","expires_at":"9999-12-31T23:59:59Z"`,
		`"scheduled_at":"0001-01-01T00:00:00Z","expires_at":"9999-12-31T23:59:59Z"`, `"expires_at":"0001-01-01T00:00:00Z"`, `"priority":-100,"max_attempts":9223372036854775807`, `"priority":100,"max_attempts":0`,
		`"expires_at":"0001-01-01T00:00:00Z","retry":{"on_exhaustion":{"a":"dead_letter"}}`,
	}
	ids := map[[16]byte]string{}
	for _, policy := range nonsense {
		ids[b.sqlEnqueue(b.Pool, options(`"retry":`+policy))] = policy
	}
	for _, members := range extremes {
		b.sqlEnqueue(b.Pool, options(members))
	}
	good := b.Enqueued(domaintest.NewJob("default"))[0].ID

	due := func() {
		_, err := b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		_, _, err = b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		_, err = b.Timer.NextDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
	}
	due()
	var nacks []job.Nack
	for len(nacks) < 200 {
		jobs := b.Fetched(100, "default")
		if len(jobs) == 0 {
			break
		}
		for _, j := range jobs {
			nacks = append(nacks, job.Nack{JobID: j.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{"code":"x","message":"y"}`)})
		}
	}
	require.GreaterOrEqual(t, len(nacks), len(nonsense)+5)
	failed, errs := b.FailEach(t.Context(), nacks)
	require.Nil(t, errs)
	for i, job := range failed {
		require.Equal(t, nacks[i].JobID, job.ID)
		policy, invalid := ids[job.ID]
		if !invalid {
			require.NotContains(t, string(job.Error), "policy_error")
			continue
		}
		require.Equal(t, string(ojs.StateRetryable), job.State, policy)
		require.Contains(t, string(job.Error), `"policy_error":"decode retry policy: `, policy)
		require.Contains(t, log.String(), spec.FormatID(job.ID), "the log names the job")
		require.InDelta(t, 1000, job.RetryDelayMs.Int64, 500, "the default policy applies")
	}
	require.Equal(t, ojs.StateRetryable, b.State(good))
	b.Exec("UPDATE ojs.jobs SET due_at = now(), next_attempt_at = now() WHERE state = 'retryable'")
	due()
	require.Equal(t, ojs.StateAvailable, b.State(good))

	// A sweep of lost reservations decides by the policy, too. The last policy is one that only the owner of the table can write.
	b.Exec(`UPDATE ojs.jobs SET retry = '["soon"]' WHERE id = $1`, good)
	fetched := b.Fetched(100, "default")
	require.Greater(t, len(fetched), len(nonsense))
	b.Exec("UPDATE ojs.jobs SET due_at = now(), lease_until = now() WHERE state = 'active'")
	due()
	for _, j := range fetched {
		stored, err := b.Get(t.Context(), j.ID)
		require.NoError(t, err)
		require.NotEqual(t, string(ojs.StateActive), stored.State)
		_, invalid := ids[j.ID]
		require.Equal(t, invalid || j.ID == good, strings.Contains(string(stored.Error), `"policy_error":"decode retry policy: `), string(stored.Error))
	}
}
