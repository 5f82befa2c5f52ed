package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
)

// sessions stands in for pg_stat_activity, where a test cannot have a session that is two minutes old, or start an autovacuum.
const sessions = `
	CREATE SCHEMA fake;
	CREATE VIEW fake.pg_stat_activity AS
	SELECT s.pid, s.application_name, s.state, clock_timestamp() - s.age AS xact_start, s.backend_xmin::text::xid AS backend_xmin,
		s.backend_xid::text::xid AS backend_xid, s.backend_type, s.query, COALESCE(s.datname, current_database()::text) AS datname
	FROM (VALUES
		(1, 'reads', 'active', interval '2 minutes', 700, NULL::integer, 'client backend', 'SELECT 1', NULL::text),
		(2, 'writes', 'idle in transaction', interval '3 minutes', NULL, 701, 'client backend', 'INSERT', NULL),
		(3, 'young', 'active', interval '59 seconds', 702, 702, 'client backend', 'SELECT 1', NULL),
		(4, 'idle', 'idle in transaction', interval '2 minutes', NULL, NULL, 'client backend', 'BEGIN', NULL),
		(5, 'elsewhere', 'active', interval '2 minutes', 700, 700, 'client backend', 'SELECT 1', 'another_database'),
		(6, '', 'active', interval '2 minutes', 700, NULL, 'autovacuum worker', 'autovacuum: VACUUM ojs.jobs', NULL),
		(7, '', 'active', interval '2 minutes', 700, NULL, 'autovacuum worker', 'autovacuum: ANALYZE ojs.jobs', NULL),
		(8, 'replica', 'active', NULL, 699, NULL, 'walsender', 'START_REPLICATION', '')
	) s (pid, application_name, state, age, backend_xmin, backend_xid, backend_type, query, datname)`

