package ojs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Enqueue makes a job. args are described under Arguments in the package documentation. It returns when the server has stored
// the job: a nil error means that the job will not be lost. The client chooses the id, unless [WithID] does, and repeats a
// request whose answer was lost; the job is made once. An error for which [OutcomeUnknown] is true leaves it open whether there
// is a job. Options that no function makes are set by one that you write: func(r *ojs.JobRequest) { r.Schema = uri }.
func (c *Client) Enqueue(ctx context.Context, jobType string, args any, options ...EnqueueOption) (*Job, error) {
	r := &JobRequest{Type: jobType, Args: args}
	r.complete()
	r.apply(options, "an enqueue")
	return wrapEnqueue(&c.Middleware, c.send)(ctx, r)
}

// Enqueue makes a job of the type that its arguments name. It is [Client.Enqueue] otherwise.
func Enqueue(ctx context.Context, c *Client, args JobArgs, options ...EnqueueOption) (*Job, error) {
	notNil("the client of an enqueue", c == nil)
	notNil("the argument args of an enqueue", args == nil)
	return c.Enqueue(ctx, args.JobType(), args, options...)
}

// send enqueues one job. With an id of its own it can be sent again whatever became of it: a second one is a duplicate.
// A duplicate counts as success only if an earlier try of this very call may have stored the job: otherwise the id was taken by
// another one.
func (c *Client) send(ctx context.Context, request *JobRequest) (*Job, error) {
	r := request.withID()
	var answer struct {
		Job          *Job `json:"job"`
		Deduplicated bool `json:"deduplicated"`
	}
	unknown, err := c.repeat(ctx, post("/jobs", r).again(), &answer)
	if unknown && isOwnDuplicate(err, r.ID) {
		return c.GetJob(ctx, r.ID)
	}
	if err != nil {
		return nil, err
	}
	if answer.Job == nil {
		return nil, noMember(http.MethodPost, "/jobs", "job")
	}
	answer.Job.Deduplicated = answer.Deduplicated && answer.Job.ID != r.ID
	c.enqueued(answer.Job)
	return answer.Job, nil
}

// isOwnDuplicate reports whether the server refuses a repeated enqueue because the first one was carried out.
// The suffix allows a server that shows ids with a prefix.
func isOwnDuplicate(err error, id string) bool {
	return errors.Is(err, ErrDuplicateJob) && strings.HasSuffix(ErrorDetail(err, "existing_job_id"), id)
}

func noMember(method, path, name string) error {
	return &TransportError{Method: method, Path: path, Sent: true, Err: fmt.Errorf("the answer has no member %q", name)}
}

// EnqueueBatch makes jobs in one call, in their order: all of them or none, in one transaction. If the server refuses one, its error
// has the index of that job in the detail index, and none is stored. With [Partial] each job stands for itself. The server
// bounds the number of jobs in one call: [ErrBatchSize] (docs/reference/http.md, Batch). Middleware runs for each job. Like
// [Client.Enqueue] it is repeated after a lost answer; to repeat it after an error, set the ID of each request to a [NewID] first.
func (c *Client) EnqueueBatch(ctx context.Context, requests []JobRequest, options ...BatchOption) ([]Job, error) {
	b := &batch{client: c, requests: requests, results: make([]batchResult, len(requests))}
	for i, o := range options {
		if o == nil {
			panic(fmt.Sprintf("ojs: option %d of a batch is nil", i))
		}
		o(b)
	}
	if err := b.from(ctx, ctx, 0); err != nil {
		return nil, err
	}
	jobs, refused := make([]Job, len(requests)), &BatchError{}
	for i, r := range b.results {
		switch {
		case r.err != nil:
			refused.add(i, r.err)
		case r.job != nil:
			jobs[i] = *r.job
		}
	}
	if len(refused.Errors) > 0 {
		return jobs, refused
	}
	return jobs, nil
}

// BatchOption changes what [Client.EnqueueBatch] does.
type BatchOption func(*batch)

// Partial makes the jobs of a batch that are valid, whatever becomes of the others. If some are refused the error is a [*BatchError],
// and the jobs in their places are empty. A job that is equivalent to an existing one is no error: it is the existing one, with
// Deduplicated set. After any other error it is not known which jobs were made; the requests can be sent again if they have ids.
func Partial() BatchOption { return func(b *batch) { b.partial = true } }

// BatchError says which jobs of a batch with [Partial] were not made. errors.Is and errors.As look at each of the errors.
type BatchError struct {
	Errors map[int]error // by index of the request: an *Error of the server, or what middleware has returned
}

func (e *BatchError) add(i int, err error) {
	if e.Errors == nil {
		e.Errors = map[int]error{}
	}
	e.Errors[i] = err
}

// Error gives the number of jobs and the first error.
func (e *BatchError) Error() string {
	places := slices.Sorted(maps.Keys(e.Errors))
	if len(places) == 0 {
		return "ojs: no job of the batch was refused"
	}
	return fmt.Sprintf("ojs: %d jobs of the batch were refused; job %d: %v", len(places), places[0], e.Errors[places[0]])
}

// Unwrap gives all errors, in the order of the jobs.
func (e *BatchError) Unwrap() []error {
	var list []error
	for _, i := range slices.Sorted(maps.Keys(e.Errors)) {
		list = append(list, e.Errors[i])
	}
	return list
}

type batchResult struct {
	job *Job
	err error
}

