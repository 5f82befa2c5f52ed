package eventlog

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counted sums the counts of passes.
func (b *testBundle) counted(t *testing.T, done ...pass) (sum Counts) {
	t.Helper()
	sum.Types = map[string]int64{}
	for _, p := range done {
		for kind, n := range p.counts.Types {
			sum.Types[kind] += n
		}
		sum.FromSQL = append(sum.FromSQL, p.counts.FromSQL...)
	}
	return sum
}

func TestRelayCounts(t *testing.T) {
	t.Parallel()
	const insert = `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, internal, node)
		VALUES ($1, 'api', clock_timestamp(), gen_random_uuid(), $2, 'q', 'available', $3, $4)`

	t.Run("PublicTypesAndWhatNoNodeWrote", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		for range 3 {
			b.exec(t, insert, "job.enqueued", "a", false, 1)
		}
		b.exec(t, insert, "job.state_changed", "a", true, 1)
		b.exec(t, insert, "job.enqueued", `od"d`, false, nil)
		b.exec(t, insert, "job.enqueued", `od"d`, false, nil)
		b.exec(t, insert, "job.cancelled", "a", false, nil)
		b.exec(t, insert, "job.state_changed", "a", true, nil)
		b.exec(t, `INSERT INTO ojs.events (type, source, time, subject, worker_id, node) VALUES ('worker.started', 'api', clock_timestamp(), 'w', 'w', 1)`)
		c := b.counted(t, b.pass(t))
		require.Equal(t, map[string]int64{"job.enqueued": 5, "job.cancelled": 1, "worker.started": 1}, c.Types)
		require.ElementsMatch(t, []SQLCount{{"job.enqueued", `od"d`, "q", 2}, {"job.cancelled", "a", "q", 1}, {"job.state_changed", "a", "q", 1}}, c.FromSQL)
		require.Empty(t, b.counted(t, b.pass(t)).Types)
	})

	t.Run("JobsPerStateAndMinute", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		const change = `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, from_state, to_state, duration_ms)
			VALUES ($1, 'api', '2026-05-04 03:02:01Z', gen_random_uuid(), 't', 'q', $2, $3, $4)`
		for range 2 { // in two passes
			for range 5 {
				b.exec(t, change, "job.enqueued", nil, "available", nil)
			}
			b.exec(t, change, "job.started", "available", "active", 5)
			b.exec(t, change, "job.completed", "active", "completed", 7)
			b.exec(t, change, "job.started", "available", "active", 6)
			b.exec(t, change, "job.failed", nil, nil, 8)
			b.exec(t, change, "job.discarded", "active", "discarded", nil)
			b.exec(t, change, "job.expired", "available", "discarded", nil)
			b.exec(t, change, "job.cancelled", "available", "cancelled", nil)
			b.publishAll(t)
		}
		text := func(sql string) (s string) {
			require.NoError(t, b.pool.QueryRow(t.Context(), sql).Scan(&s))
			return s
		}
		require.Equal(t, "available 2, cancelled 2, completed 2, discarded 4",
			text(`SELECT string_agg(state || ' ' || count, ', ' ORDER BY state) FROM ojs.queue_counts WHERE count <> 0`))
		const minute = "\"2026-05-04 03:02:00+00\",10,4,2,2,4,2,14,22,\"{0,0,0,2,0,0,0,0,0,0,0,0,0,0,0,0,0,0}\")"
		require.Equal(t, `("",`+minute+" (q,"+minute, text(`SELECT string_agg(m::text, ' ' ORDER BY m.queue) FROM ojs.stats_minute m`))
	})

	t.Run("LateRowsOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		tx := b.open(t, "late")
		b.exec(t, insert, "job.enqueued", "a", false, 1)
		done := []pass{b.pass(t), b.pass(t)}
		require.NoError(t, tx.Commit(t.Context()))
		require.Eventually(t, func() bool {
			done = append(done, b.pass(t))
			return b.counted(t, done...).Types["job.enqueued"] == 2
		}, waitFor, time.Millisecond)
		b.passUntil(t, func(p pass) bool { done = append(done, p); return noGaps(p) })
		c := b.counted(t, done...)
		require.Equal(t, map[string]int64{"job.enqueued": 2}, c.Types)
		require.Equal(t, []SQLCount{{"job.enqueued", "test", "late", 1}}, c.FromSQL)
	})

	t.Run("EachEventOnceWhetherPublishedOrNot", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		depth := func() int64 { t.Helper(); return b.count(t, "SELECT ojs.queue_depth('q')") }
		late := b.open(t, "q")
		b.exec(t, insertEvent, "q")
		require.EqualValues(t, 1, depth())
		require.Equal(t, 1, b.pass(t).passed)
		require.EqualValues(t, 1, depth(), "the one at the watermark is counted")
		b.exec(t, insertEvent, "q")
		b.exec(t, insertEvent, "other")
		require.EqualValues(t, 2, depth())
		require.NoError(t, late.Commit(t.Context()))
		require.EqualValues(t, 3, depth(), "one has a number that the watermark has passed")
		b.passUntil(t, noGaps)
		require.EqualValues(t, 3, depth())
	})

	t.Run("TotalsOfTheDeployment", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		for _, kind := range []string{"job.enqueued", "job.enqueued", "job.completed", "job.discarded", "job.rolledBack", "job.failed"} {
			b.exec(t, insert, kind, "a", false, 1)
		}
		b.publishAll(t)
		var enqueued, completed, discarded int64
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT enqueued_total, completed_total, discarded_total FROM ojs.event_relay`).Scan(&enqueued, &completed, &discarded))
		require.Equal(t, []int64{2, 1, 1}, []int64{enqueued, completed, discarded})
	})

	t.Run("ReportedAfterTheCommit", func(t *testing.T) {
		t.Parallel()
		reported := make(chan Counts, 10)
		b := setup(t, RelayConfig{Counts: func(c Counts) { reported <- c }})
		b.exec(t, insert, "job.enqueued", "a", false, nil)
		require.NoError(t, b.relay.Start(t.Context()))
		t.Cleanup(b.relay.Stop)
		c := <-reported
		require.Equal(t, []string{"job.enqueued"}, keys(c.Types))
		require.Len(t, c.FromSQL, 1)
	})
}

func keys(m map[string]int64) (names []string) {
	for name := range maps.Keys(m) {
		names = append(names, name)
	}
	return names
}

func TestStreamCounter(t *testing.T) {
	t.Parallel()
	var counter StreamCounter
	one, two := counter.Open(), counter.Open()
	require.EqualValues(t, 2, counter.Connections())
	a, b, c := &Subscription{stream: one}, &Subscription{stream: one}, &Subscription{stream: two}
	for range 2 { // saying it twice makes no difference
		a.setReadingTable(true)
		b.setReadingTable(true)
		c.setReadingTable(true)
	}
	require.EqualValues(t, 2, counter.CatchingUp(), "connections, not subscriptions")
	a.setReadingTable(false)
	require.EqualValues(t, 2, counter.CatchingUp())
	b.setReadingTable(false)
	c.setReadingTable(false)
	require.Zero(t, counter.CatchingUp())
	one.Close()
	two.Close()
	require.Zero(t, counter.Connections())
	(&Subscription{}).setReadingTable(true) // not counted
}

func TestCountsOfASubscription(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	f := b.feed(t, FeedConfig{MaxEvents: 10})
	var counter StreamCounter
	stream := counter.Open()
	s := f.subscribe(t, Query{}, nil)
	s.CountIn(stream)
	publish := func(from, n int) { // and waits until the feed has it
		b.publish(t, f, numbered(from, n)...)
		head, err := b.reader.Head(t.Context())
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			recent := f.after(head)
			return recent.complete && recent.end == head
		}, waitFor, time.Millisecond)
	}
	publish(0, 5)
	s.takeN(t, 5, 5)
	require.Zero(t, counter.CatchingUp())
	publish(5, 30)
	publish(35, 20) // more than memory holds
	s.takeN(t, 1, 1)
	require.EqualValues(t, 1, counter.CatchingUp())
	s.takeN(t, 49, 10)
	s.nothing(t)
	require.Zero(t, counter.CatchingUp())
	publish(55, 30)
	d, err := s.Trim(t.Context(), 4)
	require.NoError(t, err)
	require.Equal(t, 26, d.Count)
	require.EqualValues(t, 26, counter.Dropped())
	publish(85, 30)
	publish(115, 30)
	s.waiting = nil
	s.takeN(t, 1, 1)
	require.EqualValues(t, 1, counter.CatchingUp())
	s.Close()
	require.Zero(t, counter.CatchingUp(), "a stream that ends while it reads from the table")
}
