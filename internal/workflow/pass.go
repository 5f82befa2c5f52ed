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

// flow is a workflow of the tree.
type flow struct {
	dbsqlc.Workflow
	changed bool
}

func (f *flow) running() bool { return f.State == running }

// step is what decisions need to know of a step.
type step struct {
	flow, index int32
	id          string
	kind        string
	jobType     string
	callback    string
	state       string
	job         [16]byte
}

// place tells steps of a tree apart.
type place struct{ flow, index int32 }

func newPass(s *Store, tx pgx.Tx) *pass {
	return &pass{s: s, tx: tx, q: dbsqlc.New(tx), flows: map[int32]*flow{}, source: "scheduler"}
}

// lock locks the tree and reads the clock, and sends more statements in the same round trip. It reports false if the root does not
// exist. Each statement has a snapshot of its own, so those behind the lock see what its last holder has committed.
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

// load reads workflows of the tree that were not read yet, and those above them.
func (p *pass) load(ctx context.Context, numbers []int32) error {
	for len(numbers) > 0 {
		var missing []int32
		for _, n := range numbers {
			if _, known := p.flows[n]; !known {
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

func (p *pass) flow(ctx context.Context, number int32) (*flow, error) {
	if p.flows[number] == nil {
		if err := p.load(ctx, []int32{number}); err != nil {
			return nil, err
		}
	}
	return p.flows[number], nil
}

// advance follows up to a portion of the changes of the tree's jobs and returns how many there were, and whether there may be more. Its
// statements without a result wait for the next one with a result: that halves the round trips of a step.
func (p *pass) advance(ctx context.Context, root [16]byte) (moved int, more bool, err error) {
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
	if !found {
		n, err := dbsqlc.New(p.tx).WorkflowPendingDelete(ctx, root, portion)
		return int(n), n == portion, err
	}
	if len(rows) == 0 {
		return 0, false, nil
	}
	more = len(rows) == portion
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
	return len(rows), more, p.later.Flush(ctx)
}

// oneOfEach counts the changes up to the second one of a job, which follows in a transaction of its own: whether it still matters
// depends on what the first has led to.
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
// fail without a failure. After the end of the whole tree it shows what became of the job.
func (p *pass) decided(r *dbsqlc.WorkflowPendingListRow) bool {
	f := p.flows[r.Flow]
	return f != nil && p.root.running() && r.Kind != kindCallback && r.StepState != pending && (!f.running() || f.MembersFailed.Valid)
}

// take removes the changes, stores them in the steps of their jobs, and returns those that matter.
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
	a.JobIds = slices.SortedFunc(maps.Keys(of), func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) })
	for _, id := range a.JobIds {
		r, state := of[id], stepState(of[id].State)
		ended := r.At
		ended.Valid = state != pending
		a.LastIds, a.States, a.Attempts = append(a.LastIds, r.ID), append(a.States, state), append(a.Attempts, r.Attempt.Int32)
		a.StartedAt, a.EndedAt, a.Errors = append(a.StartedAt, r.StartedAt), append(a.EndedAt, ended), append(a.Errors, r.Error)
	}
	return followed, p.q.WorkflowPendingApply(ctx, a)
}

// follow applies one change of a job.
func (p *pass) follow(ctx context.Context, r *dbsqlc.WorkflowPendingListRow) error {
	st := &step{flow: r.Flow, index: r.Index, id: r.StepID, kind: r.Kind, jobType: r.Type, callback: r.Callback, state: r.StepState, job: r.JobID}
	return p.moved(ctx, st, stepState(r.State), cause{row: r, trace: p.s.tracer.Executed(r.JobID)})
}

// stepState is the state of the step of a job.
func stepState(job string) string {
	switch job {
	case completed, cancelled:
		return job
	case "discarded":
		return failed
	}
	return pending
}

// settle writes events and begins steps until nothing follows, and stores the workflows.
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

// store stores the workflows that have changed.
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
		membersFailed := int32(-1)
		if f.MembersFailed.Valid {
			membersFailed = 0
			if f.MembersFailed.Bool {
				membersFailed = 1
			}
		}
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

// committed emits the events and wakes fetches for the jobs.
func (p *pass) committed(ctx context.Context) {
	eventlog.Emit(ctx, p.s.commits, p.changes, func(changes []eventlog.Change, c *eventlog.Change) []eventlog.Change { return append(changes, *c) })
	for _, span := range p.spans {
		span.accept()
	}
	p.inserted.AfterCommit(ctx)
	if len(p.changes) > 0 {
		p.s.commits.Committed()
	}
	if p.ended != nil {
		p.s.tracer.Workflow(p.ended.span())
	}
}

// timestamp is NULL for nil.
func timestamp(t pgtype.Timestamptz) *time.Time {
	if !t.Valid {
		return nil
	}
	at := t.Time.UTC()
	return &at
}
