package httpapi

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// tenantHeader is job.TenantHeader as net/http spells it.
const tenantHeader = "X-Ojs-Tenant"

// tenant is that of a request, which admit has checked; "": an operator's.
// The error is ignored because admit has answered it before. With tenancy off it is always "".
func (a *API) tenant(r *http.Request) string {
	name, _ := a.tenancy.Caller(r.Header[tenantHeader])
	return name
}

// limits are those for what a request sends.
// With a tenant, the limits make the decoder set meta.tenant_id and refuse another one; with OJS_TENANCY required and without
// a tenant, they make it refuse the job.
func (a *API) limits(c echo.Context) job.Limits {
	return a.tenancy.Limits(a.JobLimits, a.tenant(c.Request()))
}

// confine lets a call that names a tenant reach nothing that is not the tenant's (docs/reference/tenants.md, What a call reaches). It costs
// nothing for calls without a tenant. A handler with api.Confined uses API.tenant in each filter and name (cronRef, workerRef), and ownJob
// and ownJobs for ids in a body. The look-up and the handler are two statements; a job, workflow, subscription or delivery never changes
// its tenant. The name of a cron or the id of a worker may, so their handlers pass the tenant on (cron.Ref, worker.Ref).
func (a *API) confine(of api.Reach, next echo.HandlerFunc) echo.HandlerFunc {
	if of == api.Everybody || of == api.Confined {
		return next
	}
	return func(c echo.Context) error {
		caller := a.tenant(c.Request())
		switch {
		case caller == "":
			return next(c)
		case of == api.Operators:
			return queueadmin.ErrOperators()
		}
		kind, read, has := "job", jobID, a.Tenants.HasJob
		switch of {
		case api.AboutDeadLetter:
			kind = "dead_letter_job"
		case api.AboutWorkflow:
			kind, read, has = "workflow", workflowID, a.Tenants.HasWorkflow
		case api.AboutWebhook:
			kind, read, has = "webhook_subscription", webhookID, a.Tenants.HasWebhook
		case api.AboutDelivery:
			kind, read, has = "webhook_delivery", deliveryID, a.Tenants.HasDelivery
		}
		// read is that of the handler, so both agree on what an id is; the handler refuses a malformed one in its own words.
		id, err := read(c)
		if err != nil {
			return next(c)
		}
		found, err := has(c.Request().Context(), caller, id)
		if err == nil && !found {
			// The error is that of the handler for what does not exist: a tenant must not be able to tell the two cases apart.
			text := param(c, "id")
			if of == api.AboutJob || of == api.AboutWorkflow {
				text = spec.FormatID(id)
			}
			err = spec.NotFound(kind, text)
		}
		if err != nil {
			return err
		}
		return next(c)
	}
}

// ownJob makes sure that a job which a body names is the caller's.
// confine sees paths only.
func (a *API) ownJob(c echo.Context, id [16]byte) error {
	caller := a.tenant(c.Request())
	if caller == "" {
		return nil
	}
	own, err := a.Tenants.HasJob(c.Request().Context(), caller, id)
	if err == nil && !own {
		err = spec.NotFound("job", spec.FormatID(id))
	}
	return err
}

// ownJobs are those of the jobs that the caller may reach; nil: all.
// A nil map is not an empty one: the latter says that the caller may reach none of them.
func (a *API) ownJobs(c echo.Context, ids [][16]byte) (map[[16]byte]bool, error) {
	caller := a.tenant(c.Request())
	if caller == "" {
		return nil, nil
	}
	return a.Tenants.Jobs(c.Request().Context(), caller, ids)
}

// tenantRoutes are those of docs/reference/tenants.md, Statistics. A tenant sees itself only. Both routes of one tenant answer the same.
func (a *API) tenantRoutes() []route {
	return []route{
		{"GET", "/admin/tenants", api.Confined, noBody, paging, a.listTenants},
		{"GET", "/admin/tenants/:id", api.Confined, noBody, "", a.getTenant},
		{"GET", "/admin/tenants/:id/stats", api.Confined, noBody, "", a.getTenant},
	}
}

