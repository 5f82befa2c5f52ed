package ojsadmin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// JobFilter chooses jobs of a list. Values of one field are alternatives; fields are conditions that must all hold. Empty ones
// choose everything.
type JobFilter struct {
	States []ojs.JobState
	Queues []string
	Types  []string
	PageOptions
}

// ListJobs lists jobs, newest first. A large job may come without its args, meta and errors; [ojs.Client.GetJob] reads it whole.
func (c *Client) ListJobs(ctx context.Context, filter JobFilter) (*Page[ojs.Job], error) {
	query := filter.PageOptions.query()
	setList(query, "state", filter.States)
	setList(query, "queue", filter.Queues)
	setList(query, "type", filter.Types)
	return list[ojs.Job](ctx, c, get("/jobs", query), "jobs")
}

// WorkflowFilter chooses workflows of a list. All conditions that are set must hold.
type WorkflowFilter struct {
	State ojs.WorkflowState
	Type  string // as in [ojs.WorkflowInfo]
	Name  string
	PageOptions
}

// ListWorkflows lists workflows without their steps, newest first. [ojs.Client.GetWorkflow] reads the steps.
func (c *Client) ListWorkflows(ctx context.Context, filter WorkflowFilter) (*Page[ojs.WorkflowInfo], error) {
	query := filter.PageOptions.query()
	setText(query, "state", filter.State)
	setText(query, "type", filter.Type)
	setText(query, "name", filter.Name)
	return list[ojs.WorkflowInfo](ctx, c, get("/workflows", query), "workflows")
}

// SetPriority changes the priority of a job that is available or scheduled. A job in another state is
// [ojs.ErrInvalidStateTransition].
func (c *Client) SetPriority(ctx context.Context, id string, priority int) (*ojs.Job, error) {
	body := map[string]int{"priority": priority}
	return member[ojs.Job](ctx, c, ojs.Call{Method: http.MethodPatch, Path: jobPath(id, ""), Body: body, Idempotent: true}, "job")
}

func jobPath(id, rest string) string { return "/jobs/" + url.PathEscape(id) + rest }

// Bulk chooses the jobs of a bulk change: those with the IDs, or all that pass the Filter, of which one call takes the oldest
// 10 000. IDs and Filter exclude each other.
type Bulk struct {
	IDs    []string
	Filter *BulkFilter
	// With Atomic, one job that cannot be changed leaves all as they are: their items are rolled_back, and Succeeded is 0.
	Atomic bool
}

// BulkFilter chooses jobs. All conditions that are set must hold, and one must be set.
type BulkFilter struct {
	Type           string         `json:"type,omitempty"` // may end in *
	Queue          string         `json:"queue,omitempty"`
	States         []ojs.JobState `json:"state,omitempty"`
	Priority       *int           `json:"priority,omitempty"`
	Meta           map[string]any `json:"meta,omitempty"` // each member is equal in the job
	EnqueuedBefore time.Time      `json:"enqueued_before,omitzero"`
	EnqueuedAfter  time.Time      `json:"enqueued_after,omitzero"`
}

// BulkChange is the outcome of a bulk change.
type BulkChange struct {
	Matched   int              `json:"total_matched"`
	Succeeded int              `json:"succeeded"`
	Skipped   int              `json:"skipped"`
	HasMore   bool             `json:"has_more"` // more jobs pass the filter: call again until it is false
	Items     []BulkChangeItem `json:"items"`
}

// BulkChangeItem is the outcome for one job.
type BulkChangeItem struct {
	JobID  string `json:"job_id"`
	Status string `json:"status"` // cancelled, retried, deleted, skipped, rolled_back
	Reason string `json:"reason"` // of a job that was skipped
}

// CancelJobs cancels jobs that wait. Without states the filter takes available and scheduled ones. Active jobs are skipped;
// cancel those one by one, with [ojs.Client.CancelJob].
func (c *Client) CancelJobs(ctx context.Context, jobs Bulk) (*BulkChange, error) {
	return c.changeJobs(ctx, "cancel", jobs)
}

