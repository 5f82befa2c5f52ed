package queue_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func (b *bundle) begin(level pgx.TxIsoLevel) pgx.Tx {
	b.T.Helper()
	tx, err := b.Pool.BeginTx(b.T.Context(), pgx.TxOptions{IsoLevel: level})
	require.NoError(b.T, err)
	b.T.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func (b *bundle) sqlEnqueue(db querier, p push) [16]byte {
	b.T.Helper()
	id, err := p.sql(b.T.Context(), db)
	require.NoError(b.T, err)
	return id
}

func TestSQLEnqueueIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	const stored = "SELECT (SELECT count(*) FROM ojs.jobs) + (SELECT count(*) FROM ojs.events) + (SELECT count(*) FROM ojs.queues)"

	tx := b.begin(pgx.ReadCommitted)
	b.sqlEnqueue(tx, push{typ: "a", args: "[]", queue: "q"})
	require.Zero(t, b.Number(stored))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, b.Number(stored))

	tx = b.begin(pgx.ReadCommitted)
	id := b.sqlEnqueue(tx, push{typ: "a", args: "[]", queue: "q"})
	_, err := tx.Exec(t.Context(), "SAVEPOINT s")
	require.NoError(t, err)
	_, err = push{typ: "a", args: "[]", queue: "r", options: `{"notify":5}`}.sql(t.Context(), tx)
	require.ErrorContains(t, err, "'notify' must be of type boolean, got 5.")
	_, err = tx.Exec(t.Context(), "ROLLBACK TO s")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, 3, b.Number(stored), "what was refused left nothing")
	require.Equal(t, 1, b.Number("SELECT count(*) FROM ojs.events WHERE node IS NULL"), "no node owns the events, so every node wakes its fetches")

	jobs := b.Fetched(1, "q")
	require.Len(t, jobs, 1)
	require.Equal(t, id, jobs[0].ID)
}

func TestSQLEnqueueWakes(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	listener, err := pgx.ConnectConfig(t.Context(), b.Pool.Config().ConnConfig)
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close(context.Background())) }()
	_, err = listener.Exec(t.Context(), "LISTEN ojs_wake")
	require.NoError(t, err)
	woken := func() string { // the first notification since the last call; mark if there was none
		b.Exec("SELECT pg_notify('ojs_wake', 'mark')")
		n, err := listener.WaitForNotification(t.Context())
		require.NoError(t, err)
		first := n.Payload
		for n.Payload != "mark" {
			n, err = listener.WaitForNotification(t.Context())
			require.NoError(t, err)
		}
		return first
	}

	id := b.sqlEnqueue(b.Pool, push{typ: "a", args: "[]"})
	require.Empty(t, woken(), "ojs.enqueue wakes the nodes")
	b.sqlEnqueue(b.Pool, options(`"notify":true`))
	require.Empty(t, woken())
	quietID := b.sqlEnqueue(b.Pool, options(`"notify":false`))
	require.Equal(t, "mark", woken())
	require.Zero(t, b.Number("SELECT count(*) FROM ojs.jobs WHERE id = $1 AND extra IS NOT NULL", quietID), "notify is not echoed")
	b.Exec("SELECT ojs.cancel($1)", id)
	require.Empty(t, woken())
	b.Exec("SELECT ojs.cancel($1)", id)
	require.Equal(t, "mark", woken(), "nothing happened")
}

func TestSQLEnqueueRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	b.Exec("INSERT INTO ojs.queues (name, status, paused_at) VALUES ('drain', 'draining', NULL), ('pause', 'paused', now())")
	for message, p := range map[string]push{
		spec.QueuePaused("drain").Message: {typ: "a", args: "[]", queue: "drain"},
		"'rate_limit' must be left out, because it is not supported by ojs.enqueue: nothing would enforce it.": options(`"rate_limit":{"key":"k"}`),
		"'notify' must be of type boolean, got yes.":                                                           options(`"notify":"yes"`),
		"'args' must have at most 1048576 bytes together with options.":                                        {typ: "a", args: `["` + strings.Repeat("x", 1_048_576) + `"]`},
		"'meta' must have at most 65536 bytes.":                                                                options(`"meta":{"a":"` + strings.Repeat("é", 32_768) + `"}`),
		"'timeout_ms' must be an integer from 0 to 3153600000000, got -1.":                                     options(`"timeout_ms":-1`),
		"'x_region' must be left out, because ojs.enqueue does not know it. It knows":                          options(`"x_region":"eu"`),
		"'options' must hold no U+0000, no lone surrogate and no number beyond numeric":                        options(`"meta":{"a":"\u0000"}`),
		"'options' must be nested at most 32 levels in each option.":                                           options(`"meta":` + nested(33)),
		"'options' must be an object":                                                                          {typ: "a", args: "[]", options: "[]"},
		"'type' must be words of lower-case letters":                                                           {typ: "A", args: "[]"},
		"'args' must be an array, nested at most 32 levels":                                                    {typ: "a", args: "{}"},
		"'queue' must be lower-case letters":                                                                   {typ: "a", args: "[]", queue: "Q"},
		"'id' must be a UUIDv7 in lower case, got x.":                                                          options(`"id":"x"`),
		"'priority' must be of type number, got 5.":                                                            options(`"priority":"5"`),
		"'expires_at' must be an RFC 3339 time with offset":                                                    options(`"expires_at":"soon"`),
		"'scheduled_at' must be absent or past when pending is true, got PT5S.":                                options(`"pending":true,"scheduled_at":"PT5S"`),
		"'total_timeout' must be at least timeout_ms, got 1.":                                                  options(`"total_timeout":1,"timeout_ms":1001`),
		"'retry' must have no members but max_attempts, initial_interval":                                      options(`"retry":{"x":1}`),
		"'tags' must be an array of non-empty strings.":                                                        options(`"tags":[""]`),
		"'schema' must be an absolute URI such as urn:example:invoice:v1, got invoice.":                        options(`"schema":"invoice"`),
		"'unique_key' must come with unique, such as {\"on_conflict\":\"reject\"}":                             options(`"unique_key":"` + strings.Repeat("a", 64) + `"`),
	} {
		_, err := p.sql(t.Context(), b.Pool)
		require.Equal(t, "22023", sqlState(err), "%v", err)
		require.ErrorContains(t, err, "ERROR: "+message)
	}
	_, err := b.Pool.Exec(t.Context(), "SELECT ojs.cancel($1, $2)", job.NewID(), strings.Repeat("x", 1025))
	require.ErrorContains(t, err, "'reason' must have at most 1024 bytes. (SQLSTATE 22023)")
	require.Zero(t, b.Number("SELECT (SELECT count(*) FROM ojs.jobs) + (SELECT count(*) FROM ojs.events)"))
	b.sqlEnqueue(b.Pool, push{typ: "a", args: "[]", queue: "pause"})
}

// TestSQLEnqueueCreatesQueues: a transaction that stays open must not block others that use the same new queue.
func TestSQLEnqueueCreatesQueues(t *testing.T) {
	t.Parallel()
	const rows = "SELECT count(*) FROM ojs.queues WHERE name = 'new' AND status = 'active'"
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			b := setup(t, unchecked)
			tx, other := b.begin(level), b.begin(pgx.ReadCommitted)
			ctx, cancel := context.WithTimeout(t.Context(), domaintest.WaitFor)
			defer cancel()
			for _, db := range []pgx.Tx{tx, tx, tx, other} {
				_, err := push{typ: "a", args: "[]", queue: "new"}.sql(ctx, db)
				require.NoError(t, err)
			}
			_, err := b.Enqueue(ctx, domaintest.NewJob("new"))
			require.NoError(t, err)
			require.NoError(t, other.Commit(t.Context()))
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, 1, b.Number(rows))
			require.Zero(t, b.Number("SELECT count(*) FROM ojs.queue_notes"))
			require.Equal(t, 5, b.Number("SELECT count(*) FROM ojs.jobs"))
		})
	}
}

