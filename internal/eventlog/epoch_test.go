package eventlog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failover leaves the database as a standby that has not received the events behind kept, and begins to serve with two of its own.
func (b *testBundle) failover(t *testing.T, kept int64) {
	t.Helper()
	b.exec(t, `DELETE FROM ojs.events WHERE seq > $1`, kept)
	b.exec(t, `UPDATE ojs.event_relay SET watermark = $1, timeline = 'of the former primary'`, kept)
	b.exec(t, `SELECT setval('ojs.event_seq', $1)`, kept)
	b.pool.Reset() // all connections are made anew
	b.write(t, row{typ: "job.enqueued", queue: "new1"}, row{typ: "job.enqueued", queue: "new2"})
	b.publishAll(t)
}

// TestFailoverLosesEvents: a consumer whose cursor is of an event that a failover has lost is told so, and gets the events that came in its
// place. Cursors of events that are still there go on.
func TestFailoverLosesEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	rows := []row{}
	for _, name := range numbered(1, 6) {
		rows = append(rows, row{typ: "job.enqueued", queue: name})
	}
	b.write(t, rows...)
	b.publishAll(t)
	old := b.readAll(t)
	require.Len(t, old, 6)
	f := b.feed(t, FeedConfig{})
	live := f.subscribe(t, Query{}, &old[3].Position)
	f.Wake()
	require.Equal(t, []string{"5", "6"}, live.takeN(t, 2, 10))
	f.caughtUp(t)

	b.failover(t, 3)
	all := []string{"1", "2", "3", "new1", "new2"}
	require.Equal(t, all, queues(b.readAll(t)))

	for n, e := range old[:3] {
		require.Equal(t, all[n+1:], queues(b.list(t, Query{After: &e.Position}).Events), "event %d was received", n+1)
	}
	for n, e := range old[3:] {
		_, err := b.reader.ListAfter(t.Context(), Query{After: &e.Position})
		var expired *ExpiredError
		require.ErrorAs(t, err, &expired, "event %d was lost", n+4)
		require.True(t, expired.Rewritten)
		require.Equal(t, all[3:], queues(b.list(t, Query{After: &expired.Pruned}).Events))
		from, err := ParsePosition(expired.OldestID)
		require.NoError(t, err)
		require.Equal(t, all[3:], queues(b.list(t, Query{After: &from}).Events))
		require.Equal(t, all[3:], b.sqlAfter(t, e.ID()))
	}
	fresh := b.readAll(t)
	require.Equal(t, []string{"new2"}, queues(b.list(t, Query{After: &fresh[3].Position}).Events), "of the new epoch, in the place of a lost one")
	require.Equal(t, []string{"new2"}, b.sqlAfter(t, fresh[3].ID()))
	require.Equal(t, all[1:], b.sqlAfter(t, old[0].ID()))
	late := NewPosition(fresh[3].Position.Time(), fresh[3].Position.Seq, 1)
	require.Equal(t, all[3:], b.sqlAfter(t, late.String()), "a late row that was lost, although its number is used again")
	require.Equal(t, all, b.sqlAfter(t, NewPosition(time.UnixMilli(0), 0, 0).String()), "the beginning")

	f.Wake()
	for name, s := range map[string]*Subscription{"live": live, "resumed": f.subscribe(t, Query{}, &old[5].Position)} {
		items, missed, err := s.Next(t.Context(), nil, 10)
		require.NoError(t, err)
		require.Empty(t, items, name)
		require.NotNil(t, missed, name)
		require.Equal(t, old[5].Position, missed.Start)
		require.Equal(t, int64(3), missed.End.Seq)
		require.Equal(t, all[3:], s.takeN(t, 2, 10), name)
	}
}

// sqlAfter are the queues of the events that ojs.events_after returns.
func (b *testBundle) sqlAfter(t *testing.T, id string) (names []string) {
	t.Helper()
	rows, err := b.pool.Query(t.Context(), `SELECT payload::json->>'queue' FROM ojs.events_after($1)`, id)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	return names
}
