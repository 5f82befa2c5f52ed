package job

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// TenantHeader is the header of HTTP, and in lower case the metadata of gRPC, that names the tenant of a call.
const TenantHeader = "X-OJS-Tenant"

// tenantMember is the member of meta that names the tenant of a job, a workflow or a cron.
const tenantMember = "tenant_id"

// tenant finds the tenant of a job, and puts that of the caller into its meta (docs/reference/tenants.md, Enqueue).
// A caller with a tenant may not set a limit that reaches beyond it: neither that of the whole queue nor one with scope global.
func (d *decoder) tenant(j *Job) *ojs.Error {
	meta, tenant, err := d.lim.WithTenant(j.Meta)
	if err != nil {
		return err
	}
	j.Meta, j.Lane = meta, Lane(tenant, "")
	if j.Limit == nil {
		return nil
	}
	// An operator, who calls without a tenant, may set both.
	if d.lim.Tenant != "" && (j.LimitKey == "" || j.Limit.Scope == LimitGlobal) {
		what := "Its rate_limit has no key, so it would be the limit of the whole queue, which tenants share."
		if j.LimitKey != "" {
			what = "Its rate_limit has the scope global, so it would be the limit of other tenants, too."
		}
		err := spec.NewError(ojs.ErrPermissionDenied, what, map[string]any{"field": "rate_limit"})
		err.Hint = "Send a key, and no scope or tenant: the limit is that of the jobs of this tenant with the key."
		return err
	}
	if j.LimitKey != "" {
		j.LimitKey = PartitionKey(tenant, j.LimitKey, j.Limit)
	}
	return nil
}

// WithTenant gives meta with the tenant of the caller, and the tenant to which belongs what has this meta. meta must be a compact
// object or nil, and is returned as it is if nothing has to be added. A caller without a tenant may name any, in meta; with one
// it may name only its own. All members of the name must agree, or a reader that takes the first of equal names would see
// another tenant than one that takes the last.
func (l Limits) WithTenant(meta []byte) (own []byte, tenant string, err *ojs.Error) {
	if l.NoTenants {
		return meta, "", nil
	}
	said := tenantsOf(meta)
	if l.Tenant == "" {
		if l.TenantRequired {
			err = spec.InvalidRequest(TenantHeader, "the name of a tenant", nil,
				"The header "+TenantHeader+" is required: every job, workflow and cron of this server belongs to a tenant.")
			err.Hint = "Send the header " + TenantHeader + " (gRPC: metadata x-ojs-tenant) with the name of the tenant."
			return nil, "", err
		}
		return meta, oneTenant(said), nil
	}
	for _, v := range said {
		if text, _ := jsonread.Text(v); text != l.Tenant {
			err = spec.NewError(ojs.ErrPermissionDenied,
				"meta.tenant_id is "+jsonread.Brief(v)+", but the call is that of tenant "+l.Tenant+".",
				map[string]any{"field": "meta.tenant_id", "tenant_id": l.Tenant})
			err.Hint = "Leave meta.tenant_id out: the server stores that of the header " + TenantHeader + "."
			return nil, "", err
		}
	}
	if len(said) == 0 {
		b := append(make([]byte, 0, len(meta)+len(l.Tenant)+len(`{"tenant_id":""}`)), '{')
		// A null under the name is replaced, because it says nothing and two members of one name would.
		b = jsonread.AppendMember(jsonread.AppendOthers(b, meta, tenantMember), jsonread.Quote(tenantMember), jsonread.Quote(l.Tenant))
		b = append(b, '}')
		meta = b
	}
	return meta, l.Tenant, nil
}

// TenantOfMeta is the tenant to which belongs what is stored with this meta; "": none. It is the rule of callers without a
// tenant, applied to what is stored.
func (l Limits) TenantOfMeta(meta []byte) string {
	if l.NoTenants {
		return ""
	}
	return oneTenant(tenantsOf(meta))
}

// tenantsOf are the values of all members of that name, because JSON may have several, but null, which says nothing.
func tenantsOf(meta []byte) (said []jsontext.Value) {
	// Most objects have no such member, under its plain name or an escaped one.
	if len(meta) == 0 || !bytes.Contains(meta, []byte(tenantMember)) && bytes.IndexByte(meta, '\\') < 0 {
		return nil
	}
	for literal, value := range jsonread.Members(meta) {
		if string(jsonread.Name(literal)) == tenantMember && !jsonread.IsNull(value) {
			said = append(said, value)
		}
	}
	return said
}

// oneTenant is what all values say; "" if they differ, or say what is no name of a tenant: then the member is one like any other.
func oneTenant(said []jsontext.Value) (tenant string) {
	for i, v := range said {
		text, _ := jsonread.Text(v)
		if !ValidTenant(text) || i > 0 && text != tenant {
			return ""
		}
		tenant = text
	}
	return tenant
}

// maxTenantBytes bounds the name of a tenant. A lane adds a slash and a fairness key to it.
const maxTenantBytes = 128

// Lane is the part of a queue in which a job waits: that of its tenant, and within it that of its fairness key. Jobs without
// either share the lane "". The name of a tenant has no slash, so no two pairs have the same lane. The lane is a column of the
// job and part of the fetch index, so a fetch for a tenant looks at that tenant's jobs only. SQL takes it apart by the slash
// (split_part(lane, '/', 1)).
func Lane(tenant, fairKey string) string {
	if fairKey == "" {
		return tenant
	}
	return tenant + "/" + fairKey
}

// TenantOf is the tenant of the jobs in a lane; "": none.
func TenantOf(lane string) string {
	tenant, _, _ := strings.Cut(lane, "/")
	return tenant
}

// FairKeyOf is the fairness key of the jobs in a lane; "": none. A fairness key may have slashes: everything behind the first
// one is the key.
func FairKeyOf(lane string) string {
	_, key, _ := strings.Cut(lane, "/")
	return key
}

// ValidTenant reports whether s is ^[A-Za-z0-9._-]{1,128}$. A slash would make two tenants share a lane.
func ValidTenant(s string) bool {
	return s != "" && len(s) <= maxTenantBytes && jsonread.AllIn(s, jsonread.IsNameByte)
}
