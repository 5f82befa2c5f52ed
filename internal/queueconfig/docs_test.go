package queueconfig

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFieldsAreDocumented covers docs/CONTRIBUTING.md, Add a queue setting.
func TestFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/queues.md")
	require.NoError(t, err)
	_, page, found := strings.Cut(string(text), "\n## Configuration\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	for f := range fieldCount {
		if !strings.Contains(page, "`"+f.path()+"`") && !strings.Contains(page, "`."+specs[f].name+"`") {
			t.Errorf("docs/reference/queues.md, Configuration, does not have field %d, %q", f, f.path())
		}
	}
	for name := range aliases {
		if !strings.Contains(page, "alias `"+name+"`") {
			t.Errorf("docs/reference/queues.md, Configuration, does not have the alias %s", name)
		}
	}
}

// TestEveryFieldIsChecked covers docs/CONTRIBUTING.md, Add a queue setting: no field takes true, and a golden has what a client gets that
// sends something else.
func TestEveryFieldIsChecked(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("../e2e/golden/testdata/golden/http/PUT_ojs_v1_queues_name_config.txt")
	require.NoError(t, err)
	for f := range fieldCount {
		require.NotEmpty(t, new(Config).set(f, []byte("true")), "%s has no case in set", f.path())
		if !strings.Contains(string(golden), "\n== "+f.path()+": ") {
			t.Errorf("configMembers in internal/e2e/golden/http_routes_test.go does not have %s", f.path())
		}
	}
}
