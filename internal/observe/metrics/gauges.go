package metrics

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// gauges are the figures of the whole deployment. Each kind is read by itself, so that a slow or failing one does not affect
// the others. Every node of the deployment shows the same figures; a query over all nodes takes one of them, not their sum.
type gauges struct {
	overview    cached[Gauges]
	ready       cached[map[string]time.Duration]
	deadLetters cached[map[string]int64]
	xmin        cached[XminHolder]
	relay       cached[*RelayHolder]
	tables      cached[[]TableStats]
	retention   cached[[]Retention]
	webhooks    cached[webhookGauges]
	limits      cached[[]LimitUse]

	survey readySurvey
}

type webhookGauges struct{ subscriptions, pending int64 }

// tablesEvery is how often sizes are read, at most: PostgreSQL reads the size of each file of each partition.
const tablesEvery = time.Minute

// longHold is the least age of the transaction of a session that is named: every statement has a short one.
const longHold = 10 * time.Second

func (g *gauges) init(every time.Duration, logger *slog.Logger) {
	failed := func(what string) func(error) {
		return func(err error) {
			logger.Warn("gauges cannot be read; their series are missing until they can", slog.String("gauges", what),
				slog.Any("error", err))
		}
	}
	g.overview.onFailure, g.ready.onFailure, g.deadLetters.onFailure = failed("queues and events"), failed("oldest ready jobs"),
		failed("dead letters")
	g.xmin.onFailure, g.tables.onFailure, g.webhooks.onFailure = failed("xmin"), failed("tables"), failed("webhooks")
	g.limits.onFailure, g.limits.every = failed("rate limits"), every
	g.relay.onFailure, g.relay.every = failed("holder of the relay lock"), every
	g.overview.every, g.ready.every, g.deadLetters.every, g.xmin.every, g.webhooks.every = every, every, every, every, every
	g.tables.every = max(every, tablesEvery)
	g.retention.onFailure, g.retention.every = failed("retention"), max(every, tablesEvery)
	// readySurvey decides by itself when to read fully; the pause of cached would also put off its cheap reads.
	g.ready.selfPaced = true
}

// Gauges are the figures of the whole deployment, at most one interval old. It also serves answers of the API that show a
// summary, so the figures there and here are the same.
func (m *Metrics) Gauges(ctx context.Context) (Gauges, error) {
	return m.gauges.overview.get(ctx, func(ctx context.Context) (Gauges, error) {
		return m.sources().Database.Gauges(ctx, m.config.Metrics)
	})
}

// roundTimeout bounds how long one reader waits for all gauges together. It is below the default timeout of a scrape, 10 s, so
// that the counters of the node are shown even if every gauge fails.
const roundTimeout = 3 * time.Second

// gaugeFamilies leaves out the series of gauges that cannot be read. A read that fails gives no series rather than an old
// value, so that an alert on missing series fires.
func (m *Metrics) gaugeFamilies(ctx context.Context) []family {
	if m.sources().Database == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	r := round{up: 1}
	var families []family
	// If the overview cannot be read, nothing else is tried: the others need its list of queues, or would wait for the same database.
	if g, err := m.Gauges(ctx); r.missing(err) {
		r.up = 0 // for any error
	} else {
		families = eventFamilies(g.Events)
		families = append(families, m.queueFamilies(ctx, g, &r)...)
		families = append(families, m.limitFamilies(ctx, g, &r)...)
		families = append(families, m.databaseFamilies(ctx, &r)...)
		families = append(families, m.webhookGauges(ctx, &r)...)
	}
	// It is shown whatever happened to the others, so that an alert has a series to look at.
	up := gauge("ojs.database.up", "1", "1 if the database answered when the figures of the whole deployment were read, else 0; what could not be read has no series.")
	up.set(noLabels, r.up)
	return append(families, up)
}

// round is one read of all gauges.
type round struct{ up float64 } // 1: the database answered

// missing reports whether a kind of gauges could not be read. An error of one statement does not mean that the database is
// down, unless it says so.
func (r *round) missing(err error) bool {
	if err != nil && pg.IsUnavailable(err) {
		r.up = 0
	}
	return err != nil
}

