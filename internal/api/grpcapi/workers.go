package grpcapi

import (
	"context"
	"log/slog"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// Fetch is POST /workers/fetch without waiting.
// What is claimed and not delivered is handed back, in three places: the client is gone before the answer is made, the answer
// does not fit a message, the answer was not sent (see deliveries).
func (a *API) Fetch(ctx context.Context, in *ojsv1.FetchRequest) (*ojsv1.FetchResponse, error) {
	want, wire := job.NewFetch(in.GetQueues(), int64(in.GetCount()), in.GetWorkerId())
	if wire != nil {
		return nil, wire
	}
	// A bound of the claim is cheaper than handing back: what is not claimed needs no second statement.
	want.MaxBytes, want.Tenant = claimBytes, tenantOf(ctx)
	jobs, err := a.Pools.Fetch(ctx, want)
	if err != nil {
		return nil, err
	}
	// HandBack has a context of its own.
	if ctx.Err() != nil { // nobody waits for them any more
		a.Jobs.HandBack(ctx, jobs)
		return nil, ctx.Err()
	}
	out := jobsOf(jobs)
	fit := fitting(out)
	a.Jobs.HandBack(ctx, jobs[fit:])
	claimedFor(ctx, jobs[:fit])
	return &ojsv1.FetchResponse{Jobs: out[:fit]}, nil
}

// Ack is POST /workers/ack.
// It names neither worker nor attempt, so a late ack of a job that was lost and fetched again ends the run of the other
// worker.
func (a *API) Ack(ctx context.Context, in *ojsv1.AckRequest) (*ojsv1.AckResponse, error) {
	var r reader
	result := r.object("result", ojs.ErrInvalidPayload, in.GetResult())
	if r.err != nil {
		return nil, r.err
	}
	// Limits of results hold here, too; the message itself has at most 4 MiB.
	ack, wire := job.NewAck(in.GetJobId(), result, a.config.Limits)
	if wire != nil {
		return nil, wire
	}
	job, err := a.Jobs.Complete(ctx, ack)
	if err != nil {
		return nil, err
	}
	return &ojsv1.AckResponse{Acknowledged: job.State == string(ojs.StateCompleted)}, nil
}

// Nack is POST /workers/nack.
// A late nack, too, fails the run that is there.
func (a *API) Nack(ctx context.Context, in *ojsv1.NackRequest) (*ojsv1.NackResponse, error) {
	if e := in.GetError(); e != nil && e.GetCode() == "" && e.GetMessage() == "" {
		// Without them retryable is hardly meant as false: the job would be discarded for nothing that anybody could read.
		return nil, spec.InvalidPayload("error", "an error with a code or a message", nil, "'error' must have a code or a message.")
	}
	var r reader
	// nil without an error, which the rules refuse.
	failure := r.failure(in.GetError())
	if r.err != nil {
		return nil, r.err
	}
	nack, wire := job.NewNack(in.GetJobId(), failure, a.config.Limits)
	if wire != nil {
		return nil, wire
	}
	job, err := a.Jobs.Fail(ctx, nack)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.NackResponse{State: stateOf(job.State)}
	// In other states there is no next attempt at a known time.
	if job.State == string(ojs.StateRetryable) {
		out.NextAttemptAt = momentOf(job.NextAttemptAt)
	}
	return out, nil
}

// failure reads a worker's error. retryable has no third value: unset is false.
func (r *reader) failure(e *ojsv1.JobError) *job.ErrorDraft {
	if e == nil {
		return nil
	}
	return &job.ErrorDraft{
		Code: e.GetCode(), Message: e.GetMessage(), Retryable: e.GetRetryable(), Backtrace: e.GetBacktrace(),
		Details: r.object("details", ojs.ErrInvalidPayload, e.GetDetails()),
	}
}

// Heartbeat is POST /workers/heartbeat for at most one job.
// The new deadline is read after the extension, in a statement of its own, so another heartbeat may have moved it further.
func (a *API) Heartbeat(ctx context.Context, in *ojsv1.HeartbeatRequest) (*ojsv1.HeartbeatResponse, error) {
	var r reader
	// 0 means the length chosen at the fetch.
	visibility, state := r.milliseconds("extend_by", in.GetExtendBy()), ""
	if s := in.GetCurrentState(); s != 0 {
		state = word(s, "WORKER_STATE_")
	}
	if r.err != nil {
		return nil, r.err
	}
	// A tenant must not extend the reservations of others by guessing ids.
	own, err := a.ownBeat(ctx, in.GetId())
	if err != nil {
		return nil, err
	}
	beat, wire := worker.NewBeat(in.GetWorkerId(), state, own, visibility)
	if wire != nil {
		return nil, wire
	}
	beat.Tenant = tenantOf(ctx)
	// It registers a worker that is not known yet.
	res, err := a.Workers.Heartbeat(ctx, beat)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.HeartbeatResponse{DirectedState: workerStates[res.State]}
	if len(res.Extended) > 0 {
		id := res.Extended[0]
		job, err := a.Jobs.Get(ctx, id)
		if err != nil { // it is extended all the same
			a.Logger.WarnContext(ctx, "extended job cannot be read; its new deadline is not told",
				slog.String("category", "worker"), slog.Group("ojs", "job_id", spec.FormatID(id)), slog.Any("error", err))
			return out, nil
		}
		out.NewDeadline = momentOf(job.LeaseUntil)
	}
	return out, nil
}

// A state that is missing here would be unspecified.
var workerStates = map[string]ojsv1.WorkerState{
	"running": ojsv1.WorkerState_WORKER_STATE_RUNNING, "quiet": ojsv1.WorkerState_WORKER_STATE_QUIET,
	"terminate": ojsv1.WorkerState_WORKER_STATE_TERMINATE,
}
