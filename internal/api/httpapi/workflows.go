package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
)

// workflowRoutes are those of docs/reference/workflows.md. A definition may have thousands of jobs, so its limit is that of a batch.
func (a *API) workflowRoutes() []route {
	return []route{
		{"POST", "/workflows", confined, manyBody, "", a.postWorkflow},
		{"GET", "/workflows", confined, noBody, paging + "type name state", a.listWorkflows},
		{"GET", "/workflows/:id", aboutWorkflow, noBody, "", a.getWorkflow},
		{"DELETE", "/workflows/:id", aboutWorkflow, noBody, "force cancelled_by", a.cancelWorkflow},
		{"POST", "/workflows/:id/cancel", aboutWorkflow, oneBody, "force cancelled_by", a.postWorkflowCancel},
		{"GET", "/workflows/:id/progress", aboutWorkflow, noBody, "", a.getWorkflowProgress},
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
	// shownWorkflow appends the id first.
	id, _ := rawjson.Text(firstMember(answer.Body))
	h.Set("Location", "/ojs/v1/workflows/"+id)
	// The stored object is cut open at its last brace, so that the wrapper stands beside its members, as in the first answer.
	return respondEach(c, answer.Status, 2*len(answer.Body), func(b []byte, next flush) []byte {
		b = next(append(b, answer.Body[:len(answer.Body)-1]...))
		b = append(b, `,"workflow":`...)
		return append(append(b, answer.Body...), '}')
	})
}

// firstMember is the value of an object's first member; that of a workflow is its id.
func firstMember(object []byte) []byte {
	for _, value := range rawjson.Members(object) {
		return value
	}
	return nil
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

// It reads the whole tree in one snapshot.
func (a *API) findWorkflow(c echo.Context) (*workflow.Workflow, error) {
	id, err := workflowID(c)
	if err != nil {
		return nil, err
	}
	return a.Workflows.Get(c.Request().Context(), id)
}

// The path may name a nested workflow, which is then shown as if it were a root.
func (a *API) getWorkflow(r *request) error {
	w, err := a.findWorkflow(r)
	if err != nil {
		return err
	}
	return respondWorkflow(r, http.StatusOK, &shownWorkflow{Workflow: w})
}

// It reads nothing of its body; force and cancelled_by are parameters of the query.
func (a *API) postWorkflowCancel(r *request) error {
	if err := checkCommand(r.body); err != nil {
		return err
	}
	return a.cancelWorkflow(r)
}

// cancelWorkflow is 409 for one that has ended or is nested, so a repetition is, too. If this node stops during the call, the
// tree is cancelled and another node cancels the jobs that are left.
func (a *API) cancelWorkflow(r *request) error {
	id, err := workflowID(r)
	if err != nil {
		return err
	}
	force := false
	if text := r.QueryParam("force"); text != "" {
		if force, err = strconv.ParseBool(text); err != nil {
			return spec.InvalidRequest("force", "true or false", text, "force must be true or false.")
		}
	}
	// The counts are of this call: a second one would be 409 and has none.
	w, counts, err := a.Workflows.Cancel(r.Request().Context(), id, force, a.actor(r, "cancelled_by"))
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

// active is an alias of running in parameters, and what the admin UI is shown.
var workflowStates = map[string]string{
	"pending": "pending", "running": "running", "active": "running", "completed": "completed", "failed": "failed", "cancelled": "cancelled",
}

// It lists roots, newest first. The cursor is the id of the last one.
func (a *API) listWorkflows(r *request) error {
	page, err := readPage(r)
	if err != nil {
		return err
	}
	f := workflow.Filter{Tenant: a.tenant(r.Request()), Type: r.QueryParam("type"), Name: r.QueryParam("name"), Limit: page.limit, Offset: page.offset}
	if text := r.QueryParam("state"); text != "" {
		if f.State = workflowStates[text]; f.State == "" {
			return spec.InvalidRequest("state", "a workflow state", text, "state must be running, active, completed, failed, cancelled or pending.")
		}
	}
	// The type is not checked against a list: an unknown one finds nothing.
	if err := api.CheckStorable("type", f.Type); err != nil {
		return err
	}
	if err := api.CheckStorable("name", f.Name); err != nil {
		return err
	}
	if f.Cursor, err = page.behind(); err != nil {
		return err
	}
	// Steps are not read, only their number.
	found, err := a.Workflows.List(r.Request().Context(), f)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendWorkflowPage(b, page, found) })
}

// workflows and items differ in one word of their states.
func appendWorkflowPage(b []byte, p page, found workflow.Page) []byte {
	b = appendWorkflows(append(b, `{"workflows":`...), found, false)
	b = appendWorkflows(append(b, `,"items":`...), found, true)
	b = strconv.AppendInt(append(b, `,"total":`...), int64(found.Total), 10)
	cursor := ""
	if found.Next != nil {
		cursor = spec.FormatID(*found.Next)
	}
	return append(p.append(append(b, `,"pagination":`...), int64(found.Total), found.Next != nil, cursor), '}')
}

// appendWorkflows appends the entries of a list. The admin UI offers to cancel what is called active, and reads items.
// Entries have no steps, so the list is small and built whole.
func appendWorkflows(b []byte, found workflow.Page, items bool) []byte {
	b = append(b, '[')
	for i, w := range found.Workflows {
		if i > 0 {
			b = append(b, ',')
		}
		shown := shownWorkflow{Workflow: w, listed: true, active: items}
		b = shown.append(append(b, '{'), whole)
		b = strconv.AppendInt(append(b, `,"step_count":`...), int64(found.StepCounts[i]), 10)
		b = append(b, '}')
	}
	return append(b, ']')
}

// It is smaller than the workflow, for clients that poll; 200 bytes are about one step.
func (a *API) getWorkflowProgress(r *request) error {
	w, err := a.findWorkflow(r)
	if err != nil {
		return err
	}
	return respondEach(r, http.StatusOK, 200*(1+len(w.Steps)), func(b []byte, next flush) []byte { return appendWorkflowProgress(b, w, next) })
}

// Only the direct steps are shown; a nested workflow counts by its own progress.
func appendWorkflowProgress(b []byte, w *workflow.Workflow, next flush) []byte {
	b = spec.AppendID(append(b, `{"workflow_id":"`...), w.ID)
	b = appendText(append(b, '"'), "type", string(w.Type))
	b = appendText(b, "state", w.State)
	// It is computed from the steps that were read, so it agrees with them.
	b = rawjson.AppendNumber(append(b, `,"progress":`...), w.Progress())
	b = appendMoment(b, "updated_at", lastMoment(w))
	b = append(b, `,"steps":[`...)
	for i := range w.Steps {
		if i > 0 {
			b = append(b, ',')
		}
		st := &w.Steps[i]
		b = appendQuoted(append(b, `{"id":`...), st.ID)
		b = appendJobID(b, st.JobID)
		b = appendText(b, "type", st.Type)
		b = appendText(b, "state", st.State)
		b = rawjson.AppendNumber(append(b, `,"progress":`...), st.Done())
		b = next(append(b, '}'))
	}
	return append(b, `]}`...)
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
