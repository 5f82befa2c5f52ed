package ojsadmin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// QueueInfo is an entry of the list of queues.
type QueueInfo struct {
	Name   string `json:"name"`
	Status string `json:"status"` // active, paused or draining
	Paused bool   `json:"paused"`
}

// QueueDetails are what the server shows of one queue.
type QueueDetails struct {
	QueueInfo
	Depth     int         `json:"depth"` // available jobs
	Running   int         `json:"running"`
	Config    QueueConfig `json:"config"`
	CreatedAt time.Time   `json:"created_at"`
}

// QueueConfig is the configuration of a queue as the server reads and writes it, by the names of docs/reference/queues.md,
// Configuration, such as concurrency, rate_limit, backpressure, retention.
type QueueConfig map[string]any

// ListQueues lists the queues by name.
func (c *Client) ListQueues(ctx context.Context, page PageOptions) (*Page[QueueInfo], error) {
	return list[QueueInfo](ctx, c, get("/queues", page.query()), "queues")
}

// GetQueue reads a queue. A queue that does not exist is [ojs.ErrNotFound].
func (c *Client) GetQueue(ctx context.Context, name string) (*QueueDetails, error) {
	return object[QueueDetails](ctx, c, get(queuePath(name, ""), nil))
}

// CreateQueue makes a queue. An enqueue makes the queue of its job by itself. One that exists is [ojs.ErrQueueExists];
// [Client.ConfigureQueue] changes it.
func (c *Client) CreateQueue(ctx context.Context, name string, config QueueConfig) error {
	body := map[string]any{"name": name, "config": config}
	return c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: "/queues", Body: body}, nil)
}

// QueueConfig reads the configuration of a queue; that of _default holds for all.
func (c *Client) QueueConfig(ctx context.Context, name string) (QueueConfig, error) {
	return c.queueConfig(ctx, get(queuePath(name, "/config"), nil))
}

// ConfigureQueue changes what is set in config. nil as a value removes a setting.
func (c *Client) ConfigureQueue(ctx context.Context, name string, config QueueConfig) (QueueConfig, error) {
	return c.queueConfig(ctx, ojs.Call{Method: http.MethodPut, Path: queuePath(name, "/config"), Body: config, Idempotent: true})
}

func (c *Client) queueConfig(ctx context.Context, call ojs.Call) (QueueConfig, error) {
	var answer struct {
		Config QueueConfig `json:"config"`
	}
	err := c.client.Do(ctx, call, &answer)
	if err != nil {
		return nil, err
	}
	return answer.Config, nil
}

// PauseQueue stops the fetches from a queue, if the server can. Jobs that run go on, and new ones are taken. Pausing a paused
// queue changes nothing. A queue that is being deleted is refused with [ojs.ErrInvalidStateTransition].
func (c *Client) PauseQueue(ctx context.Context, name string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: queuePath(name, "/pause"), Idempotent: true}, nil)
}

// ResumeQueue ends a pause or a drain. Fetches that wait get the jobs of the queue at once.
func (c *Client) ResumeQueue(ctx context.Context, name string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: queuePath(name, "/resume"), Idempotent: true}, nil)
}

// DrainQueue has a queue refuse new jobs with [ojs.ErrQueuePaused], while those that it has go on. It returns how many have not
// ended. [Client.ResumeQueue] ends it. A queue that is being deleted is refused with [ojs.ErrInvalidStateTransition].
func (c *Client) DrainQueue(ctx context.Context, name string) (remaining int, err error) {
	var answer struct {
		Remaining int `json:"remaining"`
	}
	err = c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: queuePath(name, "/drain"), Idempotent: true}, &answer)
	if err != nil {
		return 0, err
	}
	return answer.Remaining, nil
}

// PurgeQueue deletes the jobs of a queue that are in one of the states. Those that have not ended are cancelled before; active is
// refused. One call takes a bounded number of jobs: call it again while more is true. After a lost answer it is not repeated;
// calling it again does no harm.
func (c *Client) PurgeQueue(ctx context.Context, name string, states ...ojs.JobState) (deleted int, more bool, err error) {
	var answer struct {
		Deleted int  `json:"deleted"`
		HasMore bool `json:"has_more"`
	}
	body := map[string]any{"states": states, "confirm": true}
	err = c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: queuePath(name, "/purge"), Body: body}, &answer)
	if err != nil {
		return 0, false, err
	}
	return answer.Deleted, answer.HasMore, nil
}

// DeleteStrategy chooses the outcome for the waiting jobs of a queue that is deleted (docs/reference/queues.md, Deletion).
type DeleteStrategy string

// The strategies of deletion.
const (
	DeleteIfEmpty  DeleteStrategy = "reject" // the queue stays if it has any, or an active job
	DeleteDiscards DeleteStrategy = "discard"
	DeleteMoves    DeleteStrategy = "move" // to another queue
)

// DeleteQueue deletes a queue. target is for DeleteMoves. With active jobs done is false: the server deletes the queue when they
// have ended.
func (c *Client) DeleteQueue(ctx context.Context, name string, strategy DeleteStrategy, target string) (done bool, err error) {
	query := url.Values{}
	setText(query, "strategy", strategy)
	setText(query, "target_queue", target)
	var answer struct {
		State string `json:"state"`
	}
	err = c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: queuePath(name, ""), Query: query}, &answer)
	if err != nil {
		return false, err
	}
	return answer.State == "deleted", nil
}

func queuePath(name, rest string) string { return "/queues/" + url.PathEscape(name) + rest }
