package e2e_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

func TestGRPCEnqueue(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)

	t.Run("MinimalJobHasTheDefaultsOfHTTP", func(t *testing.T) {
		res, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "mail.send"})
		require.NoError(t, err)
		job := res.GetJob()
		require.Equal(t, "mail.send", job.GetType())
		require.Equal(t, "default", job.GetQueue())
		require.Equal(t, ojsv1.JobState_JOB_STATE_AVAILABLE, job.GetState())
		require.EqualValues(t, 3, job.GetMaxAttempts())
		require.Equal(t, "1.0", job.GetSpecversion())
		require.NotNil(t, job.GetEnqueuedAt())
		require.Nil(t, job.GetRetryPolicy())
		require.Nil(t, job.GetTimeout())
		http := r.in(t).job(job.GetId())
		require.Equal(t, "[]", http.at("job.args"))
		require.Equal(t, "{}", http.at("job.meta"))
		require.False(t, http.has("job.retry"))
		require.Equal(t, "ojs://ojs/api", r.eventOf(t, job.GetId(), "job.enqueued").at("source"))
	})

	t.Run("AllOptionsArriveAsOverHTTP", func(t *testing.T) {
		at := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
		in := &ojsv1.EnqueueRequest{
			Type: "t", Args: []*structpb.Value{value(t, map[string]any{"user": 1}), value(t, 2.5), value(t, "x\x00y"), value(t, nil), value(t, []any{true}), value(t, map[string]any{"b": 1, "a": 1e300})},
			Options: &ojsv1.EnqueueOptions{
				Queue: "q-all", Priority: -7, DelayUntil: timestamppb.New(at), Timeout: durationpb.New(1500 * time.Microsecond),
				Retry:  &ojsv1.RetryPolicy{InitialInterval: durationpb.New(2 * time.Second), BackoffCoefficient: 1.5, NonRetryableErrors: []string{"Fatal"}, OnExhaustion: "dead_letter"},
				Unique: &ojsv1.UniquePolicy{Key: []string{"type", "user"}, Period: durationpb.New(time.Minute), OnConflict: ojsv1.UniqueConflictAction_UNIQUE_CONFLICT_ACTION_IGNORE, States: []ojsv1.JobState{ojsv1.JobState_JOB_STATE_ACTIVE}},
				Ttl:    durationpb.New(2 * time.Hour), Tags: []string{"a", "b"}, TraceId: "trace-1", Meta: object(t, map[string]any{"k": "v"}),
				MaxAttempts: 9, VisibilityTimeout: durationpb.New(time.Minute),
			},
		}
		res, err := r.Enqueue(r.ctx(), in)
		require.NoError(t, err)
		job := res.GetJob()
		http := r.in(t).job(job.GetId())
		require.Equal(t, `[{"user":1},2.5,"x\u0000y",null,[true],{"a":1e+300,"b":1}]`, http.at("job.args"))
		require.Equal(t, "-7", http.at("job.priority"))
		require.Equal(t, "2", http.at("job.timeout_ms"))
		require.Equal(t, "60000", http.at("job.visibility_timeout_ms"))
		require.Equal(t, `{"initial_interval_ms":2000,"backoff_coefficient":1.5,"non_retryable_errors":["Fatal"],"on_exhaustion":"dead_letter"}`, http.at("job.retry"))
		require.Equal(t, `{"key":["type","user"],"period_ms":60000,"on_conflict":"ignore","states":["active"]}`, http.at("job.unique"))
		require.Equal(t, `["a","b"]`, http.at("job.tags"))
		require.Equal(t, `{"k":"v","trace_id":"trace-1"}`, http.at("job.meta"))
		require.Equal(t, "9", http.at("job.max_attempts"))
		require.Equal(t, "scheduled", http.at("job.state"))
		expires, err := time.Parse(time.RFC3339, http.at("job.expires_at"))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(2*time.Hour), expires, time.Minute)

		require.Equal(t, ojsv1.JobState_JOB_STATE_SCHEDULED, job.GetState())
		require.Equal(t, at, job.GetScheduledAt().AsTime())
		require.Equal(t, expires, job.GetExpiresAt().AsTime())
		require.Equal(t, 2*time.Millisecond, job.GetTimeout().AsDuration())
		require.Equal(t, time.Minute, job.GetVisibilityTimeout().AsDuration())
		require.Nil(t, job.GetEnqueuedAt())
		require.Equal(t, []string{"a", "b"}, job.GetTags())
		require.Equal(t, "trace-1", job.GetTraceId())
		require.Equal(t, "x\x00y", job.GetArgs()[2].GetStringValue())
		require.True(t, proto.Equal(in.GetArgs()[5], job.GetArgs()[5]))
		require.True(t, proto.Equal(&ojsv1.RetryPolicy{
			MaxAttempts: 9, InitialInterval: durationpb.New(2 * time.Second), BackoffCoefficient: 1.5, MaxInterval: durationpb.New(5 * time.Minute),
			Jitter: true, NonRetryableErrors: []string{"Fatal"}, OnExhaustion: "dead_letter",
		}, job.GetRetryPolicy()), job.GetRetryPolicy())
		require.True(t, proto.Equal(&ojsv1.UniquePolicy{
			Key: []string{"args", "type"}, ArgsKeys: []string{"user"}, Period: durationpb.New(time.Minute),
			OnConflict: ojsv1.UniqueConflictAction_UNIQUE_CONFLICT_ACTION_IGNORE, States: []ojsv1.JobState{ojsv1.JobState_JOB_STATE_ACTIVE},
		}, job.GetUniquePolicy()), job.GetUniquePolicy())
	})

	t.Run("RetryMaxAttemptsBeatsTheShortcut", func(t *testing.T) {
		res, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{MaxAttempts: 9, Retry: &ojsv1.RetryPolicy{MaxAttempts: 2}}})
		require.NoError(t, err)
		require.EqualValues(t, 2, res.GetJob().GetMaxAttempts())
	})

	t.Run("MetaThatNamesATraceKeepsIt", func(t *testing.T) {
		for _, c := range []struct{ meta, want string }{
			{"trace_id", "mine"}, {"traceparent", "0af7651916cd43dd8448eb211c80319c"}, {"traceparent-broken", "other"},
		} {
			text := map[string]string{"trace_id": "mine", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "traceparent-broken": "nonsense"}[c.meta]
			name, _, _ := strings.Cut(c.meta, "-")
			res, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{TraceId: "other", Meta: object(t, map[string]any{name: text})}})
			require.NoError(t, err)
			require.Equal(t, c.want, res.GetJob().GetTraceId())
			require.Equal(t, text, res.GetJob().GetMeta().GetFields()[name].GetStringValue())
		}
	})

	t.Run("PendingJobIsActivated", func(t *testing.T) {
		res, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{Pending: true}})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_PENDING, res.GetJob().GetState())
		active, err := r.ActivateJob(r.ctx(), &ojsv1.ActivateJobRequest{JobId: res.GetJob().GetId()})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_AVAILABLE, active.GetJob().GetState())
		_, err = r.ActivateJob(r.ctx(), &ojsv1.ActivateJobRequest{JobId: res.GetJob().GetId()})
		e := refused(t, err, codes.FailedPrecondition, "conflict")
		require.Equal(t, "available", e.metadata["current_state"])
		require.Equal(t, "pending", e.metadata["expected_state"])
		require.Equal(t, "invalid_state_transition", e.metadata["type"])
	})
}

