package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Activate moves a pending job to available.
// Any other state is 409 (docs/reference/jobs.md, Allowed operations). Of two calls at once one succeeds, and the other one waits
// for its row and is refused.
//
// It is not batched: activations are rare, and unlike acks they wait for a locked row, up to the statement timeout, which callers
// of a flush must not share.
func (s *Store) Activate(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // fetches are woken even if the client hangs up
	defer cancel()
	// The statement is its own transaction. An error of the connection leaves the outcome unknown: WriteError says 504 and not
	// 503, so that the client looks before it repeats the call.
	rows, err := s.db.Q.JobActivate(ctx, dbsqlc.JobActivateParams{Ids: [][16]byte{id}, Node: s.commits.Node, EventType: ojs.EventJobEnqueued})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if len(rows) == 1 {
		eventlog.Emit(ctx, s.commits, rows, activateChange)
		job := (*job.Record)(&rows[0])
		var a afterCommit
		// Its deadlines were scheduled when it was inserted, so only fetches have to learn of it. A job of a serial cron or with
		// a limit key has no ready_seq yet: the cron or package limit gives it one.
		a.add(job.Queue, job.Lane, job.Priority, job.ReadySeq, job.Cron)
		s.notify(ctx, a)
		s.commits.Committed()
		s.FollowLimits(ctx, namesOf(rows, func(r *dbsqlc.JobActivateRow) pgtype.Text { return r.LimitKey }))
		return job, nil
	}
	// No row: the job is unknown or in another state. This read is a later snapshot, so the state that it shows may be newer than
	// the one that refused the call.
	stored, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return nil, spec.Conflict(spec.FormatID(id), ojs.JobState(stored.State), ojs.StatePending)
}
