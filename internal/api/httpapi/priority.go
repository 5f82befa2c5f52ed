package httpapi

import (
	"net/http"
	"strconv"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// patchJob changes the priority of a job (docs/reference/jobs.md, Priority).
// It is idempotent. The store lowers the fetch cursors of this node before it answers, so a job that was moved forward is
// found by the next fetch.
func (a *API) patchJob(r *request) error {
	// Members other than priority are refused, because nothing else of a job can be changed.
	priority, wire := job.DecodePriority(r.body)
	if wire != nil {
		return wire
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	// A job that is neither available nor scheduled is 409.
	stored, previous, err := a.Jobs.SetPriority(r.Request().Context(), id, priority)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = spec.AppendID(append(b, `{"id":"`...), id)
		b = strconv.AppendInt(append(b, `","priority":`...), int64(priority), 10)
		b = strconv.AppendInt(append(b, `,"previous_priority":`...), int64(previous), 10)
		return append(appendJob(append(b, `,"job":`...), stored, shape{}), '}')
	})
}

// getPriorityStats is docs/reference/jobs.md, Jobs by priority.
// It is for operators, because it counts the jobs of all tenants.
func (a *API) getPriorityStats(r *request) error {
	name := param(r, "name")
	if err := api.CheckQueue("name", name); err != nil {
		return err
	}
	stats, err := a.Jobs.PriorityStats(r.Request().Context(), name)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendPriorityStats(b, name, stats) })
}

// The counts are shown as an object and as an array: an object of numbers is easy to look up, and an array keeps the order.
// estimated says that the queue has more jobs than were counted one by one; total is exact in either case.
func appendPriorityStats(b []byte, name string, stats queue.PriorityStats) []byte {
	// The name was checked above and needs no escapes.
	b = append(append(append(b, `{"queue":"`...), name...), `","counts_by_priority":{`...)
	for i, p := range stats.Counts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendInt(append(b, '"'), int64(p.Priority), 10), `":`...)
		b = strconv.AppendInt(b, p.Count, 10)
	}
	b = append(b, `},"distribution":[`...)
	for i, p := range stats.Counts {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"priority":`...), int64(p.Priority), 10)
		b = append(strconv.AppendInt(append(b, `,"count":`...), p.Count, 10), '}')
	}
	b = strconv.AppendInt(append(b, `],"total":`...), stats.Total, 10)
	if stats.Estimated {
		b = append(b, `,"estimated":true`...)
	}
	return append(b, '}')
}
