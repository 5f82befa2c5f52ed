package grpcapi

import (
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
)

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