func TestSQLEnqueueMakesIDs(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	rows, err := b.Pool.Query(t.Context(), "SELECT ojs.enqueue('a', '[]')::text FROM generate_series(1, 1000)")
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	last := ""
	for _, text := range ids {
		_, ok := spec.ParseUUIDv7(text)
		require.True(t, ok, text)
		require.GreaterOrEqual(t, text[:18], last[:min(18, len(last))], "ids grow with the time")
		last = text
	}
	require.Equal(t, 1000, b.Number("SELECT count(*) FROM ojs.jobs"))
	born := b.Number("SELECT count(*) FROM ojs.jobs WHERE ('x' || replace(left(id::text, 13), '-', ''))::bit(48)::bigint = floor(date_part('epoch', created_at) * 1000)")
	require.Equal(t, 1000, born)
}

func TestSQLEnqueueClientIDs(t *testing.T) {
	t.Parallel()

	t.Run("RefusesTakenIDs", func(t *testing.T) {
		t.Parallel()
		b := setup(t, unchecked)
		live, done := domaintest.NewJob("q"), domaintest.NewJob("q")
		jobs := b.Enqueued(live, done)
		_, err := b.Cancel(t.Context(), jobs[1].ID, queue.Cancel{By: "x"})
		require.NoError(t, err)
		for _, j := range jobs {
			_, err := b.sqlWithID(b.Pool, j.ID)
			require.Equal(t, "23505", sqlState(err))
			require.ErrorContains(t, err, spec.DuplicateID(spec.FormatID(j.ID)).Message)
		}
		require.Equal(t, 1, b.Number("SELECT count(*) FROM ojs.jobs"))
		require.Equal(t, 3, b.Number("SELECT count(*) FROM ojs.events"))

		id := job.NewID()
		tx := b.begin(pgx.ReadCommitted)
		got, err := b.sqlWithID(tx, id)
		require.NoError(t, err)
		require.Equal(t, id, got)
		_, err = b.sqlWithID(tx, id)
		require.Equal(t, "23505", sqlState(err), "twice in one transaction")
	})

	t.Run("OneOfManySucceeds", func(t *testing.T) {
		t.Parallel()
		b := setup(t, unchecked)
		for range 20 {
			id := job.NewID()
			won := make(chan bool, 9)
			var g errgroup.Group
			for i := range cap(won) {
				g.Go(func() error {
					var err error
					if i%3 == 0 { // over HTTP
						j := domaintest.NewJob("q")
						j.ID, j.ClientID = id, true
						_, err = b.Enqueue(t.Context(), j)
					} else if _, err = b.sqlWithID(b.Pool, id); err != nil && sqlState(err) != "23505" {
						return err
					}
					won <- err == nil
					return nil
				})
			}
			require.NoError(t, g.Wait())
			close(won)
			winners := 0
			for w := range won {
				if w {
					winners++
				}
			}
			require.Equal(t, 1, winners)
			require.Equal(t, 1, b.Number("SELECT count(*) FROM ojs.jobs WHERE id = $1", id))
			require.Equal(t, 1, b.Number("SELECT count(*) FROM ojs.events WHERE job_id = $1", id))
		}
	})

	// The row is moved to jobs_done by a transaction that the insert waits for.
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		t.Run("SeesAJobThatIsBeingMoved/"+string(level), func(t *testing.T) {
			t.Parallel()
			b := setup(t, unchecked)
			id := b.Enqueued(domaintest.NewJob("q"))[0].ID
			mover, inserter := b.begin(pgx.ReadCommitted), b.begin(level)
			var pid int
			require.NoError(t, inserter.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid)) // takes the snapshot
			_, err := mover.Exec(t.Context(), "SELECT ojs.cancel($1)", id)
			require.NoError(t, err)
			refused := make(chan error, 1)
			go func() {
				_, err := b.sqlWithID(inserter, id)
				refused <- err
			}()
			require.Eventually(t, func() bool {
				return b.Number("SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'", pid) == 1
			}, domaintest.WaitFor, 5*time.Millisecond)
			require.NoError(t, mover.Commit(t.Context()))
			require.Equal(t, "23505", sqlState(<-refused))
		})
	}
}