// TestGRPCRefusesBadInput: never INTERNAL, the texts of HTTP, and nothing is left behind.
func TestGRPCRefusesBadInput(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	deep := value(t, 1)
	for range 33 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	bottomless := value(t, 1)
	for range 3000 {
		bottomless = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{bottomless}})
	}
	nan := structpb.NewNumberValue(math.NaN())
	options := func(o *ojsv1.EnqueueOptions) *ojsv1.EnqueueRequest {
		return &ojsv1.EnqueueRequest{Type: "t", Options: o}
	}
	for name, c := range map[string]struct {
		in     *ojsv1.EnqueueRequest
		reason string
		field  string
	}{
		"NoType":             {&ojsv1.EnqueueRequest{}, "invalid_payload", "type"},
		"BadType":            {&ojsv1.EnqueueRequest{Type: "No Good"}, "invalid_payload", "type"},
		"LongType":           {&ojsv1.EnqueueRequest{Type: strings.Repeat("a", 256)}, "invalid_payload", "type"},
		"NULInType":          {&ojsv1.EnqueueRequest{Type: "a\x00b"}, "invalid_payload", "type"},
		"BadQueue":           {options(&ojsv1.EnqueueOptions{Queue: "-q"}), "invalid_payload", "options.queue"},
		"PriorityTooHigh":    {options(&ojsv1.EnqueueOptions{Priority: 101}), "invalid_payload", "options.priority"},
		"DeepArgs":           {&ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{deep}}, "invalid_payload", "args"},
		"BottomlessArgs":     {&ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{bottomless}}, "invalid_payload", "args"},
		"NaNInArgs":          {&ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{nan}}, "invalid_payload", "args"},
		"InfinityDeepInArgs": {&ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(math.Inf(-1))}})}}, "invalid_payload", "args"},
		"NaNInMeta":          {options(&ojsv1.EnqueueOptions{Meta: &structpb.Struct{Fields: map[string]*structpb.Value{"k": nan}}}), "invalid_payload", "meta"},
		"NegativeTimeout":    {options(&ojsv1.EnqueueOptions{Timeout: durationpb.New(-time.Nanosecond)}), "invalid_payload", "options.timeout_ms"},
		"HugeTimeout":        {options(&ojsv1.EnqueueOptions{Timeout: &durationpb.Duration{Seconds: 315_576_000_000}}), "invalid_payload", "options.timeout_ms"},
		"ImpossibleTimeout":  {options(&ojsv1.EnqueueOptions{Timeout: &durationpb.Duration{Seconds: math.MaxInt64}}), "invalid_payload", "timeout"},
		"MixedSigns":         {options(&ojsv1.EnqueueOptions{VisibilityTimeout: &durationpb.Duration{Seconds: 1, Nanos: -1}}), "invalid_payload", "visibility_timeout"},
		"NegativeTTL":        {options(&ojsv1.EnqueueOptions{Ttl: durationpb.New(-time.Second)}), "invalid_payload", "ttl"},
		"HugeTTL":            {options(&ojsv1.EnqueueOptions{Ttl: &durationpb.Duration{Seconds: 315_576_000_000}}), "invalid_payload", "ttl"},
		"ImpossibleDelay":    {options(&ojsv1.EnqueueOptions{DelayUntil: &timestamppb.Timestamp{Seconds: math.MaxInt64}}), "invalid_payload", "delay_until"},
		"NegativeAttempts":   {options(&ojsv1.EnqueueOptions{MaxAttempts: -1}), "validation_error", "options.max_attempts"},
		"NegativeInRetry":    {options(&ojsv1.EnqueueOptions{Retry: &ojsv1.RetryPolicy{MaxAttempts: -1}}), "validation_error", "options.retry.max_attempts"},
		"NegativeInterval":   {options(&ojsv1.EnqueueOptions{Retry: &ojsv1.RetryPolicy{InitialInterval: durationpb.New(-time.Second)}}), "validation_error", "options.retry.initial_interval"},
		"NaNCoefficient":     {options(&ojsv1.EnqueueOptions{Retry: &ojsv1.RetryPolicy{BackoffCoefficient: math.NaN()}}), "validation_error", "retry.backoff_coefficient"},
		"SmallCoefficient":   {options(&ojsv1.EnqueueOptions{Retry: &ojsv1.RetryPolicy{BackoffCoefficient: 0.5}}), "validation_error", "options.retry.backoff_coefficient"},
		"BadExhaustion":      {options(&ojsv1.EnqueueOptions{Retry: &ojsv1.RetryPolicy{OnExhaustion: "explode"}}), "validation_error", "options.retry.on_exhaustion"},
		"UnknownConflict":    {options(&ojsv1.EnqueueOptions{Unique: &ojsv1.UniquePolicy{OnConflict: 99}}), "invalid_payload", "options.unique.on_conflict"},
		"UnknownState":       {options(&ojsv1.EnqueueOptions{Unique: &ojsv1.UniquePolicy{States: []ojsv1.JobState{0}}}), "invalid_payload", "options.unique.states"},
		"NegativePeriod":     {options(&ojsv1.EnqueueOptions{Unique: &ojsv1.UniquePolicy{Period: durationpb.New(-time.Hour)}}), "invalid_payload", "options.unique.period_ms"},
		"EmptyTag":           {options(&ojsv1.EnqueueOptions{Tags: []string{""}}), "invalid_payload", "options.tags"},
		"PendingAndDelayed":  {options(&ojsv1.EnqueueOptions{Pending: true, DelayUntil: timestamppb.New(time.Now().Add(time.Hour))}), "invalid_payload", "options.delay_until"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.Enqueue(r.ctx(), c.in)
			e := refused(t, err, codes.InvalidArgument, c.reason)
			require.Equal(t, "false", e.metadata["retryable"])
			require.Contains(t, e.violations, c.field, e.message)
		})
	}

	t.Run("InvalidUTF8", func(t *testing.T) {
		var res ojsv1.EnqueueResponse
		err := r.conn.Invoke(r.ctx(), ojsv1.OJSService_Enqueue_FullMethodName, protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a\xff"), &res, grpc.ForceCodecV2(rawCodec{}))
		refused(t, err, codes.InvalidArgument, "invalid_payload")
	})

	t.Run("Garbage", func(t *testing.T) {
		for method, stream := range map[string]bool{ojsv1.OJSService_Ack_FullMethodName: false, ojsv1.OJSService_StreamJobs_FullMethodName: true, "/grpc.health.v1.Health/Check": false} {
			var err error
			if stream {
				s, sErr := r.conn.NewStream(r.ctx(), &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(rawCodec{}))
				require.NoError(t, sErr)
				require.NoError(t, s.SendMsg([]byte("\xff\xff")))
				require.NoError(t, s.CloseSend())
				err = s.RecvMsg(&ojsv1.Job{})
			} else {
				err = r.conn.Invoke(r.ctx(), method, []byte("\xff\xff"), &ojsv1.AckResponse{}, grpc.ForceCodecV2(rawCodec{}))
			}
			refused(t, err, codes.InvalidArgument, "invalid_payload")
		}
	})

	require.Equal(t, 0, r.get("/ojs/v1/jobs").is(200).count("jobs"))
}

