package e2e_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// documentedSeries are those of docs/reference/observability.md, except for gRPC (see TestGRPCMetrics), as they are after
// everything has happened once.
var documentedSeries = []struct {
	name, kind, labels string
	buckets            string
}{
	{"ojs_jobs_enqueued_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_completed_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_failed_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_duration_ms", "HISTOGRAM", "job_type,queue", "5 10 25 50 100 250 500 1000 2500 5000 10000 30000 60000 300000"},
	{"ojs_jobs_wait_ms", "HISTOGRAM", "job_type,queue", "10 50 100 500 1000 5000 10000 30000 60000 300000 600000"},
	{"ojs_queue_depth", "GAUGE", "queue", ""},
	{"ojs_queue_active", "GAUGE", "queue", ""},
	{"ojs_dead_letter_depth", "GAUGE", "queue", ""},

	{"ojs_job_attempts_failed_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_retrying_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_cancelled_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_expired_total", "COUNTER", "job_type,queue", ""},
	{"ojs_jobs_scheduled_total", "COUNTER", "job_type,queue", ""},
	{"ojs_queue_jobs", "GAUGE", "queue,state", ""},
	{"ojs_scheduling_dispatch_total", "COUNTER", "job_type,queue", ""},
	{"ojs_bulk_requests_total", "COUNTER", "operation", ""},
	{"ojs_bulk_items_total", "COUNTER", "operation", ""},
	{"ojs_workers_active", "GAUGE", "", ""},
	{"ojs_workers_busy", "GAUGE", "queue", ""},
	{"ojs_progress_updates_total", "COUNTER", "job_type,queue", ""},
	{"ojs_events_published_total", "COUNTER", "type", ""},
	{"ojs_events_unpublished", "GAUGE", "", ""},
	{"ojs_events_publish_lag_seconds", "GAUGE", "", ""},
	{"ojs_events_retained", "GAUGE", "", ""},
	{"ojs_realtime_connections", "GAUGE", "transport", ""},
	{"ojs_realtime_catchup_connections", "GAUGE", "transport", ""},
	{"ojs_realtime_dropped_total", "COUNTER", "transport", ""},
	{"ojs_webhook_delivery_count_total", "COUNTER", "event_type,status", ""},
	{"ojs_webhook_delivery_duration_ms", "HISTOGRAM", "event_type,subscription_id", "5 10 25 50 100 250 500 1000 2500 5000 10000 30000 60000 300000"},
	{"ojs_webhook_delivery_retry_count", "HISTOGRAM", "event_type", "0 1 2 3 4 5 6 7"},
	{"ojs_webhook_dead_delivery_count_total", "COUNTER", "event_type,subscription_id", ""},
	{"ojs_webhook_subscription_count", "GAUGE", "", ""},
	{"ojs_webhook_pending", "GAUGE", "", ""},
	{"ojs_http_requests_total", "COUNTER", "method,route,status", ""},
	{"ojs_http_request_duration_seconds", "HISTOGRAM", "method,route,status", "0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5"},
	{"ojs_db_pool_connections", "GAUGE", "state", ""},
	{"ojs_listener_reconnects_total", "COUNTER", "", ""},
	{"ojs_database_outages_total", "COUNTER", "", ""},

	{"ojs_job_enqueued_total", "COUNTER", "queue,type", ""},
	{"ojs_job_completed_total", "COUNTER", "queue,type", ""},
	{"ojs_job_failed_total", "COUNTER", "queue,type", ""},
	{"ojs_job_retried_total", "COUNTER", "queue,type", ""},
	{"ojs_job_cancelled_total", "COUNTER", "queue,type", ""},
	{"ojs_job_expired_total", "COUNTER", "queue,type", ""},
	{"ojs_job_duration_seconds", "HISTOGRAM", "queue,state,type", "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 120 300"},
	{"ojs_job_queue_time_seconds", "HISTOGRAM", "queue,type", "0.01 0.05 0.1 0.5 1 5 10 30 60 300 600 1800 3600"},

	{"go_goroutines", "GAUGE", "", ""},
	{"process_resident_memory_bytes", "GAUGE", "", ""},

	// For operators, beyond the Open Job Spec.
	{"ojs_database_up", "GAUGE", "", ""},
	{"ojs_component_ok", "GAUGE", "component", ""},
	{"ojs_queue_oldest_ready_seconds", "GAUGE", "queue", ""},
	{"ojs_lease_losses_total", "COUNTER", "job_type,queue,reason", ""},
	{"ojs_events_retained_seconds", "GAUGE", "", ""},
	{"ojs_batch_requests", "HISTOGRAM", "operation", "1 2 5 10 20 50 100 200 500 1000"},
	{"ojs_batch_duration_seconds", "HISTOGRAM", "operation", "0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5"},
	{"ojs_db_pool_max_connections", "GAUGE", "", ""},
	{"ojs_db_pool_waits_total", "COUNTER", "", ""},
	{"ojs_db_table_live_rows", "GAUGE", "table", ""},
	{"ojs_db_table_dead_rows", "GAUGE", "table", ""},
	{"ojs_db_table_bytes", "GAUGE", "table", ""},
	{"ojs_retention_behind_seconds", "GAUGE", "data", ""},
	{"ojs_db_sessions_visible", "GAUGE", "", ""},
	{"ojs_db_xmin_age_seconds", "GAUGE", "", ""},
	{"ojs_db_xmin_age_transactions", "GAUGE", "", ""},
}

