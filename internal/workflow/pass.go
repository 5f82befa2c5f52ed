package workflow

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
)

// pass is one transaction that changes a tree. Steps are changed by their statements at once; the workflows above them are kept in
// memory and stored at the end. Events are written before the jobs that begin because of them.
//
// A pass belongs to one goroutine and one try of one transaction. It must be thrown away if the transaction is rolled back,
// because its counts are then ahead of the rows. All its statements that change the tree run after lock, or, in a creation,
// on rows that no other transaction sees.
//
// now is the clock of the database, read once, so all that a pass ends has the same time. flows has the workflows that
// were read so far; a nil value marks a number that was asked for and has no row. later is nil in a creation and a cancel:
// their statements go to tx one by one. inserted, changes, spans and ended are collected for committed; nothing of them may
// leave the node before.
type pass struct {
	s     *Store
	tx    pgx.Tx
	q     *dbsqlc.Queries
	later *pg.Deferred // q goes through it; nil: q goes to tx

	now    pgtype.Timestamptz // read under the lock of the root
	root   *flow
	flows  map[int32]*flow
	events []event
	starts []start // steps that begin, in order
	batch  batch   // of them, those whose jobs are to be inserted next
	source string  // of the events of inserted jobs

	creating bool // the workflow is new: bounded queues may refuse its jobs

	inserted queue.Inserted
	changes  []eventlog.Change
	spans    []enqueueSpan
	ended    *endedRoot
}

// flow is a workflow of the tree. The embedded row is the truth of this transaction, ahead of the stored row while changed
// is set. Statements that read or change rows of workflows in SQL (WorkflowEndBelow, WorkflowFirstFailure) need store
// before them.
type flow struct {
	dbsqlc.Workflow
	changed bool
}

func (f *flow) running() bool { return f.State == running }

// step is what decisions need to know of a step. Its state is the one before the change that is followed, until moved has
// counted it. Steps are not cached, unlike workflows: a portion touches a step once, except that of a nested workflow,
// whose row WorkflowStepEnd changes at once.
type step struct {
	flow, index int32
	id          string
	kind        string
	jobType     string
	callback    string
	state       string
	job         [16]byte
}

// place tells steps of a tree apart. A step id does not: it is unique among siblings only.
type place struct{ flow, index int32 }

func newPass(s *Store, tx pgx.Tx) *pass {
	return &pass{s: s, tx: tx, q: dbsqlc.New(tx), flows: map[int32]*flow{}, source: "scheduler"}
}

// lock locks the tree and reads the clock, and sends more statements in the same round trip. It reports false if the root does not
// exist. Each statement has a snapshot of its own, so those behind the lock see what its last holder has committed. The
// clock is read behind the lock. Read before, it would be older than what the last holder of the lock stored, and a tree
// could end before its last step. The lock waits without a limit of its own (lock_timeout is 0); the limit of the statement
// and that of the context end it.
func (p *pass) lock(ctx context.Context, root [16]byte, more ...pg.Step) (bool, error) {
	var rows []dbsqlc.WorkflowLockRow
	err := pg.Pipeline(ctx, p.tx, append([]pg.Step{
		func(db dbsqlc.DBTX) (err error) {
			rows, err = dbsqlc.New(db).WorkflowLock(ctx, root)
			return err
		},
		func(db dbsqlc.DBTX) (err error) {
			p.now, err = dbsqlc.New(db).SystemPing(ctx)
			return err
		},
	}, more...)...)
	if err != nil || len(rows) == 0 {
		return false, err
	}
	p.addRoot(rows[0].Workflow)
	return true, nil
}

func (p *pass) addRoot(w dbsqlc.Workflow) {
	p.root = &flow{Workflow: w}
	p.flows[0] = p.root
}

// load reads workflows of the tree that were not read yet, and those above them. Counts go upwards through all ancestors
// (see count), so a workflow without those above it is of no use. The loop ends: ancestors of ancestors were named by the
// first rows, so the second round is the last one that finds rows.
func (p *pass) load(ctx context.Context, numbers []int32) error {
	for len(numbers) > 0 {
		var missing []int32
		for _, n := range numbers {
			if _, known := p.flows[n]; !known {
				// The mark keeps a number from being asked for twice, in this call and in later ones.
				p.flows[n] = nil
				missing = append(missing, n)
			}
		}
		numbers = nil
		for len(missing) > 0 {
			n := min(portion, len(missing))
			rows, err := p.q.WorkflowListFlows(ctx, p.root.ID, missing[:n])
			if err != nil {
				return err
			}
			for _, r := range rows {
				p.flows[r.Workflow.Flow] = &flow{Workflow: r.Workflow}
				numbers = append(numbers, r.Workflow.Ancestors...)
			}
			missing = missing[n:]
		}
	}
	return nil
}

// It returns nil without an error if there is no such row, which no statement of the project leaves behind; callers then do
// nothing.
func (p *pass) flow(ctx context.Context, number int32) (*flow, error) {
	if p.flows[number] == nil {
		if err := p.load(ctx, []int32{number}); err != nil {
			return nil, err
		}
	}
	return p.flows[number], nil
}