func (b *bundle) sqlWithID(db querier, id [16]byte) ([16]byte, error) {
	return options(`"id":"`+spec.FormatID(id)+`"`).sql(b.T.Context(), db)
}

// TestSQLCancelEqualsHTTP compares the cancellation of jobs of every state in SQL and over HTTP.
func TestSQLCancelEqualsHTTP(t *testing.T) {
	t.Parallel()
	const shown = `
		SELECT ARRAY[(to_jsonb(d) - '{id,created_at,enqueued_at,started_at,finished_at,scheduled_at,next_attempt_at,error,errors}'::text[])::text,
			num_nulls(d.enqueued_at, d.started_at, d.scheduled_at, d.error, d.errors)::text, (d.finished_at > now() - interval '1 minute')::text,
			(to_jsonb(e) - '{seq,time,job_id,node,data}'::text[])::text, e.data::text, (e.time = d.finished_at)::text]
		FROM ojs.jobs_done d JOIN ojs.events e ON e.job_id = d.id AND e.type = 'job.cancelled' WHERE d.id = $1`
	b := setup(t, unchecked)
	for i, reason := range []string{"", "no longer\n\"needed\" é"} {
		ids := [2][][16]byte{b.oneOfEachState(), b.oneOfEachState()}
		for n := range ids[0] {
			_, err := b.Cancel(t.Context(), ids[0][n], queue.Cancel{By: "sql", Reason: reason})
			require.NoError(t, err)
			var done bool
			require.NoError(t, b.Pool.QueryRow(t.Context(), "SELECT ojs.cancel($1, $2)", ids[1][n], reason).Scan(&done))
			require.True(t, done)
			var want, got []string
			require.NoError(t, b.Pool.QueryRow(t.Context(), shown, ids[0][n]).Scan(&want))
			require.NoError(t, b.Pool.QueryRow(t.Context(), shown, ids[1][n]).Scan(&got))
			require.Equal(t, want, got)
			require.NoError(t, b.Pool.QueryRow(t.Context(), "SELECT ojs.cancel($1)", ids[1][n]).Scan(&done))
			require.False(t, done, "cancelled already")
		}
		require.Equal(t, 10*(i+1), b.Number("SELECT count(*) FROM ojs.jobs_done"))
	}
	require.Zero(t, b.Number("SELECT count(*) FROM ojs.jobs"))
	late, err := b.Complete(t.Context(), job.Ack{JobID: b.activeThenCancelled(), WorkerID: "w1", Attempt: 1})
	require.NoError(t, err)
	require.Equal(t, "cancelled", late.State, "the answer to its worker")
}

func (b *bundle) activeThenCancelled() [16]byte {
	id := b.Enqueued(domaintest.NewJob("late"))[0].ID
	b.Fetched(1, "late")
	b.Exec("SELECT ojs.cancel($1)", id)
	return id
}

// oneOfEachState returns a job in each state that can be cancelled.
func (b *bundle) oneOfEachState() [][16]byte {
	b.T.Helper()
	var ids [][16]byte
	for _, p := range []push{
		{queue: "w"}, {options: `{"pending":true}`}, {options: `{"scheduled_at":"2040-01-01T00:00:00Z"}`}, {queue: "a"},
		{queue: "r", options: `{"meta":{"trace_id":"t"},"timeout_ms":5000,"retry":{"jitter":false}}`},
	} {
		p.typ, p.args = "mail.send", "[]"
		ids = append(ids, b.sqlEnqueue(b.Pool, p))
	}
	b.Fetched(1, "a")
	b.Fetched(1, "r")
	failed, err := b.Fail(b.T.Context(), job.Nack{JobID: ids[4], Attempt: -1, Error: domaintest.DecodeError(b.T, `{"code":"x","message":"y"}`)})
	require.NoError(b.T, err)
	require.Equal(b.T, "retryable", failed.State)
	return ids
}

