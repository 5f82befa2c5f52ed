package queue

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

// Tx is a transaction of bulk operations. InTx calls the functions in after when it has committed.
//
// It belongs to one goroutine, and to one call of InTx. The API layers get it from Once, package deadletter from InTx.
type Tx struct {
	store *Store
	tx    pgx.Tx
	// Both in the order of the operations. A try that is repeated starts with none.
	after   []func()
	refused []error // of jobs that were refused, by full queues and others; see CountRefused

	// changed is one of the jobs that the transaction changes, and did tells that change from others; nil: none.
	changed *[16]byte
	did     func(c dbsqlc.EventListOwnByJobRow) bool

	spans map[*job.Job]tracing.Enqueue // kept when the transaction is tried again
}

// InTx runs do in a transaction, again after a deadlock. After the commit it emits the events and notifies fetches, timer
// and relay.
//
// An error of do rolls everything back, and nothing is emitted. If the answer to the commit was lost, InTx looks for an event of
// the transaction, and so tells nearly always what is true.
func (s *Store) InTx(ctx context.Context, do func(tx *Tx) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	if _, err := s.configured.View(ctx); err != nil { // what Enqueue needs; in the transaction it would need a second connection
		return err
	}
	t := &Tx{store: s}
	err := pg.Retry(func() error {
		return s.db.InTx(ctx, func(tx pgx.Tx) error {
			t.tx, t.after, t.refused, t.changed = tx, nil, nil, nil
			return do(t)
		})
	})
	if err != nil && !t.committed(ctx, &err) {
		if errors.Is(err, errNotKept) { // do has answered all the same
			s.CountRefused(ctx, t.refused...)
		}
		return err
	}
	s.CountRefused(ctx, t.refused...)
	for _, f := range t.after {
		f()
	}
	return nil
}

// committed reports whether a transaction whose answer from the database did not arrive has committed, and otherwise changes
// err to what clients are shown. A transaction that changed no job is as if it had.
// For a transaction without a change the difference matters to nobody: its key, if it had one, can be claimed again.
func (t *Tx) committed(ctx context.Context, err *error) bool {
	switch {
	case !pg.IsUnknown(*err):
		*err = pg.ClientError(*err)
		return false
	case t.changed == nil:
		return true
	}
	outcome := t.store.settleOne(ctx, *t.changed, *err, t.did)
	*err = outcome.err
	return outcome.done
}

// Enqueue stores the jobs that can be stored or, if atomic, all or none of them. errs has the errors of the others; it is
// nil if none failed.
//
// In the transaction nothing waits for room, so a queue that blocks refuses. Jobs are found again by their id: two with the same
// client-chosen id are an error of the later one.
func (t *Tx) Enqueue(ctx context.Context, jobs []*job.Job, atomic bool) (stored []*job.Record, errs []error, err error) {
	// On the connection of the transaction: all connections could be in transactions that wait for another one.
	errs = t.store.schemas.CheckEach(ctx, dbsqlc.New(t.tx), jobs)
	switch {
	case errs == nil:
		return t.enqueue(ctx, jobs, atomic)
	case atomic:
		return make([]*job.Record, len(jobs)), errs, nil
	}
	valid, at := without(jobs, errs)
	some, failed, err := t.enqueue(ctx, valid, false)
	if err != nil {
		return nil, nil, err
	}
	return spread(errs, at, some, failed), errs, nil
}

// The error is that of the transaction, after which it cannot go on; errs are those of jobs. Nothing is emitted before the
// commit: the closure at the end does it.
func (t *Tx) enqueue(ctx context.Context, jobs []*job.Job, atomic bool) (stored []*job.Record, errs []error, err error) {
	firsts, at, errs := distinct(jobs)
	duplicates := len(firsts) < len(jobs)
	stored = make([]*job.Record, len(jobs))
	if duplicates && atomic {
		return stored, errs, nil
	}
	for _, j := range jobs {
		j.Producer = producerOf(ctx)
	}
	spans := t.beginEnqueues(ctx, jobs)
	in := newInsertion(firsts, atomic)
	in.lockTimeout = uniqueLockTimeout
	res, err := t.store.insert(ctx, t.tx, in)
	if err != nil {
		return nil, nil, err
	}
	refused := false
	for i, job := range jobs {
		if errs[i] == nil {
			stored[i], errs[i] = res[at[job.ID]].outcome(job)
			refused = refused || errs[i] != nil
		}
	}
	if refused {
		t.refused = append(t.refused, errs...)
	}
	// insert has rolled back to its savepoint; the transaction goes on, for the key of the call.
	if refused && atomic {
		clear(stored)
		return stored, errs, nil
	}
	for i := range stored {
		if stored[i] != nil && !jobs[i].Outcome.Deduplicated {
			t.changed, t.did = &stored[i].ID, wasStored
		}
	}
	t.after = append(t.after, func() {
		endEnqueues(spans, jobs, stored)
		t.store.afterEnqueue(ctx, res, nil)
		t.store.followEnqueued(ctx, jobs...)
	})
	if !duplicates && !refused {
		errs = nil
	}
	return stored, errs, nil
}

// distinct gives the jobs their ids. It returns the first job of each id, its index in firsts by id, and errors for the
// other jobs.
func distinct(jobs []*job.Job) (firsts []*job.Job, at map[[16]byte]int, errs []error) {
	at = make(map[[16]byte]int, len(jobs))
	errs = make([]error, len(jobs))
	for i, job := range jobs {
		assignID(job)
		if _, found := at[job.ID]; found {
			errs[i] = spec.DuplicateID(spec.FormatID(job.ID))
			continue
		}
		at[job.ID] = len(firsts)
		firsts = append(firsts, job)
	}
	return firsts, at, errs
}
