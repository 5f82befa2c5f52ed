package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// job puts members into a minimal valid PUSH.
func job(members ...string) string {
	return `{"type":"mail.send","args":[]` + strings.Join(append([]string{""}, members...), ",") + `}`
}

func options(members ...string) string { return `"options":{` + strings.Join(members, ",") + `}` }

func accept(t *testing.T, body string) *Job {
	t.Helper()
	j, err := DecodeJob([]byte(body), Limits{})
	require.Nil(t, err, "%.300s", body)
	return j
}

func refuse(t *testing.T, body string) *ojs.Error {
	t.Helper()
	j, err := DecodeJob([]byte(body), Limits{})
	require.NotNil(t, err, "%.300s", body)
	require.Nil(t, j)
	return err
}

func TestDecodeJobMinimal(t *testing.T) {
	t.Parallel()
	require.Equal(t, &Job{Type: "mail.send", Queue: "default", MaxAttempts: 3, Args: []byte(`[]`)}, accept(t, job()))
	for _, same := range []string{`"options":null`, `"options":{}`, `"queue":null,"priority":null,"meta":null,"id":null,"tags":null,"retry":null,"unique":null,"pending":null`} {
		require.Equal(t, accept(t, job()), accept(t, job(same)), same)
	}
}

func TestDecodeJobContractExample(t *testing.T) {
	t.Parallel()
	j := accept(t, `{"type":"invoice.render","args":[{"invoice":"inv-81"}],"meta":{"tenant_id":"t-9"},"x_region":"eu",
 "options":{"queue":"billing","priority":5,"timeout_ms":45000,"retry":{"max_attempts":4}}}`)
	require.Equal(t, &Job{
		Type: "invoice.render", Queue: "billing", Priority: 5, MaxAttempts: 4, TimeoutMS: 45000,
		Args: []byte(`[{"invoice":"inv-81"}]`), Meta: []byte(`{"tenant_id":"t-9"}`), Lane: "t-9",
		Extra: []byte(`{"timeout_ms":45000,"retry":{"max_attempts":4},"x_region":"eu"}`),
	}, j)
}

// Bodies that are no object, docs/reference/http.md, Bodies.
func TestDecodeJobRefusesBadBodies(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", " ", "[]", "null", "{}{}", job() + "x", "\xef\xbb\xbf" + job(), `{"type":`, "{\"type\":\"\xff\"}", job("")} {
		e := refuse(t, body)
		require.Equal(t, 400, stage(e), "%q", body)
		require.Equal(t, "invalid_payload", e.Type, "%q", body)
		require.NotEmpty(t, e.Message)
	}
}

