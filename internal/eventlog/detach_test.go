package eventlog

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ojsd/ojsd/internal/config"
)

// dueData makes partitions of events and days of finished jobs that are out of retention, n of each, and a maintainer.
func (b *testBundle) dueData(t *testing.T, n int) *Maintainer {
	t.Helper()
	for i := range int64(n) {
		b.exec(t, insertEvent, "old")
		b.age(t, "2 days")
		b.publishAll(t)
		b.jump(t, (i+1)*partitionSize)
		b.exec(t, fmt.Sprintf(`CREATE TABLE ojs.jobs_done_p2020010%d PARTITION OF ojs.jobs_done FOR VALUES FROM ('2020-01-0%[1]d 00:00+00') TO ('2020-01-0%[2]d 00:00+00')`, i+1, i+2))
		b.exec(t, `INSERT INTO ojs.jobs_done (id, type, queue, lane, state, created_at, finished_at, args)
			SELECT gen_random_uuid(), 't', 'q', 'acme', 'completed', f, f, '[]' FROM generate_series(1, 1000), CAST('2020-01-01 12:00+00'::timestamptz + $1::bigint * interval '1 day' AS timestamptz) f`, i)
	}
	b.exec(t, `INSERT INTO ojs.queue_counts VALUES ('q', 'completed', $1)`, 1000*n+7)
	b.exec(t, `INSERT INTO ojs.tenant_counts VALUES ('acme', 'q', 'completed', $1)`, 1000*n+7)
	b.exec(t, insertEvent, "new")
	b.publishAll(t)
	m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{
		Events: config.Events{RetentionPeriod: 24 * time.Hour}, KeepDone: func(context.Context) time.Duration { return 7 * 24 * time.Hour },
	}, b.relay)
	m.TestSignals.Init(t)
	require.NoError(t, m.configure(t.Context()))
	return m
}

// behind is for how long the oldest partition of events and the oldest day should have been gone.
func (b *testBundle) behind(t *testing.T) (events, jobs time.Duration) {
	t.Helper()
	read := func(data string) time.Duration {
		return time.Duration(b.count(t, `SELECT seconds::bigint FROM ojs.retention_behind() WHERE data = $1`, data)) * time.Second
	}
	return read("events"), read("finished_jobs")
}

