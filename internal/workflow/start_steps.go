package workflow

import (
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// start is a step that begins. It is a wish: settle begins it after the events that come before it are written.
type start struct {
	flow  *flow
	index int32
	trace string // traceparent of the run that it follows; "": none
}

// start hands on the trace of the cause, so that the next job's span follows the run that made it possible.
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
		first := starts[0]
		if first.ofDAG() {
			indexes, n := []int32{first.index}, 1
			for ; n < len(starts) && starts[n].ofDAG() && starts[n].flow == first.flow && starts[n].trace == first.trace &&
				starts[n].index > starts[n-1].index; n++ {
				indexes = append(indexes, starts[n].index)
			}
			if err := p.beginReady(ctx, first, indexes); err != nil {
				return err
			}
			starts = starts[n:]
			continue
		}
		// A step of a chain gets the results of those before it, a callback those of all members, but of no other callback: the statement
		// leaves them out. The results are read once and shared by all first steps of a nested group.
		got, err := p.members(ctx, first.flow, first.index, nil)
		if err != nil {
			return err
		}
		if err := p.beginAll(ctx, first.flow, first.index, first.index, &passed{got, first.trace}); err != nil {
			return err
		}
		starts = starts[1:]
	}
	return nil
}

// ofDAG reports whether the step is a member of a dag.
func (s *start) ofDAG() bool { return Type(s.flow.Type) == DAG && s.index < s.flow.Total }

// beginReady begins members of a dag. Neighbours that depend on the same steps share their results, which may be large.
// Only steps that are still waiting begin. A portion ends at portionBytes of templates, so the statement may return fewer
// steps than it was asked for; the loop goes on behind the last one. Indexes without a row were no longer waiting.
func (p *pass) beginReady(ctx context.Context, s start, indexes []int32) error {
	var needs string
	var got *passed
	for len(indexes) > 0 {
		part := indexes[:min(portion, len(indexes))]
		rows, err := p.q.WorkflowStepListReady(ctx, dbsqlc.WorkflowStepListReadyParams{RootID: p.root.ID, Flow: s.flow.Flow, Indexes: part,
			MaxBytes: portionBytes})
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

// beginStep adds the step of a nested workflow before those in it. Its row is stored with theirs or in an earlier portion.
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
	j, wire := job.DecodeItem(r.Template, p.s.limits)
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

// add inserts the batch when it is full, else by settle.
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
	// The attributes that only jobs of workflows have are part of the stored job, so parent_results do not change when a step before is
	// retried (docs/reference/workflows.md, Results). The names cannot meet those of a client: the decoder of jobs knows them as the
	// server's own.
	b := make([]byte, 0, len(j.Extra)+256+len(it.passed.list)+len(it.passed.named))
	if len(j.Extra) > len(`{}`) {
		b = append(append(b, j.Extra[:len(j.Extra)-1]...), ',')
	} else {
		b = append(b, '{')
	}
	b = append(spec.AppendID(append(b, `"workflow_id":"`...), it.flow.ID), '"')
	b = append(spec.AppendID(append(b, `,"root_workflow_id":"`...), p.root.ID), '"')
	if it.step.kind == kindCallback {
		b = append(append(append(b, `,"workflow_callback":"`...), it.step.callback...), '"')
	} else {
		b = strconv.AppendInt(append(b, `,"workflow_step":`...), int64(it.step.index), 10)
		b, _ = jsontext.AppendQuote(append(b, `,"workflow_step_id":`...), it.step.id) // valid UTF-8: the decoder has checked it
	}
	b = append(append(b, `,"parent_results":`...), it.passed.list...)
	b = append(append(b, `,"parent_results_map":`...), it.passed.named...)
	b = append(b, '}')
	j.Extra = b
	if span := p.s.tracer.Enqueue(ctx, j); span.Begun() {
		p.spans = append(p.spans, enqueueSpan{span, it})
	}
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
		a.JobIds, a.Deduplicated, a.Errors = append(a.JobIds, id), append(a.Deduplicated, it.duplicateOf != nil),
			append(a.Errors, it.refused)
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

// applyRefusals takes them through moved like any other end of a step: a refused member fails its chain, a duplicate begins the next step.
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
