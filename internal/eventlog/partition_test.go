package eventlog

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// partitionSize is the one of ojs.event_partitions_ensure.
const partitionSize = 500_000

// jump lets the numbers go on from n, as if everything before had been published and dropped or never used.
func (b *testBundle) jump(t *testing.T, n int64) {
	t.Helper()
	b.exec(t, "SELECT setval('ojs.event_seq', $1)", n)
	b.exec(t, "UPDATE ojs.event_relay SET watermark = $1", n)
}

// age makes the events so far older.
func (b *testBundle) age(t *testing.T, by string) {
	t.Helper()
	b.exec(t, "UPDATE ojs.events SET time = time - $1::text::interval", by)
}

func (b *testBundle) count(t *testing.T, sql string, args ...any) (n int64) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// writing inserts without pause until stop. An insert that waits for a lock for 10 s fails, however slow the machine is.
func (b *testBundle) writing(t *testing.T) (stop func()) {
	t.Helper()
	config := b.pool.Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "10s"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var written atomic.Int64
	var group errgroup.Group
	for range 2 {
		group.Go(func() error {
			for ctx.Err() == nil {
				if _, err := pool.Exec(t.Context(), insertEvent, "q"); err != nil {
					return err
				}
				written.Add(1)
			}
			return nil
		})
	}
	require.Eventually(t, func() bool { return written.Load() > 10 }, waitFor, time.Millisecond)
	return func() {
		before := written.Load()
		require.Eventually(t, func() bool { return written.Load() > before+10 }, waitFor, time.Millisecond)
		cancel()
		require.NoError(t, group.Wait())
	}
}

