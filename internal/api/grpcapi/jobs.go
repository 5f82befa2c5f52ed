package grpcapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
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

// draft reads a new job.
// The caller must look at r.err before it uses the draft.
func (r *reader) draft(kind string, args []*structpb.Value, options *ojsv1.EnqueueOptions) job.Draft {
	return job.Draft{Type: kind, Args: r.array("args", ojs.ErrInvalidArgs, args), Options: r.options(options)}
}

// Enqueue is POST /jobs.
// With a key the call has a transaction of its own, and waits for room outside of it.
func (a *API) Enqueue(ctx context.Context, in *ojsv1.EnqueueRequest) (*ojsv1.EnqueueResponse, error) {
	var r reader
	draft := r.draft(in.GetType(), in.GetArgs(), in.GetOptions())
	if r.err != nil {
		return nil, r.err
	}
	job, wire := draft.Job(a.limits(ctx))
	if wire != nil {
		return nil, wire
	}
	if err := blockFor(ctx, job); err != nil {
		return nil, err
	}
	if key := sent(ctx, idempotencyKey); key != "" {
		return retryFull(ctx, a, job.BlockFor, func() (*ojsv1.EnqueueResponse, error) { return a.enqueueJobOnce(ctx, key, in, job) })
	}
	stored, err := a.Jobs.Enqueue(ctx, job)
	if err != nil {
		return nil, err
	}
	return &ojsv1.EnqueueResponse{Job: jobOf(stored)}, nil
}

// EnqueueBatch is POST /jobs/batch, and may be sent again with its idempotency key, as POST /jobs/bulk.
// All jobs or none are stored. jobs has at least one element.
func (a *API) EnqueueBatch(ctx context.Context, in *ojsv1.EnqueueBatchRequest) (*ojsv1.EnqueueBatchResponse, error) {
	jobs, err := a.decodeBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := blockFor(ctx, jobs...); err != nil {
		return nil, err
	}
	if key := sent(ctx, idempotencyKey); key != "" {
		return retryFull(ctx, a, jobs[0].BlockFor, func() (*ojsv1.EnqueueBatchResponse, error) { return a.enqueueOnce(ctx, key, in, jobs) })
	}
	stored, at, err := a.Jobs.EnqueueAll(ctx, jobs)
	if err != nil {
		return nil, api.Indexed(err, at)
	}
	return batchOf(stored), nil
}

// blockFor sets how long the enqueue of the jobs may wait for room in a queue.
// An invalid value is refused even if no queue is bounded.
func blockFor(ctx context.Context, jobs ...*job.Job) error {
	wait, err := api.ParseBlockTimeout(blockKey, sent(ctx, blockKey))
	for _, j := range jobs {
		j.BlockFor = wait
	}
	return err
}

// retryFull is Store.RetryFull for a call with an answer.
func retryFull[Answer any](ctx context.Context, a *API, wait time.Duration, try func() (*Answer, error)) (answer *Answer, err error) {
	err = a.Jobs.RetryFull(ctx, wait, func() error {
		answer, err = try()
		return err
	})
	return answer, err
}

// batchOf echoes the jobs. What they were sent with may be more than a client takes in an answer, and without one it would
// send them again.
// The shorter forms keep ids, by which a client finds the rest.
func batchOf(stored []*job.Record) *ojsv1.EnqueueBatchResponse {
	out := &ojsv1.EnqueueBatchResponse{Jobs: jobsOf(stored), Count: int32(len(stored))}
	each := func(change func(j *ojsv1.Job)) func() {
		return func() {
			for _, j := range out.GetJobs() {
				change(j)
			}
		}
	}
	shrink(out,
		each(func(j *ojsv1.Job) { j.Args = nil }),
		each(func(j *ojsv1.Job) { j.Meta = nil }),
		each(func(j *ojsv1.Job) {
			keep(j, &ojsv1.Job{Id: j.GetId(), Type: j.GetType(), Queue: j.GetQueue(), State: j.GetState()})
		}),
		each(func(j *ojsv1.Job) { keep(j, &ojsv1.Job{Id: j.GetId(), State: j.GetState()}) }))
	return out
}

// keep leaves only these parts of a job.
func keep(j, parts *ojsv1.Job) {
	proto.Reset(j)
	proto.Merge(j, parts)
}