// One row per rule of docs/reference/jobs.md, Attributes that answers 400.
func TestDecodeJobRefusesFields(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 256)
	for _, c := range []struct{ body, kind, field string }{
		{`{"args":[]}`, "invalid_job_type", "type"}, {`{"type":null,"args":[]}`, "invalid_job_type", "type"}, {`{"type":5,"args":[]}`, "invalid_job_type", "type"},
		{`{"type":"","args":[]}`, "invalid_job_type", "type"}, {`{"type":"Mail","args":[]}`, "invalid_job_type", "type"}, {`{"type":"a..b","args":[]}`, "invalid_job_type", "type"},
		{`{"type":".a","args":[]}`, "invalid_job_type", "type"}, {`{"type":"a.","args":[]}`, "invalid_job_type", "type"}, {`{"type":"1a","args":[]}`, "invalid_job_type", "type"},
		{`{"type":"a.1","args":[]}`, "invalid_job_type", "type"}, {`{"type":"a b","args":[]}`, "invalid_job_type", "type"}, {`{"type":"a\u0000","args":[]}`, "invalid_job_type", "type"},
		{`{"type":"é","args":[]}`, "invalid_job_type", "type"}, {`{"type":"a\n","args":[]}`, "invalid_job_type", "type"}, {`{"type":"` + long + `","args":[]}`, "job_type_too_long", "type"},
		{`{"type":"a"}`, "invalid_args", "args"}, {`{"type":"a","args":null}`, "invalid_args", "args"}, {`{"type":"a","args":{}}`, "invalid_args", "args"},
		{`{"type":"a","args":"x"}`, "invalid_args", "args"}, {`{"type":"a","args":1}`, "invalid_args", "args"}, {`{"type":"a","args":true}`, "invalid_args", "args"},
		{job(`"id":""`), "invalid_payload", "id"}, {job(`"id":5`), "invalid_payload", "id"}, {job(`"id":"free text"`), "invalid_payload", "id"},
		{job(`"id":"019A3C10-5A00-7B11-9C22-0A1B2C3D4E5F"`), "invalid_payload", "id"}, {job(`"id":"9b2c7a52-3c86-4d43-a2f1-1f2b9d0c6c11"`), "invalid_payload", "id"},
		{job(`"id":"job_019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"`), "invalid_payload", "id"},
		{job(`"specversion":1`), "invalid_payload", "specversion"},
		{job(`"options":5`), "invalid_payload", "options"}, {job(`"options":[]`), "invalid_payload", "options"}, {job(`"options":"x"`), "invalid_payload", "options"},
		{job(`"queue":5`), "invalid_queue", "queue"}, {job(`"queue":""`), "invalid_queue", "queue"}, {job(`"queue":"Q"`), "invalid_queue", "queue"}, {job(`"queue":"a_b"`), "invalid_queue", "queue"},
		{job(`"queue":"-a"`), "invalid_queue", "queue"}, {job(`"queue":".a"`), "invalid_queue", "queue"}, {job(`"queue":"` + long[:129] + `"`), "queue_name_too_long", "queue"},
		{job(options(`"queue":"A"`)), "invalid_queue", "queue"},
		{job(`"priority":101`), "invalid_payload", "priority"}, {job(`"priority":-101`), "invalid_payload", "priority"}, {job(`"priority":1.5`), "invalid_payload", "priority"},
		{job(`"priority":"5"`), "invalid_payload", "priority"}, {job(`"priority":"urgent"`), "invalid_payload", "priority"}, {job(`"priority":true`), "invalid_payload", "priority"},
		{job(`"priority":1e99`), "invalid_payload", "priority"}, {job(`"priority":65536`), "invalid_payload", "priority"},
		{job(`"meta":[]`), "invalid_metadata", "meta"}, {job(`"meta":"x"`), "invalid_metadata", "meta"}, {job(options(`"metadata":5`)), "invalid_metadata", "metadata"},
		{job(`"metadata":false`), "invalid_metadata", "metadata"}, {job(options(`"meta":[1]`)), "invalid_metadata", "meta"},
		{job(`"schema":"no uri"`), "invalid_payload", "schema"}, {job(`"schema":"relative/path"`), "invalid_payload", "schema"}, {job(`"schema":""`), "invalid_payload", "schema"},
		{job(`"schema":5`), "invalid_payload", "schema"}, {job(`"schema":"urn:a b"`), "invalid_payload", "schema"}, {job(`"schema":"urn:a\u0000"`), "invalid_payload", "schema"}, {job(`"schema":"urn:a\u007f"`), "invalid_payload", "schema"}, {job(`"schema":"urn:"`), "invalid_payload", "schema"},
		{job(`"tags":"x"`), "invalid_payload", "tags"}, {job(`"tags":[""]`), "invalid_payload", "tags"}, {job(`"tags":[1]`), "invalid_payload", "tags"},
		{job(`"tags":["a",null]`), "invalid_payload", "tags"}, {job(`"tags":["a\u0000"]`), "invalid_payload", "tags"}, {job(`"tags":{}`), "invalid_payload", "tags"},
		{job(`"timeout_ms":-1`), "invalid_payload", "timeout_ms"}, {job(`"timeout_ms":1.5`), "invalid_payload", "timeout_ms"}, {job(`"timeout_ms":"5"`), "invalid_payload", "timeout_ms"},
		{job(`"timeout_ms":3153600000001`), "invalid_payload", "timeout_ms"}, {job(`"timeout_ms":99999999999999999999`), "invalid_payload", "timeout_ms"},
		{job(`"timeout":-1`), "invalid_payload", "timeout"}, {job(`"timeout":3153600001`), "invalid_payload", "timeout"}, {job(`"timeout":9223372036854775807`), "invalid_payload", "timeout"},
		{job(`"visibility_timeout_ms":-1`), "invalid_payload", "visibility_timeout_ms"}, {job(`"visibility_timeout_ms":604800001`), "invalid_payload", "visibility_timeout_ms"},
		{job(`"visibility_timeout_ms":"PT5S"`), "invalid_payload", "visibility_timeout_ms"}, {job(`"visibility_timeout":"P8D"`), "invalid_payload", "visibility_timeout"},
		{job(`"visibility_timeout":604801`), "invalid_payload", "visibility_timeout"}, {job(`"visibility_timeout":"soon"`), "invalid_payload", "visibility_timeout"}, {job(`"visibility_timeout":"+PT5S"`), "invalid_payload", "visibility_timeout"},
		{job(`"visibility_timeout":1.5`), "invalid_payload", "visibility_timeout"}, {job(`"visibility_timeout":"2026-05-04T03:02:01Z"`), "invalid_payload", "visibility_timeout"},
		{job(`"scheduled_at":5`), "invalid_payload", "scheduled_at"}, {job(`"scheduled_at":""`), "invalid_payload", "scheduled_at"}, {job(`"scheduled_at":"tomorrow"`), "invalid_payload", "scheduled_at"},
		{job(`"scheduled_at":"2026-05-04T03:02:01"`), "invalid_payload", "scheduled_at"}, {job(`"scheduled_at":"-PT5S"`), "invalid_payload", "scheduled_at"},
		{job(options(`"delay_until":"P"`)), "invalid_payload", "delay_until"}, {job(`"expires_at":"2026-02-30T00:00:00Z"`), "invalid_payload", "expires_at"},
		{job(`"scheduled_at":"+P36501D"`), "invalid_payload", "scheduled_at"},
		{job(`"pending":1`), "invalid_payload", "pending"}, {job(`"pending":"true"`), "invalid_payload", "pending"},
		{job(`"pending":true`, `"scheduled_at":"PT5S"`), "invalid_payload", "scheduled_at"}, {job(`"pending":true`, `"scheduled_at":"9999-01-01T00:00:00Z"`), "invalid_payload", "scheduled_at"},
		{job(`"grace_period":-1`), "invalid_payload", "grace_period"}, {job(`"total_timeout":"PT5S"`), "invalid_payload", "total_timeout"}, {job(`"enqueue_ttl":1.5`), "invalid_payload", "enqueue_ttl"},
		{job(`"heartbeat_timeout":-5`), "invalid_payload", "heartbeat_timeout"}, {job(`"result_ttl":-2`), "invalid_payload", "result_ttl"}, {job(`"result_ttl":"x"`), "invalid_payload", "result_ttl"},
		{job(`"total_timeout":1`, `"timeout_ms":1001`), "invalid_payload", "total_timeout"}, {job(`"total_timeout":1`, `"timeout":2`), "invalid_payload", "total_timeout"},
		{job(`"rate_limit":5`), "invalid_payload", "rate_limit"}, {job(`"unique":true`), "invalid_payload", "unique"}, {job(`"unique_key":"abc"`), "invalid_payload", "unique_key"},
		{job(options(`"unique_key":"` + strings.Repeat("A", 64) + `"`)), "invalid_payload", "unique_key"},
	} {
		e := refuse(t, c.body)
		require.Equal(t, 400, stage(e), c.body)
		require.Equal(t, "invalid_payload", e.Code, c.body)
		require.Equal(t, c.kind, e.Type, c.body)
		require.Equal(t, c.field, e.Details["field"], c.body)
		require.Contains(t, e.Message, "'"+c.field+"'", c.body)
		require.NotEmpty(t, e.Details["expected"], c.body)
		require.Len(t, e.Details["validation_errors"], 1, c.body)
		_, err := json.Marshal(e)
		require.NoError(t, err)
	}
}

