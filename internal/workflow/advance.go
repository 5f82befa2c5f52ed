package workflow

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// turns are the callers of Advance for one root. They share transactions: who comes while one runs waits for the next, which
// begins after its change was committed. Roots do not wait for each other, but for a place among maxAdvancing. next is nil
// while no caller waits, and is guarded by Store.mu. Sharing matters for groups: the acks of a hundred members come close
// together, and all that came during one transaction need one more, not a hundred.
type turns struct{ next *turn }

// err is written before done is closed and read after it, so it needs no lock.
type turn struct {
	done chan struct{}
	err  error
}

// Advance lets a tree follow all changes of its jobs that are committed. When it returns nil, all changes that were
// committed before the call have been followed, by this node or by another one. After an error, portions that were
// committed stay, the rest is left in workflow_pending, and a later call goes on. It may run on several nodes for one root
// at once: they wait for each other at the lock of the root, and the one that comes late finds no rows.
//
// It returns only when its turn has ended, even if ctx ends before: an answer that goes out earlier would promise a next
// step that cannot be fetched yet. The turn keeps the values of ctx but not its end, because other callers share it. An
// unknown root is no error; what is pending of it is deleted.
func (s *Store) Advance(ctx context.Context, root [16]byte) error {
	s.mu.Lock()
	t := s.turns[root]
	if t == nil {
		t = &turns{}
		s.turns[root] = t
		go s.serve(context.WithoutCancel(ctx), root, t)
	}
	if t.next == nil {
		t.next = &turn{done: make(chan struct{})}
	}
	// The turn is taken under mu together with the check for nil. A caller that added itself after serve has taken the turn
	// would wait for a transaction that may have read the pending rows before the change of that caller was committed.
	own := t.next
	s.mu.Unlock()
	<-own.done
	return own.err
}

// serve takes the turns of a root until there is none. One goroutine per root and node runs it, so a node never holds two
// connections for one root.
func (s *Store) serve(ctx context.Context, root [16]byte, t *turns) {
	for {
		// The place is taken before the turn: callers that arrive while the root waits for a place join the turn that is to
		// come, and not one more behind it.
		s.slots <- struct{}{}
		s.mu.Lock()
		own := t.next
		t.next = nil
		// The entry is deleted under the mu that found no caller. Otherwise a caller could add itself to an entry that
		// nobody serves any more.
		if own == nil {
			delete(s.turns, root)
		}
		s.mu.Unlock()
		if own != nil {
			own.err = s.advance(ctx, root)
			close(own.done)
		}
		<-s.slots
		if own == nil {
			return
		}
	}
}

// advancingKey marks the context of a turn. What it changes about jobs of other trees, or of its own, cannot wait for
// itself. Example: an insert of a turn replaces a job of another workflow, by its unique policy. The hook of that change is
// called in the turn. If it waited for Advance of the same root, it would wait for itself; if for another root, two turns
// could wait for each other or for the places that they hold.
type advancingKey struct{}

// It runs portions until none is left, each in a transaction of its own, so that the lock of the root is free in between
// and a cancel gets its turn.
func (s *Store) advance(ctx context.Context, root [16]byte) (err error) {
	defer func() { // a panic would leave every later caller waiting
		if p := recover(); p != nil {
			err = fmt.Errorf("advance workflow: panic: %v", p)
		}
	}()
	ctx, span := s.tracer.Pass(context.WithValue(ctx, advancingKey{}, true), "ojs.workflow.advance")
	moved := 0
	defer func() { span.End(moved, err) }()
	for more := true; more; {
		var n int
		if n, more, err = s.advancePortion(ctx, root); err != nil {
			return err
		}
		moved += n
	}
	return nil
}

// advancePortion is one transaction. Nobody but the holder of the root's lock takes changes of a tree, so a change is
// followed once. It is repeated after a deadlock or a serialization failure, with a new pass: what the failed try had in
// memory was never stored. A commit whose outcome did not arrive is an error here, and harmless: if it has committed, the
// pending rows are gone, and the next try does not find them. Its log lines, spans and wake-ups are lost then; the loops
// that poll make up for the wake-ups.
func (s *Store) advancePortion(ctx context.Context, root [16]byte) (moved int, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var p *pass
	err = pg.Retry(func() error {
		return s.db.InPartitionedTx(ctx, func(tx pgx.Tx) (err error) {
			p = newPass(s, tx)
			moved, more, err = p.advance(ctx, root)
			return err
		})
	})
	if err != nil {
		return 0, false, err
	}
	// Only after the commit: a fetch that is woken earlier would not find the jobs.
	p.committed(ctx)
	return moved, more, nil
}

// follow is called after commits that ended or revived jobs of workflows. If a tree cannot follow now, the Follower lets
// it. It is the hook of queue.Store.OnWorkflowJobs and returns no error, because the change of the job is committed and
// must be answered as a success. Roots go side by side, and maxAdvancing bounds how many transactions that makes: an ack of
// many jobs may name hundreds of roots.
func (s *Store) follow(ctx context.Context, roots [][16]byte) {
	if ctx.Value(advancingKey{}) != nil {
		s.Wake()
		return
	}
	if len(roots) == 1 {
		s.followOne(ctx, roots[0])
		return
	}
	var all sync.WaitGroup
	for _, root := range roots {
		all.Go(func() { s.followOne(ctx, root) })
	}
	all.Wait()
}

