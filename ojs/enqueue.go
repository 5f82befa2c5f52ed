package ojs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Enqueue makes a job. args are described under Arguments in the package documentation. It returns when the server has stored
// the job: a nil error means that the job will not be lost. The client chooses the id, unless [WithID] does, and repeats a
// request whose answer was lost; the job is made once. An error for which [OutcomeUnknown] is true leaves it open whether there
// is a job.
func (c *Client) Enqueue(ctx context.Context, jobType string, args any, options ...EnqueueOption) (*JobInfo, error) {
	return c.EnqueueRequest(ctx, NewRequest(jobType, args, options...))
}

// Enqueue makes a job of the type that its arguments name. It is [Client.Enqueue] otherwise.
func Enqueue(ctx context.Context, c *Client, args JobArgs, options ...EnqueueOption) (*JobInfo, error) {
	return c.EnqueueRequest(ctx, RequestFor(args, options...))
}

// EnqueueRequest makes a job. The request is not changed. Middleware gets a copy, and the pointers in it are shared. Without an
// ID each call makes another job; to enqueue a request again after an error without the risk of a second job, set ID to the
// result of [NewID] first.
func (c *Client) EnqueueRequest(ctx context.Context, request *JobRequest) (*JobInfo, error) {
	own := *request
	return wrapEnqueue(&c.Middleware, c.send)(ctx, &own)
}

// send enqueues one job. With an id of its own it can be sent again whatever became of it: a second one is a duplicate.
// A duplicate counts as success only if an earlier try of this very call may have stored the job: otherwise the id was taken by
// another one.
func (c *Client) send(ctx context.Context, request *JobRequest) (*JobInfo, error) {
	r := withID(request)
	var answer struct {
		Job          *JobInfo `json:"job"`
		Deduplicated bool     `json:"deduplicated"`
	}
	unknown, err := c.repeat(ctx, post("/jobs", r).again(), &answer)
	if unknown && isOwnDuplicate(err, r.ID) {
		return c.Get(ctx, r.ID)
	}
	if err != nil {
		return nil, err
	}
	if answer.Job == nil {
		return nil, noMember(http.MethodPost, "/jobs", "job")
	}
	answer.Job.Deduplicated = answer.Deduplicated && answer.Job.ID != r.ID
	return answer.Job, nil
}

// isOwnDuplicate reports whether the server refuses a repeated enqueue because the first one was carried out.
// The suffix allows a server that shows ids with a prefix.
func isOwnDuplicate(err error, id string) bool {
	return errors.Is(err, ErrDuplicateJob) && strings.HasSuffix(ErrorDetail(err, "existing_job_id"), id)
}

func withID(request *JobRequest) *JobRequest {
	r := *request
	if r.ID == "" {
		r.ID = NewID()
	}
	return &r
}

func noMember(method, path, name string) error {
	return &TransportError{Method: method, Path: path, Sent: true, Err: fmt.Errorf("the answer has no member %q", name)}
}

// EnqueueBatch makes all jobs or none, in their order. The error of a job that was refused has its index in the detail index.
// All are stored in one transaction, and results are in the order of the requests. If one is refused, none is stored. The
// server bounds the number of jobs in one call: [ErrBatchSize] (docs/reference/http.md, Batch). Middleware runs for each job.
func (c *Client) EnqueueBatch(ctx context.Context, requests ...*JobRequest) ([]*JobInfo, error) {
	b := &batch{client: c, requests: requests, results: make([]BulkResult, len(requests)), atomic: true, send: c.sendBatch}
	if err := b.from(ctx, 0); err != nil {
		return nil, err
	}
	jobs := make([]*JobInfo, len(requests))
	for i, r := range b.results {
		jobs[i] = r.Job
	}
	return jobs, nil
}

// BulkResult is the outcome of one job of [Client.EnqueueBulk]: a job or an error. Exactly one of the two is set.
type BulkResult struct {
	Job *JobInfo
	Err error // an *Error of the server, or what middleware has returned
}

// EnqueueBulk makes the jobs that are valid and reports the outcome of each, in order. The error is that of the whole call.
// A job that is equivalent to an existing one is no error: Job is the existing one, with Deduplicated set. With an error of the
// call it is not known which jobs were made; the requests can be sent again if they have ids.
func (c *Client) EnqueueBulk(ctx context.Context, requests ...*JobRequest) ([]BulkResult, error) {
	b := &batch{client: c, requests: requests, results: make([]BulkResult, len(requests)), send: c.sendBulk}
	if err := b.from(ctx, 0); err != nil {
		return nil, err
	}
	return b.results, nil
}

