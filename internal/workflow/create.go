package workflow

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Create stores a workflow and begins its first steps, all in one transaction. The error of an id that is taken, or of a job
// that a unique policy refuses, is of kind duplicate_job. Nothing is stored after an error, but queues that did not exist
// may have been created. After an error with an unknown outcome a client that chose the id finds out by reading it; others
// use an idempotency key.
func (s *Store) Create(ctx context.Context, def *Definition) (w *Workflow, err error) {
	_, err = s.CreateOnce(ctx, def, queue.IdempotencyKey{}, func(created *Workflow) (queue.Answer, error) {
		w = created
		return queue.Answer{}, nil
	})
	return w, err
}

// CreateOnce is Create with an idempotency key, unless that is empty: the answer that show makes is stored with the workflow, and is the
// answer to the same call later. show runs in the transaction, on what the transaction has stored, because the kept answer
// must be the one of that commit. It may run more than once and must have no effect of its own. If the transaction has to
// be tried again, all is made anew from def, ids that the client did not choose included.
func (s *Store) CreateOnce(ctx context.Context, def *Definition, k queue.IdempotencyKey,
	show func(*Workflow) (queue.Answer, error)) (answer queue.Answer, err error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout) // fetches are woken even if the client hangs up
	defer cancel()
	// This tree is for the checks before the transaction only; each try makes its own.
	nodes := treeOf(def)
	if err := s.admit(bounded, nodes); err != nil {
		return answer, pg.ClientError(err)
	}
	// The queues of the first jobs are created before the transaction, so that other producers do not wait for its end. They stay if the
	// creation fails. Queues of later steps are created when these are inserted.
	var first []*job.Job
	_ = nodes[0].first(func(n *node, index int, child *node) error {
		if child == nil {
			first = append(first, n.def.Members[index].Job)
		}
		return nil
	})
	if err := s.jobs.CreateQueues(bounded, first); err != nil {
		return answer, pg.ClientError(err)
	}
	var p *pass
	var w *Workflow
	err = pg.Retry(func() error {
		return s.db.InPartitionedTx(bounded, func(tx pgx.Tx) (err error) {
			// The key comes first. A second call with the same key waits here for the first one, and then gets its answer,
			// before it writes anything.
			if answer, err = k.Claim(bounded, tx); err != nil || answer.Replayed {
				return err
			}
			p = newPass(s, tx)
			p.source, p.creating = "api", true
			if err := p.checkSchemas(bounded, def); err != nil {
				return err
			}
			if err := p.create(bounded, treeOf(def)); err != nil {
				return err
			}
			// The answer is read from the rows, so it shows what was stored and not what was sent.
			if w, err = s.read(bounded, p.q, p.root.ID); err != nil {
				return err
			}
			if answer, err = show(w); err != nil {
				return err
			}
			return k.Keep(bounded, tx, answer)
		})
	})
	if err != nil || answer.Replayed {
		return answer, pg.ClientError(err)
	}
	p.committed(ctx)
	s.logChange(ctx, "workflow created", w)
	return answer, nil
}

// checkSchemas refuses a definition with a job whose args violate a schema. Later steps are inserted without another check: a
// schema that is registered meanwhile must not end a workflow that runs. It reads on the connection of the transaction: a
// second one, while the first is kept, could empty the pool.
func (p *pass) checkSchemas(ctx context.Context, def *Definition) error {
	jobs := make([]*job.Job, len(def.jobs))
	for i, j := range def.jobs {
		jobs[i] = j.Job
	}
	at, err := p.s.schemas.Check(ctx, p.q, jobs...)
	if wire, ok := errors.AsType[*ojs.Error](err); ok {
		return job.At(def.jobs[at].path, wire)
	}
	return err
}

// admit refuses a definition with a job that its queue does not take. Later steps and callbacks are not checked again: work that was
// accepted goes on while a queue is drained. It checks all jobs of the tree before the transaction, by what this node knows
// of the queues; what a queue gives to the job of a later step is read when that job is inserted.
func (s *Store) admit(ctx context.Context, nodes []*node) error {
	var jobs []*job.Job
	var steps []string
	for _, n := range nodes {
		for _, m := range n.def.Members {
			if m.Job != nil {
				jobs, steps = append(jobs, m.Job), append(steps, n.Path+m.ID)
			}
		}
		for _, c := range n.def.Callbacks {
			jobs, steps = append(jobs, c.Job), append(steps, n.Path+c.Name)
		}
	}
	at, err := s.jobs.Admit(ctx, jobs)
	if wire, refused := errors.AsType[*ojs.Error](err); refused && at >= 0 {
		return spec.With(wire, "step_id", steps[at])
	}
	return err
}

