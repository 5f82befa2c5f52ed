package fakeserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// workflow is a workflow, or one nested in another.
type workflow struct {
	id, kind, name string
	meta           json.RawMessage
	state          ojs.WorkflowState
	created, ended time.Time
	steps          []*step
	callbacks      []*step
	parent         *step
}

// step is a job or a nested workflow in a workflow. deps are ids of other steps of the same workflow. state is that of the
// answer: waiting until its turn, pending once begun, then how it ended.
type step struct {
	id     string
	deps   []string
	kind   string          // type of the job, or of the nested workflow
	raw    json.RawMessage // of the job; relative times in it count from its turn
	nested *workflow
	flow   *workflow
	job    *record
	state  string
}

func (s *Server) serveWorkflows(path []string, r *Request) answer {
	switch {
	case len(path) == 0 && r.Method == http.MethodPost:
		return s.createWorkflow(r)
	case len(path) == 0:
		if refused := oneOf(r, "state", "pending", "active", "running", "completed", "failed", "cancelled"); refused != nil {
			return refusal(refused)
		}
		all := []object{}
		for _, w := range s.workflows {
			if w.parent == nil && in(r, "state", string(w.state)) {
				all = append(all, w.show())
			}
		}
		slices.SortFunc(all, func(a, b object) int { return -1 * compareText(a["id"], b["id"]) })
		return page(r, "workflows", all)
	}
	w := s.workflows[strings.TrimPrefix(path[0], "wf_")]
	if w == nil {
		return notFound("workflow", path[0])
	}
	if r.Method == http.MethodDelete || len(path) == 2 && path[1] == "cancel" {
		if w.state.Terminal() {
			return refuse(http.StatusConflict, newError(ojs.ErrInvalidStateTransition, object{"current_state": w.state},
				"the workflow has ended"))
		}
		s.cancelWorkflow(w, r.Query.Get("force") == "true")
	}
	return ok(showRoot(w))
}

func (s *Server) createWorkflow(r *Request) answer {
	d, refused := readWorkflow(r.Body, s.now())
	if refused != nil {
		return refusal(refused)
	}
	if s.workflows[d.id] != nil {
		return refuse(http.StatusConflict, duplicateID(d.id))
	}
	w := s.newWorkflow(d, nil)
	s.begin(w)
	a := created(showRoot(w))
	a.header = http.Header{"Location": {"/ojs/v1/workflows/" + w.id}}
	return a
}

// showRoot has the workflow at the top level and again under its name.
func showRoot(w *workflow) object {
	o := w.show()
	o["workflow"] = w.show()
	return o
}

// newWorkflow lets each step of a chain depend on the one before, so chains, groups and graphs follow the same rule.
func (s *Server) newWorkflow(d *definition, parent *step) *workflow {
	w := &workflow{id: d.id, kind: d.kind, name: d.name, meta: d.meta, state: ojs.WorkflowRunning, created: s.now(), parent: parent}
	if parent != nil || w.id == "" {
		w.id = ojs.NewID()
	}
	for i, m := range d.members {
		st := &step{id: m.id, deps: m.deps, kind: typeOf(m.job), raw: m.job, flow: w, state: "waiting"}
		if w.kind == "chain" && i > 0 {
			st.deps = []string{w.steps[i-1].id}
		}
		if m.nested != nil {
			st.kind, st.nested = m.nested.kind, s.newWorkflow(m.nested, st)
		}
		w.steps = append(w.steps, st)
	}
	for _, name := range callbackNames {
		if job := d.callbacks[name]; job != nil {
			w.callbacks = append(w.callbacks, &step{id: name, kind: typeOf(job), raw: job, flow: w, state: "waiting"})
		}
	}
	s.workflows[w.id] = w
	return w
}

func typeOf(job json.RawMessage) string {
	members, _ := objectOf(job)
	text, _ := textOf(members["type"])
	return text
}

// begin starts all steps whose dependencies have completed, and cancels those for which this can never be.
// A step whose dependency has failed is cancelled, and so in turn are those that depend on it, which may stand before it.
func (s *Server) begin(w *workflow) {
	for changed := true; changed; {
		changed = s.beginSome(w)
	}
}

// beginSome looks at each step once, and reports whether one does not wait any more.
func (s *Server) beginSome(w *workflow) (changed bool) {
	for _, st := range w.steps {
		if st.state != "waiting" {
			continue
		}
		ready := true
		for _, d := range st.deps {
			i := slices.IndexFunc(w.steps, func(o *step) bool { return o.id == d })
			if i >= 0 && (w.steps[i].state == "failed" || w.steps[i].state == "cancelled") {
				st.state = "cancelled"
			}
			ready = ready && i >= 0 && w.steps[i].state == "completed"
		}
		if ready && st.state == "waiting" {
			s.start(st, w.results(st.deps))
		}
		changed = changed || st.state != "waiting"
	}
	return changed
}

// start inserts the job of a step. A job that is refused makes its step fail, without an error for anybody: look at the state
// of the workflow.
func (s *Server) start(st *step, parents []json.RawMessage) {
	st.state = "pending"
	if st.nested != nil {
		s.begin(st.nested)
		return
	}
	sub, refused := readJob(st.raw, s.now())
	var p plan
	if refused == nil {
		st.flow.giveMeta(sub.Meta)
		p, refused = s.prepare(sub)
	}
	j := p.job
	if refused != nil || j == nil {
		st.state = "failed"
		return
	}
	j.flow, j.step = st.flow, st
	j.WorkflowID, j.WorkflowStepID, j.ParentResults = st.flow.id, st.id, parents
	st.job = j
	s.store(p)
}