// The line is a warning, as nothing is lost: the pending rows stay.
func (s *Store) followOne(ctx context.Context, root [16]byte) {
	if err := s.Advance(ctx, root); err != nil {
		s.logger.WarnContext(ctx, "a workflow did not follow the change of a job; trying again within seconds",
			slog.String("category", "error"), slog.Group("ojs", "workflow_id", spec.FormatID(root)), slog.Any("error", err))
		s.Wake()
	}
}

// Wake lets the Follower look for changes that are left over, for example after an application has cancelled a job in SQL.
// It never blocks and may be called from any goroutine, also before the Follower has started: the signal stays in the
// channel.
func (s *Store) Wake() {
	select {
	case s.left <- struct{}{}:
	default:
	}
}

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

// The rules of docs/reference/workflows.md: what follows from the end of a step. A workflow that has ended, or has fired its
// callbacks, only counts what its members do later.

// cause is why a step has moved. It is handed upwards: the steps that begin because nested workflows ended follow the run
// of the job that ended them.
type cause struct {
	row   *dbsqlc.WorkflowPendingListRow // the change of the job; nil: a nested workflow, or the job was not inserted
	trace string                         // traceparent of the run that ended the job; "": not recorded
}

// moved applies the transition of a step, whose row has been changed, to the workflows above it. It is the only place that
// counts a transition, so every path that changes the state of a step ends here, apart from cancels, which have their own
// counts. It is called after the statement that stores the row of the step, and may start steps, end f and, through end, be called for
// the step of f in the workflow above.
//
// The order of the cases is the rule. Counts change in any case, so that the answer for an ended workflow tells what
// became of its jobs. Then nothing follows in a workflow that has ended, and nothing follows for a member after callbacks
// were fired, or they would fire twice.
func (p *pass) moved(ctx context.Context, st *step, to string, c cause) error {
	from := st.state
	if from == to {
		return nil
	}
	f, err := p.flow(ctx, st.flow)
	if err != nil || f == nil {
		return err
	}
	st.state = to
	p.count(f, st, from, -1)
	p.count(f, st, to, +1)
	switch {
	case !f.running() || st.kind != kindCallback && f.MembersFailed.Valid:
		return nil
	case to == pending:
		return nil
	case st.kind == kindCallback:
		if f.CallbacksOpen == 0 {
			return p.end(ctx, f, st, c)
		}
		return nil
	}
	if to == completed && st.kind == kindJob {
		p.stepCompleted(f, st, c)
	}
	return p.memberEnded(ctx, f, st, c)
}

// count adds n to the counts of steps in the state: those of the workflow for its members and callbacks, and of the tree
// for jobs. The counts of jobs reach from the workflow to the root, those of steps are its own. The callers have loaded f
// and with it all that are above it.
func (p *pass) count(f *flow, st *step, state string, n int32) {
	f.changed = true
	// Waiting is open too: a group of which one member has not begun has not ended.
	open := state == pending || state == waiting
	if st.kind == kindCallback {
		switch {
		case open:
			f.CallbacksOpen += n
		case state != completed:
			f.CallbacksFailed += n
		}
		return
	}
	switch {
	case open:
		f.Open += n
	case state == completed:
		f.Completed += n
	default:
		f.Failed += n
	}
	// Callbacks and nested workflows are no leaves; a nested workflow is counted by its own jobs.
	if st.kind != kindJob || open {
		return
	}
	for _, number := range append(slices.Clone(f.Ancestors), f.Flow) {
		above := p.flows[number]
		above.changed = true
		if state == completed {
			above.CompletedCount += n
		} else {
			above.FailedCount += n
		}
	}
}

// memberEnded decides what follows in a running workflow. It is called once for each end of a member. After a manual retry
// the same member may end again; MembersFailed and the state of f keep callbacks and ends from happening twice.
func (p *pass) memberEnded(ctx context.Context, f *flow, st *step, c cause) error {
	// The chain does not wait for Open to reach 0: a failed step ends it while later steps are still waiting.
	well := st.state == completed
	switch Type(f.Type) {
	case Chain:
		if well && st.index+1 < f.Total {
			p.start(f, st.index+1, c)
			return nil
		}
		return p.end(ctx, f, st, c)
	case DAG:
		var err error
		if well {
			err = p.release(ctx, f, st, c)
		} else {
			err = p.cancelDependents(ctx, f, st)
		}
		if err != nil {
			return err
		}
	}
	// From here on every member has ended. MembersFailed stores that this was noticed: its NULL is the guard that callbacks
	// fire once.
	if f.Open > 0 {
		return nil
	}
	f.MembersFailed, f.changed = pgtype.Bool{Bool: f.Completed < f.Total, Valid: true}, true // cancelDependents may have stored it
	// A count for all that fire is made before any of them begins, because a callback that is refused at once ends the
	// workflow if it is the last one.
	for i, name := range f.Callbacks {
		if name == "on_complete" || name == "on_failure" && f.MembersFailed.Bool || name == "on_success" && !f.MembersFailed.Bool {
			f.CallbacksOpen++
			p.start(f, f.Total+int32(i), c)
		}
	}
	if f.CallbacksOpen > 0 {
		return nil
	}
	return p.end(ctx, f, st, c)
}

