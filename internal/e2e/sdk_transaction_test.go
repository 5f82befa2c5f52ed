package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/migrations"
	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojspgx"
	"github.com/ojsd/ojsd/ojs/ojspgx/ojspgxtest"
	"github.com/ojsd/ojsd/ojs/ojssql"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// failed takes the place of a test whose assertions are to fail, and keeps their text.
type failed struct {
	testing.TB
	text string
}

func (*failed) Helper()                             {}
func (f *failed) Fatalf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

// TestSDKAssertionsInTransactions is what a user does, with the rights that package ojstest names: one role migrates a test database, and
// another one enqueues in it and looks into its open transactions.
func TestSDKAssertionsInTransactions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := dbtest.EmptyURL(t)
	owner, ownerRole := newRole(t, address)
	admin, err := pgx.Connect(ctx, address)
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close(context.Background())) }()
	_, err = migrations.Up(ctx, owner, nil)
	require.ErrorContains(t, err, "GRANT CREATE ON DATABASE")
	_, err = admin.Exec(ctx, "GRANT CREATE ON DATABASE "+admin.Config().Database+" TO "+ownerRole)
	require.NoError(t, err)
	_, err = migrations.Up(ctx, owner, nil)
	require.NoError(t, err)
	// The role of the application, which is that of its tests, has the name of the database in it as well.
	role := "app_" + ownerRole
	_, err = admin.Exec(ctx, fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA ojs TO %[1]s;
		GRANT EXECUTE ON FUNCTION ojs.enqueue(text, json, text, json) TO %[1]s; GRANT SELECT ON ojs.job TO %[1]s`, role))
	require.NoError(t, err)
	defer func() {
		_, err := admin.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
		require.NoError(t, err)
	}()
	cfg, err := pgxpool.ParseConfig(address)
	require.NoError(t, err)
	cfg.ConnConfig.User, cfg.ConnConfig.Password = role, "x"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	require.NoError(t, err)
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()

	type email struct {
		To string `json:"to"`
	}
	_, err = ojspgx.Enqueue(ctx, pool, "email.send", email{"before@example.com"})
	require.NoError(t, err, "a job that was committed before does not count")
	at := time.Now().Add(time.Hour)
	options := []ojs.EnqueueOption{ojs.WithQueue("mail"), ojs.WithPriority(5), ojs.WithTags("a", "b"), ojs.WithMeta("shop", 7), ojs.WithRunAt(at),
		ojs.WithMaxAttempts(9)}

	t.Run("OfPgx", func(t *testing.T) {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
		ojspgxtest.RequireNotEnqueuedTx(t, tx, "email.send")
		id, err := ojspgx.Enqueue(ctx, tx, "email.send", email{"ada@example.com"}, options...)
		require.NoError(t, err)
		nested, err := tx.Begin(ctx)
		require.NoError(t, err)
		_, err = ojspgx.Enqueue(ctx, nested, "email.count", nil)
		require.NoError(t, err)
		require.NoError(t, nested.Commit(ctx))
		job := ojspgxtest.RequireEnqueuedTx(t, tx, "email.send", ojstest.WithArgs(email{"ada@example.com"}), ojstest.InQueue("mail"),
			ojstest.InState(ojs.StateScheduled), ojstest.WithPriority(5), ojstest.WithTags("b"), ojstest.WithMeta("shop", 7), ojstest.RunsAt(at, time.Second),
			func(j *ojs.Job) bool { return j.MaxAttempts == 9 })
		require.Equal(t, id, job.ID)
		require.Len(t, ojspgxtest.JobsTx(t, tx), 2)

		f := &failed{TB: t}
		for _, wrong := range []ojstest.Match{
			ojstest.WithArgs(email{"grace@example.com"}), ojstest.InQueue("default"), ojstest.InState(ojs.StateAvailable), ojstest.WithPriority(4),
			ojstest.WithTags("b", "c"), ojstest.WithMeta("shop", 8), ojstest.WithMeta("no", nil), ojstest.RunsAt(at.Add(time.Minute), time.Second),
		} {
			f.text = ""
			ojspgxtest.RequireEnqueuedTx(f, tx, "email.send", wrong)
			require.Contains(t, f.text, "0 jobs of type email.send match, not one; all jobs since the transaction began: ")
			ojspgxtest.RequireNotEnqueuedTx(t, tx, "email.send", wrong)
		}
		require.Contains(t, f.text, "\n\t"+id+` email.send in mail: scheduled, args [{"to":"ada@example.com"}], priority 5, tags a b, meta {"shop":7}, scheduled at `)
		require.Contains(t, f.text, " email.count in default: available, args []")
		ojspgxtest.RequireNotEnqueuedTx(f, tx, "email.count")
		require.Contains(t, f.text, "1 jobs of type email.count match, not none")
	})

	t.Run("OfDatabaseSQL", func(t *testing.T) {
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		ojstest.RequireNotEnqueuedTx(t, tx, "email.send")
		id, err := ojssql.Enqueue(ctx, tx, "email.send", email{"ada@example.com"}, options...)
		require.NoError(t, err)
		require.Equal(t, id, ojstest.RequireEnqueuedTx(t, tx, "email.send", ojstest.WithArgs(email{"ada@example.com"}), ojstest.WithPriority(5)).ID)
		f := &failed{TB: t}
		ojstest.RequireEnqueuedTx(f, tx, "email.count")
		require.Contains(t, f.text, "0 jobs of type email.count match, not one; all jobs since the transaction began: \n\t"+id)
		require.NoError(t, tx.Rollback())
		ojstest.JobsTx(f, tx)
		require.Contains(t, f.text, "list the jobs of the transaction: ")
	})
}
