package grpcapi

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// A unique policy has a period only if the client sent one.
func TestPeriodOfUniquePolicy(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]*durationpb.Duration{
		`{"key":["type"]}`: nil, `{"key":["type"],"period_ms":0}`: nil, `{"key":["type"],"period_ms":1}`: durationpb.New(time.Millisecond), `{"key":["type"],"period":"PT2H"}`: durationpb.New(2 * time.Hour),
	} {
		shown := jobOf(&job.Record{Args: []byte(`[]`), Extra: []byte(`{"unique":` + sent + `}`)}).GetUniquePolicy()
		require.NotNil(t, shown, sent)
		require.True(t, proto.Equal(want, shown.GetPeriod()), "%s: %s", sent, shown.GetPeriod())
	}
}

// TestValuesSurvive: what a client sends as a Value comes back as it was.
func TestValuesSurvive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := drawValue(t, 4)
		text, err := object(func(w *jsonWriter) {
			w.name("v")
			w.value("args", ojs.ErrInvalidArgs, v)
		})
		if err != nil || !text.IsValid() {
			t.Fatalf("%s is no JSON: %v", text, err)
		}
		text = jsonread.Find(text, "v")
		if back := valueOf(text); !proto.Equal(v, back) {
			t.Fatalf("%v became %v by %s", v, back, text)
		}
	})
}

func drawValue(t *rapid.T, depth int) *structpb.Value {
	kinds := 4
	if depth > 0 {
		kinds = 6
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return structpb.NewNullValue()
	case 1:
		return structpb.NewBoolValue(rapid.Bool().Draw(t, "bool"))
	case 2:
		return structpb.NewNumberValue(rapid.Float64().Draw(t, "number"))
	case 3:
		return structpb.NewStringValue(rapid.String().Draw(t, "string"))
	case 4:
		list := &structpb.ListValue{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list.Values = append(list.Values, drawValue(t, depth-1))
		}
		return structpb.NewListValue(list)
	}
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		s.Fields[rapid.String().Draw(t, "name")] = drawValue(t, depth-1)
	}
	return structpb.NewStructValue(s)
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for f, want := range map[float64]string{
		0: "0", 1: "1", -2: "-2", 2.5: "2.5", 1e6: "1000000", 9007199254740993: "9007199254740992", 1e21: "1e+21", 1e-7: "1e-07", 0.000001: "0.000001",
		math.MaxFloat64: "1.7976931348623157e+308",
	} {
		require.Equal(t, want, string(jsonread.AppendNumber(nil, f)))
	}
	require.Equal(t, structpb.NewNullValue().GetKind(), valueOf(jsontext.Value("null")).GetKind())
	require.InDelta(t, math.MaxFloat64, valueOf(jsontext.Value("1e400")).GetNumberValue(), 0)
	broken := valueOf(jsontext.Value(`{"\ud800":"a\udc00b\u0000"}`)) // what SQL producers may store
	_, err := proto.Marshal(broken)
	require.NoError(t, err)
}

func TestMilliseconds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		d    *durationpb.Duration
	}{
		{`{}`, nil}, {`{}`, &durationpb.Duration{}}, {`{"ms":1}`, &durationpb.Duration{Nanos: 1}}, {`{"ms":-1}`, &durationpb.Duration{Nanos: -1}},
		{`{"ms":1500}`, &durationpb.Duration{Seconds: 1, Nanos: 500_000_000}}, {`{"ms":2}`, &durationpb.Duration{Nanos: 1_000_001}},
		{`{"ms":315576000000000}`, &durationpb.Duration{Seconds: 315_576_000_000}},
	} {
		text, err := object(func(w *jsonWriter) { w.milliseconds("ms", "field", c.d) })
		require.NoError(t, err)
		require.Equal(t, c.want, string(text))
	}
	for _, d := range []*durationpb.Duration{{Seconds: math.MaxInt64}, {Seconds: math.MinInt64}, {Seconds: 1, Nanos: -1}, {Nanos: math.MaxInt32}} {
		_, err := object(func(w *jsonWriter) { w.milliseconds("ms", "field", d) })
		require.ErrorContains(t, err, "'field' must be a valid duration")
	}
	require.Equal(t, 1500*time.Millisecond, millisecondsOf(jsontext.Value("1500")).AsDuration())
}