// advance follows up to a portion of the changes of the tree's jobs and returns how many there were, and whether there may be more. Its
// statements without a result wait for the next one with a result: that halves the round trips of a step. A step of a chain
// takes 7 round trips; it took 12 when every statement had its own.
//
// The pending rows are listed in the round trip of the lock. That is safe because each statement of it has a snapshot of
// its own, taken after the lock was granted: rows that the last holder deleted are not seen again.
func (p *pass) advance(ctx context.Context, root [16]byte) (moved int, more bool, err error) {
	// Everything that uses tx directly has to call Flush before, or the order of the statements changes.
	p.later = pg.NewDeferred(p.tx)
	p.q = dbsqlc.New(p.later)
	var rows []dbsqlc.WorkflowPendingListRow
	found, err := p.lock(ctx, root, func(db dbsqlc.DBTX) (err error) {
		rows, err = dbsqlc.New(db).WorkflowPendingList(ctx, root, portion)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	// The tree was deleted by retention, and one of its jobs changed later, for example a dead letter that was retried by
	// hand. Nothing can follow it. The delete needs no lock: if two nodes run it, each row is deleted by one of them.
	if !found {
		n, err := dbsqlc.New(p.tx).WorkflowPendingDelete(ctx, root, portion)
		return int(n), n == portion, err
	}
	if len(rows) == 0 {
		return 0, false, nil
	}
	more = len(rows) == portion
	// more is set: the rest of the rows stays pending and is taken by the next portion.
	if n := oneOfEach(rows); n < len(rows) {
		rows, more = rows[:n], true
	}
	var numbers []int32
	for _, r := range rows {
		if r.Flow >= 0 {
			numbers = append(numbers, r.Flow)
		}
	}
	if err := p.load(ctx, numbers); err != nil {
		return 0, false, err
	}
	// The rows of all steps are stored before the first decision: when a member ends its group, the values of the members
	// are read from the table, and must include those of the same portion.
	followed, err := p.take(ctx, rows)
	if err != nil {
		return 0, false, err
	}
	for _, r := range followed {
		if err := p.follow(ctx, r); err != nil {
			return 0, false, err
		}
	}
	if err := p.settle(ctx); err != nil {
		return 0, false, err
	}
	// The last deferred statements, those of store, go before the commit.
	return len(rows), more, p.later.Flush(ctx)
}

// oneOfEach counts the changes up to the second one of a job, which follows in a transaction of its own: whether it still matters
// depends on what the first has led to. A job has two pending changes if it was discarded, retried by hand, and ended again
// before its tree followed.
func oneOfEach(rows []dbsqlc.WorkflowPendingListRow) int {
	seen := make(map[[16]byte]bool, len(rows))
	for i, r := range rows {
		if seen[r.JobID] {
			return i
		}
		seen[r.JobID] = true
	}
	return len(rows)
}

// decided reports whether a change, that of a job which was retried by hand, comes too late: the step has ended, and what follows from its
// end has been decided, because callbacks were fired or its nested workflow has ended. The step stays as it is then, or a workflow could
// fail without a failure. After the end of the whole tree it shows what became of the job. (docs/reference/workflows.md,
// States: the last paragraph). The pending row is deleted all the same.
func (p *pass) decided(r *dbsqlc.WorkflowPendingListRow) bool {
	f := p.flows[r.Flow]
	return f != nil && p.root.running() && r.Kind != kindCallback && r.StepState != pending && (!f.running() || f.MembersFailed.Valid)
}

// take removes the changes, stores them in the steps of their jobs, and returns those that matter. A change of a job that
// no step has is deleted without any effect.
func (p *pass) take(ctx context.Context, rows []dbsqlc.WorkflowPendingListRow) (followed []*dbsqlc.WorkflowPendingListRow, err error) {
	a := dbsqlc.WorkflowPendingApplyParams{RootID: p.root.ID, Ids: make([]int64, len(rows))}
	of := make(map[[16]byte]*dbsqlc.WorkflowPendingListRow, len(rows))
	for i := range rows {
		a.Ids[i] = rows[i].ID
		if rows[i].Flow >= 0 && !p.decided(&rows[i]) { // below 0: the job is that of no step
			of[rows[i].JobID] = &rows[i]
			followed = append(followed, &rows[i])
		}
	}
	// WorkflowPendingApply finds the element of a job by width_bucket, which requires ascending ids without duplicates;
	// oneOfEach and the map see to the latter.
	a.JobIds = slices.SortedFunc(maps.Keys(of), func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) })
	for _, id := range a.JobIds {
		r, state := of[id], stepState(of[id].State)
		ended := r.At
		// A job that was retried by hand takes back the end of its step.
		ended.Valid = state != pending
		a.LastIds, a.States, a.Attempts = append(a.LastIds, r.ID), append(a.States, state), append(a.Attempts, r.Attempt.Int32)
		a.StartedAt, a.EndedAt, a.Errors = append(a.StartedAt, r.StartedAt), append(a.EndedAt, ended), append(a.Errors, r.Error)
	}
	return followed, p.q.WorkflowPendingApply(ctx, a)
}