// eventFamilies has publish_lag, the first figure to look at when consumers are late: it is high if no relay can publish, and 0 if the
// delay is theirs.
func eventFamilies(e EventGauges) []family {
	unpublished := gauge("ojs.events.unpublished", "{event}", "Events that are committed and not published yet.")
	unpublished.set(noLabels, float64(e.Unpublished))
	lag := gauge("ojs.events.publish_lag_seconds", "s", "Age of the oldest event that is not published; 0 if all are.")
	lag.set(noLabels, e.Lag.Seconds())
	retained := gauge("ojs.events.retained", "{event}", "Events that consumers can read.")
	retained.set(noLabels, float64(e.Retained))
	retainedFor := gauge("ojs.events.retained_seconds", "s", "Age of the oldest event that is kept: how far back a consumer can resume.")
	retainedFor.set(noLabels, e.RetainedFor.Seconds())
	return []family{unpublished, lag, retained, retainedFor}
}

// states are all states, so that a queue has a series for each.
var states = []ojs.JobState{
	ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable, ojs.StateCompleted, ojs.StateCancelled,
	ojs.StateDiscarded,
}

// queueFamilies has a series of each queue for each state, also for those without jobs, so that rates and alerts find a 0 rather than
// nothing.
func (m *Metrics) queueFamilies(ctx context.Context, g Gauges, r *round) []family {
	depth := gauge("ojs.queue.depth", "{job}", "Jobs that wait to be fetched.")
	active := gauge("ojs.queue.active", "{job}", "Jobs that are being worked on.")
	jobs := gauge("ojs.queue.jobs", "{job}", "Jobs by state, finished ones as long as they are kept.")
	workers := gauge("ojs.workers.active", "{worker}", "Workers that are not dead.")
	busy := gauge("ojs.workers.busy", "{worker}", "Workers that reported active jobs with their last heartbeat, in each queue they serve.")
	dead := gauge("ojs.dead_letter.depth", "{job}", "Dead letters.")
	oldest := gauge("ojs.queue.oldest_ready_seconds", "s", "How long the job has been available that will be fetched next, at the priority where that is longest; 0: none.")
	workers.set(noLabels, float64(g.WorkersActive))
	// Dead letters and ages are read with statements of their own; without one of them only its series is missing.
	counts, err := m.gauges.deadLetters.get(ctx, m.sources().Database.DeadLetterCounts)
	noLetters := r.missing(err)
	letters := make(map[string]int64, len(counts))
	for queue, n := range counts {
		if _, known := g.Queues[queue]; !known {
			queue = OtherQueues
		}
		letters[queue] += n
	}
	ages, err := m.gauges.ready.get(ctx, func(ctx context.Context) (map[string]time.Duration, error) {
		// The age of a queue without available jobs is 0 without asking.
		var queues []string
		for name, q := range g.Queues {
			if q.Jobs[ojs.StateAvailable] > 0 && name != OtherQueues {
				queues = append(queues, name)
			}
		}
		slices.Sort(queues)
		return m.gauges.survey.ages(ctx, m.sources().Database, queues)
	})
	noAges := r.missing(err)
	for name, q := range g.Queues {
		labels := label("queue", name)
		depth.set(labels, float64(q.Jobs[ojs.StateAvailable]))
		active.set(labels, float64(q.Jobs[ojs.StateActive]))
		busy.set(labels, float64(q.BusyWorkers))
		for _, state := range states {
			jobs.set(with(labels, attribute.String("state", string(state))), float64(q.Jobs[state]))
		}
		if !noLetters {
			dead.set(labels, float64(letters[name]))
		}
		// An age cannot be added up, so the rest has none.
		if !noAges && name != OtherQueues {
			oldest.set(labels, ages[name].Seconds())
		}
	}
	return []family{depth, active, jobs, workers, busy, dead, oldest}
}

