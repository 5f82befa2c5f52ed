package workflow_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"
)

// bundle is the domains of a node on a database of the test's own.
type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	return &bundle{domaintest.New(t, change...)}
}

// node is another node on the same database.
func (b *bundle) node(change ...func(*domaintest.Config)) *bundle {
	return &bundle{b.Bundle.Node(change...)}
}

// member is a job whose type is its step id, in queue q.
func member(t testing.TB, id string, needs ...int) workflow.Member {
	t.Helper()
	return workflow.Member{ID: id, Job: decoded(t, id), Template: template(id), DependsOn: needs}
}

func template(id string) []byte {
	return fmt.Appendf(nil, `{"type":"t.%s","args":[1],"options":{"queue":"q","retry":{"max_attempts":1}}}`, id)
}

func decoded(t testing.TB, id string) *job.Job {
	t.Helper()
	j, wire := job.DecodeItem(template(id), job.Limits{})
	require.Nil(t, wire)
	return j
}

func nested(id string, def *workflow.Definition) workflow.Member {
	return workflow.Member{ID: id, Nested: def}
}

// define returns a definition with members a, b, c, … or those that are given.
func define(kind workflow.Type, members ...workflow.Member) *workflow.Definition {
	def := &workflow.Definition{Type: kind, Name: "test", Members: members}
	for _, m := range members {
		if def.Leaves++; m.Nested != nil {
			def.Leaves += m.Nested.Leaves - 1
		}
	}
	return def
}

func withCallbacks(t testing.TB, def *workflow.Definition, names ...string) *workflow.Definition {
	t.Helper()
	for _, name := range names {
		def.Callbacks = append(def.Callbacks, workflow.Callback{Name: name, Job: decoded(t, name), Template: template(name)})
	}
	return def
}

func (b *bundle) created(def *workflow.Definition) *workflow.Workflow {
	b.T.Helper()
	w, err := b.Workflows.Create(b.T.Context(), def)
	require.NoError(b.T, err)
	return w
}

func (b *bundle) read(w *workflow.Workflow) *workflow.Workflow {
	b.T.Helper()
	w, err := b.Workflows.Get(b.T.Context(), w.ID)
	require.NoError(b.T, err)
	return w
}

// next fetches one job and checks its type.
func (b *bundle) next(kind string) *job.Record {
	b.T.Helper()
	jobs := b.Fetched(1, "q")
	require.Len(b.T, jobs, 1, "job t.%s", kind)
	require.Equal(b.T, "t."+kind, jobs[0].Type)
	return jobs[0]
}

// nothing checks that there is no job to fetch.
func (b *bundle) nothing() {
	b.T.Helper()
	require.Empty(b.T, b.Fetched(1, "q"))
}

func (b *bundle) ack(j *job.Record, result string) {
	b.T.Helper()
	a := job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt}
	if result != "" {
		a.Result = []byte(result)
	}
	_, err := b.Complete(b.T.Context(), a)
	require.NoError(b.T, err)
}

// done fetches and completes a job; its result is its step's id.
func (b *bundle) done(kind string) *job.Record {
	b.T.Helper()
	j := b.next(kind)
	b.ack(j, strconv.Quote(kind))
	return j
}

// fail fetches a job and discards it.
func (b *bundle) fail(kind string) *job.Record {
	b.T.Helper()
	j := b.next(kind)
	_, err := b.Fail(b.T.Context(), job.Nack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt, Error: job.WorkerError{Code: "broken", Type: "broken", Message: "It \"broke\"."}})
	require.NoError(b.T, err)
	return j
}

// states are the states of steps and callbacks, those of nested workflows in brackets.
func states(w *workflow.Workflow) string {
	var list []string
	for _, st := range append(append([]workflow.Step{}, w.Steps...), w.Callbacks...) {
		text := st.ID + ":" + st.State
		if st.Workflow != nil {
			text += "[" + states(st.Workflow) + "]"
		}
		list = append(list, text)
	}
	return w.State + " " + strings.Join(list, " ")
}

func counts(w *workflow.Workflow) [6]int {
	return [6]int{w.Total, w.Completed, w.Failed, w.JobCount, w.CompletedCount, w.FailedCount}
}

// extra is an attribute of a job.
func extra(j *job.Record, name string) string {
	_, rest, found := strings.Cut(string(j.Extra), `"`+name+`":`)
	if !found {
		return ""
	}
	depth, text := 0, false
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '[' || c == '{':
			depth++
		case (c == ',' || c == '}' || c == ']') && depth == 0:
			return rest[:i]
		case c == ']' || c == '}':
			depth--
		}
	}
	return rest
}

// events are the types of the events of a workflow and its jobs, in order, with the step or job type.
func (b *bundle) events(w *workflow.Workflow) []string {
	b.T.Helper()
	return b.Texts(`SELECT type || COALESCE(' ' || job_type, '') || COALESCE(' ' || (data->>'step_id'), '') || COALESCE(' ' || (data->>'failed_step_id'), '')
		FROM ojs.events WHERE workflow_id = $1 AND NOT internal ORDER BY seq, sub`, w.ID)
}

func (b *bundle) eventData(w *workflow.Workflow, kind string) string {
	b.T.Helper()
	return b.One(`SELECT data::text FROM ojs.events WHERE workflow_id = $1 AND type = $2`, w.ID, kind)
}

var _ = ojs.EventWorkflowStarted

// jobOf is the job of a step, for acks.
func (b *bundle) jobOf(st workflow.Step) *job.Record {
	b.T.Helper()
	require.NotNil(b.T, st.JobID)
	j, err := b.Get(b.T.Context(), *st.JobID)
	require.NoError(b.T, err)
	return j
}

// nothing2 checks that no callback has fired.
func (b *bundle) nothing2(w *workflow.Workflow) {
	b.T.Helper()
	for _, c := range b.read(w).Callbacks {
		require.Nil(b.T, c.JobID)
	}
}

func domainError(t *testing.T, err error) *ojs.Error {
	t.Helper()
	var wire *ojs.Error
	require.ErrorAs(t, err, &wire)
	return wire
}
