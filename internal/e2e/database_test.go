package e2e_test

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// session is a connection to the node's database for the statements of its test, which opens it when it is first needed: a connection
// costs PostgreSQL milliseconds, and tests look at the database hundreds of times. Parallel subtests share it.
type session struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

// use calls do with the connection. It opens another one if the test, or the database, has ended it.
func (s *session) use(a *node, do func(conn *pgx.Conn)) {
	a.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || s.conn.Ping(a.t.Context()) != nil {
		s.conn = a.connectPatient()
	}
	do(s.conn)
}

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close(context.Background())
	}
}

// exec runs SQL on the node's database.
func (a *node) exec(sql string, args ...any) {
	a.t.Helper()
	a.session.use(a, func(conn *pgx.Conn) {
		_, err := conn.Exec(a.t.Context(), sql, args...)
		require.NoError(a.t, err)
	})
}

// inReadCommitted is exec in a transaction of that isolation, whatever the default of the database is. It is one round trip, because the
// database may end transactions that wait for their client.
func (a *node) inReadCommitted(sql string, args ...any) {
	a.t.Helper()
	a.session.use(a, func(conn *pgx.Conn) {
		var b pgx.Batch
		b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
		b.Queue(sql, args...)
		b.Queue("COMMIT")
		require.NoError(a.t, conn.SendBatch(a.t.Context(), &b).Close())
	})
}

// connect opens a connection to the node's database.
func (a *node) connect() *pgx.Conn {
	a.t.Helper()
	conn, err := pgx.Connect(a.t.Context(), a.database)
	require.NoError(a.t, err)
	return conn
}

// connectPatient is connect without the timeouts of the database, which a loaded machine may exceed.
func (a *node) connectPatient() *pgx.Conn {
	a.t.Helper()
	conn := a.connect()
	_, err := conn.Exec(a.t.Context(), "SET statement_timeout = 0; SET lock_timeout = 0")
	require.NoError(a.t, err)
	return conn
}

// one is the only value of the only row of a query.
func (a *node) one(sql string, args ...any) string {
	a.t.Helper()
	values := a.query(sql, args...)
	require.Len(a.t, values, 1)
	return values[0]
}

// query is the only column of each row.
func (a *node) query(sql string, args ...any) (values []string) {
	a.t.Helper()
	a.session.use(a, func(conn *pgx.Conn) {
		rows, err := conn.Query(a.t.Context(), sql, args...)
		require.NoError(a.t, err)
		values, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(a.t, err)
	})
	return values
}

// lockJobs locks the table of jobs until released.
func (a *node) lockJobs() (release func()) {
	a.t.Helper()
	conn := a.connect()
	release = func() { _ = conn.Close(context.Background()) }
	a.t.Cleanup(release)
	_, err := conn.Exec(a.t.Context(), "BEGIN; LOCK TABLE ojs.jobs IN ACCESS EXCLUSIVE MODE")
	require.NoError(a.t, err)
	return release
}

// waitForEnqueue returns when the insert of an enqueue waits for the table of jobs. Other statements do not count, because those
// of the node's timers wait, too, and may do so before the request has arrived.
func (a *node) waitForEnqueue() {
	a.t.Helper()
	eventually(a.t, a.enqueueWaits)
}

func (a *node) enqueueWaits() bool {
	a.t.Helper()
	return a.one(`SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '-- name: JobInsert%')::text`) == "true"
}

// leaseEnds lets the lease of an active job end now.
func (a *node) leaseEnds(id string) {
	a.t.Helper()
	a.exec(`UPDATE ojs.jobs SET lease_until = now(), due_at = now() WHERE id = $1`, id)
	a.wake()
}

// leaseSeconds is how long the latest heartbeat of a job has extended its lease, by the clock of the database.
func (a *node) leaseSeconds(id string) string {
	a.t.Helper()
	return a.one(`SELECT round(extract(epoch FROM j.lease_until - e.time), 3)::float8::text
		FROM ojs.jobs j JOIN ojs.events e ON e.job_id = j.id WHERE j.id = $1 AND e.type = 'job.heartbeat' ORDER BY e.seq DESC, e.sub DESC LIMIT 1`, id)
}

// wake has every node look for what is due, as a commit of ojs.enqueue does.
func (a *node) wake() {
	a.t.Helper()
	a.exec(`SELECT pg_notify('ojs_wake', '')`)
}
