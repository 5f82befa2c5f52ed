package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/stats"
	"github.com/ojsd/ojsd/ojs"
)

// adminQueueRoutes are those of docs/reference/admin.md, Queues.
func (a *API) adminQueueRoutes(v1 *echo.Group) {
	reading := []string{http.MethodGet, http.MethodHead}
	v1.Match(reading, "/admin/queues", a.listAdminQueues)
	v1.Match(reading, "/admin/queues/:name", a.getAdminQueue)
	limit := bodyLimit{queueconfig.MaxBytes, "config"}
	v1.DELETE("/admin/queues/:name/jobs", a.withBody(limit, a.adminPurgeQueue))
	v1.POST("/admin/queues/:name/pause", a.withBody(limit, a.adminPauseQueue))
	v1.POST("/admin/queues/:name/resume", a.withBody(limit, a.adminResumeQueue))
	v1.PUT("/admin/queues/:name/config", a.withBody(limit, a.adminPutQueueConfig))
}

type adminQueue struct {
	Name       string      `json:"name"`
	State      string      `json:"state"`
	Status     string      `json:"status"`
	Paused     bool        `json:"paused"`
	PausedAt   string      `json:"paused_at,omitempty"`
	Counts     stateCounts `json:"counts"`
	Throughput struct {
		Processed float64 `json:"processed_per_minute"`
		Failed    float64 `json:"failed_per_minute"`
	} `json:"throughput"`
	Latency struct {
		P50 float64 `json:"p50"`
		P95 float64 `json:"p95"`
		P99 float64 `json:"p99"`
	} `json:"latency_ms"`
	CreatedAt string `json:"created_at"`
	UpdatedAt string `json:"updated_at"`

	OldestAvailableAt string          `json:"oldest_available_at,omitempty"`
	Configuration     json.RawMessage `json:"configuration,omitempty"`
}

func newAdminQueue(q stats.Queue) adminQueue {
	v := adminQueue{
		Name: q.Name, State: q.Status, Status: q.Status, Paused: q.Status == "paused", Counts: newStateCounts(q.Jobs),
		CreatedAt: ojs.FormatTime(q.CreatedAt), UpdatedAt: ojs.FormatTime(q.UpdatedAt),
	}
	if v.Paused && !q.PausedAt.IsZero() {
		v.PausedAt = ojs.FormatTime(q.PausedAt)
	}
	if !q.OldestAt.IsZero() {
		v.OldestAvailableAt = ojs.FormatTime(q.OldestAt)
	}
	v.Throughput.Processed, v.Throughput.Failed = round1(q.Rates.Completed), round1(q.Rates.Failed)
	v.Latency.P50, v.Latency.P95, v.Latency.P99 = round1(q.Latency.Percentile(0.5)), round1(q.Latency.Percentile(0.95)), round1(q.Latency.Percentile(0.99))
	return v
}

func (a *API) listAdminQueues(c echo.Context) error {
	page, err := readPageOf(c, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	if page.cursor != "" && api.CheckQueue("cursor", page.cursor) != nil {
		return api.ErrCursor(page.cursor)
	}
	found, err := a.Stats.Queues(c.Request().Context(), stats.Page{After: page.cursor, Offset: page.offset, Limit: page.limit})
	if err != nil {
		return err
	}
	items, cursor := make([]adminQueue, len(found.Queues)), ""
	for i, q := range found.Queues {
		items[i] = newAdminQueue(q)
	}
	if found.More {
		cursor = items[len(items)-1].Name
	}
	text, err := marshal(items)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = append(append(b, `{"items":`...), text...)
		b = page.append(append(b, `,"pagination":`...), found.Total, found.More, cursor)
		return append(b, '}')
	})
}

func (a *API) getAdminQueue(c echo.Context) error {
	name := param(c, "name")
	if api.CheckQueue("name", name) != nil {
		return ojs.ErrNotFound("queue", name)
	}
	detail, err := a.queueDetail(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, detail)
}

// queueDetail is everything about one queue.
func (a *API) queueDetail(ctx context.Context, name string) (adminQueue, error) {
	q, err := a.Stats.Queue(ctx, name)
	if err != nil {
		return adminQueue{}, err
	}
	detail := newAdminQueue(q)
	detail.Configuration = a.shownConfig(q)
	return detail, nil
}

// shownConfig is the effective configuration. Retention shows what holds if the queue sets none, and a bound how full the queue is.
func (a *API) shownConfig(q stats.Queue) json.RawMessage {
	b := []byte{'{'}
	for literal, value := range rawjson.Members(q.Config.JSON()) {
		if name := string(rawjson.Name(literal)); name != "retention" && name != "backpressure" {
			b = payload.AppendMember(b, literal, value)
		}
	}
	kept := func(own *queueconfig.Duration, standard time.Duration) any {
		switch {
		case own != nil:
			return own.Text
		case standard <= 0:
			return nil
		}
		return days(standard)
	}
	r := q.Config.Retention
	retention, _ := json.Marshal(map[string]any{
		"completed": kept(r.Completed, a.config.RetentionCompleted), "cancelled": kept(r.Cancelled, a.config.RetentionCompleted),
		"discarded": kept(r.Discarded, a.config.RetentionDiscarded),
	})
	b = payload.AppendMember(b, payload.Quote("retention"), retention)
	if bound := newBound(q); bound != nil {
		text, _ := json.Marshal(bound)
		b = payload.AppendMember(b, payload.Quote("backpressure"), text)
	}
	return append(b, '}')
}

