package loop_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
)

// bundle is a node whose timer is connected and not started.
type bundle struct{ *domaintest.Bundle }

func short(c *domaintest.Config) { c.Jobs.VisibilityTimeout = 300 * time.Millisecond }

func setup(t *testing.T) *bundle {
	t.Helper()
	return connected(t, dbtest.New(t), short)
}

// node is another node on the same database.
func (b *bundle) node() *bundle {
	b.T.Helper()
	return connected(b.T, b.Pool, short)
}

// connected is a node whose timer sweeps and is notified of commits, as in a server.
func connected(t testing.TB, pool *pgxpool.Pool, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	b := &bundle{}
	b.Bundle = domaintest.On(t, pool, append(change, func(c *domaintest.Config) {
		c.Sweeps, c.Committed = true, func() { b.Timer.Notify() }
	})...)
	return b
}
