package metrics

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Bounds in ms (docs/reference/observability.md, Jobs). Histograms have the finer bounds of each pair, which contain the others.
var (
	ranBounds        = []int64{5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000}
	ranCompatBounds  = []int64{5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000}
	waitBounds       = []int64{10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000}
	waitCompatBounds = []int64{10, 50, 100, 500, 1000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000}
)

// outcomes are the states an attempt can end in. Available is the state after a lost reservation, which was a failed attempt.
var outcomes = [...]ojs.JobState{ojs.StateCompleted, ojs.StateRetryable, ojs.StateDiscarded, ojs.StateAvailable}

// losses are the reasons for which the server ends an attempt.
var losses = [...]string{job.VisibilityTimeout, job.WorkerDeath, job.Timeout, job.Stalled, job.TotalTimeout}

type jobKey struct{ jobType, queue string }

// jobCounters count the events of jobs of one type in one queue. Only events of this node's commits count; those written from
// SQL come by CountPublished.
type jobCounters struct {
	enqueued, scheduled, started, completed, attemptsFailed, retrying, discarded, cancelled, expired, progress atomic.Int64

	waited histogram
	ran    [len(outcomes)]histogram
	lost   [len(losses)]atomic.Int64
}

// Changes counts the events that this node has committed; it subscribes to eventlog.Commits. It runs in every flush before
// callers are answered, so it looks a cell up once per run of equal keys.
func (m *Metrics) Changes(_ context.Context, changes []eventlog.Change) {
	var key jobKey
	var counters *jobCounters
	for i := range changes {
		c := &changes[i]
		// Such rows have a type of job, if they are of a cron, but count none.
		if c.Subject != "" {
			continue // the change of a worker or a cron
		}
		// Events of one flush are usually of one type and queue, so most need no look at the map.
		if counters == nil || c.JobType != key.jobType || c.Queue != key.queue {
			key = jobKey{c.JobType, c.Queue}
			counters = m.jobs.at(key)
		}
		counters.count(c)
		// A job that a full queue has dropped is a discarded one as well, and counts as both.
		if c.Reason == job.Overflow {
			m.bounded.at(c.Queue).dropped.Add(1)
		}
	}
}

func (j *jobCounters) count(c *eventlog.Change) {
	switch c.Type {
	case ojs.EventJobStarted:
		j.started.Add(1)
		if c.Timed {
			j.waited.observe(waitCompatBounds, c.Milliseconds())
		}
	case ojs.EventJobCompleted:
		j.completed.Add(1)
		j.ended(c)
	// The reason is that of the server; a failure that a worker has reported has none.
	case ojs.EventJobFailed:
		j.attemptsFailed.Add(1)
		j.ended(c)
		for i, reason := range losses {
			if c.Reason == reason {
				j.lost[i].Add(1)
			}
		}
	default:
		j.add(c.Type, 1)
	}
}

// ended counts how long an attempt ran. Attempts whose length is not known, such as those of bulk statements that do not return
// the job, are in the counters only.
func (j *jobCounters) ended(c *eventlog.Change) {
	if !c.Timed || c.Job == nil {
		return
	}
	for i, state := range outcomes {
		if c.Job.State == string(state) {
			j.ran[i].observe(ranCompatBounds, c.Milliseconds())
		}
	}
}

// add counts events of the types that have no histogram. Other types, such as heartbeats and internal rows, are counted nowhere but
// in ojs_events_published_total.
func (j *jobCounters) add(eventType string, n int64) {
	switch eventType {
	case ojs.EventJobEnqueued:
		j.enqueued.Add(n)
	case ojs.EventJobScheduled:
		j.scheduled.Add(n)
	case ojs.EventJobRetrying:
		j.retrying.Add(n)
	case ojs.EventJobDiscarded:
		j.discarded.Add(n)
	case ojs.EventJobCancelled:
		j.cancelled.Add(n)
	case ojs.EventJobExpired:
		j.expired.Add(n)
	case ojs.EventJobProgress:
		j.progress.Add(n)
	}
}

