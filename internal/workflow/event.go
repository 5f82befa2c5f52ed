package workflow

import (
	"context"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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
