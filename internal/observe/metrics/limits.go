package metrics

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func (m *Metrics) newLimits() {
	m.limited = newVec[string, atomic.Int64](newLimiter(m.config.MaxLabelValues).label, func(key string) attribute.Set { return label("key", key) })
}

// Limited counts that a limit kept a fetch from jobs.
func (m *Metrics) Limited(key string, n int) { m.limited.at(key).Add(int64(n)) }

func (m *Metrics) limitedFamily() family {
	exceeded := counter("ojs.rate_limit.exceeded", "{job}", "How often a limit kept a fetch from a job, or a claim found the limit of a queue reached.")
	m.limited.each(func(_ string, labels attribute.Set, n *atomic.Int64) { exceeded.add(labels, n.Load()) })
	return exceeded
}

// LimitUse is how many jobs of a limit key run and wait.
type LimitUse = dbsqlc.MetricsLimitsRow

// LimitUses reads the first maxKeys keys that have jobs. Which keys come first is decided by the statement, so all nodes show
// the same.
func (d *Database) LimitUses(ctx context.Context, maxKeys int) (uses []LimitUse, err error) {
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		uses, err = q.MetricsLimits(ctx, int64(maxKeys))
		return err
	})
	return uses, err
}

// limitFamilies are the partitions with jobs, those of limited queues among them.
func (m *Metrics) limitFamilies(ctx context.Context, g Gauges, r *round) []family {
	uses, err := m.gauges.limits.get(ctx, func(ctx context.Context) ([]LimitUse, error) {
		return m.sources.Database.LimitUses(ctx, m.config.MaxLabelValues)
	})
	if r.missing(err) {
		return nil
	}
	active := gauge("ojs.rate_limit.active", "{job}", "Active jobs of a limit key, or of a limited queue.")
	waiting := gauge("ojs.rate_limit.waiting", "{job}", "Available jobs of a limit key, or of a limited queue.")
	set := func(key string, nActive, nWaiting int64) {
		active.set(label("key", key), float64(nActive))
		waiting.set(label("key", key), float64(nWaiting))
	}
	for _, u := range uses {
		set(u.Key, u.Active, u.Waiting)
	}
	m.eachQueue(g, func(name string, q QueueGauges, _ int64, limited bool) {
		if limited {
			set(job.QueueLimitPrefix+name, q.Jobs[ojs.StateActive], q.Jobs[ojs.StateAvailable])
		}
	})
	return []family{active, waiting}
}

// boundFamilies are the queues with a bound by depth. The figures are those of the last read of gauges; the bound itself is
// kept exactly, under a lock (queue/bounds.go).
func (m *Metrics) boundFamilies(g Gauges) []family {
	size := gauge("ojs.queue.max_size", "{job}", "Most jobs that may wait in a bounded queue.")
	pressure := gauge("ojs.backpressure.pressure", "1", "Jobs that wait in a bounded queue, as a share of its bound; above 1 if others than enqueues have added some.")
	m.eachQueue(g, func(name string, q QueueGauges, maxDepth int64, _ bool) {
		if maxDepth > 0 {
			depth := q.Jobs[ojs.StateAvailable] + q.Jobs[ojs.StateScheduled] + q.Jobs[ojs.StateRetryable] + q.Jobs[ojs.StatePending]
			size.set(label("queue", name), float64(maxDepth))
			pressure.set(label("queue", name), float64(depth)/float64(maxDepth))
		}
	})
	return []family{size, pressure}
}

// eachQueue calls f for the queues that have series of their own. The settings of queues come from the cache of this node,
// which may be a moment old.
func (m *Metrics) eachQueue(g Gauges, f func(name string, q QueueGauges, maxDepth int64, limited bool)) {
	if m.sources.QueueLimits == nil {
		return
	}
	for name, q := range g.Queues {
		if name != OtherQueues {
			maxDepth, limited := m.sources.QueueLimits(name)
			f(name, q, maxDepth, limited)
		}
	}
}
