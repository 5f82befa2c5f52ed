package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/stats"
	"github.com/ojsd/ojsd/ojs"
)

// adminQueueRoutes are those of docs/reference/admin.md, Queues.
func (a *API) adminQueueRoutes(v1 *echo.Group) {
	reading := []string{http.MethodGet, http.MethodHead}
	v1.Match(reading, "/admin/queues", a.listAdminQueues)
	v1.Match(reading, "/admin/queues/:name", a.getAdminQueue)
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

	OldestAvailableAt string `json:"oldest_available_at,omitempty"`
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
	q, err := a.Stats.Queue(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, newAdminQueue(q))
}
