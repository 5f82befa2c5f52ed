package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

// A statement that changes jobs does not wait long for a row that another transaction has locked: an application that
// calls ojs.cancel and keeps its transaction open must not delay every caller that shares a flush with that job. The
// caller of the locked job tries again by itself and has no connection while it waits.

// ErrLocked means that the job is in a state that the request accepts, but another transaction has locked its row.
// It never reaches a client: it is answered 504 by lockedTooLong when the time is over.
var ErrLocked = errors.New("another transaction has locked the row of the job")

const (
	// lockTimeout is how long an ack waits for locked rows, as Postgres writes it. Statements of this server lock them for
	// milliseconds.
	// An application's lock delays the flush, and all its callers, by this once; shorter, and acks that wait behind a sweep on a
	// busy machine would take the slower way.
	lockTimeout = "500ms"

	// firstPause is about the time of a statement, maxPause bounds how late a caller learns of the end of a lock.
	firstPause = 2 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// LockWait paces the tries of one caller that waits for locked rows.
// It belongs to one goroutine. until is by the clock of this machine, as all limits of requests are.
type LockWait struct {
	until time.Time
	pause time.Duration
}

// LockWait returns the pacing of a caller that begins to wait now. It ends after the statement timeout.
func (s *Store) LockWait() LockWait {
	return LockWait{until: time.Now().Add(s.db.StatementTimeout), pause: firstPause}
}

// Again sleeps, longer each time, and reports whether there is time left for another try.
// It returns false without sleeping if the pause would end behind the limit.
func (w *LockWait) Again(ctx context.Context) bool {
	if time.Now().Add(w.pause).After(w.until) {
		return false
	}
	timer := time.NewTimer(w.pause)
	defer timer.Stop()
	w.pause = min(2*w.pause, maxPause)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// RetryLocked calls try until it returns something else than ErrLocked.
// try must be safe to repeat: ErrLocked means that it has changed nothing. Reports of progress and package worker use it, too.
func (s *Store) RetryLocked(ctx context.Context, try func() error) error {
	for wait := s.LockWait(); ; {
		err := try()
		if !errors.Is(err, ErrLocked) {
			return err
		}
		if !wait.Again(ctx) {
			return lockedTooLong(err)
		}
	}
}

// lockedTooLong names the usual cause for the log; the client gets a timeout.
func lockedTooLong(err error) error {
	return errors.Join(spec.Timeout(), fmt.Errorf("%w, perhaps one that called ojs.cancel and was left open", err))
}

// operation is a state change that callers request for single jobs and that is flushed for many.
//
// The steps of a request: flush; if the answer was lost, look it up; if there is no row, refuse; if the row is locked, wait and begin
// again. What follows in workflows and limits comes last, outside of every flush.
type operation[Req any] struct {
	store *Store
	batch *batch.Batcher[Req, *job.Record]
	run   func(Req) JobRun // the run of a job that a request is about

	// did reports whether a change is the one that a request asked for, and after is what its flush would have done after the
	// commit. Both are for requests whose answer from the database did not arrive.
	did   func(req Req, c dbsqlc.EventListOwnByJobRow) bool
	after func(ctx context.Context, job *job.Record)
}

// do performs one request. If the row of its job is locked, do performs it when the row is unlocked.
func (o operation[Req]) do(ctx context.Context, req Req) (*job.Record, error) {
	stored, err := o.try(ctx, req)
	if errors.Is(err, ErrLocked) {
		jobs, errs := []*job.Record{nil}, []error{err}
		o.retryLocked(ctx, []Req{req}, jobs, errs)
		stored, err = jobs[0], errs[0]
	}
	// Most jobs belong to neither, and pay only this test.
	if stored != nil && (stored.WorkflowID.Valid || stored.LimitKey.Valid) {
		o.store.followRecords(ctx, []*job.Record{stored})
	}
	return stored, err
}

// doEach performs the requests as if each were sent alone, in order. Large jobs among them are cut. errs is nil if none failed.
// The outcome of a request is in jobs or in errs, at its index. One failure leaves the others alone.
func (o operation[Req]) doEach(ctx context.Context, reqs []Req) (jobs []*job.Record, errs []error) {
	runs := make([]JobRun, len(reqs))
	for i, req := range reqs {
		runs[i] = o.run(req)
	}
	jobs, errs = o.batch.DoMany(ctx, reqs)
	o.lookUpLost(ctx, reqs, jobs, errs)
	jobs, errs = o.store.refuseMissing(ctx, jobs, errs, runs)
	o.retryLocked(ctx, reqs, jobs, errs)
	o.store.followRecords(ctx, jobs)
	return jobs, errs
}

// try performs one request once. No job in the answer means that the statement refused it; it is read then, to choose the error.
func (o operation[Req]) try(ctx context.Context, req Req) (*job.Record, error) {
	stored, err := o.batch.Do(ctx, req)
	if err != nil {
		jobs, errs := []*job.Record{nil}, []error{err}
		o.lookUpLost(ctx, []Req{req}, jobs, errs)
		return jobs[0], errs[0]
	}
	if stored == nil {
		return o.store.refuse(ctx, o.run(req))
	}
	// The statement leaves out args of large jobs if it has several. A single answer has to show all of it.
	if stored.Cut() {
		whole, err := o.store.Get(ctx, stored.ID)
		if err != nil { // the job is changed already, so the answer only lacks these parts
			o.store.logger.WarnContext(ctx, "a large job was changed but cannot be read; the answer lacks its args",
				slog.String("category", "error"), slog.Group("ojs", "job_id", spec.FormatID(stored.ID)), slog.Any("error", err))
			return stored, nil
		}
		// The row may have changed since, so only the attributes that a client has sent, and the history, are taken over.
		stored.Args, stored.Meta, stored.Extra, stored.Errors, stored.PreviousErrors = whole.Args, whole.Meta, whole.Extra, whole.Errors,
			whole.PreviousErrors
	}
	return stored, nil
}

// lookUpLost replaces the errors of requests whose answer from the database did not arrive, and stores the jobs of those that were
// carried out. A job may be in a later state by now.
func (o operation[Req]) lookUpLost(ctx context.Context, reqs []Req, jobs []*job.Record, errs []error) {
	if errs == nil {
		return
	}
	ids := make([][16]byte, len(reqs))
	for i, req := range reqs {
		ids[i] = o.run(req).JobID
	}
	for i, res := range o.store.lookUpLost(ctx, ids, errs, func(i int, c dbsqlc.EventListOwnByJobRow) bool { return o.did(reqs[i], c) }) {
		errs[i] = res.err
		if !res.done {
			continue
		}
		jobs[i], errs[i] = o.store.Get(context.WithoutCancel(ctx), ids[i])
		// after works on the row as it is now. If the job has moved on, who moved it has done what follows.
		if errs[i] == nil && jobs[i].State == res.change.ToState {
			o.after(ctx, jobs[i])
		}
	}
}

// retryLocked performs the requests whose error is ErrLocked when their rows are unlocked, and stores their outcomes in
// jobs and errs. It checks the locks first, because an ack of a locked job delays its whole flush.
// All locked requests of a call share one pace and one look.
func (o operation[Req]) retryLocked(ctx context.Context, reqs []Req, jobs []*job.Record, errs []error) {
	for wait := o.store.LockWait(); ; {
		var locked []int
		var ids [][16]byte
		for i, err := range errs {
			if errors.Is(err, ErrLocked) {
				locked, ids = append(locked, i), append(ids, o.run(reqs[i]).JobID)
			}
		}
		if locked == nil {
			return
		}
		if !wait.Again(ctx) {
			for _, i := range locked {
				errs[i] = lockedTooLong(errs[i])
			}
			return
		}
		// The locks that it takes end with the statement, so the answer is a hint: the next flush may find the row locked again.
		bounded, cancel := o.store.db.Bounded(ctx)
		unlocked, err := o.store.db.Q.JobLockUnlocked(bounded, ids)
		cancel()
		for n, i := range locked {
			switch {
			case err != nil:
				jobs[i], errs[i] = nil, pg.ClientError(err)
			case slices.Contains(unlocked, ids[n]):
				jobs[i], errs[i] = o.try(ctx, reqs[i])
			default: // still locked, or deleted meanwhile
				jobs[i], errs[i] = o.store.refuse(ctx, o.run(reqs[i]))
			}
		}
	}
}
