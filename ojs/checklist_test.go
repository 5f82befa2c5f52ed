package ojs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChecklist: each test that the list at the head of main_test.go names exists.
func TestChecklist(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	for _, pattern := range []string{"*_test.go", "../internal/e2e/sdk*_test.go", "../cmd/ojsd/sdk_test.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			tests.Write(text)
		}
	}
	main, err := os.ReadFile("main_test.go")
	require.NoError(t, err)
	list, _, _ := strings.Cut(string(main), "\npackage ")
	names := regexp.MustCompile(`Test\w+`).FindAllString(list, -1)
	require.Greater(t, len(names), 20)
	for _, name := range names {
		require.Contains(t, tests.String(), "\nfunc "+name+"(t *testing.T)")
	}
}

// TestDependencies: users of the SDK get no other module with it.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	require.Equal(t, "github.com/ojsd/ojsd/ojs", strings.TrimSpace(string(out)))
}