func TestGRPCBatch(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)

	t.Run("DefaultsFillFieldByField", func(t *testing.T) {
		res, err := r.EnqueueBatch(r.ctx(), &ojsv1.EnqueueBatchRequest{
			Jobs: []*ojsv1.BatchJobEntry{
				{Type: "a"},
				{Type: "b", Options: &ojsv1.EnqueueOptions{Queue: "own", Meta: object(t, map[string]any{"own": true})}},
			},
			DefaultOptions: &ojsv1.EnqueueOptions{Queue: "common", Priority: 5, Tags: []string{"x"}, Meta: object(t, map[string]any{"common": true})},
		})
		require.NoError(t, err)
		require.EqualValues(t, 2, res.GetCount())
		require.Empty(t, res.GetErrors())
		a, b := res.GetJobs()[0], res.GetJobs()[1]
		require.Equal(t, "common", a.GetQueue())
		require.Equal(t, "own", b.GetQueue())
		require.EqualValues(t, 5, b.GetPriority())
		require.Equal(t, []string{"x"}, b.GetTags())
		require.Len(t, b.GetMeta().GetFields(), 1)
		require.True(t, b.GetMeta().GetFields()["own"].GetBoolValue())
		require.True(t, a.GetMeta().GetFields()["common"].GetBoolValue())
	})

	t.Run("IsAtomic", func(t *testing.T) {
		q := queue()
		good := &ojsv1.BatchJobEntry{Type: "t", Options: &ojsv1.EnqueueOptions{Queue: q}}
		_, err := r.EnqueueBatch(r.ctx(), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{good, {Type: "!"}}})
		e := refused(t, err, codes.InvalidArgument, "invalid_payload")
		require.Equal(t, "1", e.metadata["index"])
		require.Contains(t, e.message, "job at index 1")
		require.Equal(t, []string{"jobs[1].type"}, e.violations)
		_, err = r.EnqueueBatch(r.ctx(), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{good, good, {Type: "t", Args: []*structpb.Value{structpb.NewNumberValue(math.Inf(1))}}}})
		e = refused(t, err, codes.InvalidArgument, "invalid_payload")
		require.Equal(t, "2", e.metadata["index"])
		_, err = r.EnqueueBatch(r.ctx(), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{good, {Type: "!"}, {Type: "t", Args: []*structpb.Value{structpb.NewNumberValue(math.Inf(1))}}}})
		require.Equal(t, "1", refused(t, err, codes.InvalidArgument, "invalid_payload").metadata["index"])
		_, err = r.EnqueueBatch(r.ctx("x-ojs-idempotency-key", "fails"), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{good, {Type: "!"}}})
		refused(t, err, codes.InvalidArgument, "invalid_payload")
		require.Equal(t, 0, r.get("/ojs/v1/jobs?queue="+q).count("jobs"))
	})

	t.Run("EmptyOrTooLong", func(t *testing.T) {
		_, err := r.EnqueueBatch(r.ctx(), &ojsv1.EnqueueBatchRequest{})
		refused(t, err, codes.InvalidArgument, "invalid_payload")
		long := &ojsv1.EnqueueBatchRequest{Jobs: make([]*ojsv1.BatchJobEntry, 10_001)}
		for i := range long.Jobs {
			long.Jobs[i] = &ojsv1.BatchJobEntry{Type: "t"}
		}
		_, err = r.EnqueueBatch(r.ctx(), long)
		e := refused(t, err, codes.ResourceExhausted, "batch_size_exceeded")
		require.Equal(t, "10000", e.metadata["max_batch_size"])
	})

	t.Run("IdempotencyKey", func(t *testing.T) {
		in := &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "once", Args: []*structpb.Value{value(t, "\x00")}}, {Type: "once"}}}
		ctx := r.ctx("x-ojs-idempotency-key", "k1")
		first, err := r.EnqueueBatch(ctx, in)
		require.NoError(t, err)
		second, err := r.EnqueueBatch(ctx, in)
		require.NoError(t, err)
		require.True(t, proto.Equal(first, second))
		require.Equal(t, 2, r.get("/ojs/v1/jobs?type=once").count("jobs"))
		_, err = r.EnqueueBatch(ctx, &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "other"}}})
		require.Equal(t, "idempotency_key_conflict", refused(t, err, codes.FailedPrecondition, "conflict").metadata["type"])
		_, err = r.EnqueueBatch(r.ctx("x-ojs-idempotency-key", strings.Repeat("k", 257)), in)
		refused(t, err, codes.InvalidArgument, "invalid_request")
	})

	t.Run("AnswerHasWhatFits", func(t *testing.T) {
		meta := func(n int) *ojsv1.EnqueueOptions {
			return &ojsv1.EnqueueOptions{Meta: object(t, map[string]any{"m": strings.Repeat("m", n)}), Tags: []string{strings.Repeat("t", 100), strings.Repeat("u", 100)}}
		}
		long := "t." + strings.Repeat("t", 253)
		for name, c := range map[string]struct {
			count, args int
			kind        string
			options     *ojsv1.EnqueueOptions
			want        []string
		}{
			"args": {count: 100, args: 50_000, kind: "a", options: meta(10), want: []string{"type", "queue", "meta", "tags"}},
			"meta": {count: 100, args: 10, kind: "b", options: meta(60_000), want: []string{"type", "queue", "tags"}},
			"rest": {count: 10_000, args: 10, kind: long, options: meta(10), want: []string{"type", "queue"}},
			"type": {count: 10_000, args: 10, kind: long, options: &ojsv1.EnqueueOptions{Queue: strings.Repeat("q", 128)}},
		} {
			t.Run(name, func(t *testing.T) {
				in := &ojsv1.EnqueueBatchRequest{DefaultOptions: c.options}
				for range c.count {
					in.Jobs = append(in.Jobs, &ojsv1.BatchJobEntry{Type: c.kind, Args: []*structpb.Value{value(t, strings.Repeat("x", c.args))}})
				}
				for _, ctx := range []context.Context{r.ctx(), r.ctx("x-ojs-idempotency-key", "big-"+name), r.ctx("x-ojs-idempotency-key", "big-"+name)} {
					res, err := r.EnqueueBatch(ctx, in)
					require.NoError(t, err)
					require.EqualValues(t, c.count, res.GetCount())
					require.Len(t, res.GetJobs(), c.count)
					for _, j := range res.GetJobs() {
						var fields []string
						for _, f := range []string{"type", "queue", "args", "meta", "tags"} {
							if d := j.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(f)); j.ProtoReflect().Has(d) {
								fields = append(fields, f)
							}
						}
						require.Equal(t, c.want, fields)
						require.Len(t, j.GetId(), 36)
						require.Equal(t, ojsv1.JobState_JOB_STATE_AVAILABLE, j.GetState())
					}
				}
			})
		}
	})

	t.Run("MessageOfMoreThan4MiB", func(t *testing.T) {
		big := value(t, strings.Repeat("x", 900_000))
		in := &ojsv1.EnqueueBatchRequest{}
		for range 6 {
			in.Jobs = append(in.Jobs, &ojsv1.BatchJobEntry{Type: "big", Args: []*structpb.Value{big}, Options: &ojsv1.EnqueueOptions{Queue: "big"}})
		}
		res, err := r.EnqueueBatch(r.ctx(), in)
		require.NoError(t, err)
		require.EqualValues(t, 6, res.GetCount())

		// What does not fit into one message stays in its queue, with no attempt counted.
		fetched, err := r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{"big"}, Count: 10})
		require.NoError(t, err)
		require.Len(t, fetched.GetJobs(), 4)
		rest, err := r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{"big"}, Count: 10})
		require.NoError(t, err)
		require.Len(t, rest.GetJobs(), 2)
		for _, j := range rest.GetJobs() {
			require.EqualValues(t, 1, j.GetAttempt())
		}
		_, err = r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{value(t, strings.Repeat("x", 2_000_000))}})
		refused(t, err, codes.ResourceExhausted, "payload_too_large")
		_, err = r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{value(t, strings.Repeat("x", 5<<20))}})
		e := refused(t, err, codes.ResourceExhausted, "payload_too_large")
		require.Equal(t, "4194304", e.metadata["max_bytes"])
		for len(in.GetJobs()) < 40 {
			in.Jobs = append(in.Jobs, in.GetJobs()[0])
		}
		_, err = r.EnqueueBatch(r.ctx(), in)
		e = refused(t, err, codes.ResourceExhausted, "payload_too_large")
		require.Equal(t, "batch", e.metadata["field"])
		require.Equal(t, "false", e.metadata["retryable"])
	})
}

