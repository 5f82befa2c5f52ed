package queue_test

import (
	"testing"

	"github.com/ojsd/ojsd/internal/domaintest"
)

// bundle is the domains of a node on a database of the test's own.
type progressBundle struct{ *domaintest.Bundle }

func setupProgress(t *testing.T, change ...func(*domaintest.Config)) *progressBundle {
	t.Helper()
	return &progressBundle{domaintest.New(t, change...)}
}
