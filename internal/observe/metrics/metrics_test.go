package metrics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func setup(t testing.TB, deps Deps, change ...func(*config.Metrics)) *Metrics {
	t.Helper()
	deps.Logger = slog.New(slog.DiscardHandler)
	c := config.Default()
	for _, f := range change {
		f(&c.Metrics)
	}
	m, err := New(c, deps)
	require.NoError(t, err)
	return m
}

// readOnce has gauges read once.
func readOnce(c *config.Metrics) { c.GaugeInterval = time.Hour }

// text is what Prometheus reads, without what the process brings.
func (m *Metrics) text(t testing.TB, openMetrics bool) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, m.WriteText(t.Context(), &b, openMetrics))
	return b.String()
}

func completed(jobType, queue string, took time.Duration) eventlog.Change {
	return eventlog.Change{Type: "job.completed", JobType: jobType, Queue: queue, Took: took, Timed: true, Job: &job.Record{State: "completed"}}
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	fine, coarse := []int64{1, 2, 5, 10}, []int64{2, 10}
	var h histogram
	for _, v := range []int64{-1, 0, 1, 2, 3, 5, 6, 10, 11, 1 << 40} {
		h.observe(fine, v)
	}
	var r reading
	r.add(&h, fine, fine)
	require.Equal(t, []uint64{3, 1, 2, 2, 2}, r.buckets)
	require.EqualValues(t, 10, r.count)
	require.EqualValues(t, 37+1<<40, r.sum)
	var c reading
	c.add(&h, fine, coarse)
	require.Equal(t, []uint64{4, 4, 2}, c.buckets)
	require.Equal(t, r.count, c.count)
	for _, bounds := range [][]int64{ranBounds, ranCompatBounds, waitBounds, waitCompatBounds, requestBounds, batchBounds, retryBounds} {
		require.Less(t, len(bounds), maxBuckets)
		require.IsIncreasing(t, bounds)
	}
	require.Subset(t, ranCompatBounds, ranBounds)
	require.Subset(t, waitCompatBounds, waitBounds)
}

func TestVec(t *testing.T) {
	t.Parallel()

	t.Run("CountsEveryConcurrentCall", func(t *testing.T) {
		t.Parallel()
		m := setup(t, Deps{}, func(c *config.Metrics) { c.MaxLabelValues = 2 })
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for i := range 1000 {
					m.Changes(t.Context(), []eventlog.Change{completed(fmt.Sprint("t", i%4), "q", time.Millisecond)})
				}
			})
		}
		callers.Wait()
		var sum int64
		m.jobs.each(func(_ jobKey, _ attribute.Set, j *jobCounters) { sum += j.completed.Load() })
		require.EqualValues(t, 8000, sum)
		require.Equal(t, 3, m.jobs.len())
	})

	t.Run("BoundsPairs", func(t *testing.T) {
		t.Parallel()
		m := setup(t, Deps{}, func(c *config.Metrics) { c.MaxQueues, c.MaxPairs, c.Queues = 3, 5, []string{"q8"} })
		for i := range 10 {
			for j := range 10 {
				m.Changes(t.Context(), []eventlog.Change{completed(fmt.Sprint("t", i), fmt.Sprint("q", j), 0)})
			}
		}
		byQueue := map[string]int64{}
		m.jobs.each(func(k jobKey, _ attribute.Set, j *jobCounters) { byQueue[k.queue] += j.completed.Load() })
		require.Equal(t, map[string]int64{"q0": 10, "q1": 10, "q8": 10, other: 70}, byQueue, "the first queues and the configured one")
		require.LessOrEqual(t, m.jobs.len(), 5+4)
	})

	// What docs/reference/observability.md, Size says of an answer with the default settings.
	t.Run("BoundsTheAnswer", func(t *testing.T) {
		t.Parallel()
		for _, test := range []struct{ queues, types, most int }{{2000, 1, 200_000}, {200, 50, 900_000}, {10_000, 1000, 900_000}} {
			m := setup(t, Deps{})
			for i := range max(test.queues, test.types) {
				for range 3 {
					m.Changes(t.Context(), []eventlog.Change{completed(fmt.Sprintf("invoices.type-%d", i%test.types), fmt.Sprintf("tenant-queue-%d", i%test.queues), 0)})
				}
			}
			var text strings.Builder
			require.NoError(t, m.WriteText(t.Context(), &text, false))
			t.Log(test, text.Len())
			require.Less(t, text.Len(), test.most)
		}
	})
}