func TestGRPCJobs(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)

	t.Run("CancelNamesWhoAndWhy", func(t *testing.T) {
		id := r.enqueue(queue())
		res, err := r.CancelJob(r.ctx("x-ojs-actor", "ann"), &ojsv1.CancelJobRequest{JobId: id, Reason: "changed my mind"})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_CANCELLED, res.GetJob().GetState())
		require.Nil(t, res.GetJob().GetCompletedAt())
		event := r.eventOf(t, id, "job.cancelled")
		require.Equal(t, "ann", event.at("data.cancelled_by"))
		require.Equal(t, "changed my mind", event.at("data.reason"))
		_, err = r.CancelJob(r.ctx(), &ojsv1.CancelJobRequest{JobId: id})
		require.Equal(t, id, refused(t, err, codes.FailedPrecondition, "conflict").metadata["job_id"])
	})

	t.Run("UnknownIDs", func(t *testing.T) {
		for _, id := range []string{newID(), "nonsense", "a\x00b", strings.Repeat("x", 10_000)} {
			_, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
			require.Equal(t, "job", refused(t, err, codes.NotFound, "not_found").metadata["resource_type"])
			_, err = r.CancelJob(r.ctx(), &ojsv1.CancelJobRequest{JobId: id})
			refused(t, err, codes.NotFound, "not_found")
			_, err = r.ActivateJob(r.ctx(), &ojsv1.ActivateJobRequest{JobId: id})
			refused(t, err, codes.NotFound, "not_found")
			_, err = r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id})
			refused(t, err, codes.NotFound, "not_found")
			_, err = r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id, Error: &ojsv1.JobError{Code: "E"}})
			refused(t, err, codes.NotFound, "not_found")
			_, err = r.RetryDeadLetter(r.ctx(), &ojsv1.RetryDeadLetterRequest{JobId: id})
			require.Equal(t, "dead_letter_job", refused(t, err, codes.NotFound, "not_found").metadata["resource_type"])
			_, err = r.DeleteDeadLetter(r.ctx(), &ojsv1.DeleteDeadLetterRequest{JobId: id})
			refused(t, err, codes.NotFound, "not_found")
		}
		_, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{})
		refused(t, err, codes.InvalidArgument, "invalid_payload")
	})

	t.Run("BadReason", func(t *testing.T) {
		for _, reason := range []string{strings.Repeat("x", 1025), "a\x00b"} {
			_, err := r.CancelJob(r.ctx(), &ojsv1.CancelJobRequest{JobId: r.enqueue(queue()), Reason: reason})
			require.Equal(t, []string{"reason"}, refused(t, err, codes.InvalidArgument, "invalid_request").violations)
		}
	})

	t.Run("UsedIDIsADuplicate", func(t *testing.T) {
		// gRPC has no client-chosen ids: over HTTP one is taken, here it is only shown that both see the same job.
		id := newID()
		r.push(`"id":"%s","type":"t","args":[1],"queue":"%s"`, id, queue())
		res, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: "job_" + id})
		require.NoError(t, err)
		require.Equal(t, id, res.GetJob().GetId())
		require.InDelta(t, 1, res.GetJob().GetArgs()[0].GetNumberValue(), 0)
	})

	t.Run("NumbersBeyondDoublesAreTheLargest", func(t *testing.T) {
		id := r.push(`"type":"t","args":[1e999,-1e999,"\ud83d\ude00"],"queue":"%s"`, queue())
		res, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
		require.NoError(t, err)
		require.InDelta(t, math.MaxFloat64, res.GetJob().GetArgs()[0].GetNumberValue(), 0)
		require.InDelta(t, -math.MaxFloat64, res.GetJob().GetArgs()[1].GetNumberValue(), 0)
		require.Equal(t, "😀", res.GetJob().GetArgs()[2].GetStringValue())
	})
}