func TestPartitionsEnsure(t *testing.T) {
	t.Parallel()

	// ATTACH does not wait for those who write or read, and they do not wait for it.
	t.Run("BehindLongTransaction", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		long := b.open(t, "long")
		_, err := long.Exec(t.Context(), "SELECT count(*) FROM ojs.events, ojs.jobs_done")
		require.NoError(t, err)
		stop := b.writing(t)
		b.exec(t, "SET lock_timeout = '1min'; SELECT ojs.event_partitions_ensure(9), ojs.jobs_done_partitions_ensure(9); RESET lock_timeout")
		stop()
		require.EqualValues(t, 10, b.count(t, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'ojs.events'::regclass"))
		require.EqualValues(t, 10, b.count(t, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'ojs.jobs_done'::regclass"))
		require.NoError(t, long.Commit(t.Context()))
	})

	t.Run("AtOnceOnAllNodes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		stop := b.writing(t)
		var group errgroup.Group
		for range 6 {
			group.Go(func() error {
				_, err := b.pool.Exec(t.Context(), "SELECT ojs.event_partitions_ensure(12), ojs.jobs_done_partitions_ensure(6)")
				return err
			})
		}
		require.NoError(t, group.Wait())
		stop()
		require.EqualValues(t, 13, b.count(t, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'ojs.events'::regclass"))
	})

	// A node that finds them made does not wait for one that makes more.
	t.Run("BesideANodeThatMakesMore", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		_, err := b.open(t).Exec(t.Context(), "SELECT ojs.event_partitions_ensure(9), ojs.jobs_done_partitions_ensure(9)")
		require.NoError(t, err)
		b.exec(t, "SET lock_timeout = '1s'; SELECT ojs.event_partitions_ensure(), ojs.jobs_done_partitions_ensure(); RESET lock_timeout")
	})

	t.Run("GoesOnWithTheNumbers", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.jump(t, 7*partitionSize-1)
		_, err := b.pool.Exec(t.Context(), insertEvent, "too far")
		require.ErrorContains(t, err, "no partition of relation")
		require.EqualValues(t, 14*partitionSize, b.count(t, "SELECT ojs.event_partitions_ensure()"))
		b.exec(t, insertEvent, "a")
		b.exec(t, insertEvent, "b")
	})
}

func TestEventPartitionsPrune(t *testing.T) {
	t.Parallel()
	prune := func(t *testing.T, b *testBundle, age *string, count int) int64 {
		t.Helper()
		b.exec(t, "UPDATE ojs.event_relay SET max_age = $1::text::interval, max_count = NULLIF($2::bigint, 0)", age, count)
		b.exec(t, "SELECT ojs.event_floor_raise(1000)")
		return b.count(t, "SELECT ojs.event_partitions_prune()")
	}
	old, young, long := "0", "1 hour", "1 year"

	t.Run("ByAge", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "dropped")
		b.age(t, "1 day")
		b.publishAll(t)
		cursor := NewPosition(time.Now(), 0, 0)
		b.jump(t, partitionSize)
		b.exec(t, insertEvent, "kept")
		b.publishAll(t)
		require.Zero(t, prune(t, b, &long, 0))
		require.Zero(t, prune(t, b, nil, 0))
		require.EqualValues(t, 1, prune(t, b, &young, 0))
		require.Zero(t, prune(t, b, &young, 0))
		require.Equal(t, []string{"kept"}, queues(b.readAll(t)))
		var expired *ExpiredError
		_, err := b.reader.ListAfter(t.Context(), Query{After: &cursor})
		require.ErrorAs(t, err, &expired)
		require.Equal(t, b.readAll(t)[0].ID(), expired.OldestID)
		require.Zero(t, prune(t, b, &old, 0), "the partition of the watermark stays")
		require.Empty(t, b.readAll(t))
	})

	t.Run("ByCountOfPublicEvents", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "dropped")
		b.publishAll(t)
		b.jump(t, partitionSize)
		for range 3 {
			b.exec(t, insertEvent, "kept")
		}
		b.exec(t, `INSERT INTO ojs.events (type, source, time, internal) VALUES ('job.state_changed', 'api', now(), true)`)
		b.publishAll(t)
		require.Zero(t, prune(t, b, &young, 4))
		require.EqualValues(t, 1, prune(t, b, &young, 3))
		require.Len(t, b.readAll(t), 3)
	})

	// By age it is dropped: a deployment whose nodes send no webhooks must not keep the log without end.
	t.Run("NotBeforeItsDeliveriesByCount", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.webhooks (id, url, events, types, sources, queues, job_types, active, timeout_ms, max_in_flight, ordering, payload_format, standard_webhooks, from_place)
			VALUES (gen_random_uuid(), 'u', '{*}', '{}', '{}', '{}', '{}', true, 1, 1, 'none', 'ojs', false, 0)`)
		b.exec(t, insertEvent, "waits")
		b.publishAll(t)
		b.jump(t, partitionSize)
		b.exec(t, insertEvent, "kept")
		b.publishAll(t)
		require.Zero(t, prune(t, b, &young, 1))
		b.exec(t, `UPDATE ojs.webhook_cursor SET place = $1::bigint << 16`, partitionSize-1)
		require.Zero(t, prune(t, b, &young, 1), "deliveries of the last event may be missing")
		b.exec(t, `UPDATE ojs.webhook_cursor SET place = $1::bigint << 16`, partitionSize)
		require.EqualValues(t, 1, prune(t, b, &young, 1))
	})

	t.Run("NeverWhatMayStillAppear", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		late := b.open(t, "late")
		b.exec(t, insertEvent, "a")
		b.publishAll(t)
		b.age(t, "1 day")
		b.jump(t, partitionSize)
		b.exec(t, insertEvent, "b")
		b.publishAll(t)
		require.Zero(t, prune(t, b, &young, 0))
		require.NoError(t, late.Commit(t.Context()))
		require.Zero(t, prune(t, b, &young, 0), "visible, but not moved yet")
		b.passUntil(t, noGaps)
		require.EqualValues(t, 1, prune(t, b, &young, 0))
		require.Equal(t, []string{"b", "late"}, queues(b.readAll(t)))
	})

	t.Run("BehindLongTransaction", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "dropped")
		b.publishAll(t)
		b.jump(t, partitionSize)
		b.exec(t, insertEvent, "kept")
		b.publishAll(t)
		long := b.open(t, "long")
		stop := b.writing(t)
		for range 20 { // young at first, then old enough to be seen
			require.Zero(t, prune(t, b, &old, 0))
		}
		stop()
		require.Positive(t, b.count(t, `SELECT count(*) FROM (SELECT pg_sleep(greatest(0, 1.1 - extract(epoch FROM clock_timestamp() - xact_start)))
			FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction') s`))
		require.Positive(t, b.count(t, "SELECT ojs.table_is_held('ojs.events')::integer"))
		require.NoError(t, long.Rollback(t.Context()))
		require.Eventually(t, func() bool { return prune(t, b, &old, 0) == 1 }, waitFor, time.Millisecond)
	})

	t.Run("WhileTheRelayRuns", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{Rest: time.Microsecond})
		b.relay.Logger = discardLogger()
		b.start(t)
		b.exec(t, insertEvent, "dropped")
		b.relay.Wake()
		require.Eventually(t, func() bool { return b.relay.Status().Watermark == 1 }, waitFor, time.Millisecond)
		b.exec(t, "SELECT setval('ojs.event_seq', $1)", partitionSize)
		stop := b.writing(t)
		require.Eventually(t, func() bool {
			b.relay.Wake()
			return prune(t, b, &old, 0) == 1
		}, waitFor, time.Millisecond)
		stop()
		require.NoError(t, b.relay.Status().Err)
	})
}

