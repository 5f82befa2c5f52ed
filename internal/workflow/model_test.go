package workflow_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/workflow"
)

// model says how a workflow ends, given the outcome of each job by its type, which must be unique: "completed" with the type as
// result, "failed", or "cancelled" on its own. It follows docs/reference/workflows.md without a thought of storage.
type model struct {
	outcome func(jobType string) string
	runs    map[string]any // parent_results of every job that runs, by type
	leaves  map[string]int // states of leaves that had a job
}

// ending is the end of a workflow or step.
type ending struct {
	state string
	steps []ending // of a workflow: members, then callbacks
	value any
}

func runModel(d *workflow.Definition, outcome func(string) string) (*model, ending) {
	m := &model{outcome: outcome, runs: map[string]any{}, leaves: map[string]int{}}
	return m, m.workflow(d, []any{})
}

// workflow runs a workflow whose enclosing member would have received these results.
func (m *model) workflow(d *workflow.Definition, received []any) ending {
	var e ending
	switch d.Type {
	case workflow.Chain:
		e = m.chain(d, received)
	case workflow.DAG:
		e = m.dag(d)
	default:
		for i := range d.Members {
			e.steps = append(e.steps, m.member(&d.Members[i], received))
		}
	}
	if d.Type == workflow.Chain {
		return e
	}
	values, failed := []any{}, false
	for _, s := range e.steps {
		values, failed = append(values, s.value), failed || s.state != "completed"
	}
	e.value = values
	return m.callbacks(d, e, failed)
}

func (m *model) member(member *workflow.Member, received []any) ending {
	if member.Nested != nil {
		return m.workflow(member.Nested, received)
	}
	e := m.job(member.Job.Type, received)
	m.leaves[e.state]++
	return e
}

func (m *model) job(kind string, received []any) ending {
	m.runs[kind] = received
	switch state := m.outcome(kind); state {
	case "completed":
		return ending{state: state, value: kind}
	case "failed":
		return ending{state: state, value: problem("broken")}
	default:
		return ending{state: state, value: problem("cancelled")}
	}
}

func problem(code string) any { return map[string]any{"error": code} }

// notBegun is the end of a member that never had a job.
func notBegun(member *workflow.Member) ending {
	e := ending{state: "cancelled", value: problem("cancelled")}
	if member.Nested != nil {
		for i := range member.Nested.Members {
			e.steps = append(e.steps, notBegun(&member.Nested.Members[i]))
		}
		for range member.Nested.Callbacks {
			e.steps = append(e.steps, ending{state: "cancelled"})
		}
	}
	return e
}

func (m *model) chain(d *workflow.Definition, received []any) ending {
	e := ending{state: "completed"}
	values := received
	for i := range d.Members {
		if e.state == "failed" {
			e.steps = append(e.steps, notBegun(&d.Members[i]))
			continue
		}
		step := m.member(&d.Members[i], values)
		if i == 0 {
			values = nil
		}
		values = append(slices.Clip(values), step.value)
		e.steps, e.value = append(e.steps, step), step.value
		if step.state != "completed" {
			e.state = "failed"
		}
	}
	return e
}

// dag runs the members again and again until nothing more can begin.
func (m *model) dag(d *workflow.Definition) ending {
	ended := make([]*ending, len(d.Members))
	for begun := true; begun; {
		begun = false
		for i := range d.Members {
			if ended[i] != nil {
				continue
			}
			ready, cancelled, values := true, false, []any{}
			for _, on := range d.Members[i].DependsOn {
				if ended[on] == nil {
					ready = false
					continue
				}
				cancelled = cancelled || ended[on].state != "completed"
				values = append(values, ended[on].value)
			}
			switch {
			case cancelled:
				e := notBegun(&d.Members[i])
				ended[i], begun = &e, true
			case ready:
				e := m.member(&d.Members[i], values)
				ended[i], begun = &e, true
			}
		}
	}
	var e ending
	for _, s := range ended {
		e.steps = append(e.steps, *s)
	}
	return e
}

// callbacks fires those that apply and decides the state of the workflow.
func (m *model) callbacks(d *workflow.Definition, e ending, failed bool) ending {
	broken, fallback := false, false
	for _, c := range d.Callbacks {
		fires := c.Name == "on_complete" || failed == (c.Name == "on_failure")
		fallback = fallback || c.Name == "on_failure"
		if !fires {
			e.steps = append(e.steps, ending{state: "cancelled"})
			continue
		}
		end := m.job(c.Job.Type, e.value.([]any))
		broken = broken || end.state != "completed"
		e.steps = append(e.steps, end)
	}
	e.state = "completed"
	if broken || failed && !fallback {
		e.state = "failed"
	}
	return e
}

