package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// queueCounts are the members of queue statistics that all forms share.
// Depth equals Available, and Total is the sum of all states. Counts are exact at ComputedAt.
type queueCounts struct {
	Available int64 `json:"available"`
	Active    int64 `json:"active"`
	Scheduled int64 `json:"scheduled"`
	Retryable int64 `json:"retryable"`
	Pending   int64 `json:"pending"`
	Completed int64 `json:"completed"`
	Discarded int64 `json:"discarded"`
	Cancelled int64 `json:"cancelled"`
	Total     int64 `json:"total"`
	Depth     int64 `json:"depth"`
}

// It is the form of queue for clients that send no OJS-Version.
type queueObject struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Paused bool   `json:"paused"`
	queueCounts
}

// Dead equals Discarded. The averages and rates are of the last hour, as of the published events; for a tenant they are 0,
// because they are kept for the jobs of all together. FailedLastHour counts attempts, AvgDurationMS is of completed jobs,
// AvgWaitMS of started ones.
type queueStats struct {
	Queue string `json:"queue"`
	queueCounts
	Dead int64 `json:"dead"`
	// MaxDepth is the bound of the queue, absent without one.
	MaxDepth          int64   `json:"max_depth,omitempty"`
	CompletedLastHour int64   `json:"completed_last_hour"`
	FailedLastHour    int64   `json:"failed_last_hour"`
	AvgDurationMS     float64 `json:"avg_duration_ms"`
	AvgWaitMS         float64 `json:"avg_wait_ms"`
	Throughput        float64 `json:"throughput_per_second"`
}

// queueStatsBody serves every client at once: `queue` is an object without OJS-Version and the name with it, the rest
// is flat for the JS SDK and in stats for Go and Python.
type queueStatsBody struct {
	Queue any `json:"queue"`
	queueObject
	Stats      queueStats `json:"stats"`
	ComputedAt string     `json:"computed_at"`
}

// An unknown queue has zeros for an operator and is 404 for a tenant; a malformed name is 400 for both. Reading creates no
// queue.
func (a *API) getQueueStats(r *request) error {
	name := param(r, "name")
	if err := api.CheckQueue("name", name); err != nil {
		return err
	}
	stats, err := a.queueStats(r, name)
	if err != nil {
		return err
	}
	body := newQueueStats(stats)
	if flat(r) {
		body.Queue = body.queueObject
	} else {
		body.Queue = name
	}
	// A cache must not give one form to a client of the other.
	r.Response().Header().Add("Vary", "OJS-Version")
	out, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return send(r, http.StatusOK, out)
}

// queueStats are the figures of all jobs of a queue, or of those of the caller's tenant.
// For a tenant, counts are replaced by those of its jobs, and rates are removed.
func (a *API) queueStats(c echo.Context, name string) (queue.Stats, error) {
	caller := a.tenant(c.Request())
	stats, err := a.Jobs.QueueStats(c.Request().Context(), name)
	if err != nil || caller == "" {
		return stats, err
	}
	return a.Tenants.OfQueue(c.Request().Context(), caller, stats)
}

// 3600 s are the hour of the rates.
func newQueueStats(s queue.Stats) queueStatsBody {
	counts := queueCounts{
		Available: s.Counts[ojs.StateAvailable], Active: s.Counts[ojs.StateActive], Scheduled: s.Counts[ojs.StateScheduled],
		Retryable: s.Counts[ojs.StateRetryable], Pending: s.Counts[ojs.StatePending], Completed: s.Counts[ojs.StateCompleted],
		Discarded: s.Counts[ojs.StateDiscarded], Cancelled: s.Counts[ojs.StateCancelled], Depth: s.Counts[ojs.StateAvailable],
	}
	for _, n := range s.Counts {
		counts.Total += n
	}
	return queueStatsBody{
		queueObject: queueObject{Name: s.Name, Status: s.Status, Paused: s.Status == "paused", queueCounts: counts},
		Stats: queueStats{
			Queue: s.Name, queueCounts: counts, Dead: counts.Discarded, MaxDepth: s.MaxDepth,
			CompletedLastHour: s.Rates.Completed, FailedLastHour: s.Rates.Failed,
			AvgDurationMS: api.Average(s.Rates.DurationMs, s.Rates.Completed),
			AvgWaitMS:     api.Average(s.Rates.WaitMs, s.Rates.Started),
			Throughput:    api.Average(s.Rates.Completed, 3600),
		},
		ComputedAt: spec.FormatTime(s.ComputedAt),
	}
}
