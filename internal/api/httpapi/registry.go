package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
)

// registryRoutes are the worker registry and the operator's part of it (docs/reference/workers.md, Registry).
// Routes of operators are below /admin; a tenant may call them for its own workers only.
func (a *API) registryRoutes(v1 *echo.Group) {
	one := bodyLimit{a.config.Limits.Envelope(), "envelope"}
	read := []string{http.MethodGet, http.MethodHead}
	v1.POST("/workers/beat", a.withBody(one, a.postHeartbeat))
	v1.POST("/workers/register", a.withBody(one, a.postRegister))
	v1.Match(read, "/workers", a.listWorkers(workerList{api.DefaultPage, api.MaxPage, "workers"}))
	v1.Match(read, "/workers/:id", notCall(a.getWorker))
	v1.DELETE("/workers/:id", notCall(a.withBody(one, a.deregister)))
	v1.POST("/workers/:id/deregister", a.withBody(one, a.deregister))
	v1.Match(read, "/workers/:id/health", a.getWorkerHealth)

	v1.Match(read, "/admin/workers", a.listWorkers(workerList{standard: defaultAdminPage, largest: maxAdminPage}))
	v1.POST("/admin/workers/directive", a.withBody(one, a.directWorkers))
	v1.Match(read, "/admin/workers/:id", a.getWorker)
	v1.DELETE("/admin/workers/:id", a.deleteWorker)
	v1.POST("/admin/workers/:id/directive", a.withBody(one, a.directWorker))
	// resume is stored as running, which is a directive of its own: it is answered until the worker reports running.
	for command, directive := range map[string]string{"quiet": "quiet", "terminate": "terminate", "resume": "running"} {
		v1.POST("/admin/workers/:id/"+command, a.withBody(one, func(c echo.Context, body []byte) error {
			if err := checkCommand(body); err != nil {
				return err
			}
			return a.direct(c, directive)
		}))
	}
}

// What lists of the admin plane give.
// 20 and 100, for all lists below /admin and for those that admin tools read.
const (
	defaultAdminPage = 20
	maxAdminPage     = 100
)

// workerCalls are the last segments of paths that only POST knows.
// A worker may have such an id; it can then be read below /admin.
var workerCalls = []string{"fetch", "ack", "nack", "heartbeat", "beat", "register", "progress"}

// notCall answers 405 where the last segment names a worker's call, not a worker.
// The router finds the route of ids for a GET on such a path.
func notCall(h echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if slices.Contains(workerCalls, c.Param("id")) {
			c.Response().Header().Set(echo.HeaderAllow, http.MethodPost)
			return echo.ErrMethodNotAllowed
		}
		return h(c)
	}
}

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
func (a *API) postRegister(c echo.Context, body []byte) error {
	in, wire := worker.DecodeRegistration(body)
	if wire != nil {
		return wire
	}
	// A worker that registers for a tenant is the tenant's.
	in.Tenant = a.tenant(c.Request())
	res, err := a.Workers.Heartbeat(c.Request().Context(), in)
	if err != nil {
		return err
	}
	dead := a.Workers.DeadAfter()
	// In s: a third of the time after which a worker is dead, at least 1 and at most 5, so that a worker may lose a
	// heartbeat.
	interval := max(1, min(5, int64(dead/(3*time.Second))))
	return respond(c, http.StatusOK, func(b []byte) []byte {
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
func (a *API) deregister(c echo.Context, body []byte) error {
	ref, err := a.workerRef(c)
	if err != nil {
		return err
	}
	// A body that is JSON is never refused for its members.
	in, wire := worker.DecodeLeave(ref, body)
	if wire != nil {
		return wire
	}
	if err := a.Workers.Deregister(c.Request().Context(), in); err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		return append(appendText(append(b, `{"ok":true`...), "worker_id", ref.ID), '}')
	})
}

func (a *API) directWorker(c echo.Context, body []byte) error {
	directive, wire := worker.DecodeDirective(body)
	if wire != nil {
		return wire
	}
	return a.direct(c, directive)
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
func (a *API) directWorkers(c echo.Context, body []byte) error {
	directive, wire := worker.DecodeDirective(body)
	if wire != nil {
		return wire
	}
	n, err := a.Workers.DirectAll(c.Request().Context(), directive)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"directive": directive, "workers": n})
}

// deleteWorker works for stale workers only, 409 for others. jobs_requeued counts the jobs that were still reserved for it
// and were failed now.
func (a *API) deleteWorker(c echo.Context) error {
	ref, err := a.workerRef(c)
	if err != nil {
		return err
	}
	// The jobs fail, so their attempts count.
	requeued, err := a.Workers.Delete(c.Request().Context(), ref)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"deleted": true, "worker_id": ref.ID, "jobs_requeued": requeued})
}
