package job

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithWorkflowMeta(t *testing.T) {
	t.Parallel()
	const own, other = `"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`, `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`
	for _, x := range []struct{ name, meta, workflow, follows, want string }{
		{"Nothing", ``, ``, "", ``},
		{"OwnIsKept", `{"a":null,"a":1}`, `{"x":1}`, "", `{"a":null,"a":1}`},
		{"LackingOnly", `{"tenant_id":"mine","n":null}`, `{"tenant_id":"t","trace_id":"i","x":1}`, "", `{"tenant_id":"mine","n":null,"trace_id":"i"}`},
		{"All", ``, `{"tenant_id":"t","trace_id":"i","traceparent":` + own + `,"tracestate":"s"}`, "", `{"tenant_id":"t","trace_id":"i","traceparent":` + own + `,"tracestate":"s"}`},
		{"OtherMembersAreNot", `{"a":1}`, `{"tenant_id":"t","traceparent":"p","tracestate":"s","other":1}`, "", `{"a":1,"tenant_id":"t","traceparent":"p","tracestate":"s"}`},
		{"OwnTenant", `{"tenant_id":"own"}`, `{"tenant_id":"t","traceparent":"p","tracestate":"s"}`, "", `{"tenant_id":"own","traceparent":"p","tracestate":"s"}`},
		{"OwnTraceID", `{"trace_id":"own"}`, `{"tenant_id":"t","traceparent":"p","tracestate":"s"}`, "", `{"trace_id":"own","tenant_id":"t"}`},
		{"OwnTraceparent", `{"traceparent":"own","b":1}`, `{"tenant_id":"t","traceparent":"p","tracestate":"s"}`, "", `{"traceparent":"own","b":1,"tenant_id":"t"}`},
		{"Follows", `{"a":1}`, ``, other, `{"a":1,"traceparent":"` + other + `"}`},
		{"FollowsInsteadOfOwn", `{"traceparent":` + own + `}`, ``, other, `{"traceparent":"` + other + `","ojs.workflow.trace_origin":` + own + `}`},
		{"FollowsInsteadOfWorkflow", ``, `{"traceparent":` + own + `}`, other, `{"traceparent":"` + other + `","ojs.workflow.trace_origin":` + own + `}`},
	} {
		var meta, workflow []byte
		if x.meta != "" {
			meta = []byte(x.meta)
		}
		if x.workflow != "" {
			workflow = []byte(x.workflow)
		}
		require.Equal(t, x.want, string(WithWorkflowMeta(meta, workflow, x.follows)), x.name)
	}
}

func TestWorkflowStep(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a", WorkflowStep([]byte(`{"workflow_id":"1","workflow_step_id":"a"}`)))
	require.Equal(t, "on_failure", WorkflowStep([]byte(`{"workflow_id":"1","workflow_callback":"on_failure"}`)))
	require.Empty(t, WorkflowStep([]byte(`{"workflow_step_id":"a"}`)))
	require.Empty(t, WorkflowStep(nil))
}
