package eventlog

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelayPass(t *testing.T) {
	t.Parallel()

	t.Run("PublishesInOrder", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		for _, name := range []string{"a", "b", "c"} {
			b.exec(t, insertEvent, name)
		}
		require.Empty(t, b.readAll(t))
		done := b.pass(t)
		require.Equal(t, 3, done.published)
		require.True(t, done.caughtUp())
		require.Equal(t, []string{"a", "b", "c"}, queues(b.readAll(t)))
	})

	t.Run("LeavesItToTheRelayThatHasTheLock", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "a")
		tx := b.open(t)
		_, err := tx.Exec(t.Context(), `SELECT FROM ojs.event_relay FOR NO KEY UPDATE`)
		require.NoError(t, err)
		done := make(chan error, 1)
		var p pass
		go func() {
			var err error
			p, err = b.relay.runOnce(context.Background())
			done <- err
		}()
		select {
		case err := <-done:
			require.NoError(t, err)
			require.False(t, p.locked)
			require.Zero(t, p.published)
		case <-time.After(waitFor):
			require.Fail(t, "it waits for the other relay")
		}
		require.NoError(t, tx.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"a"}, queues(b.readAll(t)))
	})

	t.Run("WritesNoTemporaryFile", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, data)
			SELECT 'job.enqueued', 'api', now(), gen_random_uuid(), 't', 'q', 'available', to_json(repeat('x', 1000)) FROM generate_series(1, 5000)`)
		require.Equal(t, 5000, b.pass(t).published)
		b.pool.Reset() // sessions that end report what they did
		var files int
		require.Eventually(t, func() bool {
			var updated int
			err := b.pool.QueryRow(t.Context(), `SELECT pg_stat_get_db_tuples_updated(oid), pg_stat_get_db_temp_files(oid)
				FROM pg_database WHERE datname = current_database()`).Scan(&updated, &files)
			return err == nil && updated > 0
		}, time.Minute, 10*time.Millisecond)
		require.Zero(t, files)
	})

	t.Run("WaitsForOpenTransaction", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: time.Hour})
		first := b.open(t, "first")
		b.exec(t, insertEvent, "second")
		done := b.pass(t)
		require.Zero(t, done.published)
		require.Positive(t, done.wait)
		require.NoError(t, first.Commit(t.Context()))
		require.Equal(t, 2, b.pass(t).published)
		require.Equal(t, []string{"first", "second"}, queues(b.readAll(t)))
	})

	t.Run("DefaultsAreThoseOfTheConfiguration", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.relay.Time.StubNow(time.Now())
		b.open(t, "first")
		b.exec(t, insertEvent, "second")
		done := b.pass(t)
		require.Zero(t, done.published)
		require.Equal(t, 25*time.Millisecond, done.wait, "a missing number holds up those behind it for a moment")
		require.Equal(t, []any{"ojs", 10 * time.Millisecond, time.Minute}, []any{b.relay.config.Events.ServiceName, b.relay.config.Rest, b.relay.config.PollInterval})
	})

	t.Run("PassesOverLongTransaction", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		first := b.open(t, "first", "third")
		b.exec(t, insertEvent, "second")
		done := b.pass(t)
		require.Equal(t, 1, done.published)
		require.Equal(t, 2, done.passed)
		require.True(t, done.gaps)
		require.NoError(t, first.Commit(t.Context()))
		// Visible, but not published before the relay has moved it.
		require.Equal(t, []string{"second"}, queues(b.readAll(t)))
		b.exec(t, insertEvent, "fourth")
		done = b.pass(t)
		require.Equal(t, 2, done.late)
		require.True(t, done.more)
		require.Equal(t, []string{"second", "first", "third"}, queues(b.readAll(t)))
		b.publishAll(t)
		require.Equal(t, []string{"second", "first", "third", "fourth"}, queues(b.readAll(t)))
		b.passUntil(t, noGaps)
	})

	t.Run("SkipsRollbackWithoutDelay", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: time.Hour})
		rolledBack := b.open(t, "rolledBack")
		b.exec(t, insertEvent, "kept")
		require.Zero(t, b.pass(t).published)
		require.NoError(t, rolledBack.Rollback(t.Context()))
		b.passUntil(t, func(p pass) bool { return p.published == 1 && p.passed == 0 && !p.gaps })
	})

	t.Run("ForgetsGapOfRollback", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		other := b.open(t) // keeps xmin down without having written an event
		_, err := other.Exec(t.Context(), "SELECT pg_current_xact_id()")
		require.NoError(t, err)
		rolledBack := b.open(t, "rolledBack")
		b.exec(t, insertEvent, "kept")
		require.Equal(t, 1, b.pass(t).passed)
		require.NoError(t, rolledBack.Rollback(t.Context()))
		require.True(t, b.pass(t).gaps)
		require.NoError(t, other.Rollback(t.Context()))
		b.passUntil(t, noGaps)
		require.Equal(t, []string{"kept"}, queues(b.readAll(t)))
	})

	t.Run("LeavesOtherRelayAlone", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "a")
		holder := b.open(t)
		_, err := holder.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'))")
		require.NoError(t, err)
		require.False(t, b.pass(t).locked)
		require.NoError(t, holder.Rollback(t.Context()))
		require.Equal(t, 1, b.pass(t).published)
	})

	t.Run("LeavesLogToRetention", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "a")
		holder := b.open(t)
		_, err := holder.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
		require.NoError(t, err)
		require.False(t, b.pass(t).locked)
		require.NoError(t, holder.Rollback(t.Context()))
		require.Equal(t, 1, b.pass(t).published)
	})

	// The number of a rollback was passed over, and its row in event_gaps is deleted while retention works.
	t.Run("LeavesGapsToRetention", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		rolledBack := b.open(t, "rolledBack")
		b.exec(t, insertEvent, "kept")
		require.Equal(t, 1, b.pass(t).passed)
		require.NoError(t, rolledBack.Rollback(t.Context()))
		holder := b.open(t)
		_, err := holder.Exec(t.Context(), "SELECT FROM ojs.event_relay FOR UPDATE")
		require.NoError(t, err)
		var done pass
		b.passUntil(t, func(p pass) bool { done = p; return !p.locked || !p.gaps })
		require.False(t, done.locked)
		require.EqualValues(t, 1, b.count(t, "SELECT count(*) FROM ojs.event_gaps"))
		require.NoError(t, holder.Rollback(t.Context()))
		b.passUntil(t, noGaps)
	})

	t.Run("ReportsWhatItCannotPublish", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "a")
		b.exec(t, "ALTER TABLE ojs.queue_counts ADD CONSTRAINT not_a CHECK (queue <> 'a')")
		_, err := b.relay.runOnce(t.Context())
		require.ErrorContains(t, err, "not_a")
		require.Empty(t, b.readAll(t))
		b.exec(t, "ALTER TABLE ojs.queue_counts DROP CONSTRAINT not_a")
		require.Equal(t, 1, b.pass(t).published)
	})

	// The owner of the lower number may have the higher xid, beyond the xmax of the snapshot that shows the higher number.
	t.Run("WaitsForYoungerOwner", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: time.Hour})
		higher := b.open(t)
		_, err := higher.Exec(t.Context(), "SELECT pg_current_xact_id()")
		require.NoError(t, err)
		lower := b.open(t, "lower")
		_, err = higher.Exec(t.Context(), insertEvent, "higher")
		require.NoError(t, err)
		require.NoError(t, higher.Commit(t.Context()))
		for range 3 {
			require.Zero(t, b.pass(t).published)
		}
		require.NoError(t, lower.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"lower", "higher"}, queues(b.readAll(t)))
	})

	t.Run("WaitsForYoungerOwnerWhilePublishing", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: time.Hour})
		b.exec(t, insertEvent, "first")
		higher := b.open(t)
		_, err := higher.Exec(t.Context(), "SELECT pg_current_xact_id()")
		require.NoError(t, err)
		lower := b.open(t, "lower")
		_, err = higher.Exec(t.Context(), insertEvent, "higher")
		require.NoError(t, err)
		require.NoError(t, higher.Commit(t.Context()))
		for _, published := range []int{1, 0, 0} {
			require.Equal(t, published, b.pass(t).published)
		}
		require.NoError(t, lower.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"first", "lower", "higher"}, queues(b.readAll(t)))
	})

	t.Run("KeepsGapOfYoungerOwner", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{GapDelay: -1})
		higher := b.open(t)
		_, err := higher.Exec(t.Context(), "SELECT pg_current_xact_id()")
		require.NoError(t, err)
		lower := b.open(t, "lower")
		_, err = higher.Exec(t.Context(), insertEvent, "higher")
		require.NoError(t, err)
		require.NoError(t, higher.Commit(t.Context()))
		for range 3 {
			require.True(t, b.pass(t).gaps)
		}
		require.NoError(t, lower.Commit(t.Context()))
		b.publishAll(t)
		require.Equal(t, []string{"higher", "lower"}, queues(b.readAll(t)))
	})
}