func TestGRPCWorkers(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	fetch := func(t testing.TB, q string) *ojsv1.Job {
		t.Helper()
		res, err := r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{q}, WorkerId: "w1"})
		require.NoError(t, err)
		require.Len(t, res.GetJobs(), 1)
		return res.GetJobs()[0]
	}

	t.Run("FetchAndAck", func(t *testing.T) {
		q := queue()
		id := r.enqueue(q)
		job := fetch(t, q)
		require.Equal(t, id, job.GetId())
		require.Equal(t, ojsv1.JobState_JOB_STATE_ACTIVE, job.GetState())
		require.EqualValues(t, 1, job.GetAttempt())
		require.NotNil(t, job.GetStartedAt())
		empty, err := r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{q}})
		require.NoError(t, err)
		require.Empty(t, empty.GetJobs())
		ack, err := r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id, Result: object(t, map[string]any{"pages": 3})})
		require.NoError(t, err)
		require.True(t, ack.GetAcknowledged())
		require.Equal(t, `{"pages":3}`, r.in(t).job(id).at("job.result"))
		res, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
		require.NoError(t, err)
		require.InDelta(t, 3, res.GetJob().GetResult().GetFields()["pages"].GetNumberValue(), 0)
		require.NotNil(t, res.GetJob().GetCompletedAt())
		_, err = r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id})
		refused(t, err, codes.FailedPrecondition, "conflict")
	})

	t.Run("ResultThatIsNoObjectIsWrapped", func(t *testing.T) {
		for result, want := range map[string]*structpb.Value{`[1,"x"]`: value(t, []any{1, "x"}), `"text"`: value(t, "text"), `null`: value(t, nil)} {
			q := queue()
			id := r.enqueue(q)
			fetch(t, q)
			r.in(t).ack(id, `"result":`+result).is(200)
			res, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
			require.NoError(t, err)
			require.True(t, proto.Equal(want, res.GetJob().GetResult().GetFields()["value"]), "%v", res.GetJob().GetResult())
		}
	})

	t.Run("NackShowsTheError", func(t *testing.T) {
		q := queue()
		id := r.enqueue(q)
		fetch(t, q)
		res, err := r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id, Error: &ojsv1.JobError{
			Code: "E_NET", Message: "no route", Retryable: true, Backtrace: "a\nb", Details: object(t, map[string]any{"host": "h"}),
		}})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_RETRYABLE, res.GetState())
		require.True(t, res.GetNextAttemptAt().AsTime().After(time.Now().Add(-time.Minute)))
		job, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
		require.NoError(t, err)
		require.Len(t, job.GetJob().GetErrors(), 1)
		e := job.GetJob().GetErrors()[0]
		require.Equal(t, "E_NET", e.GetCode())
		require.Equal(t, "no route", e.GetMessage())
		require.True(t, e.GetRetryable())
		require.EqualValues(t, 1, e.GetAttempt())
		require.Equal(t, "a\nb", e.GetBacktrace())
		require.Equal(t, "h", e.GetDetails().GetFields()["host"].GetStringValue())
		require.NotNil(t, e.GetOccurredAt())
	})

	t.Run("NackNeedsAnErrorAndRetriesOnlyWhatSaysSo", func(t *testing.T) {
		q := queue()
		id := r.enqueue(q)
		fetch(t, q)
		_, err := r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id})
		require.Equal(t, []string{"error"}, refused(t, err, codes.InvalidArgument, "invalid_payload").violations)
		_, err = r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id, Error: &ojsv1.JobError{Code: "E", Details: &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewNumberValue(math.NaN())}}}})
		refused(t, err, codes.InvalidArgument, "invalid_payload")
		require.Equal(t, ojsv1.JobState_JOB_STATE_ACTIVE, r.state(id))
		for _, empty := range []*ojsv1.JobError{{}, {Retryable: true}, {Backtrace: "a"}} {
			_, err = r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id, Error: empty})
			e := refused(t, err, codes.InvalidArgument, "invalid_payload")
			require.Equal(t, []string{"error"}, e.violations)
			require.Contains(t, e.message, "code or a message")
			require.Equal(t, ojsv1.JobState_JOB_STATE_ACTIVE, r.state(id))
		}
		res, err := r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id, Error: &ojsv1.JobError{Code: "E"}})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_DISCARDED, res.GetState())
		require.Nil(t, res.GetNextAttemptAt())
		job, err := r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: id})
		require.NoError(t, err)
		require.NotNil(t, job.GetJob().GetCompletedAt())
	})

	t.Run("JobCancelledMeanwhileIsNotAcknowledged", func(t *testing.T) {
		q := queue()
		id := r.enqueue(q)
		fetch(t, q)
		_, err := r.CancelJob(r.ctx(), &ojsv1.CancelJobRequest{JobId: id})
		require.NoError(t, err)
		ack, err := r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id})
		require.NoError(t, err)
		require.False(t, ack.GetAcknowledged())
		nack, err := r.Nack(r.ctx(), &ojsv1.NackRequest{JobId: id, Error: &ojsv1.JobError{Message: "x"}})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_CANCELLED, nack.GetState())
	})

	t.Run("BadFetches", func(t *testing.T) {
		for _, in := range []*ojsv1.FetchRequest{{}, {Queues: []string{"Q!"}}, {Queues: []string{"q"}, WorkerId: strings.Repeat("w", 256)}, {Queues: []string{"q"}, WorkerId: "w\x00"}} {
			_, err := r.Fetch(r.ctx(), in)
			refused(t, err, codes.InvalidArgument, "invalid_payload")
		}
		_, err := r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{"q"}, Count: -5})
		require.NoError(t, err) // as 1
	})

	t.Run("HeartbeatExtends", func(t *testing.T) {
		q := queue()
		id := r.enqueue(q)
		fetch(t, q)
		res, err := r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{Id: id, WorkerId: "w1", ExtendBy: durationpb.New(10 * time.Minute), CurrentState: ojsv1.WorkerState_WORKER_STATE_RUNNING})
		require.NoError(t, err)
		require.Equal(t, ojsv1.WorkerState_WORKER_STATE_RUNNING, res.GetDirectedState())
		require.WithinDuration(t, time.Now().Add(10*time.Minute), res.GetNewDeadline().AsTime(), 30*time.Second)
		again, err := r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{Id: id, WorkerId: "w1"})
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(30*time.Second), again.GetNewDeadline().AsTime(), 20*time.Second) // as at fetch
		for _, other := range []string{"", newID(), "nonsense"} {
			res, err := r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{Id: other, WorkerId: "w1"})
			require.NoError(t, err)
			require.Nil(t, res.GetNewDeadline())
		}
		_, err = r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{Id: id})
		require.Contains(t, refused(t, err, codes.InvalidArgument, "invalid_payload").violations, "worker_id")
		_, err = r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{WorkerId: "w1", ExtendBy: durationpb.New(-time.Second)})
		refused(t, err, codes.InvalidArgument, "invalid_payload")
	})

	t.Run("HeartbeatTellsTheDirective", func(t *testing.T) {
		_, err := r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{WorkerId: "w-quiet"})
		require.NoError(t, err)
		res, err := r.Heartbeat(r.ctx(), &ojsv1.HeartbeatRequest{WorkerId: "w-quiet", CurrentState: ojsv1.WorkerState_WORKER_STATE_QUIET})
		require.NoError(t, err)
		require.Equal(t, ojsv1.WorkerState_WORKER_STATE_QUIET, res.GetDirectedState())
	})

	t.Run("HugeResult", func(t *testing.T) {
		q := queue()
		id := r.enqueue(q)
		fetch(t, q)
		_, err := r.Ack(r.ctx(), &ojsv1.AckRequest{JobId: id, Result: object(t, map[string]any{"x": strings.Repeat("x", 1<<20)})})
		require.Equal(t, "result", refused(t, err, codes.ResourceExhausted, "payload_too_large").metadata["field"])
		require.Equal(t, ojsv1.JobState_JOB_STATE_ACTIVE, r.state(id))
	})
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}
