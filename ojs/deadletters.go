package ojs

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"
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
	query := url.Values{}
	setText(query, "queue", strings.Join(f.Queues, ","))
	setText(query, "type", strings.Join(f.Types, ","))
	setText(query, "error_type", strings.Join(f.ErrorTypes, ","))
	setText(query, "error_code", strings.Join(f.ErrorCodes, ","))
	setTime(query, "since", f.Since)
	setTime(query, "until", f.Until)
	f.set(query)
	return query
}

// ListDeadLetters lists jobs that have failed for good, the latest first.
func (c *Client) ListDeadLetters(ctx context.Context, filter DeadLetterFilter) (*Page[JobInfo], error) {
	return list[JobInfo](ctx, c, "/dead-letter", filter.query(), "jobs")
}

// GetDeadLetter reads a discarded job.
func (c *Client) GetDeadLetter(ctx context.Context, id string) (*JobInfo, error) {
	return c.jobCall(ctx, get(deadLetterPath(id), nil))
}

// RetryDeadLetter makes a discarded job available again, with all its attempts. The request is not repeated after a lost
// answer: read the job to find out.
func (c *Client) RetryDeadLetter(ctx context.Context, id string) (*JobInfo, error) {
	return c.jobCall(ctx, post(deadLetterPath(id)+"/retry", nil))
}

// RetryDeadLetters makes all dead letters that match available again, and says how many they were.
func (c *Client) RetryDeadLetters(ctx context.Context, filter DeadLetterFilter) (retried int, err error) {
	members := map[string]string{}
	for name, values := range filter.query() {
		members[name] = values[0]
	}
	var answer struct {
		Succeeded int `json:"succeeded"`
	}
	err = c.do(ctx, post("/dead-letter/retry", map[string]any{"filter": members, "confirm": true}), &answer)
	return answer.Succeeded, err
}

// DeleteDeadLetter deletes a discarded job.
func (c *Client) DeleteDeadLetter(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: deadLetterPath(id)}, nil)
}

// PurgeDeadLetters deletes all dead letters that match, and says how many they were. They cannot be brought back. An empty
// filter matches all.
func (c *Client) PurgeDeadLetters(ctx context.Context, filter DeadLetterFilter) (deleted int, err error) {
	var answer struct {
		Deleted int `json:"deleted"`
	}
	err = c.do(ctx, call{method: http.MethodPost, path: "/dead-letter/purge", query: filter.query()}, &answer)
	return answer.Deleted, err
}

func deadLetterPath(id string) string { return "/dead-letter/" + url.PathEscape(id) }
