package embedpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockDir keeps other processes out of a data directory. The kernel drops the lock when the holder dies, however it
// dies, so a lock is never stale. The file says who holds it, for the error message only.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(f.Name())
		_ = f.Close()
		return nil, fmt.Errorf("%w: process %s already runs a server on %s; stop it or choose another directory",
			ErrInUse, strings.TrimSpace(string(holder)), dir)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return f, nil
}

// Abandoned reports whether dir was used by a Server of a process that has died since. Tests that were killed leave
// such directories behind; the next run removes them.
func Abandoned(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		return false
	}
	f, err := lockDir(dir)
	if err != nil {
		return false
	}
	unlock(f)
	return true
}

// unlock gives the lock back itself and does not leave that to closing: between fork and exec a child that another
// goroutine starts has every open file of ours, and would keep the lock for as long as it takes.
func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close() // there is nothing to do about an error of either
}
