package embedpg

import (
	"os"
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

func TestBlockedBy(t *testing.T) {
	t.Parallel()
	own, ownGroup := uint32(os.Getuid()), uint32(os.Getgid())
	for _, c := range []struct {
		mode     os.FileMode
		uid, gid uint32
		enters   bool
	}{
		{0o100, own, ownGroup, true}, {0o677, own, ownGroup, false},
		{0o010, own + 1, ownGroup, true}, {0o767, own + 1, ownGroup, false},
		{0o001, own + 1, ownGroup + 1, true}, {0o776, own + 1, ownGroup + 1, false},
	} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		require.NoError(t, os.Chmod(dir, c.mode))
		blockedBy := (&account{uid: c.uid, gid: c.gid}).blockedBy(dir)
		require.Equal(t, c.enters, blockedBy == "", "%o %v", c.mode, c)
		require.NoError(t, os.Chmod(dir, 0o700)) // so that it can be removed
	}
	require.Empty(t, (*account)(nil).blockedBy("/root"))
}
