package job_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

func TestLane(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tenant, fairKey, lane string }{
		{"", "", ""}, {"acme", "", "acme"}, {"acme", "k", "acme/k"}, {"", "k", "/k"}, {"acme", "a/b", "acme/a/b"}, {"", "/", "//"},
	} {
		require.Equal(t, c.lane, job.Lane(c.tenant, c.fairKey))
		require.Equal(t, c.tenant, job.TenantOf(c.lane), c.lane)
		require.Equal(t, c.fairKey, job.FairKeyOf(c.lane), c.lane)
	}
}

func TestValidTenant(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "Z9", "acme-eu_1.2", ".", "-", strings.Repeat("x", 128)} {
		require.True(t, job.ValidTenant(name), name)
	}
	for _, name := range []string{"", "a/b", "a b", "ä", "a\x00", "a\n", "a:", "*", "\xff", strings.Repeat("x", 129)} {
		require.False(t, job.ValidTenant(name), name)
	}
}
