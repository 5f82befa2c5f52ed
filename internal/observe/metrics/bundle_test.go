package metrics_test

import (
	"testing"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/observe/metrics"
)

// bundle is the domains of a node on a database of the test's own, and what reads its figures.
type bundle struct {
	*domaintest.Bundle

	database *metrics.Database
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := domaintest.New(t)
	return &bundle{b, metrics.NewDatabase(b.DB)}
}
