package httpapi

import (
	"math"
	"net/http"
	"time"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// adminStatsRoutes are those of docs/reference/admin.md, Statistics. The figures of the deployment are for operators.
func (a *API) adminStatsRoutes() []route {
	return []route{
		{"GET", "/admin/stats", api.Operators, noBody, "queue", a.getAdminStats},
		{"GET", "/admin/stats/history", api.Operators, noBody, "queue period since until", a.getStatsHistory},
		{"GET", "/admin/stats/stream", api.Operators, noBody, "", a.streamStats},
	}
}

// stateCounts has every state, because clients add them up without looking.
// Available includes jobs that cannot be fetched at the moment: those of a paused queue, and those that a limit or a serial
// cron holds back.
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

func newStateCounts(c queueadmin.Counts) stateCounts {
	return stateCounts{
		Available: c[ojs.StateAvailable], Active: c[ojs.StateActive], Scheduled: c[ojs.StateScheduled], Retryable: c[ojs.StateRetryable],
		Pending: c[ojs.StatePending], Completed: c[ojs.StateCompleted], Discarded: c[ojs.StateDiscarded], Cancelled: c[ojs.StateCancelled],
	}
}

// throughput has the names of the admin UI, and those of the CLI, which reads integers.
// Processed, Failed and the three of the CLI are per minute, over the last 60 s. Failed counts attempts. Latency is in ms:
// the run times of the jobs that completed in that time, divided by their number, 0 if there are none.
type throughput struct {
	Processed    float64 `json:"processed_per_minute"`
	Failed       float64 `json:"failed_per_minute"`
	EnqueuedCLI  int64   `json:"enqueued_per_min"`
	CompletedCLI int64   `json:"completed_per_min"`
	FailedCLI    int64   `json:"failed_per_min"`
	Latency      float64 `json:"avg_latency_ms"`
}

// queueSummary counts queues by status. Total has the draining ones, too, so it may be more than the sum of the others.
type queueSummary struct {
	Total  int64 `json:"total"`
	Active int64 `json:"active"`
	Paused int64 `json:"paused"`
}

// workerSummary counts workers by the state of docs/reference/workers.md, Worker states. Stale ones are declared dead and are
// in Total.
type workerSummary struct {
	Total     int64 `json:"total"`
	Running   int64 `json:"running"`
	Quiet     int64 `json:"quiet"`
	Terminate int64 `json:"terminate"`
	Stale     int64 `json:"stale"`
}

// adminStats is the answer of GET /admin/stats (docs/reference/admin.md, Statistics). Queues and Workers repeat the totals of
// the two summaries: the CLI reads the numbers, the admin UI the objects. Uptime is in seconds, of the node that answers; all
// other figures are of the deployment.
type adminStats struct {
	Queues     int64         `json:"queues"`
	Workers    int64         `json:"workers"`
	Jobs       stateCounts   `json:"jobs"`
	Throughput throughput    `json:"throughput"`
	QueueSum   queueSummary  `json:"queue_summary"`
	WorkerSum  workerSummary `json:"worker_summary"`
	Uptime     int64         `json:"uptime_seconds"`
}

// getAdminStats shows figures of one snapshot. With a queue, jobs and throughput are those of the queue; queues and workers
// are those of the deployment in either case.
func (a *API) getAdminStats(r *request) error {
	queue := r.queue()
	if r.err != nil {
		return r.err
	}
	d, err := a.Stats.Deployment(r.Request().Context(), queue)
	if err != nil {
		return err
	}
	latency := 0.0
	// Ran is the sum of the run times of just these jobs.
	if d.Rates.Completed > 0 {
		latency = round1(float64(d.Rates.Ran) / float64(time.Millisecond) / d.Rates.Completed)
	}
	return sendJSON(r, http.StatusOK, adminStats{
		Queues: d.Queues.Total, Workers: d.Workers.Total, Jobs: newStateCounts(d.Jobs),
		Throughput: throughput{
			Processed: round1(d.Rates.Completed), Failed: round1(d.Rates.Failed), EnqueuedCLI: int64(math.Round(d.Rates.Enqueued)),
			CompletedCLI: int64(math.Round(d.Rates.Completed)), FailedCLI: int64(math.Round(d.Rates.Failed)), Latency: latency,
		},
		QueueSum: queueSummary(d.Queues), WorkerSum: workerSummary(d.Workers), Uptime: int64(a.health.Uptime().Seconds()),
	})
}

// queue reads the name of one queue; "": not sent.
// A queue that does not exist is no error here: it has zeros.
func (r *request) queue() string {
	name := r.QueryParam("queue")
	if name != "" {
		r.refuse(api.CheckQueue("queue", name))
	}
	return name
}

// round1 keeps one digit, so that figures read well.
// Counts per range are an estimate, of which more digits would promise too much.
func round1(f float64) float64 { return math.Round(f*10) / 10 }

// historyPoint is one period of docs/reference/admin.md, Statistics. Timestamp is its beginning. Processed and Completed are
// equal, for the two clients that read one of them. Failed counts attempts, all others count jobs. Run times are in ms and of
// jobs that completed in the period; the percentiles are estimated from counts per range, the average is exact.
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

// statsHistory has the points twice, because the admin UI and the CLI read them under different names.
type statsHistory struct {
	Period string         `json:"period"`
	Data   []historyPoint `json:"data"`
	Points []historyPoint `json:"data_points"` // the same for the CLI
}

// getStatsHistory shows a point for each period, also where nothing happened, so that a chart needs no rules for gaps. The
// newest point grows until its period is over. oneOf has checked the period, so the look-up always finds one.
func (a *API) getStatsHistory(r *request) error {
	queue, period := r.queue(), r.oneOf("period", "5m", "1m", "1h", "1d")
	// Without since the last hour is shown; the store cuts what is older than what is kept.
	h := queueadmin.HistoryQuery{Queue: queue, Period: queueadmin.Periods[period], Since: r.age("since"), Until: r.age("until")}
	if r.err != nil {
		return r.err
	}
	points, err := a.Stats.History(r.Request().Context(), h)
	if err != nil {
		return err
	}
	data := make([]historyPoint, len(points))
	for i, p := range points {
		data[i] = historyPoint{
			Timestamp: spec.FormatTime(p.At), Processed: p.Completed, Completed: p.Completed, Failed: p.Failed, Enqueued: p.Enqueued,
			Discarded: p.Discarded, Cancelled: p.Cancelled,
			P50: round1(p.Durations.Percentile(0.5)), P99: round1(p.Durations.Percentile(0.99)), Average: round1(api.Average(p.DurationMS, p.Completed)),
		}
	}
	return sendJSON(r, http.StatusOK, statsHistory{period, data, data})
}
