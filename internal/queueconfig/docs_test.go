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
			t.Errorf("docs/reference/queues.md, Configuration, does not have %s", f.path())
		}
	}
	for name := range aliases {
		if !strings.Contains(page, "alias `"+name+"`") {
			t.Errorf("docs/reference/queues.md, Configuration, does not have the alias %s", name)
		}
	}
}
