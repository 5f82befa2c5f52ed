package metrics

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
)

// life is what one job brings.
func life() []eventlog.Change {
	done := &job.Record{State: "completed"}
	return []eventlog.Change{
		{Type: "job.enqueued", JobType: "mail.send", Queue: "default"},
		{Type: "job.started", JobType: "mail.send", Queue: "default", Took: 12 * time.Millisecond, Timed: true},
		{Type: "job.completed", JobType: "mail.send", Queue: "default", Took: 80 * time.Millisecond, Timed: true, Job: done},
	}
}

// BenchmarkJob is the cost of all counters of one job, from enqueue to ack, each in a call of its own.
func BenchmarkJob(b *testing.B) {
	m := setup(b, Deps{})
	changes := life()
	b.ReportAllocs()
	for b.Loop() {
		for i := range changes {
			m.Changes(b.Context(), changes[i:i+1])
		}
	}
}

func BenchmarkJobParallel(b *testing.B) {
	m := setup(b, Deps{})
	changes := life()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			for i := range changes {
				m.Changes(b.Context(), changes[i:i+1])
			}
		}
	})
}

// BenchmarkJobOpenTelemetry is the same with the instruments of the SDK, for comparison: three counters, two of them
// with a twin of the compatibility set, and four histograms, with attribute sets made before.
func BenchmarkJobOpenTelemetry(b *testing.B) {
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())).Meter("bench")
	counter := func(name string) metric.Int64Counter { c, _ := meter.Int64Counter(name); return c }
	histogram := func(name string) metric.Int64Histogram { h, _ := meter.Int64Histogram(name); return h }
	set := metric.WithAttributeSet(attribute.NewSet(attribute.String("job_type", "mail.send"), attribute.String("queue", "default")))
	counters := []metric.Int64Counter{counter("a"), counter("b"), counter("c"), counter("d")}
	histograms := []metric.Int64Histogram{histogram("e"), histogram("f"), histogram("g"), histogram("h")}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range counters {
			c.Add(ctx, 1, set)
		}
		for _, h := range histograms {
			h.Record(ctx, 12, set)
		}
	}
}
