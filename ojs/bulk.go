package ojs

import (
	"context"
	"maps"
	"net/http"
	"time"
)

// Bulk chooses the jobs of a bulk change: those with the IDs, or all that pass the Filter, of which one call takes the oldest 10 000.
// IDs and Filter exclude each other.
type Bulk struct {
	IDs    []string
	Filter *BulkFilter
	// With Atomic, one job that cannot be changed leaves all as they are: their items are rolled_back, and Succeeded is 0.
	Atomic bool // all jobs or none
}

// BulkFilter chooses jobs. All conditions that are set must hold, and one must be.
type BulkFilter struct {
	Type           string // may end in *
	Queue          string
	States         []JobState
	Priority       *int
	Meta           map[string]any // each member is equal in the job
	EnqueuedBefore time.Time
	EnqueuedAfter  time.Time
}

func (f *BulkFilter) wire() map[string]any {
	o := optionSet{}
	o.text("type", f.Type)
	o.text("queue", f.Queue)
	if len(f.States) > 0 {
		o["state"] = f.States
	}
	if f.Priority != nil {
		o["priority"] = *f.Priority
	}
	if len(f.Meta) > 0 {
		o["meta"] = f.Meta
	}
	o.time("enqueued_before", f.EnqueuedBefore)
	o.time("enqueued_after", f.EnqueuedAfter)
	return o
}

// BulkChange is what became of the jobs of a bulk change. With HasMore, call again until it is false.
type BulkChange struct {
	Matched   int              `json:"total_matched"`
	Succeeded int              `json:"succeeded"`
	Skipped   int              `json:"skipped"`
	HasMore   bool             `json:"has_more"` // more jobs pass the filter
	Items     []BulkChangeItem `json:"items"`
}

// BulkChangeItem is what became of one job.
type BulkChangeItem struct {
	JobID  string `json:"job_id"`
	Status string `json:"status"` // cancelled, retried, deleted, skipped, rolled_back
	Reason string `json:"reason"` // of a job that was skipped
}

// CancelJobs cancels jobs that wait. Without states the filter takes available and scheduled ones. Active jobs are skipped;
// cancel those one by one, with [Client.Cancel].
func (c *Client) CancelJobs(ctx context.Context, jobs Bulk) (*BulkChange, error) {
	return c.bulkChange(ctx, "cancel", jobs)
}

// RetryJobs makes discarded jobs, and those in backoff, available. Without states the filter takes discarded ones.
// A job whose unique key another job has is skipped.
func (c *Client) RetryJobs(ctx context.Context, jobs Bulk) (*BulkChange, error) {
	return c.bulkChange(ctx, "retry", jobs)
}

// DeleteJobs deletes jobs that have ended. The filter must have states. Ids of deleted jobs are free again.
func (c *Client) DeleteJobs(ctx context.Context, jobs Bulk) (*BulkChange, error) {
	return c.bulkChange(ctx, "delete", jobs)
}

// A new key for each call lets the client repeat it after a lost answer without changing more jobs than the first try did.
func (c *Client) bulkChange(ctx context.Context, action string, jobs Bulk) (*BulkChange, error) {
	body := map[string]any{}
	if jobs.Filter != nil {
		body["filter"] = jobs.Filter.wire()
	}
	if len(jobs.IDs) > 0 {
		body["job_ids"] = jobs.IDs
	}
	if jobs.Atomic {
		body["atomicity"] = "atomic"
	}
	r := post("/jobs/bulk/"+action, body).again() // the key has a repetition answered as the first time
	r.header = http.Header{"Idempotency-Key": {NewID()}}
	r.accept = http.StatusUnprocessableEntity // an answer like the others, if no job was changed
	change := &BulkChange{}
	return change, c.do(ctx, r, change)
}

// JobOverride is what changes of a discarded job that is retried. Zero fields stay as they are.
type JobOverride struct {
	Queue    string
	Args     any // see Arguments in the package documentation
	Priority *int
	Meta     map[string]any // merged member by member
	Retry    *RetryPolicy   // merged field by field
}

func (o JobOverride) wire() (map[string]any, error) {
	m := optionSet{}
	m.text("queue", o.Queue)
	if o.Args != nil {
		args, err := encodeArgs(o.Args)
		if err != nil {
			return nil, err
		}
		m["args"] = args
	}
	if o.Priority != nil {
		m["priority"] = *o.Priority
	}
	if len(o.Meta) > 0 {
		m["meta"] = maps.Clone(o.Meta)
	}
	if o.Retry != nil {
		m["retry"] = o.Retry.wire()
	}
	return m, nil
}

// RetryDeadLetterWith is [Client.RetryDeadLetter] for a job that is to run with other arguments, or elsewhere.
func (c *Client) RetryDeadLetterWith(ctx context.Context, id string, override JobOverride) (*JobInfo, error) {
	o, err := override.wire()
	if err != nil {
		return nil, err
	}
	return c.jobCall(ctx, post(deadLetterPath(id)+"/retry", map[string]any{"override": o}))
}
