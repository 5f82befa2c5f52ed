package eventlog

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func (b *testBundle) start(t *testing.T) {
	t.Helper()
	require.NoError(t, b.relay.Start(t.Context()))
	t.Cleanup(b.relay.Stop)
}

func TestRelayService(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.relay.Logger = discardLogger()
		startstoptest.Stress(t.Context(), t, b.relay)
	})

	t.Run("PublishesWhatWasThereAtStart", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "a")
		b.relay.TestSignals.Init(t)
		b.start(t)
		require.EqualValues(t, 1, await(t, b.relay.TestSignals.Published.WaitC()))
	})

	t.Run("PublishesWhenWoken", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.relay.TestSignals.Init(t)
		b.start(t)
		b.exec(t, insertEvent, "a")
		b.relay.Wake()
		require.EqualValues(t, 1, await(t, b.relay.TestSignals.Published.WaitC()))
		require.Equal(t, []string{"a"}, queues(b.readAll(t)))
	})

	t.Run("LooksWithoutBeingWoken", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{PollInterval: 10 * time.Millisecond})
		b.relay.TestSignals.Init(t)
		b.start(t)
		require.False(t, await(t, b.relay.TestSignals.Polled.WaitC()))
		b.exec(t, insertEvent, "a")
		require.EqualValues(t, 1, await(t, b.relay.TestSignals.Published.WaitC()))
		b.relay.Stop()
	})

	t.Run("GoesOnAfterAGap", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		rolledBack := b.open(t, "rolledBack")
		b.exec(t, insertEvent, "kept")
		b.relay.TestSignals.Init(t)
		b.start(t)
		require.EqualValues(t, 2, await(t, b.relay.TestSignals.Published.WaitC()))
		require.NoError(t, rolledBack.Rollback(t.Context()))
	})

	t.Run("PublishesLastCommitsWhenStopped", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.start(t)
		for range 20 {
			b.exec(t, insertEvent, "a")
			b.relay.Wake()
		}
		b.relay.Stop()
		require.Len(t, b.readAll(t), 20)
	})

	t.Run("SurvivesLossOfConnection", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.relay.Logger = discardLogger()
		b.start(t)
		for range 20 {
			b.exec(t, insertEvent, "a")
			b.relay.Wake()
			b.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '-- name: Relay%'`)
		}
		require.Eventually(t, func() bool { return b.relay.Status().Watermark == 20 }, waitFor, time.Millisecond)
		require.Len(t, b.readAll(t), 20)
	})
}

func TestWaitCaughtUp(t *testing.T) {
	t.Parallel()

	t.Run("ReadsOwnWrites", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.start(t)
		for i := range 30 {
			b.exec(t, insertEvent, "a")
			b.relay.Wake()
			ctx, cancel := context.WithTimeout(t.Context(), waitFor) // the reader would wait for maxCatchUp only
			b.reader.relay.waitCaughtUp(ctx)
			require.NoError(t, ctx.Err())
			cancel()
			require.Len(t, b.readAll(t), i+1)
		}
	})

	t.Run("CostsNothingWhenCaughtUp", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{}) // not running: a wait for it would last until the end of the context
		ctx, cancel := context.WithTimeout(t.Context(), waitFor)
		defer cancel()
		b.relay.waitCaughtUp(ctx)
		require.NoError(t, ctx.Err())
	})

	t.Run("GivesUp", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.relay.Wake()
		started := time.Now()
		b.reader.WaitCaughtUp(t.Context())
		require.GreaterOrEqual(t, time.Since(started), maxCatchUp)
	})
}

// counter is a pgx tracer.
type counter struct {
	mu         sync.Mutex
	statements []string
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, _, _ := strings.Cut(data.SQL, "\n")
	c.statements = append(c.statements, first)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.statements
	c.statements = nil
	return taken
}

func traced(t *testing.T, url string) (*pgxpool.Pool, *counter) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	count := &counter{}
	config.ConnConfig.Tracer = count
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, count
}

func TestIdleRelay(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	pool, count := traced(t, dbtest.URL(t))
	relay := NewRelay(riversharedtest.BaseServiceArchetype(t), pool, RelayConfig{PollInterval: 100 * time.Millisecond})
	relay.TestSignals.Init(t)
	require.NoError(t, relay.Start(t.Context()))
	defer relay.Stop()
	require.False(t, await(t, relay.TestSignals.Polled.WaitC()))
	count.take()
	for range 5 {
		require.False(t, await(t, relay.TestSignals.Polled.WaitC()))
	}
	// One statement per poll, and one poll per interval, which is a minute in production.
	require.Equal(t, []string{"-- name: RelayIsDirty :one", "-- name: RelayIsDirty :one", "-- name: RelayIsDirty :one",
		"-- name: RelayIsDirty :one", "-- name: RelayIsDirty :one"}, count.take())

	// A long transaction that was passed over: less and less often, down to once a second.
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), insertEvent, "late")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), insertEvent, "a")
	require.NoError(t, err)
	relay.Wake()
	require.EqualValues(t, 2, await(t, relay.TestSignals.Published.WaitC()))
	require.NoError(t, tx.Commit(t.Context()))
	require.EqualValues(t, 2, await(t, relay.TestSignals.Published.WaitC()), "a late row does not move the watermark")
}

func TestPace(t *testing.T) {
	t.Parallel()
	config := RelayConfig{}.withDefaults()
	waits := func(done pass, err error) []time.Duration {
		p := pace{config: config}
		var list []time.Duration
		for range 6 {
			list = append(list, p.next(done, err, time.Millisecond))
		}
		return list
	}
	ms := time.Millisecond
	require.Equal(t, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms}, waits(pass{}, context.DeadlineExceeded))
	require.Equal(t, []time.Duration{5 * ms, 10 * ms, 20 * ms, 40 * ms, 80 * ms, 100 * ms}, waits(pass{}, nil))
	require.Equal(t, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms}, waits(pass{locked: true, gaps: true}, nil))
	require.Equal(t, 3*ms, waits(pass{locked: true, gaps: true, wait: 3 * ms}, nil)[0])
	require.Zero(t, waits(pass{locked: true, more: true}, nil)[5])
	require.Equal(t, time.Minute, waits(pass{locked: true}, nil)[5])
}

func TestPaceRests(t *testing.T) {
	t.Parallel()
	ms, start := time.Millisecond, time.Now()
	rest := func(took, heard time.Duration, readers bool) time.Duration {
		p := pace{config: RelayConfig{}.withDefaults(), ended: start, took: took, jitter: 1}
		return p.restLeft(start.Add(heard), start, readers)
	}
	require.Equal(t, 10*ms, rest(ms, -ms, false))
	require.Equal(t, 15*ms, rest(3*ms, -ms, false), "a sixth of the time")
	require.Equal(t, 7*ms, rest(3*ms, -ms, true), "readers wait less")
	require.Equal(t, 20*ms, rest(20*ms, -ms, true), "but passes never take more than half")
	require.Equal(t, maxRest, rest(20*ms, -ms, false))
	require.Equal(t, 18*ms, rest(3*ms, 3*ms, false), "another node has published since")
	require.Equal(t, maxRest, rest(3*ms, 49*ms, false), "other nodes publish all the time; callers of this node wait for it")
}

// The notification queue is full because some session listens and never ends its transaction.
func TestRelayMutes(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.relay.Logger = discardLogger()
	now := time.Now()
	b.relay.Time.StubNow(now)
	client, nodes := b.listen(t, "ojs_events"), b.listen(t, "ojs_published")
	b.relay.failed(t.Context(), &pgconn.PgError{Code: "54000", Message: "too many notifications in the NOTIFY queue"})
	require.Equal(t, time.Minute, b.relay.untilOwed(time.Minute), "nothing was published yet")
	b.exec(t, insertEvent, "silent")
	b.publishAll(t)
	require.Equal(t, []string{"silent"}, queues(b.readAll(t)))

	// The nodes read what they have missed, although no other event follows.
	b.relay.notifyOwed(t.Context())
	require.Equal(t, noNotifyTime, b.relay.untilOwed(time.Minute))
	b.relay.Time.StubNow(now.Add(noNotifyTime))
	require.Zero(t, b.relay.untilOwed(time.Minute))
	b.relay.notifyOwed(t.Context())
	require.Empty(t, nodes.next(t), "the first notification has no payload")
	require.Equal(t, time.Minute, b.relay.untilOwed(time.Minute))

	b.exec(t, insertEvent, "loud")
	b.publishAll(t)
	require.Contains(t, client.next(t), `"queue":"loud"`)
}