// maxTenantOffset bounds what a page of tenants, or of the queues of one, costs: those before it are passed over one by one.
// It is lower than that of other lists, because tenants are found by jumping through an index, one tenant after the other.
const maxTenantOffset = 10_000

// checkTenantOffset is for the list of the queues of a tenant, too.
func checkTenantOffset(p page) error {
	if p.offset > maxTenantOffset {
		return spec.InvalidRequest("offset", "at most 10000", p.offset, "offset must be at most 10000; use cursor to read further.")
	}
	return nil
}

// listTenants is for operators; a tenant sees itself.
// Counts are as of the last published event. tenants and items are the same list.
func (a *API) listTenants(r *request) error {
	p := r.page(defaultAdminPage, maxAdminPage)
	r.checkCursor(p, job.ValidTenant)
	r.refuse(checkTenantOffset(p))
	if r.err != nil {
		return r.err
	}
	found, err := a.tenantPage(r, p)
	if err != nil {
		return err
	}
	next := ""
	if found.More {
		next = found.Tenants[len(found.Tenants)-1].Name
	}
	// Each entry has counts and no queues.
	list := each(found.Tenants, func(counts *queueadmin.TenantCounts) object { return showCounts("tenant_id", "total_jobs", counts) })
	return r.answer(http.StatusOK, object{{"tenants", list}, {"items", list}, {"total", found.Total},
		{"pagination", p.shown(found.Total, found.More, next)}})
}

// tenantPage reads nothing of other tenants for a tenant: its list has one entry or none.
func (a *API) tenantPage(c echo.Context, p page) (queueadmin.TenantPage, error) {
	ctx, caller := c.Request().Context(), a.tenant(c.Request())
	if caller == "" {
		return a.Tenants.List(ctx, queueadmin.TenantFilter{After: p.cursor, Offset: p.offset, Limit: p.limit})
	}
	// There is no second page of one tenant.
	if p.offset > 0 || p.cursor != "" {
		return queueadmin.TenantPage{Total: 1}, nil
	}
	own, err := a.Tenants.Stats(ctx, caller)
	// A tenant that has had no job is not known yet; its list is empty and not an error.
	if wire, ok := errors.AsType[*ojs.Error](err); ok && wire.Type == string(ojs.ErrNotFound) { // it has had no job yet
		return queueadmin.TenantPage{}, nil
	}
	return queueadmin.TenantPage{Tenants: []queueadmin.TenantCounts{own.TenantCounts}, Total: 1}, err
}

// countedStates is the order in which counts show the states.
var countedStates = []ojs.JobState{
	ojs.StateAvailable, ojs.StateActive, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending, ojs.StateCompleted, ojs.StateDiscarded,
	ojs.StateCancelled,
}

// showCounts shows all eight states, 0 included.
func showCounts(name, total string, counts *queueadmin.TenantCounts) object {
	return object{{name, counts.Name}, {total, counts.Total}, {"by_state", showStates(counts.ByState)}}
}

// getTenant is 404 for a tenant with another one's name, whether it exists or not. The counts are exact, read in one snapshot.
func (a *API) getTenant(r *request) error {
	id := param(r, "id")
	if caller := a.tenant(r.Request()); !job.ValidTenant(id) || caller != "" && caller != id {
		return spec.NotFound("tenant", id)
	}
	stats, err := a.Tenants.Stats(r.Request().Context(), id)
	if err != nil {
		return err
	}
	queues := each(stats.Queues, func(counts *queueadmin.TenantCounts) object { return showCounts("name", "total", counts) })
	return r.answer(http.StatusOK, append(showCounts("tenant_id", "total_jobs", &stats.TenantCounts), member{"queues", queues}))
}