// CountPublished counts the events that the relay of this node has published. It also counts the job events written from SQL: only
// one relay publishes each of them, so the sum over all nodes is right.
func (m *Metrics) CountPublished(c eventlog.Counts) {
	for kind, n := range c.Types {
		m.published.at(kind).Add(n)
	}
	for _, u := range c.FromSQL {
		m.jobs.at(jobKey{u.JobType, u.Queue}).add(u.Type, u.N)
	}
}

// jobFamilies are the series that count job events (docs/reference/observability.md, Jobs). With Compat some figures are shown under two
// names: that of this server and that of the specification's extension. A family without series is not shown.
func (m *Metrics) jobFamilies() []family {
	var (
		enqueued   = counter("ojs.jobs.enqueued", "{job}", "Jobs that became available by being enqueued, promoted on schedule, activated or retried from the dead letters.")
		completed  = counter("ojs.jobs.completed", "{job}", "Jobs that were completed.")
		failed     = counter("ojs.jobs.failed", "{job}", "Jobs that were discarded, after their last attempt or for good reason before it.")
		attempts   = counter("ojs.job.attempts.failed", "{attempt}", "Attempts that failed, whatever became of the job.")
		retrying   = counter("ojs.jobs.retrying", "{job}", "Retries that were planned.")
		cancelled  = counter("ojs.jobs.cancelled", "{job}", "Jobs that were cancelled.")
		expired    = counter("ojs.jobs.expired", "{job}", "Jobs that were discarded because they expired before they were started.")
		scheduled  = counter("ojs.jobs.scheduled", "{job}", "Jobs that were accepted for later.")
		dispatched = counter("ojs.scheduling.dispatch", "{job}", "Jobs that were handed to workers, retries included.")
		progress   = counter("ojs.progress.updates", "{event}", "Progress events: at most one a second and job, whatever workers report.")
		lost       = counter("ojs.lease.losses", "{attempt}",
			"Attempts that the server ended because the worker was too late, too silent or dead.")
		ran       = histogramOf("ojs.jobs.duration_ms", "ms", "How long attempts ran.", ranBounds, 1)
		waited    = histogramOf("ojs.jobs.wait_ms", "ms", "How long jobs were available before they were started.", waitBounds, 1)
		byOutcome = histogramOf("ojs.job.duration_seconds", "s", "How long attempts ran, by the state the job was in after it.",
			ranCompatBounds, 1e3)
		queued = histogramOf("ojs.job.queue_time_seconds", "s", "How long jobs were available before they were started.",
			waitCompatBounds, 1e3)
		cEnqueued  = counter("ojs.job.enqueued", "{job}", "As ojs_jobs_enqueued_total.")
		cCompleted = counter("ojs.job.completed", "{job}", "As ojs_jobs_completed_total.")
		cFailed    = counter("ojs.job.failed", "{job}", "As ojs_jobs_failed_total.")
		cRetried   = counter("ojs.job.retried", "{job}", "As ojs_jobs_retrying_total.")
		cCancelled = counter("ojs.job.cancelled", "{job}", "As ojs_jobs_cancelled_total.")
		cExpired   = counter("ojs.job.expired", "{job}", "As ojs_jobs_expired_total.")
	)
	m.jobs.each(func(k jobKey, labels attribute.Set, j *jobCounters) {
		enqueued.add(labels, j.enqueued.Load())
		completed.add(labels, j.completed.Load())
		failed.add(labels, j.discarded.Load())
		attempts.add(labels, j.attemptsFailed.Load())
		retrying.add(labels, j.retrying.Load())
		cancelled.add(labels, j.cancelled.Load())
		expired.add(labels, j.expired.Load())
		scheduled.add(labels, j.scheduled.Load())
		dispatched.add(labels, j.started.Load())
		progress.add(labels, j.progress.Load())
		for i, reason := range losses {
			// Reasons that never came have no series.
			if n := j.lost[i].Load(); n > 0 {
				lost.add(with(labels, attribute.String("reason", reason)), n)
			}
		}
		waited.add(labels, &j.waited, waitCompatBounds)
		var attempt reading
		for i := range j.ran {
			attempt.add(&j.ran[i], ranCompatBounds, ranBounds)
		}
		ran.show(labels, attempt)
		if !m.config.Metrics.Compat {
			return
		}
		// The names of the extension have the label type where this server says job_type.
		short := attribute.NewSet(attribute.String("queue", k.queue), attribute.String("type", k.jobType))
		cEnqueued.add(short, j.enqueued.Load())
		cCompleted.add(short, j.completed.Load())
		cFailed.add(short, j.discarded.Load())
		cRetried.add(short, j.retrying.Load())
		cCancelled.add(short, j.cancelled.Load())
		cExpired.add(short, j.expired.Load())
		queued.add(short, &j.waited, waitCompatBounds)
		for i, state := range outcomes {
			byOutcome.add(with(short, attribute.String("state", string(state))), &j.ran[i], ranCompatBounds)
		}
	})
	return []family{
		enqueued, completed, failed, attempts, retrying, cancelled, expired, scheduled, dispatched, progress, lost, ran, waited,
		byOutcome, queued, cEnqueued, cCompleted, cFailed, cRetried, cCancelled, cExpired,
	}
}

