package queue

import (
	"cmp"
	"context"
	"slices"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
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
	// A full queue that blocks is tried again.
	err = s.RetryFull(ctx, j.BlockFor, func() error {
		enqueuer := s.enqueuer(j)
		res, err := enqueuer.Do(ctx, j)
		if res.keyLocked { // another transaction has locked the unique key
			late := s.retryLockedKeys(ctx, func() bool {
				res, err = enqueuer.Do(ctx, j)
				return res.keyLocked
			})
			err = cmp.Or(err, late)
		}
		if err == nil {
			stored, err = res.outcome(j)
			return err
		}
		// The answer of the database may be lost although the row is there.
		all, errs := s.lookUpEnqueues(ctx, []*job.Job{j}, []error{err})
		stored = all[0]
		return errs[0]
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

// enqueueEach gets jobs without those whose args violate a schema (EnqueueEach).
func (s *Store) enqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	// todo shrinks to the jobs that a queue with the policy to block has refused.
	producer, todo := producerOf(ctx), make([]int, len(jobs))
	for i, j := range jobs {
		assignID(j)
		j.Producer = producer
		todo[i] = i
	}
	spans := s.beginEnqueues(ctx, jobs)
	stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	// All jobs of a call have the same BlockFor. Only those without room are tried again; its error is one of errs.
	_ = s.retryFull(ctx, jobs[0].BlockFor, func() error {
		part := make([]*job.Job, len(todo))
		for n, i := range todo {
			part[n] = jobs[i]
		}
		res, failed := s.enqueueMany(ctx, part)
		var settled []*job.Record
		if failed != nil {
			settled, failed = s.lookUpEnqueues(ctx, part, failed)
		}
		for n, i := range todo {
			if failed != nil && (failed[n] != nil || settled[n] != nil) {
				stored[i], errs[i] = settled[n], failed[n]
			} else {
				stored[i], errs[i] = res[n].outcome(part[n])
			}
		}
		todo = slices.DeleteFunc(todo, func(i int) bool { _, blocks := queueToAwait(errs[i]); return !blocks })
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

// EnqueueAll stores all jobs in one transaction, or none. at is the index of the job that was refused, or -1.
//
// Unlike the others it has a transaction of its own and shares no flush, so one refused job costs nobody else. Two jobs with one
// client-chosen id are refused before anything is sent.
func (s *Store) EnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	if at, err := s.checkSchemas(ctx, jobs...); err != nil {
		return nil, at, err
	}
	ids, producer := make(map[[16]byte]bool), producerOf(ctx)
	for i, j := range jobs {
		assignID(j)
		j.Producer = producer
		if j.ClientID {
			if ids[j.ID] {
				return nil, i, spec.DuplicateID(spec.FormatID(j.ID))
			}
			ids[j.ID] = true
		}
	}
	if len(jobs) == 0 {
		return nil, -1, nil
	}
	spans := s.beginEnqueues(ctx, jobs)
	err = s.RetryFull(ctx, jobs[0].BlockFor, func() error {
		stored, at = make([]*job.Record, len(jobs)), -1
		res, err := s.insert(ctx, s.db.Pool, newInsertion(jobs, true))
		if err != nil {
			stored, err = s.lookUpEnqueueAll(ctx, jobs, err)
			return err
		}
		// One refused job means that insert has rolled everything back.
		for i := range res {
			if stored[i], err = res[i].outcome(jobs[i]); err != nil {
				at = i
				return err
			}
		}
		s.afterEnqueue(ctx, res, nil) // no flush does it
		return nil
	})
	if err != nil {
		return nil, at, err
	}
	endEnqueues(spans, jobs, stored)
	s.followEnqueued(ctx, jobs...)
	return stored, -1, nil
}

// enqueuer is the batcher for jobs of one call.
//
// A job that waits in its batcher while the configuration of its queue changes is judged by the new one all the same: insert
// reads it again. Only the claim for waiting fetches (enqueueAndClaim) relies on the choice: its jobs have no bound, no limit and
// no policy.
func (s *Store) enqueuer(jobs ...*job.Job) *batch.Batcher[*job.Job, enqueued] {
	b := s.enqueue
	for _, j := range jobs {
		switch {
		case boundOf(s.configured.Known(j.Queue)) != nil:
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
	if !slices.ContainsFunc(res, isKeyLocked) {
		return res, errs
	}
	if errs == nil {
		errs = make([]error, len(jobs))
	}
	late := s.retryLockedKeys(ctx, func() bool {
		var locked []*job.Job
		var at []int
		for i := range res {
			if res[i].keyLocked {
				locked, at = append(locked, jobs[i]), append(at, i)
			}
		}
		more, failed := enqueuer.DoMany(ctx, locked)
		for n, i := range at {
			if res[i] = more[n]; failed != nil {
				errs[i] = failed[n]
			}
		}
		return slices.ContainsFunc(more, isKeyLocked)
	})
	for i := range res {
		if res[i].keyLocked {
			errs[i] = late
		}
	}
	return res, errs
}

func isKeyLocked(e enqueued) bool { return e.keyLocked }

// assignID gives a job its id unless the client has chosen one, and its unique key if it has a policy.
// Each call makes a new id, unless the client has chosen one: a transaction that is tried again inserts other ids. The key stays
// as it is.
func assignID(j *job.Job) {
	if !j.ClientID {
		j.ID = job.NewID()
	}
	AssignUniqueKeys(j)
}

// producerKey is the key of the principal in a context.
// The API layers set it after authentication; the store copies it into job.Job.Producer, because a flush runs in the context of
// one of its callers.
type producerKey struct{}

// WithProducer returns the context of calls that a principal makes; "": nobody has authenticated.
func WithProducer(ctx context.Context, principal string) context.Context {
	if principal == "" {
		return ctx
	}
	return context.WithValue(ctx, producerKey{}, principal)
}

func producerOf(ctx context.Context) string {
	principal, _ := ctx.Value(producerKey{}).(string)
	return principal
}

// Admit checks jobs that are going to be stored later, as steps of a workflow, and gives each what it inherits of its queue. at is the
// index of the first that is refused.
//
// Nothing is stored. Package workflow marks the jobs of later steps as admitted then, and their later insert does not check type, producer
// and draining again: a queue that drains must not end a workflow that it has accepted.
func (s *Store) Admit(ctx context.Context, jobs []*job.Job) (at int, err error) {
	for _, j := range jobs {
		j.Producer = producerOf(ctx)
	}
	in := newInsertion(jobs, true)
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	if err := s.acceptByQueue(ctx, s.db.Pool, in); err != nil {
		return -1, err
	}
	for i := range in.res {
		if in.res[i].refused != nil {
			return i, in.res[i].refused
		}
	}
	return -1, nil
}

// checkSchemas refuses jobs whose args violate a schema; at is the index of the first one.
// It runs outside of flushes and transactions, because a check may take long (schema/compile.go bounds it).
func (s *Store) checkSchemas(ctx context.Context, jobs ...*job.Job) (at int, err error) {
	at, err = s.schemas.Check(ctx, s.db.Q, jobs...)
	return at, pg.ClientError(err)
}

// without are the jobs that have no error, and their indexes.
func without(jobs []*job.Job, errs []error) (valid []*job.Job, at []int) {
	for i, j := range jobs {
		if errs[i] == nil {
			valid, at = append(valid, j), append(at, i)
		}
	}
	return valid, at
}

// spread puts the outcomes of the jobs at some indexes among the errors of the others.
func spread(errs []error, at []int, stored []*job.Record, failed []error) []*job.Record {
	all := make([]*job.Record, len(errs))
	for n, i := range at {
		all[i] = stored[n]
		if failed != nil {
			errs[i] = failed[n]
		}
	}
	return all
}

// beginEnqueues starts the spans of jobs that will be stored; nil if none are recorded.
// Most nodes record none, hence the slice that is made late.
func (s *Store) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, j := range jobs {
		span := s.tracer.Enqueue(ctx, j)
		if !span.Begun() {
			continue
		}
		if spans == nil {
			spans = make([]tracing.Enqueue, len(jobs))
		}
		spans[i] = span
	}
	return spans
}

// beginEnqueues does the same in a transaction. When the transaction is tried again, it returns the spans of the first try.
// Otherwise a deadlock would leave spans that nobody ends.
func (t *Tx) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, j := range jobs {
		span, begun := t.spans[j]
		if !begun {
			if span = t.store.tracer.Enqueue(ctx, j); !span.Begun() {
				continue
			}
			if t.spans == nil {
				t.spans = map[*job.Job]tracing.Enqueue{}
			}
			t.spans[j] = span
		}
		if spans == nil {
			spans = make([]tracing.Enqueue, len(jobs))
		}
		spans[i] = span
	}
	return spans
}

// endEnqueues ends the spans of the jobs that were stored.
func endEnqueues(spans []tracing.Enqueue, jobs []*job.Job, stored []*job.Record) {
	for i, span := range spans {
		if stored[i] != nil && !jobs[i].Outcome.Deduplicated {
			span.Accepted(stored[i].ID, stored[i].State)
		}
	}
}
