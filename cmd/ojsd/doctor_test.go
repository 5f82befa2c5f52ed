package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/migrations"
)

// sessions stands in for pg_stat_activity, where a test cannot have a session that is two minutes old, or start an autovacuum.
const sessions = `
	CREATE SCHEMA fake;
	CREATE VIEW fake.pg_stat_activity AS
	SELECT s.pid, s.application_name, s.state, clock_timestamp() - s.age AS xact_start, s.backend_xmin::text::xid AS backend_xmin,
		s.backend_xid::text::xid AS backend_xid, s.backend_type, s.query, COALESCE(s.datname, current_database()::text) AS datname, NULL::oid AS usesysid
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
		findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
			findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
			findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
			findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
			findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
		findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
			findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
			require.NoError(t, err)
			require.True(t, slices.ContainsFunc(findings, func(f finding) bool { return f.OK && strings.HasPrefix(f.Text, "events reach back "+hours) }), "%d: %v", floor, findings)
		}
		for watermark, waiting := range map[int]string{0: "3 events wait to be published, the oldest for 30h", 1: "1 events wait to be published, the oldest for 10h", 2: "0 events wait to be published, the oldest for 0s"} {
			_, err = conn.Exec(t.Context(), `UPDATE ojs.event_relay SET watermark = $1`, watermark)
			require.NoError(t, err)
			findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
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
		findings, err := examine(t.Context(), conn.Conn(), config.Default().Database)
		require.NoError(t, err)
		for _, f := range findings {
			require.True(t, f.OK, f.Text)
		}
	})
}

// fakedDatabase is a connection to a new database, in which views of schema fake stand in for those of PostgreSQL.
func fakedDatabase(t *testing.T, views ...string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dbtest.URL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), "CREATE SCHEMA fake; "+strings.Join(views, "; ")+"; SET search_path = fake, pg_catalog")
	require.NoError(t, err)
	return conn
}

// Certificates are judged by their files: those that end soon should be replaced.
func TestDoctorSeesCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	issue := func(name string, left time.Duration) config.TLS {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left)}
		cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		require.NoError(t, err)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		files := config.TLS{Cert: filepath.Join(dir, name), Key: filepath.Join(dir, name+".key")}
		require.NoError(t, os.WriteFile(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
		require.NoError(t, os.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
		return files
	}
	c := config.Default()
	require.Empty(t, certificates(c))
	for name, test := range map[string]struct {
		left time.Duration
		ok   bool
		says string
	}{
		"fresh": {15 * 24 * time.Hour, true, "ends on 20"},
		"soon":  {13 * 24 * time.Hour, false, "in less than 14 days"},
		"ended": {-time.Minute, false, "has ended on 20"},
	} {
		files := issue(name, test.left)
		c.Server.TLSCert, c.Server.TLSKey = files.Cert, files.Key
		found := certificates(c)
		require.Len(t, found, 1, "both interfaces have the same")
		require.Equal(t, test.ok, found[0].OK, name)
		require.Contains(t, found[0].Text, test.says)
	}
	c.GRPC.TLSCert, c.GRPC.TLSKey = c.Server.TLSCert, filepath.Join(dir, "none")
	found := certificates(c)
	require.Len(t, found, 2)
	require.Contains(t, found[1].Text, "load TLS certificate")
}

// about returns the findings that contain the words, with their marks.
func about(t *testing.T, conn *pgx.Conn, c config.Database, words string) (found []string) {
	t.Helper()
	findings, err := examine(t.Context(), conn, c)
	require.NoError(t, err)
	for _, f := range findings {
		if strings.Contains(f.Text, words) {
			require.False(t, f.OK && f.Blind)
			mark := map[bool]string{true: "ok ", false: "BAD "}[f.OK]
			if f.Blind {
				mark = "? "
			}
			found = append(found, mark+f.Text)
		}
	}
	return found
}

func TestExamineNamesWhoKeepsTheRelayFromPublishing(t *testing.T) {
	t.Parallel()
	conn := fakedDatabase(t, `CREATE TABLE fake.pg_stat_activity (pid integer, application_name text, state text, xact_start timestamptz, backend_xmin xid, backend_xid xid,
			backend_type text, query text, datname text, usesysid oid)`,
		`CREATE TABLE fake.pg_locks (pid integer, granted boolean, database oid, locktype text, objsubid smallint, classid oid, objid oid, relation oid, mode text)`)
	_, err := conn.Exec(t.Context(), `INSERT INTO fake.pg_stat_activity (pid, application_name, state, xact_start)
			SELECT pid, 'app', 'active', clock_timestamp() - CASE pid WHEN 10 THEN 1 ELSE 10 + pid END * interval '1 second' FROM generate_series(1, 10) pid;
		INSERT INTO fake.pg_locks SELECT l.pid, l.granted, CASE WHEN l.here THEN d.oid ELSE 1 END, CASE WHEN l.on_table IS NULL THEN 'advisory' ELSE 'relation' END, l.keys,
			(hashtext(l.first)::bigint & 4294967295)::oid, (hashtext(l.second)::bigint & 4294967295)::oid, l.on_table::regclass::oid, l.mode
		FROM pg_database d, (VALUES
			(1, true, true, 2, 'ojs', 'event_relay', NULL, 'ExclusiveLock'), (2, true, true, NULL, NULL, NULL, 'ojs.event_relay', 'RowShareLock'),
			(3, true, true, NULL, NULL, NULL, 'ojs.event_relay', 'AccessShareLock'), (4, true, true, NULL, NULL, NULL, 'ojs.jobs', 'ExclusiveLock'),
			(5, true, true, 2, 'ojs', 'other', NULL, 'ExclusiveLock'), (6, true, true, 2, 'other', 'event_relay', NULL, 'ExclusiveLock'),
			(7, true, true, 1, 'ojs', 'event_relay', NULL, 'ExclusiveLock'), (8, false, true, NULL, NULL, NULL, 'ojs.event_relay', 'ExclusiveLock'),
			(9, true, false, 2, 'ojs', 'event_relay', NULL, 'ExclusiveLock'), (10, true, true, 2, 'ojs', 'event_relay', NULL, 'ExclusiveLock')
		) l (pid, granted, here, keys, first, second, on_table, mode) WHERE d.datname = current_database()`)
	require.NoError(t, err)
	found := about(t, conn, config.Default().Database, "keeps every relay from publishing")
	require.Len(t, found, 2)
	require.True(t, strings.HasPrefix(found[0], "BAD session 2 (app), active, "), found[0])
	require.True(t, strings.HasPrefix(found[1], "BAD session 1 (app), active, "), found[1])
	oldest, err := dbsqlc.New(conn).MetricsRelayHolder(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, oldest[0].Pid)
}

func TestExamineFindsDeadRows(t *testing.T) {
	t.Parallel()
	conn := fakedDatabase(t, `CREATE TABLE fake.stats (name text, live bigint, dead bigint, bytes bigint)`,
		`INSERT INTO fake.stats VALUES ('ojs.jobs', 50000, 100001, 4095), ('ojs.workers', 50001, 100001, 4096), ('ojs.limits', 1, 100000, 0), ('ojs.workflows', 7, 100001, 1023)`,
		`CREATE FUNCTION fake.pg_stat_get_live_tuples(oid) RETURNS bigint LANGUAGE sql AS 'SELECT live FROM fake.stats WHERE name = $1::regclass::text'`,
		`CREATE FUNCTION fake.pg_stat_get_dead_tuples(oid) RETURNS bigint LANGUAGE sql AS 'SELECT dead FROM fake.stats WHERE name = $1::regclass::text'`,
		`CREATE FUNCTION fake.pg_total_relation_size(oid) RETURNS bigint LANGUAGE sql AS 'SELECT bytes FROM fake.stats WHERE name = $1::regclass::text'`)
	found := about(t, conn, config.Default().Database, "table ")
	const hint = ": autovacuum does not keep up, or is held back by a session below"
	for _, want := range []string{
		"BAD table jobs: 50000 rows, 100001 dead, 3 KiB" + hint, "ok table workers: 50001 rows, 100001 dead, 4 KiB", "ok table limits: 1 rows, 100000 dead, 0 KiB",
		"BAD table workflows: 7 rows, 100001 dead, 0 KiB" + hint, "ok table event_relay: 0 rows, 0 dead, 0 KiB",
	} {
		require.Contains(t, found, want)
	}
}

func TestExamineFindsForgottenSlots(t *testing.T) {
	t.Parallel()
	c := config.Default().Database
	none := fakedDatabase(t, `CREATE VIEW fake.pg_replication_slots AS SELECT * FROM pg_catalog.pg_replication_slots WHERE false`)
	require.Equal(t, []string{"ok no replication slot keeps WAL"}, about(t, none, c, "slot"))

	conn := fakedDatabase(t, `CREATE TABLE fake.slots (slot_name name, slot_type text, active boolean, restart_lsn pg_lsn, wal_status text, safe_wal_size bigint)`,
		`CREATE VIEW fake.pg_replication_slots AS SELECT *, NULL::integer AS active_pid, NULL::xid AS xmin, NULL::xid AS catalog_xmin FROM fake.slots`)
	_, err := conn.Exec(t.Context(), `INSERT INTO fake.slots (slot_name, slot_type, active, restart_lsn, wal_status, safe_wal_size) VALUES
		('forgotten', 'physical', false, '8/0'::pg_lsn - 5::bigint * 1024^3::numeric, 'extended', NULL),
		('slow', 'logical', true, '8/0'::pg_lsn - 4::bigint * 1024^3::numeric, 'extended', 7 * 1024 * 1024),
		('end''s', 'physical', false, '8/0'::pg_lsn - 10 * 1024^2::numeric, 'unreserved', 0),
		('restarts', 'physical', false, '8/0', 'reserved', NULL),
		('lost', 'physical', false, NULL, 'lost', NULL), ('unused', 'physical', false, NULL, NULL, NULL)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE FUNCTION fake.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE sql AS $$ SELECT '8/0'::pg_lsn $$`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE FUNCTION fake.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT CASE $1 WHEN 'max_wal_size' THEN '1GB' ELSE pg_catalog.current_setting($1) END $$;
		SET search_path = fake, pg_catalog`)
	require.NoError(t, err)
	const disk, drop = "it is kept until the disk is full", "start its reader, or SELECT pg_drop_replication_slot("
	require.ElementsMatch(t, []string{
		"BAD replication slot forgotten (physical, not in use) keeps 5120 MiB of WAL, limit 1024 MiB (max_wal_size); " + disk + ": " + drop + "'forgotten')",
		"BAD replication slot slow (logical, in use) keeps 4096 MiB of WAL, limit 1024 MiB (max_wal_size); PostgreSQL gives the slot up after 7 MiB more: look at the reader of the slot",
		"BAD replication slot end's (physical, not in use) keeps 10 MiB of WAL, limit 1024 MiB (max_wal_size); PostgreSQL gives the slot up after 0 MiB more: " + drop + "'end''s')",
		"ok replication slot restarts (physical, not in use) keeps 0 MiB of WAL, limit 1024 MiB (max_wal_size)",
		"BAD replication slot lost (physical, not in use) has lost WAL that its reader needs: make the standby or subscriber anew, and SELECT pg_drop_replication_slot('lost')",
	}, about(t, conn, c, "slot"))
}

