package queueadmin_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queueadmin"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestUnusedPartitions(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, func(c *domaintest.Config) { c.Unchecked = true })
	b.Exec(`INSERT INTO ojs.limits (key, policy) SELECT 'k' || i, '{}' FROM generate_series(1, 3000) i`)
	const rate = `{"rate":{"limit":1,"period":"P3D","us":259200000000}}`
	for _, key := range []string{"active", "waiting", "discarded", "recent", "over", "paused", "counted", "old", "pending"} {
		b.Exec(`SELECT ojs.limit_set($1, $2)`, key, rate)
	}
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args, limit_key, limit_seq, finished_at)
		SELECT gen_random_uuid(), 't', 'q', CASE k WHEN 'waiting' THEN 'available' ELSE k END, now(), '[]', k, CASE k WHEN 'waiting' THEN 1 END, CASE k WHEN 'discarded' THEN now() END
		FROM unnest('{active,waiting,discarded}'::text[]) k`)
	b.Exec(`SELECT ojs.limit_override('over', '{"concurrency":1}', NULL)`)
	b.Exec(`DELETE FROM ojs.limit_pending WHERE key <> 'pending'`)
	b.Exec(`SELECT ojs.limit_changed('pending')`)
	b.Exec(`UPDATE ojs.limits SET blocked_until = now() + interval '1 day' WHERE key = 'paused'`)
	b.Exec(`INSERT INTO ojs.limit_starts (key, at) VALUES ('counted', now() - interval '2 days')`)
	b.Exec(`INSERT INTO ojs.limit_starts (key, at) SELECT 'old', now() - interval '4 days' FROM generate_series(1, 12500) i`)
	b.Exec(`UPDATE ojs.limits SET used_at = now() - interval '2 days' WHERE key <> 'recent'`)

	run := func() queueadmin.Pruned {
		p := b.pruner(config.Config{Retention: config.Retention{PruneInterval: time.Minute}})
		p.TestSignals.Init(t)
		require.NoError(t, p.Start(t.Context()))
		defer p.Stop()
		return domaintest.Await(t, p.TestSignals.Pruned.WaitC())
	}
	require.Equal(t, queueadmin.Pruned{Partitions: 3001}, run())
	kept := []string{"active", "counted", "discarded", "over", "paused", "pending", "recent", "waiting"}
	require.Equal(t, kept, b.Texts(`SELECT key FROM ojs.limits ORDER BY key`))
	require.Equal(t, []string{"counted"}, b.Texts(`SELECT key FROM ojs.limit_starts`))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.limits WHERE used_at < now() - interval '1 day'`), "what is kept is looked at a day later")
	require.Equal(t, queueadmin.Pruned{}, run())
}

// TestUnusedPartitionOfANewJob is about a job that is stored while the partition of its key, which was unused, is deleted.
func TestUnusedPartitionOfANewJob(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, func(c *domaintest.Config) { c.Unchecked = true })
	const policy = `{"concurrency":1}`
	b.Exec(`SELECT ojs.limit_set('k', $1)`, policy)
	b.Exec(`UPDATE ojs.limits SET used_at = now() - interval '2 days', updated_at = '2020-01-01Z'`)
	enqueue, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = enqueue.Rollback(t.Context()) }()
	_, err = enqueue.Exec(t.Context(), `INSERT INTO ojs.jobs (id, type, queue, state, created_at, args, limit_key, limit_seq)
		SELECT gen_random_uuid(), 't', 'q', 'available', now(), '[]', 'k', 1 WHERE ojs.limit_enqueued('k', $1, true)`, policy)
	require.NoError(t, err)
	require.Zero(t, b.Number(`SELECT deleted FROM ojs.limit_prune(10)`))
	require.NoError(t, enqueue.Commit(t.Context()))
	require.Zero(t, b.Number(`SELECT deleted FROM ojs.limit_prune(10)`))
	require.Equal(t, policy, b.One(`SELECT policy::text FROM ojs.limits WHERE updated_at = '2020-01-01Z'`), "the policy is the same")
}
