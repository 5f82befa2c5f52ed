package embedpg

import (
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLockDir(t *testing.T) {
	t.Parallel()

	t.Run("IsFreeAtOnceThoughAForkedChildHasItsFile", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		lock, err := lockDir(dir)
		require.NoError(t, err)
		inherited, err := syscall.Dup(int(lock.Fd())) // what fork does, and exec undoes
		require.NoError(t, err)
		defer func() { require.NoError(t, syscall.Close(inherited)) }()
		unlock(lock)
		require.True(t, Abandoned(dir))
		again, err := lockDir(dir)
		require.NoError(t, err)
		unlock(again)
	})

	t.Run("IsFreeAtOnceWhileOthersStartPrograms", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		done := make(chan struct{})
		var starting sync.WaitGroup
		defer starting.Wait()
		defer close(done)
		for range 4 {
			starting.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						_ = exec.Command(filepath.Join(dir, "missing")).Run() // it forks before it finds out
					}
				}
			})
		}
		for range 2000 {
			lock, err := lockDir(dir)
			require.NoError(t, err)
			unlock(lock)
		}
	})
}