func TestJobsDonePartitionsPrune(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.exec(t, `CREATE TABLE ojs.jobs_done_p20200101 PARTITION OF ojs.jobs_done FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')`)
	b.exec(t, `INSERT INTO ojs.jobs_done (id, type, queue, lane, state, created_at, finished_at, args)
		SELECT gen_random_uuid(), 't', 'q' || g % 2, (ARRAY['', '/k', 'acme', 'acme/k', ''])[g], CASE WHEN g < 4 THEN 'completed' ELSE 'cancelled' END, '2020-01-01', '2020-01-01 12:00+00', '[]'
		FROM generate_series(1, 5) g`)
	b.exec(t, `INSERT INTO ojs.queue_counts VALUES ('q0', 'completed', 10), ('q1', 'completed', 20), ('q1', 'available', 1)`)
	require.Zero(t, b.count(t, "SELECT ojs.jobs_done_partitions_prune(NULL)"))
	require.Zero(t, b.count(t, "SELECT ojs.jobs_done_partitions_prune('100 years')"))
	reader := b.open(t)
	_, err := reader.Exec(t.Context(), "SELECT FROM ojs.jobs_done")
	require.NoError(t, err)
	require.Zero(t, b.count(t, "SELECT ojs.jobs_done_partitions_prune('7 days')"))
	require.EqualValues(t, 31, b.count(t, "SELECT sum(count) FROM ojs.queue_counts"))
	require.NoError(t, reader.Rollback(t.Context()))
	require.EqualValues(t, 1, b.count(t, "SELECT ojs.jobs_done_partitions_prune('7 days')"))
	require.Zero(t, b.count(t, "SELECT ojs.jobs_done_partitions_prune('7 days')"), "today stays")
	var list string
	require.NoError(t, b.pool.QueryRow(t.Context(),
		"SELECT string_agg(queue || ' ' || state || ' ' || count, ', ' ORDER BY queue, state) FROM ojs.queue_counts").Scan(&list))
	require.Equal(t, "q0 cancelled -1, q0 completed 9, q1 available 1, q1 cancelled -1, q1 completed 18", list)
	require.NoError(t, b.pool.QueryRow(t.Context(),
		"SELECT string_agg(tenant || ' ' || queue || ' ' || state || ' ' || count, ', ' ORDER BY tenant, queue) FROM ojs.tenant_counts").Scan(&list))
	require.Equal(t, "acme q0 cancelled -1, acme q1 completed -1", list)
}

