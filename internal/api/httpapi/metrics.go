package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Metrics are where the routes of docs/reference/observability.md, Metrics read from.
// Both functions may be nil together; the routes then do not exist.
type Metrics struct {
	// WriteText writes all series of this node in the text format of Prometheus, or as OpenMetrics 1.0.
	WriteText func(ctx context.Context, w io.Writer, openMetrics bool) error

	// Gauges are the figures of the whole deployment.
	Gauges func(ctx context.Context) (metrics.Gauges, error)
}

// Media types of /metrics. The bare one is for those who ask for exactly it and compare the whole header.
const (
	mediaOpenMetrics = "application/openmetrics-text"
	mediaText        = "text/plain"

	typeOpenMetrics = mediaOpenMetrics + "; version=1.0.0; charset=utf-8"
	typePrometheus  = mediaText + "; version=0.0.4; charset=utf-8"
)

// metricsSummary is for the CLI: figures of the whole deployment, rates over the last 60 s.
// Totals are counters of the deployment, not of this node. JobsFailed counts discarded jobs. AvgLatencyMS is the average run
// time of the jobs that completed in the last 60 s, 0 if none did.
type metricsSummary struct {
	UptimeSeconds int64   `json:"uptime_seconds"` // of this node
	JobsEnqueued  int64   `json:"jobs_enqueued_total"`
	JobsCompleted int64   `json:"jobs_completed_total"`
	JobsFailed    int64   `json:"jobs_failed_total"`
	JobsActive    int64   `json:"jobs_active"`
	QueuesActive  int64   `json:"queues_active"`
	WorkersActive int64   `json:"workers_active"`
	AvgLatencyMS  float64 `json:"avg_latency_ms"`
	Throughput    float64 `json:"throughput_per_second"`
}

// metricsRoutes has /metrics outside of the base path, where scrapers look for it. admit lets it through without a key unless the setting
// says otherwise.
func (a *API) metricsRoutes() []route {
	if a.metrics.WriteText == nil {
		return nil
	}
	return []route{
		{"GET", "//metrics", operators, noBody, "", a.getMetrics},
		{"GET", "/metrics", operators, noBody, "format", a.getMetricsSummary},
	}
}

// getMetrics is GET /metrics.
// The status is sent before the figures are read: WriteText leaves out what it cannot read and fails only if the connection
// does.
func (a *API) getMetrics(r *request) error {
	h := r.Response().Header()
	kind := metricsType(r.Request())
	h["Content-Type"] = []string{kind}
	h.Add("Vary", "Accept")
	r.Response().WriteHeader(http.StatusOK)
	if r.Request().Method == http.MethodHead {
		return nil
	}
	return a.metrics.WriteText(r.Request().Context(), r.Response(), kind == typeOpenMetrics)
}

// metricsType follows Accept, and never refuses.
// OpenMetrics is chosen whenever it is named, whatever its weight: scrapers that name it prefer it.
func metricsType(r *http.Request) string {
	accept := strings.Join(r.Header["Accept"], ",")
	switch {
	case strings.Contains(strings.ToLower(accept), mediaOpenMetrics):
		return typeOpenMetrics
	case strings.EqualFold(strings.TrimSpace(accept), mediaText):
		return mediaText
	}
	return typePrometheus
}

// getMetricsSummary is GET /ojs/v1/metrics.
// The gauges are shared with /metrics and may be as old as their interval.
func (a *API) getMetricsSummary(r *request) error {
	switch format := r.QueryParam("format"); format {
	case "prometheus":
		return a.getMetrics(r)
	case "", "json":
	default:
		return spec.InvalidRequest("format", "json or prometheus", format, "format must be json or prometheus.")
	}
	g, err := a.metrics.Gauges(r.Request().Context())
	if err != nil {
		return pg.ClientError(err)
	}
	summary := metricsSummary{
		UptimeSeconds: int64(a.health.Uptime().Seconds()), JobsEnqueued: g.EnqueuedTotal, JobsCompleted: g.CompletedTotal,
		JobsFailed: g.DiscardedTotal, QueuesActive: g.QueuesActive, WorkersActive: g.WorkersActive, Throughput: g.Completed / 60,
	}
	// There is no total of active jobs among the gauges.
	for _, q := range g.Queues {
		summary.JobsActive += q.Jobs[ojs.StateActive]
	}
	if g.Completed > 0 {
		summary.AvgLatencyMS = float64(g.Ran.Milliseconds()) / g.Completed
	}
	return sendJSON(r, http.StatusOK, summary)
}
