package job_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func TestWithTenant(t *testing.T) {
	t.Parallel()
	of := job.Limits{Tenant: "acme"}
	for _, c := range []struct {
		name         string
		lim          job.Limits
		meta         string
		want, tenant string
	}{
		{"Added", of, `{"a":1}`, `{"a":1,"tenant_id":"acme"}`, "acme"},
		{"AddedToNone", of, ``, `{"tenant_id":"acme"}`, "acme"},
		{"Same", of, `{"tenant_id":"acme"}`, `{"tenant_id":"acme"}`, "acme"},
		{"SameTwice", of, `{"tenant_id":"acme","tenant_id":"acme"}`, `{"tenant_id":"acme","tenant_id":"acme"}`, "acme"},
		{"EscapedName", of, `{"tenant\u005fid":"acme"}`, `{"tenant\u005fid":"acme"}`, "acme"},
		{"EscapedValue", of, `{"tenant_id":"\u0061cme"}`, `{"tenant_id":"\u0061cme"}`, "acme"},
		{"NullIsReplaced", of, `{"tenant_id":null,"a":1}`, `{"a":1,"tenant_id":"acme"}`, "acme"},
		{"InAnotherObject", of, `{"a":{"tenant_id":"x"}}`, `{"a":{"tenant_id":"x"},"tenant_id":"acme"}`, "acme"},
		{"FromMeta", job.Limits{}, `{"tenant_id":"x"}`, `{"tenant_id":"x"}`, "x"},
		{"FromEscapedName", job.Limits{}, `{"tenant\u005fid":"x"}`, `{"tenant\u005fid":"x"}`, "x"},
		{"NoName", job.Limits{}, `{"tenant_id":"Acme Corp"}`, `{"tenant_id":"Acme Corp"}`, ""},
		{"NoText", job.Limits{}, `{"tenant_id":5}`, `{"tenant_id":5}`, ""},
		{"NUL", job.Limits{}, `{"tenant_id":"a\u0000"}`, `{"tenant_id":"a\u0000"}`, ""},
		{"TwoTenants", job.Limits{}, `{"tenant_id":"x","tenant_id":"y"}`, `{"tenant_id":"x","tenant_id":"y"}`, ""},
		{"Off", job.Limits{NoTenants: true}, `{"tenant_id":"x"}`, `{"tenant_id":"x"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own, tenant, err := c.lim.WithTenant([]byte(c.meta))
			require.Nil(t, err)
			require.Equal(t, c.want, string(own))
			require.Equal(t, c.tenant, tenant)
		})
	}
	for _, meta := range []string{`{"tenant_id":"x"}`, `{"tenant_id":5}`, `{"tenant_id":{}}`, `{"tenant_id":"acme","tenant_id":"x"}`, `{"tenant\u005fid":"x"}`, `{"tenant_id":""}`} {
		_, _, err := of.WithTenant([]byte(meta))
		require.NotNil(t, err, meta)
		require.Equal(t, string(ojs.ErrPermissionDenied), err.Type, meta)
	}
	_, _, err := job.Limits{TenantRequired: true}.WithTenant([]byte(`{"tenant_id":"x"}`))
	require.Equal(t, string(ojs.ErrInvalidRequest), err.Type)
}

// TestRetryKeepsTheTenant: what a retry changes of meta must not give the job to another tenant.
func TestLimitsOfOthers(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]string{
		`{"max_per_second":1}`: "whole queue", `{"key":"k","concurrency":1,"scope":"global"}`: "scope global", `{"key":"k","concurrency":1}`: "",
	} {
		body := []byte(`{"type":"a","args":[],"rate_limit":` + limit + `}`)
		_, err := job.DecodeJob(body, job.Limits{})
		require.Nil(t, err, "an operator may set any")
		_, err = job.DecodeJob(body, job.Limits{Tenant: "acme"})
		if want == "" {
			require.Nil(t, err)
			continue
		}
		require.Equal(t, string(ojs.ErrPermissionDenied), err.Type)
		require.Contains(t, err.Message, want)
	}
}

func TestRetryKeepsTheTenant(t *testing.T) {
	t.Parallel()
	for body, ok := range map[string]bool{
		`{"override":{"meta":{"a":1}}}`: true, `{"override":{"meta":{"tenant_id":"x"}}}`: true, `{"override":{"meta":{"tenant_id":"y"}}}`: false,
		`{"override":{"meta":{"tenant_id":null}}}`: false,
	} {
		o, err := job.DecodeRetry([]byte(body), job.Limits{})
		require.Nil(t, err)
		_, err = o.MergedMeta([]byte(`{"tenant_id":"x"}`))
		require.Equal(t, ok, err == nil, body)
	}
}