// Time in these tests passes only while every goroutine waits.
func TestPart(t *testing.T) {
	t.Parallel()

	t.Run("LooksOnceForAll", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := cached[int]{every: time.Hour}
			reads := 0
			var callers sync.WaitGroup
			for range 20 {
				callers.Go(func() {
					got, err := p.get(t.Context(), func(context.Context) (int, error) {
						reads++
						time.Sleep(time.Millisecond) // it passes when all others wait
						return reads, nil
					})
					require.NoError(t, err)
					require.Equal(t, 1, got)
				})
			}
			callers.Wait()
			require.Equal(t, 1, reads)
		})
	})

	t.Run("OutlivesItsCaller", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var p cached[int]
			_, err := p.get(ctx, func(ctx context.Context) (int, error) { return 1, ctx.Err() })
			require.NoError(t, err)
		})
	})

	t.Run("EndsByTheDeadlineOfItsCaller", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*leastTime)
			defer cancel()
			var p cached[int]
			_, err := p.get(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 1, ctx.Err() })
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, err = p.get(ctx, func(context.Context) (int, error) { return 1, nil })
			require.ErrorIs(t, err, errNoTime)
			got, err := p.get(t.Context(), func(context.Context) (int, error) { return 1, nil })
			require.NoError(t, err)
			require.Equal(t, 1, got)
		})
	})

	t.Run("WaitsForAnotherNoLongerThanItsCaller", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var p cached[int]
			reading, answer, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				_, _ = p.get(t.Context(), func(context.Context) (int, error) { close(reading); <-answer; return 1, nil })
			}()
			<-reading
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := p.get(ctx, func(context.Context) (int, error) { return 2, nil })
			require.ErrorIs(t, err, errNoTime)
			close(answer)
			<-done
		})
	})

	t.Run("RestsAfterASlowRead", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := cached[int]{every: time.Nanosecond}
			reads := 0
			read := func(context.Context) (int, error) { reads++; return reads, nil }
			_, _ = p.get(t.Context(), read)
			p.took, p.at = time.Second, time.Now().Add(-19*time.Second)
			_, _ = p.get(t.Context(), read)
			require.Equal(t, 1, reads)
			p.at = time.Now().Add(-21 * time.Second)
			_, _ = p.get(t.Context(), read)
			require.Equal(t, 2, reads)
		})
	})

	t.Run("TriesAgainSoonAfterAFailure", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := cached[int]{every: time.Hour}
			fails := true
			read := func(context.Context) (int, error) {
				if fails {
					return 0, context.DeadlineExceeded
				}
				return 1, nil
			}
			_, err := p.get(t.Context(), read)
			require.Error(t, err)
			fails = false
			_, err = p.get(t.Context(), read)
			require.Error(t, err, "not at once")
			p.at = p.at.Add(-afterFailure)
			got, err := p.get(t.Context(), read)
			require.NoError(t, err)
			require.Equal(t, 1, got)
		})
	})
}

// The series of webhooks and gRPC.
func TestSeriesOfOthers(t *testing.T) {
	t.Parallel()
	m := setup(t, Deps{Sources: func() Sources {
		return Sources{Webhooks: func(context.Context) (int64, int64, error) { return 3, 7, nil }}
	}}, readOnce)
	m.WebhookAttempt("job.failed", "sub1", WebhookFailed, 40*time.Millisecond)
	m.WebhookAttempt("job.failed", "sub1", WebhookSuccess, 6*time.Millisecond)
	m.WebhookDone("job.failed", 1)
	m.WebhookAttempt("job.completed", "sub2", WebhookDead, 10*time.Second)
	m.WebhookDone("job.completed", 7)
	m.RPC("/ojs.v1.OJSService/Enqueue", "OK", 2*time.Millisecond)
	m.RPC("/ojs.v1.OJSService/Enqueue", "NOT_FOUND", 2*time.Millisecond)

	text := m.text(t, false)
	for _, line := range []string{
		`ojs_webhook_delivery_count_total{event_type="job.failed",status="failed"} 1`,
		`ojs_webhook_delivery_count_total{event_type="job.failed",status="success"} 1`,
		`ojs_webhook_delivery_count_total{event_type="job.completed",status="dead"} 1`,
		`ojs_webhook_delivery_duration_ms_count{event_type="job.failed",subscription_id="sub1"} 2`,
		`ojs_webhook_delivery_duration_ms_sum{event_type="job.failed",subscription_id="sub1"} 46`,
		`ojs_webhook_delivery_duration_ms_bucket{event_type="job.failed",subscription_id="sub1",le="10"} 1`,
		`ojs_webhook_delivery_duration_ms_bucket{event_type="job.completed",subscription_id="sub2",le="300000"} 1`,
		`ojs_webhook_dead_delivery_count_total{event_type="job.completed",subscription_id="sub2"} 1`,
		`ojs_webhook_delivery_retry_count_bucket{event_type="job.failed",le="0"} 0`,
		`ojs_webhook_delivery_retry_count_bucket{event_type="job.failed",le="1"} 1`,
		`ojs_webhook_delivery_retry_count_bucket{event_type="job.completed",le="7"} 1`,
		`ojs_grpc_requests_total{code="OK",method="/ojs.v1.OJSService/Enqueue"} 1`,
		`ojs_grpc_requests_total{code="NOT_FOUND",method="/ojs.v1.OJSService/Enqueue"} 1`,
		`# TYPE ojs_webhook_delivery_retry_count histogram`,
		`# TYPE ojs_webhook_delivery_count_total counter`,
	} {
		require.Contains(t, text, line+"\n")
	}
	families := m.webhookGauges(t.Context(), &round{})
	require.Len(t, families, 2)
	for i, want := range []float64{3, 7} {
		require.InDelta(t, want, families[i].(*gaugeFamily).points[0].Value, 0)
	}
}

