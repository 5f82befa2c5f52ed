package httpapi

import (
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
)

// workflowRoutes are those of docs/reference/workflows.md. A definition may have thousands of jobs, so its limit is that of a batch.
func (a *API) workflowRoutes() []route {
	return []route{
		{"POST", "/workflows", api.Confined, manyBody, "", a.postWorkflow},
		{"GET", "/workflows", api.Confined, noBody, paging + "type name state", a.listWorkflows},
		{"GET", "/workflows/:id", api.AboutWorkflow, noBody, "", about(workflowID, a.getWorkflow)},
		{"DELETE", "/workflows/:id", api.AboutWorkflow, noBody, "force cancelled_by", about(workflowID, a.cancelWorkflow)},
		{"POST", "/workflows/:id/cancel", api.AboutWorkflow, commandBody, "force cancelled_by", about(workflowID, a.cancelWorkflow)},
		{"GET", "/workflows/:id/progress", api.AboutWorkflow, noBody, "", about(workflowID, a.getWorkflowProgress)},
	}
}

// postWorkflow stores the workflow and its first jobs in one transaction; everything is checked before. Without a key a
// repetition makes a second workflow, unless the definition has an id, which is 409 then.
func (a *API) postWorkflow(r *request) error {
	in, wire := a.Workflows.Decode(r.body, a.limits(r))
	if wire != nil {
		return wire
	}
	// The key of a workflow comes in the header only.
	if r.Request().Header.Get("Idempotency-Key") != "" {
		return a.postWorkflowOnce(r, r.body, in)
	}
	wait, err := blockTimeout(r)
	if err != nil {
		return err
	}
	var w *workflow.Workflow
	// Only the first jobs need room in their queues; later ones pass the bound.
	err = a.Jobs.RetryFull(r.Request().Context(), wait, func() error {
		w, err = a.Workflows.Create(r.Request().Context(), in)
		return err
	})
	if err != nil {
		return err
	}
	r.Response().Header().Set("Location", "/ojs/v1/workflows/"+spec.FormatID(w.ID))
	return respondWorkflow(r, http.StatusCreated, &shownWorkflow{Workflow: w})
}

// postWorkflowOnce is postWorkflow with an idempotency key. What is remembered has the workflow once; the answer repeats it.
// The stored answer is that of the creation: a replay shows the workflow as it was then.
func (a *API) postWorkflowOnce(c echo.Context, body []byte, in *workflow.Definition) error {
	key, err := a.idempotency(c, "workflow", "", body)
	if err != nil {
		return err
	}
	wait, err := blockTimeout(c)
	if err != nil {
		return err
	}
	var answer queue.Answer
	err = a.Jobs.RetryFull(c.Request().Context(), wait, func() error {
		// The function runs in the transaction that creates the workflow.
		answer, err = a.Workflows.CreateOnce(c.Request().Context(), in, key, func(w *workflow.Workflow) (queue.Answer, error) {
			shown := shownWorkflow{Workflow: w}
			return queue.Answer{Status: http.StatusCreated, Body: append(shown.append([]byte{'{'}, whole), '}')}, nil
		})
		return err
	})
	if err != nil {
		return err
	}
	// The header is written before the body, which is streamed if it is large.
	h := c.Response().Header()
	if answer.Replayed {
		h.Set("Idempotent-Replayed", "true")
	}
	id, _ := jsonread.Text(jsonread.Find(answer.Body, "id"))
	h.Set("Location", "/ojs/v1/workflows/"+id)
	// The stored object is cut open at its last brace, so that the wrapper stands beside its members, as in the first answer.
	return respondEach(c, answer.Status, 2*len(answer.Body), func(b []byte, next flush) []byte {
		b = next(append(b, answer.Body[:len(answer.Body)-1]...))
		b = append(b, `,"workflow":`...)
		return append(append(b, answer.Body...), '}')
	})
}

// workflowID reads the id in the path; what is no id is an unknown workflow.
func workflowID(c echo.Context) ([16]byte, error) {
	text := param(c, "id")
	id, ok := spec.ParseID(text)
	if !ok {
		return id, spec.NotFound("workflow", text)
	}
	return id, nil
}

// getWorkflow takes the id of a nested workflow, too, which is then shown as if it were a root. The whole tree is read in one snapshot.
func (a *API) getWorkflow(r *request, id [16]byte) error {
	w, err := a.Workflows.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return respondWorkflow(r, http.StatusOK, &shownWorkflow{Workflow: w})
}

