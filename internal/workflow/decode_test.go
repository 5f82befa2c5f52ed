package workflow_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
)

func decode(t *testing.T, body string) *workflow.Definition {
	t.Helper()
	d, err := workflow.Decode([]byte(body), job.Limits{}, 0)
	require.Nil(t, err, body)
	return d
}

// outline shows the shape of a definition: type(member, …) and its callbacks, with dependencies.
func outline(d *workflow.Definition) string {
	parts := make([]string, 0, len(d.Members))
	for _, m := range d.Members {
		part := m.ID
		if m.Nested != nil {
			part += "=" + outline(m.Nested)
		}
		for _, on := range m.DependsOn {
			part += "<" + d.Members[on].ID
		}
		parts = append(parts, part)
	}
	text := string(d.Type) + "(" + strings.Join(parts, " ") + ")"
	for _, c := range d.Callbacks {
		text += " " + c.Name
	}
	return text
}

const leaf = `{"type":"a","args":[]}`

func TestDecodeForms(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"type":"chain","steps":[` + leaf + `,` + leaf + `]}`:                                                                                "chain(0 1)",
		`{"type":"chain","jobs":[` + leaf + `]}`:                                                                                              "chain(0)",
		`{"type":"chain","steps":[` + leaf + `],"jobs":[` + leaf + `,` + leaf + `]}`:                                                          "chain(0)",
		`{"type":"group","steps":[` + leaf + `],"jobs":[` + leaf + `,` + leaf + `]}`:                                                          "group(0 1)",
		`{"type":"group","steps":[` + leaf + `]}`:                                                                                             "group(0)",
		`{"type":"group","tasks":[` + leaf + `]}`:                                                                                             "group(0)",
		`{"type":"group","jobs":[` + leaf + `],"callbacks":{"no":1},"on_complete":5}`:                                                         "group(0)",
		`{"type":"chain","steps":[{"id":"x","type":"a","args":[]},` + leaf + `]}`:                                                             "chain(x 1)",
		`{"type":"chain","steps":[{"type":"a","args":[],"depends_on":["nowhere"]}]}`:                                                          "chain(0)",
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":{"on_failure":` + leaf + `}}`:                                                      "batch(0) on_failure",
		`{"type":"batch","tasks":[` + leaf + `],"on_complete":` + leaf + `}`:                                                                  "batch(0) on_complete",
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":{"on_failure":` + leaf + `,"on_complete":` + leaf + `},"on_success":` + leaf + `}`: "batch(0) on_complete on_success on_failure",
		`{"type":"chain","steps":[` + leaf + `,{"type":"group","id":"g","jobs":[` + leaf + `,` + leaf + `]}]}`:                                "chain(0 g=group(0 1))",
		`{"type":"chain","steps":[{"type":"chain","args":[]}]}`:                                                                               "chain(0)", // a job of that type
		`{"type":"chain","steps":[{"type":"chain","args":[],"steps":null}]}`:                                                                  "chain(0)",
		`{"type":"group","jobs":[{"type":"batch","tasks":[` + leaf + `],"on_success":` + leaf + `}]}`:                                         "group(0=batch(0) on_success)",
		`{"type":null,"steps":[{"id":"a","type":"a","args":[]}]}`:                                                                             "chain(a)",
	} {
		require.Equal(t, want, outline(decode(t, body)), body)
	}
}

// step is a step of a workflow with dependencies.
func step(id string, on ...string) string {
	deps, _ := json.Marshal(append([]string{}, on...))
	return fmt.Sprintf(`{"id":%q,"type":"a","args":[],"depends_on":%s}`, id, deps)
}

func steps(list ...string) string { return `{"steps":[` + strings.Join(list, ",") + `]}` }