// create inserts workflows before jobs, and jobs before steps: the id that is taken is found before anything else is written, and the
// rows of steps already have their jobs, which saves an update of each. No lock is taken, as no other transaction sees the
// tree.
func (p *pass) create(ctx context.Context, nodes []*node) error {
	now, err := p.q.SystemPing(ctx)
	if err != nil {
		return err
	}
	p.now = pgtype.Timestamptz{Time: now.Time, Valid: true}
	for _, n := range nodes {
		// All workflows of a tree have the same time of creation.
		n.CreatedAt = p.now
		p.flows[n.Flow] = n.flow
	}
	p.root = nodes[0].flow
	for part := range slices.Chunk(nodes, portion) {
		a := dbsqlc.WorkflowInsertParams{RootID: p.root.ID, CreatedAt: p.now, Tenant: p.root.Tenant}
		for _, n := range part {
			parent := int32(-1) // none, as in WorkflowInsert
			if n.ParentIndex.Valid {
				parent = n.ParentIndex.Int32
			}
			a.Ids, a.Flows, a.LastFlows, a.Ancestors = append(a.Ids, n.ID), append(a.Flows, n.Flow), append(a.LastFlows, n.LastFlow),
				append(a.Ancestors, integers(n.Ancestors))
			a.ParentIndexes, a.Paths, a.Types, a.Names = append(a.ParentIndexes, parent), append(a.Paths, n.Path), append(a.Types, n.Type),
				append(a.Names, n.Name)
			a.Meta, a.TraceIds, a.StepsForms = append(a.Meta, n.Meta), append(a.TraceIds, n.TraceID.String),
				append(a.StepsForms, n.StepsForm)
			// The texts of arrays need no quotes: names of callbacks are fixed words.
			a.Totals, a.JobCounts, a.Callbacks = append(a.Totals, n.Total), append(a.JobCounts, n.JobCount),
				append(a.Callbacks, "{"+strings.Join(n.Callbacks, ",")+"}")
		}
		// Of two creations with one id at once, the second one waits at the primary key until the first has ended, and then finds the id
		// taken or free.
		stored, err := p.q.WorkflowInsert(ctx, a)
		if err != nil {
			return err
		}
		if stored < int64(len(part)) {
			id := spec.FormatID(p.root.ID)
			return spec.NewError(ojs.ErrDuplicateJob, "A workflow with id "+id+" already exists.",
				map[string]any{"field": "id", "existing_workflow_id": id})
		}
	}
	items, err := p.insertFirst(ctx, nodes[0])
	if err != nil {
		return err
	}
	if err := p.insertSteps(ctx, nodes, items); err != nil {
		return err
	}
	// Last the jobs that unique policies have left out. Without them nothing follows and nothing is read or written here. With them a
	// chain may go on, or end, within its own creation; all its rows exist by now, which the statements of settle need.
	a := dbsqlc.WorkflowStepBeginParams{RootID: p.root.ID}
	for _, it := range items {
		if it.duplicateOf != nil {
			a.Flows, a.Indexes, a.States = append(a.Flows, it.step.flow), append(a.Indexes, it.step.index), append(a.States, completed)
			a.JobIds, a.Deduplicated, a.Errors = append(a.JobIds, *it.duplicateOf), append(a.Deduplicated, true), append(a.Errors, nil)
		}
	}
	if len(a.Flows) == 0 {
		return nil
	}
	if err := p.q.WorkflowStepBegin(ctx, a); err != nil {
		return err
	}
	if err := p.applyRefusals(ctx, items); err != nil {
		return err
	}
	return p.settle(ctx)
}

