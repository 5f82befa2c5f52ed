package ojs

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// QueueDetails are what the server says of one queue.
type QueueDetails struct {
	QueueInfo
	Depth     int         `json:"depth"` // available jobs
	Running   int         `json:"running"`
	Config    QueueConfig `json:"config"`
	CreatedAt time.Time   `json:"created_at"`
}

// QueueConfig is the configuration of a queue as the server reads and writes it, by the names of docs/reference/queues.md, Configuration,
// such as concurrency, rate_limit, backpressure, retention.
type QueueConfig map[string]any

// GetQueue reads a queue. A queue that does not exist is [ErrNotFound].
func (c *Client) GetQueue(ctx context.Context, name string) (*QueueDetails, error) {
	q := &QueueDetails{}
	return q, c.do(ctx, get(queuePath(name, ""), nil), q)
}

// CreateQueue makes a queue. Jobs make theirs by themselves. One that exists is [ErrInvalidStateTransition];
// [Client.ConfigureQueue] changes it.
func (c *Client) CreateQueue(ctx context.Context, name string, config QueueConfig) error {
	return c.do(ctx, post("/queues", map[string]any{"name": name, "config": config}), nil)
}

// QueueConfig reads the configuration of a queue; that of _default holds for all.
func (c *Client) QueueConfig(ctx context.Context, name string) (QueueConfig, error) {
	return c.queueConfig(ctx, get(queuePath(name, "/config"), nil))
}

// ConfigureQueue changes what is set in config. nil as a value removes a setting.
func (c *Client) ConfigureQueue(ctx context.Context, name string, config QueueConfig) (QueueConfig, error) {
	return c.queueConfig(ctx, call{method: http.MethodPut, path: queuePath(name, "/config"), body: config, repeatable: true})
}

func (c *Client) queueConfig(ctx context.Context, r call) (QueueConfig, error) {
	var answer struct {
		Config QueueConfig `json:"config"`
	}
	err := c.do(ctx, r, &answer)
	return answer.Config, err
}

// DrainQueue has a queue refuse new jobs, while those that it has go on. It returns how many have not ended.
// New jobs are refused with [ErrQueuePaused]. [Client.ResumeQueue] ends it. A queue that is being deleted is
// refused with [ErrInvalidStateTransition].
func (c *Client) DrainQueue(ctx context.Context, name string) (remaining int, err error) {
	var answer struct {
		Remaining int `json:"remaining"`
	}
	err = c.do(ctx, post(queuePath(name, "/drain"), nil).again(), &answer)
	return answer.Remaining, err
}

// PurgeQueue deletes the jobs of a queue that are in one of the states. Those that have not ended are cancelled before; active is refused. Call it
// again while more is true. One call takes a bounded number of jobs. After a lost answer it is not repeated; calling it again
// does no harm.
func (c *Client) PurgeQueue(ctx context.Context, name string, states ...JobState) (deleted int, more bool, err error) {
	var answer struct {
		Deleted int  `json:"deleted"`
		HasMore bool `json:"has_more"`
	}
	err = c.do(ctx, post(queuePath(name, "/purge"), map[string]any{"states": states, "confirm": true}), &answer)
	return answer.Deleted, answer.HasMore, err
}

// What becomes of the waiting jobs of a queue that is deleted.
const (
	DeleteIfEmpty  = "reject" // the queue stays if it has any
	DeleteDiscards = "discard"
	DeleteMoves    = "move" // to another queue
)

// DeleteQueue deletes a queue. target is for DeleteMoves. With active jobs done is false: the queue goes when they have ended.
// strategy is one of the three constants above (docs/reference/queues.md, Deletion).
func (c *Client) DeleteQueue(ctx context.Context, name, strategy, target string) (done bool, err error) {
	query := url.Values{"strategy": {strategy}}
	setText(query, "target_queue", target)
	var answer struct {
		State string `json:"state"`
	}
	err = c.do(ctx, call{method: http.MethodDelete, path: queuePath(name, ""), query: query}, &answer)
	return answer.State == "deleted", err
}

// PriorityCount is the number of available jobs of a priority.
type PriorityCount struct {
	Priority int `json:"priority"`
	Count    int `json:"count"`
}

// QueuePriorities counts the available jobs of a queue by priority, the highest first.
func (c *Client) QueuePriorities(ctx context.Context, name string) ([]PriorityCount, error) {
	var answer struct {
		Distribution []PriorityCount `json:"distribution"`
	}
	err := c.do(ctx, get(queuePath(name, "/priority-stats"), nil), &answer)
	return answer.Distribution, err
}

// SetPriority changes the priority of a job that is available or scheduled. A job in another state is
// [ErrInvalidStateTransition].
func (c *Client) SetPriority(ctx context.Context, id string, priority int) (*JobInfo, error) {
	return c.jobCall(ctx, call{method: http.MethodPatch, path: jobPath(id), body: map[string]int{"priority": priority}, repeatable: true})
}
