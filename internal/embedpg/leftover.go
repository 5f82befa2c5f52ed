package embedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clearLeftover stops the postmaster of a run that was killed. The data directory is locked, so no other ojsd uses that
// postmaster. It is not adopted, because it has the settings, log and parent-death signal of the earlier run.
// The process id alone proves nothing: it may belong to another program by now. The command line must name this directory.
func (s *Server) clearLeftover(ctx context.Context) error {
	file := filepath.Join(s.place.pgdata(), "postmaster.pid")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		return nil //nolint:nilerr // the start fails with PostgreSQL's own message
	}
	command := commandLine(pid)
	switch {
	case strings.Contains(command, s.place.pgdata()):
		s.log.InfoContext(ctx, "stopping the postgres of an earlier run", "pid", pid)
		return stopLeftover(ctx, pid)
	case command != "" && !strings.Contains(command, "postgres"):
		// Another program has the process id now, as is usual after the restart of a container, where ids are small.
		// PostgreSQL would take that program for a postmaster and refuse to start.
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove stale postmaster.pid: %w", err)
		}
	}
	// Otherwise the process has ended, and PostgreSQL checks for orphaned backends itself; or it is another postgres, which
	// must not be stopped.
	return nil
}

// stopLeftover stops a postmaster that is not a child of this process, so it polls for its end.
func stopLeftover(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop postgres of an earlier run (process %d): %w", pid, err)
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for commandLine(pid) != "" {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("postgres of an earlier run (process %d) does not stop: %w", pid, context.Cause(ctx))
		}
	}
	return nil
}
