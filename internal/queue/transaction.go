package queue

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
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
	outcome := t.store.lookUpLost(ctx, [][16]byte{*t.changed}, []error{*err},
		func(_ int, c dbsqlc.EventListOwnByJobRow) bool { return t.did(c) })[0]
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

// enqueue returns the error of the transaction, after which it cannot go on; errs are those of jobs. Nothing is emitted before the
// commit: the closure at the end does it.
func (t *Tx) enqueue(ctx context.Context, jobs []*job.Job, atomic bool) (stored []*job.Record, errs []error, err error) {
	// Of jobs with one id the first is inserted; at has its index in firsts.
	firsts, at := make([]*job.Job, 0, len(jobs)), make(map[[16]byte]int, len(jobs))
	stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	for i, j := range jobs {
		assignID(j)
		if _, found := at[j.ID]; found {
			errs[i] = spec.DuplicateID(spec.FormatID(j.ID))
			continue
		}
		at[j.ID] = len(firsts)
		firsts = append(firsts, j)
	}
	duplicates := len(firsts) < len(jobs)
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
	for i, j := range jobs {
		if errs[i] == nil {
			stored[i], errs[i] = res[at[j.ID]].outcome(j)
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

// The state changes that another domain makes in a transaction of its own. The caller must call AfterCommit after its
// commit: only then are events emitted and fetches, timer and relay notified.

// Inserted are the jobs that a transaction has stored.
// The zero value stands for no insert: Append and AfterCommit accept it, and the methods with an index must not be called.
type Inserted struct {
	store *Store
	jobs  []*job.Job
	// In the order of jobs.
	rows []enqueued
}

// CreateQueues creates the queues of jobs that a transaction is going to insert, before it begins: other producers of a new queue
// would wait for its end.
// The rows of the queues commit at once, so they stay even if the transaction rolls back. Such a queue is deleted after 30 days
// (ojs.queues_prune). InsertTx finds them known and does not lock them again.
func (s *Store) CreateQueues(ctx context.Context, jobs []*job.Job) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.createQueues(ctx, s.db.Pool, jobs)
}

// InsertTx stores jobs in the caller's transaction. It leaves out a job whose id is taken or whose unique policy does not permit it;
// see Refused and Existing. It may wait for the locks of unique keys as long as the transaction permits.
//
// Crons and workflows call it. It decides about ids, keys and room in savepoints; after any other error the transaction cannot go
// on. Nothing may be shown to anybody before the caller has committed; then it calls AfterCommit, and CountRefused for what
// Refused has told.
func (s *Store) InsertTx(ctx context.Context, tx pgx.Tx, jobs []*job.Job) (Inserted, error) {
	for _, j := range jobs {
		if j.ID == [16]byte{} {
			assignID(j)
		}
	}
	AssignUniqueKeys(jobs...)
	in := newInsertion(jobs, false)
	// The caller has chosen how long its transaction waits.
	in.lockTimeout = ""
	rows, err := s.insert(ctx, tx, in)
	return Inserted{s, jobs, rows}, err
}

// Record is the job at an index of InsertTx; nil if it was not stored.
func (in Inserted) Record(i int) *job.Record { return in.rows[i].job }

// Existing is the equivalent job because of which the job at an index was not stored, if its policy is to ignore it then.
func (in Inserted) Existing(i int) *job.Record { return in.rows[i].existing }

// Refused is why the job at an index was not stored: spec.DuplicateID, spec.Duplicate or spec.QueueFull. nil if it was stored or ignored.
// The order is that of enqueued.outcome: a row has one of them at most.
func (in Inserted) Refused(i int) *ojs.Error {
	switch r := in.rows[i]; {
	case r.refused != nil:
		return r.refused
	case r.full != nil:
		return r.full
	case r.taken:
		return spec.DuplicateID(spec.FormatID(in.jobs[i].ID))
	}
	return nil
}

// Records are the jobs that were stored.
func (in Inserted) Records() (stored []*job.Record) {
	for _, r := range in.rows {
		if r.job != nil {
			stored = append(stored, r.job)
		}
	}
	return stored
}

// Append adds the jobs of another insert in the same transaction.
func (in *Inserted) Append(more Inserted) {
	in.store, in.jobs, in.rows = more.store, append(in.jobs, more.jobs...), append(in.rows, more.rows...)
}

// SetReady records that the caller has changed ready_seq and due_at of a job after its insert.
// Cron does so for jobs of serial crons, which wait for each other. Without it AfterCommit would wake fetches for a place that
// the job has lost.
func (in Inserted) SetReady(id [16]byte, readySeq pgtype.Int8, dueAt pgtype.Timestamptz) {
	i := slices.IndexFunc(in.rows, func(r enqueued) bool { return r.job != nil && r.job.ID == id })
	if i >= 0 {
		in.rows[i].job.ReadySeq, in.rows[i].job.DueAt = readySeq, dueAt
	}
}

// AfterCommit emits the events and notifies fetches, timer and relay.
// A node that stops before it leaves the jobs to the relay, to rescans and to the followers of workflows and limits.
func (in Inserted) AfterCommit(ctx context.Context) {
	if roots := in.AfterCommitWithoutWorkflows(ctx); len(roots) > 0 {
		in.store.followWorkflows(ctx, roots)
	}
}

// AfterCommitWithoutWorkflows is AfterCommit for a caller that must not wait for a workflow. It returns the roots of those whose jobs
// were cancelled or discarded for the new ones; the caller has them follow.
func (in Inserted) AfterCommitWithoutWorkflows(ctx context.Context) (roots [][16]byte) {
	if in.store == nil {
		return nil
	}
	in.store.afterEnqueue(ctx, in.rows, nil)
	a := in.store.movedByEnqueue(in.jobs)
	in.store.FollowLimits(ctx, a.limits)
	return a.workflows
}

// Cancelled are the jobs that a transaction has cancelled.
type Cancelled struct {
	store *Store
	rows  []dbsqlc.JobCancelRow
}

// CancelTx cancels the jobs that have not ended, in the caller's transaction. cancels has one element for each id.
// It waits for rows that other transactions have locked, as long as the caller's transaction permits. Jobs that have ended are
// left out.
func (s *Store) CancelTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, cancels []Cancel) (Cancelled, error) {
	return s.cancelTx(ctx, tx, source, ids, job.LiveStates, cancels)
}

// CancelUnlockedTx cancels, in the caller's transaction, those of the jobs that no other transaction has locked; without active,
// those of them that no worker runs. It returns how many were not looked at, because they are locked or do not exist.
//
// Locks are taken by JobLockUnlocked and kept to the end of the transaction, so that JobCancel does not wait. A finished job
// counts as skipped, too: its row is in jobs_done.
func (s *Store) CancelUnlockedTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, active bool, c Cancel) (done Cancelled,
	skipped int, err error) {
	unlocked, err := dbsqlc.New(tx).JobLockUnlocked(ctx, ids)
	if err != nil {
		return Cancelled{}, 0, err
	}
	states := job.WaitingStates
	if active {
		states = job.LiveStates
	}
	done, err = s.cancelTx(ctx, tx, source, unlocked, states, slices.Repeat([]Cancel{c}, len(unlocked)))
	return done, len(ids) - len(unlocked), err
}

