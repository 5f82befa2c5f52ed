package metrics

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// GaugeTimeout bounds one read of gauges.
	GaugeTimeout = 2 * time.Second

	// OtherQueues stands for the queues beyond the limit.
	OtherQueues = "__other__"

	gaugeReply = 200 * time.Millisecond // between the statement timeout and GaugeTimeout, for the error to arrive
	// gaugeLock is the lock_timeout: figures must not wait behind a migration or a drop of a partition.
	gaugeLock = "100ms"

	// maxUnpublished bounds the count of rows; with more, the distance of the numbers is shown instead, which also counts
	// numbers without a row.
	maxUnpublished = 100_000 // rows that are counted one by one
)

// Database reads the gauges of the whole deployment. It reads in snapshots and changes nothing. Any number of nodes may read at
// once.
type Database struct{ db *pg.DB }

// NewDatabase returns a reader.
func NewDatabase(db *pg.DB) *Database { return &Database{db} }

// Gauges are figures of the whole deployment in one snapshot. They come from stored counts, so a read takes the same time
// with any backlog, and all nodes read the same.
type Gauges struct {
	Queues map[string]QueueGauges
	Events EventGauges

	QueuesActive  int64
	WorkersActive int64 // that are not dead

	// EnqueuedTotal, CompletedTotal and DiscardedTotal are the published events of these types since the schema was created.
	EnqueuedTotal, CompletedTotal, DiscardedTotal int64

	// Completed is the number of jobs of the last 60 s, Ran the sum of their run times.
	Completed float64
	Ran       time.Duration
}

// QueueGauges are figures of one queue.
type QueueGauges struct {
	Jobs        map[ojs.JobState]int64
	BusyWorkers int64
}

// EventGauges are figures of the event log.
type EventGauges struct {
	Unpublished int64
	Lag         time.Duration // age of the oldest event that is not published
	Retained    int64
	RetainedFor time.Duration // age of the oldest event that is kept
}

// gaugeTx reads in a transaction with short timeouts and without sequential scans. The statement timeout ends before the
// context does, so that the error is one of the database and the connection stays usable.
func (d *Database) gaugeTx(ctx context.Context, read func(ctx context.Context, q *dbsqlc.Queries) error) error {
	ctx, cancel := context.WithTimeout(ctx, GaugeTimeout)
	defer cancel()
	until, _ := ctx.Deadline()
	err := pg.InSnapshot(ctx, d.db.Pool, func(tx pgx.Tx) error {
		q := d.db.Q.WithTx(tx)
		statement := max(1, (time.Until(until) - gaugeReply).Milliseconds())
		if err := q.MetricsBegin(ctx, strconv.FormatInt(statement, 10)+"ms", gaugeLock); err != nil {
			return err
		}
		return read(ctx, q)
	})
	return pg.ClientError(err)
}

// Gauges reads the gauges of the configured queues and then of those with the most jobs. The others are added up under OtherQueues.
// All reads are of one snapshot; an error of one loses all.
func (d *Database) Gauges(ctx context.Context, c config.Metrics) (Gauges, error) {
	g := Gauges{Queues: map[string]QueueGauges{}}
	err := d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		e, err := q.MetricsEvents(ctx, maxUnpublished)
		if err != nil {
			return err
		}
		g.EnqueuedTotal, g.CompletedTotal, g.DiscardedTotal = e.EnqueuedTotal, e.CompletedTotal, e.DiscardedTotal
		g.Events = EventGauges{Unpublished: e.Unpublished, Retained: e.Retained}
		// The count was cut, so the true number is this or more.
		if e.Unpublished == maxUnpublished {
			g.Events.Unpublished = max(maxUnpublished, e.Head-e.Watermark)
		}
		// The two ages are differences of times of the database, so a wrong clock of the node does not show in them.
		if e.UnpublishedSince.Valid {
			g.Events.Lag = max(0, e.Now.Time.Sub(e.UnpublishedSince.Time))
		}
		if e.RetainedSince.Valid {
			g.Events.RetainedFor = max(0, e.Now.Time.Sub(e.RetainedSince.Time))
		}
		queues, err := q.QueueGetTotals(ctx)
		if err != nil {
			return err
		}
		workers, err := q.WorkerGetTotals(ctx, "")
		if err != nil {
			return err
		}
		rates, err := q.StatsMinuteGetLatest(ctx, "")
		if err != nil {
			return err
		}
		g.QueuesActive, g.WorkersActive = queues.Active, workers.Total-workers.Stale
		g.Completed, g.Ran = rates.Completed, time.Duration(rates.DurationMs*float64(time.Millisecond))
		counts, err := q.MetricsQueueCounts(ctx, dbsqlc.MetricsQueueCountsParams{MaxRows: maxUnpublished, MaxQueues: int64(c.MaxQueues),
			Named: c.Queues, Other: OtherQueues})
		if err != nil {
			return err
		}
		// Rows of one queue and state may come in several, for those that are added up under OtherQueues.
		for _, r := range counts {
			queue, known := g.Queues[r.Queue]
			if !known {
				queue.Jobs = map[ojs.JobState]int64{}
			}
			queue.Jobs[ojs.JobState(r.State)] += r.Count
			g.Queues[r.Queue] = queue
		}
		busy, err := q.MetricsBusyWorkers(ctx)
		if err != nil {
			return err
		}
		// Queues that only workers name are added, up to MaxQueues. All nodes choose the same ones.
		slices.SortFunc(busy, func(a, b dbsqlc.MetricsBusyWorkersRow) int { return strings.Compare(a.Queue, b.Queue) })
		_, full := g.Queues[OtherQueues]
		for _, r := range busy {
			name := r.Queue
			if _, known := g.Queues[name]; !known && (full || len(g.Queues) >= c.MaxQueues) {
				// From the first queue that has no room on, all that are not known yet are added up, so the choice does not
				// depend on the order of reading.
				name, full = OtherQueues, true
			}
			queue := g.Queues[name]
			queue.BusyWorkers += r.Workers
			g.Queues[name] = queue
		}
		return nil
	})
	return g, err
}

