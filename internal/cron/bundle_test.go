package cron_test

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

// unchecked is for nodes whose calls end before their changes are emitted.
func unchecked(c *domaintest.Config) { c.Unchecked = true }

// node is another node on the same database.
func (b *bundle) node() *bundle { return &bundle{b.Bundle.Node()} }
