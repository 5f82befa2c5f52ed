package queue

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// BulkChange is a bulk operation over chosen jobs (docs/reference/http.md, Bulk change).
type BulkChange struct {
	Op     job.BulkOp
	IDs    [][16]byte
	States []ojs.JobState // in which jobs are taken; see Eligible
	Cancel Cancel
	Atomic bool // one job that is skipped or unknown undoes all
}

// BulkResult tells what became of each id.
type BulkResult struct {
	Changed  map[[16]byte]bool
	Eligible map[[16]byte]bool         // Changed, or what would have been without Atomic
	Skipped  map[[16]byte]ojs.JobState // state of the other stored jobs
}

// Eligible are the states in which an operation takes a job.
func Eligible(op job.BulkOp) []ojs.JobState {
	switch op {
	case job.BulkCancel:
		return idleStates
	case job.BulkRetry:
		return []ojs.JobState{ojs.StateDiscarded, ojs.StateRetryable}
	default:
		return []ojs.JobState{ojs.StateCompleted, ojs.StateCancelled, ojs.StateDiscarded}
	}
}

// errSkipped undoes an atomic operation that met an ineligible job.
var errSkipped = errors.New("a job is not eligible")

// Tx is a transaction of bulk operations. What others are told of it waits for its commit.
type Tx struct {
	store *Store
	tx    pgx.Tx
	after []func()
	spans map[*job.Job]tracing.Enqueue // begun: a transaction that is tried again goes on with them
}

// InTx runs do in a transaction, again after a deadlock, and tells fetchers, timers and the relay of its changes after
// commit.
func (s *Store) InTx(ctx context.Context, do func(tx *Tx) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	t := &Tx{store: s}
	run := func() error {
		return pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) error {
			t.tx, t.after = tx, nil
			return do(t)
		})
	}
	err := pg.Retry(run)
	if err != nil {
		return pg.ClientError(err)
	}
	for _, f := range t.after {
		f()
	}
	return nil
}

// Enqueue stores the jobs that can be stored, or with atomic all or none of them; errs tells why others were not (nil if
// all were).
func (t *Tx) Enqueue(ctx context.Context, jobs []*job.Job, atomic bool) (stored []*job.Record, errs []error, err error) {
	seen := make(map[[16]byte]int, len(jobs))
	errs = make([]error, len(jobs))
	bad := false
	var once []*job.Job // the first job of each id
	for i, job := range jobs {
		assignID(job)
		if _, twice := seen[job.ID]; twice {
			errs[i], bad = ojs.ErrDuplicateID(ojs.FormatID(job.ID)), true
			continue
		}
		seen[job.ID] = len(once)
		once = append(once, job)
	}
	if bad && atomic {
		return make([]*job.Record, len(jobs)), errs, nil
	}
	spans := t.beginEnqueues(ctx, jobs)
	res, err := t.store.insert(ctx, t.tx, once, atomic)
	if err != nil {
		return nil, nil, err
	}
	stored = make([]*job.Record, len(jobs))
	undone := false
	for i, job := range jobs {
		if errs[i] == nil {
			stored[i], errs[i] = res[seen[job.ID]].outcome(job)
			undone = undone || errs[i] != nil
		}
	}
	if undone && atomic {
		clear(stored)
		return stored, errs, nil
	}
	t.after = append(t.after, func() {
		endEnqueues(spans, stored)
		t.store.afterEnqueue(ctx, res)
	})
	if !bad && !undone {
		errs = nil
	}
	return stored, errs, nil
}

// Bulk changes the jobs in a savepoint of its own.
func (t *Tx) Bulk(ctx context.Context, b BulkChange) (BulkResult, error) {
	var changed map[[16]byte]bool
	var after func()
	err := pgx.BeginFunc(ctx, t.tx, func(tx pgx.Tx) (err error) {
		changed, after, err = t.store.bulk(ctx, dbsqlc.New(tx), b)
		if err == nil && b.Atomic && len(changed) < len(b.IDs) {
			return errSkipped
		}
		return err
	})
	if err != nil && !errors.Is(err, errSkipped) {
		return BulkResult{}, err
	}
	eligible := changed
	if errors.Is(err, errSkipped) {
		changed = nil
	} else if len(changed) > 0 {
		t.after = append(t.after, after)
	}
	res := BulkResult{Changed: changed, Eligible: eligible, Skipped: map[[16]byte]ojs.JobState{}}
	if len(eligible) == len(b.IDs) {
		return res, nil
	}
	rows, err := dbsqlc.New(t.tx).JobListByID(ctx, b.IDs)
	for _, r := range rows {
		if !eligible[r.ID] {
			res.Skipped[r.ID] = ojs.JobState(r.State)
		}
	}
	return res, err
}

// bulk returns what it changed, and what to do after commit.
func (s *Store) bulk(ctx context.Context, q *dbsqlc.Queries, b BulkChange) (map[[16]byte]bool, func(), error) {
	changed := make(map[[16]byte]bool, len(b.IDs))
	switch b.Op {
	case job.BulkCancel:
		cs := make([]cancellation, len(b.IDs))
		for i, id := range b.IDs {
			cs[i] = cancellation{id, b.Cancel.eventData()}
		}
		rows, err := s.cancelRows(ctx, q, cs, b.States)
		for _, r := range rows {
			changed[r.ID] = true
		}
		return changed, func() {
			eventlog.Emit(ctx, s.commits, rows, cancelChange)
			s.notify(ctx, afterCommit{crons: cronsOf(rows, cancelledCron)})
			s.commits.Committed()
		}, err
	case job.BulkRetry:
		rows, err := s.retryRows(ctx, q, retrial{ids: b.IDs, states: b.States})
		for _, r := range rows {
			changed[r.ID] = true
		}
		return changed, func() { s.afterRetry(ctx, rows) }, err
	default:
		gone, err := q.JobDelete(ctx, dbsqlc.JobDeleteParams{Ids: b.IDs, States: texts(b.States), Node: s.commits.Node})
		for _, r := range gone {
			changed[r.ID] = true
		}
		return changed, func() {
			eventlog.Emit(ctx, s.commits, gone, deleteChange)
			s.commits.Committed()
		}, err
	}
}