// batch runs the middleware of each request around one call for all of them.
type batch struct {
	client   *Client
	requests []JobRequest
	results  []batchResult
	partial  bool // the error of one job is not that of all

	sent   []sentJob // those that middleware has passed on
	failed error     // of the call
}

// sentJob is a job of the call.
type sentJob struct {
	place int // among the requests of the batch
	id    string
	body  json.RawMessage
}

// from runs the middleware of request i, in which that of the next one runs, and so on; the innermost sends. Middleware that answers
// without calling next takes its request out of the call. The call happens inside of all middleware, so that each of them sees
// the outcome of its own job and can measure it. Each begins with the context of the caller, ctx: a span of one job is not the parent of
// the next one's. The call has the context that the middleware of the last job has made, inner.
func (b *batch) from(ctx, inner context.Context, i int) error {
	if i == len(b.requests) {
		b.call(inner)
		return b.failed
	}
	passed := false
	own := b.requests[i]
	own.complete()
	job, err := wrapEnqueue(&b.client.Middleware, func(inner context.Context, r *JobRequest) (*Job, error) {
		if passed {
			return nil, errors.New("ojs: enqueue middleware has called next twice for a job of a batch")
		}
		passed = true
		own := r.withID()
		body, encoding := json.Marshal(own)
		if encoding == nil {
			b.sent = append(b.sent, sentJob{i, own.ID, body})
		} else if encoding = fmt.Errorf("ojs: encode job %d of the batch, of type %q: %w", i, own.Type, encoding); !b.partial {
			return nil, encoding
		}
		if err := b.from(ctx, inner, i+1); err != nil {
			return nil, err
		}
		if encoding != nil {
			return nil, encoding
		}
		return b.results[i].job, b.results[i].err
	})(ctx, &own)
	b.results[i] = batchResult{job, err}
	switch {
	case b.failed != nil:
		return b.failed
	case err != nil && !b.partial:
		b.failed = err
		return err
	case passed:
		return nil
	}
	return b.from(ctx, inner, i+1)
}

func (b *batch) call(ctx context.Context) {
	if len(b.sent) == 0 {
		return
	}
	send := b.client.sendBatch
	if b.partial {
		send = b.client.sendPartial
	}
	stored, err := send(ctx, b.sent)
	if err != nil {
		b.failed = err
		return
	}
	for k, j := range b.sent {
		b.results[j.place] = stored[k]
		if stored[k].job != nil {
			b.client.enqueued(stored[k].job)
		}
	}
}

func bodies(jobs []sentJob) []json.RawMessage {
	list := make([]json.RawMessage, len(jobs))
	for i, j := range jobs {
		list[i] = j.body
	}
	return list
}

func (c *Client) sendBatch(ctx context.Context, jobs []sentJob) ([]batchResult, error) {
	var answer struct {
		Jobs []*Job `json:"jobs"`
	}
	unknown, err := c.repeat(ctx, post("/jobs/batch", map[string]any{"jobs": bodies(jobs)}).again(), &answer)
	if unknown && slices.ContainsFunc(jobs, func(j sentJob) bool { return isOwnDuplicate(err, j.id) }) {
		return c.readAll(ctx, jobs) // all or nothing: if one is stored, all are
	}
	if err != nil {
		return nil, err
	}
	if len(answer.Jobs) != len(jobs) {
		return nil, noMember(http.MethodPost, "/jobs/batch", "jobs")
	}
	results := make([]batchResult, len(jobs))
	for i, j := range answer.Jobs {
		results[i].job = j
	}
	return results, nil
}

func (c *Client) readAll(ctx context.Context, jobs []sentJob) ([]batchResult, error) {
	results := make([]batchResult, len(jobs))
	for i, j := range jobs {
		job, err := c.GetJob(ctx, j.id)
		if err != nil {
			return nil, err
		}
		results[i].job = job
	}
	return results, nil
}

// sendPartial repeats each item by its own id: after a lost answer some of the jobs may be there, and are read instead of being
// reported as duplicates.
func (c *Client) sendPartial(ctx context.Context, jobs []sentJob) ([]batchResult, error) {
	var answer struct {
		Items []struct {
			Index  int    `json:"index"`
			Status string `json:"status"`
			Job    *Job   `json:"job"`
			Error  *Error `json:"error"`
		} `json:"items"`
	}
	r := post("/jobs/bulk", map[string]any{"jobs": bodies(jobs)}).again()
	r.Accept = http.StatusUnprocessableEntity // an answer like the others, if every job is refused
	unknown, err := c.repeat(ctx, r, &answer)
	if err != nil {
		return nil, err
	}
	results := make([]batchResult, len(jobs))
	for _, item := range answer.Items {
		if item.Index < 0 || item.Index >= len(results) {
			continue
		}
		result, id := batchResult{job: item.Job}, jobs[item.Index].id
		switch {
		case item.Error != nil && item.Status != "duplicate":
			item.Error.Method, item.Error.Path = r.Method, r.Path
			result.err = item.Error
			if unknown && isOwnDuplicate(item.Error, id) { // a try before this one has stored it
				result.job, result.err = c.GetJob(ctx, id)
			}
		case item.Job != nil:
			result.job.Deduplicated = item.Status == "duplicate" && !strings.HasSuffix(item.Job.ID, id)
		}
		results[item.Index] = result
	}
	for i := range results {
		if results[i] == (batchResult{}) {
			results[i].err = noMember(http.MethodPost, "/jobs/bulk", "items")
		}
	}
	return results, nil
}
