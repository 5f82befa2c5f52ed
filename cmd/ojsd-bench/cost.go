package main

import (
	"context"
	"fmt"
)

// runCost measures what the database does for one job of scenario mixed.
func runCost(ctx context.Context, r *runner) error {
	return r.eachMix(func(m mix) error {
		return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return r.measureCost(ctx, m) })
	})
}

// The database must serve nobody else meanwhile: the counters are of the whole server or database.
func (r *runner) measureCost(ctx context.Context, m mix) (figure, error) {
	l := r.newLoad("cost")
	before, err := r.readCounters(ctx)
	if err != nil {
		return figure{}, err
	}
	if _, err := l.mixed(ctx, m, r.limit(maxEnqueues)); err != nil {
		return figure{}, err
	}
	after, err := r.readCounters(ctx)
	if err != nil {
		return figure{}, err
	}
	jobs := len(l.jobs.acked)
	metrics := after.perJob(before, jobs)
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("cost", m.params(), metrics, jobs), nil
}

// counters are totals that the database keeps. Only the difference of two readings means anything.
type counters struct {
	writes, wal, commits int64
	statements           *int64 // nil: pg_stat_statements is not installed, or we may not read it
}

// readCounters waits first, because a session may report its statistics up to 10 s after it has become idle.
func (r *runner) readCounters(ctx context.Context) (counters, error) {
	sleep(ctx, r.cfg.statsDelay)
	var c counters
	err := r.db.conn.QueryRow(ctx, `
		SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
		       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
		       (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())`,
	).Scan(&c.writes, &c.wal, &c.commits)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	c.statements = r.db.statements(ctx)
	return c, nil
}

// statements counts the calls of all statements, or returns nil if that fails: the figure is useful without it.
func (d *database) statements(ctx context.Context) *int64 {
	var calls int64
	err := d.conn.QueryRow(ctx, `
		SELECT sum(calls)::bigint FROM pg_stat_statements
		WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&calls)
	if err != nil {
		return nil
	}
	return &calls
}

// Work that the server does by itself in this time, such as heartbeats and passes of the relay, counts for the jobs.
func (c counters) perJob(before counters, jobs int) []metric {
	per := func(now, then int64) float64 { return float64(now-then) / float64(max(1, jobs)) }
	metrics := []metric{
		{"write_transactions_per_job", per(c.writes, before.writes)},
		{"commits_per_job", per(c.commits, before.commits)},
		{"wal_bytes_per_job", per(c.wal, before.wal)},
	}
	if c.statements != nil && before.statements != nil {
		metrics = append(metrics, metric{"statements_per_job", per(*c.statements, *before.statements)})
	}
	return metrics
}
