package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// detachTime bounds what one run does for one table, because partitions must be made meanwhile.
	detachTime = 20 * time.Second

	// emptiedPages is the limit of one statement: 8 MB, up to 40 000 jobs, 0.2 s.
	emptiedPages = 1000
)

// detachDue removes the partitions of a table that are due and that EventPartitionPrune or JobFinishedPartitionPrune could not drop because
// transactions overlap that use the table. It returns how many. Nobody waits for it: DETACH CONCURRENTLY asks for no lock that those
// transactions have, but waits until those that were open at its beginning have ended. One that stays open for longer than the statement
// may wait ends the run; the partition is stored as leaving and PostgreSQL keeps it as pending, and the next run, on any node, finishes it.
//
// Other ways, tried with ten clients in transactions of 200 ms: ACCESS EXCLUSIVE within 50 ms, which 1 of 200 tries got; within 250 ms,
// which succeeded each time, but all ten wait for as long, at each partition, and longer transactions need more; TRUNCATE of a day of
// finished jobs, which failed each time, because an enqueue with an id has a lock on each day, and would leave empty partitions without
// end.
func (m *Maintainer) detachDue(ctx context.Context, parent string, leave func(context.Context) (bool, error)) (dropped int32, err error) {
	limited, cancel := context.WithTimeout(ctx, detachTime)
	defer cancel()
	for {
		due, err := leave(limited)
		gone := false
		if err == nil && due {
			gone, err = m.detachOne(limited, parent)
		}
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			err = nil // the next run goes on
		}
		if err != nil || !gone {
			return dropped, err
		}
		dropped++
	}
}

// detachOne detaches and drops the partition that is leaving, unless another node is at it. The transaction that locks the others out is
// another one, with no lock on the table and no snapshot, so that DETACH does not wait for it: the savepoint ends the portal of the
// statement before, which has a snapshot for as long as it exists. It ends before idle_in_transaction_session_timeout.
func (m *Maintainer) detachOne(ctx context.Context, parent string) (gone bool, err error) {
	err = pg.InTx(ctx, m.pool, func(tx pgx.Tx) error {
		locked, err := dbsqlc.New(tx).RetentionLock(ctx, parent)
		if err != nil || !locked {
			return err
		}
		if _, err := tx.Begin(ctx); err != nil {
			return err
		}
		for range 2 { // the second finishes what the first could not wait for
			d, err := m.q.PartitionDetach(ctx, parent)
			if err != nil {
				return err
			}
			if d.Statement == "" {
				break
			}
			if err := m.runFor(ctx, time.Duration(d.WaitMs)*time.Millisecond, d.Statement); err != nil {
				if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
					return err
				}
				m.Logger.WarnContext(ctx, m.Name+": a transaction that stays open keeps retention from detaching a partition; trying again",
					slog.String("statement", d.Statement))
			}
		}
		gone, err = m.q.PartitionDrop(ctx, parent)
		return err
	})
	return gone, err
}

// runFor runs a statement. At the end of its time its connection is closed and the statement is cancelled: no setting of the session could
// be used for that, because it may be one of a pooler.
func (m *Maintainer) runFor(ctx context.Context, limit time.Duration, statement string) error {
	conn, err := m.pool.Acquire(ctx) // before the time of the statement begins
	if err != nil {
		return err
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err = conn.Exec(ctx, statement, pgx.QueryExecModeExec)
	return err
}

// emptyDay deletes the jobs of the day that is due, so that counts and tables are equal at any time, and reports whether a day can be
// detached.
func (m *Maintainer) emptyDay(ctx context.Context) (bool, error) {
	for page := int64(0); ; {
		next, err := m.q.JobFinishedPartitionLeave(ctx, dbsqlc.JobFinishedPartitionLeaveParams{
			Keep: interval(m.config.KeepDone(ctx)), FromPage: page, Pages: emptiedPages,
		})
		if err != nil || !next.Due || next.NextPage < 0 {
			return next.Due, err
		}
		page = next.NextPage
	}
}