// cancelWorkflow is 409 for one that has ended or is nested, so a repetition is, too. If this node stops during the call, the
// tree is cancelled and another node cancels the jobs that are left.
func (a *API) cancelWorkflow(r *request, id [16]byte) error {
	force := r.boolean("force")
	if r.err != nil {
		return r.err
	}
	// The counts are of this call: a second one would be 409 and has none.
	w, counts, err := a.Workflows.Cancel(r.Request().Context(), id, force != nil && *force, a.actor(r, "cancelled_by"))
	if err != nil {
		return err
	}
	return respondWorkflow(r, http.StatusOK, &shownWorkflow{Workflow: w, cancelled: &counts})
}

// respondWorkflow answers with the workflow twice: JS SDK, CLI and admin UI read it at the top level, the other SDKs under workflow.
// w is appended twice rather than copied, because the first copy may have been sent already.
func respondWorkflow(c echo.Context, status int, w *shownWorkflow) error {
	return respondEach(c, status, 2*w.bytes(), func(b []byte, next flush) []byte {
		b = w.append(append(b, '{'), next)
		b = w.append(append(b, `,"workflow":{`...), next)
		return append(b, `}}`...)
	})
}

// workflowStates has active as an alias of running in parameters, and what the admin UI is shown.
var workflowStates = map[string]string{
	"pending": "pending", "running": "running", "active": "running", "completed": "completed", "failed": "failed", "cancelled": "cancelled",
}

// listWorkflows lists roots, newest first. The cursor is the id of the last one.
func (a *API) listWorkflows(r *request) error {
	page := r.page(api.DefaultPage, api.MaxPage)
	f := workflow.Filter{Tenant: a.tenant(r.Request()), Limit: page.limit, Offset: page.offset}
	if text := r.QueryParam("state"); text != "" {
		if f.State = workflowStates[text]; f.State == "" {
			r.refuse(spec.InvalidRequest("state", "a workflow state", text,
				"state must be running, active, completed, failed, cancelled or pending."))
		}
	}
	// The type is not checked against a list: an unknown one finds nothing.
	f.Type, f.Name, f.Cursor = r.text("type"), r.text("name"), behind(r, page, spec.ParseID)
	if r.err != nil {
		return r.err
	}
	// Steps are not read, only their number.
	found, err := a.Workflows.List(r.Request().Context(), f)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, showWorkflowPage(page, found))
}

// showWorkflowPage has the list twice, which differ in one word of their states: the admin UI offers to cancel what is called active, and
// reads items. Entries have no steps, so the list is small and built whole.
func showWorkflowPage(p page, found workflow.Page) object {
	list := func(items bool) func(b []byte) []byte {
		return func(b []byte) []byte {
			i := -1
			return appendEach(b, found.Workflows, whole, func(b []byte, w **workflow.Workflow) []byte {
				i++
				shown := shownWorkflow{Workflow: *w, listed: true, active: items}
				return append(object{{"step_count", found.StepCounts[i]}}.appendMembers(shown.append(append(b, '{'), whole)), '}')
			})
		}
	}
	cursor := ""
	if found.Next != nil {
		cursor = spec.FormatID(*found.Next)
	}
	total := int64(found.Total)
	return object{{"workflows", list(false)}, {"items", list(true)}, {"total", total},
		{"pagination", p.shown(total, found.Next != nil, cursor)}}
}

// getWorkflowProgress is smaller than the workflow, for clients that poll; 200 bytes are about one step.
// Only the direct steps are shown; a nested workflow counts by its own progress.
func (a *API) getWorkflowProgress(r *request, id [16]byte) error {
	w, err := a.Workflows.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return respondEach(r, http.StatusOK, 200*(1+len(w.Steps)), func(b []byte, next flush) []byte {
		b = object{
			{"workflow_id", w.ID}, {"type", string(w.Type)}, {"state", w.State},
			{"progress", shownNumber(w.Progress())}, // of the steps that were read
			{"updated_at", *lastMoment(w)},
		}.appendMembers(append(b, '{'))
		b = appendEach(append(b, `,"steps":`...), w.Steps, next, func(b []byte, st *workflow.Step) []byte {
			return object{
				{"id", st.ID}, {"job_id", st.JobID}, {"type", st.Type}, {"state", st.State}, {"progress", shownNumber(st.Done())},
			}.append(b)
		})
		return append(b, '}')
	})
}

// shownNumber has the form of numbers in workflows.
func shownNumber(f float64) func(b []byte) []byte {
	return func(b []byte) []byte { return jsonread.AppendNumber(b, f) }
}