func TestSQLCancelIgnoresWhatCannotBeCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	in := domaintest.NewJob("q")
	in.MaxAttempts = 1
	jobs := b.Enqueued(in, domaintest.NewJob("q"))
	b.Fetched(2, "q")
	_, err := b.Fail(t.Context(), job.Nack{JobID: jobs[0].ID, Attempt: -1, Error: domaintest.DecodeError(t, `{"code":"x","message":"y"}`)})
	require.NoError(t, err)
	_, err = b.Complete(t.Context(), job.Ack{JobID: jobs[1].ID, Attempt: -1})
	require.NoError(t, err)
	events := b.Number("SELECT count(*) FROM ojs.events")
	for _, id := range []any{jobs[0].ID, jobs[1].ID, job.NewID(), nil} {
		var done bool
		require.NoError(t, b.Pool.QueryRow(t.Context(), "SELECT ojs.cancel($1)", id).Scan(&done))
		require.False(t, done)
	}
	require.Equal(t, events, b.Number("SELECT count(*) FROM ojs.events"))
	require.Equal(t, ojs.StateDiscarded, b.State(jobs[0].ID))
}

func TestSQLCancelIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	id := b.Enqueued(domaintest.NewJob("q"))[0].ID
	tx := b.begin(pgx.ReadCommitted)
	_, err := tx.Exec(t.Context(), "SELECT ojs.cancel($1)", id)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, ojs.StateAvailable, b.State(id))
	require.Equal(t, []string{"job.enqueued>available"}, b.EventTypes(id))
}

// TestSQLNeedsNoServer: SQL creates missing partitions itself.
func TestSQLNeedsNoServer(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	b.Exec(`DO $$ DECLARE p regclass; BEGIN
		FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'ojs.jobs_done'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`)
	id := b.sqlEnqueue(b.Pool, push{typ: "a", args: "[]"})
	b.Exec("SELECT ojs.cancel($1)", id)
	require.Equal(t, ojs.StateCancelled, b.State(id))

	last := b.Number(`SELECT max(low) FROM ojs.event_partitions()`)
	b.Exec("SELECT setval('ojs.event_seq', $1::bigint + 449990)", last)
	b.Exec("SELECT ojs.enqueue('a', '[]') FROM generate_series(1, 20)")
	b.Exec("SELECT setval('ojs.event_seq', $1::bigint + 500000)", last)
	b.sqlEnqueue(b.Pool, push{typ: "a", args: "[]"})
}

