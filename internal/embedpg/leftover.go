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

// clearLeftover deals with the postmaster.pid of a run that was killed. We hold the lock, so no living ojsd runs that
// Postgres. It is stopped rather than adopted: then settings, log and parent-death signal are this run's.
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
		return nil // Postgres explains it better than we could
	}
	command := commandLine(pid)
	switch {
	case strings.Contains(command, s.place.pgdata()):
		s.log.InfoContext(ctx, "stopping the postgres of an earlier run", "pid", pid)
		return stopLeftover(ctx, pid)
	case command != "" && !strings.Contains(command, "postgres"):
		// The number belongs to another program now: usual after a restart of a container, where numbers are small.
		// Postgres would take it for a postmaster and refuse to start.
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove stale postmaster.pid: %w", err)
		}
	}
	// Otherwise the process is gone, and Postgres also checks for orphaned backends; or it is somebody else's postgres,
	// which we must not stop.
	return nil
}

// stopLeftover ends a postmaster that is not our child, so all there is to wait for is its disappearance.
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