func TestExamineFindsConnectionsThatRunOut(t *testing.T) {
	t.Parallel()
	c := config.Default().Database
	c.MaxConns = 10
	conn := fakedDatabase(t, `CREATE TABLE fake.pg_stat_activity (pid integer, application_name text, state text, xact_start timestamptz, backend_xmin xid, backend_xid xid,
			backend_type text, query text, datname text, usesysid oid)`,
		`CREATE FUNCTION fake.current_setting(text, boolean DEFAULT false) RETURNS text LANGUAGE sql AS $$
			SELECT CASE $1 WHEN 'max_connections' THEN '50' WHEN 'superuser_reserved_connections' THEN '3' WHEN 'reserved_connections' THEN '2' ELSE pg_catalog.current_setting($1, $2) END $$`)
	// Two nodes with 7 sessions; a session of which the role sees only that it is there; what does not count.
	_, err := conn.Exec(t.Context(), `INSERT INTO fake.pg_stat_activity (application_name, backend_type, datname, usesysid)
		SELECT s.name, s.kind, CASE WHEN s.db = '' THEN current_database()::text ELSE s.db END, CASE WHEN s.mine THEN current_user::regrole::oid ELSE 1 END
		FROM (VALUES ('ojsd listen', 'client backend', '', true, 2), ('ojsd', 'client backend', '', true, 5), ('app', 'client backend', 'other', false, 18), (NULL, NULL, '', false, 1),
			('replica', 'walsender', NULL, false, 9)) s (name, kind, db, mine, n), generate_series(1, s.n);
		INSERT INTO fake.pg_stat_activity (backend_type, datname) VALUES ('autovacuum worker', current_database()), (NULL, NULL)`)
	require.NoError(t, err)
	const may = "and 2 nodes with OJS_DATABASE_MAX_CONNS=10 may open 17 more"
	require.Equal(t, []string{"ok 26 of 45 connections of the server are in use, " + may}, about(t, conn, c, "connections of"))

	_, err = conn.Exec(t.Context(), `INSERT INTO fake.pg_stat_activity (application_name, backend_type, datname, usesysid) SELECT 'app', 'client backend', 'other', 1 FROM generate_series(1, 3)`)
	require.NoError(t, err)
	const less = ": lower OJS_DATABASE_MAX_CONNS, end other sessions (pg_stat_activity), or raise "
	require.Equal(t, []string{"BAD 29 of 45 connections of the server are in use, " + may + less + "max_connections"}, about(t, conn, c, "connections of"))

	_, err = conn.Exec(t.Context(), `DELETE FROM fake.pg_stat_activity WHERE application_name = 'app';
		CREATE TABLE fake.pg_roles AS SELECT current_user AS rolname, current_user::regrole::oid AS oid, 23 AS rolconnlimit;
		CREATE TABLE fake.pg_database AS SELECT datname, oid, datfrozenxid, datminmxid, 25 AS datconnlimit FROM pg_catalog.pg_database; SET search_path = fake, pg_catalog`)
	require.NoError(t, err)
	require.Equal(t, []string{
		"ok 8 of 45 connections of the server are in use, " + may,
		"ok 8 of 25 connections of the database are in use, " + may,
		"BAD 7 of 23 connections of the role are in use, " + may + less + "it with ALTER ROLE … CONNECTION LIMIT",
	}, about(t, conn, c, "connections of"))

	c.ListenURL = "past a pooler"
	require.Equal(t, "ok 8 of 45 connections of the server are in use, and 2 nodes with OJS_DATABASE_MAX_CONNS=10 may open 0 more", about(t, conn, c, "connections of")[0])
	_, err = conn.Exec(t.Context(), `DELETE FROM fake.pg_stat_activity`)
	require.NoError(t, err)
	c.ListenURL = ""
	require.Equal(t, "ok 0 of 45 connections of the server are in use, and 1 nodes with OJS_DATABASE_MAX_CONNS=10 may open 12 more", about(t, conn, c, "connections of")[0], "one will start")
}