// giveMeta adds the tenant and the trace of the outermost workflow to the meta of a job that has none of its own
// (docs/reference/workflows.md, Definition).
func (w *workflow) giveMeta(meta map[string]any) {
	for w.parent != nil {
		w = w.parent.flow
	}
	var from map[string]any
	_ = json.Unmarshal(w.meta, &from) // it was checked, or is absent
	trace := []string{"trace_id", "traceparent", "tracestate"}
	give := slices.DeleteFunc([]string{"tenant_id"}, func(name string) bool { return meta[name] != nil })
	if !slices.ContainsFunc(trace, func(name string) bool { return meta[name] != nil }) {
		give = append(give, trace...)
	}
	for _, name := range give {
		if value := from[name]; value != nil {
			meta[name] = value
		}
	}
}

// results of the steps that are named; of a chain those of all steps before. Steps without a job of their own, such as nested
// workflows, have none.
func (w *workflow) results(ids []string) []json.RawMessage {
	results := []json.RawMessage{}
	for _, st := range w.steps {
		before := w.kind == "chain" && len(ids) > 0 && st.state == "completed"
		if (before || slices.Contains(ids, st.id)) && st.job != nil {
			results = append(results, orNull(st.job.Result))
		}
	}
	return results
}

func orNull(result json.RawMessage) json.RawMessage {
	if len(result) == 0 {
		return json.RawMessage("null")
	}
	return result
}

// advance follows the end of a job in its workflow. A job that belongs to no workflow changes none.
func (s *Server) advance(j *record) {
	if j.step == nil {
		return
	}
	j.step.state = map[ojs.JobState]string{ojs.StateCompleted: "completed", ojs.StateDiscarded: "failed",
		ojs.StateCancelled: "cancelled"}[j.State]
	s.follow(j.flow)
}

// follow is called for each end of a job, and does nothing until all steps are over; then callbacks begin, and the outcome of the
// workflow waits for them.
func (s *Server) follow(w *workflow) {
	if w.state.Terminal() {
		return
	}
	s.begin(w)
	over := func(st *step) bool { return st.state == "completed" || st.state == "failed" || st.state == "cancelled" }
	if slices.ContainsFunc(w.steps, func(st *step) bool { return !over(st) }) {
		return
	}
	failed := slices.ContainsFunc(w.steps, func(st *step) bool { return st.state != "completed" })
	var all []json.RawMessage
	for _, st := range w.steps {
		if st.job != nil {
			all = append(all, orNull(st.job.Result))
		}
	}
	fired, handled := []*step{}, false
	for _, c := range w.callbacks {
		if c.id == "on_success" && failed || c.id == "on_failure" && !failed {
			continue
		}
		handled = handled || c.id == "on_failure"
		if fired = append(fired, c); c.state == "waiting" {
			s.start(c, all)
		}
	}
	// A failure that on_failure has handled does not make the workflow fail; a callback that fails does.
	failed = failed && !handled
	for _, c := range fired {
		if !over(c) {
			return
		}
		failed = failed || c.state != "completed"
	}
	w.state = ojs.WorkflowCompleted
	if failed {
		w.state = ojs.WorkflowFailed
	}
	w.ended = s.now()
	if w.parent != nil {
		w.parent.state = string(w.state)
		s.follow(w.parent.flow)
	}
}

// cancelWorkflow leaves steps that run alone without force, and their ends do not change the workflow any more.
func (s *Server) cancelWorkflow(w *workflow, force bool) {
	w.state, w.ended = ojs.WorkflowCancelled, s.now()
	for _, st := range w.steps {
		switch {
		case st.nested != nil && !st.nested.state.Terminal():
			s.cancelWorkflow(st.nested, force)
			st.state = "cancelled"
		case st.job == nil && st.nested == nil:
			st.state = "cancelled"
		case st.job != nil && !st.job.State.Terminal() && (force || st.job.State != ojs.StateActive):
			s.end(st.job, ojs.StateCancelled)
		}
	}
}

// show has the members that package ojs reads.
func (w *workflow) show() object {
	steps, completed, failed := []object{}, 0, 0
	for _, st := range w.steps {
		steps = append(steps, st.show())
		switch st.state {
		case "completed":
			completed++
		case "failed":
			failed++
		}
	}
	callbacks := object{}
	for _, c := range w.callbacks {
		callbacks[c.id] = object{"type": c.kind, "fired": c.job != nil, "state": c.state}
	}
	return object{
		"id": w.id, "type": w.kind, "name": w.name, "meta": w.meta, "state": w.state, "steps": steps, "callbacks": callbacks,
		"created_at": w.created, "completed_at": nullTime(w.ended), "steps_total": len(steps),
		"steps_completed": completed, "steps_failed": failed, "jobs": steps, "jobs_total": len(steps), "jobs_completed": completed,
		"jobs_failed": failed,
		"metadata":    object{"job_count": w.leaves(), "created_at": w.created, "completed_count": completed, "failed_count": failed},
	}
}

// leaves counts the jobs of the whole tree, callbacks apart.
func (w *workflow) leaves() (n int) {
	for _, st := range w.steps {
		if st.nested != nil {
			n += st.nested.leaves()
		} else {
			n++
		}
	}
	return n
}

func (st *step) show() object {
	o := object{"id": st.id, "type": st.kind, "state": st.state, "depends_on": append([]string{}, st.deps...)}
	if st.job != nil {
		o["job_id"], o["job_state"], o["result"], o["error"] = st.job.ID, st.job.State, st.job.Result, st.job.Error
	}
	if st.nested != nil {
		o["workflow"] = st.nested.show()
	}
	return o
}