// insertFirst inserts the jobs of the steps that begin at once. A job that a unique policy refuses fails all of the
// creation. Portions are bounded in rows and bytes like those of an advance. The steps of nested workflows are among the
// items, because their rows begin as pending, too.
func (p *pass) insertFirst(ctx context.Context, root *node) ([]*item, error) {
	var items []*item
	done, bytes := 0, 0
	insert := func() error {
		part := items[done:]
		done, bytes = len(items), 0
		if err := p.insertJobs(ctx, part); err != nil {
			return err
		}
		for _, it := range part {
			if it.refused != nil {
				id := it.flow.Path + it.step.id
				wire := spec.NewError(ojs.ErrDuplicateJob, "The job of step "+id+" has an equivalent; nothing was stored.",
					existing(it.details, items))
				return spec.With(wire, "step_id", id)
			}
		}
		return nil
	}
	got := &passed{values: values{[]byte(`[]`), []byte(`{}`)}}
	err := root.first(func(n *node, index int, child *node) error {
		m := n.def.Members[index]
		it := &item{flow: n.flow, passed: got, step: &step{flow: n.Flow, index: int32(index), id: m.ID, kind: kindJob, state: pending}}
		items = append(items, it)
		if child != nil {
			it.step.kind = kindWorkflow
			return nil
		}
		own := *m.Job // the transaction may be tried again
		it.job, it.step.jobType = &own, own.Type
		p.prepare(ctx, it)
		if bytes += own.ClientBytes(); len(items)-done < portion && bytes < portionBytes {
			return nil
		}
		return insert()
	})
	if err == nil && done < len(items) {
		err = insert()
	}
	return items, err
}

