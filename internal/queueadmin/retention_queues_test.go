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

// doneRows are finished jobs of three queues, one for each of the last hours up to two days, and discarded ones, half of them dead letters.
const doneRows = `INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args)
		SELECT gen_random_uuid(), 't', q, CASE g % 2 WHEN 0 THEN 'completed' ELSE 'cancelled' END, now(), now() - g * interval '1 minute', '[]'
		FROM generate_series(1, 10) g, unnest(ARRAY['short', 'plain', 'long']) q`

const discardedOf = `INSERT INTO ojs.jobs (id, type, queue, state, created_at, finished_at, dead_lettered_at, args)
		SELECT gen_random_uuid(), 't', q, 'discarded', now(), now() - g * interval '1 minute', CASE g % 2 WHEN 0 THEN now() - g * interval '1 minute' END, '[]'
		FROM generate_series(1, 10) g, unnest(ARRAY['short', 'plain', 'long']) q`

func TestRetentionOfQueues(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, b *bundle) queueadmin.Pruned {
		t.Helper()
		p := b.pruner(config.Config{Retention: config.Retention{PruneInterval: time.Minute, Completed: time.Hour, Discarded: 8*time.Minute + 30*time.Second}})
		p.TestSignals.Init(t)
		require.NoError(t, p.Start(t.Context()))
		defer p.Stop()
		return domaintest.Await(t, p.TestSignals.Pruned.WaitC())
	}
	left := func(b *bundle, table string) []string {
		return b.Texts(`SELECT queue || ' ' || state || ' ' || count(*) FROM ojs.` + table + ` GROUP BY queue, state ORDER BY 1`)
	}

	t.Run("EachStateOfAQueue", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(doneRows)
		b.Exec(discardedOf)
		b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('short', '{"retention":{"completed":"PT5M30S","discarded":"PT3M30S"}}'), ('long', '{"retention":{"completed":"P9D","discarded":"P9D"}}')`)
		pruned := run(t, b)
		require.EqualValues(t, 3+7, pruned.Early)
		require.EqualValues(t, 1, pruned.Discarded, "one of the queue without retention; dead letters have their own")
		require.Equal(t, []string{"long cancelled 5", "long completed 5", "plain cancelled 5", "plain completed 5", "short cancelled 5", "short completed 2"}, left(b, "jobs_done"))
		require.Equal(t, []string{"long discarded 10", "plain discarded 9", "short discarded 3"}, left(b, "jobs"))
		require.Equal(t, 3, b.Number(`SELECT count(*) FROM ojs.events WHERE queue = 'short' AND from_state = 'completed' AND to_state IS NULL AND internal`))
		require.Equal(t, []string{"scheduler"}, b.Texts(`SELECT DISTINCT source FROM ojs.events WHERE from_state IS NOT NULL AND to_state IS NULL`), "the same of the walk and of the sweep")
		require.Zero(t, run(t, b))
	})

	t.Run("OfDefault", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(doneRows)
		b.Exec(discardedOf)
		b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('_default', '{"retention":{"completed":"PT2M30S","cancelled":"PT2M30S","discarded":"PT2M30S"}}'), ('long', '{"retention":{"completed":"P9D"}}')`)
		pruned := run(t, b)
		require.EqualValues(t, 8+8+4, pruned.Early)
		require.Equal(t, []string{"long cancelled 1", "long completed 5", "plain cancelled 1", "plain completed 1", "short cancelled 1", "short completed 1"}, left(b, "jobs_done"))
		require.Equal(t, []string{"long discarded 6", "plain discarded 6", "short discarded 6"}, left(b, "jobs"), "dead letters stay")
	})
}

func TestDone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		configs string
		server  time.Duration
		want    time.Duration
	}{
		"ServerAlone":        {`('a', NULL)`, time.Hour, time.Hour},
		"LongerQueue":        {`('a', '{"retention":{"completed":"PT5H"}}')`, time.Hour, 5 * time.Hour},
		"ShorterQueue":       {`('a', '{"retention":"PT5M"}')`, time.Hour, time.Hour},
		"ShorterDefault":     {`('_default', '{"retention":"PT5M"}')`, time.Hour, 5 * time.Minute},
		"ServerKeepsForever": {`('a', '{"retention":"PT5M"}')`, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ` + test.configs)
			view, err := b.Configured.View(t.Context())
			require.NoError(t, err)
			require.Equal(t, test.want, queueadmin.KeepDone(view, test.server))
		})
	}
}
