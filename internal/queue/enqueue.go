package queue

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/unique"
	"github.com/ojsd/ojsd/ojs"
)

// Enqueue stores a job (docs/reference/http.md, Enqueue). The error of an id that is taken is ojs.ErrDuplicateID.
func (s *Store) Enqueue(ctx context.Context, j *job.Job) (*job.Record, error) {
	assignID(j)
	j.Producer = producerOf(ctx)
	span := s.tracer.Enqueue(ctx, j)
	res, err := s.enqueuer(j).Do(ctx, j)
	if res.busy {
		late := s.retryBusy(ctx, func() bool {
			res, err = s.enqueueUnique.Do(ctx, j)
			return res.busy
		})
		err = cmp.Or(err, late)
	}
	var stored *job.Record
	if err == nil {
		stored, err = res.outcome(j)
	} else {
		all, errs := s.settleEnqueues(ctx, []*job.Job{j}, []error{err})
		stored, err = all[0], errs[0]
	}
	switch {
	case err != nil:
	case !j.Outcome.Deduplicated:
		span.Accepted(stored.ID, stored.State)
	case stored.Cut(): // it was read together with the answers of others
		if whole, err := s.Get(ctx, stored.ID); err == nil {
			stored = whole
		}
	}
	s.followEnqueued(ctx, j)
	return stored, err
}

// enqueuer is the batcher for jobs of one call.
func (s *Store) enqueuer(jobs ...*job.Job) *batch.Batcher[*job.Job, enqueued] {
	b := s.enqueue
	for _, j := range jobs {
		if j.Unique != nil {
			return s.enqueueUnique
		}
		if j.ClientID || j.Limit != nil {
			b = s.enqueueNamed
		}
	}
	return b
}

// enqueueMany is DoMany for jobs of one call.
func (s *Store) enqueueMany(ctx context.Context, jobs []*job.Job) (res []enqueued, errs []error) {
	res, errs = s.enqueuer(jobs...).DoMany(ctx, jobs)
	if !slices.ContainsFunc(res, isBusy) {
		return res, errs
	}
	if errs == nil {
		errs = make([]error, len(jobs))
	}
	late := s.retryBusy(ctx, func() bool {
		var busy []*job.Job
		var at []int
		for i := range res {
			if res[i].busy {
				busy, at = append(busy, jobs[i]), append(at, i)
			}
		}
		more, failed := s.enqueueUnique.DoMany(ctx, busy)
		for n, i := range at {
			if res[i] = more[n]; failed != nil {
				errs[i] = failed[n]
			}
		}
		return slices.ContainsFunc(more, isBusy)
	})
	for i := range res {
		if res[i].busy {
			errs[i] = late
		}
	}
	return res, errs
}

func isBusy(e enqueued) bool { return e.busy }

// EnqueueEach stores the jobs that can be stored. errs has the errors of the others; it is nil if none failed.
func (s *Store) EnqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	producer := producerOf(ctx)
	for _, job := range jobs {
		assignID(job)
		job.Producer = producer
	}
	spans := s.beginEnqueues(ctx, jobs)
	res, failed := s.enqueueMany(ctx, jobs)
	if failed == nil {
		stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	} else {
		stored, errs = s.settleEnqueues(ctx, jobs, failed)
	}
	bad := false
	for i := range res {
		if failed == nil || failed[i] == nil {
			stored[i], errs[i] = res[i].outcome(jobs[i])
		}
		bad = bad || errs[i] != nil
	}
	if !bad {
		errs = nil
	}
	endEnqueues(spans, jobs, stored)
	s.followEnqueued(ctx, jobs...)
	return stored, errs
}

// EnqueueAll stores all jobs in one transaction, or none. at is the index of the job that was refused, or -1.
func (s *Store) EnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	ids, producer := make(map[[16]byte]bool), producerOf(ctx)
	for i, job := range jobs {
		assignID(job)
		job.Producer = producer
		if job.ClientID {
			if ids[job.ID] {
				return nil, i, ojs.ErrDuplicateID(ojs.FormatID(job.ID))
			}
			ids[job.ID] = true
		}
	}
	spans := s.beginEnqueues(ctx, jobs)
	res, err := s.insert(ctx, s.db.Pool, newInsertion(jobs, true))
	if err != nil {
		stored, err = s.settleEnqueueAll(ctx, jobs, err)
		if err == nil {
			endEnqueues(spans, jobs, stored)
		}
		return stored, -1, err
	}
	stored = make([]*job.Record, len(jobs))
	for i := range res {
		if stored[i], err = res[i].outcome(jobs[i]); err != nil {
			return nil, i, err
		}
	}
	endEnqueues(spans, jobs, stored)
	s.afterEnqueue(ctx, res, nil)
	s.followEnqueued(ctx, jobs...)
	return stored, -1, nil
}

// assignID gives a job its id unless the client has chosen one, and its unique key if it has a policy.
func assignID(j *job.Job) {
	if !j.ClientID {
		j.ID = job.NewID()
	}
	unique.Assign(j)
}

// flushEnqueue stores jobs whose ids were made here, and gives them to parked fetches in the same transaction.
func (s *Store) flushEnqueue(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	s.assignLanes(ctx, s.db.Pool, jobs)
	if h := s.handoff(jobs); h != nil {
		if res, ok, err := s.enqueueAndClaim(ctx, jobs, h); ok {
			return res, err
		}
	}
	return s.flushEnqueueNamed(ctx, jobs)
}

// flushEnqueueNamed stores jobs some of whose ids clients have chosen.
func (s *Store) flushEnqueueNamed(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	return s.flushInsertion(ctx, newInsertion(jobs, false))
}

func (s *Store) flushInsertion(ctx context.Context, in *insertion) ([]enqueued, error) {
	res, err := s.insert(ctx, s.db.Pool, in)
	if err == nil {
		s.afterEnqueue(ctx, res, nil)
	}
	return res, err
}

// afterEnqueue emits the events of stored jobs and wakes fetches for those that are available and not claimed.
func (s *Store) afterEnqueue(ctx context.Context, res []enqueued, claimed map[[16]byte]bool) {
	a := afterCommit{places: make([]Place, 0, len(res))}
	for i := range res {
		r := &res[i]
		if r.job != nil && !claimed[r.job.ID] && !r.over {
			a.add(r.job.Queue, r.job.Lane, r.job.Priority, r.job.ReadySeq, pgtype.Text{})
			a.due(r.job.DueAt, r.job.CreatedAt)
		}
		for _, old := range r.replaced {
			s.awaiting.ended(old.ID)
			a.add("", "", 0, pgtype.Int8{}, old.Cron)
		}
	}
	eventlog.Emit(ctx, s.commits, res, insertChange)
	s.notify(ctx, a)
	s.commits.Committed()
}