// lastMoment is the latest time at which something is known to have happened to a workflow.
// Reports of progress do not count; they are not kept with the workflow.
func lastMoment(w *workflow.Workflow) *time.Time {
	last := &w.CreatedAt
	later := func(at *time.Time) {
		if at != nil && at.After(*last) {
			last = at
		}
	}
	later(w.StartedAt)
	later(w.EndedAt)
	for i := range w.Steps {
		// Times of callbacks are not looked at.
		later(w.Steps[i].StartedAt)
		later(w.Steps[i].CompletedAt)
		if nested := w.Steps[i].Workflow; nested != nil {
			later(lastMoment(nested))
		}
	}
	return last
}

// shownWorkflow appends the members of a workflow (docs/reference/workflows.md, Workflow object).
// The zero value of all but Workflow shows it whole, as GET does.
type shownWorkflow struct {
	*workflow.Workflow
	cancelled *workflow.CancelCounts // of this call
	listed    bool                   // without steps
	active    bool                   // a running one is called active
}

// They are the states that change what is shown.
const (
	failed    = "failed"
	cancelled = "cancelled"
	running   = "running"
)

// append appends the members, the id first, without the braces.
// It calls next between steps, so that a large answer is never built whole. A caller that needs the
// whole text passes whole.
func (s *shownWorkflow) append(b []byte, next flush) []byte {
	w, state := s.Workflow, s.State
	if s.active && state == running {
		state = "active"
	}
	// meta is that of the workflow, without what its jobs add.
	shown := object{{"id", w.ID}, {"type", string(w.Type)}, {"name", w.Name}, {"state", state}, {"meta", orEmpty(w.Meta)}}
	// Clients read either name, whatever the type of the workflow.
	for _, noun := range [...]string{"steps", "jobs"} {
		shown = append(shown, object{{noun + "_total", w.Total}, {noun + "_completed", w.Completed}, {noun + "_failed", w.Failed}}...)
	}
	if !s.listed {
		// Callbacks that were sent as steps stand behind the members, so that a client finds each step that it has sent.
		list := s.Steps
		if s.StepsForm {
			list = slices.Concat(list, s.Callbacks)
		}
		steps := func(b []byte) []byte {
			return appendEach(b, list, next, func(b []byte, st *workflow.Step) []byte { return s.appendStep(b, st, next) })
		}
		shown = append(shown, member{"steps", steps})
		// Groups and batches are defined by jobs, so clients read that name.
		if w.Type == workflow.Group || w.Type == workflow.Batch {
			shown = append(shown, member{"jobs", steps})
		}
		// Callbacks are shown by name even if they were sent as steps. fired is true once the callback has a job, and if its job could not
		// be made.
		callbacks := make(object, len(w.Callbacks))
		for i := range w.Callbacks {
			st := &w.Callbacks[i]
			callbacks[i] = member{st.Callback, object{{"type", st.Type}, {"fired", st.JobID != nil || st.State == failed},
				{"state", st.State}, {"job_id", st.JobID}}}
		}
		shown = append(shown, member{"callbacks", callbacks})
	}
	// EndedAt is the end of any kind; completed_at shows it for failed and cancelled ones as well.
	var cancelledAt *time.Time
	if w.State == cancelled {
		cancelledAt = w.EndedAt
	}
	times := object{{"created_at", w.CreatedAt}, {"started_at", w.StartedAt}, {"completed_at", w.EndedAt}, {"cancelled_at", cancelledAt}}
	// metadata repeats the times for SDKs that read them there.
	metadata := slices.Concat(object{{"job_count", w.JobCount}}, times, object{{"completed_count", w.CompletedCount},
		{"failed_count", w.FailedCount}})
	if !s.listed && w.State == failed {
		metadata = append(metadata, s.failure(next)...)
	}
	shown = append(append(shown, times...), member{"metadata", metadata})
	// Only the answer to a cancel has them.
	if n := s.cancelled; n != nil {
		shown = append(shown, object{{"steps_cancelled", n.StepsCancelled}, {"cancelled_steps", n.StepsCancelled},
			{"steps_already_completed", n.StepsAlreadyCompleted}}...)
	}
	return shown.appendMembers(b)
}

