package queue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Retry moves a discarded job back to available with all its attempts (docs/reference/retries.md, Manual retry). It changes
// the attributes that override sets; nil changes none.
//
// A job in another state is 409, also a second call: the first one has made it available. The change, the read of the answer and
// the commit are one transaction, which may run again after a deadlock.
func (s *Store) Retry(ctx context.Context, id [16]byte, override *job.Override) (*job.Record, error) {
	var retried *job.Record
	err := s.InTx(ctx, func(tx *Tx) error {
		retried = nil // the transaction may be tried again
		q := dbsqlc.New(tx.tx)
		rows, duplicates, err := s.retryRows(ctx, q, manualRetry{ids: [][16]byte{id}, states: []ojs.JobState{ojs.StateDiscarded},
			override: override})
		// The error rolls back a transaction that has changed nothing, and ends the locks of the keys.
		if other, found := duplicates[id]; found && err == nil {
			return spec.Duplicate(spec.FormatID(other.ID), other.State, other.Key)
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		tx.changed, tx.did = &id, bulkDid(job.BulkRetry)
		tx.after = append(tx.after, func() { s.afterRetry(ctx, rows) })
		// In the transaction, so that the answer shows the job as this retry has left it, and not as the next worker has.
		jobs, err := q.JobListByID(ctx, job.MaxWholeSize(1), [][16]byte{id})
		if err == nil {
			retried = (*job.Record)(&jobs[0])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// The transaction has committed without a change.
	if retried == nil {
		stored, err := s.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		return nil, spec.Conflict(spec.FormatID(id), ojs.JobState(stored.State), ojs.StateDiscarded)
	}
	return retried, nil
}

// manualRetry moves the jobs that are in one of the states.
type manualRetry struct {
	ids      [][16]byte
	states   []ojs.JobState // discarded, retryable or both
	override *job.Override  // only with a single id
}

// retryRows locks the jobs, rewrites their JSON attributes and moves the jobs. q is a transaction. duplicates are the discarded jobs
// that stay so because another job with their unique key has not ended. The locks of the keys come before those of the rows, as
// everywhere.
//
// Rows that others have locked are waited for.
func (s *Store) retryRows(ctx context.Context, q *dbsqlc.Queries, r manualRetry) (rows []dbsqlc.JobRetryRow,
	duplicates map[[16]byte]uniqueHolder, err error) {
	if err := q.UniqueLockDiscarded(ctx, r.ids); err != nil {
		return nil, nil, err
	}
	// Its states are those under the lock; the jobs of other states stay as they are.
	locked, err := q.JobLockForRetry(ctx, dbsqlc.JobLockForRetryParams{Everything: r.override != nil, Ids: r.ids, States: texts(r.states)})
	if err != nil || len(locked) == 0 {
		return nil, nil, err
	}
	if duplicates, err = findDuplicates(ctx, q, locked); err != nil || len(duplicates) == len(locked) {
		return nil, duplicates, err
	}
	// Fields that stay unset leave the columns of the jobs as they are.
	p := dbsqlc.JobRetryParams{States: texts(r.states), Node: s.commits.Node, RequeueEventType: s.commits.RequeueEvent}
	// Inside of the transaction: the queue is not remembered, because it may roll back.
	if r.override != nil && r.override.Queue != "" && !s.queues.has(r.override.Queue, time.Now()) {
		if err := q.QueueInsert(ctx, []string{r.override.Queue}); err != nil {
			return nil, nil, err
		}
	}
	if r.override != nil {
		if locked[0].Extra, err = applyOverride(&p, *r.override, locked[0]); err != nil {
			return nil, nil, err
		}
		// Either may change the fairness key, and so the lane. The tenant stays.
		if p.Queue.Valid || p.Meta != nil {
			to, meta := cmp.Or(p.Queue.String, locked[0].Queue), p.Meta
			if meta == nil {
				meta = locked[0].Meta
			}
			p.Lane = pgtype.Text{String: job.Lane(job.TenantOf(locked[0].Lane), s.fairKeyIn(to, meta)), Valid: true}
		}
	}
	for _, j := range locked {
		if _, found := duplicates[j.ID]; found {
			continue
		}
		p.Ids = append(p.Ids, j.ID)
		p.Extras = append(p.Extras, j.Extra)
		// The database decides by its clock which of the two is stored.
		p.UnexpiredExtras = append(p.UnexpiredExtras, job.WithoutExpiry(j.Extra))
	}
	rows, err = q.JobRetry(ctx, p)
	return rows, duplicates, err
}

// findDuplicates finds, for discarded jobs with a unique key, another job with that key which has not ended. Of several jobs with a
// key the first one is retried.
// The caller has locked the keys, so none can be taken before the commit.
func findDuplicates(ctx context.Context, q *dbsqlc.Queries, locked []dbsqlc.JobLockForRetryRow) (map[[16]byte]uniqueHolder, error) {
	var keys []string
	for _, j := range locked {
		if j.UniqueKey.Valid && j.State == string(ojs.StateDiscarded) && !slices.Contains(keys, j.UniqueKey.String) {
			keys = append(keys, j.UniqueKey.String)
		}
	}
	if keys == nil {
		return nil, nil
	}
	held, err := liveHolders(ctx, q, keys)
	duplicates := map[[16]byte]uniqueHolder{}
	for _, j := range locked {
		if !j.UniqueKey.Valid || j.State != string(ojs.StateDiscarded) {
			continue
		}
		if other, found := held[j.UniqueKey.String]; found {
			duplicates[j.ID] = other
		} else {
			held[j.UniqueKey.String] = uniqueHolder{ID: j.ID, Key: j.UniqueKey.String, State: ojs.StateAvailable}
		}
	}
	return duplicates, err
}

// applyOverride sets the changed attributes and returns the new extra of the job.
// Only locked[0] is overridden, because a call with an override has one id. Its errors are those of the request, as at an
// enqueue.
func applyOverride(p *dbsqlc.JobRetryParams, o job.Override, j dbsqlc.JobLockForRetryRow) (extra []byte, err error) {
	if o.Queue != "" {
		p.Queue = pgtype.Text{String: o.Queue, Valid: true}
	}
	if o.Priority != nil {
		p.Priority = pgtype.Int2{Int16: *o.Priority, Valid: true}
	}
	// nil leaves the args as they are.
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
		p.OnExhaustion = pgtype.Text{String: policy.OnExhaustion, Valid: policy.OnExhaustion != ""}
	}
	return o.MergedExtra(j.Extra), nil
}

// afterRetry emits the events and notifies fetches, timer and relay.
func (s *Store) afterRetry(ctx context.Context, rows []dbsqlc.JobRetryRow) {
	eventlog.Emit(ctx, s.commits, rows, retryChange)
	var a afterCommit
	for _, r := range rows {
		a.add(jobChange{
			id: r.ID, queue: r.Queue, lane: r.Lane, priority: r.Priority, state: ojs.StateAvailable, readySeq: r.ReadySeq, dueAt: r.DueAt,
			now: r.EnqueuedAt, cron: r.Cron, limitKey: r.LimitKey,
		})
		addValid(&a.workflows, r.WorkflowID.Bytes, r.WorkflowID.Valid) // its step is open again
	}
	s.notify(ctx, a)
	s.follow(ctx, a)
}
