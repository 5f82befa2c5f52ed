package metrics_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/metrics"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func (b *bundle) gauges(maxQueues int, named ...string) metrics.Gauges {
	b.T.Helper()
	g, err := b.database.Gauges(b.T.Context(), config.Metrics{MaxQueues: maxQueues, Queues: named})
	require.NoError(b.T, err)
	return g
}

func TestGauges(t *testing.T) {
	t.Parallel()

	t.Run("CountWhatIsNotPublishedYet", func(t *testing.T) {
		t.Parallel()
		b := setup(t) // no relay runs here
		b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("other"))
		b.Fetched(1, "q")
		g := b.gauges(10)
		require.EqualValues(t, 1, g.Queues["q"].Jobs[ojs.StateAvailable])
		require.EqualValues(t, 1, g.Queues["q"].Jobs[ojs.StateActive])
		require.EqualValues(t, 1, g.Queues["other"].Jobs[ojs.StateAvailable])
		require.EqualValues(t, 4, g.Events.Unpublished)
		require.Positive(t, g.Events.Lag)
		b.Exec(`UPDATE ojs.events SET time = time - interval '1 hour' WHERE seq = (SELECT min(seq) FROM ojs.events)`)
		require.GreaterOrEqual(t, b.gauges(10).Events.Lag, time.Hour, "the oldest one counts")
	})

	t.Run("CountWhatWasPassedOver", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		b.Exec(`UPDATE ojs.event_relay SET watermark = (SELECT max(seq) FROM ojs.events)`)
		require.Zero(t, b.gauges(10).Queues["q"].Jobs[ojs.StateAvailable], "the relay has counted it, if it is right")
		b.Exec(`INSERT INTO ojs.event_gaps (seq, noted_at, horizon, passed) SELECT seq, now(), '9', true FROM ojs.events`)
		require.EqualValues(t, 1, b.gauges(10).Queues["q"].Jobs[ojs.StateAvailable])
	})

	t.Run("KeepEmptyQueuesAndBoundTheirNumber", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("a"), domaintest.NewJob("b"), domaintest.NewJob("c"), domaintest.NewJob("d"))
		b.Exec(`INSERT INTO ojs.queues (name) VALUES ('aa')`)
		g := b.gauges(4)
		require.Len(t, g.Queues, 5)
		require.Zero(t, g.Queues[metrics.OtherQueues].Jobs[ojs.StateAvailable], "aa, the emptiest")
		g = b.gauges(2)
		require.Len(t, g.Queues, 3)
		require.EqualValues(t, 2, g.Queues[metrics.OtherQueues].Jobs[ojs.StateAvailable], "c and d")
		require.Contains(t, b.gauges(2, "aa", "d").Queues, "aa")
		b.Enqueued(domaintest.NewJob("d"), domaintest.NewJob("d"))
		require.Contains(t, b.gauges(1).Queues, "d", "the one with the most jobs")
	})

	t.Run("ShowLimitsOfQueuesOfTheirOwn", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("a"), domaintest.NewJob("b"), domaintest.NewJob("c"))
		c := config.Default()
		c.Metrics.MaxQueues, c.Metrics.GaugeInterval = 2, time.Minute
		m, err := metrics.New(c, metrics.Deps{Sources: func() metrics.Sources {
			limits := func(queue string) (int64, bool) {
				return map[string]int64{"a": 4, metrics.OtherQueues: 9}[queue], queue != "a"
			}
			return metrics.Sources{Database: b.database, QueueLimits: limits}
		}})
		require.NoError(t, err)
		var text strings.Builder
		require.NoError(t, m.WriteText(t.Context(), &text, false))
		var shown []string
		for line := range strings.Lines(text.String()) {
			if strings.HasPrefix(line, "ojs_queue_max_size") || strings.HasPrefix(line, "ojs_backpressure_pressure") || strings.HasPrefix(line, "ojs_rate_limit") {
				shown = append(shown, strings.TrimSpace(line))
			}
		}
		require.Equal(t, []string{
			`ojs_backpressure_pressure{queue="a"} 0.25`, `ojs_queue_max_size{queue="a"} 4`,
			`ojs_rate_limit_active{key="queue:b"} 0`, `ojs_rate_limit_waiting{key="queue:b"} 1`,
		}, shown)
	})

	t.Run("BusyWorkersOfTheirQueues", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("a"))
		for id, busy := range map[string]int{"w1": 2, "w2": 1, "idle": 0} {
			_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: id, ActiveJobs: busy, Queues: []string{"a", "a", "unknown"}})
			require.NoError(t, err)
		}
		g := b.gauges(10)
		require.EqualValues(t, 3, g.WorkersActive)
		require.EqualValues(t, 2, g.Queues["a"].BusyWorkers)
		require.EqualValues(t, 2, g.Queues["unknown"].BusyWorkers)
		require.Len(t, g.Queues, 2)
	})

	t.Run("BusyWorkersOfQueuesBeyondTheLimit", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("m"))
		_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", ActiveJobs: 1, Queues: []string{"z", "m", "y", "a"}})
		require.NoError(t, err)
		busy := map[string]int64{}
		for name, q := range b.gauges(2).Queues {
			busy[name] = q.BusyWorkers
		}
		require.Equal(t, map[string]int64{"m": 1, "a": 1, metrics.OtherQueues: 2}, busy)
	})

	t.Run("WaitForNoLock", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `LOCK TABLE ojs.jobs IN ACCESS EXCLUSIVE MODE`)
		require.NoError(t, err)
		_, err = b.database.TableStats(t.Context())
		require.ErrorContains(t, err, "lock timeout")
		_, err = b.database.ReadyHeads(t.Context(), []string{"q"})
		require.ErrorContains(t, err, "lock timeout")
		b.gauges(10) // does not look at jobs
		require.NoError(t, tx.Rollback(t.Context()))
		tables, err := b.database.TableStats(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, tables)
	})
}