func documentedNames() (names []string) {
	for _, s := range documentedSeries {
		names = append(names, s.name)
	}
	return names
}

// onceEach makes something of every kind happen in one queue.
func (a *node) onceEach(q string) {
	a.t.Helper()
	a.ack(a.busy(q, "")).is(200)
	a.nack(a.busy(q, ""), `"error":{"message":"boom","retryable":false}`).is(200)
	a.nack(a.busy(q, `,"retry":{"initial_interval":"PT1H"}`)).is(200)
	a.del("/ojs/v1/jobs/" + a.push(`"type":"t","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)).is(200)
	expired := a.push(`"type":"t","args":[],"queue":"%s","expires_at":"PT0.05S"`, q)
	eventually(a.t, func() bool { return a.job(expired).at("job.state") == "discarded" })
	running := a.busy(q, `,"visibility_timeout":"PT2S"`) // a busy machine must report in this time
	a.put("/ojs/v1/jobs/"+running+"/progress", `{"progress":0.5}`).is(200)
	eventually(a.t, func() bool { return a.job(running).at("job.state") != "active" })
}

// TestMetrics covers docs/reference/observability.md, Metrics.
func TestMetrics(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(w http.ResponseWriter, c call) {
		if c.header.Get("X-OJS-Event-Type") == "job.cancelled" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	// Subtests may wait a minute for their turn, and the worker must not be dead by then.
	a := setup(t, freshGauges, e.quick, func(c *app.Config) { c.Workers.DeadAfter, c.Metrics.Compat = time.Hour, true })
	a.subscribe(e, "/", `"job.cancelled","job.completed"`)
	a.onceEach("q")
	for _, path := range []string{"/ojs/v1/jobs/bulk/cancel", "/ojs/v1/admin/jobs/bulk/cancel"} {
		a.post(path, `{"filter":{"queue":"none"},"confirm":true}`).is(200)
	}
	a.post("/ojs/v1/jobs/bulk", `{"jobs":[{},{}]}`).is(422)
	eventually(t, func() bool {
		return a.deliveries("status=dead").count("deliveries") == 1 && a.deliveries("status=delivered").count("deliveries") == 1
	})
	a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","active_jobs":["`+newID()+`"],"queues":["q"]}`).is(200)

	t.Run("ShowEverySeries", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		s := a.scrape()
		for start := time.Now(); !s.has(documentedNames()...) && time.Since(start) < waitFor; {
			s = a.scrape()
		}
		for _, want := range documentedSeries {
			f := s[want.name]
			require.NotNil(t, f, want.name)
			require.Equal(t, want.kind, f.GetType().String(), want.name)
			require.NotEmpty(t, f.GetHelp(), want.name)
			for _, m := range f.GetMetric() {
				var names []string
				for _, l := range m.GetLabel() {
					names = append(names, l.GetName())
				}
				slices.Sort(names)
				require.Equal(t, want.labels, strings.Join(names, ","), want.name)
				if want.buckets == "" {
					continue
				}
				var bounds []string
				for _, b := range m.GetHistogram().GetBucket() {
					bounds = append(bounds, fmt.Sprintf("%g", b.GetUpperBound()))
				}
				require.Equal(t, want.buckets+" +Inf", strings.ReplaceAll(strings.ReplaceAll(strings.Join(bounds, " "), "e+05", "00000"), "e+06", "000000"), want.name)
			}
		}
	})

	t.Run("HaveNoOtherNames", func(t *testing.T) {
		t.Parallel()
		known := map[string]bool{"ojs_db_xmin_holder": true, "ojs_events_relay_holder": true}
		for _, want := range documentedSeries {
			known[want.name] = true
		}
		for name := range a.in(t).scrape() {
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				continue
			}
			require.True(t, known[name], name)
		}
	})

	t.Run("CountWhatHasHappened", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		s := a.scrape()
		const l = "job_type=t,queue=q"
		for name, want := range map[string]float64{
			"ojs_jobs_enqueued_total": 5, "ojs_jobs_completed_total": 1, "ojs_jobs_failed_total": 1, "ojs_job_attempts_failed_total": 3,
			"ojs_jobs_retrying_total": 1, "ojs_jobs_cancelled_total": 1, "ojs_jobs_expired_total": 1, "ojs_jobs_scheduled_total": 1,
			"ojs_progress_updates_total": 1, "ojs_jobs_duration_ms": 4, "ojs_jobs_wait_ms": 4, "ojs_scheduling_dispatch_total": 4,
		} {
			require.Equal(t, want, s.values(name)[l], name)
		}
		require.Equal(t, map[string]float64{l + ",reason=visibility_timeout": 1}, s.values("ojs_lease_losses_total"))
		require.Equal(t, map[string]float64{
			"queue=q,state=available,type=t": 1, "queue=q,state=completed,type=t": 1, "queue=q,state=discarded,type=t": 1, "queue=q,state=retryable,type=t": 1,
		}, s.values("ojs_job_duration_seconds"))
		require.GreaterOrEqual(t, s.sums("ojs_jobs_duration_ms")[l], 2000.0)
		require.InDelta(t, s.sums("ojs_jobs_wait_ms")[l]/1000, s.sums("ojs_job_queue_time_seconds")["queue=q,type=t"], 1e-9)
		require.Positive(t, s.values("ojs_http_requests_total")["method=POST,route=/ojs/v1/jobs,status=201"])
		require.Positive(t, s.values("ojs_batch_requests")["operation=enqueue"])
		require.Equal(t, map[string]float64{"operation=cancel": 2, "operation=enqueue": 1}, s.values("ojs_bulk_requests_total"))
		require.Equal(t, map[string]float64{"operation=cancel": 0, "operation=enqueue": 2}, s.values("ojs_bulk_items_total"))
	})

	t.Run("GaugesOfTheDeployment", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		s := a.scrape()
		for state, want := range map[string]float64{
			"available": 1, "active": 0, "completed": 1, "discarded": 2, "retryable": 1, "cancelled": 1, "scheduled": 0, "pending": 0,
		} { // a look that was costly is not repeated at once
			eventually(t, func() bool { s = a.scrape(); return s.values("ojs_queue_jobs")["queue=q,state="+state] == want })
		}
		eventually(t, func() bool {
			s = a.scrape()
			return s.has("ojs_queue_depth", "ojs_queue_active", "ojs_workers_active", "ojs_queue_oldest_ready_seconds", "ojs_events_retained_seconds", "ojs_db_table_bytes")
		})
		require.Equal(t, 1.0, s.values("ojs_queue_depth")["queue=q"])
		require.Equal(t, 0.0, s.values("ojs_queue_active")["queue=q"])
		require.Equal(t, 1.0, s.values("ojs_workers_active")[""])
		require.Equal(t, 1.0, s.values("ojs_workers_busy")["queue=q"])
		require.Equal(t, 1.0, s.values("ojs_database_up")[""])
		require.Positive(t, s.values("ojs_queue_oldest_ready_seconds")["queue=q"])
		require.Positive(t, s.values("ojs_events_retained_seconds")[""])
		require.Equal(t, []string{"table=event_gaps", "table=event_relay", "table=events", "table=jobs", "table=jobs_done", "table=queue_counts", "table=stats_minute", "table=webhook_deliveries", "table=workers"},
			slices.Sorted(maps.Keys(s.values("ojs_db_table_bytes"))))
		require.Equal(t, map[string]float64{"data=events": 0, "data=finished_jobs": 0}, s.values("ojs_retention_behind_seconds"))
	})

	t.Run("FollowAccept", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		const prometheus = "text/plain; version=0.0.4; charset=utf-8"
		const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"
		for accept, want := range map[string]string{
			"": prometheus, "*/*": prometheus, "application/json": prometheus, "text/plain": "text/plain", " text/plain ": "text/plain",
			"text/plain;version=0.0.4": prometheus, "text/plain, */*": prometheus,
			"application/openmetrics-text":               openMetrics,
			"application/openmetrics-text;version=1.0.0": openMetrics,
			"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2": openMetrics,
		} {
			var headers []string
			if accept != "" {
				headers = append(headers, "Accept: "+accept)
			}
			r := a.get("/metrics", headers...).is(200)
			require.Equal(t, []string{want}, r.header["Content-Type"], accept)
			require.Equal(t, want == openMetrics, strings.HasSuffix(r.body, "# EOF\n"), accept)
			require.Contains(t, r.body, "ojs_jobs_enqueued_total{")
			require.NotContains(t, r.body, "otel_")
			require.NotContains(t, r.body, "target_info")
			h := a.do(http.MethodHead, "/metrics", nil, headers...).is(200)
			require.Equal(t, []string{want}, h.header["Content-Type"])
			require.Empty(t, h.body)
			require.NotEmpty(t, h.header.Get("X-Request-Id"))
		}
		a.post("/metrics", "").is(405)
		require.Equal(t, 1, strings.Count(a.get("/metrics", "Accept: application/openmetrics-text").body, "# TYPE go_memstats_alloc_bytes "))
	})

	t.Run("Summary", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for member, want := range map[string]string{
			"jobs_enqueued_total": "5", "jobs_completed_total": "1", "jobs_failed_total": "1", "jobs_active": "0", "queues_active": "1", "workers_active": "1",
		} {
			eventually(t, func() bool { return a.get("/ojs/v1/metrics").is(200).at(member) == want })
		}
		r := a.get("/ojs/v1/metrics").is(200)
		for _, member := range []string{"uptime_seconds", "avg_latency_ms", "throughput_per_second"} {
			require.True(t, r.has(member), member)
		}
		require.Equal(t, mediaOJS, r.header.Get("Content-Type"))
		a.get("/v1/metrics").is(200)
		text := a.get("/ojs/v1/metrics?format=prometheus").is(200)
		require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", text.header.Get("Content-Type"))
		require.NotEmpty(t, parseMetrics(t, text.body)["ojs_jobs_enqueued_total"])
		a.get("/ojs/v1/metrics?format=xml").is(400)
		a.do(http.MethodHead, "/ojs/v1/metrics", nil).is(200)
	})

	t.Run("AreInTheManifest", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).get("/ojs/manifest").is(200)
		require.Equal(t, "/metrics", r.at("endpoints.metrics"))
		require.Contains(t, r.texts("extensions"), "urn:ojs:ext:observability")
	})
}