// databaseFamilies are what keeps dead rows from being cleaned and relays from publishing, the sizes of tables, and how late retention is.
func (m *Metrics) databaseFamilies(ctx context.Context, r *round) []family {
	seconds := gauge("ojs.db.xmin_age_seconds", "s", "Age of the transaction that keeps the oldest dead rows from being cleaned; 0: none.")
	transactions := gauge("ojs.db.xmin_age_transactions", "{transaction}",
		"Transactions begun since the oldest state that somebody may still look at.")
	holder := gauge("ojs.db.xmin_holder", "s", "Age of that transaction, with who holds it, from 10 s on; 0 for a replication slot or standby, whose age is not known.")
	visible := gauge("ojs.db.sessions_visible", "1", "1 if the role of the server sees the transactions of other roles, else 0: it needs GRANT pg_read_all_stats.")
	if h, err := m.gauges.xmin.get(ctx, m.sources().Database.OldestXminHolder); !r.missing(err) {
		if h.SeesAll {
			visible.set(noLabels, 1)
		} else {
			visible.set(noLabels, 0)
		}
		// A session that is named has kept its transaction for 10 s at least: the labels of shorter ones would make a series each. A slot
		// or a standby has no age that is known, and is named at once.
		named := h.Kind != "" && (h.Kind != "session" || h.Seconds >= longHold.Seconds())
		// No holder is an age of 0, which is a value and not a missing series. A role that does not see the sessions of others cannot know
		// that there is none, but who is named by what it sees does hold.
		if h.SeesAll || named {
			seconds.set(noLabels, h.Seconds)
			transactions.set(noLabels, float64(h.Transactions))
		}
		if named {
			holder.set(attribute.NewSet(attribute.String("kind", h.Kind), attribute.String("application", h.Name),
				attribute.String("pid", strconv.Itoa(int(h.Pid)))), h.Seconds)
		}
	}
	// Normally no session is shown here: a relay has the lock for milliseconds.
	relay := gauge("ojs.events.relay_holder", "s", "Age of the transaction that keeps every relay from publishing, from 5 s on, with who holds it.")
	if h, err := m.gauges.relay.get(ctx, m.sources().Database.OldestRelayHolder); !r.missing(err) && h != nil {
		relay.set(attribute.NewSet(attribute.String("application", h.Name), attribute.String("pid", strconv.Itoa(int(h.Pid)))), h.Seconds)
	}
	// Rows are estimates of PostgreSQL and need no count.
	live := gauge("ojs.db.table_live_rows", "{row}", "Rows of a table, as Postgres estimates them.")
	dead := gauge("ojs.db.table_dead_rows", "{row}", "Dead rows that have not been cleaned yet, as Postgres estimates them.")
	size := gauge("ojs.db.table_bytes", "By", "Size of a table with its partitions and indexes.")
	tables, err := m.gauges.tables.get(ctx, m.sources().Database.TableStats)
	if !r.missing(err) {
		for _, t := range tables {
			labels := label("table", t.Name)
			live.set(labels, float64(t.Live))
			dead.set(labels, float64(t.Dead))
			size.set(labels, float64(t.Bytes))
		}
	}
	behind := gauge("ojs.retention.behind_seconds", "s", "For how long the oldest partition of events, or day of finished jobs, should have been dropped; 0: none should.")
	if rows, err := m.gauges.retention.get(ctx, m.sources().Database.Retention); !r.missing(err) {
		for _, row := range rows {
			behind.set(label("data", row.Data), row.Seconds)
		}
	}
	// One that could not be read has no series, and is left out by Produce.
	return []family{visible, seconds, transactions, holder, relay, live, dead, size, behind}
}

// webhookGauges are missing on a node with webhooks switched off, although others may deliver.
func (m *Metrics) webhookGauges(ctx context.Context, r *round) []family {
	if m.sources().Webhooks == nil {
		return nil
	}
	g, err := m.gauges.webhooks.get(ctx, func(ctx context.Context) (g webhookGauges, err error) {
		ctx, cancel := context.WithTimeout(ctx, GaugeTimeout)
		defer cancel()
		g.subscriptions, g.pending, err = m.sources().Webhooks(ctx)
		return g, err
	})
	if r.missing(err) {
		return nil
	}
	subscriptions := gauge("ojs.webhook.subscription_count", "{subscription}", "Webhook subscriptions.")
	subscriptions.set(noLabels, float64(g.subscriptions))
	pending := gauge("ojs.webhook.pending", "{delivery}", "Webhook deliveries that are not finished.")
	pending.set(noLabels, float64(g.pending))
	return []family{subscriptions, pending}
}

// cached is one kind of gauges with the result of the last read. Readers that come during a read wait for its result.
// The fields below mu, but for reading, belong to the caller between begin and end; mu only guards reading.
type cached[T any] struct {
	every     time.Duration
	selfPaced bool // the read function limits its own share of the time
	onFailure func(error)

	mu      sync.Mutex
	reading chan struct{} // closed when the current read ends; nil: none

	value T
	err   error
	at    time.Time     // of the last read; zero: none
	took  time.Duration // by it
}