// TestJobAsJSON: members and their order are what a cron or a workflow stores, and the bytes that the limit of an envelope counts.
func TestJobAsJSON(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`{}`:                            `{"args":[]}`,
		`{"type":"a","options":{}}`:     `{"type":"a","args":[],"options":{}}`,
		`{"args":[null,{"b":1,"a":2}]}`: `{"args":[null,{"a":2,"b":1}]}`,
		`{"type":"a","args":[1.0,"\u0000é"],"options":{"queue":"q","priority":-5,"delayUntil":"2040-01-02T03:04:05.000001Z","timeout":"1.5s","visibilityTimeout":"60s",
			"retry":{"maxAttempts":7,"initialInterval":"1s","maxInterval":"0.0000001s","backoffCoefficient":2.5,"jitter":true,"nonRetryableErrors":["a.*",""],"onExhaustion":"discard"},
			"maxAttempts":9,"unique":{"key":["type"],"period":"60s","onConflict":"UNIQUE_CONFLICT_ACTION_IGNORE","states":["JOB_STATE_ACTIVE",99],"argsKeys":["0"],"metaKeys":["m"]},
			"ttl":"90.0009s","tags":["x","y"],"pending":true,"traceId":"t","meta":{"m":true}}}`: `{"type":"a","args":[1,"\u0000é"],"options":{"queue":"q","priority":-5,"delay_until":"2040-01-02T03:04:05.000001Z",` +
			`"timeout_ms":1500,"visibility_timeout_ms":60000,"retry":{"max_attempts":7,"initial_interval_ms":1000,"max_interval_ms":1,"backoff_coefficient":2.5,"jitter":true,` +
			`"non_retryable_errors":["a.*",""],"on_exhaustion":"discard"},"max_attempts":9,"unique":{"key":["type"],"period_ms":60000,"on_conflict":"ignore","states":["active","99"],"args_keys":["0"],` +
			`"meta_keys":["m"]},"expires_at":"+PT1M30S","tags":["x","y"],"pending":true,"meta":{"m":true,"trace_id":"t"}}}`,
		`{"options":{"delayUntil":"1970-01-01T00:00:00Z","timeout":"0s","ttl":"0s","retry":{"initialInterval":"0s"},"unique":{}}}`: `{"args":[],"options":{"retry":{},"unique":{}}}`,
		`{"options":{"ttl":"0.000001s","traceId":"t"}}`:                                             `{"args":[],"options":{"expires_at":"+PT0S","meta":{"trace_id":"t"}}}`,
		`{"options":{"ttl":"3153600000s"}}`:                                                         `{"args":[],"options":{"expires_at":"+PT876000H"}}`,
		`{"options":{"traceId":"t","meta":{"trace_id":7}}}`:                                         `{"args":[],"options":{"meta":{"trace_id":7}}}`,
		`{"options":{"traceId":"t","meta":{"traceparent":"00-` + trace + `-00f067aa0ba902b7-01"}}}`: `{"args":[],"options":{"meta":{"traceparent":"00-` + trace + `-00f067aa0ba902b7-01"}}}`,
	} {
		in := &ojsv1.EnqueueRequest{}
		require.NoError(t, protojson.Unmarshal([]byte(message), in), message)
		text, err := object(func(w *jsonWriter) { w.job(in.GetType(), in.GetArgs(), in.GetOptions()) })
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

const trace = "4bf92f3577b34da6a3ce929d0e0e4736"

// TestEnvelope: the limit is that of the JSON, on both transports, and holds for each job of a batch.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]*ojsv1.EnqueueOptions{
		"None": nil, "Queue": {Queue: strings.Repeat("q", 100)}, "Tags": {Tags: []string{strings.Repeat("x", 1000)}}, "Meta": {TraceId: "t"}, "Escapes": {Tags: []string{"\x01\n\""}},
	} {
		in := &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "a"}, {Type: "a", Args: []*structpb.Value{structpb.NewStringValue("x")}, Options: options}}}
		text, err := object(func(w *jsonWriter) { w.job("a", in.GetJobs()[1].GetArgs(), options) })
		require.NoError(t, err)
		a := &API{config: config.Config{Server: config.Server{MaxBatchSize: 2}}, Deps: Deps{Domains: api.Domains{JobLimits: job.Limits{MaxJobBytes: len(text)}}}}
		_, err = a.decodeBatch(t.Context(), in)
		require.NoError(t, err, name)
		a.JobLimits.MaxJobBytes--
		_, err = a.decodeBatch(t.Context(), in)
		var wire *ojs.Error
		require.ErrorAs(t, err, &wire, name)
		require.Equal(t, []any{"envelope", len(text), 1}, []any{wire.Details["field"], wire.Details["actual_bytes"], wire.Details["index"]}, name)
	}
}

// TestFirstBadEntry: the error is that of the lowest index, whether JSON can hold the entry or not.
func TestFirstBadEntry(t *testing.T) {
	t.Parallel()
	good, wrong := &ojsv1.BatchJobEntry{Type: "a"}, &ojsv1.BatchJobEntry{Type: "A"}
	unreadable := &ojsv1.BatchJobEntry{Type: "a", Args: []*structpb.Value{structpb.NewNumberValue(math.NaN())}}
	a := &API{config: config.Config{Server: config.Server{MaxBatchSize: 3}}}
	for want, jobs := range map[string][]*ojsv1.BatchJobEntry{
		"job at index 0: 'args' must be free of":     {unreadable, wrong},
		"job at index 1: 'args' must be free of":     {good, unreadable, wrong},
		"job at index 1: 'type' must be a job type":  {good, wrong, unreadable},
		"'jobs' must be an array of 1 to 3 elements": {},
		"The request has 4 items; send at most 3.":   {unreadable, good, good, good},
	} {
		_, err := a.decodeBatch(t.Context(), &ojsv1.EnqueueBatchRequest{Jobs: jobs})
		require.ErrorContains(t, err, want)
	}
}