func TestMetricsSettings(t *testing.T) {
	t.Parallel()

	t.Run("AreOpenUnlessTheyRequireAKey", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"one"} })
		a.get("/metrics").is(200)
		a.get("/ojs/v1/metrics").is(401)
		a.get("/ojs/v1/metrics?format=prometheus").is(401)
		b := setup(t, func(c *app.Config) { c.Server.APIKeys, c.Metrics.RequireAuth = []string{"one"}, true })
		b.get("/metrics").fails(401, "unauthenticated", "unauthenticated")
		b.get("/metrics", "Authorization: Bearer one").is(200)
		setup(t, func(c *app.Config) { c.Metrics.RequireAuth = true }).get("/metrics").is(200)
	})

	t.Run("BoundLabels", func(t *testing.T) {
		t.Parallel()
		a := setup(t, freshGauges, func(c *app.Config) { c.Metrics.MaxLabelValues, c.Metrics.MaxQueues = 3, 3 })
		for i := range 6 {
			a.push(`"type":"t%d","args":[],"queue":"q%d"`, i, i)
		}
		var s scrape
		eventually(t, func() bool {
			s = a.scrape()
			return s.values("ojs_queue_depth")["queue=__other__"] == 3 && s.has("ojs_queue_oldest_ready_seconds")
		})
		require.Equal(t, map[string]float64{
			"job_type=t0,queue=q0": 1, "job_type=t1,queue=q1": 1, "job_type=t2,queue=q2": 1, "job_type=__other__,queue=__other__": 3,
		}, s.values("ojs_jobs_enqueued_total"))
		require.Equal(t, map[string]float64{"queue=q0": 1, "queue=q1": 1, "queue=q2": 1, "queue=__other__": 3}, s.values("ojs_queue_depth"))
		require.Len(t, s.values("ojs_queue_oldest_ready_seconds"), 3)
	})

	t.Run("ReadGaugesOncePerInterval", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Metrics.GaugeInterval = time.Hour })
		require.Empty(t, a.scrape().values("ojs_queue_depth"))
		a.push(`"type":"t","args":[],"queue":"q"`)
		s := a.scrape()
		require.Empty(t, s.values("ojs_queue_depth"))
		require.Equal(t, 1.0, s.values("ojs_jobs_enqueued_total")["job_type=t,queue=q"])
	})

	t.Run("RefuseWhatCannotWork", func(t *testing.T) {
		t.Parallel()
		config := settings(dbtest.URL(t))
		config.MetricsProtocol = "http/json"
		_, err := app.Start(t.Context(), config)
		require.Error(t, err)
	})
}

