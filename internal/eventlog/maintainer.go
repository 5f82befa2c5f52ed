package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/loop"
)

const (
	// pruneInterval is how often retention runs while events are written.
	pruneInterval = time.Minute

	// headroomCheck compares numbers in memory, no query: at 45 000 events/s half the headroom lasts 30 s.
	headroomCheck = 5 * time.Second

	// lateRelay is how far behind a relay may be before its head is no measure of the numbers in use. Then partitions are
	// made at this interval.
	lateRelay = 10 * time.Second

	// idlePrune is how often retention by age runs while no events are written.
	idlePrune = 10 * time.Minute

	// statsPrune is long because old cron runs are found by reading all kept ones.
	statsPrune = time.Hour

	// maintainTimeout ends one piece of work, statements included, so that a lock that is never granted does not stop the loop.
	maintainTimeout = time.Minute

	// floorRows is how many events make it worth to store again where the log begins for readers: what was published since is
	// what a reader of the oldest events walks over. It is also the limit of one statement, and takes it 10 ms.
	floorRows = 10_000

	// prunedRows is the limit of one statement. A run repeats it until nothing is left, or until its time is over; the next
	// run then goes on.
	prunedRows = 1000

	// cronRuns is the limit of one statement: a cron that fires every second makes 3 600 rows between two runs.
	cronRuns = 20_000
)

// MaintainerConfig says how long events and jobs are kept. Zero: no limit.
type MaintainerConfig struct {
	// Events has the limits of what readers see: the period, and the number of the newest events. All nodes should have the same limits,
	// because the one that started last stores them for all.
	Events config.Events

	// KeepDone returns how long completed and cancelled jobs are kept, in whole days of UTC, because days are dropped as a whole; 0 keeps
	// them for ever. It is asked before each drop of a day, because queues may change how long they keep their jobs. nil: for ever.
	KeepDone func(ctx context.Context) time.Duration
}

// Maintainer creates partitions before they are needed and drops those out of retention. Every node runs one; locks in the
// SQL functions let one at a time work. It takes from the relay whether events are written, and seldom queries an idle
// database. What ends or drops a partition does nothing if another node is at it, or if a transaction has held the table for
// longer than a second; what is due then is detached (detachDue), and the next run tries again. A node that stops halfway leaves
// nothing to repair: each statement is a transaction of its own, and a partition that is being detached is stored.
type Maintainer struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals MaintainerTestSignals

	config MaintainerConfig
	pool   *pgxpool.Pool
	q      *dbsqlc.Queries
	relay  *Relay

	// Only the running goroutine uses these.
	configured bool  // the limits are stored
	floorAt    int64 // watermark when the floor was stored
	headroom   headroom
	// prunedAt and prunedTo are set before the run, also for one that fails: a failing run must not be repeated at every look.
	prunedAt time.Time
	prunedTo int64 // watermark at that time
	statsAt  time.Time
}

// headroom is what the partitions of PartitionEnsure take. The zero value makes the first look create partitions, whatever
// the relay says.
type headroom struct {
	refill int64         // make more when this number is reached: half is used
	days   time.Duration // from made on for which there are partitions, by the clock of the database
	made   time.Time     // latest call of PartitionEnsure
}

// Pruned counts what one run removed.
type Pruned struct {
	EventPartitions int32
	Days            int32 // partitions of jobs that ended on a day
	Keys            int64 // idempotency keys
	Minutes         int64 // rows of the statistics of queues that were added to those of hours
	Hours           int64 // rows of the statistics per hour
	CronRuns        int64
	Queues          int32 // that nobody has used for long
}

// MaintainerTestSignals are set up by tests with Init.
type MaintainerTestSignals struct {
	Ensured testsignal.TestSignal[int64] // numbers below it have a partition
	Pruned  testsignal.TestSignal[Pruned]
}

// Init makes the signals usable.
func (s *MaintainerTestSignals) Init(tb testutil.TestingTB) {
	s.Ensured.Init(tb)
	s.Pruned.Init(tb)
}

