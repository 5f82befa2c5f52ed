package queue_test

import (
	"testing"

	"github.com/ojsd/ojsd/internal/domaintest"
)

// bundle is the domains of a node on a database of the test's own.
type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	return &bundle{domaintest.New(t, change...)}
}

// unchecked leaves out the comparison of changes and events, for tests that delete events.
func unchecked(c *domaintest.Config) { c.Unchecked = true }

// node is another node on the same database.
func (b *bundle) node() *bundle { return &bundle{b.Bundle.Node()} }
