package ojs

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// jobAnswer is the answer of calls that show one job.
type jobAnswer struct {
	Job *JobInfo `json:"job"`
}

func (c *Client) jobCall(ctx context.Context, r call) (*JobInfo, error) {
	var answer jobAnswer
	if err := c.do(ctx, r, &answer); err != nil {
		return nil, err
	}
	if answer.Job == nil {
		return nil, noMember(r.method, r.path, "job")
	}
	return answer.Job, nil
}

func jobPath(id string, more ...string) string {
	return strings.Join(append([]string{"/jobs/" + url.PathEscape(id)}, more...), "/")
}

// Get reads a job. A job that does not exist, or was removed by retention, is [ErrNotFound].
func (c *Client) Get(ctx context.Context, id string) (*JobInfo, error) {
	return c.jobCall(ctx, get(jobPath(id), nil))
}

// Cancel cancels a job that has not ended, also one that runs: its worker is told to stop it. reason may be empty.
// A job that has ended is [ErrInvalidStateTransition]. The worker of a running job learns of it with its next heartbeat; the
// job is cancelled at once, whatever its handler does after that.
func (c *Client) Cancel(ctx context.Context, id, reason string) (*JobInfo, error) {
	query := url.Values{}
	if reason != "" {
		query.Set("reason", reason)
	}
	r := call{method: http.MethodDelete, path: jobPath(id), query: query, repeatable: true}
	var answer jobAnswer
	unknown, err := c.repeat(ctx, r, &answer)
	if unknown && errors.Is(err, ErrInvalidStateTransition) && ErrorDetail(err, "current_state") == string(StateCancelled) {
		return c.Get(ctx, id) // a try before this one has cancelled it
	}
	if err == nil && answer.Job == nil {
		err = noMember(r.method, r.path, "job")
	}
	return answer.Job, err
}

// Activate releases a pending job. A job that is not pending is [ErrInvalidStateTransition]. The request is not repeated after
// a lost answer: read the job to find out.
func (c *Client) Activate(ctx context.Context, id string) (*JobInfo, error) {
	return c.jobCall(ctx, post(jobPath(id, "activate"), nil))
}

// Page is a part of a list. Read on with NextCursor, or Offset, while HasMore is true; a page may be empty before that.
// Total is counted up to a bound by some lists, and 0 from those that do not count.
type Page[T any] struct {
	Items      []T
	Total      int
	HasMore    bool
	NextCursor string
}

// PageOptions choose a part of a list. Zero values have the server's defaults. Of Offset and Cursor use one. A cursor neither
// skips nor repeats entries while others are added.
type PageOptions struct {
	Limit  int
	Offset int
	Cursor string // NextCursor of the page before; not every list has one
}

func (o PageOptions) set(query url.Values) {
	if o.Limit > 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Offset > 0 {
		query.Set("offset", strconv.Itoa(o.Offset))
	}
	setText(query, "cursor", o.Cursor)
}

