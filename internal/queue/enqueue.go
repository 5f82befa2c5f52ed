package queue

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/unique"
)

// Enqueue stores a job (docs/reference/http.md, Enqueue). The error of an id that is taken is spec.DuplicateID.
//
// When it returns a job, the job and its event are committed. After spec.OutcomeUnknown it may be stored; a client that chose
// the id can repeat the call safely. A job that a policy has answered with an existing one is no error: Outcome.Deduplicated
// tells. It changes j: ID, UniqueKey, Producer, Lane, inherited timeouts and Outcome.
func (s *Store) Enqueue(ctx context.Context, j *job.Job) (stored *job.Record, err error) {
	// Before the id is assigned and before any lock: a refused job costs no place in a flush. A schema that changes until the
	// insert is not looked at again.
	if _, err := s.checkSchemas(ctx, j); err != nil {
		return nil, err
	}
	assignID(j)
	j.Producer = producerOf(ctx)
	// It may add a trace context to meta, so it comes before the first try, and once.
	span := s.tracer.Enqueue(ctx, j)
	err = s.RetryFull(ctx, j.BlockFor, func() error {
		stored, err = s.tryEnqueue(ctx, j)
		return err
	})
	switch {
	case err != nil:
	case !j.Outcome.Deduplicated:
		span.Accepted(stored.ID, stored.State)
	case stored.Cut(): // it was read together with the answers of others
		if whole, err := s.Get(ctx, stored.ID); err == nil {
			stored = whole
		}
	}
	// Also after an error: a refused job may have dropped others, of which there were too few.
	s.followEnqueued(ctx, j)
	return stored, err
}

// It is one insert, and more of them while the unique key is locked. The error of a full queue leads to another call by
// RetryFull.
func (s *Store) tryEnqueue(ctx context.Context, j *job.Job) (*job.Record, error) {
	enqueuer := s.enqueuer(j)
	res, err := enqueuer.Do(ctx, j)
	if res.busy {
		late := s.retryBusy(ctx, func() bool {
			res, err = enqueuer.Do(ctx, j)
			return res.busy
		})
		err = cmp.Or(err, late)
	}
	if err == nil {
		return res.outcome(j)
	}
	// The answer of the database may be lost although the row is there.
	all, errs := s.settleEnqueues(ctx, []*job.Job{j}, []error{err})
	return all[0], errs[0]
}

// enqueuer is the batcher for jobs of one call.
//
// A job that waits in its batcher while the configuration of its queue changes is judged by the new one all the same: insert
// reads it again. Only the claim for parked fetches (enqueueAndClaim) relies on the choice: its jobs have no bound, no limit and
// no policy.
func (s *Store) enqueuer(jobs ...*job.Job) *batch.Batcher[*job.Job, enqueued] {
	b := s.enqueue
	for _, j := range jobs {
		switch {
		case s.bounded(j.Queue):
			return s.enqueueBounded
		case j.Unique != nil:
			b = s.enqueueUnique
		case (j.ClientID || j.Limit != nil) && b == s.enqueue:
			b = s.enqueueNamed
		}
	}
	return b
}

// enqueueMany is DoMany for jobs of one call.
// Jobs of locked unique keys are tried again together, while those that are done keep their outcome.
func (s *Store) enqueueMany(ctx context.Context, jobs []*job.Job) (res []enqueued, errs []error) {
	enqueuer := s.enqueuer(jobs...)
	res, errs = enqueuer.DoMany(ctx, jobs)
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
		more, failed := enqueuer.DoMany(ctx, busy)
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
// Each job is stored, or refused, as if it came alone; some may be committed when others fail.
func (s *Store) EnqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	if errs := s.schemas.CheckEach(ctx, s.db.Q, jobs); errs != nil {
		valid, at := without(jobs, errs)
		stored, failed := s.enqueueEach(ctx, valid)
		return spread(errs, at, stored, failed), errs
	}
	return s.enqueueEach(ctx, jobs)
}

// Jobs whose args violate a schema have been left out by EnqueueEach.
func (s *Store) enqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	// todo shrinks to the jobs that a queue with the policy to block has refused.
	producer, todo := producerOf(ctx), make([]int, len(jobs))
	for i, job := range jobs {
		assignID(job)
		job.Producer = producer
		todo[i] = i
	}
	spans := s.beginEnqueues(ctx, jobs)
	stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	// All jobs of a call have the same BlockFor. Only those without room are tried again; its error is one of errs.
	_ = s.retryFull(ctx, jobs[0].BlockFor, func() error {
		s.tryEnqueueEach(ctx, jobs, todo, stored, errs)
		todo = slices.DeleteFunc(todo, func(i int) bool { _, blocks := blockedQueue(errs[i]); return !blocks })
		if len(todo) > 0 {
			return errs[todo[0]]
		}
		return nil
	})
	s.CountRefused(ctx, errs...)
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		errs = nil
	}
	endEnqueues(spans, jobs, stored)
	s.followEnqueued(ctx, jobs...)
	return stored, errs
}

