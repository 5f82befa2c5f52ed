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

// lockDir locks a data directory against other processes. The kernel unlocks it when the process ends in any way, so a lock is
// never stale. The file contains the process id, for the error message only.
// The file is deleted with its directory only: a second process could otherwise lock a file that is no longer the one in the directory.
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

// Abandoned reports whether dir belonged to a Server of a process that has ended. Killed tests leave such directories, and the
// next run removes them.
// It locks and unlocks the directory, so a start at the same moment may fail with ErrInUse.
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

// unlock unlocks before it closes: between fork and exec, a child that another goroutine starts shares the open files of this
// process, and would keep the lock until its exec.
func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close() // an error of either call has no remedy
}