// boundView shows a bound. Threshold repeats max_depth under the name that the admin UI reads.
type boundView struct {
	Enabled          bool    `json:"enabled"`
	Strategy         string  `json:"strategy"`
	Threshold        int64   `json:"threshold,omitempty"`
	MaxDepth         int64   `json:"max_depth,omitempty"`
	MaxSizeBytes     int64   `json:"max_size_bytes,omitempty"`
	WarningThreshold float64 `json:"warning_threshold"`
	CurrentDepth     int64   `json:"current_depth"`
	State            string  `json:"state,omitempty"`
}

func newBound(q stats.Queue) *boundView {
	bound := q.Config.Backpressure
	if bound == nil || bound.MaxDepth <= 0 && bound.MaxSizeBytes <= 0 {
		return nil
	}
	v := &boundView{
		Enabled: true, Strategy: bound.Strategy, Threshold: bound.MaxDepth, MaxDepth: bound.MaxDepth, MaxSizeBytes: bound.MaxSizeBytes,
		WarningThreshold: bound.WarningThreshold,
		CurrentDepth:     q.Jobs[ojs.StateAvailable] + q.Jobs[ojs.StateScheduled] + q.Jobs[ojs.StateRetryable] + q.Jobs[ojs.StatePending],
	}
	switch depth := float64(v.CurrentDepth); {
	case bound.MaxDepth <= 0: // nothing is known of the bytes
	case v.CurrentDepth >= bound.MaxDepth:
		v.State = "critical"
	case depth >= bound.WarningThreshold*float64(bound.MaxDepth):
		v.State = "warning"
	default:
		v.State = "normal"
	}
	return v
}

// adminPurgeQueue removes jobs for good.
func (a *API) adminPurgeQueue(c echo.Context, body []byte) error {
	name := param(c, "name")
	if api.CheckQueue("name", name) != nil {
		return ojs.ErrNotFound("queue", name)
	}
	in, wire := job.DecodePurge(body)
	if wire != nil {
		return wire
	}
	removed, more, err := a.Queues.Purge(c.Request().Context(), queueadmin.Purge{
		Queue: name, States: in.States, OlderThan: in.OlderThan, By: a.actor(c, "cancelled_by", in.By),
	})
	if err != nil {
		return err
	}
	answer := map[string]any{"purged_count": removed, "states": in.States}
	if more {
		answer["has_more"] = true
	}
	return sendJSON(c, http.StatusOK, answer)
}

// adminPauseQueue and adminResumeQueue answer with the bare status, whatever OJS-Version is.
func (a *API) adminPauseQueue(c echo.Context, body []byte) error {
	name, by, err := a.queueCommand(c, body, "paused_by")
	if err != nil {
		return err
	}
	s, err := a.Queues.Pause(c.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"name": s.Name, "paused": true, "status": s.Status, "paused_at": ojs.FormatTime(s.PausedAt)})
}

func (a *API) adminResumeQueue(c echo.Context, body []byte) error {
	name, by, err := a.queueCommand(c, body, "resumed_by")
	if err != nil {
		return err
	}
	s, err := a.Queues.Resume(c.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"name": s.Name, "paused": false, "status": s.Status, "resumed_at": ojs.FormatTime(s.Since)})
}

// queueCommand reads the name of the queue, and who gives the command.
func (a *API) queueCommand(c echo.Context, body []byte, member string) (name, by string, err error) {
	if name, err = queueName(c, false); err != nil {
		return "", "", err
	}
	by, err = a.queueActor(c, body, member)
	return name, by, err
}

// adminPutQueueConfig is putQueueConfig with the detail of the queue as its answer.
// adminPutQueueConfig answers with the whole queue. The standard configuration belongs to none, so it is shown alone.
func (a *API) adminPutQueueConfig(c echo.Context, body []byte) error {
	name := param(c, "name")
	if name == queueconfig.Default {
		return a.putQueueConfig(c, body)
	}
	if err := api.CheckQueue("name", name); err != nil {
		return err
	}
	object, wire := rawjson.Check(body)
	if wire != nil {
		return wire
	}
	change, wire := queueconfig.ParseChange(object, "$")
	if wire != nil {
		return wire
	}
	if _, err := a.Queues.Configure(c.Request().Context(), name, change); err != nil {
		return err
	}
	detail, err := a.queueDetail(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, detail)
}