func TestExamine(t *testing.T) {
	t.Parallel()

	t.Run("NamesWhoKeepsDeadRows", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		_, err = conn.Exec(t.Context(), sessions)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), `SET search_path = fake, pg_catalog`)
		require.NoError(t, err)
		findings, err := examine(t.Context(), conn.Conn())
		require.NoError(t, err)
		var holders []string
		for _, f := range findings {
			if holder, _, found := strings.Cut(f.Text, " keeps dead rows"); found && !f.OK {
				holders = append(holders, holder)
			}
		}
		require.Equal(t, []string{"session 2 (writes), idle in transaction", "session 1 (reads), active", "session 7, active"}, holders)

		var kind, name string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT kind, name FROM ojs.xmin_holder()`).Scan(&kind, &name))
		require.Equal(t, []string{"standby", "replica"}, []string{kind, name}, "for metrics the oldest")
	})

	t.Run("NamesWhoKeepsTheRelayFromPublishing", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		for _, lock := range []string{
			`SELECT pg_try_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'))`, `LOCK TABLE ojs.event_relay IN SHARE MODE`,
		} {
			holder, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = holder.Exec(t.Context(), lock)
			require.NoError(t, err)
			_, err = holder.Exec(t.Context(), "SELECT pg_sleep(5.1)")
			require.NoError(t, err)
			conn, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			findings, err := examine(t.Context(), conn.Conn())
			require.NoError(t, err)
			conn.Release()
			pid := strconv.Itoa(int(holder.Conn().PgConn().PID()))
			require.True(t, slices.ContainsFunc(findings, func(f finding) bool {
				return !f.OK && strings.Contains(f.Text, "session "+pid+" ") && strings.Contains(f.Text, "keeps every relay from publishing")
			}), "%s: %v", lock, findings)
			require.NoError(t, holder.Rollback(t.Context()))
		}
	})

	t.Run("ReportsEachStatementThatFails", func(t *testing.T) {
		t.Parallel()
		statements := &domaintest.Failing{}
		pool := domaintest.Traced(t, dbtest.New(t), statements)
		for i := 0; ; i++ {
			conn, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			statements.FailAt(i)
			findings, err := examine(t.Context(), conn.Conn())
			failed := statements.Heal()
			conn.Release()
			if failed == "" {
				require.NoError(t, err)
				require.Greater(t, i, 5)
				return
			}
			require.Error(t, err, failed)
			require.Empty(t, findings, failed)
		}
	})

	t.Run("TellsMaintenanceFromOverdueJobs", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		// An ended reservation and a deadline are overdue in any case.
		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.jobs (id, type, queue, state, priority, attempt, max_attempts, created_at, args, due_at, scheduled_at, expires_at, lease_until)
			SELECT ojs.new_id(now()), 't', 'q', s.state, 0, 1, 3, now(), '[]', now() - interval '1 minute', now() - interval '1 minute', s.expires_at, now() - interval '1 minute'
			FROM (VALUES ('scheduled', NULL::timestamptz), ('scheduled', now() + interval '1 day'), ('retryable', NULL), ('scheduled', now() - interval '1 minute'), ('active', NULL)) s (state, expires_at)`)
		require.NoError(t, err)
		texts := func(words string) (found []string) {
			findings, err := examine(t.Context(), conn.Conn())
			require.NoError(t, err)
			for _, f := range findings {
				if strings.Contains(f.Text, words) {
					found = append(found, strconv.FormatBool(f.OK)+" "+f.Text)
				}
			}
			return found
		}
		overdue := "false 5 jobs are overdue for more than 10 s: no server is running, or its sweeps fail: see its log"
		require.Equal(t, []string{overdue}, texts("overdue"))
		require.Empty(t, texts("maintenance"))

		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.maintenance (started_at, ends_at, reason, started_by) VALUES ('2026-01-01T00:00:00Z', '2999-01-01T00:00:00Z', '', 'me')`)
		require.NoError(t, err)
		require.Equal(t, []string{"true maintenance is on since 2026-01-01T00:00:00.000Z, until 2999-01-01T00:00:00.000Z: no job is fetched, and 3 scheduled or retryable jobs that are due wait for its end"}, texts("maintenance"))
		require.Equal(t, []string{strings.Replace(overdue, "5", "2", 1)}, texts("overdue"))
		_, err = conn.Exec(t.Context(), `DELETE FROM ojs.jobs WHERE state = 'active' OR expires_at < now()`)
		require.NoError(t, err)
		require.Equal(t, []string{"true 0 jobs are overdue for more than 10 s"}, texts("overdue"))

		_, err = conn.Exec(t.Context(), `UPDATE ojs.maintenance SET ends_at = now()`)
		require.NoError(t, err)
		require.Empty(t, texts("maintenance"), "it is over")
		require.Equal(t, []string{strings.Replace(overdue, "5", "3", 1)}, texts("overdue"))
	})

	t.Run("SaysWhatToDoAboutOneRow", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		pool := dbtest.New(t)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for insert, want := range map[string]string{
			`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args, due_at) VALUES (ojs.new_id(now()), 't', 'q', 'scheduled', now(), '[]', now() - interval '11 seconds')`: "1 jobs are overdue for more than 10 s: no server is running, or its sweeps fail: see its log",
			`INSERT INTO ojs.workflow_pending (root_id, job_id, state, at) VALUES (ojs.new_id(now()), ojs.new_id(now()), 'completed', now() - interval '11 seconds')`:               "1 changes of jobs wait for their workflow to follow for more than 10 s: no server is running, or its workflows fail: see its log",
			`INSERT INTO ojs.limit_pending (key, due_at, timer) VALUES ('k', now() - interval '11 seconds', false)`:                                                                 "1 changes may let jobs start that wait for a rate limit, and were not looked at for more than 10 s: no server is running, or its limits fail: see its log",
		} {
			_, err := conn.Exec(t.Context(), insert)
			require.NoError(t, err)
			findings, err := examine(t.Context(), conn.Conn())
			require.NoError(t, err)
			require.Contains(t, findings, finding{OK: false, Text: want})
		}
	})

	t.Run("NamesTheCountsThatDiffer", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		pool := dbtest.New(t)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		// Counted are the kept counts and, of what the relay has not published, the changes: 5 - 1 of q. Both tables are looked at.
		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('q', 'available', 5), ('q', 'active', 1), ('other', 'available', 2)`)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, from_state, to_state)
			VALUES ('job.started', 'api', now(), ojs.new_id(now()), 't', 'q', 'available', 'active')`)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.jobs (id, type, queue, state, created_at, args) SELECT ojs.new_id(now()), 't', q.name, 'available', now(), '[]'
			FROM (VALUES ('q'), ('q'), ('other'), ('other'), ('third')) q (name)`)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args) VALUES (ojs.new_id(now()), 't', 'q', 'completed', now(), now(), '[]')`)
		require.NoError(t, err)
		findings, err := examine(t.Context(), conn.Conn())
		require.NoError(t, err)
		var wrong []string
		for _, f := range findings {
			if !f.OK && strings.HasPrefix(f.Text, "queue ") {
				wrong = append(wrong, f.Text)
			}
		}
		require.Equal(t, []string{
			`queue "q": counts say 2 active jobs, the tables hold 0`,
			`queue "q": counts say 4 available jobs, the tables hold 2`,
			`queue "q": counts say 0 completed jobs, the tables hold 1`,
			`queue "third": counts say 0 available jobs, the tables hold 1`,
		}, wrong)
	})

	t.Run("TellsTheAgeOfTheOldestKeptEvent", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		// The first is outside of the limits; the second came late and has the same number.
		_, err = conn.Exec(t.Context(), `INSERT INTO ojs.events (seq, sub, type, source, time) VALUES
			(1, 0, 'x.y', 'api', now() - interval '30 hours'), (1, 1, 'x.y', 'api', now() - interval '20 hours'), (2, 0, 'x.y', 'api', now() - interval '10 hours')`)
		require.NoError(t, err)
		for floor, hours := range map[int64]string{0: "30h", 1 << 16: "20h", 1<<16 + 1: "10h", 2 << 16: "0s"} {
			_, err = conn.Exec(t.Context(), `UPDATE ojs.event_relay SET watermark = 2, floor_place = $1`, floor)
			require.NoError(t, err)
			findings, err := examine(t.Context(), conn.Conn())
			require.NoError(t, err)
			require.True(t, slices.ContainsFunc(findings, func(f finding) bool { return f.OK && strings.HasPrefix(f.Text, "events reach back "+hours) }), "%d: %v", floor, findings)
		}
		for watermark, waiting := range map[int]string{0: "3 events wait to be published, the oldest for 30h", 1: "1 events wait to be published, the oldest for 10h", 2: "0 events wait to be published, the oldest for 0s"} {
			_, err = conn.Exec(t.Context(), `UPDATE ojs.event_relay SET watermark = $1`, watermark)
			require.NoError(t, err)
			findings, err := examine(t.Context(), conn.Conn())
			require.NoError(t, err)
			require.True(t, slices.ContainsFunc(findings, func(f finding) bool { return f.OK == (watermark == 2) && strings.HasPrefix(f.Text, waiting) }), "%d: %v", watermark, findings)
		}
	})

	t.Run("FindsNothingInANewDatabase", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		findings, err := examine(t.Context(), conn.Conn())
		require.NoError(t, err)
		for _, f := range findings {
			require.True(t, f.OK, f.Text)
		}
	})
}