// tryEnqueueEach tries the jobs at these indexes, and sets their outcomes.
func (s *Store) tryEnqueueEach(ctx context.Context, jobs []*job.Job, todo []int, stored []*job.Record, errs []error) {
	part := make([]*job.Job, len(todo))
	for n, i := range todo {
		part[n] = jobs[i]
	}
	res, failed := s.enqueueMany(ctx, part)
	var settled []*job.Record
	if failed != nil {
		settled, failed = s.settleEnqueues(ctx, part, failed)
	}
	for n, i := range todo {
		if failed != nil && (failed[n] != nil || settled[n] != nil) {
			stored[i], errs[i] = settled[n], failed[n]
		} else {
			stored[i], errs[i] = res[n].outcome(part[n])
		}
	}
}

// EnqueueAll stores all jobs in one transaction, or none. at is the index of the job that was refused, or -1.
//
// Unlike the others it has a transaction of its own and shares no flush, so one refused job costs nobody else. Two jobs with one
// client-chosen id are refused before anything is sent.
func (s *Store) EnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	if at, err := s.checkSchemas(ctx, jobs...); err != nil {
		return nil, at, err
	}
	ids, producer := make(map[[16]byte]bool), producerOf(ctx)
	for i, job := range jobs {
		assignID(job)
		job.Producer = producer
		if job.ClientID {
			if ids[job.ID] {
				return nil, i, spec.DuplicateID(spec.FormatID(job.ID))
			}
			ids[job.ID] = true
		}
	}
	if len(jobs) == 0 {
		return nil, -1, nil
	}
	spans := s.beginEnqueues(ctx, jobs)
	err = s.RetryFull(ctx, jobs[0].BlockFor, func() error {
		stored, at, err = s.tryEnqueueAll(ctx, jobs)
		return err
	})
	if err != nil {
		return nil, at, err
	}
	endEnqueues(spans, jobs, stored)
	s.followEnqueued(ctx, jobs...)
	return stored, -1, nil
}

// It emits the events itself, since no flush does. An error for one job is returned with its index, and nothing was stored.
func (s *Store) tryEnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	res, err := s.insert(ctx, s.db.Pool, newInsertion(jobs, true))
	if err != nil {
		stored, err = s.settleEnqueueAll(ctx, jobs, err)
		return stored, -1, err
	}
	stored = make([]*job.Record, len(jobs))
	// One refused job means that insert has rolled everything back.
	for i := range res {
		if stored[i], err = res[i].outcome(jobs[i]); err != nil {
			return nil, i, err
		}
	}
	s.afterEnqueue(ctx, res, nil)
	return stored, -1, nil
}

// assignID gives a job its id unless the client has chosen one, and its unique key if it has a policy.
// Each call makes a new id, unless the client has chosen one: a transaction that is tried again inserts other ids. The key stays
// as it is.
func assignID(j *job.Job) {
	if !j.ClientID {
		j.ID = job.NewID()
	}
	unique.Assign(j)
}

// flushEnqueue stores jobs whose ids were made here, and gives them to parked fetches in the same transaction.
func (s *Store) flushEnqueue(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	// Before handoff, because a fetch of a tenant may only get jobs of its lanes. insert does it again, with the same result.
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

// Nothing is emitted after an error, also if the insert may have committed: settleEnqueues does it when that is known.
func (s *Store) flushInsertion(ctx context.Context, in *insertion) ([]enqueued, error) {
	res, err := s.insert(ctx, s.db.Pool, in)
	if err == nil {
		s.afterEnqueue(ctx, res, nil)
	}
	return res, err
}

// afterEnqueue emits the events of stored jobs and wakes fetches for those that are available and not claimed.
//
// claimed are jobs that a handoff has claimed in the same transaction: waking a fetch for them would make it claim in vain.
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
		for _, old := range r.dropped {
			s.awaiting.ended(old.ID)
			a.add("", "", 0, pgtype.Int8{}, old.Cron)
		}
	}
	// Events before fetches: the log line of an enqueue stands before that of its start.
	eventlog.Emit(ctx, s.commits, res, insertChange)
	s.notify(ctx, a)
	s.commits.Committed()
}
