package ojs

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"
)

// HistoryRecord is an entry of the history of a job. ID is the id of the event, and Data depends on Type
// (docs/reference/jobs.md, History).
type HistoryRecord struct {
	ID        string    `json:"id"`
	JobID     string    `json:"job_id"`
	Type      string    `json:"event_type"` // job.created, job.attempt_started, job.state_changed and the like
	Timestamp time.Time `json:"timestamp"`
	Actor     struct {
		Type string `json:"type"` // worker, client, system, user
		ID   string `json:"id"`
	} `json:"actor"`
	Data json.RawMessage `json:"data"`
}

// historyAnswer is a list that has only a cursor.
type historyAnswer struct {
	Events     []HistoryRecord `json:"events"`
	NextCursor string          `json:"next_cursor"`
	Total      int             `json:"total"`
	Estimate   int             `json:"total_estimate"`
}

func (c *Client) history(ctx context.Context, path string, query url.Values) (*Page[HistoryRecord], error) {
	var a historyAnswer
	if err := c.do(ctx, get(path, query), &a); err != nil {
		return nil, err
	}
	return &Page[HistoryRecord]{Items: a.Events, Total: max(a.Total, a.Estimate), HasMore: a.NextCursor != "", NextCursor: a.NextCursor}, nil
}

// JobHistory lists the changes of state and the attempts of a job, the oldest first. Pages go on by cursor.
// It ends with the retention of events, so the history of an old job may begin in the middle.
func (c *Client) JobHistory(ctx context.Context, id string, page PageOptions) (*Page[HistoryRecord], error) {
	query := url.Values{}
	page.set(query)
	return c.history(ctx, jobPath(id, "history"), query)
}

// HistoryFilter chooses records of the history of all jobs. All conditions that are set must hold.
type HistoryFilter struct {
	Start, End time.Time
	Types      []string // of records
	Queues     []string
	JobTypes   []string
	ActorTypes []string
	PageOptions
}

// History lists the changes of state and the attempts of all jobs, the newest first. Pages go on by cursor; Total is estimated.
// A page may be short, or empty, although NextCursor leads on: only a part of the log is looked at for each.
func (c *Client) History(ctx context.Context, filter HistoryFilter) (*Page[HistoryRecord], error) {
	query := url.Values{}
	setTime(query, "start", filter.Start)
	setTime(query, "end", filter.End)
	setText(query, "event_types", strings.Join(filter.Types, ","))
	setText(query, "queues", strings.Join(filter.Queues, ","))
	setText(query, "job_types", strings.Join(filter.JobTypes, ","))
	setText(query, "actor_type", strings.Join(filter.ActorTypes, ","))
	filter.set(query)
	return c.history(ctx, "/history", query)
}

// Explanation says why a job is not running.
type Explanation struct {
	JobID    string          `json:"job_id"`
	State    JobState        `json:"state"`
	Queue    string          `json:"queue"`
	Running  bool            `json:"running"`
	Summary  string          `json:"summary"` // of the first reason
	Reasons  []ExplainReason `json:"reasons"`
	Estimate *struct {
		WaitSeconds float64   `json:"wait_seconds"`
		StartsAt    time.Time `json:"starts_at"`
	} `json:"estimate"` // nil: nothing can be said
	Deadline time.Time `json:"deadline"` // the job is discarded if it has not started by then
}

// ExplainReason is one reason. Raw has the members that only some codes have.
type ExplainReason struct {
	Code    string // queue_paused, limited, no_workers, scheduled, … (docs/reference/jobs.md, Explain)
	Message string
	Raw     json.RawMessage
}

// UnmarshalJSON keeps the whole object.
func (r *ExplainReason) UnmarshalJSON(data []byte) error {
	var wire struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	err := json.Unmarshal(data, &wire)
	*r = ExplainReason{wire.Code, wire.Message, append(json.RawMessage{}, data...)}
	return err
}

// Explain asks why a job is not running. It reads the present state only, and changes nothing; a moment later the reason may be
// another.
func (c *Client) Explain(ctx context.Context, id string) (*Explanation, error) {
	e := &Explanation{}
	return e, c.do(ctx, get(jobPath(id, "explain"), nil), e)
}