// outcome is the state in which a workflow ends, if last was its last step to end. docs/reference/workflows.md, States has
// the table. A failed member does not fail a workflow with on_failure: that callback is taken as the treatment of the
// failure.
func (f *flow) outcome(last *step) string {
	switch {
	case Type(f.Type) == Chain && last.state == completed,
		f.CallbacksFailed == 0 && f.MembersFailed.Valid && (!f.MembersFailed.Bool || slices.Contains(f.Callbacks, "on_failure")):
		return completed
	}
	return failed
}

// end ends a workflow and, if it is nested, its step. f is final in memory before its value is read and the workflow above
// moves; store writes it at the end of the transaction or earlier. The recursion is as deep as workflows are nested.
func (p *pass) end(ctx context.Context, f *flow, last *step, c cause) error {
	f.State, f.EndedAt, f.changed = f.outcome(last), p.now, true
	// Only these can have steps left that never begin: the rest of a chain, and callbacks that did not fire.
	if Type(f.Type) == Chain && f.State == failed || len(f.Callbacks) > 0 {
		if err := p.cancelWaiting(ctx, f); err != nil {
			return err
		}
	}
	if f.Flow == 0 {
		return p.rootEnded(ctx, f)
	}
	v, err := p.valueOf(ctx, f, last)
	if err != nil {
		return err
	}
	// It is made, not read: a nested workflow ends once, and its step is pending from its begin to that end.
	above := &step{flow: f.Ancestors[len(f.Ancestors)-1], index: f.ParentIndex.Int32, kind: kindWorkflow, state: pending}
	e := dbsqlc.WorkflowStepEndParams{
		State: f.State, EndedAt: p.now, Result: v.value, ResultMap: v.named, RootID: p.root.ID, Flow: above.flow, Index: above.index,
	}
	if f.State == failed {
		e.Error = errorObject("workflow_failed", "The nested workflow failed.")
	}
	if err := p.q.WorkflowStepEnd(ctx, e); err != nil {
		return err
	}
	return p.moved(ctx, above, f.State, c)
}

// cancelWaiting cancels what has not begun of a workflow and of those nested in it. The latter are not loaded: they have
// not begun. Their rows get their end from endBelow.
func (p *pass) cancelWaiting(ctx context.Context, f *flow) error {
	if _, err := p.cancelBelow(ctx, f.Flow, f.LastFlow); err != nil || f.LastFlow == f.Flow || Type(f.Type) != Chain {
		return err // in all other types every member has ended
	}
	return p.endBelow(ctx, f.Flow+1, f.LastFlow)
}

// The statement reads the stored state. It does not touch workflows in memory, so a caller that has one of them loaded must
// set its state.
func (p *pass) endBelow(ctx context.Context, first, last int32) error {
	// Those that have ended in this transaction must not be ended again.
	if err := p.store(ctx); err != nil {
		return err
	}
	return p.q.WorkflowEndBelow(ctx, dbsqlc.WorkflowEndBelowParams{RootID: p.root.ID, FirstFlow: first, LastFlow: last, EndedAt: p.now})
}

// cancelBelow cancels the steps without a job of workflows with numbers in a range. It returns how many of them are of
// jobs. Each portion is one statement that goes on behind the last step of the portion before. No step is cancelled twice:
// a portion leaves no waiting step behind it.
func (p *pass) cancelBelow(ctx context.Context, first, last int32) (jobs int, err error) {
	a := dbsqlc.WorkflowStepCancelBelowParams{RootID: p.root.ID, AfterFlow: first, AfterIndex: -1, LastFlow: last, EndedAt: p.now, MaxRows: portion}
	for {
		rows, err := p.q.WorkflowStepCancelBelow(ctx, a)
		if err != nil {
			return jobs, err
		}
		for _, r := range rows {
			if r.Kind == kindJob {
				jobs++
			}
		}
		if len(rows) < portion {
			return jobs, nil
		}
		a.AfterFlow, a.AfterIndex = rows[len(rows)-1].Flow, rows[len(rows)-1].Index
	}
}

// release begins the steps of a dag that waited for this one only. The statement lowers waits_on of all that depend on the
// step; those at 0 begin. It runs once for a completed step, because a completed job never leaves its state. Two steps that
// end at once cannot both see the other as open: each holds the lock of the root. The rows are sorted, because UPDATE …
// RETURNING has no order and beginStarts joins ascending indexes.
func (p *pass) release(ctx context.Context, f *flow, st *step, c cause) error {
	rows, err := p.q.WorkflowStepReadyAfter(ctx, dbsqlc.WorkflowStepReadyAfterParams{RootID: p.root.ID, Flow: f.Flow, Index: st.index})
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b dbsqlc.WorkflowStepReadyAfterRow) int { return int(a.Index - b.Index) })
	for _, r := range rows {
		if r.WaitsOn == 0 {
			p.start(f, r.Index, c)
		}
	}
	return nil
}