// What the Go and Python SDKs and the CLI send.
func TestDecodeSteps(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		steps(step("step-0"), step("step-1", "step-0"), step("step-2", "step-1")): "chain(step-0 step-1 step-2)",
		steps(step("one")):                               "chain(one)",
		steps(step("job-0"), step("job-1")):              "group(job-0 job-1)",
		steps(step("b", "a"), step("a")):                 "dag(b<a a)",
		steps(step("a"), step("b", "a"), step("c", "a")): "dag(a b<a c<a)",
		steps(step("job-0"), step("job-1"), step("on-complete", "job-0", "job-1"), step("on-failure", "job-1", "job-0")): "batch(job-0 job-1) on_complete on_failure",
		steps(step("on_success", "a"), step("a")):                                          "batch(a) on_success",
		steps(step("a"), step("b", "a"), step("on-complete", "a", "b")):                    "dag(a b<a) on_complete",
		steps(step("a"), step("b"), step("on-complete", "a")):                              "dag(a b on-complete<a)", // not of all
		steps(step("on_complete")):                                                         "chain(on_complete)",
		steps(step("a"), step("on-complete", "a"), step("on-success", "a", "on-complete")): "dag(a on-complete<a on-success<a<on-complete)",
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"z","type":"a","args":[],"depends_on":["a"],"options":{"callback_type":"on_failure","queue":"q"}}]}`: "batch(a) on_failure",
		`{"steps":[{"id":"a","type":"group","jobs":[` + leaf + `]},{"id":"b","type":"a","args":[],"depends_on":["a"]}]}`:                                      "chain(a=group(0) b)",
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"on_complete","type":"group","jobs":[` + leaf + `],"depends_on":["a"]}]}`:                            "chain(a on_complete=group(0))", // no job
	} {
		require.Equal(t, want, outline(decode(t, body)), body)
	}
	d := decode(t, `{"name":"n","steps":[{"id":"a","type":"a","args":[]},{"id":"z","type":"b","args":[],"options":{"callback_type":"on_failure","queue":"q"}}]}`)
	require.True(t, d.StepsForm)
	require.Equal(t, "z", d.Callbacks[0].StepID)
	require.Equal(t, "q", d.Callbacks[0].Job.Queue)
	require.JSONEq(t, `{"type":"b","args":[],"options":{"queue":"q"}}`, string(d.Callbacks[0].Template))
	require.Equal(t, 1, d.Leaves)
}

func TestDecodeRoot(t *testing.T) {
	t.Parallel()
	d := decode(t, `{"type":"chain","id":"wf_019a0000-0000-7000-8000-000000000001","name":"n","meta":{ "a": 1 },"options":{"queue":"q"},"state":"failed",
		"steps":[`+leaf+`,{"type":"group","name":"inner","id":"g","meta":{"b":2},"jobs":[`+leaf+`,`+leaf+`]}]}`)
	require.True(t, d.ClientID)
	require.Equal(t, "019a0000-0000-7000-8000-000000000001", spec.FormatID(d.ID))
	require.Equal(t, []string{"n", `{"a":1}`, "q"}, []string{d.Name, string(d.Meta), d.Members[0].Job.Queue})
	require.Equal(t, 3, d.Leaves)
	inner := d.Members[1].Nested
	require.Equal(t, []any{"inner", 2, `{"b":2}`}, []any{inner.Name, inner.Leaves, string(inner.Meta)})

	d = decode(t, `{"type":"group","id":"mine","name":"","jobs":[`+leaf+`]}`)
	require.False(t, d.ClientID)
	require.Equal(t, "group", d.Name)
	require.Nil(t, d.Meta)
	require.Equal(t, "dag", decode(t, steps(step("b", "a"), step("a"))).Name)
}

// leafOf decodes a workflow with one job and these options of the workflow.
func leafOf(t *testing.T, options, item string) *job.Job {
	t.Helper()
	return decode(t, `{"type":"group","options":`+options+`,"jobs":[`+item+`]}`).Members[0].Job
}