// A pass of the relay locks its row, then reads the log and counts: whoever waits for that row must not have locked these.
func TestRetentionLetsThePassOfTheRelayEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ function, prepare string }{
		"DropsEvents":            {"ojs.event_partitions_prune()", "UPDATE ojs.event_relay SET max_age = '1 hour'"},
		"DetachesEvents":         {"ojs.event_partition_leave()", "UPDATE ojs.event_relay SET max_age = '1 hour'"},
		"EndsAPartitionOfEvents": {"ojs.event_partition_close()", "UPDATE ojs.event_relay SET max_age = '10 days'"},
		"DropsJobs": {"ojs.jobs_done_partitions_prune('7 days')", `CREATE TABLE ojs.jobs_done_p20200101 PARTITION OF ojs.jobs_done FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-01-02 00:00:00+00');
			INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args) VALUES (ojs.new_id(now()), 't', 'q', 'completed', '2020-01-01 12:00:00+00', '2020-01-01 12:00:00+00', '[]')`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, RelayConfig{})
			b.exec(t, insertEvent, "old")
			b.age(t, "2 days")
			b.publishAll(t)
			b.jump(t, partitionSize)
			b.exec(t, insertEvent, "new")
			b.age(t, "2 days")
			b.publishAll(t)
			b.exec(t, c.prepare)
			b.exec(t, "SELECT ojs.event_floor_raise(1000)")
			declared := strings.Replace(c.function, "'7 days'", "interval", 1)
			b.exec(t, "ALTER FUNCTION "+declared+" SET lock_timeout = '10s'") // the test takes longer than 50 ms
			pass := b.open(t)
			_, err := pass.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
			require.NoError(t, err)
			var done int
			ended := make(chan error, 1)
			go func() {
				ended <- b.pool.QueryRow(context.Background(), "SELECT "+c.function+"::integer").Scan(&done)
			}()
			require.Eventually(t, func() bool {
				return len(ended) > 0 || b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
			}, waitFor, time.Millisecond)
			require.Empty(t, ended, "it has to wait for the pass")
			_, err = pass.Exec(t.Context(), "SET LOCAL lock_timeout = '500ms'")
			require.NoError(t, err)
			_, err = pass.Exec(t.Context(), "SELECT FROM ojs.events")
			require.NoError(t, err)
			_, err = pass.Exec(t.Context(), "UPDATE ojs.queue_counts SET count = count")
			require.NoError(t, err)
			require.NoError(t, pass.Commit(t.Context()))
			require.NoError(t, await(t, ended))
			require.Equal(t, 1, done)
		})
	}
}

// A pass of the relay may find that a number is missing while a partition is about to be detached: the partition stays.
func TestDetachSeesTheGapsOfAPass(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.exec(t, insertEvent, "old")
	b.age(t, "2 days")
	b.publishAll(t)
	b.jump(t, partitionSize)
	b.exec(t, insertEvent, "new")
	b.publishAll(t)
	b.exec(t, "UPDATE ojs.event_relay SET max_age = '1 hour'")
	b.exec(t, "SELECT ojs.event_floor_raise(1000)")
	b.exec(t, "ALTER FUNCTION ojs.event_partition_leave() SET lock_timeout = '10s'")
	pass := b.open(t)
	_, err := pass.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
	require.NoError(t, err)
	var leaves bool
	ended := make(chan error, 1)
	go func() {
		ended <- b.pool.QueryRow(context.Background(), "SELECT ojs.event_partition_leave()").Scan(&leaves)
	}()
	require.Eventually(t, func() bool {
		return len(ended) > 0 || b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	}, waitFor, time.Millisecond)
	_, err = pass.Exec(t.Context(), "INSERT INTO ojs.event_gaps (seq, noted_at, horizon, passed) VALUES (2, now(), pg_current_xact_id(), false)")
	require.NoError(t, err)
	require.NoError(t, pass.Commit(t.Context()))
	require.NoError(t, await(t, ended))
	require.False(t, leaves)
	b.exec(t, "UPDATE ojs.event_gaps SET seq = $1", partitionSize) // of the next partition
	require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT ojs.event_partition_leave()").Scan(&leaves))
	require.True(t, leaves)
}

// waitingReset begins a reset, and requires that it waits for a lock.
func (b *testBundle) waitingReset(t *testing.T) <-chan error {
	t.Helper()
	reset := make(chan error, 1)
	go func() {
		_, err := b.pool.Exec(context.Background(), "SELECT ojs.reset()")
		reset <- err
	}()
	require.Eventually(t, func() bool {
		return len(reset) > 0 || b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'SELECT ojs.reset()' AND wait_event_type = 'Lock'") == 1
	}, waitFor, time.Millisecond)
	require.Empty(t, reset, "it has to wait")
	return reset
}