func TestMetricsOfStreams(t *testing.T) {
	t.Parallel()
	a := setup(t)
	count := func(name, transport string) float64 { return a.scrape().values(name)["transport="+transport] }
	require.Equal(t, 0.0, count("ojs_realtime_connections", "sse"))
	stream := a.open("/ojs/v1/events/stream")
	socket := a.socket()
	socket.send(`{"action":"subscribe","channel":"events"}`)
	socket.receive()
	require.Equal(t, 1.0, count("ojs_realtime_connections", "sse"))
	require.Equal(t, 1.0, count("ojs_realtime_connections", "websocket"))
	a.push(`"type":"t","args":[]`)
	stream.next()
	socket.receive()
	eventually(t, func() bool { return count("ojs_realtime_catchup_connections", "sse") == 0 })
	eventually(t, func() bool { return count("ojs_realtime_catchup_connections", "websocket") == 0 })
}

func TestMetricsOfTwoNodes(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	same := func(c *app.Config) { c.Database.URL = url }
	a, b := setup(t, freshGauges, same), setup(t, freshGauges, same)
	for i := range 10 {
		a.push(`"type":"t","args":[],"queue":"q%d"`, i%3)
		b.push(`"type":"t","args":[],"queue":"q%d"`, i%3)
	}
	a.fetch("q1", `"count":3`, `"visibility_timeout_ms":600000`)
	b.nack(b.busy("dead", ""), `"error":{"code":"DEAD_LETTER","message":"boom"}`).is(200)
	var of, other scrape
	for _, shown := range []struct {
		node *node
		last *scrape
	}{{a, &of}, {b, &other}} {
		eventually(t, func() bool {
			*shown.last = shown.node.scrape()
			return shown.last.values("ojs_queue_jobs")["queue=dead,state=discarded"] == 1 && shown.last.values("ojs_events_unpublished")[""] == 0
		})
	}
	for _, name := range []string{"ojs_queue_jobs", "ojs_queue_depth", "ojs_queue_active", "ojs_workers_active", "ojs_workers_busy", "ojs_events_retained", "ojs_events_unpublished"} {
		require.NotEmpty(t, of.values(name), name)
		require.Equal(t, of.values(name), other.values(name), name)
	}
	for _, node := range []*node{a, b} {
		eventually(t, func() bool { return node.scrape().values("ojs_dead_letter_depth")["queue=dead"] == 1 })
	}
	require.Equal(t, 3.0, of.values("ojs_queue_active")["queue=q1"])
	require.NotEqual(t, of.values("ojs_jobs_enqueued_total"), other.values("ojs_jobs_enqueued_total"))

	t.Run("KeepTheQueuesOfAStoppedNode", func(t *testing.T) {
		c := setup(t, freshGauges, same)
		var s scrape // a read of the gauges that takes longer than its bound gives no series
		eventually(t, func() bool { s = c.scrape(); return s.has("ojs_queue_depth") })
		require.Equal(t, of.values("ojs_queue_depth"), s.values("ojs_queue_depth"))
		require.Empty(t, s.values("ojs_jobs_enqueued_total"))
	})
}