// NewMaintainer returns a maintainer; Start it.
func NewMaintainer(archetype *baseservice.Archetype, pool *pgxpool.Pool, c MaintainerConfig, relay *Relay) *Maintainer {
	if c.KeepDone == nil {
		c.KeepDone = func(context.Context) time.Duration { return 0 }
	}
	return baseservice.Init(archetype, &Maintainer{config: c, pool: pool, q: dbsqlc.New(pool), relay: relay})
}

// Start runs the first check at once: partitions may be missing after a long downtime.
func (m *Maintainer) Start(ctx context.Context) error {
	loop.Run(ctx, &m.BaseStartStop, m.run)
	return nil
}

// run looks at the status of the relay, which is in memory: a look at which nothing is due sends no statement.
func (m *Maintainer) run(ctx context.Context) {
	ticker := time.NewTicker(headroomCheck)
	defer ticker.Stop()
	for {
		if !m.configured {
			m.try(ctx, "store the limits of retention", m.configure)
		}
		now, status := m.Time.Now(), m.relay.Status()
		if m.ensureDue(now, status) {
			m.try(ctx, "create partitions", func(ctx context.Context) error { return m.ensure(ctx, now, status) })
		}
		if m.pruneDue(now, status.Watermark) {
			m.prunedAt, m.prunedTo, m.floorAt = now, status.Watermark, status.Watermark
			m.try(ctx, "apply retention", func(ctx context.Context) error { return m.runOnce(ctx, now) })
		} else if status.Watermark-m.floorAt >= floorRows {
			m.floorAt = status.Watermark
			m.try(ctx, "advance the beginning of the events", m.raiseFloor)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// try leaves an error in the log, which stops nothing: each piece of work is due again at a later look.
func (m *Maintainer) try(ctx context.Context, what string, do func(context.Context) error) {
	limited, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	if err := do(limited); err != nil && ctx.Err() == nil {
		m.Logger.ErrorContext(ctx, m.Name+": cannot "+what+"; trying again", slog.Any("error", err))
	}
}

// configure runs once a process, and again only until it has succeeded. Readers on all nodes see the limits from the next statement
// on.
func (m *Maintainer) configure(ctx context.Context) error {
	err := m.q.EventRetentionConfigure(ctx, interval(m.config.Events.RetentionPeriod),
		pgtype.Int8{Int64: m.config.Events.MaxCount, Valid: m.config.Events.MaxCount > 0})
	m.configured = err == nil
	return err
}

// raiseFloor stores where the log begins for readers, who look only from there on for its exact beginning.
// Without it readers would still be exact, because ojs.event_floor walks on from the stored place, but each would walk further.
// Two nodes may run it at once: the update holds only if the place is still the one from which the walk began.
func (m *Maintainer) raiseFloor(ctx context.Context) error {
	_, err := repeat(func() (int64, error) { return m.q.EventFloorRaise(ctx, floorRows) })
	return err
}

// ensureDue reports whether to create partitions: when half the numbers are used, and for days two days ahead. Every write
// fails for a number without a partition. The head is what the relay has read, so numbers that were drawn since are not in it;
// half of the headroom is left for them.
func (m *Maintainer) ensureDue(now time.Time, status RelayStatus) bool {
	made := m.headroom.made
	return made.IsZero() || max(status.Head, status.Watermark) >= m.headroom.refill || m.headroom.days-now.Sub(made) < 48*time.Hour ||
		status.BehindFor > lateRelay && now.Sub(made) > lateRelay
}

// ensure keeps the end of the days as a distance from the database's clock, because the clock of the node may be wrong.
func (m *Maintainer) ensure(ctx context.Context, now time.Time, status RelayStatus) error {
	row, err := m.q.PartitionEnsure(ctx)
	if err != nil {
		return err
	}
	head := max(status.Head, status.Watermark)
	m.headroom = headroom{refill: head + max(1, (row.EventsBelow-head)/2), days: row.JobsDoneBefore.Time.Sub(row.Now.Time), made: now}
	m.TestSignals.Ensured.Signal(row.EventsBelow)
	return nil
}

// pruneDue lets an idle node apply retention too, less often: events and jobs grow old without new ones.
func (m *Maintainer) pruneDue(now time.Time, watermark int64) bool {
	since := now.Sub(m.prunedAt)
	return since >= idlePrune || since >= pruneInterval && watermark != m.prunedTo
}

// runOnce drops what is out of retention, one partition per transaction, so that no transaction keeps its locks for long.
// The steps are in this order because a partition is dropped only when the stored floor is behind its last row, and when it is
// ended: the floor first, then the end of the partition that is being written, then the drops. An error ends the run; what was
// done before it is committed.
func (m *Maintainer) runOnce(ctx context.Context, now time.Time) error {
	var p Pruned
	var err error
	if err = m.raiseFloor(ctx); err != nil {
		return fmt.Errorf("advance the beginning of the events: %w", err)
	}
	if _, err = m.q.EventPartitionClose(ctx); err != nil {
		return fmt.Errorf("close a partition of events: %w", err)
	}
	if p.EventPartitions, err = repeat(func() (int32, error) { return m.q.EventPartitionPrune(ctx) }); err != nil {
		return fmt.Errorf("drop events: %w", err)
	}
	if err = m.q.RetentionKeepStore(ctx, interval(m.config.KeepDone(ctx))); err != nil {
		return fmt.Errorf("store the retention of finished jobs: %w", err)
	}
	if p.Days, err = repeat(func() (int32, error) {
		return m.q.JobFinishedPartitionPrune(ctx, interval(m.config.KeepDone(ctx)))
	}); err != nil {
		return fmt.Errorf("drop finished jobs: %w", err)
	}
	if p.Keys, err = repeat(func() (int64, error) { return m.q.IdempotencyKeyPrune(ctx, prunedRows) }); err != nil {
		return fmt.Errorf("delete idempotency keys: %w", err)
	}
	if now.Sub(m.statsAt) >= statsPrune {
		if p.Minutes, err = repeat(func() (int64, error) { return m.q.StatsMinutePrune(ctx, prunedRows) }); err != nil {
			return fmt.Errorf("add up statistics: %w", err)
		}
		if p.Hours, err = repeat(func() (int64, error) { return m.q.StatsHourPrune(ctx, prunedRows) }); err != nil {
			return fmt.Errorf("delete old statistics: %w", err)
		}
		if p.CronRuns, err = repeat(func() (int64, error) { return m.q.CronRunPrune(ctx, cronRuns) }); err != nil {
			return fmt.Errorf("delete runs of crons: %w", err)
		}
		if p.Queues, err = repeat(func() (int32, error) { return m.q.QueuePrune(ctx, prunedRows) }); err != nil {
			return fmt.Errorf("delete unused queues: %w", err)
		}
		m.statsAt = now // only now: a run whose time is over goes on at the next one
	}
	// Last, because it may wait for open transactions.
	detached, err := m.detachDue(ctx, "events", m.q.EventPartitionLeave)
	p.EventPartitions += detached
	if err != nil {
		return fmt.Errorf("detach events: %w", err)
	}
	detached, err = m.detachDue(ctx, "jobs_done", m.emptyDay)
	p.Days += detached
	if err != nil {
		return fmt.Errorf("detach finished jobs: %w", err)
	}
	if p.EventPartitions+p.Days > 0 {
		m.Logger.InfoContext(ctx, m.Name+": partitions dropped", slog.Int("events", int(p.EventPartitions)), slog.Int("days", int(p.Days)))
	}
	m.TestSignals.Pruned.Signal(p)
	return nil
}

// repeat calls one, which removes some and returns how many, until there is nothing left.
func repeat[N int32 | int64](one func() (N, error)) (total N, err error) {
	for {
		n, err := one()
		if err != nil || n == 0 {
			return total, err
		}
		total += n
	}
}

// interval converts to SQL; zero means no limit, which is NULL.
func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d > 0}
}
