package e2e_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojspgx"
	"github.com/ojsd/ojsd/ojs/ojssql"
)

// monthly are arguments with options for all of their jobs.
type monthly struct{ Month int }

func (monthly) JobType() string { return "report.build" }
func (monthly) JobOptions() []ojs.EnqueueOption {
	return []ojs.EnqueueOption{ojs.WithQueue("reports"), ojs.WithDelay(time.Hour)}
}

// TestSDKEnqueueInTransactions covers both packages, because they share everything but the driver.
func TestSDKEnqueueInTransactions(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	ctx := t.Context()
	state := func(id string) (state, queue string) {
		err := pool.QueryRow(ctx, "SELECT state::text, queue FROM ojs.job WHERE id = $1", id).Scan(&state, &queue)
		if err != nil {
			return err.Error(), ""
		}
		return state, queue
	}
	const none = "no rows in result set"

	t.Run("WithTheTransactionOfPgx", func(t *testing.T) {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		id, err := ojspgx.Enqueue(ctx, tx, "a", map[string]int{"n": 1}, ojs.WithQueue("q"))
		require.NoError(t, err)
		s, _ := state(id)
		require.Equal(t, none, s)
		require.NoError(t, tx.Commit(ctx))
		s, q := state(id)
		require.Equal(t, "available q", s+" "+q)

		tx, err = pool.Begin(ctx)
		require.NoError(t, err)
		id, err = ojspgx.Enqueue(ctx, tx, "a", nil)
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(ctx))
		s, _ = state(id)
		require.Equal(t, none, s)
	})

	t.Run("WithTheTransactionOfDatabaseSQL", func(t *testing.T) {
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		id, err := ojssql.Enqueue(ctx, tx, "a", 1)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		s, q := state(id)
		require.Equal(t, "available default", s+" "+q)
		tx, err = db.BeginTx(ctx, nil)
		require.NoError(t, err)
		id, err = ojssql.Enqueue(ctx, tx, "a", 1)
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		s, _ = state(id)
		require.Equal(t, none, s)
		require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)
	})

	t.Run("WithTheOptionsOfTheArguments", func(t *testing.T) {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		id, err := ojspgx.Enqueue(ctx, tx, "", monthly{7})
		require.NoError(t, err)
		urgent, err := ojspgx.Enqueue(ctx, tx, "", monthly{8}, ojs.WithQueue("urgent"))
		require.NoError(t, err)
		require.NoError(t, tx.Commit(ctx))
		s, q := state(id)
		require.Equal(t, "scheduled reports", s+" "+q)
		s, q = state(urgent)
		require.Equal(t, "scheduled urgent", s+" "+q)
	})

	t.Run("WithAllOptions", func(t *testing.T) {
		r := ojs.JobRequest{
			ID: ojs.NewID(), Type: "a", Args: []any{1, "b"}, Schema: "urn:s", Priority: 5, Meta: map[string]any{"k": "v"}, Tags: []string{"x"}, Delay: 90 * time.Second,
			Timeout: time.Minute, VisibilityTimeout: time.Minute, EnqueueTTL: time.Hour, TotalTimeout: time.Hour, HeartbeatTimeout: time.Minute, ResultTTL: -1, ExpiresAt: time.Now().Add(time.Hour),
			Unique:    &ojs.UniquePolicy{OnConflict: ojs.ConflictIgnore, Period: time.Hour},
			UniqueKey: "25ff5fcbd5f0436a2ed461f767b9ace63b0d48d305d7f7cb3785c77516d15723",
			Retry:     &ojs.RetryPolicy{MaxAttempts: 7, InitialInterval: 1500 * time.Millisecond, MaxInterval: time.Minute, BackoffStrategy: ojs.BackoffLinear, NoJitter: true},
		}
		set := func(from ojs.JobRequest) ojs.EnqueueOption { return func(r *ojs.JobRequest) { *r = from } }
		id, err := ojspgx.Enqueue(ctx, pool, "", nil, set(r))
		require.NoError(t, err)
		require.Equal(t, r.ID, id)
		var priority, attempts int
		var args, meta string
		var delay float64
		require.NoError(t, pool.QueryRow(ctx, `SELECT priority, max_attempts, args::text, meta::text, extract(epoch FROM scheduled_at - created_at) FROM ojs.job WHERE id = $1`, id).
			Scan(&priority, &attempts, &args, &meta, &delay))
		require.Equal(t, 5, priority)
		require.Equal(t, 7, attempts)
		require.JSONEq(t, `[1,"b"]`, args)
		require.JSONEq(t, `{"k":"v"}`, meta)
		require.InDelta(t, 90, delay, 0.01)
		r.ID = ""
		same, err := ojspgx.Enqueue(ctx, pool, "", nil, set(r))
		require.NoError(t, err)
		require.Equal(t, id, same, "the unique policy ignores the second one")
		_, err = ojspgx.Enqueue(ctx, pool, "b", nil, ojs.WithID(id))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
	})

	t.Run("ManyInOneRoundTrip", func(t *testing.T) {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		ids, err := ojspgx.EnqueueBatch(ctx, tx, []ojs.JobRequest{{Type: "a", Args: 1}, {Type: "b", Args: 2, Queue: "q2"}})
		require.NoError(t, err)
		require.NoError(t, tx.Commit(ctx))
		require.Len(t, ids, 2)
		s, q := state(ids[1])
		require.Equal(t, "available q2", s+" "+q)
		_, err = ojspgx.EnqueueBatch(ctx, pool, []ojs.JobRequest{{Type: "a", Args: 1}, {Type: "B", Args: 2}})
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
	})

	t.Run("Refusals", func(t *testing.T) {
		_, err := ojspgx.Enqueue(ctx, pool, "Not A Type", nil)
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		var driver *pgconn.PgError
		require.ErrorAs(t, err, &driver)
		_, err = ojssql.Enqueue(ctx, db, "a", nil, ojs.WithPriority(1000))
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		require.ErrorContains(t, err, "priority")
		_, err = ojspgx.Enqueue(ctx, pool, "a", nil, ojs.WithUnique(ojs.UniquePolicy{OnConflict: "skip"}))
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		_, err = ojspgx.Enqueue(ctx, pool, "a", make(chan int))
		var unsupported *json.UnsupportedTypeError
		require.True(t, errors.As(err, &unsupported))
	})
}
