package pg

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// Step is one statement of a pipeline: a call of one generated method on db, whose result it stores in variables of the
// caller. It runs twice (see Pipeline), so it does nothing else.
type Step func(db dbsqlc.DBTX) error

// Begin and Commit are the steps around a transaction of several pipelines.
var (
	Begin  = command("begin isolation level read committed")
	Commit = command("commit")
)

func command(sql string) Step {
	return func(db dbsqlc.DBTX) error {
		_, err := db.Exec(context.Background(), sql)
		return err
	}
}

// batchSender is a pool or a connection.
type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Pipeline sends all steps to Postgres before it reads the first result. Outside of a transaction they are one transaction,
// which has committed when Pipeline returns nil. After an error the rest of the steps has no effect, and their variables must
// not be read.
//
// Each step runs first on a recorder, which keeps the statement and its arguments, and then on a player, which returns the
// result: generated methods read their result themselves, so they cannot be asked to send only.
// In a transaction that the caller has begun it commits nothing.
func Pipeline(ctx context.Context, db batchSender, steps ...Step) error {
	var r recorder
	for _, step := range steps {
		if err := step(&r); !errors.Is(err, errRecorded) {
			return errors.Join(errors.New("a step of a pipeline sent no statement"), err)
		}
	}
	results := db.SendBatch(ctx, &r.batch)
	p := player{results}
	for _, step := range steps {
		if err := step(p); err != nil {
			_ = results.Close() // returns the same error
			return err
		}
	}
	return results.Close()
}

// errRecorded ends the first run of a step.
var errRecorded = errors.New("statement was recorded")

// recorder is a DBTX that keeps statements instead of sending them.
type recorder struct{ batch pgx.Batch }

func (r *recorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r.batch.Queue(sql, args...)
	return pgconn.CommandTag{}, errRecorded
}

func (r *recorder) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.batch.Queue(sql, args...)
	return nil, errRecorded
}

func (r *recorder) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	r.batch.Queue(sql, args...)
	return recordedRow{}
}

type recordedRow struct{}

func (recordedRow) Scan(...any) error { return errRecorded }

// player is a DBTX whose calls return the results of the recorded statements, in order.
type player struct{ results pgx.BatchResults }

func (p player) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return p.results.Exec()
}

func (p player) Query(context.Context, string, ...any) (pgx.Rows, error) { return p.results.Query() }
func (p player) QueryRow(context.Context, string, ...any) pgx.Row        { return p.results.QueryRow() }