// follow applies one change of a job. The state of the step in r is the one before take, so moved sees the transition. Two
// rows of a portion are never of the same step, so it cannot be stale.
func (p *pass) follow(ctx context.Context, r *dbsqlc.WorkflowPendingListRow) error {
	st := &step{flow: r.Flow, index: r.Index, id: r.StepID, kind: r.Kind, jobType: r.Type, callback: r.Callback, state: r.StepState, job: r.JobID}
	return p.moved(ctx, st, stepState(r.State), cause{row: r, trace: p.s.tracer.Executed(r.JobID)})
}

// stepState is the state of the step of a job. Every state in which a job can still run is pending, also retryable: a retry
// is no failure (docs/reference/workflows.md, States).
func stepState(job string) string {
	switch job {
	case completed, cancelled:
		return job
	case "discarded":
		return failed
	}
	return pending
}

// settle writes events and begins steps until nothing follows, and stores the workflows. The order inside a round is
// visible to clients: workflow.step_completed comes before job.enqueued of the jobs that follow
// (docs/reference/workflows.md, Events). A round can lead to another one, because a step that a unique policy refuses, or
// replaces by an existing job, ends at once. The loop ends because every round begins steps that have not begun before.
func (p *pass) settle(ctx context.Context) error {
	for len(p.events) > 0 || len(p.starts) > 0 || len(p.batch.items) > 0 {
		if err := p.writeEvents(ctx); err != nil {
			return err
		}
		if err := p.beginStarts(ctx); err != nil {
			return err
		}
		if err := p.insert(ctx); err != nil {
			return err
		}
	}
	return p.store(ctx)
}

// store stores the workflows that have changed. Only changed ones are written: a step of a chain deep in a tree changes its
// ancestors, not its siblings. The flag is cleared before the statement has run, which is right because an error ends the
// pass. It may be called several times in a transaction. Rows go in the order of a map; that cannot deadlock with another
// pass, because both need the lock of the root.
func (p *pass) store(ctx context.Context) error {
	u := dbsqlc.WorkflowUpdateParams{RootID: p.root.ID}
	flush := func() error {
		if len(u.Flows) == 0 {
			return nil
		}
		err := p.q.WorkflowUpdate(ctx, u)
		u = dbsqlc.WorkflowUpdateParams{RootID: p.root.ID}
		return err
	}
	for _, f := range p.flows {
		if f == nil || !f.changed {
			continue
		}
		f.changed = false
		// An array of booleans with NULL would need pgtype.Bool; -1 stands for NULL, as in WorkflowUpdate.
		membersFailed := int32(-1)
		if f.MembersFailed.Valid {
			membersFailed = 0
			if f.MembersFailed.Bool {
				membersFailed = 1
			}
		}
		// Whole rows of counts are written, not differences: the lock of the root makes the memory of the pass the only
		// copy.
		u.Flows, u.States, u.Completed, u.Failed, u.Open = append(u.Flows, f.Flow), append(u.States, f.State), append(u.Completed, f.Completed), append(u.Failed, f.Failed), append(u.Open, f.Open)
		u.CompletedCounts, u.FailedCounts = append(u.CompletedCounts, f.CompletedCount), append(u.FailedCounts, f.FailedCount)
		u.MembersFailed, u.CallbacksOpen, u.CallbacksFailed = append(u.MembersFailed, membersFailed), append(u.CallbacksOpen, f.CallbacksOpen), append(u.CallbacksFailed, f.CallbacksFailed)
		u.EndedAt = append(u.EndedAt, f.EndedAt)
		if len(u.Flows) == portion {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// committed emits the events and wakes fetches for the jobs. It must be called once, after the commit and never before. The
// subscribers of the bus come first and the fetches after them, so that the log tells of the end of a step before it tells
// that the next job was fetched. Committed wakes the relay for the events of the tree itself; inserted does so for those of
// its jobs.
func (p *pass) committed(ctx context.Context) {
	eventlog.Emit(ctx, p.s.commits, p.changes, func(changes []eventlog.Change, c *eventlog.Change) []eventlog.Change { return append(changes, *c) })
	for _, span := range p.spans {
		span.accept()
	}
	// This wakes parked fetches of this node, and with it the worker that has just sent the ack.
	p.inserted.AfterCommit(ctx)
	if len(p.changes) > 0 {
		p.s.commits.Committed()
	}
	if p.ended != nil {
		p.s.tracer.Workflow(p.ended.span())
	}
}

// timestamp is nil for NULL.
func timestamp(t pgtype.Timestamptz) *time.Time {
	if !t.Valid {
		return nil
	}
	at := t.Time.UTC()
	return &at
}
