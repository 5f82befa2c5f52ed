package httpapi

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/maintenance"
	"github.com/ojsd/ojsd/internal/spec"
)

// adminSystemRoutes are those of docs/reference/admin.md, System, with their short names.
// The alias and the route are the same handler, so a tool may turn maintenance on by one and off by the other.
func (a *API) adminSystemRoutes() []route {
	routes := []route{
		{"GET", "/admin/system/maintenance", operators, noBody, "", a.getMaintenance},
		{"POST", "/admin/system/maintenance", operators, oneBody, "started_by", a.postMaintenance},
		{"GET", "/admin/maintenance", operators, noBody, "", a.getMaintenance},
		{"POST", "/admin/maintenance", operators, oneBody, "started_by", a.postMaintenance},
		{"GET", "/admin/system/config", operators, noBody, "", a.getConfig},
		{"GET", "/admin/config", operators, noBody, "", a.getConfig},
		{"GET", "/middleware", operators, noBody, "", a.getMiddleware},
	}
	if a.config.TestReset {
		routes = append(routes, route{"POST", "/admin/reset", operators, noBody, "", a.postReset})
	}
	return routes
}

// maintenanceBody is the answer of docs/reference/admin.md, Maintenance. Enabled and Maintenance are equal, and so are
// StartedAt and EnabledAt: admin tools read different names.
type maintenanceBody struct {
	Enabled     bool   `json:"enabled"`
	Maintenance bool   `json:"maintenance"`
	Reason      string `json:"reason,omitempty"`
	StartedAt   string `json:"started_at,omitempty"`
	EnabledAt   string `json:"enabled_at,omitempty"`
	StartedBy   string `json:"started_by,omitempty"`
	// EndsAt is when maintenance ends by itself; absent: it does not. EstimatedEnd is only shown to people and ends nothing.
	EndsAt       string `json:"ends_at,omitempty"`
	EstimatedEnd string `json:"estimated_end,omitempty"`
}

// sendMaintenance leaves out times that are not set.
func sendMaintenance(c echo.Context, s maintenance.State) error {
	text := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return spec.FormatTime(t)
	}
	return sendJSON(c, http.StatusOK, maintenanceBody{
		Enabled: s.On, Maintenance: s.On, Reason: s.Reason, StartedAt: text(s.StartedAt), EnabledAt: text(s.StartedAt), StartedBy: s.StartedBy,
		EndsAt: text(s.EndsAt), EstimatedEnd: text(s.EstimatedEnd),
	})
}

// getMaintenance reads the database, not what this node remembers, so a tool sees the change that it has just made on another
// node.
func (a *API) getMaintenance(r *request) error {
	state, err := a.Maintenance.Get(r.Request().Context())
	if err != nil {
		return err
	}
	return sendMaintenance(r, state)
}

// postMaintenance turns maintenance on or off. Both are idempotent. When it returns, this node follows the change; the others
// follow within a second (docs/reference/admin.md, Maintenance).
func (a *API) postMaintenance(r *request) error {
	in, wire := maintenance.Decode(r.body)
	if wire != nil {
		return wire
	}
	by := a.actor(r, "started_by", in.Start.By)
	if !in.Enabled {
		// It is no error if maintenance is off already.
		if err := a.Maintenance.End(r.Request().Context(), by); err != nil {
			return err
		}
		// The state after an end is known without a read.
		return sendMaintenance(r, maintenance.State{})
	}
	in.Start.By = by
	state, err := a.Maintenance.Start(r.Request().Context(), in.Start)
	if err != nil {
		return err
	}
	return sendMaintenance(r, state)
}

// getConfig shows what operators may want to compare between nodes, and no secret.
// It shows the settings of the node that answers, which is not necessarily that of the next call behind a load balancer. Add
// no secret and no URL here: with API keys any key may read it.
func (a *API) getConfig(r *request) error {
	conf, limits := a.config, a.config.Limits
	kept := func(d time.Duration) any {
		if d <= 0 {
			return nil // without limit
		}
		return days(d)
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		"implementation": api.Name, "version": conf.Version, "conformance_level": api.ConformanceLevel, "backend": api.Backend,
		"max_batch_size": a.maxItems(), "max_workflow_depth": conf.MaxWorkflowDepth, "max_envelope_bytes": limits.Envelope(),
		"max_meta_bytes": limits.Meta(), "max_result_bytes": limits.Result(), "max_batch_bytes": conf.MaxBatchBytes,
		// Durations are shown as ISO 8601 texts, as in jobs.
		"default_visibility_timeout": duration.Format(conf.DefaultVisibility), "default_timeout": duration.Format(conf.DefaultTimeout),
		"worker_dead_after": duration.Format(a.Workers.DeadAfter()),
		"retention": map[string]any{
			"completed": kept(conf.RetentionCompleted), "cancelled": kept(conf.RetentionCompleted), "discarded": kept(conf.RetentionDiscarded),
			"dead_letter": kept(conf.DeadLetterMaxAge), "dead_letter_max_count": conf.DeadLetterMaxCount,
			"events": kept(conf.EventRetention), "events_max_count": conf.EventMaxCount,
		},
		"authentication": len(conf.APIKeys) > 0, "grpc": conf.GRPC, "webhooks": a.webhooks.Enabled, "test_reset": conf.TestReset,
	})
}

// stages are what an enqueue passes, in this order.
// It is a description for tools, not configuration. Whoever changes the order of queue/enqueue.go changes it here, too.
var stages = []string{"trace_context", "authentication", "validation", "queue_admission", "unique", "depth_bound", "rate_limit", "insert", "events"}

// getMiddleware shows the stages in the form of the middleware endpoint of other servers, which let users add their own.
// Nothing can be added here, and nothing runs around the execution of a job, because workers are processes of their own.
func (a *API) getMiddleware(r *request) error {
	type stage struct {
		Name  string `json:"name"`
		Phase string `json:"phase"`
		Order int    `json:"order"`
	}
	list := make([]stage, len(stages))
	for i, name := range stages {
		list[i] = stage{name, "enqueue", i + 1}
	}
	return sendJSON(r, http.StatusOK, map[string]any{"enqueue": list, "execution": []stage{}})
}
