package grpcapi

import (
	"context"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/tenant"
	"github.com/ojsd/ojsd/ojs"
)

// pageSize is the limit of a list: 0 is the default, more than the most is the most (docs/reference/http.md, Pagination).
// A negative limit is refused, because it is a mistake and not a wish for more.
func pageSize(limit int32) (int, error) {
	switch {
	case limit < 0:
		return 0, spec.InvalidRequest("limit", "an integer of at least 1", limit, "limit must be an integer of at least 1.")
	case limit == 0:
		return api.DefaultPage, nil
	}
	return min(int(limit), api.MaxPage), nil
}

// ListQueues gives the queues by name; the cursor is the last name.
// available_count is exact at one instant; see queue.Store.QueuesAfter.
func (a *API) ListQueues(ctx context.Context, in *ojsv1.ListQueuesRequest) (*ojsv1.ListQueuesResponse, error) {
	limit, err := pageSize(in.GetLimit())
	if err != nil {
		return nil, err
	}
	// Any name is a position, whether a queue has it or not.
	if c := in.GetCursor(); c != "" && !job.ValidQueue(c) {
		return nil, api.ErrCursor(c)
	}
	queues, more, err := a.queuesAfter(ctx, in.GetCursor(), limit)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.ListQueuesResponse{}
	for _, q := range queues {
		out.Queues = append(out.Queues, &ojsv1.QueueInfo{
			Name: q.Name, Paused: q.Status == "paused", AvailableCount: q.Available, CreatedAt: momentOf(q.CreatedAt),
		})
	}
	if more {
		out.NextCursor = queues[len(queues)-1].Name
	}
	return out, nil
}

// queuesAfter are the queues whose names follow name; for a tenant those in which it has had jobs, with the number of these.
func (a *API) queuesAfter(ctx context.Context, name string, limit int) (queues []tenant.Queue, more bool, err error) {
	if caller := tenantOf(ctx); caller != "" {
		return a.Tenants.QueuesAfter(ctx, caller, name, limit)
	}
	rows, more, err := a.Jobs.QueuesAfter(ctx, name, limit)
	for _, r := range rows {
		queues = append(queues, tenant.Queue(r))
	}
	return queues, more, err
}

// QueueStats is GET /queues/{name}/stats.
// An unknown queue has zeros for an operator, and is NOT_FOUND for a tenant.
func (a *API) QueueStats(ctx context.Context, in *ojsv1.QueueStatsRequest) (*ojsv1.QueueStatsResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	// It creates no queue.
	s, err := a.Jobs.QueueStats(ctx, in.GetQueue())
	if caller := tenantOf(ctx); err == nil && caller != "" {
		s, err = a.Tenants.OfQueue(ctx, caller, s)
	}
	if err != nil {
		return nil, err
	}
	return &ojsv1.QueueStatsResponse{Queue: s.Name, Stats: &ojsv1.QueueStatistics{
		Available: s.Counts[ojs.StateAvailable], Active: s.Counts[ojs.StateActive], Scheduled: s.Counts[ojs.StateScheduled],
		Retryable: s.Counts[ojs.StateRetryable], Dead: s.Counts[ojs.StateDiscarded],
		CompletedLastHour: s.Rates.Completed, FailedLastHour: s.Rates.Failed,
		AvgDurationMs: api.Average(s.Rates.DurationMs, s.Rates.Completed), AvgWaitMs: api.Average(s.Rates.WaitMs, s.Rates.Started),
		ThroughputPerSecond: api.Average(s.Rates.Completed, 3600), Paused: s.Status == "paused",
	}}, nil
}

// PauseQueue is POST /queues/{name}/pause.
// It is for operators, creates an unknown queue, and is idempotent.
func (a *API) PauseQueue(ctx context.Context, in *ojsv1.PauseQueueRequest) (*ojsv1.PauseQueueResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	// The pause holds on every node when the call returns.
	_, err := a.Queues.Pause(ctx, in.GetQueue(), actor(ctx))
	return &ojsv1.PauseQueueResponse{}, err
}

// ResumeQueue is POST /queues/{name}/resume.
// As over HTTP it also ends a drain.
func (a *API) ResumeQueue(ctx context.Context, in *ojsv1.ResumeQueueRequest) (*ojsv1.ResumeQueueResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	_, err := a.Queues.Resume(ctx, in.GetQueue(), actor(ctx))
	return &ojsv1.ResumeQueueResponse{}, err
}
