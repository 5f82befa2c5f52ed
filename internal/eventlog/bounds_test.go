package eventlog

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBoundedReads: a filter that matches little reads a part of the log at a time, and the pages together are complete.
func TestBoundedReads(t *testing.T) {
	t.Parallel()

	// Of 1 000 events four are of queue rare: 50, 350, 650 and 950.
	rare := func(t *testing.T) *testBundle {
		t.Helper()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state)
			SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 't', CASE WHEN i % 300 = 50 THEN 'rare' ELSE 'q' END, 'available'
			FROM generate_series(1, 1000) i`)
		b.publishAll(t)
		b.reader.maxLooked = 100
		return b
	}

	t.Run("Polling", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		var events []Event
		query, pages := Query{Queues: []string{"rare"}}, 0
		for more := true; more; pages++ {
			page := b.list(t, query)
			require.LessOrEqual(t, len(page.Events), 1)
			end, err := ParsePosition(page.Cursor)
			require.NoError(t, err)
			require.True(t, query.After == nil || query.After.Before(end), "the cursor moves")
			events, more, query.After = append(events, page.Events...), page.HasMore, &end
		}
		require.InDelta(t, 10, pages, 1) // the relay draws numbers, too
		require.Equal(t, []string{"rare", "rare", "rare", "rare"}, queues(events))
		require.Equal(t, b.list(t, Query{After: query.After}).Cursor, query.After.String(), "the last page ends with the log")
	})

	t.Run("WithLateEventsAtTheEndOfAPage", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		b.exec(t, `INSERT INTO ojs.events (seq, sub, type, source, time, job_id, job_type, queue) SELECT 100, s, 'job.enqueued', 'api', now(), gen_random_uuid(), 't', 'rare'
			FROM generate_series(1, 3) s`)
		first := b.list(t, Query{Queues: []string{"rare"}})
		require.Len(t, first.Events, 4)
		require.True(t, first.HasMore)
		require.Empty(t, b.list(t, Query{Queues: []string{"rare"}, After: &first.End}).Events)
	})

	t.Run("FromTheOldestThatIsKept", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		b.exec(t, `DELETE FROM ojs.events WHERE seq <= 850`)
		b.exec(t, `UPDATE ojs.event_relay SET pruned = 850, floor_place = (850 << 16) + 65535`)
		page := b.list(t, Query{Queues: []string{"rare"}})
		require.Equal(t, []string{"rare"}, queues(page.Events))
		require.EqualValues(t, 950, page.End.Seq)
	})

	t.Run("OfAJobAreNotCut", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		b.exec(t, `UPDATE ojs.events SET job_id = '00000000-0000-0000-0000-000000000009' WHERE seq IN (1, 1000)`)
		page := b.list(t, Query{JobID: &[16]byte{15: 9}})
		require.Len(t, page.Events, 2)
		require.False(t, page.HasMore)
	})

	t.Run("Stream", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		s, err := b.feed(t, FeedConfig{}).Subscribe(t.Context(), Query{Queues: []string{"rare"}}, &Position{})
		require.NoError(t, err)
		defer s.Close()
		for range 4 {
			items, missed, err := s.Next(t.Context(), time.After(waitFor), 10)
			require.NoError(t, err)
			require.Nil(t, missed)
			require.Len(t, items, 1)
		}
	})

	t.Run("History", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		var events []Event
		query, pages := HistoryQuery{Queues: []string{"rare"}, Limit: 50}, 0
		for more := true; more; pages++ {
			page, err := b.reader.HistoryNewest(t.Context(), query)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Events), 1)
			require.LessOrEqual(t, page.Total, int64(1))
			events, more, query.Before = append(events, page.Events...), page.More, &page.End
		}
		require.InDelta(t, 10, pages, 1)
		require.Len(t, events, 4)
		require.Greater(t, events[0].Position.Seq, events[3].Position.Seq)
	})

	// The partition of the first numbers is still there.
	t.Run("HistoryEndsWithTheOldestThatIsKept", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		b.exec(t, `UPDATE ojs.event_relay SET floor_place = (500 << 16) + 65535`)
		events, pages := 0, 0
		query := HistoryQuery{Queues: []string{"rare"}, Limit: 50}
		for more := true; more; pages++ {
			page, err := b.reader.HistoryNewest(t.Context(), query)
			require.NoError(t, err)
			events, more, query.Before = events+len(page.Events), page.More, &page.End
		}
		require.Equal(t, 2, events)
		require.InDelta(t, 5, pages, 1)
	})

	t.Run("Newest", func(t *testing.T) {
		t.Parallel()
		b := rare(t)
		events, total, err := b.reader.ListNewest(t.Context(), Query{Queues: []string{"rare"}}, 0)
		require.NoError(t, err)
		require.Len(t, events, 1)
		require.EqualValues(t, 1, total)
	})
}

// TestBytesOfPages: 400 events of 24 KiB do not fit a page.
func TestBytesOfPages(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	id := [16]byte{15: 1}
	b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, from_state, data)
		SELECT 'job.failed', 'api', clock_timestamp(), $1, 't', 'q', 'active', $2::json FROM generate_series(1, 400)`,
		id, `{"error":{"message":"`+strings.Repeat("x", MaxPayload-PayloadRoom)+`"}}`)
	b.publishAll(t)
	const fit = 340

	size := func(events []Event) (n int) {
		for _, e := range events {
			n += len(e.Head) + len(e.Compat) + len(e.Data)
		}
		return n
	}
	first := b.list(t, Query{Limit: 1000})
	require.True(t, first.HasMore)
	require.InDelta(t, fit, len(first.Events), 20)
	require.LessOrEqual(t, size(first.Events), maxPageBytes)
	second := b.list(t, Query{Limit: 1000, After: &first.End})
	require.False(t, second.HasMore)
	require.Equal(t, 400, len(first.Events)+len(second.Events))

	newest, err := b.reader.HistoryNewest(t.Context(), HistoryQuery{Limit: 1000})
	require.NoError(t, err)
	require.True(t, newest.More)
	require.LessOrEqual(t, size(newest.Events), maxPageBytes)
	older, err := b.reader.HistoryNewest(t.Context(), HistoryQuery{Limit: 1000, Before: &newest.End})
	require.NoError(t, err)
	require.False(t, older.More)
	require.Equal(t, 400, len(newest.Events)+len(older.Events))

	history, more, err := b.reader.History(t.Context(), id)
	require.NoError(t, err)
	require.True(t, more)
	require.InDelta(t, fit, len(history), 20)
}

// TestReadsShareThePool: slow reads leave connections to others.
func TestReadsShareThePool(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	share := int(b.pool.Config().MaxConns) / 2
	lock, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), "LOCK TABLE ojs.events")
	require.NoError(t, err)
	done := make(chan error)
	for range 3 * share {
		go func() {
			_, err := b.reader.ListAfter(t.Context(), Query{})
			done <- err
		}()
	}
	busy := func() int { return int(b.pool.Stat().AcquiredConns()) }
	require.Eventually(t, func() bool { return busy() == share+1 }, waitFor, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = b.pool.Exec(ctx, "SELECT 1")
	require.NoError(t, err, "the reads have taken all connections")
	require.Equal(t, share+1, busy())
	require.NoError(t, lock.Rollback(t.Context()))
	for range 3 * share {
		require.NoError(t, <-done)
	}
}