func TestDefaultsYieldToTheJob(t *testing.T) {
	t.Parallel()
	j := leafOf(t, `{"queue":"q","priority":5,"timeout_ms":9000,"tags":["x"],"mine":{"a":1}}`, leaf)
	require.Equal(t, []any{"q", int16(5), int64(9000)}, []any{j.Queue, j.Priority, j.TimeoutMS})
	require.JSONEq(t, `{"timeout_ms":9000,"tags":["x"],"mine":{"a":1}}`, string(j.Extra))

	j = leafOf(t, `{"queue":"q","priority":5,"tags":["x"],"mine":{"a":1}}`, `{"type":"a","args":[],"priority":1,"options":{"queue":"r","tags":["y"],"mine":{"b":2}}}`)
	require.Equal(t, []any{"r", int16(1)}, []any{j.Queue, j.Priority})
	require.JSONEq(t, `{"tags":["y"],"mine":{"b":2}}`, string(j.Extra))

	require.EqualValues(t, 2000, leafOf(t, `{"timeout_ms":9000}`, `{"type":"a","args":[],"options":{"timeout":2}}`).TimeoutMS)
	require.EqualValues(t, 2000, leafOf(t, `{"timeout_ms":9000}`, `{"type":"a","args":[],"timeout":2}`).TimeoutMS)
	require.Equal(t, "q", leafOf(t, `{"queue":"q"}`, `{"type":"a","args":[],"options":{"queue":null}}`).Queue)

	retry := `{"retry":{"max_attempts":7,"initial_interval":"PT5S"}}`
	require.EqualValues(t, 7, leafOf(t, retry, leaf).MaxAttempts)
	require.EqualValues(t, 3, leafOf(t, retry, `{"type":"a","args":[],"options":{"retry":{"maxInterval":"PT9S"}}}`).MaxAttempts)
	require.EqualValues(t, 4, leafOf(t, retry, `{"type":"a","args":[],"options":{"retry":{"maxAttempts":4}}}`).MaxAttempts)
	j = leafOf(t, retry, `{"type":"a","args":[],"options":{"max_attempts":2}}`)
	require.EqualValues(t, 2, j.MaxAttempts)
	require.Contains(t, string(j.Retry), `"initial_interval_ms":5000`)
}

func TestDefaultsOfNestedWorkflows(t *testing.T) {
	t.Parallel()
	d := decode(t, `{"type":"chain","options":{"queue":"q","priority":5,"tags":["x"]},"steps":[
		{"type":"batch","options":{"queue":"r"},"jobs":[`+leaf+`],"callbacks":{"on_complete":`+leaf+`}},`+leaf+`]}`)
	inner := d.Members[0].Nested
	for _, j := range []*job.Job{inner.Members[0].Job, inner.Callbacks[0].Job} {
		require.Equal(t, []any{"r", int16(5)}, []any{j.Queue, j.Priority})
	}
	require.Equal(t, "q", d.Members[1].Job.Queue)
}

func TestPriorityOfChains(t *testing.T) {
	t.Parallel()
	priorities := func(body string) (list []int16) {
		for _, m := range decode(t, body).Members {
			list = append(list, m.Job.Priority)
		}
		return list
	}
	own := `{"type":"a","args":[],"options":{"priority":7}}`
	other := `{"type":"a","args":[],"priority":-1}`
	require.Equal(t, []int16{7, 7, -1}, priorities(`{"type":"chain","steps":[`+own+`,`+leaf+`,`+other+`]}`))
	require.Equal(t, []int16{7, 3}, priorities(`{"type":"chain","options":{"priority":3},"steps":[`+own+`,`+leaf+`]}`))
	require.Equal(t, []int16{7, 0}, priorities(`{"type":"group","jobs":[`+own+`,`+leaf+`]}`))
	require.Equal(t, []int16{0, 7}, priorities(`{"type":"chain","steps":[`+leaf+`,`+own+`]}`))
	require.Equal(t, []int16{7, 7}, priorities(`{"steps":[{"id":"a","type":"a","args":[],"options":{"priority":7}},`+step("b", "a")+`]}`))
}

func TestMetaOfTheWorkflow(t *testing.T) {
	t.Parallel()
	meta := func(workflow, item string) string {
		return string(decode(t, `{"type":"group","meta":`+workflow+`,"jobs":[`+item+`]}`).Members[0].Job.Meta)
	}
	const trace = `"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`
	require.JSONEq(t, `{"tenant_id":"t","trace_id":"x"}`, meta(`{"tenant_id":"t","trace_id":"x","other":1}`, leaf))
	require.JSONEq(t, `{"tenant_id":"own","trace_id":"x"}`, meta(`{"tenant_id":"t","trace_id":"x"}`, `{"type":"a","args":[],"meta":{"tenant_id":"own"}}`))
	require.JSONEq(t, `{"tenant_id":"t",`+trace+`}`, meta(`{"tenant_id":"t","trace_id":"x","tracestate":"a=b"}`, `{"type":"a","args":[],"options":{"meta":{`+trace+`}}}`))
	d := decode(t, `{"type":"chain","meta":{"tenant_id":"t",`+trace+`},"steps":[{"type":"group","meta":{"tenant_id":"u"},"jobs":[`+leaf+`]}]}`)
	require.JSONEq(t, `{"tenant_id":"u",`+trace+`}`, string(d.Members[0].Nested.Members[0].Job.Meta))
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", d.Members[0].Nested.Members[0].Job.TraceID)
}

