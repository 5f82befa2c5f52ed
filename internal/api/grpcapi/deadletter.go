package grpcapi

import (
	"context"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/deadletter"
)

// ListDeadLetter is GET /dead-letter.
// The page is cut again where the message is full, and the cursor is then that of the last job shown, so nothing is skipped.
func (a *API) ListDeadLetter(ctx context.Context, in *ojsv1.ListDeadLetterRequest) (*ojsv1.ListDeadLetterResponse, error) {
	filter := deadletter.Filter{Tenant: tenantOf(ctx)}
	// 0 is the default, because proto3 has no absent integer.
	limit, err := pageSize(in.GetLimit())
	if err != nil {
		return nil, err
	}
	if in.GetQueue() != "" {
		// HTTP takes any text here and finds nothing; a single name is more likely a mistake.
		if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
			return nil, err
		}
		filter.Queues = []string{in.GetQueue()}
	}
	page := deadletter.Page{Limit: limit}
	if in.GetCursor() != "" {
		key, ok := deadletter.ParseKey(in.GetCursor())
		if !ok {
			return nil, api.ErrCursor(in.GetCursor())
		}
		page.Before = &key
	}
	found, err := a.DeadLetters.List(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.ListDeadLetterResponse{Jobs: jobsOf(found.Jobs), TotalCount: found.Total}
	if fit := fitting(out.Jobs); fit < len(out.Jobs) {
		// fitting keeps at least one job, so there is a last one.
		last := found.Jobs[fit-1]
		out.Jobs, found.Next = out.Jobs[:fit], &deadletter.Key{At: last.FinishedAt.Time, ID: last.ID}
	}
	if found.Next != nil {
		out.NextCursor = found.Next.String()
	}
	return out, nil
}

// deadLetterID reads the id of a dead letter, which must be sent.
func deadLetterID(text string) (deadletter.ID, error) {
	if text == "" {
		return deadletter.ID{}, errNoJobID()
	}
	return deadletter.ParseID(text), nil
}

// RetryDeadLetter is POST /dead-letter/{id}/retry.
// A repetition is NOT_FOUND: the job is no dead letter any more.
func (a *API) RetryDeadLetter(ctx context.Context, in *ojsv1.RetryDeadLetterRequest) (*ojsv1.RetryDeadLetterResponse, error) {
	id, err := deadLetterID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// nil: nothing of the job is changed but what every manual retry changes.
	job, err := a.DeadLetters.RetryOne(ctx, id, nil)
	if err != nil {
		return nil, err
	}
	return &ojsv1.RetryDeadLetterResponse{Job: jobOf(job)}, nil
}

// DeleteDeadLetter is DELETE /dead-letter/{id}.
func (a *API) DeleteDeadLetter(ctx context.Context, in *ojsv1.DeleteDeadLetterRequest) (*ojsv1.DeleteDeadLetterResponse, error) {
	id, err := deadLetterID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// The job is gone for good.
	if err := a.DeadLetters.Delete(ctx, id); err != nil {
		return nil, err
	}
	return &ojsv1.DeleteDeadLetterResponse{}, nil
}
