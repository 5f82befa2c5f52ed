package ojs

import (
	"context"
	"net/url"
	"time"
)

// WorkerInfo is an entry of the registry of workers.
type WorkerInfo struct {
	ID              string    `json:"id"`
	State           string    `json:"state"` // running, quiet, terminate, stale
	Directive       string    `json:"directive"`
	Queues          []string  `json:"queues"`
	Concurrency     int       `json:"concurrency"`
	ActiveJobs      int       `json:"active_jobs"`
	Hostname        string    `json:"hostname"`
	PID             int       `json:"pid"`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
}

// Directives for workers.
const (
	DirectiveRunning   = "running"
	DirectiveQuiet     = "quiet"     // fetch no more, finish what is in hand
	DirectiveTerminate = "terminate" // finish and stop
)

// ListWorkers lists the workers that the server knows. A worker that has stopped properly leaves the list; one that fell silent
// stays in it as stale for a time.
func (c *Client) ListWorkers(ctx context.Context, page PageOptions) (*Page[WorkerInfo], error) {
	query := url.Values{}
	page.set(query)
	return list[WorkerInfo](ctx, c, "/workers", query, "items", "workers")
}

// DirectWorker tells a worker what to do; it learns of it with its next heartbeat. directive is one of the constants above.
// [DirectiveTerminate] cannot be taken back for a worker of this SDK: it stops.
func (c *Client) DirectWorker(ctx context.Context, id, directive string) error {
	return c.do(ctx, post("/admin/workers/"+url.PathEscape(id)+"/directive", map[string]string{"directive": directive}).again(), nil)
}
