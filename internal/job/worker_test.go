package job

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

const anID = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"

var theID, _ = spec.ParseID(anID)

// withID puts an id in the place of "x".
func withID(text string) []byte {
	return []byte(strings.Replace(text, `"job_id":"x"`, `"job_id":"`+anID+`"`, 1))
}

func TestDecodeFetch(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Fetch{
		`{"queues":["b","a"]}`:        {Queues: []string{"b", "a"}, Count: 1},
		`{"queue":"a"}`:               {Queues: []string{"a"}, Count: 1},
		`{"queues":null,"queue":"a"}`: {Queues: []string{"a"}, Count: 1},
		`{"queues":["a"],"queue":5}`:  {Queues: []string{"a"}, Count: 1},
		`{"queues":["a","b","a"],"count":0,"worker_id":"w","visibility_timeout_ms":30000,"wait_ms":5000}`: {Queues: []string{"a", "b"}, Count: 1, WorkerID: "w", VisibilityMS: 30000, Wait: 5 * time.Second},
		`{"queues":["a"],"count":-5}`:                                     {Queues: []string{"a"}, Count: 1},
		`{"queues":["a"],"count":1001}`:                                   {Queues: []string{"a"}, Count: 1000},
		`{"queues":["a"],"max_jobs":7}`:                                   {Queues: []string{"a"}, Count: 7},
		`{"queues":["a"],"count":3.0,"max_jobs":"x"}`:                     {Queues: []string{"a"}, Count: 3},
		`{"queues":["a"],"wait_ms":99999999}`:                             {Queues: []string{"a"}, Count: 1, Wait: 20 * time.Second},
		`{"queues":["a"],"worker_id":"","count":null,"wait_ms":null}`:     {Queues: []string{"a"}, Count: 1},
		`{"queues":["a"],"worker_id":"` + strings.Repeat("w", 255) + `"}`: {Queues: []string{"a"}, Count: 1, WorkerID: strings.Repeat("w", 255)},
	} {
		got, err := DecodeFetch([]byte(text))
		require.Nil(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, c := range map[string][2]string{
		`{}`: {"invalid_queue", "queues"}, `{"queues":[]}`: {"invalid_queue", "queues"}, `{"queues":"a"}`: {"invalid_queue", "queues"}, `{"queues":[1]}`: {"invalid_queue", "queues"},
		`{"queues":["A"]}`: {"invalid_queue", "queues"}, `{"queues":["a",""]}`: {"invalid_queue", "queues"}, `{"queues":[null]}`: {"invalid_queue", "queues"},
		`{"queues":["` + strings.Repeat("a", 129) + `"]}`: {"queue_name_too_long", "queues"}, `{"queue":"_"}`: {"invalid_queue", "queue"},
		`{"queues":[` + strings.Repeat(`"a",`, 100) + `"a"]}`: {"invalid_queue", "queues"},
		`{"queues":["a"],"count":1.5}`:                        {"invalid_payload", "count"}, `{"queues":["a"],"count":"5"}`: {"invalid_payload", "count"}, `{"queues":["a"],"count":1e30}`: {"invalid_payload", "count"},
		`{"queues":["a"],"worker_id":5}`: {"invalid_payload", "worker_id"}, `{"queues":["a"],"worker_id":"a\u0000"}`: {"invalid_payload", "worker_id"},
		`{"queues":["a"],"worker_id":"` + strings.Repeat("w", 256) + `"}`: {"invalid_payload", "worker_id"},
		`{"queues":["a"],"visibility_timeout_ms":-1}`:                     {"invalid_payload", "visibility_timeout_ms"}, `{"queues":["a"],"visibility_timeout_ms":604800001}`: {"invalid_payload", "visibility_timeout_ms"},
		`{"queues":["a"],"wait_ms":-1}`: {"invalid_payload", "wait_ms"}, `{"queues":["a"],"wait_ms":"5"}`: {"invalid_payload", "wait_ms"},
		`[]`: {"invalid_payload", "body"}, ``: {"invalid_payload", "body"},
	} {
		_, err := DecodeFetch([]byte(text))
		require.NotNil(t, err, text)
		require.Equal(t, 400, stage(err))
		require.Equal(t, c[0], err.Type, text)
		require.Equal(t, c[1], err.Details["field"], text)
	}
}

func TestFetchOfManyQueues(t *testing.T) {
	t.Parallel()
	names := make([]string, 101)
	for i := range names {
		names[i] = "q" + strconv.Itoa(i)
	}
	text, _ := json.Marshal(map[string]any{"queues": names[:100]})
	got, err := DecodeFetch(text)
	require.Nil(t, err)
	require.Len(t, got.Queues, 100)
	var problems jsonread.Problems
	require.Len(t, CheckQueues(names[:100], &problems), 100)
	require.Zero(t, problems.Len())
	require.Empty(t, CheckQueues(names, &problems))
	text, _ = json.Marshal(map[string]any{"queues": names})
	_, err = DecodeFetch(text)
	require.Equal(t, "invalid_queue", err.Type)
	require.Equal(t, problems.Err(), err)
}

func TestDecodeAck(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Ack{
		`{"job_id":"x"}`:               {Attempt: AnyAttempt},
		`{"job_id":"x","result":null}`: {Attempt: AnyAttempt, Result: []byte(`null`)},
		`{"job_id":"job_` + anID + `","worker_id":"w","attempt":2,"result":{ "n": 1.0, "z": "\u0000" }}`: {WorkerID: "w", Attempt: 2, Result: []byte(`{"n":1.0,"z":"\u0000"}`)},
		`{"job_id":"x","result":false}`:            {Attempt: AnyAttempt, Result: []byte(`false`)},
		`{"job_id":"x","result":""}`:               {Attempt: AnyAttempt, Result: []byte(`""`)},
		`{"job_id":"x","attempt":0}`:               {Attempt: 0},
		`{"job_id":"x","attempt":null}`:            {Attempt: AnyAttempt},
		`{"job_id":"x","result":1,"result":[ 2 ]}`: {Attempt: AnyAttempt, Result: []byte(`[2]`)},
		`{"job_id":"x","result":1,"result":null}`:  {Attempt: AnyAttempt, Result: []byte(`null`)},
	} {
		want.JobID = theID
		got, err := DecodeAck(withID(text), Limits{})
		require.Nil(t, err, text)
		require.Equal(t, want, got, text)
		item, err := DecodeAckItem(withID(text), Limits{})
		require.Nil(t, err, text)
		require.Equal(t, want, item, text)
	}
	for text, field := range map[string]string{
		`{}`: "job_id", `{"job_id":""}`: "job_id", `{"job_id":5}`: "job_id", `{"job_id":null}`: "job_id", `{"job_id":"x","worker_id":{}}`: "worker_id",
		`{"job_id":"x","attempt":1.5}`: "attempt", `{"job_id":"x","attempt":"1"}`: "attempt", `{"job_id":"x","attempt":1e40}`: "attempt",
		`{"job_id":"x","result":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + `}`: "result", ``: "body",
	} {
		_, err := DecodeAck([]byte(text), Limits{})
		require.NotNil(t, err, text)
		require.Equal(t, 400, stage(err), text)
		require.Equal(t, field, err.Details["field"], text)
	}
	_, err := DecodeAckItem([]byte(`"x"`), Limits{})
	require.Equal(t, 400, stage(err))
	_, err = DecodeAck([]byte(`{"job_id":"x"}`), Limits{})
	require.Equal(t, spec.NotFound("job", "x"), err)
	for attempt, want := range map[string]int32{"-1": noAttempt, "2147483648": noAttempt, "2147483647": 1<<31 - 1} {
		got, err := DecodeAck(withID(`{"job_id":"x","attempt":`+attempt+`}`), Limits{})
		require.Nil(t, err)
		require.Equal(t, want, got.Attempt)
	}
}

func TestDecodeAckResultLimit(t *testing.T) {
	t.Parallel()
	body := func(n int) []byte { return withID(`{"job_id":"x","result":   "` + strings.Repeat("x", n-2) + `"}`) }
	got, err := DecodeAck(body(100), Limits{MaxJobBytes: 100})
	require.Nil(t, err)
	require.Len(t, got.Result, 100)
	_, err = DecodeAck(body(101), Limits{MaxJobBytes: 100})
	require.Equal(t, 413, stage(err))
	require.Equal(t, "payload_too_large", err.Code)
	require.Equal(t, "result", err.Details["field"])
	require.Equal(t, 101, err.Details["actual_bytes"])
}

func TestDecodeAckFor(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, `{}`, `{"job_id":5}`} {
		got, err := DecodeAckFor(anID, []byte(text), Limits{})
		require.Nil(t, err, text)
		require.Equal(t, Ack{JobID: theID, Attempt: AnyAttempt}, got)
	}
	got, err := DecodeAckFor(anID, []byte(`{"job_id":"other","result":[1]}`), Limits{})
	require.Nil(t, err)
	require.Equal(t, Ack{JobID: theID, Attempt: AnyAttempt, Result: []byte(`[1]`)}, got)
	_, err = DecodeAckFor(anID, []byte(`[]`), Limits{})
	require.NotNil(t, err)
}

func TestDecodeNack(t *testing.T) {
	t.Parallel()
	got, err := DecodeNack(withID(`{"job_id":"x","worker_id":"w","attempt":1,"error":{"code":"c","message":"m"}}`))
	require.Nil(t, err)
	require.Equal(t, Nack{JobID: theID, WorkerID: "w", Attempt: 1, Error: WorkerError{Code: "c", Type: "c", Message: "m", Retryable: true}}, got)

	for _, ignored := range []string{``, `,"error":null`, `,"error":"text"`, `,"error":5`, `,"error":{"code":"c"}`} {
		got, err = DecodeNack(withID(`{"job_id":"x","requeue":true` + ignored + `}`))
		require.Nil(t, err, ignored)
		require.Equal(t, Nack{JobID: theID, Attempt: AnyAttempt, Requeue: true}, got)
	}
	for text, field := range map[string]string{
		`{"job_id":"x"}`: "error", `{"job_id":"x","error":null}`: "error", `{"job_id":"x","error":"text"}`: "error", `{"job_id":"x","error":[]}`: "error",
		`{"job_id":"x","requeue":false}`: "error", `{"error":{}}`: "job_id", `{"job_id":"x","requeue":"yes","error":{}}`: "requeue", `{"job_id":7,"requeue":true}`: "job_id",
	} {
		_, err = DecodeNack([]byte(text))
		require.NotNil(t, err, text)
		require.Equal(t, 400, stage(err))
		require.Equal(t, field, err.Details["field"], text)
	}
	_, err = DecodeNackItem([]byte(`5`))
	require.Equal(t, 400, stage(err))
	got, err = DecodeNackItem(withID(`{"job_id":"x","error":{}}`))
	require.Nil(t, err)
	require.Equal(t, "handler_error", got.Error.Code)
}

func TestDecodeNackForTakesText(t *testing.T) {
	t.Parallel()
	got, err := DecodeNackFor(anID, []byte(`{"error":"it broke"}`))
	require.Nil(t, err)
	require.Equal(t, Nack{JobID: theID, Attempt: AnyAttempt, Error: WorkerError{Code: "handler_error", Type: "handler_error", Message: "it broke", Retryable: true}}, got)
	got, err = DecodeNackFor(anID, []byte(`{"error":""}`))
	require.Nil(t, err)
	require.Equal(t, "handler_error", got.Error.Message)
	_, err = DecodeNackFor(anID, []byte(`{}`))
	require.Equal(t, "error", err.Details["field"])
	_, err = DecodeNackFor(anID, nil)
	require.Equal(t, 400, stage(err))
}

func TestSplitBatch(t *testing.T) {
	t.Parallel()
	items, rest, err := SplitBatch([]byte(` {"jobs":[ {"type":"a"} , 5,[] ],"atomicity":"atomic","idempotency_key":null}`), 3, "jobs", "atomicity", "idempotency_key")
	require.Nil(t, err)
	require.Equal(t, `[{"type":"a"} 5 []]`, fmt.Sprint(items))
	require.Equal(t, `"atomic"`, string(rest.Get("atomicity")))
	require.Nil(t, rest.Get("idempotency_key"))

	for text, field := range map[string]string{`{}`: "acks", `{"acks":null}`: "acks", `{"acks":{}}`: "acks", `{"acks":[]}`: "acks", `{"acks":[1],"acks":"x"}`: "acks", `[]`: "body", ``: "body", `{"acks":[1],"jobs":[1]}`: "jobs"} {
		_, _, err = SplitBatch([]byte(text), 10, "acks")
		require.NotNil(t, err, text)
		require.Equal(t, 400, stage(err))
		require.Equal(t, field, err.Details["field"], text)
	}
	_, _, err = SplitBatch([]byte(`{"jobs":[1,2,3]}`), 2, "jobs")
	require.Equal(t, 413, stage(err))
	require.Equal(t, "batch_size_exceeded", err.Code)
	require.Equal(t, 2, err.Details["max_batch_size"])
}

func TestDecodeItems(t *testing.T) {
	t.Parallel()
	split := func(text string) ([]*Job, *ojs.Error) {
		items, _, err := SplitBatch([]byte(text), math.MaxInt, "jobs")
		require.Nil(t, err)
		return DecodeItems(items, Limits{MaxJobBytes: 1 << 20})
	}
	jobs, err := split(`{"jobs":[{"type":"a","args":[1]},{"type":"b","args":[2],"options":{"queue":"q"},"x_y":1}]}`)
	require.Nil(t, err)
	require.Equal(t, "b", jobs[1].Type)
	require.Equal(t, `{"x_y":1}`, string(jobs[1].Extra))

	_, err = split(`{"jobs":[{"type":"a","args":[]},{"type":"a","args":[]},{"args":[]},5,{"type":"b","args":1,"options":{"priority":999}},{"type":"a","args":[],"retry":5}]}`)
	require.Equal(t, 400, stage(err))
	require.Equal(t, 2, err.Details["index"])
	require.Equal(t, "type", err.Details["field"])
	require.Contains(t, err.Message, "job at index 2: 'type' is required")
	paths := []string{}
	for _, v := range err.Details["validation_errors"].([]jsonread.Violation) {
		paths = append(paths, v.Path)
	}
	require.Equal(t, []string{"$.jobs[2].type", "$.jobs[3]", "$.jobs[4].args", "$.jobs[4].options.priority", "$.jobs[5].retry"}, paths)

	_, err = split(`{"jobs":[{"type":"a","args":[],"retry":{"max_attempts":-1}},{}]}`)
	require.Equal(t, 422, stage(err), "the lowest index decides")
	_, err = split(`{"jobs":[{"type":"a","args":["` + strings.Repeat("x", 1_048_576) + `"]}]}`)
	require.Equal(t, 413, stage(err))
	require.Equal(t, "envelope", err.Details["field"])
	require.Equal(t, 0, err.Details["index"])
	_, err = split(`{"jobs":[` + strings.TrimSuffix(strings.Repeat("5,", 1000), ",") + `]}`)
	require.Len(t, err.Details["validation_errors"], jsonread.MaxProblems)
}

func TestDecodeBulkOptions(t *testing.T) {
	t.Parallel()
	decode := func(text string) (BulkOptions, *ojs.Error) {
		_, rest, err := SplitBatch([]byte(`{"jobs":[1]`+text+`}`), 1, "jobs", "atomicity", "idempotency_key")
		require.Nil(t, err)
		return DecodeBulkOptions(rest)
	}
	for text, want := range map[string]BulkOptions{
		``: {}, `,"atomicity":"partial"`: {}, `,"atomicity":"atomic","idempotency_key":"k"`: {true, "k"}, `,"idempotency_key":"` + strings.Repeat("é", 256) + `"`: {false, strings.Repeat("é", 256)},
	} {
		got, err := decode(text)
		require.Nil(t, err, text)
		require.Equal(t, want, got)
	}
	for text, field := range map[string]string{
		`,"atomicity":"both"`: "atomicity", `,"atomicity":true`: "atomicity", `,"idempotency_key":""`: "idempotency_key", `,"idempotency_key":5`: "idempotency_key",
		`,"idempotency_key":"` + strings.Repeat("k", 257) + `"`: "idempotency_key", `,"idempotency_key":"\u0000"`: "idempotency_key",
	} {
		_, err := decode(text)
		require.NotNil(t, err, text)
		require.Equal(t, field, err.Details["field"])
	}
}

// A number of any form is a share of the work; one outside of the range counts as its nearer end.
func TestDecodeProgressNumbers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{
		"0": 0, "1": 0.01, "2.5": 0.025, "30": 0.3, "4e1": 0.4, "50": 0.5, "6": 0.06, "70": 0.7, "80": 0.8, "9": 0.09, "95.5": 0.955, "100": 1, "100.1": 1, "1e999": 1, "-0": 0, "-5": 0,
	} {
		r, err := DecodeProgress(withID(`{"job_id":"x","percentage":` + text + `}`))
		require.Nil(t, err, text)
		require.InDelta(t, want, *r.Progress, 1e-9, text)
		require.False(t, math.Signbit(*r.Progress), text)
	}
	for _, text := range []string{`"9"`, `true`, `[]`, `{}`} {
		_, err := DecodeProgress(withID(`{"job_id":"x","percentage":` + text + `}`))
		require.NotNil(t, err, text)
		require.Equal(t, "percentage", err.Details["field"], text)
	}
}
