// Package tenant owns what a server knows of tenants (docs/reference/tenants.md): the rule of the header that names one, to which
// tenant something stored belongs, and the statistics of tenants. It must never change what belongs to a tenant.
//
// A tenant is a name in the meta of a job, nothing that has to be created. The transports ask this package before they act
// for a caller with a name: whose the job, workflow, cron, subscription or worker is. Lists and events are confined by
// filters of their own statements instead.
//
// The look and the change that follows it are two statements. That is safe because to which tenant something belongs is
// decided at its insert and never changes; only a cron may be replaced, and package cron compares the tenant under its
// lock, and a worker belongs to the tenant that its latest heartbeat with one has named.
package tenant

import (
	"strconv"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Mode says whether calls name their tenant. It comes from the settings of the node and does not change while the node
// runs.
type Mode string

// The modes. The zero value is Optional.
const (
	Off      Mode = "off"      // the header is ignored, and nothing belongs to a tenant
	Optional Mode = "optional" // a call without the header is that of an operator
	Required Mode = "required" // so is this, but it must not enqueue
)

// Caller is the tenant that a call names by the values of its header; "": it names none. A header without a name is refused, because
// a client with an empty variable must not become an operator. Two headers are refused as well: two proxies could each have
// set one.
func (m Mode) Caller(values []string) (string, error) {
	// Off comes first: the header then has no meaning, also with a bad value.
	if m == Off || len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || !job.ValidTenant(values[0]) {
		var received any = values[0]
		if len(values) > 1 {
			received = strconv.Itoa(len(values)) + " values"
		}
		const expected = "one name of 1 to 128 letters, digits, ., _ and -"
		return "", spec.InvalidRequest(job.TenantHeader, expected, received, job.TenantHeader+" must be "+expected+".")
	}
	return values[0], nil
}

// Limits are those for what a caller sends. The decoders of jobs apply them, so that HTTP, gRPC, crons and workflows keep
// one rule (docs/reference/tenants.md, Enqueue).
func (m Mode) Limits(l job.Limits, caller string) job.Limits {
	l.NoTenants, l.Tenant, l.TenantRequired = m == Off, caller, m == Required
	return l
}

// ErrOperators refuses a call of a tenant that would show or change what is not the tenant's: 403. The transports decide
// which calls are meant (docs/reference/tenants.md, What a call reaches).
func ErrOperators() *ojs.Error {
	err := spec.NewError(ojs.ErrPermissionDenied, "This call is not for tenants: it is about the whole server.", map[string]any{"header": job.TenantHeader})
	err.Hint = "Leave out the header " + job.TenantHeader + " if you operate this server."
	return err
}
