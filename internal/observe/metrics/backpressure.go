package metrics

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
)

// backpressure counts what bounded queues did to enqueues (docs/reference/observability.md, Queues and workers).
// Both count from the start of the process, on the node that refused or dropped.
type backpressure struct{ refused, dropped atomic.Int64 }

func (m *Metrics) newBackpressure() {
	queues := newLimiter(m.config.MaxLabelValues)
	m.bounded = newVec[string, backpressure](queues.label, func(queue string) attribute.Set { return label("queue", queue) })
}

// QueueFull counts a job that a full queue has refused. Dropped jobs are counted from their events, by Changes.
func (m *Metrics) QueueFull(queue string) { m.bounded.at(queue).refused.Add(1) }

func (m *Metrics) backpressureFamilies() []family {
	refused := counter("ojs.backpressure.rejected", "{job}", "Jobs that a full queue has refused.")
	dropped := counter("ojs.backpressure.dropped", "{job}", "Jobs that were discarded because newer ones took their place in a full queue.")
	overflow := counter("ojs.queue.overflow.count", "{job}", "Both together.")
	m.bounded.each(func(_ string, labels attribute.Set, b *backpressure) {
		refused.add(labels, b.refused.Load())
		dropped.add(labels, b.dropped.Load())
		overflow.add(labels, b.refused.Load()+b.dropped.Load())
	})
	return []family{refused, dropped, overflow}
}
