package grpcapi

import (
	"context"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// parseID reads the id of a job: one that is missing is wrong, and what is no id belongs to no job (docs/reference/http.md,
// Unmatched requests). Over HTTP an id is never missing, because it stands in the path.
func parseID(text string) ([16]byte, error) {
	if text == "" {
		return [16]byte{}, errNoJobID()
	}
	id, err := job.ParseID(text)
	if err != nil {
		return id, err
	}
	return id, nil
}

func errNoJobID() error {
	return spec.InvalidPayload("job_id", "the id of a job", nil, "'job_id' is required: send the id of a job.")
}

// GetJob is GET /jobs/{id}.
func (a *API) GetJob(ctx context.Context, in *ojsv1.GetJobRequest) (*ojsv1.GetJobResponse, error) {
	id, err := parseID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// It reads live and finished jobs alike.
	job, err := a.Jobs.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &ojsv1.GetJobResponse{Job: jobOf(job)}, nil
}

// CancelJob is DELETE /jobs/{id}.
// A second call is FAILED_PRECONDITION, because the job has ended.
func (a *API) CancelJob(ctx context.Context, in *ojsv1.CancelJobRequest) (*ojsv1.CancelJobResponse, error) {
	id, err := parseID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// The reason is part of the event job.cancelled.
	cancel, err := api.NewCancel(actor(ctx), in.GetReason())
	if err != nil {
		return nil, err
	}
	job, err := a.Jobs.Cancel(ctx, id, cancel)
	if err != nil {
		return nil, err
	}
	return &ojsv1.CancelJobResponse{Job: jobOf(job)}, nil
}

// ActivateJob is POST /jobs/{id}/activate.
func (a *API) ActivateJob(ctx context.Context, in *ojsv1.ActivateJobRequest) (*ojsv1.ActivateJobResponse, error) {
	id, err := parseID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// A job that is not pending is FAILED_PRECONDITION.
	job, err := a.Jobs.Activate(ctx, id)
	if err != nil {
		return nil, err
	}
	return &ojsv1.ActivateJobResponse{Job: jobOf(job)}, nil
}
