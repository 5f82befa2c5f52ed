package grpcapi

import (
	"context"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// pageSize is the limit of a list: 0 is the default, more than the most is the most (docs/reference/http.md, Pagination).
func pageSize(limit int32) (int, error) {
	switch {
	case limit < 0:
		return 0, ojs.ErrInvalidRequest("limit", "an integer of at least 1", limit, "limit must be an integer of at least 1.")
	case limit == 0:
		return api.DefaultPage, nil
	}
	return min(int(limit), api.MaxPage), nil
}

// ListQueues gives the queues by name; the cursor is the last name.
func (a *API) ListQueues(ctx context.Context, in *ojsv1.ListQueuesRequest) (*ojsv1.ListQueuesResponse, error) {
	limit, err := pageSize(in.GetLimit())
	if err != nil {
		return nil, err
	}
	if c := in.GetCursor(); c != "" && !job.ValidQueue(c) {
		return nil, api.ErrCursor(c)
	}
	if caller := tenantOf(ctx); caller != "" {
		return a.listTenantQueues(ctx, caller, in.GetCursor(), limit)
	}
	rows, more, err := a.Jobs.QueuesAfter(ctx, in.GetCursor(), limit)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.ListQueuesResponse{}
	for _, r := range rows {
		out.Queues = append(out.Queues, &ojsv1.QueueInfo{
			Name: r.Name, Paused: r.Status == "paused", AvailableCount: r.Available, CreatedAt: momentOf(r.CreatedAt),
		})
	}
	if more {
		out.NextCursor = rows[len(rows)-1].Name
	}
	return out, nil
}

// listTenantQueues gives the queues in which a tenant has had jobs, with the number of these.
func (a *API) listTenantQueues(ctx context.Context, caller, after string, limit int) (*ojsv1.ListQueuesResponse, error) {
	queues, more, err := a.Tenants.QueuesAfter(ctx, caller, after, limit)
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

// QueueStats is GET /queues/{name}/stats.
func (a *API) QueueStats(ctx context.Context, in *ojsv1.QueueStatsRequest) (*ojsv1.QueueStatsResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
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
func (a *API) PauseQueue(ctx context.Context, in *ojsv1.PauseQueueRequest) (*ojsv1.PauseQueueResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	_, err := a.Queues.Pause(ctx, in.GetQueue(), actor(ctx))
	return &ojsv1.PauseQueueResponse{}, err
}

// ResumeQueue is POST /queues/{name}/resume.
func (a *API) ResumeQueue(ctx context.Context, in *ojsv1.ResumeQueueRequest) (*ojsv1.ResumeQueueResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	_, err := a.Queues.Resume(ctx, in.GetQueue(), actor(ctx))
	return &ojsv1.ResumeQueueResponse{}, err
}