func TestDecodeJobTellsAllProblems(t *testing.T) {
	t.Parallel()
	e := refuse(t, `{"type":"A","priority":500,"options":{"queue":"_","priority":7.5},"tags":[""]}`)
	require.Equal(t, "invalid_job_type", e.Type)
	require.Equal(t, json.RawMessage(`"A"`), e.Details["received"])
	b, err := json.Marshal(e.Details["validation_errors"])
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"path":"$.type","message":"'type' must be a job type of words joined by dots, each a lower-case letter and then lower-case letters, digits, _ and -, such as invoice.render, got \"A\"."},
		{"path":"$.args","message":"'args' is required: send an array."},
		{"path":"$.options.queue","message":"'queue' must be a queue name of lower-case letters, digits, - and ., starting with a letter or digit, got \"_\"."},
		{"path":"$.options.priority","message":"'priority' must be an integer from -100 to 100, or HIGH, NORMAL or LOW, got 7.5."},
		{"path":"$.tags","message":"'tags' must be an array of non-empty strings without U+0000, got [\"\"]."}]`, string(b))
}

func TestDecodeJobBoundsItsComplaints(t *testing.T) {
	t.Parallel()
	e := refuse(t, job(`"unique":{`+strings.TrimSuffix(strings.Repeat(`"x":1,`, 500), ",")+`}`))
	require.Len(t, e.Details["validation_errors"], jsonread.MaxProblems)
	e = refuse(t, job(`"queue":"`+strings.Repeat("x", 100_000)+`"`))
	require.Less(t, len(fmt.Sprint(e.Details["received"])), 300)
	require.Less(t, len(e.Message), 300)
}

// Names, formats and bounds that are accepted, seen through one field each.
func TestDecodeJobAccepts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a", "a_b-c9.d", "dlq.test.list-first", "a-", "a_", strings.Repeat("a", 255)} {
		require.Equal(t, text, accept(t, `{"type":"`+text+`","args":[]}`).Type)
	}
	for _, text := range []string{"a", "0", "9-a.b", "a..b-", strings.Repeat("a", 128)} {
		require.Equal(t, text, accept(t, job(`"queue":"`+text+`"`)).Queue)
	}
	require.Equal(t, "mail.send", accept(t, `{"t\u0079pe":"mail\u002esend","args":[]}`).Type)
	for text, want := range map[string]int16{`0`: 0, `100`: 100, `-100`: -100, `5.0`: 5, `1e1`: 10, `"HIGH"`: 10, `"normal"`: 0, `"Low"`: -10, `-0`: 0} {
		require.Equal(t, want, accept(t, job(`"priority":`+text)).Priority, text)
	}
	for _, text := range []string{"1", "1.0", "1.0.0", "1.0.12", "1.0.09", "1.0.0-rc.1", "1.0.0-09-az.AZ"} {
		require.Nil(t, accept(t, job(`"specversion":"`+text+`"`)).Extra)
	}
	for _, uri := range []string{"urn:example:invoice:v1", "https://example.org/schema.json", "ojs:x"} {
		require.JSONEq(t, `{"schema":"`+uri+`"}`, string(accept(t, job(`"schema":"`+uri+`"`)).Extra))
	}
	require.True(t, accept(t, job(`"pending":true`)).Pending)
	require.True(t, accept(t, job(`"pending":true`, `"scheduled_at":"2020-01-01T00:00:00Z"`)).Pending)
	require.False(t, accept(t, job(`"pending":false`, `"scheduled_at":"PT1H"`)).Pending)
}

func TestDecodeJobID(t *testing.T) {
	t.Parallel()
	j := accept(t, job(`"id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"`))
	require.True(t, j.ClientID)
	require.Equal(t, "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f", spec.FormatID(j.ID))
	require.Nil(t, j.Extra)
	require.False(t, accept(t, job(options(`"id":"whatever"`))).ClientID, "id is read from the top level alone")
}

func TestDecodeJobRefusesPolicies(t *testing.T) {
	t.Parallel()
	for body, field := range map[string]string{
		job(`"retry":{"max_attempts":-1}`): "retry.max_attempts", job(options(`"retry":{"backoff_coefficient":0.5}`)): "retry.backoff_coefficient",
		job(`"retry":5`): "retry", job(options(`"retry_policy":{"jitter":1}`)): "retry.jitter", job(options(`"max_attempts":-1`)): "max_attempts",
		job(`"max_attempts":"3"`): "max_attempts", job(`"max_attempts":1e30`): "max_attempts",
	} {
		e := refuse(t, body)
		require.Equal(t, 422, stage(e), body)
		require.Equal(t, "validation_error", e.Code, body)
		require.Equal(t, field, e.Details["field"], body)
		require.Contains(t, e.Message, strings.TrimPrefix(field, "retry."), body)
		require.Len(t, e.Details["validation_errors"], 1)
	}
	require.Equal(t, "$.options.retry.jitter", refuse(t, job(options(`"retry":{"jitter":1}`))).Details["validation_errors"].([]jsonread.Violation)[0].Path)

	e := refuse(t, job(`"specversion":"2.0"`))
	require.Equal(t, 422, stage(e))
	require.Equal(t, "unsupported", e.Code)
	require.Equal(t, "2.0", e.Details["requested"])
	require.Equal(t, []string{"1.0"}, e.Details["supported"])
	for _, text := range []string{"", "1.1", "1.0.", "1.0.0-", "1.0.x", "2", "01.0", "1.0./", "1.0.:", "1.0.0-/", "1.0.0-:", "1.0.0-@", "1.0.0-[", "1.0.0-_", "1.0.0-`", "1.0.0-{"} {
		require.Equal(t, "unsupported", refuse(t, job(`"specversion":"`+text+`"`)).Code, text)
	}
}