// cancelDependents cancels the steps of a dag that depend on a failed one. They count as neither completed nor failed, as
// they never had a job; Completed < Total still tells that not all members completed. A manual retry of the failed step
// does not bring them back (docs/reference/workflows.md, States).
func (p *pass) cancelDependents(ctx context.Context, f *flow, st *step) error {
	rows, err := p.q.WorkflowStepListDependents(ctx, dbsqlc.WorkflowStepListDependentsParams{RootID: p.root.ID, Flow: f.Flow, Index: st.index})
	if err != nil {
		return err
	}
	// They leave Open without being counted as completed or failed, so the workflow can end.
	f.Open -= int32(len(rows))
	for part := range slices.Chunk(rows, portion) {
		a := dbsqlc.WorkflowStepCancelParams{RootID: p.root.ID, Flow: f.Flow, EndedAt: p.now}
		for _, r := range part {
			a.Indexes = append(a.Indexes, r.Index)
		}
		if err := p.q.WorkflowStepCancel(ctx, a); err != nil {
			return err
		}
	}
	for _, r := range rows {
		// A nested workflow that waits has workflows and steps of its own, which are cancelled with it.
		if r.ChildFlow == 0 {
			continue
		}
		child, err := p.flow(ctx, r.ChildFlow)
		if err != nil || child == nil {
			return err
		}
		if _, err := p.cancelBelow(ctx, child.Flow, child.LastFlow); err != nil {
			return err
		}
		if err := p.endBelow(ctx, child.Flow, child.LastFlow); err != nil {
			return err
		}
		// The row is cancelled already. Without this line a later store of the child, which is in memory as running, would
		// revive it.
		child.State = cancelled
	}
	return nil
}

// errConflict says that the state of a workflow does not allow the request. It is answered 409
// (docs/reference/workflows.md, Cancel).
func errConflict(id [16]byte, state, why string) *ojs.Error {
	text := spec.FormatID(id)
	return spec.NewError(ojs.ErrInvalidStateTransition, "Workflow "+text+" "+why+".",
		map[string]any{"workflow_id": text, "current_state": state})
}

// start is a step that begins. It is a wish: settle begins it after the events that come before it are written.
type start struct {
	flow  *flow
	index int32
	trace string // traceparent of the run that it follows; "": none
}

// The trace of the cause goes with it, so that the next job's span follows the run that made it possible.
func (p *pass) start(f *flow, index int32, c cause) {
	p.starts = append(p.starts, start{f, index, c.trace})
}

// beginStarts begins the steps that were started, in order. Those of a dag begin together as far as they follow the same run: one step may
// have thousands that waited for it. A fan-out of thousands would otherwise cost a statement for the step and one for its
// results each. p.starts is emptied first, because a step that ends at once adds more.
func (p *pass) beginStarts(ctx context.Context) error {
	starts := p.starts
	p.starts = nil
	for len(starts) > 0 {
		first, n := starts[0], 1
		if !first.ofDAG() {
			if err := p.begin(ctx, first); err != nil {
				return err
			}
		} else {
			indexes := []int32{first.index}
			for ; n < len(starts) && starts[n].ofDAG() && starts[n].flow == first.flow && starts[n].trace == first.trace && starts[n].index > starts[n-1].index; n++ {
				indexes = append(indexes, starts[n].index)
			}
			if err := p.beginReady(ctx, first, indexes); err != nil {
				return err
			}
		}
		starts = starts[n:]
	}
	return nil
}

// ofDAG reports whether the step is a member of a dag.
func (s *start) ofDAG() bool { return Type(s.flow.Type) == DAG && s.index < s.flow.Total }

// begin begins a step: with the results that it gets, its job is inserted, or the first steps of its nested workflow begin.
// The results are read once and shared by all first steps of a nested group.
func (p *pass) begin(ctx context.Context, s start) error {
	// A callback has an index above Total, and must not get the result of another callback.
	below := min(s.index, s.flow.Total) // a step of a chain gets the results of those before it, a callback those of all members
	got, err := p.members(ctx, s.flow, below, nil)
	if err != nil {
		return err
	}
	return p.beginAll(ctx, s.flow, s.index, s.index, &passed{got, s.trace})
}

// beginReady begins members of a dag. Neighbours that depend on the same steps share their results, which may be large.
// Only steps that are still waiting begin. A portion ends at portionBytes of templates, so the statement may return fewer
// steps than it was asked for; the loop goes on behind the last one. Indexes without a row were no longer waiting.
func (p *pass) beginReady(ctx context.Context, s start, indexes []int32) error {
	var needs string
	var got *passed
	for len(indexes) > 0 {
		part := indexes[:min(portion, len(indexes))]
		rows, err := p.q.WorkflowStepListReady(ctx, dbsqlc.WorkflowStepListReadyParams{RootID: p.root.ID, Flow: s.flow.Flow, Indexes: part, MaxBytes: portionBytes})
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			r := dbsqlc.WorkflowStepListWaitingRow(rows[i])
			// The text of the list is the key: steps that wait for the same ones usually follow each other in a definition.
			if own := integers(r.DependsOn); got == nil || own != needs {
				v, err := p.members(ctx, s.flow, s.flow.Total, r.DependsOn)
				if err != nil {
					return err
				}
				needs, got = own, &passed{v, s.trace}
			}
			if err := p.beginStep(ctx, s.flow, &r, got); err != nil {
				return err
			}
		}
		last := rows[len(rows)-1].Index
		// Steps up to the last returned one have begun, or were not waiting any more; the others did not fit into
		// portionBytes.
		for len(indexes) > 0 && indexes[0] <= last {
			indexes = indexes[1:]
		}
	}
	return nil
}

