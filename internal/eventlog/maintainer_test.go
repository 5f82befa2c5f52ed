package eventlog

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
)

func TestMaintainer(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
		m.Logger = discardLogger()
		startstoptest.Stress(t.Context(), t, m)
	})

	t.Run("MakesRoomAndPrunes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "dropped")
		b.publishAll(t)
		b.jump(t, 6*partitionSize)
		b.exec(t, insertEvent, "kept")
		b.publishAll(t)
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{Events: config.Events{MaxCount: 1}, KeepDone: func(context.Context) time.Duration { return 7 * 24 * time.Hour }}, b.relay)
		m.TestSignals.Init(t)
		require.NoError(t, m.Start(t.Context()))
		defer m.Stop()
		require.EqualValues(t, 13*partitionSize, await(t, m.TestSignals.Ensured.WaitC()))
		require.EqualValues(t, 6, await(t, m.TestSignals.Pruned.WaitC()).EventPartitions)
		require.Equal(t, []string{"kept"}, queues(b.readAll(t)))
	})

	t.Run("KeepsWithoutLimits", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue)
			VALUES ('job.enqueued', 'api', '2000-01-01', gen_random_uuid(), 't', 'q')`)
		b.publishAll(t)
		b.jump(t, partitionSize)
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
		m.TestSignals.Init(t)
		require.NoError(t, m.Start(t.Context()))
		defer m.Stop()
		require.Zero(t, await(t, m.TestSignals.Pruned.WaitC()).EventPartitions)
		require.Len(t, b.readAll(t), 1)
	})

	t.Run("DeletesOldKeysAndMinutes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.idempotency_keys (holder, operation, key, body_hash, status, response, created_at)
			SELECT '', 'o', g, '', 200, '{}', now() - g * interval '20 hours' FROM generate_series(0, 2) g`)
		b.exec(t, `UPDATE ojs.idempotency_keys SET created_at = now() - interval '24 hours' WHERE key = '1'`) // clients can rely on it for a day
		b.exec(t, `INSERT INTO ojs.stats_minute (queue, minute) SELECT 'q', now() - g * interval '20 days' FROM generate_series(0, 2) g`)
		b.exec(t, `INSERT INTO ojs.crons (id, name, expression, type, queue, args) VALUES (gen_random_uuid(), 'c', '@hourly', 't', 'q', '[]')`)
		b.exec(t, `INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome)
			SELECT c.id, now() - g * interval '20 days', 'tick', 'fired' FROM ojs.crons c, generate_series(0, 2) g`)
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
		m.TestSignals.Init(t)
		require.NoError(t, m.Start(t.Context()))
		defer m.Stop()
		require.Equal(t, Pruned{Keys: 1, Minutes: 2, Hours: 1, CronRuns: 1}, await(t, m.TestSignals.Pruned.WaitC()))
	})

	t.Run("AddsMinutesUpToHours", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.stats_minute (queue, minute, enqueued, started, completed, failed, discarded, cancelled, duration_ms, wait_ms, durations)
			SELECT q, date_trunc('hour', now()) - h * interval '1 hour' + m * interval '1 minute', 1, 2, 3, 4, 5, 6, 7, 8,
				CASE WHEN m < 30 THEN array_fill(m::bigint, '{18}') END
			FROM unnest('{a,b}'::text[]) q, generate_series(24, 27) h, generate_series(0, 59) m`)
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
		m.TestSignals.Init(t)
		late := func() { require.NoError(t, m.runOnce(t.Context(), time.Now().Add(2*statsPrune))) }
		require.NoError(t, m.runOnce(t.Context(), time.Now()))
		require.EqualValues(t, 360, await(t, m.TestSignals.Pruned.WaitC()).Minutes, "not those of an hour that has begun less than a day ago")
		var sums string
		read := func(queue string) string {
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', enqueued, started, completed, failed, discarded, cancelled,
				duration_ms, wait_ms, durations[1], durations[18], cardinality(durations)), ', ' ORDER BY hour) FROM ojs.stats_hour WHERE queue = $1`, queue).Scan(&sums))
			return sums
		}
		const hour = "60 120 180 240 300 360 420 480 435 435 18"
		for _, queue := range []string{"a", "b"} {
			require.Equal(t, strings.Join([]string{hour, hour, hour}, ", "), read(queue))
		}

		// A row that was written late is added, too.
		b.exec(t, `INSERT INTO ojs.stats_minute (queue, minute, enqueued, durations)
			VALUES ('a', date_trunc('hour', now()) - interval '27 hours', 1, array_fill(1::bigint, '{18}'))`)
		late()
		require.EqualValues(t, 1, await(t, m.TestSignals.Pruned.WaitC()).Minutes)
		require.Equal(t, strings.Join([]string{"61 120 180 240 300 360 420 480 436 436 18", hour, hour}, ", "), read("a"))
	})

	t.Run("LogsWhatItCannotDo", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		closed, err := pgxpool.NewWithConfig(t.Context(), b.pool.Config())
		require.NoError(t, err)
		closed.Close()
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), closed, MaintainerConfig{}, b.relay)
		lines := make(logLines, 100)
		m.Logger = slog.New(slog.NewTextHandler(lines, nil))
		require.NoError(t, m.Start(t.Context()))
		defer m.Stop()
		for _, what := range []string{"store the limits of retention", "create partitions", "apply retention"} {
			line := await(t, lines)
			require.Contains(t, line, "level=ERROR")
			require.Contains(t, line, "cannot "+what+"; trying again")
			require.Contains(t, line, "closed pool")
		}
	})

	// Writes fail for a number without a partition, so there is more room before it is used up.
	t.Run("RefillsWhenHalfIsUsed", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
		m.TestSignals.Init(t)
		// The relay of another node may be further, and this one may have read beyond what is published.
		for _, status := range []RelayStatus{{}, {Head: 100_000}, {Watermark: 100_000}, {Head: 100_000, Watermark: 50_000}} {
			require.NoError(t, m.ensure(t.Context(), time.Now(), status))
			below, head := await(t, m.TestSignals.Ensured.WaitC()), max(status.Head, status.Watermark)
			half := head + (below-head)/2
			for _, used := range []int64{head, half - 1, half + 1} {
				require.Equal(t, used > half, m.ensureDue(time.Now(), RelayStatus{Head: used}), "%+v: %d", status, used)
				require.Equal(t, used > half, m.ensureDue(time.Now(), RelayStatus{Watermark: used}), "%+v: %d", status, used)
			}
		}
	})

	// Many queues and keys make more rows between two runs than one statement deletes: without repeating it the tables grow
	// for ever.
	t.Run("DeletesUntilNothingIsLeft", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.idempotency_keys (holder, operation, key, body_hash, status, response, created_at)
			SELECT '', 'o', g, '', 200, '{}', now() - interval '2 days' FROM generate_series(1, 3500) g`)
		b.exec(t, `INSERT INTO ojs.stats_minute (queue, minute)
			SELECT 'q' || q, date_trunc('hour', now()) - interval '31 days' + m * interval '1 minute' FROM generate_series(1, 500) q, generate_series(1, 7) m`)
		b.exec(t, `INSERT INTO ojs.crons (id, name, expression, type, queue, args) VALUES (gen_random_uuid(), 'c', '@hourly', 't', 'q', '[]')`)
		b.exec(t, `INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome)
			SELECT c.id, now() - g * interval '1 second', 'tick', 'fired' FROM ojs.crons c, generate_series(1, 42000) g`)
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
		m.TestSignals.Init(t)
		require.NoError(t, m.Start(t.Context()))
		defer m.Stop()
		require.Equal(t, Pruned{Keys: 3500, Minutes: 3500, Hours: 500, CronRuns: 41_000}, await(t, m.TestSignals.Pruned.WaitC()))
	})
}

// Clients choose the names of queues, so everything that has a row per queue is deleted in the end.
func TestFiveThousandQueuesForAWeek(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	const age = "interval '31 days'"
	b.exec(t, `INSERT INTO ojs.queues (name, used_at) SELECT 'q' || g, now() - `+age+` FROM generate_series(1, 5000) g`)
	b.exec(t, `INSERT INTO ojs.queue_counts (queue, state, count) SELECT 'q' || g, s, 0 FROM generate_series(1, 5000) g, unnest('{available,active}'::text[]) s`)
	b.exec(t, `INSERT INTO ojs.stats_minute (queue, minute) SELECT 'q' || q, now() - `+age+` - d * interval '1 day' FROM generate_series(1, 5000) q, generate_series(0, 6) d`)
	b.exec(t, `INSERT INTO ojs.idempotency_keys (holder, operation, key, body_hash, status, response, created_at)
		SELECT '', 'o', g, '', 200, '{}', now() - `+age+` FROM generate_series(1, 5000) g`)
	// What a queue is kept for: jobs, a setting, a pause, an enqueue of late.
	b.exec(t, `UPDATE ojs.queue_counts SET count = 1 WHERE queue = 'q1' AND state = 'active'`)
	b.exec(t, `UPDATE ojs.queues SET config = '{}' WHERE name = 'q2'`)
	b.exec(t, `UPDATE ojs.queues SET status = 'paused' WHERE name = 'q3'`)
	b.exec(t, `UPDATE ojs.queues SET used_at = now() - interval '29 days' WHERE name = 'q4'`)
	m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), b.pool, MaintainerConfig{}, b.relay)
	m.TestSignals.Init(t)
	require.NoError(t, m.runOnce(t.Context(), time.Now()))
	require.Equal(t, Pruned{Keys: 5000, Minutes: 35_000, Hours: 35_000, Queues: 4996}, await(t, m.TestSignals.Pruned.WaitC()))
	for table, left := range map[string]int64{"queues": 4, "queue_counts": 8, "stats_minute": 0, "stats_hour": 0, "idempotency_keys": 0} {
		require.Equal(t, left, b.count(t, "SELECT count(*) FROM ojs."+table), table)
	}

	t.Run("NotWhileItIsUsedAgain", func(t *testing.T) {
		b.exec(t, `UPDATE ojs.queues SET used_at = now() - `+age+`, config = NULL, status = 'active'`)
		tx, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		require.NoError(t, dbsqlc.New(tx).QueueInsert(t.Context(), []string{"q2", "q9"}))
		require.NoError(t, m.runOnce(t.Context(), time.Now().Add(statsPrune)))
		require.Equal(t, int32(2), await(t, m.TestSignals.Pruned.WaitC()).Queues, "q3 and q4; q2 is locked, q1 has a job")
		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, m.runOnce(t.Context(), time.Now().Add(2*statsPrune)))
		require.Zero(t, await(t, m.TestSignals.Pruned.WaitC()).Queues)
		require.EqualValues(t, 3, b.count(t, "SELECT count(*) FROM ojs.queues WHERE name IN ('q1', 'q2', 'q9')"))
	})
}

// A queue is looked at once more when the relay is locked: until then an enqueue may have used it.
func TestQueueUsedDuringThePrune(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.exec(t, `INSERT INTO ojs.queues (name, used_at) SELECT n, now() - interval '31 days' FROM unnest('{used,unused}'::text[]) n`)
	b.exec(t, `ALTER FUNCTION ojs.queues_prune(integer) SET lock_timeout = '10s'`) // the test takes longer than 50 ms
	relay, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = relay.Rollback(t.Context()) }()
	_, err = relay.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
	require.NoError(t, err)
	pruned := make(chan int32, 1)
	go func() {
		n, err := dbsqlc.New(b.pool).QueuePrune(t.Context(), 10)
		if err != nil {
			t.Error(err)
		}
		pruned <- n
	}()
	require.Eventually(t, func() bool {
		return b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	}, waitFor, time.Millisecond)
	require.NoError(t, dbsqlc.New(b.pool).QueueInsert(t.Context(), []string{"used"}))
	require.NoError(t, relay.Commit(t.Context()))
	require.Equal(t, int32(1), await(t, pruned))
	require.EqualValues(t, 1, b.count(t, "SELECT count(*) FROM ojs.queues WHERE name = 'used'"))
}

// What is due is decided without asking the database.
func TestMaintainerDue(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 22, 0, 0, 0, time.UTC)
	newMaintainer := func() *Maintainer {
		m := NewMaintainer(riversharedtest.BaseServiceArchetype(t), nil, MaintainerConfig{}, nil)
		m.headroom = headroom{refill: 1000, days: 72 * time.Hour, made: now}
		m.prunedAt, m.prunedTo = now, 5
		return m
	}
	m := newMaintainer()
	require.False(t, m.ensureDue(now, RelayStatus{Watermark: 999, Head: 999}))
	require.True(t, m.ensureDue(now, RelayStatus{Watermark: 999, Head: 1000}))
	require.False(t, m.ensureDue(now.Add(24*time.Hour), RelayStatus{}))
	require.True(t, m.ensureDue(now.Add(25*time.Hour), RelayStatus{}))
	// A relay that cannot scan does not report the head.
	require.False(t, m.ensureDue(now.Add(time.Minute), RelayStatus{BehindFor: time.Second}))
	require.True(t, m.ensureDue(now.Add(time.Minute), RelayStatus{BehindFor: time.Minute}))

	require.False(t, m.pruneDue(now.Add(59*time.Second), 6))
	require.True(t, m.pruneDue(now.Add(time.Minute), 6))
	require.False(t, m.pruneDue(now.Add(9*time.Minute), 5), "nothing moved")
	require.True(t, m.pruneDue(now.Add(10*time.Minute), 5))
	m.headroom = headroom{}
	require.True(t, m.ensureDue(now, RelayStatus{}))
}