func TestTemplateIsTheJob(t *testing.T) {
	t.Parallel()
	d := decode(t, `{"type":"chain","options":{"queue":"q","retry":{"max_attempts":7}},"meta":{"tenant_id":"t"},"steps":[
		{"id":"s","type":"a","args":[1.0,"\u00e9"],"depends_on":[],"schema":"urn:x:y","options":{"delay_until":"+PT5M","max_attempts":2},"own":true}]}`)
	m := d.Members[0]
	j, err := job.DecodeItem(m.Template, job.Limits{})
	require.Nil(t, err)
	require.Equal(t, m.Job, j)
	require.Equal(t, `[1.0,"\u00e9"]`, string(j.Args))
	require.NotContains(t, string(m.Template), `"id"`)
	require.NotContains(t, string(m.Template), `depends_on`)
}

func TestUniquePolicyOfAllJobs(t *testing.T) {
	t.Parallel()
	d := decode(t, `{"type":"group","options":{"unique":{"keys":["args"],"args_keys":["n"]}},"jobs":[{"type":"a","args":[{"n":1}]}]}`)
	require.Equal(t, []string{"n"}, d.Members[0].Job.Unique.ArgsKeys)
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct{ code, path string }{
		`[]`:                                      {"invalid_payload", ""},
		`{}`:                                      {"invalid_payload", "$.type"},
		`{"type":"tree","steps":[` + leaf + `]}`:  {"invalid_payload", "$.type"},
		`{"type":"dag","steps":[` + leaf + `]}`:   {"invalid_payload", "$.type"},
		`{"type":5,"steps":[` + leaf + `]}`:       {"invalid_payload", "$.type"},
		`{"type":"saga","steps":[` + leaf + `]}`:  {"unsupported", "$"},
		`{"steps":{}}`:                            {"invalid_payload", "$.type"},
		`{"steps":[]}`:                            {"invalid_payload", "$.steps"},
		`{"type":"chain"}`:                        {"invalid_payload", "$.steps"},
		`{"type":"chain","tasks":[` + leaf + `]}`: {"invalid_payload", "$.steps"},
		`{"type":"group","jobs":[]}`:              {"invalid_payload", "$.jobs"},
		`{"type":"group","tasks":{}}`:             {"invalid_payload", "$.tasks"},
		`{"type":"group","jobs":[5]}`:             {"invalid_payload", "$.jobs[0]"},
		`{"type":"group","jobs":[{"args":[]}]}`:   {"invalid_payload", "$.jobs[0].type"},
		`{"type":"group","jobs":[{"type":"a"}]}`:  {"invalid_payload", "$.jobs[0].args"},
		`{"type":"group","jobs":[{"type":"a","args":[],"options":{"queue":"NO"}}]}`:                                  {"invalid_payload", "$.jobs[0].options.queue"},
		`{"type":"group","jobs":[{"type":"a","args":[],"options":{"unique":{"on_conflict":"x"}}}]}`:                  {"invalid_payload", "$.jobs[0].options.unique.on_conflict"},
		`{"type":"group","jobs":[` + leaf + `,{"type":"a","args":[],"options":{"retry":{"maxAttempts":-1}}}]}`:       {"validation_error", "$.jobs[1].options.retry.max_attempts"},
		`{"type":"group","options":{"queue":"NO"},"jobs":[` + leaf + `]}`:                                            {"invalid_payload", "$.options.queue"},
		`{"type":"group","options":{"retry":{"jitter":5}},"jobs":[` + leaf + `]}`:                                    {"validation_error", "$.options.retry.jitter"},
		`{"type":"group","options":5,"jobs":[` + leaf + `]}`:                                                         {"invalid_payload", "$.options"},
		`{"type":"group","meta":[],"jobs":[` + leaf + `]}`:                                                           {"invalid_payload", "$.meta"},
		`{"type":"group","name":5,"jobs":[` + leaf + `]}`:                                                            {"invalid_payload", "$.name"},
		`{"type":"group","name":"` + strings.Repeat("é", 256) + `","jobs":[` + leaf + `]}`:                           {"invalid_payload", "$.name"},
		`{"type":"group","name":"a\u0000","jobs":[` + leaf + `]}`:                                                    {"invalid_payload", "$.name"},
		`{"type":"group","jobs":[{"id":"a","type":"a","args":[]},{"id":"a","type":"a","args":[]}]}`:                  {"invalid_payload", "$.jobs[1].id"},
		`{"type":"group","jobs":[{"id":"1","type":"a","args":[]},` + leaf + `]}`:                                     {"invalid_payload", "$.jobs[1].id"},
		`{"type":"group","jobs":[{"id":5,"type":"a","args":[]}]}`:                                                    {"invalid_payload", "$.jobs[0].id"},
		`{"type":"group","jobs":[{"id":"\u0000","type":"a","args":[]}]}`:                                             {"invalid_payload", "$.jobs[0].id"},
		`{"type":"group","jobs":[{"id":"` + strings.Repeat("x", 129) + `","type":"a","args":[]}]}`:                   {"invalid_payload", "$.jobs[0].id"},
		`{"type":"group","jobs":[{"type":"other","steps":[` + leaf + `]}]}`:                                          {"invalid_payload", "$.jobs[0].type"},
		`{"type":"group","jobs":[{"steps":[` + leaf + `]}]}`:                                                         {"invalid_payload", "$.jobs[0].type"},
		`{"type":"group","jobs":[{"type":"saga","steps":[` + leaf + `]}]}`:                                           {"invalid_payload", "$.jobs[0].type"},
		`{"type":"group","jobs":[{"type":"chain","callbacks":{}}]}`:                                                  {"invalid_payload", "$.jobs[0].steps"},
		`{"type":"group","jobs":[{"type":"chain","steps":[{"type":"A","args":[]}]}]}`:                                {"invalid_payload", "$.jobs[0].steps[0].type"},
		`{"type":"batch","jobs":[` + leaf + `]}`:                                                                     {"invalid_payload", "$.callbacks"},
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":{}}`:                                                      {"invalid_payload", "$.callbacks"},
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":[]}`:                                                      {"invalid_payload", "$.callbacks"},
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":{"on_complete":` + leaf + `,"on_end":1}}`:                 {"invalid_payload", "$.callbacks.on_end"},
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":{"on_complete":5}}`:                                       {"invalid_payload", "$.callbacks.on_complete"},
		`{"type":"batch","jobs":[` + leaf + `],"on_complete":{"type":"a"}}`:                                          {"invalid_payload", "$.on_complete.args"},
		`{"type":"batch","jobs":[` + leaf + `],"callbacks":{"on_complete":{"type":"chain","steps":[` + leaf + `]}}}`: {"invalid_payload", "$.callbacks.on_complete"},
		`{"steps":[` + leaf + `]}`:                            {"invalid_payload", "$.steps[0].id"},
		steps(step("")):                                       {"invalid_payload", "$.steps[0].id"},
		steps(step("a"), step("a")):                           {"invalid_payload", "$.steps[1].id"},
		steps(step("a", "b")):                                 {"invalid_payload", "$.steps[0].depends_on[0]"},
		steps(step("a", "a")):                                 {"invalid_payload", "$.steps[0].depends_on[0]"},
		steps(step("a"), step("b", "a", "a")):                 {"invalid_payload", "$.steps[1].depends_on[1]"},
		steps(step("a", "c"), step("b", "a"), step("c", "b")): {"invalid_payload", "$.steps[0].depends_on"},
		steps(step("x"), step("a", "x", "b"), step("b", "a"), step("after", "b")): {"invalid_payload", "$.steps[1].depends_on"},
		`{"steps":[{"id":"a","type":"a","args":[],"depends_on":"b"}]}`:            {"invalid_payload", "$.steps[0].depends_on"},
		`{"steps":[{"id":"a","type":"a","args":[],"depends_on":[5]}]}`:            {"invalid_payload", "$.steps[0].depends_on"},
		`{"steps":[5]}`: {"invalid_payload", "$.steps[0]"},
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"a","args":[],"options":{"callback_type":"on_fire"}}]}`:                                                   {"invalid_payload", "$.steps[1].options.callback_type"},
		`{"steps":[{"id":"b","type":"a","args":[],"options":{"callback_type":"on_failure"}}]}`:                                                                                {"invalid_payload", "$.steps"},
		`{"steps":[{"id":"a","type":"a","args":[],"depends_on":["b"]},{"id":"b","type":"a","args":[],"options":{"callback_type":"on_failure"}}]}`:                             {"invalid_payload", "$.steps[0].depends_on[0]"},
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"group","jobs":[` + leaf + `],"options":{"callback_type":"on_failure"}}]}`:                                {"invalid_payload", "$.steps[1]"},
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"on_failure","type":"a","args":[],"depends_on":["a"]},{"id":"on-failure","type":"a","args":[],"depends_on":["a"]}]}`: {"invalid_payload", "$.steps[2]"},
		steps(step("a"), step("on_complete", "a"), step("on-complete", "a")):                                                                                                  {"invalid_payload", "$.steps[2]"},
		steps(step("on-success", "a"), step("on_success", "a"), step("a")):                                                                                                    {"invalid_payload", "$.steps[1]"},
		`{"steps":[{"id":"a","type":"a","args":[],"depends_on":["b"]},{"id":"b","type":"a","args":[],"options":{"callback_type":"on_complete"}}]}`:                            {"invalid_payload", "$.steps[0].depends_on[0]"},
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"group","jobs":[` + leaf + `],"options":{"callback_type":"on_complete"}}]}`:                               {"invalid_payload", "$.steps[1]"},
		`{"steps":[{"id":"a","type":"a","args":[]},{"id":"b","type":"a","args":[],"options":{"callback_type":"on_success"}},` +
			`{"id":"c","type":"a","args":[],"options":{"callback_type":"on_success"}}]}`: {"invalid_payload", "$.steps[2]"},
	} {
		d, err := workflow.Decode([]byte(body), job.Limits{}, 0)
		require.NotNil(t, err, body)
		require.Nil(t, d, body)
		require.Equal(t, want.code, err.Code, "%s: %s", body, err.Message)
		require.NotEmpty(t, err.Message)
		if want.path != "" {
			list := err.Details["validation_errors"].([]jsonread.Violation)
			require.Equal(t, want.path, list[0].Path, "%s: %s", body, list[0].Message)
			require.NotContains(t, list[0].Message, "required: send free")
		}
	}
}