// passed is what a job gets from the steps before it. It is shared by several jobs and must not be changed.
type passed struct {
	values
	trace string
}

// beginAll begins the steps of a workflow with indexes from low to high. Only waiting ones begin, so a second call does
// nothing. Callbacks have indexes above those of the members, and are never in the range of a nested workflow.
func (p *pass) beginAll(ctx context.Context, f *flow, low, high int32, got *passed) error {
	for low <= high {
		rows, err := p.q.WorkflowStepListWaiting(ctx, dbsqlc.WorkflowStepListWaitingParams{
			RootID: p.root.ID, Flow: f.Flow, Low: low, High: high, MaxRows: portion, MaxBytes: portionBytes,
		})
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := p.beginStep(ctx, f, &rows[i], got); err != nil {
				return err
			}
		}
		low = rows[len(rows)-1].Index + 1
	}
	return nil
}

// The step of a nested workflow is added before those in it. Its row is stored with theirs or in an earlier portion.
func (p *pass) beginStep(ctx context.Context, f *flow, r *dbsqlc.WorkflowStepListWaitingRow, got *passed) error {
	st := &step{flow: f.Flow, index: r.Index, id: r.StepID, kind: r.Kind, jobType: r.Type, callback: r.Callback.String, state: pending}
	if r.Kind == kindWorkflow {
		// The item has no job: it only changes the row of the step from waiting to pending.
		if err := p.add(ctx, &item{step: st}); err != nil {
			return err
		}
		child, err := p.flow(ctx, r.ChildFlow.Int32)
		if err != nil || child == nil {
			return err
		}
		// Callbacks of the nested workflow have higher indexes and wait.
		last := child.Total - 1
		if Type(child.Type) == Chain {
			last = 0
		}
		return p.beginAll(ctx, child, 0, last, got)
	}
	// The definition was checked when it was created, by the same function. Schemas and the configuration of the queue are
	// not asked again, see checkSchemas and admit.
	j, wire := job.DecodeItem(r.Template, p.s.config.Limits)
	if wire != nil { // the limits of this node are other ones than those of the node that took the workflow
		return p.add(ctx, &item{step: st, refused: errorObject(wire.Code, wire.Message)})
	}
	return p.add(ctx, &item{step: st, job: j, flow: f, passed: got})
}

// item is a step of a batch. Its outcome is in refused, details and duplicateOf, which insertJobs sets; all are empty
// before, and if the job was stored.
type item struct {
	step    *step
	flow    *flow
	job     *job.Job // nil: the step is that of a nested workflow, or was refused
	passed  *passed
	refused []byte         // error object
	details map[string]any // of the refusal, if a unique policy made it

	duplicateOf *[16]byte // the job that stands for the one that a unique policy has left out
}

// batch is a portion of steps that begin. bytes counts what clients sent for the jobs, not their results, so that a group
// of small jobs goes in portions of 1 000.
type batch struct {
	items []*item
	bytes int
}

// The batch is inserted when it is full, else by settle.
func (p *pass) add(ctx context.Context, it *item) error {
	if it.job != nil {
		p.prepare(ctx, it)
		p.batch.bytes += it.job.ClientBytes()
	}
	p.batch.items = append(p.batch.items, it)
	if len(p.batch.items) < portion && p.batch.bytes < portionBytes {
		return nil
	}
	return p.insert(ctx)
}

// prepare makes the job one of the workflow: it gets its workflow, its step and the results of those before
// (docs/reference/workflows.md, Results). Each try of the transaction makes new ids and new spans; only those of the try
// that commits are used.
func (p *pass) prepare(ctx context.Context, it *item) {
	j := it.job
	// An id in the template is the step's, never the job's; one that a client could choose would let a step collide with
	// another job.
	j.ID, j.ClientID = job.NewID(), false
	// The workflow of a job is the root, also for jobs of nested ones: the statement that ends the job records the root to
	// be locked.
	j.WorkflowID, j.Source, j.Admitted = p.root.ID, p.source, true
	// A running workflow would stand still if a full queue refused its next job, so only the creation may be refused
	// (docs/reference/backpressure.md).
	j.Unbounded = !p.creating
	j.Meta = job.WithWorkflowMeta(j.Meta, p.root.Meta, it.passed.trace)
	j.TraceID = job.TraceID(j.Meta)
	j.Extra = appendAttributes(j.Extra, p.root.ID, it)
	if span := p.s.tracer.Enqueue(ctx, j); span.Begun() {
		p.spans = append(p.spans, enqueueSpan{span, it})
	}
}

