package ojs

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Pool says what a group of workers fetches. See docs/reference/fairness.md, Pools.
type Pool struct {
	Name        string         `json:"name,omitempty"`
	Queues      []string       `json:"queues"`
	Concurrency int            `json:"concurrency,omitempty"` // most active jobs over all its workers; 0: no limit
	Strategy    string         `json:"strategy,omitempty"`
	Weights     map[string]int `json:"weights,omitempty"`
	Isolated    bool           `json:"isolated,omitempty"` // other fetches get nothing from its queues
	Starvation  *Starvation    `json:"starvation_prevention,omitempty"`
}

// Starvation has a queue served that the strategy leaves behind.
type Starvation struct {
	Enabled          bool    `json:"enabled"`
	RotationInterval string  `json:"rotation_interval,omitempty"` // ISO 8601
	MinDispatchRatio float64 `json:"min_dispatch_ratio,omitempty"`
}

// PoolInfo is what the server says of a pool.
type PoolInfo struct {
	Pool
	Workers    int       `json:"workers"`
	ActiveJobs int       `json:"active_jobs"`
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
}

func (c *Client) poolCall(ctx context.Context, r call) (*PoolInfo, error) {
	var answer struct {
		Pool *PoolInfo `json:"pool"`
	}
	if err := c.do(ctx, r, &answer); err != nil {
		return nil, err
	}
	if answer.Pool == nil {
		return nil, noMember(r.method, r.path, "pool")
	}
	return answer.Pool, nil
}

// PutPool makes a pool, or replaces the one with its name. It replaces the whole definition: what p leaves out has its default
// again.
func (c *Client) PutPool(ctx context.Context, p Pool) (*PoolInfo, error) {
	path := poolPath(p.Name)
	p.Name = ""
	return c.poolCall(ctx, call{method: http.MethodPut, path: path, body: p, repeatable: true})
}

// GetPool reads a pool.
func (c *Client) GetPool(ctx context.Context, name string) (*PoolInfo, error) {
	return c.poolCall(ctx, get(poolPath(name), nil))
}

// ListPools lists pools by name.
func (c *Client) ListPools(ctx context.Context, page PageOptions) (*Page[PoolInfo], error) {
	query := url.Values{}
	page.set(query)
	return list[PoolInfo](ctx, c, "/admin/pools", query, "pools", "items")
}

// DeletePool removes a pool. Active jobs go on.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: poolPath(name)}, nil)
}

func poolPath(name string) string { return "/admin/pools/" + url.PathEscape(name) }
