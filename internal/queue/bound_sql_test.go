package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// sqlFull requires the error with which ojs.enqueue, or the commit of its transaction, refuses a job for a full queue.
func sqlFull(t testing.TB, err error, message string) {
	t.Helper()
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "53400", pg.Code)
	require.Equal(t, message, pg.Message)
	require.NotEmpty(t, pg.Hint)
}

func TestBoundsHoldForSQL(t *testing.T) {
	t.Parallel()
	enqueue := func(tx pgx.Tx, queue string) error {
		_, err := tx.Exec(context.Background(), `SELECT ojs.enqueue('t', '[1,2,3]', $1)`, queue)
		return err
	}
	begin := func(b *bundle) pgx.Tx {
		tx, err := b.Pool.Begin(b.T.Context())
		require.NoError(b.T, err)
		b.T.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return tx
	}

	t.Run("AtTheCall", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2}`)
		tx := begin(b)
		require.NoError(t, enqueue(tx, "q"))
		require.NoError(t, enqueue(tx, "q"))
		require.NoError(t, enqueue(tx, "other"))
		sqlFull(t, enqueue(tx, "q"), "Queue q reached its bound of 2 jobs.")
		require.NoError(t, tx.Rollback(t.Context()))
		b.Exec(`SELECT ojs.enqueue('t', '[]', 'q') FROM generate_series(1, 2)`)
		_, err := b.try()
		full(t, err, 2, 2)
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.bound_notes`))
		b.ConfigureQueue("q", `{"backpressure":{"max_depth":2},"allowed_job_types":["u"]}`)
		require.ErrorContains(t, enqueue(begin(b), "q"), "Queue q takes no jobs of type t", "admission is before the bound, as over HTTP")
	})

	t.Run("OpenTransactionsHoldUpNobody", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2}`)
		b.bound("a", `{"max_depth":2.0}`)
		tx, other := begin(b), begin(b)
		require.NoError(t, enqueue(tx, "q"))
		require.NoError(t, enqueue(tx, "a"))
		require.NoError(t, enqueue(other, "a"))
		require.NoError(t, enqueue(other, "q"))
		b.add("q", 0, "1")
		require.NoError(t, tx.Commit(t.Context()))
		sqlFull(t, other.Commit(t.Context()), "Queue q reached its bound of 2 jobs.")
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'q'`))
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'a'`))
	})

	t.Run("CommitsFollowOneAnother", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1}`)
		b.Exec(`SELECT ojs.enqueue('t', '[]', 'q')`) // the queue has a row that can be locked
		require.Len(t, b.Fetched(1, "q"), 1)
		first, second := begin(b), begin(b)
		require.NoError(t, enqueue(first, "q"))
		require.NoError(t, enqueue(second, "q"))
		_, err := first.Exec(t.Context(), `SET CONSTRAINTS ALL IMMEDIATE`) // as the commit begins
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- second.Commit(context.Background()) }()
		require.Eventually(t, func() bool {
			return len(done) > 0 || b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}, domaintest.WaitFor, time.Millisecond)
		require.NoError(t, first.Commit(t.Context()))
		sqlFull(t, domaintest.Await(t, done), "Queue q reached its bound of 1 jobs.")
	})

	t.Run("InBytes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("_default", `{"max_size_bytes":20}`)
		b.Exec(`SELECT ojs.enqueue('t', '[1,2,3]', 'q') FROM generate_series(1, 2)`)
		_, err := b.Pool.Exec(t.Context(), `SELECT ojs.enqueue('t', '[1,2,3]', 'q')`)
		sqlFull(t, err, "Queue q reached its bound of 20 bytes.")
		_, err = b.try(func(j *job.Job) { j.Args = []byte(`[1,2,3]`) })
		domaintest.RequireCode(t, err, ojs.ErrQueueFull)
		require.Len(t, b.Fetched(1, "q"), 1)
		b.Exec(`SELECT ojs.enqueue('t', '[1,2,3]', 'q')`)
		_, err = begin(b).Exec(t.Context(), `SELECT ojs.enqueue('t', '["too large for a queue"]', 'new')`)
		sqlFull(t, err, "Queue new reached its bound of 20 bytes.")
	})

	t.Run("ZeroIsNoBound", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for queue, bounds := range map[string]string{"jobs": `{"max_depth":0,"max_size_bytes":1000,"max_depth_per_tenant":0}`, "bytes": `{"max_depth":1000,"max_size_bytes":0,"max_depth_per_tenant":0}`} {
			b.bound(queue, bounds)
			b.Exec(`SELECT ojs.enqueue('t', '[]', $1, '{"meta":{"tenant_id":"a"}}') FROM generate_series(1, 2)`, queue)
		}
	})

	// Jobs that a worker has, and those of others, take no room of a tenant.
	t.Run("PerTenant", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth_per_tenant":2}`)
		own := func(tenant string) error {
			_, err := b.Pool.Exec(t.Context(), `SELECT ojs.enqueue('t', '[]', 'q', json_build_object('meta', json_build_object('tenant_id', $1::text)))`, tenant)
			return err
		}
		for range 2 {
			require.NoError(t, own("a"))
			require.NoError(t, own("b"))
		}
		sqlFull(t, own("a"), "tenant a reached its bound of 2 jobs in queue q.")
		fetched := b.Fetched(4, "q")
		require.Len(t, fetched, 4)
		for range 2 {
			require.NoError(t, own("a"))
		}
		_, err := b.Complete(t.Context(), job.Ack{JobID: fetched[0].ID, Attempt: -1})
		require.NoError(t, err)
		sqlFull(t, own("a"), "tenant a reached its bound of 2 jobs in queue q.")
	})

	t.Run("OnlyInReadCommittedTransactions", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":2}`)
		tx, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		require.NoError(t, enqueue(tx, "other"))
		require.ErrorContains(t, enqueue(tx, "q"), "READ COMMITTED")
	})

	t.Run("AProducerNeedsNoOtherRight", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.bound("q", `{"max_depth":1,"max_size_bytes":100000}`)
		tx := begin(b)
		_, err := tx.Exec(t.Context(), `DO $$ BEGIN CREATE ROLE bounded_producer; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$`)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `GRANT USAGE ON SCHEMA ojs TO bounded_producer; GRANT EXECUTE ON FUNCTION ojs.enqueue(text, json, text, json) TO bounded_producer; SET LOCAL ROLE bounded_producer`)
		require.NoError(t, err)
		require.NoError(t, enqueue(tx, "q"))
		_, err = tx.Exec(t.Context(), `SET CONSTRAINTS ALL IMMEDIATE`)
		require.NoError(t, err)
		sqlFull(t, enqueue(tx, "q"), "Queue q reached its bound of 1 jobs.")
	})
}
