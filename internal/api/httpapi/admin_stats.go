package httpapi

import (
	"math"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/stats"
	"github.com/ojsd/ojsd/ojs"
)

// adminStatsRoutes are those of docs/reference/admin.md, Statistics.
func (a *API) adminStatsRoutes(v1 *echo.Group) {
	reading := []string{http.MethodGet, http.MethodHead}
	v1.Match(reading, "/admin/stats", a.getAdminStats)
	v1.Match(reading, "/admin/stats/history", a.getStatsHistory)
	a.tenantRoutes(v1)
}

// stateCounts has every state, because clients add them up without looking.
type stateCounts struct {
	Available int64 `json:"available"`
	Active    int64 `json:"active"`
	Scheduled int64 `json:"scheduled"`
	Retryable int64 `json:"retryable"`
	Pending   int64 `json:"pending"`
	Completed int64 `json:"completed"`
	Discarded int64 `json:"discarded"`
	Cancelled int64 `json:"cancelled"`
}

func newStateCounts(c stats.Counts) stateCounts {
	return stateCounts{
		Available: c[ojs.StateAvailable], Active: c[ojs.StateActive], Scheduled: c[ojs.StateScheduled], Retryable: c[ojs.StateRetryable],
		Pending: c[ojs.StatePending], Completed: c[ojs.StateCompleted], Discarded: c[ojs.StateDiscarded], Cancelled: c[ojs.StateCancelled],
	}
}

// throughput has the names of the admin UI, and those of the CLI, which reads integers.
type throughput struct {
	Processed    float64 `json:"processed_per_minute"`
	Failed       float64 `json:"failed_per_minute"`
	EnqueuedCLI  int64   `json:"enqueued_per_min"`
	CompletedCLI int64   `json:"completed_per_min"`
	FailedCLI    int64   `json:"failed_per_min"`
	Latency      float64 `json:"avg_latency_ms"`
}

type queueSummary struct {
	Total  int64 `json:"total"`
	Active int64 `json:"active"`
	Paused int64 `json:"paused"`
}

type workerSummary struct {
	Total     int64 `json:"total"`
	Running   int64 `json:"running"`
	Quiet     int64 `json:"quiet"`
	Terminate int64 `json:"terminate"`
	Stale     int64 `json:"stale"`
}

type adminStats struct {
	Queues     int64         `json:"queues"`
	Workers    int64         `json:"workers"`
	Jobs       stateCounts   `json:"jobs"`
	Throughput throughput    `json:"throughput"`
	QueueSum   queueSummary  `json:"queue_summary"`
	WorkerSum  workerSummary `json:"worker_summary"`
	Uptime     int64         `json:"uptime_seconds"`
}

func (a *API) getAdminStats(c echo.Context) error {
	queue, err := queueParameter(c)
	if err != nil {
		return err
	}
	d, err := a.Stats.Deployment(c.Request().Context(), queue)
	if err != nil {
		return err
	}
	latency := 0.0
	if d.Rates.Completed > 0 {
		latency = round1(float64(d.Rates.Ran) / float64(time.Millisecond) / d.Rates.Completed)
	}
	return sendJSON(c, http.StatusOK, adminStats{
		Queues: d.Queues.Total, Workers: d.Workers.Total, Jobs: newStateCounts(d.Jobs),
		Throughput: throughput{
			Processed: round1(d.Rates.Completed), Failed: round1(d.Rates.Failed), EnqueuedCLI: int64(math.Round(d.Rates.Enqueued)),
			CompletedCLI: int64(math.Round(d.Rates.Completed)), FailedCLI: int64(math.Round(d.Rates.Failed)), Latency: latency,
		},
		QueueSum: queueSummary(d.Queues), WorkerSum: workerSummary(d.Workers), Uptime: int64(a.health.Uptime().Seconds()),
	})
}

// queueParameter reads the name of one queue; "": not sent.
func queueParameter(c echo.Context) (string, error) {
	name := c.QueryParam("queue")
	if name == "" {
		return "", nil
	}
	return name, api.CheckQueue("queue", name)
}

// round1 keeps one digit, so that figures read well.
func round1(f float64) float64 { return math.Round(f*10) / 10 }

type historyPoint struct {
	Timestamp string  `json:"timestamp"`
	Processed int64   `json:"processed"`
	Completed int64   `json:"completed"`
	Failed    int64   `json:"failed"`
	Enqueued  int64   `json:"enqueued"`
	Discarded int64   `json:"discarded"`
	Cancelled int64   `json:"cancelled"`
	P50       float64 `json:"latency_p50_ms"`
	P99       float64 `json:"latency_p99_ms"`
	Average   float64 `json:"avg_latency_ms"`
}

type statsHistory struct {
	Period string         `json:"period"`
	Data   []historyPoint `json:"data"`
	Points []historyPoint `json:"data_points"` // the same for the CLI
}

func (a *API) getStatsHistory(c echo.Context) error {
	queue, err := queueParameter(c)
	if err != nil {
		return err
	}
	period, err := oneOf(c, "period", "5m", "1m", "1h", "1d")
	if err != nil {
		return err
	}
	h := stats.HistoryQuery{Queue: queue, Period: stats.Periods[period]}
	if h.Since, err = ageParameter(c, "since"); err != nil {
		return err
	}
	if h.Until, err = ageParameter(c, "until"); err != nil {
		return err
	}
	points, err := a.Stats.History(c.Request().Context(), h)
	if err != nil {
		return err
	}
	data := make([]historyPoint, len(points))
	for i, p := range points {
		data[i] = historyPoint{
			Timestamp: ojs.FormatTime(p.At), Processed: p.Completed, Completed: p.Completed, Failed: p.Failed, Enqueued: p.Enqueued,
			Discarded: p.Discarded, Cancelled: p.Cancelled,
			P50: round1(p.Durations.Percentile(0.5)), P99: round1(p.Durations.Percentile(0.99)), Average: round1(api.Average(p.DurationMS, p.Completed)),
		}
	}
	return sendJSON(c, http.StatusOK, statsHistory{period, data, data})
}