func (s *Store) cancelTx(ctx context.Context, tx pgx.Tx, source string, ids [][16]byte, states []ojs.JobState, cancels []Cancel) (Cancelled,
	error) {
	if len(ids) == 0 {
		return Cancelled{s, nil}, nil
	}
	cs := make([]cancellation, len(ids))
	for i, c := range cancels {
		cs[i] = cancellation{ids[i], c.eventData()}
	}
	rows, err := dbsqlc.New(tx).JobCancel(ctx, s.cancelParams(cs, states, source))
	return Cancelled{s, rows}, err
}

// IDs are the jobs that were cancelled.
func (c Cancelled) IDs() [][16]byte {
	ids := make([][16]byte, len(c.rows))
	for i := range c.rows {
		ids[i] = c.rows[i].ID
	}
	return ids
}

// Append adds the jobs of another call in the same transaction.
func (c *Cancelled) Append(more Cancelled) {
	c.store, c.rows = more.store, append(c.rows, more.rows...)
}

// AfterCommit emits the events. It returns the crons of which jobs were cancelled.
// The caller releases these crons itself: package cron calls this in the middle of a firing, after which it releases all crons of
// it at once.
func (c Cancelled) AfterCommit(ctx context.Context) (crons []string) {
	if len(c.rows) == 0 {
		return nil
	}
	eventlog.Emit(ctx, c.store.commits, c.rows, cancelChange)
	var a afterCommit
	for i := range c.rows {
		a.add(recordChange((*job.Record)(&c.rows[i])))
	}
	crons, a.crons = a.crons, nil
	c.store.notify(ctx, a)
	c.store.followRecords(ctx, cancelledRecords(c.rows))
	return crons
}