// Of many keys fewer jobs are counted, so that the statement reads as much as for 20 of them.
func TestLimitUsesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args, limit_key) SELECT ojs.new_id(now()), 't', 'q', 'active', now(), '[]', 'k' || i FROM generate_series(1, 2000) i`)
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args, limit_key, limit_seq)
		SELECT ojs.new_id(now()), 't', 'q', s.state, now(), '[]', s.key, s.seq
		FROM generate_series(1, 120), (VALUES ('active', 'a1', NULL), ('available', 'a2', NULL), ('available', 'a3', 1)) s (state, key, seq)`)
	uses, err := b.database.LimitUses(t.Context(), 2000)
	require.NoError(t, err)
	require.Len(t, uses, 2000)
	require.Equal(t, []metrics.LimitUse{{Key: "a1", Active: 100}, {Key: "a2", Waiting: 100}, {Key: "a3", Waiting: 100}, {Key: "k1", Active: 1}}, uses[:4])

	uses, err = b.database.LimitUses(t.Context(), 4)
	require.NoError(t, err)
	require.Equal(t, []metrics.LimitUse{{Key: "a1", Active: 120}, {Key: "a2", Waiting: 120}, {Key: "a3", Waiting: 120}, {Key: "k1", Active: 1}}, uses)
}

func TestReadyHeads(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	low, high := domaintest.NewJob("q"), domaintest.NewJob("q")
	low.Priority, high.Priority = -1, 5
	jobs := b.Enqueued(low, high, domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("empty"))
	b.Fetched(1, "empty")
	b.Exec(`UPDATE ojs.jobs SET enqueued_at = enqueued_at - interval '1 hour' WHERE id = $1`, jobs[0].ID)
	heads, err := b.database.ReadyHeads(t.Context(), []string{"q", "empty", "unknown"})
	require.NoError(t, err)
	require.Len(t, heads, 3)
	oldest := time.Duration(0)
	for i, h := range heads {
		require.Equal(t, "q", h.Queue)
		require.Equal(t, []int16{5, 0, -1}[i], h.Priority)
		oldest = max(oldest, h.Age)
	}
	require.InDelta(t, time.Hour, oldest, float64(time.Minute))

	require.Len(t, b.Fetched(2, "q"), 2) // the first of two priorities
	moved, err := b.database.ReadyHeadsFrom(t.Context(), heads)
	require.NoError(t, err)
	require.Len(t, moved, 2)
	require.Equal(t, heads[1].Seq+1, moved[0].Seq)
	require.Contains(t, b.Plan(`SELECT j.ready_seq FROM ojs.jobs j WHERE j.state = 'available' AND j.queue = 'q' AND j.priority = 0 AND j.ready_seq >= 5 ORDER BY j.ready_seq LIMIT 1`), "jobs_fetch")
}

