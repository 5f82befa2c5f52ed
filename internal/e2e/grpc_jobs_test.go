package e2e_test

import (
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
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// TestGRPCRefusesBadInput: the answer is never INTERNAL, the messages are those of HTTP, and no job is stored.
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
		"LongTTL":            {options(&ojsv1.EnqueueOptions{Ttl: &durationpb.Duration{Seconds: 3_153_600_000, Nanos: 1}}), "invalid_payload", "ttl"},
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
		// Clients cannot choose ids over gRPC, so the job is enqueued over HTTP.
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

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}