// decodeBatch tells of the first entry that is wrong.
// Entries before one that cannot be read are checked, too, so that the error is that of the lowest index. With none before it
// there is nothing to check.
func (a *API) decodeBatch(ctx context.Context, in *ojsv1.EnqueueBatchRequest) ([]*job.Job, error) {
	if n := len(in.GetJobs()); n > a.config.MaxBatchSize {
		return nil, spec.BatchSize(a.config.MaxBatchSize, n)
	}
	var r reader
	drafts := make([]job.Draft, 0, len(in.GetJobs()))
	for i, entry := range in.GetJobs() {
		draft := r.draft(entry.GetType(), entry.GetArgs(), withDefaults(entry.GetOptions(), in.GetDefaultOptions()))
		if r.err != nil {
			r.err = spec.Indexed(r.err, i)
			break
		}
		drafts = append(drafts, draft)
	}
	if r.err != nil && len(drafts) == 0 {
		return nil, r.err
	}
	jobs, wire := job.FromDrafts(drafts, a.limits(ctx), a.config.MaxBatchSize)
	switch {
	case wire != nil:
		return nil, wire
	case r.err != nil:
		return nil, r.err
	}
	return jobs, nil
}

// enqueueOnce answers a call with the same key and message from memory. Its keys are its own: what is remembered of a
// bulk call over HTTP could not be given back here.
// The operation is part of the stored key.
func (a *API) enqueueOnce(ctx context.Context, text string, in *ojsv1.EnqueueBatchRequest, jobs []*job.Job) (*ojsv1.EnqueueBatchResponse, error) {
	out := &ojsv1.EnqueueBatchResponse{}
	err := a.once(ctx, onceCall{
		operation: "grpc.enqueue_batch", key: text, request: in, jobs: jobs,
		refused: func(i int, err error) error { return api.Indexed(err, i) },
		show:    func(stored []*job.Record) proto.Message { return batchOf(stored) },
	}, out)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// enqueueJobOnce is enqueueOnce for a single job.
func (a *API) enqueueJobOnce(ctx context.Context, text string, in *ojsv1.EnqueueRequest, j *job.Job) (*ojsv1.EnqueueResponse, error) {
	out := &ojsv1.EnqueueResponse{}
	err := a.once(ctx, onceCall{
		operation: "grpc.enqueue", key: text, request: in, jobs: []*job.Job{j},
		refused: func(_ int, err error) error { return err },
		show:    func(stored []*job.Record) proto.Message { return &ojsv1.EnqueueResponse{Job: jobOf(stored[0])} },
	}, out)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// onceCall is an enqueue of all jobs or none under an idempotency key.
// show runs in the transaction, before the commit, and may run again; it must only encode.
type onceCall struct {
	operation string
	key       string // as the client sent it
	request   proto.Message
	jobs      []*job.Job
	refused   func(i int, err error) error // names the job that was refused
	show      func(stored []*job.Record) proto.Message
}

// once makes the answer out, from memory if the key was used before.
// Jobs, key and answer are committed together, as over HTTP. The answer is stored as JSON of protobuf and read again even for
// the first call, so that a replay is equal to it. Unknown fields of the request are part of the hash.
func (a *API) once(ctx context.Context, call onceCall, out proto.Message) error {
	// An empty key does not get here.
	if err := api.CheckIdempotencyKey(idempotencyKey, idempotencyKey, call.key); err != nil {
		return err
	}
	// Maps have no order: without Deterministic an equal request could have another hash, and would be a conflict.
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(call.request)
	if err != nil {
		return fmt.Errorf("hash request: %w", err)
	}
	hash := sha256.Sum256(message)
	key := queue.IdempotencyKey{Holder: callOf(ctx).caller.Holder(), Operation: call.operation, Key: call.key, Hash: hash[:]}
	answer, err := a.Jobs.Once(ctx, key, func(tx *queue.Tx) (queue.Answer, bool, error) {
		// true: all or none.
		stored, errs, err := tx.Enqueue(ctx, call.jobs, true)
		if err != nil {
			return queue.Answer{}, false, err
		}
		for i, err := range errs {
			if err != nil {
				return queue.Answer{}, false, call.refused(i, err)
			}
		}
		body, err := protojson.Marshal(call.show(stored))
		// Status is not used here: a stored answer is always a success.
		return queue.Answer{Body: body}, true, err
	})
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(answer.Body, out); err != nil {
		return fmt.Errorf("read remembered answer: %w", err)
	}
	return nil
}