// A job waits in one of thousands of lanes. It is found by whichever read, and each reads a bounded number of pages.
func TestReadyHeadsOfLanes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, lane, state, priority, ready_seq, created_at, enqueued_at, args)
		SELECT ojs.new_id(now()), 't', 'q', '/l' || i % 3000, 'available', i % 2, CASE i WHEN 4501 THEN 0 ELSE i END, now(), now() - CASE i WHEN 4501 THEN interval '1 hour' ELSE '0' END, '[]'
		FROM generate_series(1, 6000) i`)
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, created_at, enqueued_at, args) SELECT ojs.new_id(now()), 't', 'plain', 'available', 0, now(), now() - interval '1 minute', '[]'`)
	for range 2 { // planned when empty, and with statistics
		heads, err := b.database.ReadyHeads(t.Context(), []string{"q", "plain"})
		require.NoError(t, err)
		require.Len(t, heads, 3001)
		require.InDelta(t, time.Hour, oldestOf(heads, "q"), float64(time.Minute))
		require.InDelta(t, time.Minute, oldestOf(heads, "plain"), float64(time.Minute/2))
		heads, err = b.database.ReadyHeadsFrom(t.Context(), heads)
		require.NoError(t, err)
		require.Len(t, heads, 3001)
		require.InDelta(t, time.Hour, oldestOf(heads, "q"), float64(time.Minute))
		b.Exec(`ANALYZE ojs.jobs`)
	}
}

func oldestOf(heads []metrics.ReadyHead, queue string) (oldest time.Duration) {
	for _, h := range heads {
		if h.Queue == queue {
			oldest = max(oldest, h.Age)
		}
	}
	return oldest
}

func TestDeadLetterCounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 3 {
		b.DeadLetter()
	}
	b.DeadLetter(func(j *job.Job) { j.Queue = "other" })
	counts, err := b.database.DeadLetterCounts(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"q": 3, "other": 1}, counts)
	b.Exec(`VACUUM ojs.jobs`)
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off`)
	require.NoError(t, err)
	rows, err := tx.Query(t.Context(), `EXPLAIN SELECT j.queue, count(*) FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL GROUP BY j.queue`)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "Index Only Scan using jobs_dead_letter ")
}

func TestOldestXminHolder(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"ASnapshot": `SELECT 1`,
		"AWrite":    `INSERT INTO ojs.queues (name) VALUES ('x')`, // leaves no snapshot behind in READ COMMITTED
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config := b.Pool.Config().ConnConfig.Copy()
			config.RuntimeParams["application_name"] = "report of the month"
			conn, err := pgx.ConnectConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			level := pgx.RepeatableRead
			if name == "AWrite" {
				level = pgx.ReadCommitted
			}
			tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), statement)
			require.NoError(t, err)
			for range 20 {
				b.Exec(`SELECT pg_current_xact_id()`)
			}
			h, err := b.database.OldestXminHolder(t.Context())
			require.NoError(t, err)
			require.Equal(t, "session", h.Kind)
			require.Equal(t, "report of the month", h.Name)
			require.EqualValues(t, conn.PgConn().PID(), h.Pid)
			require.Positive(t, h.Seconds)
			require.GreaterOrEqual(t, h.Transactions, int64(20))
			require.NoError(t, tx.Rollback(t.Context()))
			h, err = b.database.OldestXminHolder(t.Context())
			require.NoError(t, err)
			require.NotEqual(t, "report of the month", h.Name)
			require.True(t, h.SeesAll, "a superuser")
		})
	}
}
