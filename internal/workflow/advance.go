package workflow

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/loop"
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

// turn has an err that is written before done is closed and read after it, so it needs no lock.
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
			own.err = s.runPortions(ctx, root)
			close(own.done)
		}
		<-s.slots
		if own == nil {
			return
		}
	}
}

// runPortions runs portions until none is left, each in a transaction of its own, so that the lock of the root is free in between
// and a cancel gets its turn.
func (s *Store) runPortions(ctx context.Context, root [16]byte) (err error) {
	defer func() { // a panic would leave every later caller waiting
		if p := recover(); p != nil {
			err = fmt.Errorf("advance workflow: panic: %v", p)
		}
	}()
	ctx, span := s.tracer.Pass(ctx, "ojs.workflow.advance")
	moved := 0
	defer func() { span.End(moved, err) }()
	for more := true; more; {
		var n int
		if n, more, err = s.runPortion(ctx, root); err != nil {
			return err
		}
		moved += n
	}
	return nil
}

// runPortion is one transaction. Nobody but the holder of the root's lock takes changes of a tree, so a change is
// followed once. It is repeated after a deadlock or a serialization failure, with a new pass: what the failed try had in
// memory was never stored. A commit whose outcome did not arrive is an error here, and harmless: if it has committed, the
// pending rows are gone, and the next try does not find them. Its log lines, spans and wake-ups are lost then; the loops
// that poll make up for the wake-ups.
func (s *Store) runPortion(ctx context.Context, root [16]byte) (moved int, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var p *pass
	err = pg.Retry(func() error {
		return s.db.InPartitionedTx(ctx, func(tx pgx.Tx) (err error) {
			p = newPass(s, tx)
			moved, more, err = p.followJobs(ctx, root)
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

// Follow is called after commits that ended or revived jobs of workflows (queue.Hooks). If a tree cannot follow now, the Follower lets it.
// It returns no error, because the change of the job is committed and must be answered as a success. Roots go side by side, and
// maxAdvancing bounds how many transactions that makes: an ack of many jobs may name hundreds of roots.
func (s *Store) Follow(ctx context.Context, roots [][16]byte) {
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

// followOne logs a warning, as nothing is lost: the pending rows stay.
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
func (s *Store) Wake() { loop.Signal(s.left) }

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
	p.root = &flow{Workflow: rows[0].Workflow}
	p.flows[0] = p.root
	return true, nil
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

// flow returns nil without an error if there is no such row, which no statement of the project leaves behind; callers then do
// nothing.
func (p *pass) flow(ctx context.Context, number int32) (*flow, error) {
	if p.flows[number] == nil {
		if err := p.load(ctx, []int32{number}); err != nil {
			return nil, err
		}
	}
	return p.flows[number], nil
}

// followJobs follows up to a portion of the changes of the tree's jobs and returns how many there were, and whether there may be more. Its
// statements without a result wait for the next one with a result: that halves the round trips of a step. A step of a chain
// takes 7 round trips; it took 12 when every statement had its own.
//
// The pending rows are listed in the round trip of the lock. That is safe because each statement of it has a snapshot of
// its own, taken after the lock was granted: rows that the last holder deleted are not seen again.
func (p *pass) followJobs(ctx context.Context, root [16]byte) (moved int, more bool, err error) {
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
	var numbers []int32
	seen := make(map[[16]byte]bool, len(rows))
	for i, r := range rows {
		// The second change of a job follows in a transaction of its own, with the rest of the rows: whether it still matters depends on
		// what the first has led to. A job has two pending changes if it was discarded, retried by hand, and ended again before its tree
		// followed.
		if seen[r.JobID] {
			rows, more = rows[:i], true
			break
		}
		seen[r.JobID] = true
		if r.Flow >= 0 { // below 0: the job is that of no step, and its change is deleted without any effect
			numbers = append(numbers, r.Flow)
		}
	}
	if err := p.load(ctx, numbers); err != nil {
		return 0, false, err
	}
	// The changes that matter, by their jobs.
	of := make(map[[16]byte]*dbsqlc.WorkflowPendingListRow, len(rows))
	a := dbsqlc.WorkflowPendingApplyParams{RootID: p.root.ID, Ids: make([]int64, len(rows))}
	for i := range rows {
		a.Ids[i] = rows[i].ID
		if rows[i].Flow >= 0 && !p.decided(&rows[i]) {
			of[rows[i].JobID] = &rows[i]
		}
	}
	// WorkflowPendingApply finds the element of a job by width_bucket, which requires ascending ids without duplicates.
	a.JobIds = slices.SortedFunc(maps.Keys(of), func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) })
	for _, id := range a.JobIds {
		r, state := of[id], stepState(of[id].State)
		ended := r.At
		// A job that was retried by hand takes back the end of its step.
		ended.Valid = state != pending
		a.LastIds, a.States, a.Attempts = append(a.LastIds, r.ID), append(a.States, state), append(a.Attempts, r.Attempt.Int32)
		a.StartedAt, a.EndedAt, a.Errors = append(a.StartedAt, r.StartedAt), append(a.EndedAt, ended), append(a.Errors, r.Error)
	}
	// The rows of all steps are stored before the first decision: when a member ends its group, the values of the members
	// are read from the table, and must include those of the same portion.
	if err := p.q.WorkflowPendingApply(ctx, a); err != nil {
		return 0, false, err
	}
	for i := range rows {
		r := &rows[i]
		if of[r.JobID] == nil {
			continue
		}
		// StepState was read before the statement above, so moved sees the transition.
		st := &step{flow: r.Flow, index: r.Index, id: r.StepID, kind: r.Kind, jobType: r.Type, callback: r.Callback, state: r.StepState,
			job: r.JobID}
		if err := p.moved(ctx, st, stepState(r.State), cause{row: r, trace: p.s.tracer.Executed(r.JobID)}); err != nil {
			return 0, false, err
		}
	}
	if err := p.settle(ctx); err != nil {
		return 0, false, err
	}
	// The last deferred statements, those of store, go before the commit.
	return len(rows), more, p.later.Flush(ctx)
}

// decided reports whether a change, that of a job which was retried by hand, comes too late: the step has ended, and what follows from its
// end has been decided, because callbacks were fired or its nested workflow has ended. The step stays as it is then, or a workflow could
// fail without a failure. After the end of the whole tree it shows what became of the job. (docs/reference/workflows.md,
// States: the last paragraph). The pending row is deleted all the same.
func (p *pass) decided(r *dbsqlc.WorkflowPendingListRow) bool {
	f := p.flows[r.Flow]
	return f != nil && p.root.running() && r.Kind != kindCallback && r.StepState != pending && (!f.running() || f.MembersFailed.Valid)
}

// stepState is the state of the step of a job. Every state in which a job can still run is pending, also retryable: a retry
// is no failure (docs/reference/workflows.md, States).
func stepState(jobState string) string {
	switch jobState {
	case completed, cancelled:
		return jobState
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
		if len(p.events) > 0 {
			subject := spec.FormatID(p.root.ID)
			a := dbsqlc.WorkflowEventInsertParams{Time: p.now, Subject: subject, RootID: p.root.ID, TraceID: p.root.TraceID,
				Tenant: p.root.Tenant, Node: p.s.commits.Node}
			for _, e := range p.events {
				a.Types, a.Sources, a.Data = append(a.Types, e.kind), append(a.Sources, e.source), append(a.Data, e.data)
				p.changes = append(p.changes, eventlog.Change{Type: e.kind, Subject: subject, At: p.now.Time})
			}
			p.events = nil
			if err := p.q.WorkflowEventInsert(ctx, a); err != nil {
				return err
			}
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
		u.Flows, u.States, u.Completed, u.Failed, u.Open = append(u.Flows, f.Flow), append(u.States, f.State),
			append(u.Completed, f.Completed), append(u.Failed, f.Failed), append(u.Open, f.Open)
		u.CompletedCounts, u.FailedCounts = append(u.CompletedCounts, f.CompletedCount), append(u.FailedCounts, f.FailedCount)
		u.MembersFailed, u.CallbacksOpen, u.CallbacksFailed = append(u.MembersFailed, membersFailed),
			append(u.CallbacksOpen, f.CallbacksOpen), append(u.CallbacksFailed, f.CallbacksFailed)
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
	eventlog.Emit(ctx, p.s.commits, p.changes, func(changes []eventlog.Change,
		c *eventlog.Change) []eventlog.Change {
		return append(changes, *c)
	})
	for _, sp := range p.spans {
		if state, id := sp.item.began(); state == pending {
			sp.span.Accepted(id, string(ojs.StateAvailable))
		}
	}
	// AfterCommit wakes parked fetches of this node, and with it the worker that has just sent the ack. It may find that jobs of workflows
	// have ended, for example because the unique policy of a new job has replaced one. A creation waits until these have followed. A turn
	// must not: for the same root it would wait for itself, and for another root two turns could wait for each other, or for the places
	// that they hold.
	if p.creating {
		p.inserted.AfterCommit(ctx)
	} else if len(p.inserted.AfterCommitWithoutWorkflows(ctx)) > 0 {
		p.s.Wake()
	}
	if len(p.changes) > 0 {
		p.s.commits.Committed()
	}
	if e := p.ended; e != nil {
		run := tracing.WorkflowRun{
			ID: e.root.ID, Name: e.root.Name, Type: e.root.Type, State: e.root.State, Meta: e.root.Meta, Start: e.started, End: e.ended,
		}
		if e.failure != nil {
			run.Error = e.failure.Error
		}
		p.s.tracer.Workflow(run)
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
// The order of the cases is the rule. Counts change in any case, and a step that completes has its event, so that the answer and the events
// of an ended workflow tell what became of its jobs. Then nothing follows in a workflow that has ended, and nothing follows for a member
// after callbacks were fired, or they would fire twice.
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
	if to == completed && st.kind == kindJob {
		p.stepCompleted(f, st, c)
	}
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
		if _, err := p.cancelBelow(ctx, f.Flow, f.LastFlow); err != nil {
			return err
		}
		// Workflows nested in the rest of a chain have not begun and are not loaded; their rows get their end here. In all other types
		// every member has ended.
		if Type(f.Type) == Chain && f.LastFlow > f.Flow {
			if err := p.endBelow(ctx, f.Flow+1, f.LastFlow); err != nil {
				return err
			}
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

// endBelow reads the stored state. It does not touch workflows in memory, so a caller that has one of them loaded must
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
	a := dbsqlc.WorkflowStepCancelBelowParams{RootID: p.root.ID, AfterFlow: first, AfterIndex: -1, LastFlow: last, EndedAt: p.now,
		MaxRows: portion}
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
	rows, err := p.q.WorkflowStepListDependents(ctx, dbsqlc.WorkflowStepListDependentsParams{RootID: p.root.ID, Flow: f.Flow,
		Index: st.index})
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