func TestExamineFindsOldIDs(t *testing.T) {
	t.Parallel()
	conn := fakedDatabase(t, `CREATE TABLE fake.pg_database AS SELECT datname, oid, datconnlimit, datfrozenxid AS datfrozenxid, datminmxid FROM pg_catalog.pg_database`,
		`CREATE TABLE fake.ages (xids integer, multixacts integer)`, `INSERT INTO fake.ages VALUES (400000000, 800000000)`,
		`CREATE FUNCTION fake.age(xid) RETURNS integer LANGUAGE sql AS 'SELECT xids FROM fake.ages'`,
		`CREATE FUNCTION fake.mxid_age(xid) RETURNS integer LANGUAGE sql AS 'SELECT multixacts FROM fake.ages'`)
	const stops, freeze = "PostgreSQL stops writes at 2144000000", ": autovacuum does not freeze: end old transactions, drop unused slots, then VACUUM (FREEZE) the tables with the oldest relfrozenxid or relminmxid in pg_class"
	require.Equal(t, []string{
		"ok the oldest transaction id of the database is 400000000 ids old, limit 400000000; " + stops,
		"ok the oldest multixact id of the database is 800000000 ids old, limit 800000000; " + stops,
	}, about(t, conn, config.Default().Database, "ids old"))
	_, err := conn.Exec(t.Context(), `UPDATE fake.ages SET xids = xids + 1, multixacts = multixacts + 1`)
	require.NoError(t, err)
	require.Equal(t, []string{
		"BAD the oldest transaction id of the database is 400000001 ids old, limit 400000000; " + stops + freeze,
		"BAD the oldest multixact id of the database is 800000001 ids old, limit 800000000; " + stops + freeze,
	}, about(t, conn, config.Default().Database, "ids old"))
}