// appendStep recurses into a nested workflow; the depth is bounded when workflows are created.
func (s *shownWorkflow) appendStep(b []byte, st *workflow.Step, next flush) []byte {
	shown := object{
		{"index", st.Index}, {"id", st.ID}, {"type", st.Type}, {"state", st.State},
		{"job_state", orNull(st.JobState)}, // the state says what the workflow made of the step, this one where the job is now
		{"job_id", st.JobID},
		{"job_ids", func(b []byte) []byte { // for a nested workflow these are all leaves that have a job
			b, _ = appendJobIDs(append(b, '['), st, next, true)
			return append(b, ']')
		}},
		{"depends_on", func(b []byte) []byte {
			if st.Callback == "" {
				return appendValue(b, st.DependsOn)
			}
			// A callback waits for all members. Their ids are repeated rather than said once, because clients draw edges from this member.
			return appendEach(b, s.Steps, next, func(b []byte, st *workflow.Step) []byte { return appendQuoted(b, st.ID) })
		}},
		{"callback", given(st.Callback)}, {"queue", given(st.Queue)}, {"started_at", st.StartedAt}, {"completed_at", st.CompletedAt},
	}
	if st.Result != nil {
		shown = append(shown, member{"result", st.Result})
	}
	if st.Error != nil {
		shown = append(shown, member{"error", st.Error})
	}
	// The job was there before the workflow.
	shown = append(shown, member{"deduplicated", given(st.Deduplicated)})
	if st.Workflow != nil {
		nested := shownWorkflow{Workflow: st.Workflow}
		shown = append(shown, member{"workflow", func(b []byte) []byte { return append(nested.append(append(b, '{'), next), '}') }})
	}
	return shown.append(b)
}

// appendJobIDs appends the ids of the jobs of a step: its own, or those of all leaves of its workflow. first says that none was appended
// before.
// It returns whether still none was appended. The ids of a large nested workflow are flushed, too.
func appendJobIDs(b []byte, st *workflow.Step, next flush, first bool) ([]byte, bool) {
	if st.JobID != nil {
		if !first {
			b = append(b, ',')
		}
		return appendValue(b, *st.JobID), false
	}
	if st.Workflow != nil {
		for i := range st.Workflow.Steps {
			b, first = appendJobIDs(b, &st.Workflow.Steps[i], next, first)
			b = next(b)
		}
	}
	return b, first
}

// failure is what a failed workflow says of its failures.
// failed_job_ids has no callbacks; errors has them.
func (s *shownWorkflow) failure(next flush) (shown object) {
	if s.Type == workflow.Chain {
		for i := range s.Steps {
			// In a chain only one step can end it.
			if state := s.Steps[i].State; state == failed || state == cancelled {
				shown = object{{"failed_step_index", s.Steps[i].Index}}
				break
			}
		}
	}
	var ids [][16]byte
	var errors []object
	eachFailure(s.Workflow, "", func(id string, st *workflow.Step) {
		if st.JobID != nil && st.Callback == "" {
			ids = append(ids, *st.JobID)
		}
		// code and message are "" if the stored error lacks them.
		members := membersOf(string(st.Error))
		code, _ := jsonread.Text(members["code"])
		message, _ := jsonread.Text(members["message"])
		errors = append(errors, object{{"step_id", id}, {"job_id", st.JobID}, {"code", code}, {"message", message}, {"attempt", st.Attempt},
			{"callback", given(st.Callback)}})
	})
	return append(shown, object{
		{"failed_job_ids", func(b []byte) []byte {
			return appendEach(b, ids, next, func(b []byte, id *[16]byte) []byte { return appendValue(b, *id) })
		}},
		{"errors", func(b []byte) []byte {
			return appendEach(b, errors, next, func(b []byte, o *object) []byte { return o.append(b) })
		}},
	}...)
}

// eachFailure visits the jobs that have failed or were cancelled on their own, with the ids of the steps that lead to them.
// The order is that of the steps, depth first, and of callbacks behind them.
func eachFailure(w *workflow.Workflow, path string, visit func(id string, st *workflow.Step)) {
	for i := range w.Steps {
		st := &w.Steps[i]
		if st.Workflow != nil {
			eachFailure(st.Workflow, path+st.ID+".", visit)
			// A step that was cancelled because of others has no error.
		} else if st.Error != nil {
			visit(path+st.ID, st)
		}
	}
	for i := range w.Callbacks {
		if st := &w.Callbacks[i]; st.Error != nil {
			id := st.Callback
			if st.ID != "" {
				id = st.ID
			}
			visit(path+id, st)
		}
	}
}

// bytes is about how long the members are.
// It is an estimate for respondEach. Groups and batches show their steps twice.
func (s *shownWorkflow) bytes() int {
	const fields = 350 // of a step, besides its result
	n := len(s.Meta)
	for _, list := range [...][]workflow.Step{s.Steps, s.Callbacks} {
		for i := range list {
			st := &list[i]
			n += fields + len(st.Result) + len(st.Error)
			if st.Workflow != nil {
				nested := shownWorkflow{Workflow: st.Workflow}
				n += nested.bytes()
			}
		}
	}
	if s.Type == workflow.Group || s.Type == workflow.Batch {
		n *= 2
	}
	return 1000 + n
}