func TestSQLJobView(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, unchecked)
	ids := append(b.oneOfEachState(), b.activeThenCancelled())
	b.Exec("UPDATE ojs.jobs SET due_at = due_at + interval '1 hour' WHERE id = $1", ids[4]) // PromoteDue leaves the retry alone, however late it comes
	in := domaintest.NewJob("d")
	in.MaxAttempts = 1
	more := b.Enqueued(in, domaintest.NewJob("c"))
	b.Fetched(1, "d")
	b.Fetched(1, "c")
	_, err := b.Fail(t.Context(), job.Nack{JobID: more[0].ID, Attempt: -1, Error: domaintest.DecodeError(t, `{"code":"x","message":"y"}`)})
	require.NoError(t, err)
	_, err = b.Complete(t.Context(), job.Ack{JobID: more[1].ID, Attempt: -1, Result: []byte(`{"n":1.0}`)})
	require.NoError(t, err)
	expired := b.sqlEnqueue(b.Pool, options(`"expires_at":"2001-01-01T00:00:00Z"`))
	_, err = b.PromoteDue(t.Context(), pg.Beginning)
	require.NoError(t, err)
	ids = append(ids, more[0].ID, more[1].ID, expired)

	for i, want := range []string{
		"available 0 enqueued", "pending 0", "scheduled 0 scheduled", "active 1 enqueued started worker", "retryable 1 enqueued started next error errors delay",
		"cancelled 1 enqueued started cancelled", "discarded 1 enqueued started completed discarded error errors", "completed 1 enqueued started completed result",
		"discarded 0 enqueued expires discarded error",
	} {
		var got string
		require.NoError(t, b.Pool.QueryRow(t.Context(), `
			SELECT concat_ws(' ', j.state, j.attempt, CASE WHEN j.enqueued_at IS NOT NULL THEN 'enqueued' END, CASE WHEN j.scheduled_at IS NOT NULL THEN 'scheduled' END,
				CASE WHEN j.expires_at IS NOT NULL THEN 'expires' END, CASE WHEN j.started_at IS NOT NULL THEN 'started' END, CASE WHEN j.completed_at IS NOT NULL THEN 'completed' END,
				CASE WHEN j.cancelled_at IS NOT NULL THEN 'cancelled' END, CASE WHEN j.discarded_at IS NOT NULL THEN 'discarded' END, CASE WHEN j.next_attempt_at IS NOT NULL THEN 'next' END,
				CASE WHEN j.worker_id IS NOT NULL THEN 'worker' END, CASE WHEN j.error IS NOT NULL THEN 'error' END, CASE WHEN j.errors IS NOT NULL THEN 'errors' END,
				CASE WHEN j.retry_delay_ms IS NOT NULL THEN 'delay' END, CASE WHEN j.result IS NOT NULL THEN 'result' END)
			FROM ojs.job j WHERE j.id = $1`, ids[i]).Scan(&got))
		require.Equal(t, want, got)
	}
	var meta, attributes, errors string
	require.NoError(t, b.Pool.QueryRow(t.Context(), "SELECT meta::text, attributes::text, errors::text FROM ojs.job WHERE id = $1", ids[4]).Scan(&meta, &attributes, &errors))
	require.Equal(t, `{"trace_id":"t"}`, meta)
	require.Equal(t, `{"timeout_ms":5000,"retry":{"jitter":false}}`, attributes)
	var list []map[string]any
	require.NoError(t, json.Unmarshal([]byte(errors), &list))
	require.Len(t, list, 1)
	require.Equal(t, "x", list[0]["code"])
}

func TestSQLJobViewUsesIndexes(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	tx := b.begin(pgx.ReadCommitted)
	_, err := tx.Exec(t.Context(), "SET LOCAL enable_seqscan = off") // the tables are empty
	require.NoError(t, err)
	for _, where := range []string{"id = '019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f'", "id = ANY('{019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f}')", "id > '019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f'"} {
		rows, err := tx.Query(t.Context(), "EXPLAIN SELECT * FROM ojs.job WHERE "+where)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		plan := strings.Join(lines, "\n")
		require.Contains(t, plan, "jobs_pkey")
		require.Contains(t, plan, "jobs_done")
		require.NotContains(t, plan, "Seq Scan", plan)
	}
}

// BenchmarkSQLEnqueue stores 1 000 jobs per transaction; an op is one job.
func BenchmarkSQLEnqueue(b *testing.B) {
	for name, call := range map[string]string{
		"Plain":   `ojs.enqueue('mail.send', '[1,"x"]')`,
		"Options": `ojs.enqueue('mail.send', '[1,"x"]', 'q', '{"priority":5,"timeout_ms":30000,"meta":{"a":1}}')`,
	} {
		b.Run(name, func(b *testing.B) {
			pool := dbtest.New(b)
			for n := 0; n < b.N; n += 1000 {
				_, err := pool.Exec(b.Context(), "DO $do$ BEGIN FOR i IN 1..1000 LOOP PERFORM "+call+"; END LOOP; END $do$")
				require.NoError(b, err)
			}
		})
	}
}
