package grpcapi

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// draft reads a new job.
func (r *reader) draft(kind string, args []*structpb.Value, options *ojsv1.EnqueueOptions) job.Draft {
	return job.Draft{Type: kind, Args: r.array("args", ojs.KindInvalidArgs, args), Options: r.options(options)}
}

// Enqueue is POST /jobs.
func (a *API) Enqueue(ctx context.Context, in *ojsv1.EnqueueRequest) (*ojsv1.EnqueueResponse, error) {
	var r reader
	draft := r.draft(in.GetType(), in.GetArgs(), in.GetOptions())
	if r.err != nil {
		return nil, r.err
	}
	job, wire := draft.Job(a.config.Limits)
	if wire != nil {
		return nil, wire
	}
	stored, err := a.Jobs.Enqueue(ctx, job)
	if err != nil {
		return nil, err
	}
	return &ojsv1.EnqueueResponse{Job: jobOf(stored)}, nil
}

// EnqueueBatch is POST /jobs/batch, and may be sent again with its idempotency key, as POST /jobs/bulk.
func (a *API) EnqueueBatch(ctx context.Context, in *ojsv1.EnqueueBatchRequest) (*ojsv1.EnqueueBatchResponse, error) {
	jobs, err := a.decodeBatch(in)
	if err != nil {
		return nil, err
	}
	if key := sent(ctx, idempotencyKey); key != "" {
		return a.enqueueOnce(ctx, key, in, jobs)
	}
	stored, at, err := a.Jobs.EnqueueAll(ctx, jobs)
	if err != nil {
		return nil, api.Indexed(err, at)
	}
	return batchOf(stored), nil
}

// batchOf echoes the jobs. What they were sent with may be more than a client takes in an answer, and without one it would
// send them again.
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
func (a *API) decodeBatch(in *ojsv1.EnqueueBatchRequest) ([]*job.Job, error) {
	if n := len(in.GetJobs()); n > a.config.MaxBatchSize {
		return nil, ojs.ErrBatchSize(a.config.MaxBatchSize, n)
	}
	var r reader
	drafts := make([]job.Draft, 0, len(in.GetJobs()))
	for i, entry := range in.GetJobs() {
		draft := r.draft(entry.GetType(), entry.GetArgs(), withDefaults(entry.GetOptions(), in.GetDefaultOptions()))
		if r.err != nil {
			r.err = ojs.ErrIndexed(r.err, i)
			break
		}
		drafts = append(drafts, draft)
	}
	if r.err != nil && len(drafts) == 0 {
		return nil, r.err
	}
	jobs, wire := job.FromDrafts(drafts, a.config.Limits, a.config.MaxBatchSize)
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
func (a *API) enqueueOnce(ctx context.Context, text string, in *ojsv1.EnqueueBatchRequest, jobs []*job.Job) (*ojsv1.EnqueueBatchResponse, error) {
	if err := api.CheckIdempotencyKey(idempotencyKey, idempotencyKey, text); err != nil {
		return nil, err
	}
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("hash batch: %w", err)
	}
	hash := sha256.Sum256(message)
	key := queue.IdempotencyKey{Operation: "grpc.enqueue_batch", Key: text, Hash: hash[:]}
	answer, err := a.Jobs.Once(ctx, key, func(tx *queue.Tx) (queue.Answer, bool, error) {
		stored, errs, err := tx.Enqueue(ctx, jobs, true)
		if err != nil {
			return queue.Answer{}, false, err
		}
		for i, err := range errs {
			if err != nil {
				return queue.Answer{}, false, api.Indexed(err, i)
			}
		}
		body, err := protojson.Marshal(batchOf(stored))
		return queue.Answer{Body: body}, true, err
	})
	if err != nil {
		return nil, err
	}
	out := &ojsv1.EnqueueBatchResponse{}
	if err := protojson.Unmarshal(answer.Body, out); err != nil {
		return nil, fmt.Errorf("read remembered batch: %w", err)
	}
	return out, nil
}