func TestDecodeJobStagesInOrder(t *testing.T) {
	t.Parallel()
	bigMeta := `"meta":{"a":"` + strings.Repeat("x", 70_000) + `"}`
	require.Equal(t, 413, stage(refuse(t, job(bigMeta))))
	require.Equal(t, 422, stage(refuse(t, job(bigMeta, `"retry":{"max_attempts":-1}`))), "policy before size of meta")
	require.Equal(t, 400, stage(refuse(t, job(`"priority":500`, `"retry":{"max_attempts":-1}`))), "fields before policy")
	require.Equal(t, 400, stage(refuse(t, job(`"retry":{"max_attempts":-1}`)+"x")), "syntax before policy")
	_, err := DecodeJob([]byte(`{"type"`+strings.Repeat(" ", 100)), Limits{MaxJobBytes: 50})
	require.Equal(t, 413, stage(err), "size before syntax")
}

func TestDecodeJobSizes(t *testing.T) {
	t.Parallel()
	body := job(`"x":"` + strings.Repeat("x", 100) + `"`)
	_, err := DecodeJob([]byte(body), Limits{MaxJobBytes: len(body)})
	require.Nil(t, err, "exactly the limit is accepted")
	_, err = DecodeJob([]byte(body), Limits{MaxJobBytes: len(body) - 1})
	require.Equal(t, "payload_too_large", err.Code)
	require.Equal(t, "envelope", err.Details["field"])
	require.Equal(t, len(body), err.Details["actual_bytes"])

	meta := func(n int) string { return `{"a":"` + strings.Repeat("x", n-len(`{"a":""}`)) + `"}` }
	require.Len(t, accept(t, job(`"meta":`+meta(65_536))).Meta, 65_536)
	e := refuse(t, job(`"meta":`+meta(65_537)))
	require.Equal(t, "metadata_too_large", e.Code)
	require.Equal(t, "meta", e.Details["field"])
	require.Equal(t, 65_536, e.Details["max_bytes"])
	require.Equal(t, 413, stage(refuse(t, job(`"meta":`+meta(40_000), options(`"metadata":`+strings.Replace(meta(40_000), "a", "b", 1))))), "measured after the merge")
	require.Len(t, accept(t, job(`"meta": { "a" : `+strings.Repeat(" ", 70_000)+`1}`)).Meta, len(`{"a":1}`), "measured without white space")
}

