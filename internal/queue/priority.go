package queue

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// SetPriority changes the priority of a job that is available or scheduled (docs/reference/jobs.md, Priority). It returns
// the job and the priority that it had.
//
// The same priority again is a success without an event. While another transaction has locked the row it is tried again, up to
// the statement timeout, then 504.
func (s *Store) SetPriority(ctx context.Context, id [16]byte, priority int16) (stored *job.Record, previous int16, err error) {
	err = s.RetryLocked(ctx, func() error {
		stored, previous, err = s.trySetPriority(ctx, id, priority)
		return err
	})
	return stored, previous, err
}

// No row means that the job is unknown, locked or in another state; refusePriority tells which.
func (s *Store) trySetPriority(ctx context.Context, id [16]byte, priority int16) (stored *job.Record, previous int16, err error) {
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // the cursors are lowered even if the client hangs up
	defer cancel()
	var changed []dbsqlc.JobSetPriorityRow
	err = pg.Retry(func() error {
		return s.db.InTx(ctx, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			rows, err := q.JobSetPriority(ctx, dbsqlc.JobSetPriorityParams{ID: id, Priority: priority, EventType: eventlog.PriorityChanged, Node: s.commits.Node})
			if changed = rows; err != nil || len(rows) == 0 {
				return err
			}
			// In the same transaction: the answer shows the priority that this call has set.
			jobs, err := q.JobListByID(ctx, job.SizeOfEach(1), [][16]byte{id})
			if err == nil {
				stored = (*job.Record)(&jobs[0])
			}
			return err
		})
	})
	if err != nil {
		return nil, 0, pg.WriteError(err)
	}
	if len(changed) == 0 {
		return nil, 0, s.refusePriority(ctx, id)
	}
	if previous = changed[0].Previous; previous != priority {
		s.afterSetPriority(ctx, changed)
	}
	return stored, previous, nil
}

// afterSetPriority lets the claims of this node find a job at a place that they may have passed. It wakes no fetch: the job could be
// fetched before, too.
// Other nodes hear of the new place from the relay.
func (s *Store) afterSetPriority(ctx context.Context, rows []dbsqlc.JobSetPriorityRow) {
	for _, r := range rows {
		if r.ReadySeq.Valid {
			s.cursors.lower(Place{r.Queue, r.Lane, r.Priority, r.ReadySeq.Int64})
		}
	}
	eventlog.Emit(ctx, s.commits, rows, priorityChange)
	s.commits.Committed()
	s.FollowLimits(ctx, namesOf(rows, func(r *dbsqlc.JobSetPriorityRow) pgtype.Text { return r.LimitKey }))
}

// refusePriority chooses the error for a job that JobSetPriority left out.
// A job in a right state must have been locked: that is tried again.
func (s *Store) refusePriority(ctx context.Context, id [16]byte) error {
	stored, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	switch state := ojs.JobState(stored.State); state {
	case ojs.StateAvailable, ojs.StateScheduled:
		return ErrLocked
	default:
		return spec.Conflict(spec.FormatID(id), state, ojs.StateAvailable, ojs.StateScheduled)
	}
}
