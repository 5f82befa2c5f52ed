package e2e_test

import (
	"fmt"
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

func TestGRPCQueues(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	for i := range 5 {
		r.pushMany(t, fmt.Sprint("q", i), i+1)
	}
	r.fetch("q4")

	t.Run("ListWalksAllPages", func(t *testing.T) {
		var got []string
		cursor := ""
		for range 3 {
			res, err := r.ListQueues(r.ctx(), &ojsv1.ListQueuesRequest{Limit: 2, Cursor: cursor})
			require.NoError(t, err)
			for _, q := range res.GetQueues() {
				got = append(got, fmt.Sprint(q.GetName(), ":", q.GetAvailableCount()))
				require.False(t, q.GetPaused())
				require.WithinDuration(t, time.Now(), q.GetCreatedAt().AsTime(), time.Minute)
			}
			cursor = res.GetNextCursor()
		}
		require.Empty(t, cursor)
		require.Equal(t, []string{"q0:1", "q1:2", "q2:3", "q3:4", "q4:4"}, got)
	})

	t.Run("ListRefuses", func(t *testing.T) {
		for field, in := range map[string]*ojsv1.ListQueuesRequest{"limit": {Limit: -1}, "cursor": {Cursor: "A\x00"}} {
			_, err := r.ListQueues(r.ctx(), in)
			require.Equal(t, []string{field}, refused(t, err, codes.InvalidArgument, "invalid_request").violations)
		}
	})

	t.Run("StatsAreThoseOfHTTP", func(t *testing.T) {
		job := r.fetch("q3", `"worker_id":"w"`).at("jobs.0.id")
		r.ack(job).is(200)
		eventually(t, func() bool { return r.get("/ojs/v1/queues/q3/stats").at("stats.completed_last_hour") == "1" })
		res, err := r.QueueStats(r.ctx(), &ojsv1.QueueStatsRequest{Queue: "q3"})
		require.NoError(t, err)
		http := r.get("/ojs/v1/queues/q3/stats").is(200)
		s := res.GetStats()
		require.Equal(t, "q3", res.GetQueue())
		for member, got := range map[string]any{
			"available": s.GetAvailable(), "active": s.GetActive(), "scheduled": s.GetScheduled(), "retryable": s.GetRetryable(), "dead": s.GetDead(),
			"completed_last_hour": s.GetCompletedLastHour(), "failed_last_hour": s.GetFailedLastHour(),
		} {
			require.Equal(t, http.at("stats."+member), fmt.Sprint(got), member)
		}
		require.EqualValues(t, 3, s.GetAvailable())
		require.Positive(t, s.GetThroughputPerSecond())
		require.False(t, s.GetPaused())
		empty, err := r.QueueStats(r.ctx(), &ojsv1.QueueStatsRequest{Queue: "never-seen"})
		require.NoError(t, err)
		require.Zero(t, empty.GetStats().GetAvailable())
		_, err = r.QueueStats(r.ctx(), &ojsv1.QueueStatsRequest{})
		refused(t, err, codes.InvalidArgument, "invalid_request")
	})
}

func TestGRPCDeadLetters(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	q := queue()
	dead := func() string {
		id := r.push(`"type":"t","args":[],"queue":"%s","retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}`, q)
		require.Equal(t, id, r.fetch(q).at("jobs.0.id"))
		r.nack(id).is(200)
		return id
	}
	ids := []string{dead(), dead(), dead()}

	t.Run("ListNewestFirst", func(t *testing.T) {
		first, err := r.ListDeadLetter(r.ctx(), &ojsv1.ListDeadLetterRequest{Queue: q, Limit: 2})
		require.NoError(t, err)
		require.EqualValues(t, 3, first.GetTotalCount())
		require.Len(t, first.GetJobs(), 2)
		require.Equal(t, ids[2], first.GetJobs()[0].GetId())
		require.Len(t, first.GetJobs()[0].GetErrors(), 1)
		rest, err := r.ListDeadLetter(r.ctx(), &ojsv1.ListDeadLetterRequest{Queue: q, Limit: 2, Cursor: first.GetNextCursor()})
		require.NoError(t, err)
		require.Len(t, rest.GetJobs(), 1)
		require.Equal(t, ids[0], rest.GetJobs()[0].GetId())
		require.Empty(t, rest.GetNextCursor())
		other, err := r.ListDeadLetter(r.ctx(), &ojsv1.ListDeadLetterRequest{Queue: "other"})
		require.NoError(t, err)
		require.Empty(t, other.GetJobs())
	})

	t.Run("ListRefuses", func(t *testing.T) {
		for field, in := range map[string]*ojsv1.ListDeadLetterRequest{"limit": {Limit: -1}, "cursor": {Cursor: "nonsense"}, "queue": {Queue: "Q!"}} {
			_, err := r.ListDeadLetter(r.ctx(), in)
			require.Equal(t, []string{field}, refused(t, err, codes.InvalidArgument, "invalid_request").violations)
		}
	})

	t.Run("Retry", func(t *testing.T) {
		res, err := r.RetryDeadLetter(r.ctx(), &ojsv1.RetryDeadLetterRequest{JobId: ids[0]})
		require.NoError(t, err)
		require.Equal(t, ojsv1.JobState_JOB_STATE_AVAILABLE, res.GetJob().GetState())
		require.Zero(t, res.GetJob().GetAttempt())
		_, err = r.RetryDeadLetter(r.ctx(), &ojsv1.RetryDeadLetterRequest{JobId: ids[0]})
		refused(t, err, codes.NotFound, "not_found")
	})

	t.Run("Delete", func(t *testing.T) {
		_, err := r.DeleteDeadLetter(r.ctx(), &ojsv1.DeleteDeadLetterRequest{JobId: ids[1]})
		require.NoError(t, err)
		_, err = r.GetJob(r.ctx(), &ojsv1.GetJobRequest{JobId: ids[1]})
		refused(t, err, codes.NotFound, "not_found")
		_, err = r.DeleteDeadLetter(r.ctx(), &ojsv1.DeleteDeadLetterRequest{JobId: ids[1]})
		refused(t, err, codes.NotFound, "not_found")
	})

	t.Run("PagesThatFitIntoAMessage", func(t *testing.T) {
		q := queue()
		for range 6 {
			id := r.push(`"type":"t","args":["%s"],"queue":"%s","retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}`, repeated('x', 900_000), q)
			r.fetch(q)
			r.nack(id).is(200)
		}
		n, cursor := 0, ""
		for range 2 {
			res, err := r.ListDeadLetter(r.ctx(), &ojsv1.ListDeadLetterRequest{Queue: q, Cursor: cursor})
			require.NoError(t, err)
			n, cursor = n+len(res.GetJobs()), res.GetNextCursor()
		}
		require.Equal(t, 6, n)
		require.Empty(t, cursor)
	})
}

func TestGRPCCron(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	in := &ojsv1.RegisterCronRequest{
		Name: "nightly", Cron: "0 3 * * *", Timezone: "Europe/Berlin", Type: "report.make", Args: []*structpb.Value{value(t, "daily")},
		Options: &ojsv1.EnqueueOptions{
			Queue: "reports", Priority: 3, Timeout: durationpb.New(time.Minute), Ttl: durationpb.New(time.Hour), Tags: []string{"x"},
			Meta: object(t, map[string]any{"team": "a"}), MaxAttempts: 5, Retry: &ojsv1.RetryPolicy{MaxAttempts: 5, InitialInterval: durationpb.New(time.Second), BackoffCoefficient: 3, MaxInterval: durationpb.New(time.Hour), Jitter: true, OnExhaustion: "dead_letter"},
		},
	}

	t.Run("RegisterListUnregister", func(t *testing.T) {
		res, err := r.RegisterCron(r.ctx(), in)
		require.NoError(t, err)
		require.Equal(t, "nightly", res.GetName())
		http := r.in(t).get("/ojs/v1/cron/nightly").is(200)
		require.Equal(t, http.at("next_run_at"), res.GetNextRunAt().AsTime().Format("2006-01-02T15:04:05.000Z"))
		require.Equal(t, "report.make", http.at("type"))
		require.Equal(t, `["daily"]`, http.at("args"))
		list, err := r.ListCron(r.ctx(), &ojsv1.ListCronRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetEntries(), 1)
		entry := list.GetEntries()[0]
		require.Equal(t, "0 3 * * *", entry.GetCron())
		require.Equal(t, "Europe/Berlin", entry.GetTimezone())
		require.Equal(t, "report.make", entry.GetType())
		require.True(t, proto.Equal(in.GetOptions(), entry.GetOptions()), "%v", entry.GetOptions())
		require.Equal(t, res.GetNextRunAt().AsTime(), entry.GetNextRunAt().AsTime())
		require.Nil(t, entry.GetLastRunAt())

		id := r.in(t).post("/ojs/v1/cron/nightly/trigger", "").is(201).at("job_id")
		require.Equal(t, ojsv1.JobState_JOB_STATE_AVAILABLE, r.state(id))
		_, err = r.UnregisterCron(r.ctx(), &ojsv1.UnregisterCronRequest{Name: "nightly"})
		require.NoError(t, err)
		_, err = r.UnregisterCron(r.ctx(), &ojsv1.UnregisterCronRequest{Name: "nightly"})
		require.Equal(t, "cron", refused(t, err, codes.NotFound, "not_found").metadata["resource_type"])
	})

	t.Run("ListHasWhatFits", func(t *testing.T) {
		r := setupGRPC(t)
		for i := range 6 {
			big := proto.Clone(in).(*ojsv1.RegisterCronRequest)
			big.Name, big.Args = fmt.Sprint("big-", i), []*structpb.Value{value(t, strings.Repeat("x", 900_000))}
			_, err := r.RegisterCron(r.ctx(), big)
			require.NoError(t, err)
		}
		list, err := r.ListCron(r.ctx(), &ojsv1.ListCronRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetEntries(), 6)
		require.Less(t, proto.Size(list), 4<<20)
		for i, e := range list.GetEntries() {
			whole := i < 2 // those behind the first MiB are cut
			require.Equal(t, whole, len(e.GetArgs()) > 0)
			require.Equal(t, whole, proto.Equal(in.GetOptions(), e.GetOptions()), "%v", e.GetOptions())
		}
	})

	t.Run("Refuses", func(t *testing.T) {
		for field, change := range map[string]func(*ojsv1.RegisterCronRequest){
			"name": func(c *ojsv1.RegisterCronRequest) { c.Name = "" }, "cron": func(c *ojsv1.RegisterCronRequest) { c.Cron = "no" },
			"timezone": func(c *ojsv1.RegisterCronRequest) { c.Timezone = "Mars" }, "type": func(c *ojsv1.RegisterCronRequest) { c.Type = "" },
			"options.priority": func(c *ojsv1.RegisterCronRequest) { c.Options = &ojsv1.EnqueueOptions{Priority: 999} },
		} {
			bad := proto.Clone(in).(*ojsv1.RegisterCronRequest)
			change(bad)
			_, err := r.RegisterCron(r.ctx(), bad)
			require.Contains(t, refused(t, err, codes.InvalidArgument, "invalid_payload").violations, field)
		}
		for _, expression := range []string{"", "no", "\x00", "0 0 30 2 *"} {
			bad := proto.Clone(in).(*ojsv1.RegisterCronRequest)
			bad.Cron = expression
			_, err := r.RegisterCron(r.ctx(), bad)
			e := refused(t, err, codes.InvalidArgument, "invalid_payload")
			require.Equal(t, []string{"cron"}, e.violations)
			require.NotContains(t, e.message, "expression'")
			require.Equal(t, "cron", e.metadata["field"])
		}
		_, err := r.UnregisterCron(r.ctx(), &ojsv1.UnregisterCronRequest{})
		require.Equal(t, []string{"name"}, refused(t, err, codes.InvalidArgument, "invalid_payload").violations)
		for _, name := range []string{"A", "a\x00", strings.Repeat("a", 300)} {
			_, err := r.UnregisterCron(r.ctx(), &ojsv1.UnregisterCronRequest{Name: name})
			refused(t, err, codes.NotFound, "not_found")
		}
	})
}