// All mistakes are reported, and a wrong field before a wrong policy, wherever it stands.
func TestDecodeReportsAllMistakes(t *testing.T) {
	t.Parallel()
	_, err := workflow.Decode([]byte(`{"type":"chain","steps":[{"type":"a","args":[],"retry":{"max_attempts":-1}},{"type":"B","args":[]},{"type":"c"}]}`), job.Limits{}, 0)
	require.Equal(t, "invalid_payload", err.Code)
	require.Contains(t, err.Message, "steps[1]: ")
	_, onCallback := workflow.Decode([]byte(`{"steps":[{"id":"a","type":"a","args":[],"depends_on":["b"]},{"id":"b","type":"a","args":[],"options":{"callback_type":"on_complete"}}]}`), job.Limits{}, 0)
	require.Len(t, onCallback.Details["validation_errors"], 1, "it is no cycle")
	list := err.Details["validation_errors"].([]jsonread.Violation)
	require.Equal(t, []string{"$.steps[0].retry.max_attempts", "$.steps[1].type", "$.steps[2].args"}, []string{list[0].Path, list[1].Path, list[2].Path})
	threeMistakes := strings.Repeat(`,{"type":"A","queue":"NO"}`, 30)[1:]
	_, err = workflow.Decode([]byte(`{"type":"group","jobs":[`+threeMistakes+`]}`), job.Limits{}, 0)
	require.Len(t, err.Details["validation_errors"], jsonread.MaxProblems)
}

