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

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

const (
	// pruneInterval is how often retention is looked at while events come.
	pruneInterval = time.Minute

	// headroomCheck compares numbers in memory, no query: at 45 000 events/s half the headroom lasts 30 s.
	headroomCheck = 5 * time.Second

	// lateRelay does not tell how fast numbers are used up, so then partitions are looked after by the clock.
	lateRelay = 10 * time.Second

	// idlePrune is how often an idle server looks for what time alone has made old.
	idlePrune = 10 * time.Minute

	// statsPrune, because nothing finds old minutes but a scan, and old runs of crons only a walk over all that are kept.
	statsPrune = time.Hour

	maintainTimeout = time.Minute
	prunedRows      = 1000

	// cronRuns a pass: a cron that fires every second makes 3 600 between two.
	cronRuns = 20_000
)

// MaintainerConfig says what is kept. Zero: no limit.
type MaintainerConfig struct {
	// RetentionPeriod is events.retention_period: older events go.
	RetentionPeriod time.Duration

	// MaxCount is events.max_count: beyond it the oldest events go.
	MaxCount int64

	// RetentionDone is how long completed and cancelled jobs are kept, in whole days of UTC, because days are
	// dropped as a whole.
	RetentionDone time.Duration
}

// Maintainer creates partitions before they are needed and drops what retention has overtaken. Every node runs one; the
// SQL functions keep them out of each other's way. It knows from the relay whether anything moves, and leaves an idle
// database alone.
type Maintainer struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals MaintainerTestSignals

	config MaintainerConfig
	q      *dbsqlc.Queries
	relay  *Relay

	// Only the running goroutine touches these.
	room     room
	prunedAt time.Time
	prunedTo int64 // watermark at that time
	statsAt  time.Time
}

// room is what PartitionEnsure has made.
type room struct {
	refill int64     // make more when this number is reached: half is used
	days   time.Time // days before it have a partition
	made   time.Time
}

// Pruned counts what one run removed.
type Pruned struct {
	EventPartitions int
	Days            int
	Keys            int64
	Minutes         int64
	CronRuns        int64
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
func NewMaintainer(archetype *baseservice.Archetype, pool *pgxpool.Pool, config MaintainerConfig, relay *Relay) *Maintainer {
	return baseservice.Init(archetype, &Maintainer{config: config, q: dbsqlc.New(pool), relay: relay})
}

// Start begins at once: partitions may be missing after a long pause.
func (m *Maintainer) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := m.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		m.run(ctx)
	}()
	return nil
}

func (m *Maintainer) run(ctx context.Context) {
	ticker := time.NewTicker(min(headroomCheck, pruneInterval))
	defer ticker.Stop()
	for {
		now, status := m.Time.Now(), m.relay.Status()
		if m.ensureDue(now, status) {
			m.try(ctx, "make partitions", func(ctx context.Context) error { return m.ensure(ctx, now, status) })
		}
		if m.pruneDue(now, status.Watermark) {
			m.prunedAt, m.prunedTo = now, status.Watermark
			m.try(ctx, "prune", func(ctx context.Context) error { return m.runOnce(ctx, now) })
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (m *Maintainer) try(ctx context.Context, what string, do func(context.Context) error) {
	limited, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	if err := do(limited); err != nil && ctx.Err() == nil {
		m.Logger.ErrorContext(ctx, m.Name+": "+what+" failed", slog.Any("error", err))
	}
}

// ensureDue: a number without a partition fails every write, so more are made when half are used and days two ahead.
func (m *Maintainer) ensureDue(now time.Time, status RelayStatus) bool {
	return m.room.made.IsZero() || max(status.Head, status.Watermark) >= m.room.refill || m.room.days.Sub(now) < 48*time.Hour ||
		status.BehindFor > lateRelay && now.Sub(m.room.made) > lateRelay
}

func (m *Maintainer) ensure(ctx context.Context, now time.Time, status RelayStatus) error {
	row, err := m.q.PartitionEnsure(ctx)
	if err != nil {
		return err
	}
	head := max(status.Head, status.Watermark)
	m.room = room{refill: head + max(1, (row.EventsBelow-head)/2), days: row.JobsDoneBefore.Time, made: now}
	m.TestSignals.Ensured.Signal(row.EventsBelow)
	return nil
}

func (m *Maintainer) pruneDue(now time.Time, watermark int64) bool {
	since := now.Sub(m.prunedAt)
	return since >= idlePrune || since >= pruneInterval && watermark != m.prunedTo
}

// runOnce drops what is out of retention, one partition a transaction, so that none holds its locks for long.
func (m *Maintainer) runOnce(ctx context.Context, now time.Time) error {
	var p Pruned
	var err error
	if p.EventPartitions, err = repeat(func() (int32, error) {
		return m.q.EventPartitionPrune(ctx, interval(m.config.RetentionPeriod), m.config.MaxCount)
	}); err != nil {
		return fmt.Errorf("drop events: %w", err)
	}
	if p.Days, err = repeat(func() (int32, error) {
		return m.q.JobFinishedPartitionPrune(ctx, interval(m.config.RetentionDone))
	}); err != nil {
		return fmt.Errorf("drop finished jobs: %w", err)
	}
	if p.Keys, err = m.q.IdempotencyKeyPrune(ctx, prunedRows); err != nil {
		return fmt.Errorf("delete idempotency keys: %w", err)
	}
	if now.Sub(m.statsAt) >= statsPrune {
		m.statsAt = now
		if p.Minutes, err = m.q.StatsMinutePrune(ctx, prunedRows); err != nil {
			return fmt.Errorf("delete statistics: %w", err)
		}
		if p.CronRuns, err = m.q.CronRunPrune(ctx, cronRuns); err != nil {
			return fmt.Errorf("delete runs of crons: %w", err)
		}
	}
	if p.EventPartitions+p.Days > 0 {
		m.Logger.InfoContext(ctx, m.Name+": partitions dropped", slog.Int("events", p.EventPartitions), slog.Int("days", p.Days))
	}
	m.TestSignals.Pruned.Signal(p)
	return nil
}

func repeat(one func() (int32, error)) (total int, err error) {
	for {
		n, err := one()
		if err != nil || n == 0 {
			return total, err
		}
		total += int(n)
	}
}

// interval is SQL's; zero means no limit, NULL.
func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d > 0}
}
