package ojsadmin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// WorkerInfo is an entry of the registry of workers. State is what the worker has reported last, or stale after too long without
// a heartbeat. Directive is what an operator has set; "": nothing.
type WorkerInfo struct {
	ID              string        `json:"id"`
	State           string        `json:"state"` // running, quiet, terminate, stale
	Directive       ojs.Directive `json:"directive"`
	Queues          []string      `json:"queues"`
	Concurrency     int           `json:"concurrency"`
	ActiveJobs      int           `json:"active_jobs"`
	Hostname        string        `json:"hostname"`
	PID             int           `json:"pid"`
	LastHeartbeatAt time.Time     `json:"last_heartbeat_at"`
}

// ListWorkers lists the workers that the server knows. A worker that stops properly leaves the list; one without heartbeats stays
// in it as stale for an hour.
func (c *Client) ListWorkers(ctx context.Context, page PageOptions) (*Page[WorkerInfo], error) {
	return list[WorkerInfo](ctx, c, get("/workers", page.query()), "items", "workers")
}

// DirectWorker sets the directive of a worker, which gets it with its next heartbeat. [ojs.DirectiveTerminate] cannot be taken
// back for a worker of package ojs: it stops.
func (c *Client) DirectWorker(ctx context.Context, id string, directive ojs.Directive) error {
	body := map[string]ojs.Directive{"directive": directive}
	return c.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: "/admin/workers/" + url.PathEscape(id) + "/directive", Body: body,
		Idempotent: true}, nil)
}

// Pool defines what a group of workers fetches (docs/reference/fairness.md, Pools).
type Pool struct {
	Name        string         `json:"name,omitempty"`
	Queues      []string       `json:"queues"`
	Concurrency int            `json:"concurrency,omitempty"` // most active jobs over all its workers; 0: no limit
	Strategy    string         `json:"strategy,omitempty"`    // strict, round-robin (default), weighted, least-loaded
	Weights     map[string]int `json:"weights,omitempty"`
	Isolated    bool           `json:"isolated,omitempty"` // other fetches get nothing from its queues
	Starvation  *Starvation    `json:"starvation_prevention,omitempty"`
}

// Starvation gives the next slot to a queue that the strategy leaves behind. Zero fields have the server's defaults.
type Starvation struct {
	Enabled          bool    `json:"enabled"`
	RotationInterval string  `json:"rotation_interval,omitempty"` // ISO 8601
	MinDispatchRatio float64 `json:"min_dispatch_ratio,omitempty"`
}

// PoolInfo is what the server shows of a pool.
type PoolInfo struct {
	Pool
	Workers    int       `json:"workers"`
	ActiveJobs int       `json:"active_jobs"`
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
}

// PutPool makes a pool, or replaces the one with its name. It replaces the whole definition: what p leaves out has its default
// again.
func (c *Client) PutPool(ctx context.Context, p Pool) (*PoolInfo, error) {
	path := poolPath(p.Name)
	p.Name = ""
	return member[PoolInfo](ctx, c, ojs.Call{Method: http.MethodPut, Path: path, Body: p, Idempotent: true}, "pool")
}

// GetPool reads a pool.
func (c *Client) GetPool(ctx context.Context, name string) (*PoolInfo, error) {
	return member[PoolInfo](ctx, c, get(poolPath(name), nil), "pool")
}

// ListPools lists pools by name.
func (c *Client) ListPools(ctx context.Context, page PageOptions) (*Page[PoolInfo], error) {
	return list[PoolInfo](ctx, c, get("/admin/pools", page.query()), "pools", "items")
}

// DeletePool removes a pool. Active jobs go on.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: poolPath(name)}, nil)
}

func poolPath(name string) string { return "/admin/pools/" + url.PathEscape(name) }
