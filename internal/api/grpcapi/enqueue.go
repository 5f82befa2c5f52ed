package grpcapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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