// share limits reads to a twentieth of the time. A larger share would let metrics of a slow database slow it down further; a
// smaller one would make them older.
const share = 20

// afterFailure is the pause after a failed read, short so that metrics come back soon after an outage.
const afterFailure = time.Second

// leastTime is the least time for a read: a shorter deadline would report a database as down that is not.
const leastTime = 300 * time.Millisecond

// errNoTime says that the deadline of the reader leaves no time for a read.
var errNoTime = errors.New("no time left to read gauges")

// get returns the last result, or reads if it is too old. The read has the deadline of ctx, but is not cancelled with ctx,
// because other readers wait for it, too. An error is kept like a value, so an outage costs one read per pause and not one per
// scrape. The value must not be changed: all readers share it.
func (p *cached[T]) get(ctx context.Context, read func(ctx context.Context) (T, error)) (T, error) {
	if !p.begin(ctx) {
		var nothing T
		return nothing, errNoTime
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.reading)
		p.reading = nil
	}()
	// Readers that have waited for another read come here and take its result.
	if !p.due() {
		return p.value, p.err
	}
	until, limited := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	// The deadline is kept without the cancellation: a scrape that gives up must not spoil the read for the others.
	if limited {
		if time.Until(until) < leastTime {
			var nothing T
			return nothing, errNoTime
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	start, before := time.Now(), p.err
	// An error replaces the value, so that nobody takes old figures for new ones.
	p.value, p.err = read(ctx)
	p.at = time.Now()
	p.took = p.at.Sub(start)
	if p.err != nil && before == nil && p.onFailure != nil {
		p.onFailure(p.err) // only the first of several in a row
	}
	return p.value, p.err
}

// begin waits until no other read runs. It holds no lock while it waits, so that a reader with a deadline can leave.
func (p *cached[T]) begin(ctx context.Context) bool {
	for {
		p.mu.Lock()
		other := p.reading
		if other == nil {
			p.reading = make(chan struct{})
			p.mu.Unlock()
			return true
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return false
		}
	}
}

// due has a pause that grows with the time of the last read, so that reads take a twentieth of the time at most however slow the database
// is.
func (p *cached[T]) due() bool {
	pause := p.every
	if !p.selfPaced {
		pause = max(pause, share*p.took)
	}
	if p.err != nil {
		pause = min(p.every, max(afterFailure, p.took))
	}
	return p.at.IsZero() || time.Since(p.at) >= pause
}

// readySurvey caches the positions of the heads of the queues. Under a pinned xmin a full read, from the start of the index,
// reads all dead entries there (0.6 µs each); a read from an earlier head reads few. Only a full read finds jobs that became
// visible late, and lanes and priorities that had no jobs before. Full reads take a twentieth of the time at most.
// It belongs to the reader of the gauge that has passed cached.begin, so it needs no lock.
type readySurvey struct {
	heads map[readyLevel]ReadyHead
	at    time.Time     // of the last full read
	took  time.Duration // by it
}

type readyLevel struct {
	queue    string
	lane     string
	priority int16
}

// ages keeps heads of lanes that have become empty in the map until the next full read, and give no age.
func (s *readySurvey) ages(ctx context.Context, st *Database, queues []string) (map[string]time.Duration, error) {
	if len(queues) == 0 {
		return nil, nil
	}
	err := errTooSlow
	var heads []ReadyHead
	if time.Since(s.at) >= share*s.took {
		start := time.Now()
		heads, err = st.ReadyHeads(ctx, queues)
		// A full read that failed counts too, or one that always times out would be tried at every scrape.
		s.at = time.Now()
		s.took = s.at.Sub(start)
		if err == nil {
			s.heads = map[readyLevel]ReadyHead{}
		}
	}
	if err != nil && s.heads != nil {
		heads, err = st.ReadyHeadsFrom(ctx, slices.Collect(maps.Values(s.heads)))
	}
	if err != nil {
		return nil, err
	}
	ages := make(map[string]time.Duration, len(queues))
	for _, h := range heads {
		s.heads[readyLevel{h.Queue, h.Lane, h.Priority}] = h
		ages[h.Queue] = max(ages[h.Queue], h.Age)
	}
	return ages, nil
}

// errTooSlow says that the next full read has to wait, and that no earlier one has succeeded.
var errTooSlow = errors.New("the index of ready jobs has too many dead entries")
