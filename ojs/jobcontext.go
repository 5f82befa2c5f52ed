package ojs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"time"
)

// HandlerFunc runs a job. A nil error means that it is done. [Typed] makes one of a function with typed arguments.
type HandlerFunc func(ctx JobContext) error

// JobContext is a job that runs: its context, what the server says of it, and ways to report. It is passed by value, and is a
// context itself, which ends with the job; middleware that gives the handler another context sets Context. One without a worker,
// such as JobContext{Context: ctx, Job: job} in a test of a handler, keeps its result and reports nothing. Its methods may be called
// by several goroutines of the handler.
type JobContext struct {
	context.Context
	Job *Job

	run *run // nil: there is no worker
}

// SetResult sets what the job has as its result when the handler returns nil. The last call counts. The server bounds the size
// of results; one that is too large fails the job for good (docs/reference/jobs.md, Limits). The error is a permanent [*Failure]
// with the code invalid_result: the result cannot be encoded as JSON. A handler ends with return ctx.SetResult(result).
func (c JobContext) SetResult(result any) error {
	data, err := json.Marshal(result)
	if err != nil {
		return &Failure{Code: "invalid_result", Message: fmt.Sprintf("encode result: %v", err), Permanent: true, Err: err}
	}
	if c.run == nil {
		c.Job.Result = data
	} else {
		c.run.setResult(data)
	}
	return nil
}

// Result is what SetResult has set; nil: nothing.
func (c JobContext) Result() json.RawMessage {
	if c.run == nil {
		return c.Job.Result
	}
	return c.run.result()
}

// ReportProgress says how far the job is, from 0 to 1. message and data may be empty. Like a heartbeat, it renews the reservation.
// A share outside of the range counts as its nearer end. The server keeps the latest report, and writes an event for it at most
// once a second (docs/reference/jobs.md, Progress).
//
// It may be called as often as the handler likes: one request is sent a second, with the latest report, and the last report before the
// handler returns always reaches the server before the outcome of the job. A report that comes more than a second after the one before
// is sent at once, and the error is that of its request. Others are sent later, and the error of their requests is that of a call after
// it. An error concerns the report only: the handler may ignore it, and the job goes on.
func (c JobContext) ReportProgress(share float64, message string, data any) error {
	body := map[string]any{"job_id": c.Job.ID, "percentage": share * 100, "attempt": c.Job.Attempt}
	if message != "" {
		body["message"] = message
	}
	if data != nil {
		body["data"] = data
	}
	if c.run != nil {
		body["worker_id"] = c.run.worker.id
	}
	encoded, err := json.Marshal(body) // now, because the handler may change data later
	if err != nil {
		return fmt.Errorf("ojs: encode progress: %w", err)
	}
	if c.run == nil {
		return nil
	}
	return c.run.reportProgress(c, encoded)
}

// Client is the client of the worker, for handlers that enqueue further jobs. It is nil without a worker: run one in a test of such a
// handler.
func (c JobContext) Client() *Client {
	if c.run == nil {
		return nil
	}
	return c.run.worker.client
}

// checkpointTime bounds the request of a checkpoint.
const checkpointTime = 10 * time.Second

// SaveCheckpoint stores a state that the next attempt continues from, if this one fails. Each call replaces the state that was
// saved before; it is encoded as JSON, of at most 1 MiB (docs/reference/jobs.md, Checkpoints). It is sent also if the context has
// ended, which may be the reason for it, and takes 10 s at most.
func (c JobContext) SaveCheckpoint(state any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), checkpointTime)
	defer cancel()
	if c.run == nil {
		return nil
	}
	// It may be repeated: the worker and the attempt in the body keep a late repetition from reaching another run.
	body := map[string]any{"state": state, "worker_id": c.run.worker.id, "attempt": c.Job.Attempt}
	r := Call{Method: http.MethodPut, Path: jobPath(c.Job.ID, "checkpoint"), Body: body}
	return c.run.worker.client.Do(ctx, r.again(), nil)
}

// LoadCheckpoint reads the state that an earlier attempt has saved, and reports whether there is one. It reads what came with
// the job when it was fetched; what this attempt has saved itself is not seen. An error says that there is one that does not fit into.
func (c JobContext) LoadCheckpoint(into any) (bool, error) {
	saved := c.Job.LastCheckpoint
	if len(saved) == 0 || string(saved) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(saved, into); err != nil {
		return false, err
	}
	return true, nil
}

// Typed makes a handler of a function with typed arguments. Arguments that do not fit Args fail the job for good with the code
// invalid_payload: another attempt would not fit either.
func Typed[Args any](handle func(ctx JobContext, args Args) error) HandlerFunc {
	notNil("the function of a typed handler", handle == nil)
	return func(ctx JobContext) error {
		var args Args
		if err := ctx.Job.DecodeArgs(&args); err != nil {
			return &Failure{Code: codeInvalidArgs, Message: fmt.Sprintf("args do not fit %T: %v", args, err), Permanent: true, Err: err}
		}
		return handle(ctx, args)
	}
}

// Register adds the handler of jobs whose arguments name their type. It is [Worker.Register] with [Typed] otherwise. It panics if what
// [Enqueue] makes of such arguments could not be read again: a part of them has a MarshalText and no UnmarshalText. Use [Worker.Register]
// and [Typed] if only other programs enqueue such jobs, in a form that can be read.
func Register[Args JobArgs](w *Worker, handle func(ctx JobContext, args Args) error, options ...HandlerOption) {
	notNil("the worker of Register", w == nil)
	mustDecode(reflect.TypeFor[Args]())
	var zero Args
	w.Register(zero.JobType(), Typed(handle), options...)
}

// TypedResult is [Typed] for a function that returns the result of the job. A nil error sets it as [JobContext.SetResult] does.
func TypedResult[Args, Result any](handle func(ctx JobContext, args Args) (Result, error)) HandlerFunc {
	notNil("the function of a typed handler", handle == nil)
	return Typed(func(ctx JobContext, args Args) error {
		result, err := handle(ctx, args)
		if err != nil {
			return err
		}
		return ctx.SetResult(result)
	})
}
