package grpcapi

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// parseID reads the id of a job: one that is missing is wrong, and what is no id belongs to no job (docs/reference/http.md,
// Unmatched requests). Over HTTP an id is never missing, because it stands in the path.
func parseID(text string) ([16]byte, error) {
	if text == "" {
		return [16]byte{}, errMissing("job_id", "the id of a job")
	}
	id, err := job.ParseID(text)
	if err != nil {
		return id, err
	}
	return id, nil
}

func errMissing(field, expected string) error {
	return spec.InvalidPayload(field, expected, nil, "'"+field+"' is required: send "+expected+".")
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

// Enqueue is POST /jobs.
// With a key the call has a transaction of its own, and waits for room outside of it.
func (a *API) Enqueue(ctx context.Context, in *ojsv1.EnqueueRequest) (*ojsv1.EnqueueResponse, error) {
	text, err := object(func(w *jsonWriter) { w.job(in.GetType(), in.GetArgs(), in.GetOptions()) })
	if err != nil {
		return nil, err
	}
	j, wire := job.DecodeItem(text, a.limits(ctx))
	if wire != nil {
		return nil, wire
	}
	if err := blockFor(ctx, j); err != nil {
		return nil, err
	}
	if sent(ctx, idempotencyKey) != "" {
		out := &ojsv1.EnqueueResponse{}
		return out, a.enqueueOnce(ctx, keyedEnqueue{
			operation: "grpc.enqueue", request: in, answer: out, jobs: []*job.Job{j},
			refused: func(_ int, err error) error { return err },
			show:    func(stored []*job.Record) proto.Message { return &ojsv1.EnqueueResponse{Job: jobOf(stored[0])} },
		})
	}
	stored, err := a.Jobs.Enqueue(ctx, j)
	if err != nil {
		return nil, err
	}
	return &ojsv1.EnqueueResponse{Job: jobOf(stored)}, nil
}

// EnqueueBatch is POST /jobs/batch, and may be sent again with its idempotency key, as POST /jobs/bulk. All jobs or none are stored. An
// error is that of the first entry that is wrong. Keys are not those of a bulk call over HTTP, whose remembered answer could not be given
// back here.
func (a *API) EnqueueBatch(ctx context.Context, in *ojsv1.EnqueueBatchRequest) (*ojsv1.EnqueueBatchResponse, error) {
	jobs, err := a.decodeBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := blockFor(ctx, jobs...); err != nil {
		return nil, err
	}
	if sent(ctx, idempotencyKey) != "" {
		out := &ojsv1.EnqueueBatchResponse{}
		return out, a.enqueueOnce(ctx, keyedEnqueue{
			operation: "grpc.enqueue_batch", request: in, answer: out, jobs: jobs,
			refused: func(i int, err error) error { return api.Indexed(err, i) },
			show:    func(stored []*job.Record) proto.Message { return batchOf(stored) },
		})
	}
	stored, at, err := a.Jobs.EnqueueAll(ctx, jobs)
	if err != nil {
		return nil, api.Indexed(err, at)
	}
	return batchOf(stored), nil
}

// decodeBatch gives at least one job.
func (a *API) decodeBatch(ctx context.Context, in *ojsv1.EnqueueBatchRequest) ([]*job.Job, error) {
	if err := job.CheckItemCount("jobs", len(in.GetJobs()), a.config.Server.MaxBatchSize); err != nil {
		return nil, err
	}
	items := make([]jsontext.Value, 0, len(in.GetJobs()))
	var unreadable error
	for i, entry := range in.GetJobs() {
		text, err := object(func(w *jsonWriter) {
			w.job(entry.GetType(), entry.GetArgs(), withDefaults(entry.GetOptions(), in.GetDefaultOptions()))
		})
		if err != nil {
			unreadable = api.Indexed(err, i)
			break
		}
		items = append(items, text)
	}
	// Entries before one that cannot be read are checked, too, so that the error is that of the lowest index.
	jobs, wire := job.DecodeItems(items, a.limits(ctx))
	if wire != nil {
		return nil, wire
	}
	return jobs, unreadable
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

// batchOf echoes the jobs. What they were sent with may be more than a client takes in an answer, and without one it would
// send them again.
// The shorter forms keep ids, by which a client finds the rest.
func batchOf(stored []*job.Record) *ojsv1.EnqueueBatchResponse {
	out := &ojsv1.EnqueueBatchResponse{Jobs: jobsOf(stored), Count: int32(len(stored))}
	each := func(shorter func(j *ojsv1.Job) *ojsv1.Job) func() {
		return func() {
			for i, j := range out.GetJobs() {
				out.Jobs[i] = shorter(j)
			}
		}
	}
	shrink(out,
		each(func(j *ojsv1.Job) *ojsv1.Job { j.Args = nil; return j }),
		each(func(j *ojsv1.Job) *ojsv1.Job { j.Meta = nil; return j }),
		each(func(j *ojsv1.Job) *ojsv1.Job {
			return &ojsv1.Job{Id: j.GetId(), Type: j.GetType(), Queue: j.GetQueue(), State: j.GetState()}
		}),
		each(func(j *ojsv1.Job) *ojsv1.Job { return &ojsv1.Job{Id: j.GetId(), State: j.GetState()} }))
	return out
}

// keyedEnqueue is an enqueue of all jobs or none under an idempotency key.
// show runs in the transaction, before the commit, and may run again; it must only encode.
type keyedEnqueue struct {
	operation       string
	request, answer proto.Message
	jobs            []*job.Job
	refused         func(i int, err error) error // names the job that was refused
	show            func(stored []*job.Record) proto.Message
}

// enqueueOnce commits jobs, key and answer together, as over HTTP. A call that waits for room locks no key meanwhile.
func (a *API) enqueueOnce(ctx context.Context, call keyedEnqueue) error {
	return a.Jobs.RetryFull(ctx, call.jobs[0].BlockFor, func() error {
		return a.once(ctx, call.operation, call.request, call.answer, func(key queue.IdempotencyKey) (queue.Answer, error) {
			return a.Jobs.Once(ctx, key, func(tx *queue.Tx) (queue.Answer, bool, error) {
				stored, errs, err := tx.Enqueue(ctx, call.jobs, true) // true: all or none
				if err != nil {
					return queue.Answer{}, false, err
				}
				for i, err := range errs {
					if err != nil {
						return queue.Answer{}, false, call.refused(i, err)
					}
				}
				body, err := protojson.Marshal(call.show(stored))
				return queue.Answer{Body: body}, true, err
			})
		})
	})
}

// once makes the answer of a call with an idempotency key: the remembered one if the key was used before, else that of store, which keeps
// it under the key. The operation is part of the key, so each RPC has keys of its own. The answer is stored as JSON of protobuf and read
// again even for the first call, so that a replay is equal to it. Another message under the same key is a conflict; unknown fields of it
// count.
func (a *API) once(ctx context.Context, operation string, request, answer proto.Message, store func(key queue.IdempotencyKey) (queue.Answer,
	error)) error {
	key := queue.IdempotencyKey{Holder: callOf(ctx).caller.Holder(), Operation: operation, Key: sent(ctx, idempotencyKey)}
	if err := api.CheckIdempotencyKey(idempotencyKey, idempotencyKey, key.Key); err != nil {
		return err
	}
	// Maps have no order: without Deterministic an equal request could have another hash.
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return fmt.Errorf("hash request: %w", err)
	}
	hash := sha256.Sum256(message)
	key.Hash = hash[:]
	stored, err := store(key)
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(stored.Body, answer); err != nil {
		return fmt.Errorf("read remembered answer: %w", err)
	}
	return nil
}
