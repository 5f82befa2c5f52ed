package e2e_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

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
		require.Equal(t, res.GetNewDeadline().AsTime(), again.GetNewDeadline().AsTime(), "the time of the fetch ends earlier")
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

	t.Run("HeartbeatReturnsTheDirective", func(t *testing.T) {
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
