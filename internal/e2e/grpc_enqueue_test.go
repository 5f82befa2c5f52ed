package e2e_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

func TestGRPCBatch(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t, slowStatements)

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

		one, err := r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "once.single"})
		require.NoError(t, err, "the keys of two calls are apart")
		again, err := r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "once.single"})
		require.NoError(t, err)
		require.True(t, proto.Equal(one, again))
		_, err = r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "once.other"})
		refused(t, err, codes.FailedPrecondition, "conflict")
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
					var res *ojsv1.EnqueueBatchResponse
					var err error
					// On a busy machine the node may need more than the ten seconds after which PostgreSQL ends a transaction that waits
					// for it; nothing was done then.
					eventually(t, func() bool {
						res, err = r.EnqueueBatch(ctx, in)
						return status.Code(err) != codes.Unavailable
					})
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
						if !slices.Equal(c.want, fields) || len(j.GetId()) != 36 || j.GetState() != ojsv1.JobState_JOB_STATE_AVAILABLE { // 60 000 jobs
							require.Fail(t, "not the job that is wanted", "%v: %v", c.want, j)
						}
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
		require.Len(t, fetched.GetJobs(), 3)
		rest, err := r.Fetch(r.ctx(), &ojsv1.FetchRequest{Queues: []string{"big"}, Count: 10})
		require.NoError(t, err)
		require.Len(t, rest.GetJobs(), 3)
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