// ReadyHead is the next job to be fetched of a queue, lane and priority.
type ReadyHead struct {
	Queue    string
	Lane     string
	Priority int16
	Seq      int64
	Age      time.Duration // since the job became available
}

// maxReadyHeads bounds the heads of all queues together: 5 000 are read in about 50 ms.
const maxReadyHeads = 5000

// ReadyHeads finds the heads from the start of the index. Under a pinned xmin that reads all dead index entries there.
// They are the jobs with the longest wait only within their lane and priority.
func (d *Database) ReadyHeads(ctx context.Context, queues []string) (heads []ReadyHead, err error) {
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		rows, err := q.MetricsReadyHeads(ctx, maxReadyHeads, queues)
		for _, r := range rows {
			heads = append(heads, ReadyHead{r.Queue, r.Lane, r.Priority, r.ReadySeq, r.Now.Time.Sub(r.EnqueuedAt.Time)})
		}
		return err
	})
	return heads, err
}

// ReadyHeadsFrom finds the heads behind earlier ones. It does not find jobs that became visible before those meanwhile.
// A lane whose head was fetched since gives its next job.
func (d *Database) ReadyHeadsFrom(ctx context.Context, were []ReadyHead) (heads []ReadyHead, err error) {
	var p dbsqlc.MetricsReadyHeadsFromParams
	for _, h := range were {
		p.Queues, p.Lanes, p.Priorities, p.Lows = append(p.Queues, h.Queue), append(p.Lanes, h.Lane), append(p.Priorities, h.Priority),
			append(p.Lows, h.Seq)
	}
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		rows, err := q.MetricsReadyHeadsFrom(ctx, p)
		for _, r := range rows {
			heads = append(heads, ReadyHead{r.Queue, r.Lane, r.Priority, r.ReadySeq, r.Now.Time.Sub(r.EnqueuedAt.Time)})
		}
		return err
	})
	return heads, err
}

// DeadLetterCounts counts dead letters by queue, with an index that contains nothing else.
func (d *Database) DeadLetterCounts(ctx context.Context) (counts map[string]int64, err error) {
	counts = map[string]int64{}
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		rows, err := q.MetricsDeadLetters(ctx)
		for _, r := range rows {
			counts[r.Queue] = r.Count
		}
		return err
	})
	return counts, err
}

// XminHolder is a session, slot or prepared transaction that keeps dead rows from being cleaned; Kind is empty if none is seen. Seconds are
// 0 without a transaction. Unless it SeesAll, the role of the server sees its own sessions only.
type XminHolder = dbsqlc.MetricsXminHolderRow

// OldestXminHolder reads who holds the oldest.
func (d *Database) OldestXminHolder(ctx context.Context) (holder XminHolder, err error) {
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		holder, err = q.MetricsXminHolder(ctx)
		return err
	})
	return holder, err
}

// RelayHolder is a session that keeps the relays of all nodes from publishing.
type RelayHolder = dbsqlc.MetricsRelayHolderRow

// OldestRelayHolder returns nil if there is none.
func (d *Database) OldestRelayHolder(ctx context.Context) (holder *RelayHolder, err error) {
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		rows, err := q.MetricsRelayHolder(ctx)
		if len(rows) > 0 {
			holder = &rows[0]
		}
		return err
	})
	return holder, err
}

// TableStats are the statistics of a table with its partitions and indexes.
type TableStats = dbsqlc.MetricsTablesRow

// statTables are the tables that are written all the time. Partitioned tables are added up with their partitions.
var statTables = []string{
	"jobs", "jobs_done", "events", "event_relay", "event_gaps", "queue_counts", "stats_minute", "workers", "webhook_deliveries",
}

// TableStats reads the statistics of statTables.
func (d *Database) TableStats(ctx context.Context) (tables []TableStats, err error) {
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		tables, err = q.MetricsTables(ctx, statTables)
		return err
	})
	return tables, err
}

// Retention is for how long the oldest partition of what is kept for a time should have been gone.
type Retention = dbsqlc.MetricsRetentionRow

// Retention returns a row for the event log and one for finished jobs.
func (d *Database) Retention(ctx context.Context) (behind []Retention, err error) {
	err = d.gaugeTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		behind, err = q.MetricsRetention(ctx)
		return err
	})
	return behind, err
}