// appendAttributes returns extra with the attributes that only jobs of workflows have. They are part of the stored job, so
// parent_results do not change when a step before is retried (docs/reference/workflows.md, Results). The names cannot meet
// those of a client: the decoder of jobs knows them as the server's own.
func appendAttributes(extra []byte, root [16]byte, it *item) []byte {
	b := make([]byte, 0, len(extra)+256+len(it.passed.list)+len(it.passed.named))
	if len(extra) > len(`{}`) {
		b = append(append(b, extra[:len(extra)-1]...), ',')
	} else {
		b = append(b, '{')
	}
	b = append(spec.AppendID(append(b, `"workflow_id":"`...), it.flow.ID), '"')
	b = append(spec.AppendID(append(b, `,"root_workflow_id":"`...), root), '"')
	if it.step.kind == kindCallback {
		b = append(append(append(b, `,"workflow_callback":"`...), it.step.callback...), '"')
	} else {
		b = strconv.AppendInt(append(b, `,"workflow_step":`...), int64(it.step.index), 10)
		b, _ = jsontext.AppendQuote(append(b, `,"workflow_step_id":`...), it.step.id) // valid UTF-8: the decoder has checked it
	}
	b = append(append(b, `,"parent_results":`...), it.passed.list...)
	b = append(append(b, `,"parent_results_map":`...), it.passed.named...)
	return append(b, '}')
}

// insert inserts the jobs of the batch, in order, and applies what unique policies have decided about them. The jobs come
// before the rows of their steps, in one transaction. No other transaction sees a job whose step does not know it, so a
// fetch and an ack cannot come between the two.
func (p *pass) insert(ctx context.Context) error {
	// It is emptied before the statements, because applyRefusals may add items to the next batch.
	items := p.batch.items
	p.batch = batch{}
	if len(items) == 0 {
		return nil
	}
	if err := p.insertJobs(ctx, items); err != nil {
		return err
	}
	a := dbsqlc.WorkflowStepBeginParams{RootID: p.root.ID}
	for _, it := range items {
		st := it.step
		state, id := it.began()
		a.Flows, a.Indexes, a.States = append(a.Flows, st.flow), append(a.Indexes, st.index), append(a.States, state)
		a.JobIds, a.Deduplicated, a.Errors = append(a.JobIds, id), append(a.Deduplicated, it.duplicateOf != nil), append(a.Errors, it.refused)
	}
	if err := p.q.WorkflowStepBegin(ctx, a); err != nil {
		return err
	}
	return p.applyRefusals(ctx, items)
}

// began is the state of a step after the insert of its job, and the job. An id of zeros is stored as NULL.
func (it *item) began() (state string, id [16]byte) {
	switch {
	case it.refused != nil:
		return failed, id
	case it.duplicateOf != nil:
		return completed, *it.duplicateOf
	case it.job != nil:
		return pending, it.job.ID
	}
	return pending, id
}

// They go through moved like any other end of a step: a refused member fails its chain, a duplicate begins the next step.
// The rows of all items are stored before, because moved may read them as results.
func (p *pass) applyRefusals(ctx context.Context, items []*item) error {
	for _, it := range items {
		state, id := it.began()
		if state == pending {
			continue
		}
		it.step.job = id
		if err := p.moved(ctx, it.step, state, cause{}); err != nil {
			return err
		}
	}
	return nil
}