// Answer is the stored reply of an idempotent call.
type Answer struct {
	Status   int
	Body     []byte
	Replayed bool
}

// IdempotencyKey identifies a call. A call with the same key and another Hash, of its body, is a conflict.
// See docs/reference/http.md, Idempotency keys. The same key may be used by another holder, that is with another API key or for another
// tenant, or for another operation.
type IdempotencyKey struct {
	Holder    string // the caller's API key, by its hash, and the tenant of the call (api.Caller.Holder); "": neither
	Operation string
	Key       string
	Hash      []byte
}

// errNotKept rolls back a transaction whose answer is not stored, because nothing was changed.
var errNotKept = errors.New("nothing was changed")

// Once runs do in a transaction with its key, so that the change and the stored answer commit together. The row of the key
// is inserted first: a concurrent call with the same key waits for this one and then replays its answer. With an empty key,
// Once only runs do. keep is false for an answer that changed nothing; the same call may then be tried again.
//
// do may run twice, after a deadlock, so it must not touch anything but the transaction and its own variables. If the answer to
// the commit was lost, Once finds out by a job that do has changed (Tx.committed).
func (s *Store) Once(ctx context.Context, k IdempotencyKey, do func(tx *Tx) (answer Answer, keep bool, err error)) (Answer, error) {
	var answer Answer
	err := s.InTx(ctx, func(tx *Tx) (err error) {
		replay, err := k.Claim(ctx, tx.tx)
		if err != nil || replay.Replayed {
			answer = replay
			return err
		}
		var keep bool
		if answer, keep, err = do(tx); err != nil {
			return err
		}
		// The rollback deletes the row of the key, too.
		if !keep {
			return errNotKept
		}
		return k.Keep(ctx, tx.tx, answer)
	})
	if errors.Is(err, errNotKept) {
		err = nil
	}
	return answer, err
}

// Claim inserts the row of the key in the caller's transaction, or reads the answer of the call that has inserted it. It does
// nothing for an empty key.
//
// The wait for a concurrent call is that for its uncommitted row; it ends with the timeouts of the transaction. If that call
// rolls back, this one inserts.
func (k IdempotencyKey) Claim(ctx context.Context, tx pgx.Tx) (Answer, error) {
	if k.Key == "" {
		return Answer{}, nil
	}
	q := dbsqlc.New(tx)
	n, err := q.IdempotencyKeyInsert(ctx, dbsqlc.IdempotencyKeyInsertParams{Holder: k.Holder, Operation: k.Operation, Key: k.Key,
		BodyHash: k.Hash})
	if err != nil || n == 1 {
		return Answer{}, err
	}
	// A statement of its own, whose snapshot has the row that the insert has waited for.
	row, err := q.IdempotencyKeyGet(ctx, dbsqlc.IdempotencyKeyGetParams{Holder: k.Holder, Operation: k.Operation, Key: k.Key})
	if err != nil {
		return Answer{}, err
	}
	if !bytes.Equal(row.BodyHash, k.Hash) {
		return Answer{}, spec.IdempotencyConflict(k.Key)
	}
	return Answer{Status: int(row.Status), Body: row.Response, Replayed: true}, nil
}

// Keep stores the answer of the call that has claimed the key, in the same transaction.
// Without it the key would be stored without an answer.
func (k IdempotencyKey) Keep(ctx context.Context, tx pgx.Tx, a Answer) error {
	if k.Key == "" {
		return nil
	}
	return dbsqlc.New(tx).IdempotencyKeyAnswer(ctx, dbsqlc.IdempotencyKeyAnswerParams{
		Holder: k.Holder, Operation: k.Operation, Key: k.Key, Status: int32(a.Status), Response: a.Body,
	})
}
