package eventlog

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelayLate(t *testing.T) {
	t.Parallel()

	// Two transactions overtaken at different times end in the other order.
	t.Run("KeepsOrderOfNumbers", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		one := b.open(t, "one")
		b.exec(t, insertEvent, "a")
		b.passOver(t)
		two := b.open(t, "two")
		b.exec(t, insertEvent, "b")
		b.passOver(t)
		require.NoError(t, two.Commit(t.Context()))
		b.publishAll(t)
		require.NoError(t, one.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"a", "b", "two", "one"}, queues(b.readAll(t)))

		three, four := b.open(t, "three"), b.open(t, "four")
		b.exec(t, insertEvent, "c")
		b.passOver(t)
		require.NoError(t, four.Commit(t.Context()))
		require.NoError(t, three.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"c", "three", "four"}, queues(b.readAll(t))[4:])
	})

	// A subject's next event, drawn after the late transaction released the subject, must not come before it.
	t.Run("ComesBeforeWhatFollowsItsCommit", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		late := b.open(t, "late")
		b.exec(t, insertEvent, "before")
		b.passOver(t)
		require.NoError(t, late.Commit(t.Context()))
		b.exec(t, insertEvent, "after")
		done := b.pass(t)
		require.Equal(t, 1, done.late)
		require.Equal(t, 1, done.published)
		require.Equal(t, []string{"before", "late"}, queues(b.readAll(t)))
		b.publishAll(t)
		require.Equal(t, []string{"before", "late", "after"}, queues(b.readAll(t)))
	})

	// A number that is passed over, and a row that is moved, count once for the tenant.
	t.Run("CountsForItsTenant", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		insert := `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, from_state, to_state)
			SELECT 'job.started', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'q', l, 'available', 'active'
			FROM unnest(ARRAY['acme', 'acme/k', '/k', '', 'other']) l`
		late, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = late.Rollback(context.Background()) })
		_, err = late.Exec(t.Context(), insert)
		require.NoError(t, err)
		counted := func() (list string) {
			require.NoError(t, b.pool.QueryRow(t.Context(),
				"SELECT COALESCE(string_agg(tenant || ' ' || queue || ' ' || state || ' ' || count, ', ' ORDER BY tenant, state), '') FROM ojs.tenant_counts").Scan(&list))
			return list
		}
		b.exec(t, insertEvent, "a")
		b.passOver(t)
		require.Empty(t, counted(), "events without a lane")
		b.exec(t, insert)
		b.passOver(t)
		require.Equal(t, "acme q active 2, acme q available -2, other q active 1, other q available -1", counted())
		require.NoError(t, late.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, "acme q active 4, acme q available -4, other q active 2, other q available -2", counted())
	})

	// The snapshot's xmax is the last ended xid plus one: the transaction with the missing number may be at or above it.
	t.Run("IsNotTakenForRolledBackWithTheNewestXID", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		older, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = older.Exec(t.Context(), "SELECT pg_current_xact_id()")
		require.NoError(t, err)
		newest := b.open(t, "missing")
		_, err = older.Exec(t.Context(), insertEvent, "seen")
		require.NoError(t, err)
		require.NoError(t, older.Commit(t.Context()))
		for range 5 {
			b.pass(t)
		}
		require.NoError(t, newest.Commit(t.Context()))
		b.publishAll(t)
		require.ElementsMatch(t, []string{"missing", "seen"}, queues(b.readAll(t)))
	})

	t.Run("IsFoundByAnotherRelay", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		other := NewRelay(&b.relay.Archetype, b.pool, RelayConfig{GapDelay: -1})
		late := b.open(t, "late")
		b.exec(t, insertEvent, "a")
		b.passOver(t)
		otherPasses := func() {
			for range 2 {
				_, err := other.runOnce(t.Context())
				require.NoError(t, err)
			}
		}
		otherPasses()
		rest := b.open(t, "rest") // recorded by the other relay, after the scan of the first
		b.exec(t, insertEvent, "b")
		otherPasses()
		require.NoError(t, late.Commit(t.Context()))
		require.NoError(t, rest.Commit(t.Context()))
		require.Equal(t, 2, b.pass(t).late)
		require.Equal(t, []string{"a", "b", "late", "rest"}, queues(b.readAll(t)))
	})

	t.Run("MovesAcrossPartitions", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		b.exec(t, "SELECT setval('ojs.event_seq', 499998)")
		b.exec(t, "UPDATE ojs.event_relay SET watermark = 499998")
		late := b.open(t, "late") // 499 999, the last of its partition
		b.exec(t, insertEvent, "a")
		b.publishAll(t)
		require.NoError(t, late.Commit(t.Context()))
		client := b.listen(t, "ojs_events")
		b.publishAll(t)
		events := b.readAll(t)
		require.Equal(t, []string{"a", "late"}, queues(events))
		require.EqualValues(t, 500_000, events[1].Position.Seq)
		require.EqualValues(t, 1, events[1].Position.Sub)
		require.Contains(t, client.next(t), events[1].ID())
	})

	// More late rows than one number has places.
	t.Run("MakesRoom", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		late := b.open(t, "late1", "late2", "late3")
		b.exec(t, insertEvent, "a")
		b.passOver(t)
		// As if the places behind the watermark were taken but for two.
		b.exec(t, `INSERT INTO ojs.events (seq, sub, type, source, time, job_id, job_type, queue)
			SELECT watermark, 65533, 'job.enqueued', 'api', now(), gen_random_uuid(), 'test', 'filler' FROM ojs.event_relay`)
		after := b.open(t, "next") // its number gives way while it is still open
		b.exec(t, insertEvent, "last")
		require.NoError(t, late.Commit(t.Context()))
		require.Equal(t, 2, b.pass(t).late)
		require.Zero(t, b.pass(t).late) // gives way
		require.Equal(t, 1, b.pass(t).late)
		require.NoError(t, after.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"a", "filler", "late1", "late2", "late3", "next", "last"}, queues(b.readAll(t)))
		b.passUntil(t, noGaps)
	})

	// Nothing has been drawn behind the watermark.
	t.Run("MakesRoomAtTheEnd", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		late := b.open(t, "late")
		b.exec(t, insertEvent, "a")
		b.passOver(t)
		b.exec(t, `INSERT INTO ojs.events (seq, sub, type, source, time, job_id, job_type, queue)
			SELECT watermark, 65535, 'job.enqueued', 'api', now(), gen_random_uuid(), 'test', 'filler' FROM ojs.event_relay`)
		require.NoError(t, late.Commit(t.Context()))
		b.publishAll(t)
		b.exec(t, insertEvent, "b")
		b.publishAll(t)
		require.Equal(t, []string{"a", "filler", "late", "b"}, queues(b.readAll(t)))
		b.passUntil(t, noGaps)
	})

	// The row at the watermark was dropped with its partition: a subscription that begins now gets what is published later.
	t.Run("IsBehindThePlaceOfAnEmptyLog", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		late := b.open(t, "late")
		b.exec(t, insertEvent, "a")
		b.passOver(t)
		b.exec(t, "DELETE FROM ojs.events")
		begin := b.count(t, "SELECT ojs.event_place()")
		require.NoError(t, late.Commit(t.Context()))
		b.passUntil(t, noGaps)
		require.EqualValues(t, 1, b.count(t, "SELECT count(*) FROM ojs.events WHERE (seq << 16 | sub) > $1", begin))
		require.EqualValues(t, 1, b.count(t, "SELECT count(*) FROM ojs.events WHERE (seq << 16 | sub) <= ojs.event_place()"))
	})

	// One open transaction with more numbers than two passes read delays the others once, not per pass.
	t.Run("PassesOverManyAtOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: time.Minute})
		now := time.Now()
		b.relay.Time.StubNow(now)
		many := 2*maxNumbers + 10
		tx := b.open(t, "zero")
		_, err := tx.Exec(t.Context(), `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue)
			SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'late' || g FROM generate_series(1, $1) g`, many)
		require.NoError(t, err)
		b.exec(t, insertEvent, "other")
		require.Equal(t, time.Minute, b.pass(t).wait)
		b.relay.Time.StubNow(now.Add(time.Minute))
		for range 3 {
			require.Zero(t, b.pass(t).wait)
		}
		require.Equal(t, []string{"other"}, queues(b.readAll(t)))
		require.NoError(t, tx.Commit(t.Context()))
		b.publishAll(t)
		got := queues(b.readAll(t))
		require.Len(t, got, many+2)
		require.Equal(t, []string{"other", "zero", "late1"}, got[:3])
		require.Equal(t, fmt.Sprint("late", many), got[many+1])
		b.passUntil(t, noGaps)
	})

	// Gaps of a dump that was restored on another server: their horizon is in the future, their transaction nowhere.
	t.Run("DropsForeignGaps", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "a")
		b.publishAll(t)
		b.exec(t, "INSERT INTO ojs.event_gaps VALUES (0, now(), '999999999', true)")
		b.passOver(t)
		b.passUntil(t, noGaps)
	})
}

