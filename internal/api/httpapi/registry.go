package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
)

// workerRoutes are the calls of workers and the worker registry (docs/reference/workers.md, Registry). A tenant may call those of
// operators, below /admin, for its own workers only.
func (a *API) workerRoutes() []route {
	return []route{
		{"POST", "/workers/fetch", confined, oneBody, "", a.postFetch},
		{"POST", "/workers/ack", confined, resultBody, "", a.postAck},
		{"POST", "/workers/nack", confined, manyBody, "", a.postNack},
		{"POST", "/workers/ack/batch", confined, manyBody, "", a.postAckBatch},
		{"POST", "/workers/nack/batch", confined, manyBody, "", a.postNackBatch},
		{"POST", "/jobs/:id/ack", confined, jobResultBody, "", a.postJobAck},
		{"POST", "/jobs/:id/nack", confined, manyBody, "", a.postJobNack},
		{"POST", "/workers/heartbeat", confined, oneBody, "", a.postHeartbeat},
		{"POST", "/workers/beat", confined, oneBody, "", a.postHeartbeat},
		{"POST", "/workers/register", confined, oneBody, "", a.postRegister},

		{"GET", "/workers", confined, noBody, paging + "state queue", a.listWorkers(workerList{api.DefaultPage, api.MaxPage, "workers"})},
		{"GET", "/workers/:id", confined, noBody, "", a.getWorker},
		{"DELETE", "/workers/:id", confined, oneBody, "", a.deregister},
		{"POST", "/workers/:id/deregister", confined, oneBody, "", a.deregister},
		{"GET", "/workers/:id/health", confined, noBody, "", a.getWorkerHealth},

		{"GET", "/admin/workers", confined, noBody, paging + "state queue", a.listWorkers(workerList{standard: defaultAdminPage, largest: maxAdminPage})},
		{"POST", "/admin/workers/directive", operators, oneBody, "", a.directWorkers},
		{"GET", "/admin/workers/:id", confined, noBody, "", a.getWorker},
		{"DELETE", "/admin/workers/:id", confined, noBody, "", a.deleteWorker},
		{"POST", "/admin/workers/:id/directive", confined, oneBody, "", a.directWorker},
		{"POST", "/admin/workers/:id/quiet", confined, oneBody, "", a.directTo("quiet")},
		{"POST", "/admin/workers/:id/terminate", confined, oneBody, "", a.directTo("terminate")},
		// resume is stored as running, which is a directive of its own: it is answered until the worker reports running.
		{"POST", "/admin/workers/:id/resume", confined, oneBody, "", a.directTo("running")},
	}
}

func (a *API) directTo(directive string) handler {
	return func(r *request) error {
		if err := checkCommand(r.body); err != nil {
			return err
		}
		return a.direct(r, directive)
	}
}

// What lists of the admin plane give.
// 20 and 100, for all lists below /admin and for those that admin tools read.
const (
	defaultAdminPage = 20
	maxAdminPage     = 100
)

// workerRef is the worker that the path names, by any text that a worker may have as its id.
// What no heartbeat may send (docs/reference/workers.md) is an unknown worker: 404, as for ids of jobs.
func (a *API) workerRef(c echo.Context) (worker.Ref, error) {
	id := param(c, "id")
	if id == "" || len(id) > 255 || !api.Storable(id) {
		return worker.Ref{}, spec.NotFound("worker", id)
	}
	return worker.Ref{Tenant: a.tenant(c.Request()), ID: id}, nil
}

// postRegister is a heartbeat that lists no jobs and ends a reported quiet or terminate. It is idempotent. Members that do
// not fit are dropped, because a refusal would keep the worker from working.
func (a *API) postRegister(r *request) error {
	in, wire := worker.DecodeRegistration(r.body)
	if wire != nil {
		return wire
	}
	// A worker that registers for a tenant is the tenant's.
	in.Tenant = a.tenant(r.Request())
	res, err := a.Workers.Heartbeat(r.Request().Context(), in)
	if err != nil {
		return err
	}
	dead := a.Workers.DeadAfter()
	// In s: a third of the time after which a worker is dead, at least 1 and at most 5, so that a worker may lose a
	// heartbeat.
	interval := max(1, min(5, int64(dead/(3*time.Second))))
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"ok":true`...)
		b = appendText(b, "worker_id", in.WorkerID)
		b = appendText(b, "server_time", spec.FormatTime(res.Time))
		b = strconv.AppendInt(append(b, `,"heartbeat_interval":`...), interval, 10)
		b = appendSeconds(append(b, `,"heartbeat_timeout":`...), dead)
		b = appendSeconds(append(b, `,"visibility_timeout_default":`...), a.Jobs.DefaultVisibility())
		return append(b, '}')
	})
}

// The unit is s; a fraction is shown if there is one.
func appendSeconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, d.Seconds(), 'f', -1, 64)
}

// deregister removes the entry; an unknown worker is 404. Its jobs stay reserved until their reservations end, because the
// worker may still be finishing them.
func (a *API) deregister(r *request) error {
	ref, err := a.workerRef(r)
	if err != nil {
		return err
	}
	// A body that is JSON is never refused for its members.
	in, wire := worker.DecodeLeave(ref, r.body)
	if wire != nil {
		return wire
	}
	if err := a.Workers.Deregister(r.Request().Context(), in); err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		return append(appendText(append(b, `{"ok":true`...), "worker_id", ref.ID), '}')
	})
}

func (a *API) directWorker(r *request) error {
	directive, wire := worker.DecodeDirective(r.body)
	if wire != nil {
		return wire
	}
	return a.direct(r, directive)
}

// direct stores the directive, which the worker gets with its next heartbeat. Fetches are affected at once on this node and
// within 1 s on the others.
func (a *API) direct(c echo.Context, directive string) error {
	ref, err := a.workerRef(c)
	if err != nil {
		return err
	}
	if err := a.Workers.Direct(c.Request().Context(), ref, directive); err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = appendQuoted(append(b, `{"worker_id":`...), ref.ID)
		return append(appendText(b, "directive", directive), '}')
	})
}

// The number is that of workers that are not stale. It is for operators: it reaches the workers of all tenants.
func (a *API) directWorkers(r *request) error {
	directive, wire := worker.DecodeDirective(r.body)
	if wire != nil {
		return wire
	}
	n, err := a.Workers.DirectAll(r.Request().Context(), directive)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"directive": directive, "workers": n})
}

// deleteWorker works for stale workers only, 409 for others. jobs_requeued counts the jobs that were still reserved for it
// and were failed now.
func (a *API) deleteWorker(r *request) error {
	ref, err := a.workerRef(r)
	if err != nil {
		return err
	}
	// The jobs fail, so their attempts count.
	requeued, err := a.Workers.Delete(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"deleted": true, "worker_id": ref.ID, "jobs_requeued": requeued})
}