// insertJobs inserts the jobs of the items, as far as their unique policies permit it: such a policy refuses a step, or names the job that
// stands for its own. Only a creation can meet a full queue, and its error rolls back all of it. A refusal by a unique
// policy is no error here: it fails the step in a running workflow, and the caller makes an error of it in a creation.
func (p *pass) insertJobs(ctx context.Context, items []*item) error {
	jobs := make([]*job.Job, 0, len(items))
	of := make([]*item, 0, len(items))
	for _, it := range items {
		if it.job != nil {
			jobs, of = append(jobs, it.job), append(of, it)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	// Deferred statements go first, as InsertTx uses the transaction itself. Among them are events that must have lower
	// numbers than those of the jobs.
	if p.later != nil {
		if err := p.later.Flush(ctx); err != nil {
			return err
		}
	}
	in, err := p.s.jobs.InsertTx(ctx, p.tx, jobs)
	if err != nil {
		return err
	}
	for i, it := range of {
		refused := in.Refused(i)
		// An error rolls back the whole creation. In a running workflow it cannot happen, because such jobs are Unbounded.
		if refused != nil && refused.Type == string(ojs.ErrQueueFull) {
			return spec.With(refused, "step_id", it.flow.Path+it.step.id) // nothing is stored
		}
		if refused != nil {
			it.refused, it.details = errorObject(refused.Code, refused.Message), refused.Details
		} else if existing := in.Existing(i); existing != nil {
			it.duplicateOf = &existing.ID
		}
	}
	p.inserted.Append(in)
	return nil
}

// enqueueSpan is the span of the enqueue of a job. It is begun before the insert, so that the job stores the trace context
// of the span, and accepted after the commit.
type enqueueSpan struct {
	span tracing.Enqueue
	item *item
}

func (s enqueueSpan) accept() {
	if state, id := s.item.began(); state == pending {
		s.span.Accepted(id, string(ojs.StateAvailable))
	}
}

// errorObject is the error of a step. 2 048 bytes bound the message, because the error of a step is copied into jobs and
// answers.
func errorObject(code, message string) []byte {
	b, _ := jsontext.AppendQuote([]byte(`{"code":`), code)
	b, _ = jsontext.AppendQuote(append(b, `,"message":`...), job.Shorten(message, 2048))
	return append(b, '}')
}

// values are results as a job gets them: as an array, and as an object by step ids. Both are valid compact JSON, always an
// array and an object.
type values struct{ list, named []byte }

func noValues() values { return values{[]byte(`[]`), []byte(`{}`)} }

// members are the values of the members with indexes below a bound or, if only is not empty, of these in its order. The
// bound of maxResults is kept by the statement, so results that are left out never reach the node. A dag gives only the
// dependencies (docs/reference/workflows.md, Results), never an empty list of them, which would give all members below the
// bound. Steps that never ran have a value too, an error, so that positions in the array agree with those of the
// definition.
func (p *pass) members(ctx context.Context, f *flow, below int32, only []int32) (v values, err error) {
	indexes := only
	if indexes == nil {
		indexes = []int32{}
	}
	rows, err := p.q.WorkflowStepValues(ctx, dbsqlc.WorkflowStepValuesParams{
		RootID: p.root.ID, Flow: f.Flow, Below: below, Indexes: indexes, MaxBytes: maxResults,
	})
	if err != nil {
		return v, err
	}
	// The statement returns the order of the definition; a job gets the order of its depends_on.
	if len(only) > 0 {
		slices.SortFunc(rows, func(a, b dbsqlc.WorkflowStepValuesRow) int {
			return slices.Index(only, a.Index) - slices.Index(only, b.Index)
		})
	}
	v.list, v.named = append(v.list, '['), append(v.named, '{')
	for i := range rows {
		if i > 0 {
			v.list, v.named = append(v.list, ','), append(v.named, ',')
		}
		value, named := valueOf(&rows[i])
		v.list = append(v.list, value...)
		v.named, _ = jsontext.AppendQuote(v.named, rows[i].StepID)
		v.named = append(append(v.named, ':'), named...)
	}
	v.list, v.named = append(v.list, ']'), append(v.named, '}')
	return v, nil
}

// valueOf is the value of a member, and the same with step ids for names. The first case comes first: a result that was
// left out has no Result either, and would look like null.
func valueOf(r *dbsqlc.WorkflowStepValuesRow) (value, named []byte) {
	switch {
	case r.Omitted:
		value = omitted(r.Size, r.JobID.Bytes, r.JobID.Valid)
		return value, value
	case r.Kind == kindWorkflow && r.Result != nil:
		if r.ResultMap != nil {
			return r.Result, r.ResultMap
		}
		return r.Result, r.Result
	case r.State == completed && r.Result != nil:
		return r.Result, r.Result
	case r.State == completed:
		return []byte(`null`), []byte(`null`)
	}
	// A step that was cancelled without a job has no stored error.
	problem := r.Error
	if problem == nil {
		problem = errorObject("cancelled", "The step was not begun.")
	}
	value = append(append([]byte(`{"error":`), problem...), '}')
	return value, value
}

// omitted stands for a result that was left out because all together are too large. A nested workflow has no job from which
// the value could be read, so it has no job_id.
func omitted(size int64, id [16]byte, ofJob bool) []byte {
	b := strconv.AppendInt([]byte(`{"omitted":true,"bytes":`), size, 10)
	if ofJob {
		b = append(spec.AppendID(append(b, `,"job_id":"`...), id), '"')
	}
	return append(b, '}')
}

// nestedValue is the value of a workflow; named is nil if it is the same.
type nestedValue struct{ value, named []byte }

// valueOf is the value of a nested workflow that ended with its step last. It is read before the row of the step above is
// written, and includes the step that ended last, whose row was written before. The value of a chain is one result and
// needs no bound; it was bounded when its job ended.
func (p *pass) valueOf(ctx context.Context, f *flow, last *step) (v nestedValue, err error) {
	if Type(f.Type) != Chain {
		all, err := p.members(ctx, f, math.MaxInt32, nil)
		return nestedValue{all.list, all.named}, err
	}
	rows, err := p.q.WorkflowStepValues(ctx, dbsqlc.WorkflowStepValuesParams{
		RootID: p.root.ID, Flow: f.Flow, Below: math.MaxInt32, Indexes: []int32{last.index}, MaxBytes: math.MaxInt64,
	})
	if err != nil || len(rows) == 0 {
		return v, err
	}
	v.value, v.named = valueOf(&rows[0])
	if rows[0].ResultMap == nil {
		v.named = nil
	}
	return v, nil
}

// event is an event of the root; workflows nested in it have none (docs/reference/events.md, Payloads). data is JSON in the
// form that docs/reference/events.md, Payloads shows. source is the principal of the event: the worker for a step, "api"
// for the end of a tree.
type event struct {
	kind   string
	source string
	data   []byte
}

// data begins the payload of an event.
func (p *pass) data() []byte {
	b := append(spec.AppendID([]byte(`{"workflow_id":"`), p.root.ID), `","workflow_name":`...)
	b, _ = jsontext.AppendQuote(b, p.root.Name) // valid UTF-8: the decoder has checked it
	return b
}

// stepCompleted adds the event of a job that has completed. c.row is nil for a step that an existing job stands for: it has
// neither a run nor a worker. steps_remaining is taken from the counts in memory, so the events of one portion count down
// one by one.
func (p *pass) stepCompleted(f *flow, st *step, c cause) {
	source, ms := "scheduler", int64(0)
	if c.row != nil {
		source = eventlog.WorkerSource(c.row.WorkerID)
		if c.row.StartedAt.Valid {
			ms = c.row.At.Time.Sub(c.row.StartedAt.Time).Milliseconds()
		}
	}
	b := p.data()
	b, _ = jsontext.AppendQuote(append(b, `,"step_id":`...), f.Path+st.id)
	b, _ = jsontext.AppendQuote(append(b, `,"step_type":`...), st.jobType)
	b = strconv.AppendInt(append(b, `,"duration_ms":`...), ms, 10)
	b = strconv.AppendInt(append(b, `,"steps_remaining":`...), int64(p.root.JobCount-p.root.CompletedCount), 10)
	b = append(spec.AppendID(append(b, `,"job_id":"`...), st.job), `"}`...)
	p.events = append(p.events, event{ojs.EventWorkflowStepCompleted, source, b})
}

// endedRoot is a tree that has ended in the transaction. started is the first fetch of a job; without one, for example if
// every step had an equivalent job, it is the creation. failure is nil for a completed tree.
type endedRoot struct {
	root           *flow
	started, ended time.Time
	failure        *dbsqlc.WorkflowFirstFailureRow
}

// rootEnded adds the event of the end of the tree. A cancelled tree does not come here and has no event of its own.
func (p *pass) rootEnded(ctx context.Context, f *flow) error {
	p.ended = &endedRoot{root: f, started: f.CreatedAt.Time, ended: p.now.Time}
	starts, err := p.q.WorkflowGetStart(ctx, f.ID)
	if err != nil {
		return err
	}
	if len(starts) > 0 {
		p.ended.started = starts[0].Time
	}
	b := p.data()
	if f.State == completed {
		ms := int64(0)
		if len(starts) > 0 {
			ms = max(0, p.now.Time.Sub(starts[0].Time).Milliseconds())
		}
		b = strconv.AppendInt(append(b, `,"total_steps":`...), int64(f.JobCount), 10)
		b = append(strconv.AppendInt(append(b, `,"duration_ms":`...), ms, 10), '}')
		p.events = append(p.events, event{ojs.EventWorkflowCompleted, "api", b})
		return nil
	}
	// WorkflowFirstFailure leaves out nested workflows that completed in spite of a failure, and reads their stored states.
	if err := p.store(ctx); err != nil { // which nested workflows have completed matters
		return err
	}
	failures, err := p.q.WorkflowFirstFailure(ctx, f.ID)
	if err != nil {
		return err
	}
	first := dbsqlc.WorkflowFirstFailureRow{Error: errorObject("workflow_failed", "The workflow failed.")}
	if len(failures) > 0 {
		first = failures[0]
	}
	p.ended.failure = &first
	b, _ = jsontext.AppendQuote(append(b, `,"failed_step_id":`...), first.StepID)
	b, _ = jsontext.AppendQuote(append(b, `,"failed_step_type":`...), first.Type)
	b = append(append(append(b, `,"error":`...), first.Error...), '}')
	p.events = append(p.events, event{ojs.EventWorkflowFailed, "api", b})
	return nil
}

// writeEvents stores the events that have been added, in their order. The changes for the bus are collected here and
// emitted after the commit.
func (p *pass) writeEvents(ctx context.Context) error {
	if len(p.events) == 0 {
		return nil
	}
	subject := spec.FormatID(p.root.ID)
	a := dbsqlc.WorkflowEventInsertParams{Time: p.now, Subject: subject, RootID: p.root.ID, TraceID: p.root.TraceID, Tenant: p.root.Tenant, Node: p.s.commits.Node}
	for _, e := range p.events {
		a.Types, a.Sources, a.Data = append(a.Types, e.kind), append(a.Sources, e.source), append(a.Data, e.data)
		p.changes = append(p.changes, eventlog.Change{Type: e.kind, Subject: subject, At: p.now.Time})
	}
	p.events = nil
	return p.q.WorkflowEventInsert(ctx, a)
}

// span describes the span of the tree.
func (e *endedRoot) span() tracing.WorkflowRun {
	run := tracing.WorkflowRun{
		ID: e.root.ID, Name: e.root.Name, Type: e.root.Type, State: e.root.State, Meta: e.root.Meta, Start: e.started, End: e.ended,
	}
	if e.failure != nil {
		run.Error = e.failure.Error
	}
	return run
}
