package ojs

import (
	"context"
	"fmt"
)

// Register adds the handler of jobs whose arguments name their type. Like all registrations it panics if the type has a handler.
// Registering after Run has begun is allowed; a job whose type has no handler fails for good with the code handler_not_found.
func Register[Args JobArgs](w *Worker, handle func(context.Context, *Job[Args]) error) {
	var zero Args
	RegisterFunc(w, zero.JobType(), handle)
}

// RegisterFunc adds the handler of a type of jobs. Arguments that do not fit Args fail the job for good with the code
// invalid_payload: another attempt would not fit either.
func RegisterFunc[Args any](w *Worker, jobType string, handle func(context.Context, *Job[Args]) error) {
	w.Register(jobType, func(ctx context.Context, j *JobContext) error {
		job := &Job[Args]{JobContext: j}
		if err := j.DecodeArgs(&job.Args); err != nil {
			return &Failure{Code: codeInvalidArgs, Message: fmt.Sprintf("args do not fit %T: %v", job.Args, err), Permanent: true, Err: err}
		}
		return handle(ctx, job)
	})
}

// RegisterResult adds a handler whose first value is the result of the job. The result is encoded as JSON. One that cannot be
// encoded fails the job for good with the code invalid_result.
func RegisterResult[Args, Result any](w *Worker, jobType string, handle func(context.Context, *Job[Args]) (Result, error)) {
	RegisterFunc(w, jobType, func(ctx context.Context, job *Job[Args]) error {
		result, err := handle(ctx, job)
		if err != nil {
			return err
		}
		if err := job.SetResult(result); err != nil {
			return &Failure{Code: "invalid_result", Permanent: true, Err: err}
		}
		return nil
	})
}

// Register adds a handler without typed arguments.
func (w *Worker) Register(jobType string, handle HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, taken := w.handlers[jobType]; taken {
		panic("ojs: there is a handler for jobs of type " + jobType + " already")
	}
	w.handlers[jobType] = handle
}