// TestDetailsFitIntoTrailers: some clients refuse trailers of more than 8 KiB.
func TestDetailsFitIntoTrailers(t *testing.T) {
	t.Parallel()
	var a API
	a.Logger = nil
	huge := strings.Repeat("x", 100_000)
	violations := make([]map[string]string, 50)
	for i := range violations {
		violations[i] = map[string]string{"path": "$." + huge, "message": huge}
	}
	e := spec.With(spec.With(spec.InvalidPayload("field", huge, huge, huge+"\xff"), "validation_errors", violations), "bad", "\xff")
	size := 0
	_, shown := a.statusOf(t.Context(), e)
	require.Equal(t, codes.InvalidArgument, status.Code(shown))
	for _, d := range status.Convert(shown).Proto().GetDetails() {
		size += proto.Size(d)
	}
	require.Less(t, size, 7000)
	require.Len(t, violationsOf(e), maxViolations)
	require.True(t, api.Storable(errorMetadata(t.Context(), e)["bad"]))
}

func TestSlots(t *testing.T) {
	t.Parallel()
	id, start := [16]byte{1}, time.Now()
	s := newSlots(1)
	free, err := s.wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, free)
	s.take(id, start)
	s.release([16]byte{2}, start.Add(time.Second))
	s.release(id, start) // news of the run before
	s.drop(id, start.Add(-time.Second))
	held, ids := s.all()
	require.Len(t, held, 1)
	require.Len(t, ids, 1)
	go s.release(id, start.Add(time.Millisecond))
	free, err = s.wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, free)
	s.take(id, start)
	s.drop(id, start)
	held, _ = s.all()
	require.Empty(t, held)
}

func TestWord(t *testing.T) {
	t.Parallel()
	require.Equal(t, "replace_except_schedule", word(ojsv1.UniqueConflictAction_UNIQUE_CONFLICT_ACTION_REPLACE_EXCEPT_SCHEDULE, "UNIQUE_CONFLICT_ACTION_"))
	require.Equal(t, "99", word(ojsv1.JobState(99), "JOB_STATE_"))
	for _, s := range []ojs.JobState{ojs.StateScheduled, ojs.StateAvailable, ojs.StatePending, ojs.StateActive, ojs.StateCompleted, ojs.StateRetryable, ojs.StateCancelled, ojs.StateDiscarded} {
		require.NotZero(t, stateOf(string(s)))
		require.Equal(t, string(s), word(stateOf(string(s)), "JOB_STATE_"), fmt.Sprint(s))
	}
}

// TestEnums: words of the domains and enums have the same spelling, both ways.
func TestEnums(t *testing.T) {
	t.Parallel()
	for prefix, enum := range map[string]map[string]int32{
		"JOB_STATE_": ojsv1.JobState_value, "WORKER_STATE_": ojsv1.WorkerState_value, "WORKFLOW_STATE_": ojsv1.WorkflowState_value,
		"WORKFLOW_STEP_STATE_": ojsv1.WorkflowStepState_value, "HEALTH_STATUS_": ojsv1.HealthStatus_value, "UNIQUE_CONFLICT_ACTION_": ojsv1.UniqueConflictAction_value,
	} {
		for name, number := range enum {
			require.Equal(t, number, enumOf[int32](enum, prefix, strings.ToLower(strings.TrimPrefix(name, prefix))), name)
		}
		require.Zero(t, enumOf[int32](enum, prefix, "no such word"))
	}
	for _, state := range []string{"running", "quiet", "terminate"} {
		require.NotZero(t, enumOf[int32](ojsv1.WorkerState_value, "WORKER_STATE_", state))
	}
	for _, state := range []string{"running", "completed", "failed", "cancelled"} {
		require.NotZero(t, enumOf[int32](ojsv1.WorkflowState_value, "WORKFLOW_STATE_", state))
	}
	for _, state := range []string{"waiting", "pending", "active", "completed", "failed", "cancelled"} {
		require.NotZero(t, enumOf[int32](ojsv1.WorkflowStepState_value, "WORKFLOW_STEP_STATE_", state))
	}
	for _, state := range []string{api.Healthy, api.Degraded, api.Unhealthy} {
		require.NotZero(t, enumOf[int32](ojsv1.HealthStatus_value, "HEALTH_STATUS_", state))
	}
}