// insertSteps stores the steps, in portions of rows and bytes. The template of a step whose job exists is not stored:
// nothing reads it any more.
func (p *pass) insertSteps(ctx context.Context, nodes []*node, items []*item) error {
	// All steps are stored in one go; this tells which of them have a job already.
	begun := make(map[place]*item, len(items))
	for _, it := range items {
		begun[place{it.step.flow, it.step.index}] = it
	}
	var rows []stepRow
	bytes := 0
	insert := func() error {
		// Zero ids and a child of 0 stand for NULL, as in WorkflowStepInsert: a nested workflow never has the number 0.
		a := dbsqlc.WorkflowStepInsertParams{RootID: p.root.ID}
		for i := range rows {
			r := &rows[i]
			a.Flows, a.Indexes, a.StepIds, a.Kinds = append(a.Flows, r.flow), append(a.Indexes, r.index), append(a.StepIds, r.id),
				append(a.Kinds, r.kind)
			a.Callbacks, a.Types, a.Queues, a.States = append(a.Callbacks, r.callback), append(a.Types, r.jobType),
				append(a.Queues, r.queue), append(a.States, r.state)
			a.JobIds, a.ChildFlows, a.Templates = append(a.JobIds, r.job), append(a.ChildFlows, r.child), append(a.Templates, r.template)
			a.DependsOn, a.NeededBy = append(a.DependsOn, integers(r.dependsOn)), append(a.NeededBy, integers(r.neededBy))
		}
		rows, bytes = rows[:0], 0
		return p.q.WorkflowStepInsert(ctx, a)
	}
	for _, n := range nodes {
		for _, r := range n.steps(begun) {
			rows = append(rows, r)
			if bytes += len(r.template); len(rows) < portion && bytes < portionBytes {
				continue
			}
			if err := insert(); err != nil {
				return err
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return insert()
}

// existing leaves out the equivalent job if it is one of the same definition, which is not stored either. A client must not
// get an id that will never be found.
func existing(details map[string]any, items []*item) map[string]any {
	details = maps.Clone(details)
	for _, it := range items {
		if it.job != nil && details["existing_job_id"] == spec.FormatID(it.job.ID) {
			delete(details, "existing_job_id")
			delete(details, "existing_job_state")
		}
	}
	return details
}

// node is a workflow of a definition with its place in the tree. The embedded flow is the row to be inserted, and the pass
// of the creation goes on with the same value.
type node struct {
	*flow
	def      *Definition
	children map[int]*node // by the index of their step
}

// treeOf numbers the workflows of a definition, depth first, and makes their ids. It changes nothing in the definition, so
// it can be called for each try. Numbers are given before the children, and LastFlow after them: what is below a workflow
// is the range between the two, which WorkflowEndBelow and the list of a tree rely on.
func treeOf(def *Definition) []*node {
	var nodes []*node
	var add func(def *Definition, above *node, index int) *node
	add = func(def *Definition, above *node, index int) *node {
		// Open begins at Total, because members that wait count as open. Nested workflows begin as running even if their step waits; only
		// their step tells.
		n := &node{def: def, children: map[int]*node{}, flow: &flow{Workflow: dbsqlc.Workflow{
			ID: def.ID, Flow: int32(len(nodes)), Ancestors: []int32{}, Type: string(def.Type), Name: def.Name, State: running,
			Meta: def.Meta, Tenant: def.Tenant, StepsForm: def.StepsForm, Total: int32(len(def.Members)), Open: int32(len(def.Members)),
			JobCount: int32(def.Leaves), Callbacks: []string{},
		}}}
		if n.ID == [16]byte{} {
			n.ID = job.NewID()
		}
		if n.Name == "" {
			n.Name = string(def.Type)
		}
		if trace := job.TraceID(def.Meta); trace != "" {
			n.TraceID = pgtype.Text{String: trace, Valid: true}
		}
		for _, c := range def.Callbacks {
			n.Callbacks = append(n.Callbacks, c.Name)
		}
		if above != nil {
			n.Ancestors = append(append(n.Ancestors, above.Ancestors...), above.Flow)
			n.ParentIndex = pgtype.Int4{Int32: int32(index), Valid: true}
			// Events and errors name steps by it: ids joined by dots, the nearest last.
			n.Path = above.Path + above.def.Members[index].ID + "."
		}
		nodes = append(nodes, n)
		for i, m := range def.Members {
			if m.Nested != nil {
				n.children[i] = add(m.Nested, n, i)
			}
		}
		n.LastFlow = int32(len(nodes) - 1)
		return n
	}
	add(def, nil, 0)
	for _, n := range nodes {
		n.RootID = nodes[0].ID
	}
	return nodes
}

// first calls begin for the steps that begin when the tree does, in the order of the definition; child is nil for a job. A
// nested workflow comes directly before its own first steps. An error of begin ends the walk.
func (n *node) first(begin func(n *node, index int, child *node) error) error {
	for i, m := range n.def.Members {
		if n.def.Type == Chain && i > 0 {
			break
		}
		if len(m.DependsOn) > 0 {
			continue
		}
		child := n.children[i]
		if err := begin(n, i, child); err != nil {
			return err
		}
		if child == nil {
			continue
		}
		if err := child.first(begin); err != nil {
			return err
		}
	}
	return nil
}

// integers is an array of integers as PostgreSQL reads it. Arrays of arrays of different lengths cannot be sent as one
// parameter, so each is sent as a text.
func integers(list []int32) string {
	b := []byte{'{'}
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, '}'))
}

// stepRow is a step as it is stored first. needed_by is the reverse of depends_on. It is stored, because the end of a step
// must find those that wait for it without reading all steps.
type stepRow struct {
	dependsOn, neededBy []int32
	step
	queue    string
	child    int32
	template []byte // nil: the job was inserted
}

// steps are the rows of the members and callbacks of a workflow. begun are the steps that have begun. Callbacks get the
// indexes behind the members. A step that stands for an existing job is stored as pending without a job first, and ended by
// create.
func (n *node) steps(begun map[place]*item) []stepRow {
	neededBy := make(map[int][]int32)
	for i, m := range n.def.Members {
		for _, d := range m.DependsOn {
			neededBy[d] = append(neededBy[d], int32(i))
		}
	}
	rows := make([]stepRow, 0, len(n.def.Members)+len(n.def.Callbacks))
	for i, m := range n.def.Members {
		r := stepRow{step: step{flow: n.Flow, index: int32(i), id: m.ID, kind: kindJob, state: waiting}, template: m.Template,
			neededBy: neededBy[i]}
		for _, d := range m.DependsOn {
			r.dependsOn = append(r.dependsOn, int32(d))
		}
		if m.Nested != nil {
			r.kind, r.jobType, r.child = kindWorkflow, string(m.Nested.Type), n.children[i].Flow
		} else {
			r.jobType, r.queue = m.Job.Type, m.Job.Queue
		}
		if it := begun[place{r.flow, r.index}]; it != nil {
			r.state, r.template = pending, nil
			if it.job != nil && it.duplicateOf == nil {
				r.job = it.job.ID
			}
		}
		rows = append(rows, r)
	}
	for i, c := range n.def.Callbacks {
		id := c.StepID
		if id == "" {
			id = c.Name
		}
		rows = append(rows, stepRow{
			step: step{flow: n.Flow, index: n.Total + int32(i), id: id, kind: kindCallback, callback: c.Name, jobType: c.Job.Type,
				state: waiting},
			queue: c.Job.Queue, template: c.Template,
		})
	}
	return rows
}
