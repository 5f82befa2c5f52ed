package eventlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"
)

// limit sets the limits of retention. "" and 0 mean none.
func (b *testBundle) limit(t *testing.T, age string, count int) {
	t.Helper()
	b.exec(t, "UPDATE ojs.event_relay SET max_age = NULLIF($1::text, '')::interval, max_count = NULLIF($2::bigint, 0)", age, count)
}

// fill writes and publishes n events in queues q1, q2, …
func (b *testBundle) fill(t *testing.T, n int) []Event {
	t.Helper()
	b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state)
		SELECT 'job.enqueued', 'api', clock_timestamp(), '01900000-0000-7000-8000-000000000001', 'test', 'q' || g, 'available' FROM generate_series(1, $1::int) g`, n)
	b.publishAll(t)
	return b.readAll(t)
}

func (b *testBundle) after(t *testing.T, p Position) ([]Event, error) {
	t.Helper()
	page, err := b.reader.ListAfter(t.Context(), Query{After: &p, Limit: 1000})
	return page.Events, err
}

// What readers see is within both limits at every moment, whatever is still stored.
func TestRetentionOfReaders(t *testing.T) {
	t.Parallel()

	t.Run("ByCount", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.limit(t, "", 20)
		for round := range 3 {
			events := b.fill(t, 50)
			require.Len(t, events, 20, "round %d", round)
			require.Equal(t, "q31", events[0].Queue)
			require.Equal(t, "q50", events[19].Queue)
		}
		b.exec(t, "SELECT ojs.event_floor_raise(1000)")
		require.Len(t, b.readAll(t), 20)
	})

	t.Run("Newest", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.limit(t, "", 20)
		of := b.fill(t, 50)[0].JobID
		for name, query := range map[string]Query{"OfAll": {}, "OfAJob": {JobID: of}, "OfASubject": {Subject: "01900000-0000-7000-8000-000000000001"}} {
			events, total, err := b.reader.ListNewest(t.Context(), query, 0)
			require.NoError(t, err)
			require.EqualValues(t, 20, total, name)
			require.Len(t, events, 20, name)
			require.Equal(t, "q31", events[19].Queue, name)
		}
	})

	t.Run("CountsPublicEventsOnly", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.limit(t, "", 2)
		first := b.fill(t, 3)[0]
		b.exec(t, `INSERT INTO ojs.events (type, source, time, internal) SELECT 'job.state_changed', 'api', now(), true FROM generate_series(1, 9)`)
		b.publishAll(t)
		require.Equal(t, []string{"q2", "q3"}, queues(b.readAll(t)))
		require.Equal(t, "q2", first.Queue)
	})

	t.Run("ByAge", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.fill(t, 3)
		b.age(t, "10 s")
		events := b.fill(t, 2)
		require.Len(t, events, 5)
		b.limit(t, "5 s", 0)
		require.Equal(t, []string{"q1", "q2"}, queues(b.readAll(t)))
		b.age(t, "10 s")
		require.Empty(t, b.readAll(t))
		page, err := b.reader.ListAfter(t.Context(), Query{})
		require.NoError(t, err)
		require.Equal(t, events[4].ID()[len(events[4].ID())-17:], page.Cursor[len(page.Cursor)-17:], "the log ends where it did")
	})

	// A position is expired exactly if a public event behind it is outside of the limits.
	t.Run("ExpiresPositions", func(t *testing.T) {
		t.Parallel()
		for name, prepare := range map[string]func(b *testBundle){
			"Age":      func(b *testBundle) { b.limit(t, "5 s", 0) },
			"Count":    func(b *testBundle) { b.limit(t, "", 2) },
			"Advanced": func(b *testBundle) { b.limit(t, "5 s", 0); b.exec(t, "SELECT ojs.event_floor_raise(1000)") },
		} {
			b := setup(t, RelayConfig{})
			old := b.fill(t, 3)
			b.exec(t, `INSERT INTO ojs.events (type, source, time, internal) SELECT 'job.state_changed', 'api', now(), true FROM generate_series(1, 4)`)
			b.age(t, "10 s")
			for i := range old { // as clients read them
				old[i].Position = NewPosition(old[i].Time.Add(-10*time.Second), old[i].Position.Seq, 0)
			}
			all := b.fill(t, 2)
			prepare(b)
			for i := range 2 {
				var expired *ExpiredError
				_, err := b.after(t, old[i].Position)
				require.ErrorAs(t, err, &expired, name)
				require.Equal(t, all[3].ID(), expired.OldestID, name)
				rest, err := b.after(t, expired.Pruned)
				require.NoError(t, err, name)
				require.Equal(t, []string{"q1", "q2"}, queues(rest), name)
			}
			rest, err := b.after(t, old[2].Position)
			require.NoError(t, err, "%s: only internal rows are outside of the limits behind it", name)
			require.Equal(t, []string{"q1", "q2"}, queues(rest), name)
			rest, err = b.after(t, all[3].Position)
			require.NoError(t, err, name)
			require.Equal(t, []string{"q2"}, queues(rest), name)
		}
	})

	// All ways to read agree.
	t.Run("EveryReader", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		all := b.fill(t, 5)
		b.limit(t, "", 2)
		j := all[0].JobID
		newest, total, err := b.reader.ListNewest(t.Context(), Query{Limit: 10}, 0)
		require.NoError(t, err)
		require.Equal(t, []string{"q5", "q4"}, queues(newest))
		require.EqualValues(t, 2, total)
		for name, q := range map[string]Query{"Job": {JobID: j}, "Subject": {Subject: "01900000-0000-7000-8000-000000000001"}} {
			q.Limit = 10
			page, err := b.reader.ListAfter(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, []string{"q4", "q5"}, queues(page.Events), name)
			newest, _, err := b.reader.ListNewest(t.Context(), q, 0)
			require.NoError(t, err)
			require.Equal(t, []string{"q5", "q4"}, queues(newest), name)
		}
		for i, e := range all {
			_, found, err := b.reader.Get(t.Context(), e.Position, e.ID())
			require.NoError(t, err)
			require.Equal(t, i >= 3, found)
			require.EqualValues(t, map[bool]int{true: 1}[i >= 3], b.count(t, "SELECT count(ojs.event($1))", e.ID()))
		}
		history, err := b.reader.JobHistory(t.Context(), *j, nil, 10)
		require.NoError(t, err)
		require.Equal(t, []string{"q4", "q5"}, queues(history.Events))
		require.EqualValues(t, 2, history.Total)
		entries, err := b.reader.HistoryNewest(t.Context(), HistoryQuery{Limit: 10})
		require.NoError(t, err)
		require.EqualValues(t, 2, entries.Total)
		transitions, _, err := b.reader.History(t.Context(), *j)
		require.NoError(t, err)
		require.Len(t, transitions, 2)
		require.EqualValues(t, 2, b.count(t, "SELECT count(*) FROM ojs.events_after()"))
		require.EqualValues(t, 2, b.count(t, "SELECT count(*) FROM ojs.events_after($1)", all[0].ID()))
	})

	// Events that a feed has in memory for live streams are no way around the limits.
	t.Run("ResumedStream", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		feed := NewFeed(riversharedtest.BaseServiceArchetype(t), b.reader, FeedConfig{})
		require.NoError(t, feed.Start(t.Context()))
		t.Cleanup(feed.Stop)
		live, err := feed.Subscribe(t.Context(), Query{}, nil)
		require.NoError(t, err)
		defer live.Close()
		b.fill(t, 1)
		require.Eventually(t, func() bool { feed.Wake(); return feed.after(Position{Seq: 1}).complete }, waitFor, time.Millisecond)
		all := b.fill(t, 5)
		require.Eventually(t, func() bool { feed.Wake(); return len(feed.after(all[0].Position).items) == 5 }, waitFor, time.Millisecond)
		b.limit(t, "", 2)
		resumed, err := feed.Subscribe(t.Context(), Query{}, &all[1].Position)
		require.NoError(t, err)
		defer resumed.Close()
		_, missed, err := resumed.Next(t.Context(), nil, 10)
		require.NoError(t, err)
		require.Equal(t, &Missed{Start: all[1].Position, End: placeOf(all[3].Position.place(), missed.End.Time())}, missed)
		items, missed, err := resumed.Next(t.Context(), nil, 10)
		require.NoError(t, err)
		require.Nil(t, missed)
		require.Len(t, items, 2)
	})

	// A late row is kept as long as those that were published with it, or nobody would ever see it.
	t.Run("LateRow", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		late := b.open(t)
		_, err := late.Exec(t.Context(), `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state)
			VALUES ('job.enqueued', 'api', now() - interval '1 minute', gen_random_uuid(), 'test', 'late', 'available')`)
		require.NoError(t, err)
		b.exec(t, insertEvent, "a")
		b.publishAll(t)
		b.limit(t, "30 s", 1)
		require.Equal(t, []string{"a"}, queues(b.readAll(t)))
		require.NoError(t, late.Commit(t.Context()))
		b.passUntil(t, noGaps)
		b.limit(t, "30 s", 2)
		require.Equal(t, []string{"a", "late"}, queues(b.readAll(t)))
		b.limit(t, "30 s", 1)
		require.Empty(t, b.readAll(t), "late is too old, and a is beyond the count")
	})
}

// A partition with few events is ended after a day, so that its storage can be dropped in time.
func TestEventPartitionClose(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	closed := func() bool { return b.count(t, "SELECT ojs.event_partition_close()::integer") == 1 }
	partitions := func() (list string) {
		t.Helper()
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT string_agg(low || '-' || upper, ' ' ORDER BY low) FROM ojs.event_partitions() WHERE low < 1000000").Scan(&list))
		return list
	}
	b.limit(t, "7 days", 0)
	require.False(t, closed(), "nothing was written")
	for day := range 10 {
		if day > 0 {
			b.age(t, "25 hours")
			require.True(t, closed())
			require.False(t, closed())
		}
		b.fill(t, 100)
		b.exec(t, "SELECT ojs.event_floor_raise(1000)")
		for b.count(t, "SELECT ojs.event_partitions_prune()") > 0 {
		}
	}
	require.Equal(t, "301-401 401-501 501-601 601-701 701-801 801-901 901-500000 500000-1000000", partitions())
	require.Len(t, b.readAll(t), 700)
	b.exec(t, fmt.Sprintf("SELECT ojs.event_partitions_ensure(%d)", 6))
	require.Equal(t, "301-401 401-501 501-601 601-701 701-801 801-901 901-500000 500000-1000000", partitions())

	// Writers only wait, and no row gets a number outside of its partition.
	b.age(t, "25 hours")
	stop := b.writing(t)
	require.Eventually(t, closed, waitFor, time.Millisecond)
	stop()
	b.publishAll(t)

	b.limit(t, "300 days", 0)
	b.fill(t, 1)
	b.age(t, "71 hours 50 minutes")
	require.False(t, closed(), "it may be as old as a hundredth of what is kept")
	b.age(t, "20 minutes")
	require.True(t, closed())
	b.fill(t, 1)

	b.limit(t, "", 10)
	b.age(t, "100 days")
	require.False(t, closed(), "without a limit of the age closing serves nothing")
}

// The last number of a partition may be drawn while it is being ended. Then there is no rest that needs a partition.
func TestEventPartitionCloseAtItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.limit(t, "7 days", 0)
	b.fill(t, 1)
	b.age(t, "25 hours")
	head := b.count(t, "SELECT last_value FROM ojs.event_seq")
	try := func() (closed bool) {
		b.exec(t, fmt.Sprintf("SELECT setval('ojs.event_seq', %d)", head))
		relay := b.open(t)
		_, err := relay.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- b.pool.QueryRow(t.Context(), "SELECT ojs.event_partition_close()").Scan(&closed) }()
		for len(ended) == 0 && b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == 0 {
		}
		b.exec(t, "SELECT setval('ojs.event_seq', 499999)")
		require.NoError(t, relay.Rollback(t.Context()))
		require.NoError(t, await(t, ended))
		return closed
	}
	for n := 0; !try(); n++ {
		require.Less(t, n, 1000, "the function gives up after 50 ms")
	}
	require.EqualValues(t, 500_000, b.count(t, "SELECT min(upper) FROM ojs.event_partitions()"))
	b.fill(t, 1)
}