func setText(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

func setTime(query url.Values, name string, t time.Time) {
	if !t.IsZero() {
		query.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}

// All reads a whole list, page by page, while the loop goes on. An error is the last thing that it yields.
//
//	for job, err := range ojs.All(func(page ojs.PageOptions) (*ojs.Page[ojs.JobInfo], error) {
//		return client.List(ctx, ojs.JobFilter{Queues: []string{"mail"}, PageOptions: page})
//	}) { … }
//
// It keeps the filter and replaces the page options: each call of read gets the ones to use. With offsets, entries that are
// added or removed meanwhile may be skipped or repeated.
func All[T any](read func(PageOptions) (*Page[T], error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		options := PageOptions{}
		for {
			page, err := read(options)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Items {
				if !yield(&page.Items[i], nil) {
					return
				}
			}
			read := options.Offset + len(page.Items)
			if options = (PageOptions{Cursor: page.NextCursor}); options.Cursor == "" {
				options.Offset = read
			}
			if !page.HasMore || options.Cursor == "" && len(page.Items) == 0 {
				return
			}
		}
	}
}

type pagination struct {
	Total      int    `json:"total"`
	HasMore    bool   `json:"has_more"`
	NextCursor string `json:"next_cursor"`
}

// list reads a page whose items are the member name, or one of the others. Servers name the items differently, so several names
// are tried in turn.
func list[T any](ctx context.Context, c *Client, path string, query url.Values, names ...string) (*Page[T], error) {
	var answer map[string]json.RawMessage
	if err := c.do(ctx, get(path, query), &answer); err != nil {
		return nil, err
	}
	var p pagination
	page := &Page[T]{}
	if err := decodeMember(answer, "pagination", &p); err != nil {
		return nil, badAnswer(path, err)
	}
	page.Total, page.HasMore, page.NextCursor = p.Total, p.HasMore, p.NextCursor
	for _, name := range names {
		if _, ok := answer[name]; ok {
			if err := decodeMember(answer, name, &page.Items); err != nil {
				return nil, badAnswer(path, err)
			}
			return page, nil
		}
	}
	return nil, noMember(http.MethodGet, path, names[0])
}

func badAnswer(path string, err error) error {
	return &TransportError{Method: http.MethodGet, Path: path, Sent: true, Err: err}
}

func decodeMember(answer map[string]json.RawMessage, name string, into any) error {
	if len(answer[name]) == 0 {
		return nil
	}
	return json.Unmarshal(answer[name], into)
}

// JobFilter chooses jobs of a list. Values of one field are alternatives; fields are conditions that must all hold. Empty ones
// choose everything.
type JobFilter struct {
	States []JobState
	Queues []string
	Types  []string
	PageOptions
}

// List lists jobs, newest first. A large job may come without its args, meta and errors; [Client.Get] reads it whole.
func (c *Client) List(ctx context.Context, filter JobFilter) (*Page[JobInfo], error) {
	query := url.Values{}
	states := make([]string, len(filter.States))
	for i, s := range filter.States {
		states[i] = string(s)
	}
	setText(query, "state", strings.Join(states, ","))
	setText(query, "queue", strings.Join(filter.Queues, ","))
	setText(query, "type", strings.Join(filter.Types, ","))
	filter.set(query)
	return list[JobInfo](ctx, c, "/jobs", query, "jobs")
}

// JobResult is how a job has ended, or its state if it has not.
type JobResult struct {
	State       JobState        `json:"state"`
	Result      json.RawMessage `json:"result"`
	Error       *JobError       `json:"error"`
	CompletedAt time.Time       `json:"completed_at"`
}

// Wait waits until a job has ended, or ctx is done. It asks the server to wait 30 s at a time and repeats that; where a server
// does not wait, it asks about once a second. A job that was discarded or cancelled is no error of the call: look at State.
// [ErrNotFound] says that the job does not exist, [ErrResultPruned] that its result is not kept any more.
func (c *Client) Wait(ctx context.Context, id string) (*JobResult, error) {
	const turn = 30 * time.Second
	for {
		result := &JobResult{}
		r := get(jobPath(id, "result"), url.Values{"wait": {"true"}, "timeout": {strconv.Itoa(int(turn / time.Second))}})
		r.wait = turn
		start := time.Now()
		err := c.do(ctx, r, result)
		switch {
		// The server has waited as long as it was asked to, and the job goes on.
		case errors.Is(err, ErrWaitTimeout):
		case err != nil || result.State.Terminal():
			return result, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if time.Since(start) < time.Second { // a server that does not wait
			if err := sleep(ctx, jitter(time.Second, 0.5, 1)); err != nil {
				return nil, err
			}
		}
	}
}

// Progress is what a run of a job has reported last.
type Progress struct {
	State     JobState        `json:"state"`
	Progress  float64         `json:"progress"` // 0 to 1
	Message   string          `json:"message"`
	Data      json.RawMessage `json:"data"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// Progress reads what a job has reported.
func (c *Client) Progress(ctx context.Context, id string) (*Progress, error) {
	p := &Progress{}
	return p, c.do(ctx, get(jobPath(id, "progress"), nil), p)
}
