package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Retry moves a discarded job back to available with all its attempts (docs/reference/retries.md, Manual retry). What override holds is
// changed on the way; nil changes nothing.
func (s *Store) Retry(ctx context.Context, id [16]byte, override *job.Override) (*job.Record, error) {
	var retried *job.Record
	err := s.InTx(ctx, func(tx *Tx) error {
		retried = nil // a transaction may be tried again
		q := dbsqlc.New(tx.tx)
		rows, err := s.retryRows(ctx, q, retrial{ids: [][16]byte{id}, states: []ojs.JobState{ojs.StateDiscarded}, override: override})
		if err != nil || len(rows) == 0 {
			return err
		}
		tx.after = append(tx.after, func() { s.afterRetry(ctx, rows) })
		jobs, err := q.JobListByID(ctx, [][16]byte{id})
		if err == nil {
			retried = (*job.Record)(&jobs[0])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if retried == nil {
		stored, err := s.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		return nil, ojs.ErrConflict(ojs.FormatID(id), ojs.JobState(stored.State), ojs.StateDiscarded)
	}
	return retried, nil
}

// retrial is what retryRows is to do: T14 and T15 for the jobs in one of the states.
type retrial struct {
	ids      [][16]byte
	states   []ojs.JobState
	override *job.Override // only with a single id
}

// retryRows locks the jobs, rewrites what they echo, and moves them. q is in a transaction.
func (s *Store) retryRows(ctx context.Context, q *dbsqlc.Queries, r retrial) ([]dbsqlc.JobRetryRow, error) {
	locked, err := q.JobLockForRetry(ctx, dbsqlc.JobLockForRetryParams{Everything: r.override != nil, Ids: r.ids, States: texts(r.states)})
	if err != nil || len(locked) == 0 {
		return nil, err
	}
	p := dbsqlc.JobRetryParams{States: texts(r.states), Node: s.commits.Node, Loud: s.commits.EnqueuedOnRequeue}
	if r.override != nil {
		if locked[0].Extra, err = s.override(ctx, q, &p, *r.override, locked[0]); err != nil {
			return nil, err
		}
	}
	for _, j := range locked {
		p.Ids = append(p.Ids, j.ID)
		p.Extras = append(p.Extras, j.Extra)
		p.UnexpiredExtras = append(p.UnexpiredExtras, job.WithoutExpiry(j.Extra))
	}
	return q.JobRetry(ctx, p)
}

// override fills in what changes, and returns what the job is to echo.
func (s *Store) override(ctx context.Context, q *dbsqlc.Queries, p *dbsqlc.JobRetryParams, o job.Override, j dbsqlc.JobLockForRetryRow) ([]byte, error) {
	if o.Queue != "" {
		p.Queue = pgtype.Text{String: o.Queue, Valid: true}
		if _, known := s.queues.Load(o.Queue); !known {
			if err := q.QueueInsert(ctx, []string{o.Queue}); err != nil {
				return nil, err
			}
		}
	}
	if o.Priority != nil {
		p.Priority = pgtype.Int2{Int16: *o.Priority, Valid: true}
	}
	p.Args = o.Args
	meta, wire := o.MergedMeta(j.Meta)
	if wire != nil {
		return nil, wire
	}
	if p.Meta = meta; meta != nil {
		trace := job.TraceID(meta)
		p.TraceID = pgtype.Text{String: trace, Valid: trace != ""}
	}
	policy, err := o.MergedRetry(j.Retry, j.MaxAttempts)
	if err != nil {
		return nil, err
	}
	if policy != nil {
		p.Retry, p.MaxAttempts = policy.Encode(), pgtype.Int8{Int64: policy.MaxAttempts, Valid: true}
	}
	return o.MergedExtra(j.Extra), nil
}

// afterRetry tells fetchers, timers and the relay of jobs that were retried.
func (s *Store) afterRetry(ctx context.Context, rows []dbsqlc.JobRetryRow) {
	eventlog.Emit(ctx, s.commits, rows, retryChange)
	var m afterCommit
	soonest := time.Duration(-1)
	for _, r := range rows {
		m.add(r.Queue, r.Priority, r.ReadySeq, r.Cron)
		if r.DueAt.Valid {
			if in := max(0, r.DueAt.Time.Sub(r.EnqueuedAt.Time)); soonest < 0 || in < soonest {
				soonest = in
			}
		}
	}
	s.notify(ctx, m)
	if soonest >= 0 {
		s.timer.Schedule(soonest)
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
}
