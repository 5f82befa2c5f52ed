package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSDKChecklist: each test that the list at the head of ojs/main_test.go names exists.
func TestSDKChecklist(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, pattern := range []string{"../../ojs/*_test.go", "../../ojs/*/*_test.go", "sdk*_test.go", "../../cmd/ojsd/sdk_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			tests.Write(text)
		}
	}
	main, err := os.ReadFile("../../ojs/main_test.go")
	require.NoError(t, err)
	list, _, _ := strings.Cut(string(main), "\npackage ")
	names := regexp.MustCompile(`Test\w+`).FindAllString(list, -1)
	require.Greater(t, len(names), 20)
	for _, name := range names {
		require.Contains(t, tests.String(), "\nfunc "+name+"(t *testing.T)")
	}
}
