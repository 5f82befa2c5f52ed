package job

import (
	"strings"

	"github.com/ojsd/ojsd/internal/payload"
)

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
	return s != "" && len(s) <= maxTenantBytes && payload.AllIn(s, payload.IsNameByte)
}