func nestedBody(levels int) string {
	return strings.Repeat(`{"type":"chain","steps":[`, levels) + leaf + strings.Repeat(`]}`, levels)
}

func TestDecodeLimits(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, decode(t, nestedBody(5)).Leaves)
	_, err := workflow.Decode([]byte(nestedBody(6)), job.Limits{}, 0)
	require.Equal(t, "$.steps[0].steps[0].steps[0].steps[0].steps[0]", err.Details["validation_errors"].([]jsonread.Violation)[0].Path)
	_, err = workflow.Decode([]byte(nestedBody(6)), job.Limits{}, 6)
	require.Nil(t, err)

	many := func(n int) string { return strings.Repeat(","+leaf, n)[1:] }
	require.Equal(t, 10_000, decode(t, `{"type":"group","jobs":[`+many(10_000)+`]}`).Leaves)
	for _, body := range []string{
		`{"type":"group","jobs":[` + many(10_001) + `]}`,
		`{"type":"group","jobs":[{"type":"group","jobs":[` + many(6000) + `]},{"type":"group","jobs":[` + many(6000) + `]}]}`,
	} {
		_, err := workflow.Decode([]byte(body), job.Limits{}, 0)
		require.NotNil(t, err)
		require.Equal(t, "invalid_payload", err.Code)
		require.Contains(t, err.Message, "10000 jobs")
	}
	list := make([]string, 10_001)
	for i := range list {
		list[i] = step(fmt.Sprint(i))
	}
	require.Equal(t, 10_000, decode(t, steps(list[:10_000]...)).Leaves)
	_, err = workflow.Decode([]byte(steps(list...)), job.Limits{}, 0)
	require.Contains(t, err.Message, "10000 jobs")
}