// More numbers than one pass reads, and a pass that reads only missing numbers.
func TestRelaySpan(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{GapDelay: time.Hour})
	b.relay.span = 10
	for i := range 25 {
		b.exec(t, insertEvent, fmt.Sprint(i))
	}
	done := b.pass(t)
	require.Equal(t, 10, done.published)
	require.True(t, done.more)
	require.False(t, done.caughtUp())
	require.EqualValues(t, 25, done.head)
	b.publishAll(t)
	require.Len(t, b.readAll(t), 25)

	b.exec(t, "SELECT setval('ojs.event_seq', 100)") // 75 numbers that are never used
	b.exec(t, insertEvent, "end")
	done = b.pass(t)
	require.Positive(t, done.wait, "%+v %+v", done, b.relay.observations) // may belong to this very transaction
	b.publishAll(t)
	require.Equal(t, "end", queues(b.readAll(t))[25])
}

// Property of decide alone: whatever is missing, the watermark never goes over a number that is neither visible nor void
// nor due, and never stops before one that is.
func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := observations{{head: 4, bound: 100, at: now.Add(-30 * time.Millisecond)}, {head: 8, bound: 200, at: now.Add(-10 * time.Millisecond)}}
	decide := func(xmin int64, limit int64, numbers ...int64) decision {
		return s.decide(scan{xmin: xmin, watermark: 1, limit: limit, head: 9, numbers: numbers}, now, 25*time.Millisecond)
	}
	require.Equal(t, decision{upto: 5, rows: 2, passed: []int64{3, 4}, wait: 15 * time.Millisecond}, decide(50, 100, 2, 5, 7))
	require.Equal(t, decision{upto: 5, rows: 2, wait: 15 * time.Millisecond}, decide(100, 100, 2, 5, 7))
	require.Equal(t, decision{upto: 9, rows: 3}, decide(200, 100, 2, 7, 9))
	require.Equal(t, decision{upto: 3, passed: []int64{2, 3}}, decide(50, 3))
	require.Equal(t, decision{upto: 8, wait: 25 * time.Millisecond}, decide(200, 100)) // 9 has not been sighted
}