// Limited counts that a limit kept a fetch from jobs.
func (m *Metrics) Limited(key string, n int) { m.limited.at(key).Add(int64(n)) }

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

// limitFamilies are the queues with a bound by depth, and the partitions with jobs, those of limited queues among them. The
// figures of queues are those of the last read of gauges; the bound itself is kept exactly, under a lock (queue/bounds.go). The
// settings of queues come from the cache of this node, which may be a moment old.
func (m *Metrics) limitFamilies(ctx context.Context, g Gauges, r *round) []family {
	size := gauge("ojs.queue.max_size", "{job}", "Most jobs that may wait in a bounded queue.")
	pressure := gauge("ojs.backpressure.pressure", "1", "Jobs that wait in a bounded queue, as a share of its bound; above 1 if others than enqueues have added some.")
	active := gauge("ojs.rate_limit.active", "{job}", "Active jobs of a limit key, or of a limited queue.")
	waiting := gauge("ojs.rate_limit.waiting", "{job}", "Available jobs of a limit key, or of a limited queue.")
	queueLimits := m.sources().QueueLimits
	for name, q := range g.Queues {
		if name == OtherQueues || queueLimits == nil {
			continue // without series of its own
		}
		maxDepth, limited := queueLimits(name)
		if maxDepth > 0 {
			size.set(label("queue", name), float64(maxDepth))
			pressure.set(label("queue", name), float64(job.CountWaiting(q.Jobs))/float64(maxDepth))
		}
		if limited {
			active.set(label("key", job.QueueLimitPrefix+name), float64(q.Jobs[ojs.StateActive]))
			waiting.set(label("key", job.QueueLimitPrefix+name), float64(q.Jobs[ojs.StateAvailable]))
		}
	}
	uses, err := m.gauges.limits.get(ctx, func(ctx context.Context) ([]LimitUse, error) {
		return m.sources().Database.LimitUses(ctx, m.config.Metrics.MaxLabelValues)
	})
	if r.missing(err) {
		return []family{size, pressure}
	}
	for _, u := range uses {
		active.set(label("key", u.Key), float64(u.Active))
		waiting.set(label("key", u.Key), float64(u.Waiting))
	}
	return []family{size, pressure, active, waiting}
}

// backpressure counts what bounded queues did to enqueues (docs/reference/observability.md, Queues and workers).
// Both count from the start of the process, on the node that refused or dropped.
type backpressure struct{ refused, dropped atomic.Int64 }