// batch runs the middleware of each request around one call for all of them.
type batch struct {
	client   *Client
	requests []*JobRequest
	results  []BulkResult
	atomic   bool // an error of one job is one of all
	send     func(context.Context, []*JobRequest) ([]BulkResult, error)

	sent   []*JobRequest // those that middleware has passed on
	places []int         // of sent in requests
	failed error         // of the call
}

// from runs the middleware of request i, in which that of the next one runs, and so on; the innermost sends. Middleware that answers
// without calling next takes its request out of the call. The call happens inside of all middleware, so that each of them sees
// the outcome of its own job and can measure it.
func (b *batch) from(ctx context.Context, i int) error {
	if i == len(b.requests) {
		b.call(ctx)
		return b.failed
	}
	passed := false
	own := *b.requests[i]
	job, err := wrapEnqueue(&b.client.Middleware, func(ctx context.Context, r *JobRequest) (*JobInfo, error) {
		if passed {
			return nil, errors.New("ojs: enqueue middleware has called next twice for a job of a batch")
		}
		passed = true
		b.sent, b.places = append(b.sent, withID(r)), append(b.places, i)
		if err := b.from(ctx, i+1); err != nil {
			return nil, err
		}
		return b.results[i].Job, b.results[i].Err
	})(ctx, &own)
	b.results[i] = BulkResult{job, err}
	switch {
	case b.failed != nil:
		return b.failed
	case err != nil && b.atomic:
		b.failed = err
		return err
	case passed:
		return nil
	}
	return b.from(ctx, i+1)
}

func (b *batch) call(ctx context.Context) {
	if len(b.sent) == 0 {
		return
	}
	stored, err := b.send(ctx, b.sent)
	if err != nil {
		b.failed = err
		return
	}
	for k, i := range b.places {
		b.results[i] = stored[k]
	}
}

func (c *Client) sendBatch(ctx context.Context, requests []*JobRequest) ([]BulkResult, error) {
	var answer struct {
		Jobs []*JobInfo `json:"jobs"`
	}
	unknown, err := c.repeat(ctx, post("/jobs/batch", map[string]any{"jobs": requests}).again(), &answer)
	if unknown && slices.ContainsFunc(requests, func(r *JobRequest) bool { return isOwnDuplicate(err, r.ID) }) {
		return c.readAll(ctx, requests) // all or nothing: if one is stored, all are
	}
	if err != nil {
		return nil, err
	}
	if len(answer.Jobs) != len(requests) {
		return nil, noMember(http.MethodPost, "/jobs/batch", "jobs")
	}
	results := make([]BulkResult, len(requests))
	for i, j := range answer.Jobs {
		results[i].Job = j
	}
	return results, nil
}

func (c *Client) readAll(ctx context.Context, requests []*JobRequest) ([]BulkResult, error) {
	results := make([]BulkResult, len(requests))
	for i, r := range requests {
		job, err := c.Get(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		results[i].Job = job
	}
	return results, nil
}

// Each item is repeated by its own id: after a lost answer some of the jobs may be there, and are read instead of being
// reported as duplicates.
func (c *Client) sendBulk(ctx context.Context, requests []*JobRequest) ([]BulkResult, error) {
	var answer struct {
		Items []struct {
			Index  int      `json:"index"`
			Status string   `json:"status"`
			Job    *JobInfo `json:"job"`
			Error  *Error   `json:"error"`
		} `json:"items"`
	}
	r := post("/jobs/bulk", map[string]any{"jobs": requests}).again()
	r.accept = http.StatusUnprocessableEntity // an answer like the others, if every job is refused
	if _, err := c.repeat(ctx, r, &answer); err != nil {
		return nil, err
	}
	results := make([]BulkResult, len(requests))
	for _, item := range answer.Items {
		if item.Index < 0 || item.Index >= len(results) {
			continue
		}
		result := BulkResult{Job: item.Job}
		if item.Error != nil && item.Status != "duplicate" {
			result.Err = item.Error
			if isOwnDuplicate(item.Error, requests[item.Index].ID) { // a try before this one has stored it
				result.Job, result.Err = c.Get(ctx, requests[item.Index].ID)
			}
		}
		if result.Job != nil {
			result.Job.Deduplicated = item.Status == "duplicate"
		}
		results[item.Index] = result
	}
	for i := range results {
		if results[i] == (BulkResult{}) {
			results[i].Err = noMember(http.MethodPost, "/jobs/bulk", "items")
		}
	}
	return results, nil
}
