package workflow

import (
	"context"
	"errors"
	"maps"
	"slices"

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
func (s *Store) CreateOnce(ctx context.Context, def *Definition, k queue.IdempotencyKey, show func(*Workflow) (queue.Answer, error)) (answer queue.Answer, err error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout) // fetches are woken even if the client hangs up
	defer cancel()
	// This tree is for the checks before the transaction only; each try makes its own.
	nodes := treeOf(def)
	if err := s.admit(bounded, nodes); err != nil {
		return answer, pg.ClientError(err)
	}
	// Only for the first jobs; queues of later steps are created when these are inserted.
	if err := s.createQueues(bounded, nodes[0]); err != nil {
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

// createQueues creates the queues of the first jobs before the transaction, so that other producers do not wait for its
// end. They stay if the creation fails.
func (s *Store) createQueues(ctx context.Context, root *node) error {
	var jobs []*job.Job
	_ = root.first(func(n *node, index int, child *node) error {
		if child == nil {
			jobs = append(jobs, n.def.Members[index].Job)
		}
		return nil
	})
	return s.jobs.CreateQueues(ctx, jobs)
}

// Workflows come before jobs, and jobs before steps: the id that is taken is found before anything else is written, and the
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
	if err := p.insertWorkflows(ctx, nodes); err != nil {
		return err
	}
	items, err := p.insertFirst(ctx, nodes[0])
	if err != nil {
		return err
	}
	if err := p.insertSteps(ctx, nodes, items); err != nil {
		return err
	}
	return p.settleFirst(ctx, items)
}

// Two creations with one id at once: the second one waits at the primary key until the first has ended, and then finds the
// id taken or free.
func (p *pass) insertWorkflows(ctx context.Context, nodes []*node) error {
	for part := range slices.Chunk(nodes, portion) {
		a := workflowRows(part)
		a.RootID, a.CreatedAt, a.Tenant = p.root.ID, p.now, p.root.Tenant
		stored, err := p.q.WorkflowInsert(ctx, a)
		if err != nil {
			return err
		}
		if stored < int64(len(part)) {
			id := spec.FormatID(p.root.ID)
			return spec.NewError(ojs.ErrDuplicateJob, "A workflow with id "+id+" already exists.", map[string]any{"field": "id", "existing_workflow_id": id})
		}
	}
	return nil
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
				wire := spec.NewError(ojs.ErrDuplicateJob, "The job of step "+id+" has an equivalent; nothing was stored.", existing(it.details, items))
				return spec.With(wire, "step_id", id)
			}
		}
		return nil
	}
	got := &passed{values: noValues()}
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
		a := stepRows(rows)
		a.RootID = p.root.ID
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

// settleFirst applies the inserts that unique policies have left out. Without such jobs nothing follows and nothing is read
// or written here. With them a chain may go on, or end, within its own creation; all its rows exist by now, which the
// statements of settle need.
func (p *pass) settleFirst(ctx context.Context, items []*item) error {
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