// None of these may take long or much memory.
func TestDecodeHostileBodies(t *testing.T) {
	t.Parallel()
	started := time.Now()
	big := strings.Repeat("x", 900_000)
	many := func(item string, n int) string { return strings.Repeat(","+item, n)[1:] }
	options := make([]string, 300)
	for i := range options {
		options[i] = fmt.Sprintf(`"o%d":1`, i)
	}
	for name, body := range map[string]string{
		"deep":              strings.Repeat(`{"type":"chain","steps":[`, 9_000) + leaf + strings.Repeat(`]}`, 9_000),
		"deeper":            strings.Repeat(`{"type":"chain","steps":[`, 50_000),
		"array of numbers":  `{"type":"group","jobs":[` + many("1", 100_000) + `]}`,
		"steps of numbers":  `{"steps":[` + many("1", 100_000) + `]}`,
		"empty workflows":   `{"type":"group","jobs":[` + many(`{"type":"group","jobs":[]}`, 10_000) + `]}`,
		"many options":      `{"type":"group","options":{` + strings.Join(options, ",") + `},"jobs":[` + many(leaf, 9_000) + `]}`,
		"large options":     `{"type":"group","options":{"mine":"` + strings.Repeat(big, 3) + `"},"jobs":[` + leaf + `]}`,
		"large job":         `{"type":"group","jobs":[{"type":"a","args":["` + strings.Repeat(big, 3) + `"]}]}`,
		"deep args":         `{"type":"group","jobs":[{"type":"a","args":` + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000) + `}]}`,
		"invalid UTF-8":     "{\"type\":\"group\",\"jobs\":[{\"type\":\"a\",\"args\":[\"\xff\"]}]}",
		"many dependencies": steps(step("a"), `{"id":"b","type":"a","args":[],"depends_on":[`+many(`"a"`, 100_000)+`]}`),
		"unknown callbacks": `{"type":"batch","jobs":[` + leaf + `],"callbacks":{` + many(`"x":1`, 50_000) + `}}`,
	} {
		_, err := workflow.Decode([]byte(body), job.Limits{MaxJobBytes: 1 << 20}, 0)
		require.NotNil(t, err, name)
		require.Less(t, len(err.Message), 2_000, name)
		shown, _ := json.Marshal(err)
		require.Less(t, len(shown), 50_000, name)
	}
	require.Less(t, time.Since(started), time.Minute) // a quarter of a second without the race detector
}

// The examples of the reference have the types under whose headings they stand.
func TestReferenceExamples(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/workflows.md")
	require.NoError(t, err)
	_, forms, _ := strings.Cut(string(page), "\n## Forms\n")
	forms, _, _ = strings.Cut(forms, "\n## Definition\n")
	var found []string
	for part := range strings.SplitSeq(forms, "```json\n") {
		if body, _, isExample := strings.Cut(part, "\n```"); isExample && strings.HasPrefix(body, "{") {
			found = append(found, outline(decode(t, body)))
		}
	}
	require.Equal(t, []string{
		"chain(extract transform load)", "group(resize-s resize-m resize-l)", "batch(0 1) on_complete on_failure",
		"dag(download resize<download tag<download publish<resize<tag)",
	}, found)
}