func (e ending) String() string {
	if e.steps == nil {
		return e.state
	}
	texts := make([]string, len(e.steps))
	for i, s := range e.steps {
		texts[i] = s.String()
	}
	return e.state + "[" + strings.Join(texts, " ") + "]"
}

// endingOf is the end of a stored workflow, as far as the model knows it.
func endingOf(w *workflow.Workflow) ending {
	e := ending{state: w.State}
	for _, list := range [][]workflow.Step{w.Steps, w.Callbacks} {
		for _, st := range list {
			if st.Workflow == nil {
				e.steps = append(e.steps, ending{state: st.State})
				continue
			}
			nested := endingOf(st.Workflow)
			if nested.state != st.State {
				nested.state += "/" + st.State // they must agree
			}
			e.steps = append(e.steps, nested)
		}
	}
	return e
}

// codesOnly replaces error objects in results by their codes, and what is JSON by what it means.
func codesOnly(raw []byte) (v any) {
	if err := json.Unmarshal(raw, &v); err != nil {
		return fmt.Sprintf("%s: %v", raw, err)
	}
	return withoutMessages(v)
}

func withoutMessages(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutMessages(v[i])
		}
	case map[string]any:
		if e, ok := v["error"].(map[string]any); ok {
			return map[string]any{"error": e["code"]}
		}
	}
	return v
}

// TestModel holds the model against the rules that are written down.
func TestModel(t *testing.T) {
	t.Parallel()
	job := func(kind string) string { return `{"type":"` + kind + `","args":[]}` }
	callbacks := `"callbacks":{"on_complete":` + job("done") + `,"on_success":` + job("ok") + `,"on_failure":` + job("alarm") + `}`
	for _, c := range []struct{ body, bad, want, runs string }{
		{`{"type":"chain","steps":[` + job("a") + `,` + job("b") + `,` + job("c") + `]}`, "", "completed[completed completed completed]", `{"a":[],"b":["a"],"c":["a","b"]}`},
		{`{"type":"chain","steps":[` + job("a") + `,` + job("b") + `,` + job("c") + `]}`, "b", "failed[completed failed cancelled]", `{"a":[],"b":["a"]}`},
		{`{"type":"group","jobs":[` + job("a") + `,` + job("b") + `]}`, "a", "failed[failed completed]", `{"a":[],"b":[]}`},
		{`{"type":"batch","jobs":[` + job("a") + `,` + job("b") + `],` + callbacks + `}`, "", "completed[completed completed completed completed cancelled]", `{"a":[],"b":[],"done":["a","b"],"ok":["a","b"]}`},
		{`{"type":"batch","jobs":[` + job("a") + `],` + callbacks + `}`, "a", "completed[failed completed cancelled completed]", `{"a":[],"done":[{"error":"broken"}],"alarm":[{"error":"broken"}]}`},
		{`{"type":"batch","jobs":[` + job("a") + `],` + callbacks + `}`, "a alarm", "failed[failed completed cancelled failed]", `{"a":[],"done":[{"error":"broken"}],"alarm":[{"error":"broken"}]}`},
		{`{"type":"batch","jobs":[` + job("a") + `],"on_success":` + job("ok") + `}`, "a", "failed[failed cancelled]", `{"a":[]}`},
		{`{"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"b","args":[],"depends_on":["a"]},{"id":"c","type":"c","args":[]},{"id":"d","type":"d","args":[],"depends_on":["b","c"]}]}`, "a",
			"failed[failed cancelled completed cancelled]", `{"a":[],"c":[]}`},
		{`{"type":"chain","steps":[` + job("a") + `,{"type":"group","jobs":[` + job("b") + `,{"type":"chain","steps":[` + job("c") + `,` + job("d") + `]}]},` + job("e") + `]}`, "",
			"completed[completed completed[completed completed[completed completed]] completed]", `{"a":[],"b":["a"],"c":["a"],"d":["c"],"e":["a",["b","d"]]}`},
	} {
		m, end := runModel(decode(t, c.body), func(kind string) string {
			if slices.Contains(strings.Fields(c.bad), kind) {
				return "failed"
			}
			return "completed"
		})
		require.Equal(t, c.want, end.String(), c.body)
		runs, err := json.Marshal(m.runs)
		require.NoError(t, err)
		require.JSONEq(t, c.runs, string(runs), c.body)
	}
}