// brokenWriter is a connection whose client is gone.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteText(t *testing.T) {
	t.Parallel()
	m := setup(t, Deps{}, func(c *config.Metrics) { c.Compat = true })
	m.Changes(t.Context(), []eventlog.Change{completed("a", "q", 6*time.Millisecond), {Type: "cron.triggered", Subject: "c", JobType: "x", Queue: "q"}})
	m.CountPublished(eventlog.Counts{
		Types:   map[string]int64{"job.completed": 2},
		FromSQL: []eventlog.SQLCount{{Type: "job.enqueued", JobType: "sql", Queue: "q", N: 3}, {Type: "job.cancelled", JobType: "sql", Queue: "q", N: 1}},
	})

	t.Run("AsPrometheus", func(t *testing.T) {
		t.Parallel()
		text := m.text(t, false)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		_, err := parser.TextToMetricFamilies(strings.NewReader(text))
		require.NoError(t, err)
		require.Contains(t, text, `ojs_jobs_enqueued_total{job_type="sql",queue="q"} 3`)
		require.Contains(t, text, `ojs_jobs_cancelled_total{job_type="sql",queue="q"} 1`)
		require.Contains(t, text, `ojs_jobs_duration_ms_bucket{job_type="a",queue="q",le="10"} 1`)
		require.Contains(t, text, `ojs_jobs_duration_ms_bucket{job_type="a",queue="q",le="5"} 0`)
		require.Contains(t, text, `ojs_job_duration_seconds_sum{queue="q",state="completed",type="a"} 0.006`)
		require.Contains(t, text, `ojs_events_published_total{type="job.completed"} 2`)
		require.NotContains(t, text, `job_type="x"`)
		require.Contains(t, text, "process_start_time_seconds")
	})

	t.Run("HasEachFigureOnceByDefault", func(t *testing.T) {
		t.Parallel()
		m := setup(t, Deps{})
		m.Changes(t.Context(), []eventlog.Change{completed("a", "q", 6*time.Millisecond)})
		text := m.text(t, false)
		require.Contains(t, text, `ojs_jobs_completed_total{job_type="a",queue="q"} 1`)
		for _, name := range []string{"ojs_job_completed", "ojs_job_duration", "ojs_job_queue_time"} {
			require.NotContains(t, text, name)
		}
	})

	t.Run("EndsWithTheConnection", func(t *testing.T) {
		t.Parallel()
		for _, openMetrics := range []bool{false, true} {
			require.ErrorIs(t, m.WriteText(t.Context(), brokenWriter{}, openMetrics), io.ErrClosedPipe)
		}
	})

	t.Run("AsOpenMetrics", func(t *testing.T) {
		t.Parallel()
		text := m.text(t, true)
		require.Contains(t, text, "# TYPE ojs_jobs_enqueued counter\nojs_jobs_enqueued_total{")
		require.True(t, strings.HasSuffix(text, "# EOF\n"))
		seen := map[string]bool{}
		for line := range strings.Lines(text) {
			if name, found := strings.CutPrefix(line, "# TYPE "); found {
				name, _, _ = strings.Cut(name, " ")
				require.False(t, seen[name], name)
				seen[name] = true
			}
		}
	})
}