// enqueueing begins ten clients in transactions that call ojs.enqueue and stay open for 200 ms, so that there is always one open. The id makes the
// call look at every day of finished jobs. A client that waits for a lock for two seconds fails. It returns the longest call.
func (b *testBundle) enqueueing(t *testing.T) (stop func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var group errgroup.Group
	var calls, longest atomic.Int64
	for range 10 {
		conn, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		group.Go(func() error {
			for ctx.Err() == nil {
				err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '2s'`); err != nil {
						return err
					}
					began := time.Now()
					_, err := tx.Exec(t.Context(), `SELECT ojs.enqueue('t', '[]', 'q', json_build_object('id', ojs.new_id(now())))`)
					if err != nil {
						return err
					}
					for took := time.Since(began).Nanoseconds(); ; {
						if before := longest.Load(); took <= before || longest.CompareAndSwap(before, took) {
							break
						}
					}
					calls.Add(1)
					_, err = tx.Exec(t.Context(), `SELECT pg_sleep(0.2)`)
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.Eventually(t, func() bool { return calls.Load() > 20 }, waitFor, time.Millisecond)
	return func() time.Duration {
		before := calls.Load()
		require.Eventually(t, func() bool { return calls.Load() > before+10 }, waitFor, time.Millisecond)
		cancel()
		require.NoError(t, group.Wait())
		return time.Duration(longest.Load())
	}
}

// Whoever calls ojs.enqueue has a lock on the log until the end of its transaction. Where such transactions overlap nobody gets ACCESS EXCLUSIVE.
func TestRetentionWhileTransactionsOverlap(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	m := b.dueData(t, 3)
	b.exec(t, "SELECT ojs.event_floor_raise(1000)")
	b.exec(t, "UPDATE ojs.retention SET keep = '7 days' WHERE parent = 'jobs_done'")
	events, jobs := b.behind(t)
	require.InDelta(t, 5*24*time.Hour, events, float64(time.Hour))
	require.Greater(t, jobs, 365*24*time.Hour)
	stop := b.enqueueing(t)
	began := time.Now()
	var done Pruned
	require.Eventually(t, func() bool {
		require.NoError(t, m.runOnce(t.Context(), time.Now()))
		p := await(t, m.TestSignals.Pruned.WaitC())
		done.EventPartitions, done.Days = done.EventPartitions+p.EventPartitions, done.Days+p.Days
		return done.EventPartitions == 3 && done.Days == 3
	}, waitFor, time.Millisecond, "%+v", &done)
	t.Logf("dropped within %s", time.Since(began))
	t.Logf("longest call of a client: %s", stop())
	events, jobs = b.behind(t)
	require.Zero(t, events)
	require.Zero(t, jobs)
	require.EqualValues(t, 7, b.count(t, `SELECT count FROM ojs.queue_counts WHERE queue = 'q' AND state = 'completed'`))
	require.EqualValues(t, 7, b.count(t, `SELECT count FROM ojs.tenant_counts WHERE tenant = 'acme'`))
	require.Zero(t, b.count(t, `SELECT count(*) FROM pg_class WHERE relname LIKE 'jobs_done_p2020%' OR relname = 'events_p00000000000000'`))
	require.NotContains(t, queues(b.readAll(t)), "old")
}

// A transaction that has read the tables keeps their partitions until it ends. Retention goes on then where it has stopped, on any node.
func TestRetentionGoesOnAfterALongTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	first := b.dueData(t, 2)
	first.Logger = discardLogger()
	reader, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	t.Cleanup(func() { _ = reader.Rollback(context.Background()) })
	seen := func() (n int64) {
		require.NoError(t, reader.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM ojs.events) + (SELECT count(*) FROM ojs.jobs_done)").Scan(&n))
		return n
	}
	require.EqualValues(t, 3+2000, seen())
	require.NoError(t, first.runOnce(t.Context(), time.Now()))
	p := await(t, first.TestSignals.Pruned.WaitC())
	require.Zero(t, p.EventPartitions+p.Days)
	require.EqualValues(t, 2, b.count(t, "SELECT count(*) FROM pg_inherits WHERE inhdetachpending"))
	require.EqualValues(t, 3+2000, seen(), "it has its own snapshot")
	require.EqualValues(t, 1007, b.count(t, `SELECT count FROM ojs.queue_counts WHERE queue = 'q' AND state = 'completed'`))
	require.EqualValues(t, 1000, b.count(t, `SELECT count(*) FROM ojs.jobs_done`))

	// Neither is an error for what detaches by itself, for new partitions, nor for nodes of the release before.
	b.exec(t, "SELECT ojs.event_partitions_prune(), ojs.event_partition_close(), ojs.jobs_done_partitions_prune('7 days'), ojs.event_partitions_ensure(9), ojs.jobs_done_partitions_ensure(9)")
	events, jobs := b.behind(t)
	require.Positive(t, events)
	require.Positive(t, jobs)
	require.NoError(t, reader.Rollback(t.Context()))

	second := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, first.config, b.relay)
	second.TestSignals.Init(t)
	require.NoError(t, second.runOnce(t.Context(), time.Now()))
	p = await(t, second.TestSignals.Pruned.WaitC())
	require.EqualValues(t, 2, p.EventPartitions)
	require.EqualValues(t, 2, p.Days)
	require.EqualValues(t, 7, b.count(t, `SELECT count FROM ojs.queue_counts WHERE queue = 'q' AND state = 'completed'`))
	events, jobs = b.behind(t)
	require.Zero(t, events+jobs)
}

// A job that was moved to its day after the day was emptied is subtracted when the day is dropped.
func TestRetentionCountsJobsThatCameLate(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	m := b.dueData(t, 1)
	due, err := m.emptyDay(t.Context())
	require.NoError(t, err)
	require.True(t, due)
	require.EqualValues(t, 7, b.count(t, `SELECT count FROM ojs.queue_counts WHERE queue = 'q'`))
	b.exec(t, `INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args) VALUES (gen_random_uuid(), 't', 'q', 'completed', '2020-01-01 12:00+00', '2020-01-01 12:00+00', '[]')`)
	b.exec(t, `UPDATE ojs.queue_counts SET count = count + 1`)
	gone, err := m.detachOne(t.Context(), "jobs_done")
	require.NoError(t, err)
	require.True(t, gone)
	require.EqualValues(t, 7, b.count(t, `SELECT count FROM ojs.queue_counts WHERE queue = 'q'`))
}

// Nodes do not disturb each other, nor readers.
func TestRetentionOnAllNodes(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	m := b.dueData(t, 3)
	b.exec(t, "SELECT ojs.event_floor_raise(1000)")
	stop := b.enqueueing(t)
	var events, days atomic.Int32
	var group, readers errgroup.Group
	done := make(chan struct{})
	for range 2 { // plans that have all partitions lose one at a time
		conn, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		readers.Go(func() error {
			for {
				var n int64
				if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ojs.jobs_done WHERE id = $1)
					+ (SELECT count(*) FROM ojs.events WHERE seq = ANY(ARRAY(SELECT generate_series(0, $2::bigint, 250000))))`, [16]byte{}, 4*partitionSize).Scan(&n); err != nil {
					return err
				}
				select {
				case <-done:
					return nil
				default:
				}
			}
		})
	}
	for range 4 {
		group.Go(func() error {
			for began := time.Now(); events.Load()+days.Load() < 6 && time.Since(began) < waitFor; {
				n, err := m.detachDue(t.Context(), "events", m.q.EventPartitionLeave)
				if err != nil {
					return err
				}
				events.Add(n)
				if n, err = m.detachDue(t.Context(), "jobs_done", m.emptyDay); err != nil {
					return err
				}
				days.Add(n)
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	close(done)
	require.NoError(t, readers.Wait())
	stop()
	require.EqualValues(t, 3, events.Load())
	require.EqualValues(t, 3, days.Load())
	require.EqualValues(t, 7, b.count(t, `SELECT count FROM ojs.queue_counts WHERE queue = 'q' AND state = 'completed'`))
}
