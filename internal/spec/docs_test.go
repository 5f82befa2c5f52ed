package spec

import (
	"cmp"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCatalogueIsDocumented covers docs/reference/errors.md, Catalogue.
func TestCatalogueIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/errors.md")
	require.NoError(t, err)
	_, page, found := strings.Cut(string(text), "\n## Catalogue\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	for kind, c := range catalogue {
		code := cmp.Or(c.code, string(kind))
		if !strings.Contains(page, "| `"+code+"`") || !strings.Contains(page, "`"+string(kind)+"`") {
			t.Errorf("docs/reference/errors.md, Catalogue, does not have %s of %s", kind, code)
		}
	}
}