func TestDecodeJobDepth(t *testing.T) {
	t.Parallel()
	arrays := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for _, c := range []struct{ format, kind, field string }{
		{`{"type":"a","args":%[1]s}`, "invalid_args", "args"},
		{job(`"x_deep":%[1]s`), "invalid_payload", "x_deep"},
		{job(options(`"x_deep":%[1]s`)), "invalid_payload", "x_deep"},
		{job(`"meta":%[2]s`), "invalid_metadata", "meta"},
		{job(options(`"metadata":%[2]s`)), "invalid_metadata", "metadata"},
		{job(`"retry":%[2]s`), "invalid_payload", "retry"},
	} {
		accept(t, strings.NewReplacer("%[1]s", arrays(32), "%[2]s", objects(32)).Replace(c.format))
		e := refuse(t, strings.NewReplacer("%[1]s", arrays(33), "%[2]s", objects(33)).Replace(c.format))
		require.Equal(t, c.kind, e.Type, c.format)
		require.Equal(t, c.field, e.Details["field"], c.format)
		require.Contains(t, e.Message, "32 levels")
	}
	require.Equal(t, "unique", refuse(t, job(`"unique":`+objects(33))).Details["field"])
	accept(t, `{"type":"a","args":[`+strings.Repeat("[[]],", 500)+`[]]}`) // many brackets, little depth
	require.Error(t, refuse(t, `{"type":"a","args":`+arrays(20_000)+`}`))
}

