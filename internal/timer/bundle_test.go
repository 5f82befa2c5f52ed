package timer_test

import (
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/domaintest"
)

// bundle is a node whose timer is connected and not started.
type bundle struct{ *domaintest.Bundle }

func short(c *domaintest.Config) { c.Queue.DefaultVisibility = 300 * time.Millisecond }

func setup(t *testing.T) *bundle {
	t.Helper()
	return connected(domaintest.New(t, short))
}

// node is another node on the same database.
func (b *bundle) node() *bundle {
	b.T.Helper()
	return connected(b.Node(short))
}

func connected(b *domaintest.Bundle) *bundle {
	b.ServeTimer(b.Timer)
	b.Commits.OnCommit(b.Timer.Notify)
	return &bundle{b}
}
