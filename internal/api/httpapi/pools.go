package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/pool"
	"github.com/ojsd/ojsd/internal/spec"
)

// poolRoutes are those of docs/reference/fairness.md, Pools and Statistics.
// All of them are for operators: pools and their queues are shared by tenants.
func (a *API) poolRoutes() []route {
	return []route{
		{"GET", "/admin/pools", api.Operators, noBody, paging, a.listPools},
		{"GET", "/admin/pools/:name", api.Operators, noBody, "", about(poolName, a.getPool)},
		{"PUT", "/admin/pools/:name", api.Operators, oneBody, "", a.putPool},
		{"DELETE", "/admin/pools/:name", api.Operators, noBody, "", about(poolName, a.deletePool)},
		{"GET", "/admin/scheduling/stats", api.Operators, noBody, "", a.getSchedulingStats},
	}
}

// shownPool is a pool in an answer.
// ID repeats Name. Concurrency is null without a limit. Weights is {} rather than null, because the admin UI reads its
// members. Workers and ActiveWorkers are equal: living workers that have named the pool. For ActiveJobs see
// docs/reference/fairness.md, Pools: its meaning depends on Concurrency.
type shownPool struct {
	ID            string           `json:"id"`
	Name          string           `json:"name"`
	Queues        []string         `json:"queues"`
	Concurrency   *int32           `json:"concurrency"`
	Strategy      string           `json:"strategy"`
	Weights       map[string]int64 `json:"weights"`
	Isolated      bool             `json:"isolated"`
	Starvation    pool.Starvation  `json:"starvation_prevention"`
	ActiveWorkers int64            `json:"active_workers"`
	Workers       int64            `json:"workers"`
	ActiveJobs    int64            `json:"active_jobs"`
	CreatedAt     string           `json:"created_at"`
	UpdatedAt     string           `json:"updated_at"`
}

func showPool(p *pool.Shown) shownPool {
	s := shownPool{
		ID: p.Name, Name: p.Name, Queues: p.Queues, Strategy: p.Strategy, Weights: p.Weights, Isolated: p.Isolated, Starvation: p.Starvation,
		ActiveWorkers: p.Workers, Workers: p.Workers, ActiveJobs: p.ActiveJobs, CreatedAt: spec.FormatTime(p.CreatedAt), UpdatedAt: spec.FormatTime(p.UpdatedAt),
	}
	if p.Concurrency > 0 {
		s.Concurrency = &p.Concurrency
	}
	if s.Weights == nil {
		s.Weights = map[string]int64{}
	}
	return s
}

// poolName reads the name in the path; what is no name is an unknown pool.
// PUT does not use it: there a malformed name is 400.
func poolName(c echo.Context) (string, error) {
	name := param(c, "name")
	if !pool.ValidName(name) {
		return "", spec.NotFound("pool", name)
	}
	return name, nil
}

// All pools are read, at most 1 000, and cut here. items and pools are the same list for two clients.
func (a *API) listPools(r *request) error {
	page := r.numberedPage(defaultAdminPage, maxAdminPage)
	if r.err != nil {
		return r.err
	}
	all, err := a.Pools.List(r.Request().Context())
	if err != nil {
		return err
	}
	first := min(page.offset, len(all))
	shown := make([]shownPool, 0, page.limit)
	for i := range all[first:min(first+page.limit, len(all))] {
		shown = append(shown, showPool(&all[first+i]))
	}
	return r.answer(http.StatusOK, object{{"items", shown}, {"pools", shown}, {"pagination", page.shownNumbered(int64(len(all)), len(shown))}})
}

func (a *API) getPool(r *request, name string) error {
	p, err := a.Pools.Get(r.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"pool": showPool(p)})
}

// putPool replaces the whole definition and is idempotent. Parked fetches of all nodes are decided again within a second.
func (a *API) putPool(r *request) error {
	name := param(r, "name")
	if !pool.ValidName(name) {
		return spec.InvalidPayload("name", "a pool name", nil, "The name in the path must be letters, digits, ., _ and -, at most 128 bytes long.")
	}
	// All problems of the body are listed.
	definition, wire := pool.Decode(r.body)
	if wire != nil {
		return wire
	}
	p, created, err := a.Pools.Put(r.Request().Context(), name, definition)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		r.Response().Header().Set("Location", "/ojs/v1/admin/pools/"+name)
	}
	return sendJSON(r, status, map[string]any{"pool": showPool(p)})
}

// deletePool is 404 for an unknown pool, so a repetition is, too. Jobs that were fetched through the pool go on.
func (a *API) deletePool(r *request, name string) error {
	if err := a.Pools.Delete(r.Request().Context(), name); err != nil {
		return err
	}
	return r.NoContent(http.StatusNoContent)
}

// schedulingQueue is a queue in the statistics.
// Dispatched and Count are equal. Ratio is the share of all starts in the window, 0 to 1. AvgWaitMS is how long the started
// jobs had been available.
type schedulingQueue struct {
	Name       string  `json:"name"`
	Weight     int64   `json:"weight"`
	Dispatched int64   `json:"dispatched"`
	Count      int64   `json:"dispatch_count_1m"`
	Ratio      float64 `json:"dispatch_ratio_1m"`
	AvgWaitMS  int64   `json:"avg_wait_ms"`
	ActiveJobs int64   `json:"active_jobs"`
	Starved    bool    `json:"starved"`
}

// getSchedulingStats shows the last 60 s as of the published events. strategy is that of a fetch which names none: queues as
// listed.
func (a *API) getSchedulingStats(r *request) error {
	queues, total, err := a.Pools.Stats(r.Request().Context())
	if err != nil {
		return err
	}
	shown, started := make([]schedulingQueue, len(queues)), make(map[string]int64, len(queues))
	for i, q := range queues {
		shown[i] = schedulingQueue{q.Name, q.Weight, q.Dispatched, q.Dispatched, q.Ratio, q.AvgWaitMS, q.Active, q.Starved}
		started[q.Name] = q.Dispatched
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		// Both are constants: the figures are of the last minute on every server.
		"strategy": "strict", "window": "PT1M", "queues": shown,
		"stats": map[string]any{"total_dispatched": total, "queues": started},
	})
}
