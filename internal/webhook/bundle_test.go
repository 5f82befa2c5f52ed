package webhook_test

import (
	"net/netip"
	"testing"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
)

// bundle is the domains of a node on a database of the test's own.
type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	return &bundle{domaintest.New(t, change...)}
}

// sending are the settings of a dispatcher that may call this machine, with so many requests at a time.
func sending(workers int) config.Config {
	c := config.Default()
	c.Webhooks.AllowNetworks.Networks, c.Webhooks.Workers = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, workers
	return c
}

// node is another node on the same database.
func (b *bundle) node() *bundle { return &bundle{b.Bundle.Node()} }