// RetryJobs makes discarded jobs, and those in backoff, available. Without states the filter takes discarded ones.
// A job whose unique key another job has is skipped.
func (c *Client) RetryJobs(ctx context.Context, jobs Bulk) (*BulkChange, error) {
	return c.changeJobs(ctx, "retry", jobs)
}

// DeleteJobs deletes jobs that have ended. The filter must have states. Ids of deleted jobs are free again.
func (c *Client) DeleteJobs(ctx context.Context, jobs Bulk) (*BulkChange, error) {
	return c.changeJobs(ctx, "delete", jobs)
}

// changeJobs makes a new key for each call, which lets the client repeat it after a lost answer without changing more jobs than the first
// try did.
func (c *Client) changeJobs(ctx context.Context, action string, jobs Bulk) (*BulkChange, error) {
	body := struct {
		IDs       []string    `json:"job_ids,omitempty"`
		Filter    *BulkFilter `json:"filter,omitempty"`
		Atomicity string      `json:"atomicity,omitempty"`
	}{IDs: jobs.IDs, Filter: jobs.Filter}
	if jobs.Atomic {
		body.Atomicity = "atomic"
	}
	return object[BulkChange](ctx, c, ojs.Call{
		Method: http.MethodPost, Path: "/jobs/bulk/" + action, Body: body,
		Header: http.Header{"Idempotency-Key": {ojs.NewID()}}, Idempotent: true,
		Accept: http.StatusUnprocessableEntity, // an answer like the others, if no job was changed
	})
}

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

// JobHistory lists the changes of state and the attempts of a job, the oldest first. Pages go on by cursor.
// The server keeps records as long as events, so the history of an old job may begin in the middle.
func (c *Client) JobHistory(ctx context.Context, id string, page PageOptions) (*Page[HistoryRecord], error) {
	return c.history(ctx, get(jobPath(id, "/history"), page.query()))
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
// A page may be short, or empty, although NextCursor is set, because the server reads only a part of the log for each page.
func (c *Client) History(ctx context.Context, filter HistoryFilter) (*Page[HistoryRecord], error) {
	query := filter.PageOptions.query()
	setTime(query, "start", filter.Start)
	setTime(query, "end", filter.End)
	setList(query, "event_types", filter.Types)
	setList(query, "queues", filter.Queues)
	setList(query, "job_types", filter.JobTypes)
	setList(query, "actor_type", filter.ActorTypes)
	return c.history(ctx, get("/history", query))
}

// history reads a list that has a cursor and no pagination.
func (c *Client) history(ctx context.Context, call ojs.Call) (*Page[HistoryRecord], error) {
	var answer struct {
		Events     []HistoryRecord `json:"events"`
		NextCursor string          `json:"next_cursor"`
		Total      int             `json:"total"`
		Estimate   int             `json:"total_estimate"`
	}
	if err := c.client.Do(ctx, call, &answer); err != nil {
		return nil, err
	}
	return &Page[HistoryRecord]{
		Items: answer.Events, Total: max(answer.Total, answer.Estimate), HasMore: answer.NextCursor != "", NextCursor: answer.NextCursor,
	}, nil
}

// Explanation is why a job is not running.
type Explanation struct {
	JobID    string          `json:"job_id"`
	State    ojs.JobState    `json:"state"`
	Queue    string          `json:"queue"`
	Running  bool            `json:"running"`
	Summary  string          `json:"summary"` // of the first reason
	Reasons  []ExplainReason `json:"reasons"`
	Estimate *struct {
		WaitSeconds float64   `json:"wait_seconds"`
		StartsAt    time.Time `json:"starts_at"`
	} `json:"estimate"` // nil: there is none
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

// Explain asks why a job is not running. The answer is of the present state only; a moment later the reason may be another.
func (c *Client) Explain(ctx context.Context, id string) (*Explanation, error) {
	return object[Explanation](ctx, c, get(jobPath(id, "/explain"), nil))
}
