package job_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

func TestWorkflowMeta(t *testing.T) {
	t.Parallel()
	workflow := []byte(`{"tenant_id":"t","traceparent":"p","tracestate":"s","other":1}`)
	for meta, want := range map[string]string{
		``:                            `{"tenant_id":"t","traceparent":"p","tracestate":"s"}`,
		`{"a":1}`:                     `{"a":1,"tenant_id":"t","traceparent":"p","tracestate":"s"}`,
		`{"tenant_id":"own"}`:         `{"tenant_id":"own","traceparent":"p","tracestate":"s"}`,
		`{"trace_id":"own"}`:          `{"trace_id":"own","tenant_id":"t"}`,
		`{"traceparent":"own","b":1}`: `{"traceparent":"own","b":1,"tenant_id":"t"}`,
	} {
		require.Equal(t, want, string(job.WithWorkflowMeta([]byte(meta), workflow, "")), meta)
	}
}
