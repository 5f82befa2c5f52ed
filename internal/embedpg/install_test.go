package embedpg

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakePath makes PATH a directory with sh and the given programs only, each of which prints its arguments.
func fakePath(t *testing.T, programs ...string) {
	t.Helper()
	dir := t.TempDir()
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(sh, filepath.Join(dir, "sh")))
	for _, name := range programs {
		script := "#!" + sh + "\necho " + name + ": \"$@\"\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	t.Setenv("PATH", dir)
}

func TestInstall(t *testing.T) {
	t.Run("UsesPackageManagerAndSaysSo", func(t *testing.T) {
		fakePath(t, "dnf", "sudo")
		var out bytes.Buffer
		require.NoError(t, install(t.Context(), &out))
		require.Contains(t, out.String(), "PostgreSQL is not installed; installing it with dnf\n")
		if os.Geteuid() == 0 {
			require.Contains(t, out.String(), "dnf: install -y postgresql-server\n")
		} else {
			require.Contains(t, out.String(), "sudo: sh -c dnf install -y postgresql-server\n")
		}
	})

	t.Run("ReportsThatItFailed", func(t *testing.T) {
		fakePath(t, "dnf", "sudo")
		for _, name := range []string{"dnf", "sudo"} {
			require.NoError(t, os.WriteFile(filepath.Join(os.Getenv("PATH"), name), []byte("#!/bin/sh\nexit 3\n"), 0o755))
		}
		err := install(t.Context(), &bytes.Buffer{})
		require.ErrorContains(t, err, "dnf: ")
		var failed *exec.ExitError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, 3, failed.ExitCode())
	})

	t.Run("SaysWhatToDoWithoutPackageManager", func(t *testing.T) {
		fakePath(t)
		err := install(t.Context(), &bytes.Buffer{})
		require.ErrorIs(t, err, ErrNotInstalled)
		require.ErrorContains(t, err, "DATABASE_URL")
	})

	t.Run("SaysWhatToDoWithoutSudo", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root needs no sudo")
		}
		fakePath(t, "apt-get")
		require.ErrorContains(t, install(t.Context(), &bytes.Buffer{}), "as root")
	})
}
