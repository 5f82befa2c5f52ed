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

// showPool repeats name as id. concurrency is null without a limit. weights is {} rather than null, because the admin UI reads its
// members. workers and active_workers are equal: living workers that have named the pool. For active_jobs see
// docs/reference/fairness.md, Pools: its meaning depends on concurrency.
func showPool(p *pool.Shown) object {
	weights := p.Weights
	if weights == nil {
		weights = map[string]int64{}
	}
	return object{
		{"id", p.Name}, {"name", p.Name}, {"queues", p.Queues}, {"concurrency", orNull(max(0, p.Concurrency))}, {"strategy", p.Strategy},
		{"weights", weights},
		{"isolated", p.Isolated}, {"starvation_prevention", p.Starvation}, {"active_workers", p.Workers}, {"workers", p.Workers},
		{"active_jobs", p.ActiveJobs}, {"created_at", spec.FormatTime(p.CreatedAt)}, {"updated_at", spec.FormatTime(p.UpdatedAt)},
	}
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

// listPools reads all pools, at most 1 000, and cuts them here. items and pools are the same list for two clients.
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
	shown := each(all[first:min(first+page.limit, len(all))], showPool)
	return r.answer(http.StatusOK, object{{"items", shown}, {"pools", shown},
		{"pagination", page.shownNumbered(int64(len(all)), len(shown))}})
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
		return spec.InvalidPayload("name", "a pool name", nil,
			"The name in the path must be letters, digits, ., _ and -, at most 128 bytes long.")
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

// getSchedulingStats shows the last 60 s as of the published events. strategy is that of a fetch which names none: queues as listed.
// dispatched and dispatch_count_1m are equal. dispatch_ratio_1m is the share of all starts in the window, 0 to 1. avg_wait_ms is how long
// the started jobs had been available.
func (a *API) getSchedulingStats(r *request) error {
	queues, total, err := a.Pools.Stats(r.Request().Context())
	if err != nil {
		return err
	}
	shown, started := make([]object, len(queues)), make(map[string]int64, len(queues))
	for i, q := range queues {
		shown[i] = object{
			{"name", q.Name}, {"weight", q.Weight}, {"dispatched", q.Dispatched}, {"dispatch_count_1m", q.Dispatched},
			{"dispatch_ratio_1m", q.Ratio},
			{"avg_wait_ms", q.AvgWaitMS}, {"active_jobs", q.Active}, {"starved", q.Starved},
		}
		started[q.Name] = q.Dispatched
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		// Both are constants: the figures are of the last minute on every server.
		"strategy": "strict", "window": "PT1M", "queues": shown,
		"stats": map[string]any{"total_dispatched": total, "queues": started},
	})
}