func TestMetricsWithoutDatabase(t *testing.T) {
	t.Parallel()
	cluster := dbtest.Cluster(t)
	a := setup(t, freshGauges, func(c *app.Config) { c.Database.URL = cluster.URL(dbtest.ClusterDatabase) })
	a.push(`"type":"t","args":[],"queue":"q"`)
	eventually(t, func() bool { return a.scrape().values("ojs_queue_depth")["queue=q"] == 1 })
	require.NoError(t, cluster.Kill())
	var s scrape
	eventually(t, func() bool { s = a.scrape(); return s.values("ojs_database_up")[""] == 0 })
	require.Equal(t, 1.0, s.values("ojs_jobs_enqueued_total")["job_type=t,queue=q"])
	eventually(t, func() bool { s = a.scrape(); return len(s.values("ojs_queue_depth")) == 0 }) // read a moment ago
	require.Equal(t, 0.0, s.values("ojs_database_up")[""])
	a.get("/ojs/v1/metrics").fails(503, "backend_error", "backend_unavailable")
	require.NoError(t, cluster.Restart(t.Context()))
	eventually(t, func() bool { return a.scrape().values("ojs_database_up")[""] == 1 })
	eventually(t, func() bool { return a.scrape().values("ojs_listener_reconnects_total")[""] == 1 })
	eventually(t, func() bool { return a.scrape().values("ojs_queue_depth")["queue=q"] == 1 })
}
