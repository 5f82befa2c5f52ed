package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/tenant"
	"github.com/ojsd/ojsd/ojs"
)

// tenantRoutes are those of docs/reference/tenants.md, Statistics. A tenant sees itself only. Both routes of one tenant answer the same.
func (a *API) tenantRoutes() []route {
	return []route{
		{"GET", "/admin/tenants", confined, noBody, paging, a.listTenants},
		{"GET", "/admin/tenants/:id", confined, noBody, "", a.getTenant},
		{"GET", "/admin/tenants/:id/stats", confined, noBody, "", a.getTenant},
	}
}

// maxTenantOffset bounds what a page of tenants, or of the queues of one, costs: those before it are passed over one by one.
// It is lower than that of other lists, because tenants are found by jumping through an index, one tenant after the other.
const maxTenantOffset = 10_000

// The list of the queues of a tenant uses it, too.
func checkTenantOffset(p page) error {
	if p.offset > maxTenantOffset {
		return spec.InvalidRequest("offset", "at most 10000", p.offset, "offset must be at most 10000; use cursor to read further.")
	}
	return nil
}

// listTenants is for operators; a tenant sees itself.
// Counts are as of the last published event. tenants and items are the same list.
func (a *API) listTenants(r *request) error {
	p, err := readPageOf(r, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	if p.cursor != "" && !job.ValidTenant(p.cursor) {
		return api.ErrCursor(p.cursor)
	}
	if err := checkTenantOffset(p); err != nil {
		return err
	}
	found, err := a.tenantPage(r, p)
	if err != nil {
		return err
	}
	next := ""
	if found.More {
		next = found.Tenants[len(found.Tenants)-1].Name
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = appendTenants(append(b, `{"tenants":`...), found.Tenants)
		b = appendTenants(append(b, `,"items":`...), found.Tenants)
		b = strconv.AppendInt(append(b, `,"total":`...), found.Total, 10)
		return append(p.append(append(b, `,"pagination":`...), found.Total, found.More, next), '}')
	})
}

// tenantPage reads nothing of other tenants for a tenant: its list has one entry or none.
func (a *API) tenantPage(c echo.Context, p page) (tenant.Page, error) {
	ctx, caller := c.Request().Context(), a.tenant(c.Request())
	if caller == "" {
		return a.Tenants.List(ctx, tenant.Filter{After: p.cursor, Offset: p.offset, Limit: p.limit})
	}
	// There is no second page of one tenant.
	if p.offset > 0 || p.cursor != "" {
		return tenant.Page{Total: 1}, nil
	}
	own, err := a.Tenants.Stats(ctx, caller)
	// A tenant that has had no job is not known yet; its list is empty and not an error.
	if wire, ok := errors.AsType[*ojs.Error](err); ok && wire.Type == string(ojs.ErrNotFound) { // it has had no job yet
		return tenant.Page{}, nil
	}
	return tenant.Page{Tenants: []tenant.Counts{own.Counts}, Total: 1}, err
}

// appendTenants appends the array; each entry has counts and no queues.
func appendTenants(b []byte, tenants []tenant.Counts) []byte {
	b = append(b, '[')
	for i := range tenants {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendCounts(b, "tenant_id", "total_jobs", &tenants[i]), '}')
	}
	return append(b, ']')
}

// countedStates is the order in which counts show the states.
var countedStates = []ojs.JobState{
	ojs.StateAvailable, ojs.StateActive, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending, ojs.StateCompleted, ojs.StateDiscarded, ojs.StateCancelled,
}

// appendCounts appends an object, still open.
// All eight states are shown, 0 included.
func appendCounts(b []byte, name, total string, counts *tenant.Counts) []byte {
	b = append(append(append(b, `{"`...), name...), `":`...)
	b = appendQuoted(b, counts.Name)
	b = append(append(append(b, `,"`...), total...), `":`...)
	b = append(strconv.AppendInt(b, counts.Total, 10), `,"by_state":{`...)
	for i, state := range countedStates {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(append(append(b, '"'), state...), `":`...), counts.ByState[state], 10)
	}
	return append(b, '}')
}

// Another tenant's name is 404 for a tenant, whether it exists or not. The counts are exact, read in one snapshot.
func (a *API) getTenant(r *request) error {
	id := param(r, "id")
	if caller := a.tenant(r.Request()); !job.ValidTenant(id) || caller != "" && caller != id {
		return spec.NotFound("tenant", id)
	}
	stats, err := a.Tenants.Stats(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(appendCounts(b, "tenant_id", "total_jobs", &stats.Counts), `,"queues":[`...)
		for i := range stats.Queues {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendCounts(b, "name", "total", &stats.Queues[i]), '}')
		}
		return append(b, `]}`...)
	})
}