// Literals survive: numbers beyond 2^53, 1.0 against 1, key order, repetitions, U+0000 and lone surrogates.
func TestDecodeJobKeepsClientJSON(t *testing.T) {
	t.Parallel()
	raw := `[12345678901234567890,1.0,1,-0,1E+2,{"b":1,"a":2,"b":3},"\u0000","\ud800","\/","é","😀","\ud83d\ude00",[],{},null,true,"  ",{"__ojs_ref":"x"}]`
	j := accept(t, `{"type":"a","args":`+raw+`,"x_any":`+raw+`,"meta":{"m":`+raw+`}}`)
	require.Equal(t, raw, string(j.Args))
	require.Equal(t, `{"x_any":`+raw+`}`, string(j.Extra))
	require.Equal(t, `{"m":`+raw+`}`, string(j.Meta))
	j = accept(t, "{ \"type\" : \"a\" ,\r\n\t\"args\" : [ 1 , { \"a b\" : \" c \" } , [ ] ] }")
	require.Equal(t, `[1,{"a b":" c "},[]]`, string(j.Args))
}

func TestDecodeJobOwnsItsBytes(t *testing.T) {
	t.Parallel()
	body := []byte(`{"type":"a.b","args":["x"],"meta":{"trace_id":"t","k":"v"},"x_y":[1],"schema":"urn:a:b","queue":"q","retry":{"max_attempts":2,"non_retryable_errors":["E"]},"unique":{"keys":["queue"]}}`)
	j, err := DecodeJob(body, Limits{})
	require.Nil(t, err)
	before := fmt.Sprintf("%+v %+v", *j, *j.Unique)
	for i := range body {
		body[i] = '#'
	}
	require.Equal(t, before, fmt.Sprintf("%+v %+v", *j, *j.Unique))
	j.Args = append(j.Args, "!!!!"...)
	require.Equal(t, `{"trace_id":"t","k":"v"}`, string(j.Meta), "parts do not run into each other")
}

func TestDecodeJobDuplicateKeys(t *testing.T) {
	t.Parallel()
	j := accept(t, `{"type":"a","type":"b","args":[1],"args":[2],"queue":"x","queue":null,"x_a":1,"x_b":2,"x_a":3,"options":{"priority":1},"options":{"priority":2,"priority":3}}`)
	require.Equal(t, "b", j.Type)
	require.Equal(t, `[2]`, string(j.Args))
	require.Equal(t, "default", j.Queue)
	require.Equal(t, int16(3), j.Priority)
	require.Equal(t, `{"x_a":3,"x_b":2}`, string(j.Extra))
	require.Equal(t, "args", refuse(t, `{"type":"a","args":[1],"args":null}`).Details["field"])
}

func TestDecodeJobQueueRetry(t *testing.T) {
	t.Parallel()
	slow := DefaultRetry()
	slow.MaxAttempts, slow.InitialInterval = 9, time.Minute
	lim := Limits{QueueRetry: func(queue string) (RetryPolicy, bool) { return slow, queue == "slow" }}
	decode := func(body string) *Job {
		j, err := DecodeJob([]byte(body), lim)
		require.Nil(t, err)
		return j
	}
	j := decode(job(`"queue":"slow"`))
	require.Equal(t, int64(9), j.MaxAttempts)
	require.Equal(t, string(slow.Encode()), string(j.Retry))
	j = decode(job(`"queue":"slow"`, `"retry":{"max_attempts":2}`))
	p, err := ParseStoredRetry(j.Retry)
	require.NoError(t, err)
	require.Equal(t, int64(2), j.MaxAttempts)
	require.Equal(t, time.Minute, p.InitialInterval)
	require.Equal(t, int64(5), decode(job(`"queue":"slow"`, `"max_attempts":5`)).MaxAttempts)
	j = decode(job(`"queue":"other"`))
	require.Equal(t, int64(3), j.MaxAttempts)
	require.Nil(t, j.Retry)
}

func TestTemplateEqualsItsJSON(t *testing.T) {
	t.Parallel()
	for _, options := range []string{"", `{}`, `{"queue":"q","priority":5,"x":{"y":1}}`, `{"queue":"_"}`, `{"meta":{"a":1,"b":2},"retry":{"max_attempts":2}}`, `{"expires_at":"PT5M"}`} {
		for _, kind := range []string{"a.b", "", "A"} {
			doc := `{"args":[1]`
			template := Template{Type: kind, Args: []byte(`[1]`), Meta: []byte(`{"a":0}`)}
			if kind != "" {
				doc += `,"type":"` + kind + `"`
			}
			if options != "" {
				template.Options = []byte(options)
				doc += `,"options":` + options
			}
			want, wantErr := DecodeJob([]byte(doc+`,"meta":{"a":0}}`), Limits{})
			got, gotErr := template.Job(Limits{})
			require.Equal(t, wantErr, gotErr, doc)
			require.Equal(t, want, got, doc)
		}
	}
}
