package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Activate moves a pending job to available.
func (s *Store) Activate(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // fetches are woken even if the client hangs up
	defer cancel()
	rows, err := s.db.Q.JobActivate(ctx, dbsqlc.JobActivateParams{Ids: [][16]byte{id}, Node: s.commits.Node, EventType: ojs.EventJobEnqueued})
	if err != nil {
		return nil, pg.WriteError(err)
	}
	if len(rows) == 1 {
		eventlog.Emit(ctx, s.commits, rows, activateChange)
		job := (*job.Record)(&rows[0])
		var a afterCommit
		a.add(job.Queue, job.Lane, job.Priority, job.ReadySeq, job.Cron)
		s.notify(ctx, a)
		s.commits.Committed()
		s.FollowLimits(ctx, namesOf(rows, func(r *dbsqlc.JobActivateRow) pgtype.Text { return r.LimitKey }))
		return job, nil
	}
	stored, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return nil, ojs.ErrConflict(ojs.FormatID(id), ojs.JobState(stored.State), ojs.StatePending)
}
