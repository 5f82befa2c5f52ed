package embedpg

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	found := []binaries{{"/path", 13}, {"/seventeen", 17}, {"/fifteen", 15}}

	t.Run("PrefersFirstThatIsNewEnough", func(t *testing.T) {
		t.Parallel()
		b, err := choose(found, 0)
		require.NoError(t, err)
		require.Equal(t, "/seventeen", b.dir)
	})

	t.Run("TakesVersionOfTheCluster", func(t *testing.T) {
		t.Parallel()
		b, err := choose(found, 15)
		require.NoError(t, err)
		require.Equal(t, "/fifteen", b.dir)
		_, err = choose(found, 16)
		require.ErrorIs(t, err, ErrNotInstalled)
		require.ErrorContains(t, err, "made by PostgreSQL 16")
	})

	t.Run("SaysWhatToDoWhenNothingFits", func(t *testing.T) {
		t.Parallel()
		_, err := choose(nil, 0)
		require.ErrorIs(t, err, ErrNotInstalled)
		require.ErrorContains(t, err, "DATABASE_URL")
		_, err = choose(found[:1], 0)
		require.ErrorContains(t, err, "version 13 (/path)")
	})
}

func TestInstallations(t *testing.T) {
	t.Parallel()
	for _, b := range installations() {
		require.Greater(t, b.major, 8)
		require.FileExists(t, b.path("initdb"))
	}
}

func TestInstallationsOutsideOfPATH(t *testing.T) {
	fakePath(t)
	var found, want []string
	for _, b := range installations() {
		found = append(found, b.dir)
	}
	for _, pattern := range binDirs {
		programs, err := filepath.Glob(filepath.Join(pattern, "initdb"))
		require.NoError(t, err)
		for _, program := range programs {
			want = append(want, filepath.Dir(program))
		}
	}
	require.ElementsMatch(t, want, found)
}
