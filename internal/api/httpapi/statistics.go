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
		{"GET", "/admin/stats/types", api.Operators, noBody, "queue", a.getStatsTypes},
		{"GET", "/admin/stats/stream", api.Operators, noBody, "", a.streamStats},
	}
}

// showStates has every state, because clients add them up without looking.
// available includes jobs that cannot be fetched at the moment: those of a paused queue, and those that a limit or a serial
// cron holds back.
func showStates(counts map[ojs.JobState]int64) object {
	shown := make(object, len(countedStates))
	for i, state := range countedStates {
		shown[i] = member{string(state), counts[state]}
	}
	return shown
}

// getAdminStats shows figures of one snapshot. With a queue, jobs and throughput are those of the queue; queues and workers
// are those of the deployment in either case, and uptime_seconds is of the node that answers. The totals of queues and workers are
// repeated as numbers: the CLI reads these, the admin UI the summaries. The total of queue_summary has the draining ones, too, so it may be
// more than the sum of the others; that of worker_summary has the stale ones, which are declared dead.
//
// throughput has the names of the admin UI, and those of the CLI, which reads integers: per minute, over the last 60 s. Failures are
// attempts. The latency is in ms: the run times of the jobs that completed in that time, divided by their number, 0 if there are none.
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
	queues, workers, rates := d.Queues, d.Workers, d.Rates
	return sendJSON(r, http.StatusOK, object{
		{"queues", queues.Total}, {"workers", workers.Total - workers.Stale}, {"jobs", showStates(d.Jobs)},
		{"throughput", object{
			{"processed_per_minute", round1(rates.Completed)}, {"failed_per_minute", round1(rates.Failed)},
			{"enqueued_per_min", int64(math.Round(rates.Enqueued))},
			{"completed_per_min", int64(math.Round(rates.Completed))}, {"failed_per_min", int64(math.Round(rates.Failed))},
			{"avg_latency_ms", latency},
		}},
		{"queue_summary", object{{"total", queues.Total}, {"active", queues.Active}, {"paused", queues.Paused}}},
		{"worker_summary", object{{"total", workers.Total}, {"running", workers.Running}, {"quiet", workers.Quiet},
			{"terminate", workers.Terminate}, {"stale", workers.Stale}}},
		{"uptime_seconds", int64(a.health.Uptime().Seconds())},
	})
}

// getStatsTypes shows what the newest events say about each type of jobs, the slowest first. Unlike the figures of queues they are exact,
// and of the latest jobs only.
func (a *API) getStatsTypes(r *request) error {
	queue := r.queue()
	if r.err != nil {
		return r.err
	}
	types, since, err := a.Stats.Types(r.Request().Context(), queue)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, object{{"items", each(types, func(t *queueadmin.TypeStatistics) object {
		return object{
			{"type", t.Type}, {"completed", t.Completed}, {"failed", t.Failed}, {"run_ms", showPercentiles(t.Ran)},
			{"wait_ms", showPercentiles(t.Waited)},
		}
	})}, {"since", since}})
}

// showPercentiles leaves out what did not happen.
func showPercentiles(p []int64) any {
	if len(p) == 0 {
		return omitted{}
	}
	return object{{"p50", p[0]}, {"p95", p[1]}, {"p99", p[2]}}
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

// getStatsHistory shows a point for each period, also where nothing happened, so that a chart needs no rules for gaps. The
// newest point grows until its period is over. oneOf has checked the period, so the look-up always finds one.
//
// The points stand there twice, because the admin UI and the CLI read them under different names, as they do processed and completed.
// Failures are attempts, all others are jobs. Run times are in ms and of jobs that completed in the period; the percentiles are estimated
// from counts per range, the average is exact.
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
	data := each(points, func(p *queueadmin.Point) object {
		return object{
			{"timestamp", spec.FormatTime(p.At)}, {"processed", p.Completed}, {"completed", p.Completed}, {"failed", p.Failed},
			{"enqueued", p.Enqueued},
			{"discarded", p.Discarded}, {"cancelled", p.Cancelled}, {"latency_p50_ms", round1(p.Durations.Percentile(0.5))},
			{"latency_p99_ms", round1(p.Durations.Percentile(0.99))}, {"avg_latency_ms", round1(api.Average(p.DurationMS, p.Completed))},
		}
	})
	return sendJSON(r, http.StatusOK, object{{"period", period}, {"data", data}, {"data_points", data}})
}
