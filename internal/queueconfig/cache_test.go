package queueconfig_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

type bundle struct {
	pool  *pgxpool.Pool
	cache *queueconfig.Cache
}

func setup(t *testing.T, change ...func(c *queueconfig.CacheConfig)) *bundle {
	t.Helper()
	pool := dbtest.New(t)
	var config queueconfig.CacheConfig
	for _, f := range change {
		f(&config)
	}
	return &bundle{pool, queueconfig.NewCache(pg.New(pool, 10*time.Second), slog.New(slog.DiscardHandler), config)}
}

func (b *bundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := b.pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func (b *bundle) version(t *testing.T) (version int64) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT COALESCE(max(version), 0) FROM ojs.queue_version").Scan(&version))
	return version
}

func TestCacheGet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO ojs.queues (name, status, config) VALUES ('plain', 'active', NULL), ('paused', 'paused', NULL), ('set', 'active', '{"concurrency":3}')`)
	found, err := b.cache.Get(t.Context(), "plain", "paused", "set", "unknown")
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, queueconfig.Paused, found["paused"].Status)
	require.EqualValues(t, 3, *found["set"].Config.Concurrency)

	b.exec(t, `INSERT INTO ojs.queues (name, config) VALUES ('_default', '{"default_timeout":60}')`)
	require.NoError(t, b.cache.Refresh(t.Context()))
	found, err = b.cache.Get(t.Context(), "plain", "set", "unknown")
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, "unknown", found["unknown"].Name)
	require.EqualValues(t, 60_000, *found["unknown"].Config.DefaultTimeoutMS)
	require.EqualValues(t, 3, *found["set"].Config.Concurrency)
	require.EqualValues(t, 60_000, *found["set"].Config.DefaultTimeoutMS)
	require.JSONEq(t, `{"concurrency":3}`, string(found["set"].Own()))
	require.JSONEq(t, `{}`, string(found["unknown"].Own()))

	b.exec(t, `DELETE FROM ojs.queues WHERE name IN ('_default', 'set', 'paused')`)
	require.NoError(t, b.cache.Refresh(t.Context()))
	found, err = b.cache.Get(t.Context(), "plain", "set", "unknown")
	require.NoError(t, err)
	require.Nil(t, found)
}

// Without notifications, a change holds within Settled.
// TestUnreadableConfiguration: a field that cannot be read, as another version may have written it, is logged and left out.
func TestUnreadableConfiguration(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	pool := dbtest.New(t)
	var log bytes.Buffer
	b := &bundle{pool, queueconfig.NewCache(pg.New(pool, 10*time.Second), slog.New(slog.NewTextHandler(&log, nil)), queueconfig.CacheConfig{})}
	b.exec(t, `INSERT INTO ojs.queues (name, config) VALUES ('good', '{"concurrency":3}')`)
	require.NoError(t, b.cache.Refresh(t.Context()))
	require.NotContains(t, log.String(), "level=ERROR")
	b.exec(t, `INSERT INTO ojs.queues (name, config) VALUES ('bad', '{"concurrency":"x","default_timeout":60}')`)
	require.NoError(t, b.cache.Refresh(t.Context()))
	require.Regexp(t, `level=ERROR.*queue=bad`, log.String())
	found, err := b.cache.Get(t.Context(), "bad")
	require.NoError(t, err)
	require.Nil(t, found["bad"].Config.Concurrency)
	require.EqualValues(t, 60_000, *found["bad"].Config.DefaultTimeoutMS)
}

func TestCacheLooksWithoutNotifications(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.cache.Get(t.Context(), "a")
	require.NoError(t, err)
	b.exec(t, `INSERT INTO ojs.queues (name, status) VALUES ('a', 'draining')`)
	require.Eventually(t, func() bool {
		found, err := b.cache.Get(t.Context(), "a")
		return err == nil && found["a"] != nil
	}, loop.Settled+10*time.Second, 10*time.Millisecond)
}

// Who is told of a change sees it: fetches that a resume wakes must not find the queue paused.
func TestCacheTellsWhatItHasRead(t *testing.T) {
	t.Parallel()
	told := map[string]bool{}
	var b *bundle
	b = setup(t, func(c *queueconfig.CacheConfig) {
		c.Found = func(name string) { told[name] = b.cache.Known(name) != nil }
	})
	b.exec(t, `INSERT INTO ojs.queues (name, status, config) VALUES ('paused', 'paused', NULL), ('set', 'active', '{"concurrency":3}'), ('other', 'paused', NULL)`)
	look := func() map[string]bool {
		clear(told)
		require.NoError(t, b.cache.Refresh(t.Context()))
		return told
	}
	require.Empty(t, look(), "nothing was known")
	require.Empty(t, look())
	b.exec(t, `UPDATE ojs.queues SET status = 'active' WHERE name = 'paused'`)
	require.Equal(t, map[string]bool{"paused": false}, look())
	b.exec(t, `UPDATE ojs.queues SET config = '{"concurrency":4}' WHERE name = 'set'`)
	require.Equal(t, map[string]bool{"set": true}, look())
	b.exec(t, `INSERT INTO ojs.queues (name, config) VALUES ('_default', '{"concurrency":5}')`)
	require.Contains(t, look(), "", "all queues")
}

// A node that listens reads in the background, so that no request waits.
func TestFollowerReadsAfterNotification(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queueconfig.CacheConfig) { c.Listening = func() bool { return true } })
	_, err := b.cache.Get(t.Context(), "a")
	require.NoError(t, err)
	follower := queueconfig.NewFollower(riversharedtest.BaseServiceArchetype(t), b.cache)
	require.NoError(t, follower.Start(t.Context()))
	t.Cleanup(follower.Stop)
	b.exec(t, `INSERT INTO ojs.queues (name, status) VALUES ('a', 'draining')`)
	b.cache.Changed()
	require.Eventually(t, func() bool { return b.cache.Known("a") != nil }, 30*time.Second, time.Millisecond)
}

// A node without notifications learns of changes although nobody asks: jobs are decoded with what is known.
func TestFollowerReadsWithoutNotification(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.cache.Get(t.Context(), "a")
	require.NoError(t, err)
	follower := queueconfig.NewFollower(riversharedtest.BaseServiceArchetype(t), b.cache)
	require.NoError(t, follower.Start(t.Context()))
	t.Cleanup(follower.Stop)
	b.exec(t, `INSERT INTO ojs.queues (name, status, paused_at) VALUES ('a', 'paused', '2026-01-01Z')`)
	known := func(at string) func() bool {
		return func() bool {
			q := b.cache.Known("a")
			return q != nil && q.PausedAt.UTC().Format(time.DateOnly) == at
		}
	}
	require.Eventually(t, known("2026-01-01"), 30*time.Second, time.Millisecond)
	b.exec(t, `UPDATE ojs.queues SET paused_at = '2026-01-02Z'`) // resumed and paused again between two looks
	require.NoError(t, b.cache.Refresh(t.Context()))
	require.True(t, known("2026-01-02")())
}

func TestFollowerStartStopStress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	startstoptest.Stress(t.Context(), t, queueconfig.NewFollower(riversharedtest.BaseServiceArchetype(t), b.cache))
}

// What enqueues write must neither move the version nor notify anybody.
func TestQueueVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	listener, err := b.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer listener.Release()
	_, err = listener.Exec(t.Context(), `LISTEN ojs_queues`)
	require.NoError(t, err)
	notified := func() (names []string) { // since the last call
		b.exec(t, `SELECT pg_notify('ojs_queues', 'mark')`)
		for {
			n, err := listener.Conn().WaitForNotification(t.Context())
			require.NoError(t, err)
			if n.Payload == "mark" {
				return names
			}
			names = append(names, n.Payload)
		}
	}
	b.exec(t, `INSERT INTO ojs.queues (name) VALUES ('a') ON CONFLICT (name) DO UPDATE SET used_at = EXCLUDED.used_at`)
	b.exec(t, `INSERT INTO ojs.queues (name) VALUES ('a') ON CONFLICT (name) DO UPDATE SET used_at = EXCLUDED.used_at`)
	require.Zero(t, b.version(t))
	require.Empty(t, notified())
	last := int64(0)
	for _, c := range []struct{ sql, name string }{
		{`UPDATE ojs.queues SET status = 'paused' WHERE name = 'a'`, "a"},
		{`UPDATE ojs.queues SET config = '{}' WHERE name = 'a'`, "a"},
		{`DELETE FROM ojs.queues WHERE name = 'a'`, "a"},
		{`INSERT INTO ojs.queues (name, config) VALUES ('b', '{}')`, "b"},
	} {
		b.exec(t, c.sql)
		require.Greater(t, b.version(t), last, c.sql)
		require.Equal(t, []string{c.name}, notified(), c.sql)
		last = b.version(t)
	}
	_, err = listener.Exec(t.Context(), `UNLISTEN *`)
	require.NoError(t, err)
	b.exec(t, `SELECT ojs.reset()`)
	b.exec(t, `INSERT INTO ojs.queues (name, config) VALUES ('b', '{}')`)
	require.Greater(t, b.version(t), last, "a number is not used again after a reset")
}

// Transactions that change several queues in different orders do not deadlock.
func TestQueueVersionIsLockedLast(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO ojs.queues (name) VALUES ('a'), ('b')`)
	first, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = first.Rollback(t.Context()) }()
	_, err = first.Exec(t.Context(), `UPDATE ojs.queues SET status = 'paused' WHERE name = 'a'`)
	require.NoError(t, err)
	b.exec(t, `UPDATE ojs.queues SET status = 'paused' WHERE name = 'b'`) // does not wait for the first
	_, err = first.Exec(t.Context(), `UPDATE ojs.queues SET status = 'draining' WHERE name = 'b'`)
	require.NoError(t, err)
	require.NoError(t, first.Commit(t.Context()))
}