// Retention locks the row of the relay before the tables that it drops. A reset that had emptied the tables by then would deadlock with it.
func TestResetWaitsForRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	retention := b.open(t)
	_, err := retention.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
	require.NoError(t, err)
	reset := b.waitingReset(t)
	_, err = retention.Exec(t.Context(), "LOCK TABLE ojs.events, ojs.queue_counts IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	require.NoError(t, retention.Commit(t.Context()))
	require.NoError(t, <-reset)
}

// A pass that has only begun has no row of the relay yet.
func TestResetWaitsForThePass(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	pass := b.open(t)
	_, err := pass.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'))")
	require.NoError(t, err)
	reset := b.waitingReset(t)
	_, err = pass.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE NOWAIT")
	require.NoError(t, err)
	require.NoError(t, pass.Commit(t.Context()))
	require.NoError(t, <-reset)
}

// A log that is kept for long has hundreds of partitions. A scan locks the index of each partition that it opens.
func TestPassOpensFewPartitions(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{GapDelay: -1})
	b.jump(t, 3*partitionSize-3)
	b.exec(t, "SELECT ojs.event_partitions_ensure(40)")
	open := b.open(t, "late")
	b.exec(t, insertEvent, "a")
	b.passOver(t)
	b.relay.scanned = noSnapshot // reads the gap of the open transaction again
	b.exec(t, insertEvent, "b")

	err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		_, err := q.RelayLock(t.Context())
		require.NoError(t, err)
		found, err := b.relay.scan(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, found.numbers, 1)
		require.True(t, found.gaps)
		_, err = q.RelayPublish(t.Context(), dbsqlc.RelayPublishParams{
			Watermark: found.watermark, AfterSeq: found.watermark, AfterSub: maxSub, Upto: found.head, Passed: []int64{},
		})
		require.NoError(t, err)
		require.Equal(t, []string{"ojs.events_p00000001000000_pkey", "ojs.events_p00000001500000_pkey"}, opened(t, tx))
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, open.Commit(t.Context()))
	b.passUntil(t, noGaps)
	require.ElementsMatch(t, []string{"a", "b", "late"}, queues(b.readAll(t)))
}

// Counts are read by each claim of a limited queue and by each enqueue to a bounded one.
func TestCountsOpenFewPartitions(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{GapDelay: -1})
	b.jump(t, 3*partitionSize)
	b.exec(t, "SELECT ojs.event_partitions_ensure(40)")
	b.exec(t, insertEvent, "a")
	conn, err := b.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, planned := range []bool{false, true} { // to make a plan, PostgreSQL opens all partitions
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SET LOCAL plan_cache_mode = force_generic_plan") // as on connections of a node
			require.NoError(t, err)
			counts, err := dbsqlc.New(tx).QueueCountListByQueue(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, []dbsqlc.QueueCountListByQueueRow{{State: "available", Count: 1}}, counts)
			for _, count := range []string{`ojs.queue_depth('a')`, `ojs.tenant_depth('a', '')`, `ojs.queue_count('a', 'available')`} {
				var n int
				require.NoError(t, tx.QueryRow(t.Context(), "SELECT "+count).Scan(&n))
				require.Equal(t, 1, n, count)
			}
			if planned {
				require.Equal(t, []string{"ojs.events_p00000001500000_pkey"}, opened(t, tx))
			}
			return nil
		})
		require.NoError(t, err)
	}
}

// opened are the indexes of partitions that a transaction has locked, which it does when it opens them.
func opened(t *testing.T, tx pgx.Tx) (indexes []string) {
	t.Helper()
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT array_agg(l.relation::regclass::text ORDER BY l.relation::regclass::text) FROM pg_locks l JOIN pg_index i ON i.indexrelid = l.relation
		WHERE l.pid = pg_backend_pid() AND l.relation::regclass::text LIKE 'ojs.events_p%'`).Scan(&indexes))
	return indexes
}