// QueueFull counts a job that a full queue has refused. Dropped jobs are counted from their events, by Changes.
func (m *Metrics) QueueFull(queue string) { m.bounded.at(queue).refused.Add(1) }

// Outage counts an outage of the database that this node has found.
func (m *Metrics) Outage() { m.outages.Add(1) }

// refusalFamilies are what limits kept from fetches, and bounded queues from enqueues.
func (m *Metrics) refusalFamilies() []family {
	refused := counter("ojs.backpressure.rejected", "{job}", "Jobs that a full queue has refused.")
	dropped := counter("ojs.backpressure.dropped", "{job}", "Jobs that were discarded because newer ones took their place in a full queue.")
	overflow := counter("ojs.queue.overflow.count", "{job}", "Both together.")
	m.bounded.each(func(_ string, labels attribute.Set, b *backpressure) {
		refused.add(labels, b.refused.Load())
		dropped.add(labels, b.dropped.Load())
		overflow.add(labels, b.refused.Load()+b.dropped.Load())
	})
	exceeded := counter("ojs.rate_limit.exceeded", "{job}", "How often a limit kept a fetch from a job, or a claim found the limit of a queue reached.")
	m.limited.each(func(_ string, labels attribute.Set, n *atomic.Int64) { exceeded.add(labels, n.Load()) })
	return []family{refused, dropped, overflow, exceeded}
}

// Outcomes of an attempt to deliver. They are values of the label status (docs/reference/observability.md, Webhook series).
const (
	WebhookSuccess = "success"
	WebhookFailed  = "failed" // will be retried
	WebhookDead    = "dead"   // will not be retried
)

var retryBounds = []int64{0, 1, 2, 3, 4, 5, 6, 7}

type attemptKey struct{ eventType, status string }

type deliveryKey struct{ eventType, subscription string }

type deliveryCounters struct {
	took histogram // ms
	dead atomic.Int64
}

// WebhookAttempt counts one attempt to deliver an event; status is WebhookSuccess, WebhookFailed or WebhookDead.
func (m *Metrics) WebhookAttempt(eventType, subscriptionID, status string, took time.Duration) {
	m.attempts.at(attemptKey{eventType, status}).Add(1)
	d := m.deliveries.at(deliveryKey{eventType, subscriptionID})
	d.took.observe(ranBounds, took.Milliseconds())
	if status == WebhookDead {
		d.dead.Add(1)
	}
}

// WebhookDone counts a finished delivery, with the attempts after its first. A delivery that was given up is finished too.
func (m *Metrics) WebhookDone(eventType string, retries int) {
	m.delivered.at(eventType).observe(retryBounds, int64(retries))
}

func (m *Metrics) webhookFamilies() []family {
	attempts := counter("ojs.webhook.delivery_count", "{attempt}",
		"Attempts to deliver an event to a webhook; dead: the last one, which failed.")
	took := histogramOf("ojs.webhook.delivery_duration_ms", "ms", "How long attempts to deliver took.", ranBounds, 1)
	dead := counter("ojs.webhook.dead_delivery_count", "{delivery}", "Deliveries that were given up.")
	retries := histogramOf("ojs.webhook.delivery_retry_count", "{attempt}", "Attempts after the first of deliveries that are finished.",
		retryBounds, 1)
	m.attempts.each(func(_ attemptKey, labels attribute.Set, n *atomic.Int64) { attempts.add(labels, n.Load()) })
	m.deliveries.each(func(_ deliveryKey, labels attribute.Set, d *deliveryCounters) {
		took.add(labels, &d.took, ranBounds)
		dead.add(labels, d.dead.Load())
	})
	m.delivered.each(func(_ string, labels attribute.Set, h *histogram) { retries.add(labels, h, retryBounds) })
	return []family{attempts, took, dead, retries}
}