func TestExamineFindsRetentionThatIsBehind(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	conn := fakedDatabase(t)
	require.Equal(t, []string{
		"ok events are dropped in time: the oldest partition is 0s beyond its retention, limit 1h0m0s",
		"ok finished jobs are dropped in time: the oldest partition is 0s beyond its retention, limit 1h0m0s",
	}, about(t, conn, config.Default().Database, "oldest partition"))
	// The last event of the first partition is 30 h old. Of the next partition all 100 numbers are kept.
	_, err := conn.Exec(t.Context(), `CREATE TABLE ojs.jobs_done_p20200101 PARTITION OF ojs.jobs_done FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00');
		UPDATE ojs.retention SET keep = now() - '2020-01-02 00:00+00' - interval '90 minutes' WHERE parent = 'jobs_done';
		INSERT INTO ojs.events (seq, type, source, time) SELECT 499999 + g, 'x.y', 'api', now() - interval '31 hours' + g * interval '1 hour' FROM generate_series(0, 1) g;
		INSERT INTO ojs.events (seq, type, source, time) SELECT 500000 + g, 'x.y', 'api', now() - interval '20 hours' + g * interval '1 minute' FROM generate_series(1, 400) g;
		UPDATE ojs.event_relay SET watermark = 500400, floor_place = 500300::bigint << 16, max_age = interval '24 hours'`)
	require.NoError(t, err)
	seconds := func(data string) (s float64) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT seconds FROM ojs.retention_behind() WHERE data = $1`, data).Scan(&s))
		return s
	}
	require.InDelta(t, (90 * time.Minute).Seconds(), seconds("finished_jobs"), 60)
	require.InDelta(t, (7 * time.Hour).Seconds(), seconds("events"), 60, "by age")
	_, err = conn.Exec(t.Context(), `UPDATE ojs.event_relay SET max_age = NULL, max_count = 100`)
	require.NoError(t, err)
	require.InDelta(t, (20*time.Hour - 100*time.Minute).Seconds(), seconds("events"), 60, "since there were 100 newer ones")
	_, err = conn.Exec(t.Context(), `UPDATE ojs.event_relay SET max_age = '24 hours'`)
	require.NoError(t, err)
	require.InDelta(t, (20*time.Hour - 100*time.Minute).Seconds(), seconds("events"), 60, "whichever was first")
	late := about(t, conn, config.Default().Database, "kept too long")
	require.Len(t, late, 2)
	require.True(t, strings.HasPrefix(late[0], "BAD events are kept too long: partition ojs.events_p00000000000000 should have been dropped 18h2"), late[0])
	require.True(t, strings.HasPrefix(late[1], "BAD finished jobs are kept too long: partition ojs.jobs_done_p20200101 should have been dropped 1h30m"), late[1])
	_, err = conn.Exec(t.Context(), `UPDATE ojs.event_relay SET floor_place = 0; UPDATE ojs.retention SET keep = NULL`)
	require.NoError(t, err)
	require.Zero(t, seconds("events")+seconds("finished_jobs"))
}

// The role of the manual owns the schema and has no other right. It does not see the transactions of others, so it must not say that there are none.
func TestExamineSaysWhatItCannotSee(t *testing.T) {
	t.Parallel()
	admin, err := pgx.Connect(t.Context(), dbtest.EmptyURL(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	role := "ojsd_doctor_" + strings.ToLower(rand.Text()[:8])
	_, err = admin.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'x'; DO $$ BEGIN EXECUTE 'GRANT CREATE ON DATABASE ' || current_database() || ' TO "+role+"'; END $$")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
		require.NoError(t, err)
	})
	address, err := url.Parse(admin.Config().ConnString())
	require.NoError(t, err)
	address.User = url.UserPassword(role, "x")
	_, err = migrations.Up(t.Context(), address.String(), nil)
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), address.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })

	found := func() []string { return about(t, conn, config.Default().Database, "dead rows from being cleaned") }
	require.Equal(t, []string{"? cannot see whether transactions of other roles, which have 1 sessions in this database, keep dead rows from being cleaned " +
		`or events from being published: GRANT pg_read_all_stats TO "` + role + `"`}, found())
	_, err = admin.Exec(t.Context(), "GRANT pg_read_all_stats TO "+role)
	require.NoError(t, err)
	require.Equal(t, []string{"ok no transaction older than a minute keeps dead rows from being cleaned"}, found())
	_, err = admin.Exec(t.Context(), "REVOKE pg_read_all_stats FROM "+role)
	require.NoError(t, err)

	// The rest is seen without it.
	findings, err := examine(t.Context(), conn, config.Default().Database)
	require.NoError(t, err)
	for _, f := range findings {
		require.True(t, f.OK || f.Blind, f.Text)
	}
	for _, words := range []string{"connections of the server", "ids old", "WAL", "in time"} {
		require.NotEmpty(t, about(t, conn, config.Default().Database, words), words)
	}
}
