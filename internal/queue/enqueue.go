package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Enqueue stores a job (docs/reference/http.md, Enqueue). The error of an id that is taken is ojs.ErrDuplicateID.
func (s *Store) Enqueue(ctx context.Context, j *job.Job) (*job.Record, error) {
	assignID(j)
	b := s.enqueue
	if j.ClientID {
		b = s.enqueueNamed
	}
	span := s.tracer.Enqueue(ctx, j)
	res, err := b.Do(ctx, j)
	var stored *job.Record
	if err == nil {
		stored, err = res.outcome(j)
	} else {
		all, errs := s.settleEnqueues(ctx, []*job.Job{j}, []error{err})
		stored, err = all[0], errs[0]
	}
	if err == nil {
		span.Accepted(stored.ID, stored.State)
	}
	return stored, err
}

// EnqueueEach stores the jobs that can be stored. errs has the errors of the others; it is nil if none failed.
func (s *Store) EnqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	b := s.enqueue
	for _, job := range jobs {
		assignID(job)
		if job.ClientID {
			b = s.enqueueNamed
		}
	}
	spans := s.beginEnqueues(ctx, jobs)
	res, failed := b.DoMany(ctx, jobs)
	if failed == nil {
		stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	} else {
		stored, errs = s.settleEnqueues(ctx, jobs, failed)
	}
	bad := false
	for i, r := range res {
		if failed == nil || failed[i] == nil {
			stored[i], errs[i] = r.outcome(jobs[i])
		}
		bad = bad || errs[i] != nil
	}
	if !bad {
		errs = nil
	}
	endEnqueues(spans, stored)
	return stored, errs
}

// EnqueueAll stores all jobs in one transaction, or none. at is the index of the job whose id is taken, or -1.
func (s *Store) EnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	ids := make(map[[16]byte]bool)
	for i, job := range jobs {
		assignID(job)
		if job.ClientID {
			if ids[job.ID] {
				return nil, i, ojs.ErrDuplicateID(ojs.FormatID(job.ID))
			}
			ids[job.ID] = true
		}
	}
	spans := s.beginEnqueues(ctx, jobs)
	res, err := s.insert(ctx, s.db.Pool, jobs, true)
	if err != nil {
		stored, err = s.settleEnqueueAll(ctx, jobs, err)
		if err == nil {
			endEnqueues(spans, stored)
		}
		return stored, -1, err
	}
	stored = make([]*job.Record, len(jobs))
	for i, r := range res {
		if stored[i], err = r.outcome(jobs[i]); err != nil {
			return nil, i, err
		}
	}
	endEnqueues(spans, stored)
	s.afterEnqueue(ctx, res, nil)
	return stored, -1, nil
}

// assignID gives a job its id unless the client has chosen one.
func assignID(j *job.Job) {
	if !j.ClientID {
		j.ID = job.NewID()
	}
}

// flushEnqueue stores jobs whose ids were made here, and gives them to parked fetches in the same transaction.
func (s *Store) flushEnqueue(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	if h := s.handoff(jobs); h != nil {
		if res, ok, err := s.enqueueAndClaim(ctx, jobs, h); ok {
			return res, err
		}
	}
	return s.flushEnqueueNamed(ctx, jobs)
}

// flushEnqueueNamed stores jobs some of whose ids clients have chosen.
func (s *Store) flushEnqueueNamed(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	res, err := s.insert(ctx, s.db.Pool, jobs, false)
	if err == nil {
		s.afterEnqueue(ctx, res, nil)
	}
	return res, err
}

// afterEnqueue emits the events of stored jobs and wakes fetches for those that are available and not claimed.
func (s *Store) afterEnqueue(ctx context.Context, res []enqueued, claimed map[[16]byte]bool) {
	a := afterCommit{places: make([]Place, 0, len(res))}
	for _, r := range res {
		if r.job != nil && !claimed[r.job.ID] {
			a.add(r.job.Queue, r.job.Priority, r.job.ReadySeq, pgtype.Text{})
			a.due(r.job.DueAt, r.job.CreatedAt)
		}
	}
	eventlog.Emit(ctx, s.commits, res, insertChange)
	s.notify(ctx, a)
	s.commits.Committed()
}
