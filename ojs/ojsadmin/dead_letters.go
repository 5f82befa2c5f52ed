package ojsadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// DeadLetterFilter chooses dead letters. All conditions that are set must hold.
type DeadLetterFilter struct {
	Queues     []string
	Types      []string // a type may end in *
	ErrorTypes []string
	ErrorCodes []string
	Since      time.Time // of discarded_at
	Until      time.Time
	PageOptions
}

func (f DeadLetterFilter) query() url.Values {
	query := f.PageOptions.query()
	setList(query, "queue", f.Queues)
	setList(query, "type", f.Types)
	setList(query, "error_type", f.ErrorTypes)
	setList(query, "error_code", f.ErrorCodes)
	setTime(query, "since", f.Since)
	setTime(query, "until", f.Until)
	return query
}

// errDeadLetterPage is there because the server ignores page options in a purge: it would delete all that match.
var errDeadLetterPage = errors.New("ojsadmin: the filter has page options, but the call changes all dead letters that match: leave Limit, Offset and Cursor empty")

// ListDeadLetters lists jobs that have failed for good, the latest first.
func (c *Client) ListDeadLetters(ctx context.Context, filter DeadLetterFilter) (*Page[ojs.Job], error) {
	return list[ojs.Job](ctx, c, get("/dead-letter", filter.query()), "jobs")
}

// GetDeadLetter reads a discarded job. A job in another state is [ojs.ErrNotFound], also for the other calls.
func (c *Client) GetDeadLetter(ctx context.Context, id string) (*ojs.Job, error) {
	return member[ojs.Job](ctx, c, get(deadLetterPath(id, ""), nil), "job")
}

// RetryDeadLetter makes a discarded job available again, with all its attempts. The request is not repeated after a lost
// answer: read the job to find out.
func (c *Client) RetryDeadLetter(ctx context.Context, id string) (*ojs.Job, error) {
	return member[ojs.Job](ctx, c, ojs.Call{Method: http.MethodPost, Path: deadLetterPath(id, "/retry")}, "job")
}

// JobOverride is what changes of a discarded job that is retried. Zero fields stay as they are.
type JobOverride struct {
	Queue    string
	Args     any // see Arguments in the documentation of package ojs
	Priority *int
	Meta     map[string]any   // merged member by member
	Retry    *ojs.RetryPolicy // merged field by field
}

// RetryDeadLetterWith is [Client.RetryDeadLetter] for a job that is to run with other arguments, or elsewhere.
func (c *Client) RetryDeadLetterWith(ctx context.Context, id string, override JobOverride) (*ojs.Job, error) {
	job, err := encodeJob(ojs.JobRequest{Args: override.Args, Retry: override.Retry})
	if err != nil {
		return nil, fmt.Errorf("ojsadmin: retry dead letter %s: %w", id, err)
	}
	body := struct {
		Queue    string          `json:"queue,omitempty"`
		Args     json.RawMessage `json:"args,omitempty"`
		Priority *int            `json:"priority,omitempty"`
		Meta     map[string]any  `json:"meta,omitempty"`
		Retry    json.RawMessage `json:"retry,omitempty"`
	}{Queue: override.Queue, Priority: override.Priority, Meta: override.Meta, Retry: job.Options["retry"]}
	if override.Args != nil {
		body.Args = job.Args
	}
	return member[ojs.Job](ctx, c, ojs.Call{
		Method: http.MethodPost, Path: deadLetterPath(id, "/retry"), Body: map[string]any{"override": body},
	}, "job")
}

// RetryDeadLetters makes all dead letters that match available again, and returns their number. An empty filter matches all; one
// with page options is refused.
func (c *Client) RetryDeadLetters(ctx context.Context, filter DeadLetterFilter) (retried int, err error) {
	if filter.PageOptions != (PageOptions{}) {
		return 0, errDeadLetterPage
	}
	conditions := map[string]string{}
	for name, values := range filter.query() {
		conditions[name] = values[0]
	}
	var answer struct {
		Succeeded int `json:"succeeded"`
	}
	err = c.client.Do(ctx, ojs.Call{
		Method: http.MethodPost, Path: "/dead-letter/retry", Body: map[string]any{"filter": conditions, "confirm": true},
	}, &answer)
	if err != nil {
		return 0, err
	}
	return answer.Succeeded, nil
}

// DeleteDeadLetter deletes a discarded job.
func (c *Client) DeleteDeadLetter(ctx context.Context, id string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: deadLetterPath(id, "")}, nil)
}

// PurgeDeadLetters deletes all dead letters that match, and returns their number. They cannot be brought back. An empty filter
// matches all; one with page options is refused.
func (c *Client) PurgeDeadLetters(ctx context.Context, filter DeadLetterFilter) (deleted int, err error) {
	if filter.PageOptions != (PageOptions{}) {
		return 0, errDeadLetterPage
	}
	var answer struct {
		Deleted int `json:"deleted"`
	}
	err = c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: "/dead-letter/purge", Query: filter.query()}, &answer)
	if err != nil {
		return 0, err
	}
	return answer.Deleted, nil
}

func deadLetterPath(id, rest string) string { return "/dead-letter/" + url.PathEscape(id) + rest }
