// Package tenant owns what a server knows of tenants (docs/reference/tenants.md): the rule of the header that names one, to which
// tenant something stored belongs, and the statistics of tenants. It must never change what belongs to a tenant.
package tenant

import (
	"strconv"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Mode says whether calls name their tenant.
type Mode string

// The modes. The zero value is Optional.
const (
	Off      Mode = "off"      // the header is ignored, and nothing belongs to a tenant
	Optional Mode = "optional" // a call without the header is that of an operator
	Required Mode = "required" // so is this, but it must not enqueue
)

// Caller is the tenant that a call names by the values of its header; "": it names none. A header without a name is refused, because
// a client with an empty variable must not become an operator.
func (m Mode) Caller(values []string) (string, error) {
	if m == Off || len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || !job.ValidTenant(values[0]) {
		var received any = values[0]
		if len(values) > 1 {
			received = strconv.Itoa(len(values)) + " values"
		}
		const expected = "one name of 1 to 128 letters, digits, ., _ and -"
		return "", ojs.ErrInvalidRequest(job.TenantHeader, expected, received, job.TenantHeader+" must be "+expected+".")
	}
	return values[0], nil
}

// Limits are those for what a caller sends.
func (m Mode) Limits(l job.Limits, caller string) job.Limits {
	l.NoTenants, l.Tenant, l.TenantRequired = m == Off, caller, m == Required
	return l
}

// ErrOperators refuses a call of a tenant that would show or change what is not the tenant's: 403.
func ErrOperators() *ojs.Error {
	err := ojs.NewError(ojs.KindPermissionDenied, "This call is not for tenants: it is about the whole server.", map[string]any{"header": job.TenantHeader})
	err.Hint = "Leave out the header " + job.TenantHeader + " if you operate this server."
	return err
}
