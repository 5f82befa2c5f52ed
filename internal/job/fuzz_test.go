package job

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

func FuzzDecodeJob(f *testing.F) {
	for _, seed := range []string{
		string(smallJob), string(sdkJob), job(), "", "{}", "[]", "null", `{"type":"a"`, "\xef\xbb\xbf{}", job() + "x",
		`{"type":"a","args":["\u0000",12345678901234567890,1.0,1e999999,-0,"\ud800","\udc00\ud800",{"a":1,"a":2}]}`,
		job(`"id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"`, `"specversion":"1.0.0-rc.1"`, `"state":"active"`, `"x_a":1`, `"x_a":{"b":[]}`),
		job(`"tags":["a","a","\u0000"]`, `"schema":"urn:x:y"`, `"priority":"HIGH"`, `"pending":true`, `"scheduled_at":"+PT5S"`),
		job(`"meta":{"a":1,"trace_id":"t"}`, options(`"metadata":{"a":2,"b":3}`, `"x_b":null`, `"timeout":5`, `"visibility_timeout":"PT30S"`, `"expires_at":"2030-01-01T00:00:00.5+01:00"`)),
		job(options(`"unique":{"key":["queue","k"],"period_ms":5,"states":["active"]}`, `"retry":{"max_attempts":1e2,"initial_interval":"PT0.5S","non_retryable_errors":["a.*"]}`)),
		job(`"max_attempts":99999999999999999999`, `"timeout_ms":-1`, `"total_timeout":1e-1`, `"result_ttl":-1`, `"rate_limit":{"key":"k"}`),
		`{"type":"a","args":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, strings.Repeat(`{"a":`, 12_000),
		"{\"type\":\"a\",\"args\":[\"\xff\"]}", "{\"type\":\"a\",\"args\":[\"\xed\xa0\x80\"]}", " {\n\"type\" : \"a\" ,\t\"args\" : [ 1 , 2 ] } ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := bytes.Clone(body)
		j, refused := DecodeJob(body, Limits{})
		require.Equal(t, kept, body, "the body is not changed")
		if refused != nil {
			require.Nil(t, j)
			require.Contains(t, []int{400, 413, 422}, stage(refused))
			require.NotEmpty(t, refused.Message)
			_, err := json.Marshal(refused)
			require.NoError(t, err)
			return
		}
		checkJob(t, body, j)
	})
}

// checkJob holds what is true of every accepted job.
func checkJob(t *testing.T, body []byte, j *Job) {
	require.True(t, ValidType(j.Type))
	require.True(t, ValidQueue(j.Queue))
	require.True(t, j.Priority >= -100 && j.Priority <= 100)
	require.GreaterOrEqual(t, j.MaxAttempts, int64(0))
	require.NotContains(t, j.TraceID, "\x00")
	for _, ms := range []int64{j.TimeoutMS, j.VisibilityMS, j.GraceMS, j.TotalTimeoutMS, j.EnqueueTTLMS, j.HeartbeatTimeoutMS} {
		require.True(t, ms >= 0 && ms <= maxMS)
	}
	for _, w := range []When{j.ScheduledAt, j.ExpiresAt} {
		require.True(t, w.In >= 0 && w.In <= maxMS*time.Millisecond)
	}
	_, err := ParseStoredRetry(j.Retry)
	require.NoError(t, err)

	var sent map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(body, &sent))
	var args bytes.Buffer
	require.NoError(t, json.Compact(&args, sent["args"]))
	require.Equal(t, args.String(), string(j.Args))

	for _, part := range [][]byte{j.Meta, j.Extra} {
		if part == nil {
			continue
		}
		var object map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(part, &object))
		require.NotEmpty(t, object)
		var compact bytes.Buffer
		require.NoError(t, json.Compact(&compact, part))
		require.Equal(t, compact.String(), string(part))
	}
	checkExtra(t, sent, j)
}

// checkExtra: unknown attributes are there with their literal value, and nothing that a column holds is.
func checkExtra(t *testing.T, sent map[string]json.RawMessage, j *Job) {
	extra := map[string]json.RawMessage{}
	if j.Extra != nil {
		require.NoError(t, json.Unmarshal(j.Extra, &extra))
	}
	for name, value := range sent {
		if attrsByName[name] == unknownAttr && !strings.Contains(name, "\ufffd") {
			var compact bytes.Buffer
			require.NoError(t, json.Compact(&compact, value))
			require.Equal(t, compact.String(), string(extra[name]), name)
		}
	}
	for _, name := range append([]string{"id", "type", "queue", "args", "meta", "metadata", "priority", "max_attempts", "options", "specversion", "pending"}, serverNames...) {
		require.NotContains(t, extra, name)
	}
	// What was stored is accepted again as it is, but for the alias timeout, which loses to timeout_ms.
	stored := WithoutTimeout(j.Extra)
	var again bytes.Buffer
	again.WriteString(`{"type":"a","args":[]`)
	if len(stored) > 0 {
		again.WriteByte(',')
		again.Write(stored[1 : len(stored)-1])
	}
	again.WriteByte('}')
	if j.Unique == nil { // its args_keys need the args
		j2, refused := DecodeJob(again.Bytes(), Limits{MaxJobBytes: 2 << 20})
		require.Nil(t, refused)
		require.Equal(t, string(stored), string(j2.Extra))
	}
}

func FuzzDecodeCalls(f *testing.F) {
	for _, seed := range []string{
		`{"queues":["a"],"count":5,"wait_ms":1}`, `{"job_id":"x","result":[1],"attempt":1}`, `{"job_id":"x","error":{"code":"c","details":[1],"backtrace":"a\nb","message":"\u0000"}}`,
		`{"job_ids":["a"]}`, `{"filter":{"state":["completed"],"meta":{"a":1},"older_than":"7d"}}`,
		`{"jobs":[{"type":"a","args":[]},5]}`, `{"progress":1e999,"message":"\u0000","data":{"a":1.0},"checkpoint":{}}`, `{"job_id":"x","percentage":-0}`,
		`{"state":{"a":"\ud800"},"step_index":1e2,"metadata":{"x":[]},"sequence":5}`, `{"ids":["a","a"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = DecodeFetch(body)
		if r, err := DecodeAck(body, Limits{}); err == nil && r.Result != nil {
			require.True(t, json.Valid(r.Result))
		}
		if r, err := DecodeNack(body); err == nil && !r.Requeue {
			require.True(t, json.Valid(r.Error.Encode(1, time.Now(), r.WorkerID)))
			event := r.Error.EventErrorWithin(4096)
			require.True(t, json.Valid(event))
			require.LessOrEqual(t, len(event), 4096)
			require.NotEmpty(t, r.Error.Code)
			require.NotEmpty(t, r.Error.Type)
			require.NotEmpty(t, r.Error.Message)
			require.NotContains(t, r.Error.Code+r.Error.Type, "\x00")
		}
		for _, decode := range []func() (ProgressReport, *ojs.Error){
			func() (ProgressReport, *ojs.Error) { return DecodeProgress(body) },
			func() (ProgressReport, *ojs.Error) { return DecodeProgressFor(anID, body) },
		} {
			if r, err := decode(); err == nil {
				require.True(t, r.Progress != nil && *r.Progress >= 0 && *r.Progress <= 1 || r.Data != nil)
				require.True(t, r.Data == nil || json.Valid(r.Data))
				require.True(t, r.Message == nil || !strings.Contains(*r.Message, "\x00"))
			}
		}
		if r, err := DecodeCheckpoint(anID, body, false); err == nil {
			require.True(t, json.Valid(r.Stored))
			state, _, _ := CheckpointParts(r.Stored)
			require.True(t, json.Valid(state))
		}
		_, _ = DecodeResults(body)
		_, _ = DecodeBulkSelect(BulkDelete, body, 100)
		if items, rest, err := SplitBatch(body, 100, "jobs", "atomicity", "idempotency_key"); err == nil {
			_, _ = DecodeItems(items, Limits{})
			_, _ = DecodeBulkOptions(rest)
		}
	})
}
