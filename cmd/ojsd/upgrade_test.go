package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestUpgrade replaces the nodes of the release before one by one, under load, and goes back: the binary of the commit before the newest
// migration works beside this one on the new schema, and can be started again on it unless the schema says otherwise.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	binary := previousRelease(t)
	url := dbtest.EmptyURL(t)
	c := newCrashTest(t, 0)
	older, newer := newNode(t, url), newNode(t, url)
	older.binary = binary
	older.start() // which migrates to its schema
	c.nodes = []*serverProcess{older, newer}

	producing, stopProducing := context.WithCancel(t.Context())
	defer stopProducing()
	deadline, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var producers, workers sync.WaitGroup
	var produced atomic.Bool
	for n := range len(producerKinds) {
		producers.Go(func() { c.produce(producing, deadline, n) })
	}
	for n := range 4 {
		workers.Go(func() {
			c.work(deadline, n, func() bool { return produced.Load() && c.countLive(url) == 0 })
		})
	}
	acknowledged := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.acked)
	}
	goOn := func() {
		before := acknowledged()
		older.until(func() bool { return acknowledged() >= before+20 })
	}

	version := func(function string) (n int) {
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT ojs."+function+"()").Scan(&n))
		return n
	}

	goOn()
	known := version("schema_version")
	code, _, text := call(t, "migrate", "up", "--database-url", url)
	require.Zero(t, code, text)
	goOn() // the old node on the new schema
	newer.start()
	goOn() // both
	older.kill()
	if version("schema_compatible_from") <= known {
		older.start()
		goOn() // the old node was started again
		older.kill()
		goOn() // the new one alone
		older.start()
		newer.kill()
		goOn() // back to the old one
		newer.start()
	} else {
		older.launch()
		require.Error(t, older.cmd.Wait(), "it refuses the schema")
		require.Contains(t, older.log.String(), "the ojs schema is newer than this ojsd")
		goOn() // the new one alone
	}

	stopProducing()
	producers.Wait()
	produced.Store(true)
	workers.Wait()
	require.NoError(t, deadline.Err(), "jobs were left over")
	c.verify(url)
}

// previousRelease builds the program of the commit before the newest migration.
func previousRelease(t *testing.T) (binary string) {
	t.Helper()
	git := func(args ...string) string {
		output, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", "../.."}, args...)...).CombinedOutput()
		if err != nil {
			t.Skipf("the history of the repository is needed: git %s: %s", strings.Join(args, " "), output)
		}
		return strings.TrimSpace(string(output))
	}
	files, err := filepath.Glob("../../migrations/*.sql")
	require.NoError(t, err)
	newest := filepath.Base(slices.Max(files))
	commit := "HEAD"
	if added := git("log", "-1", "-m", "--first-parent", "--format=%H", "--diff-filter=A", "--", "migrations/"+newest); added != "" {
		commit = git("rev-parse", added+"^")
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	git("archive", "--format=tar", "-o", archive, commit)
	for _, command := range [][]string{
		{"tar", "-xf", archive, "-C", dir},
		{"go", "build", "-C", dir, "-trimpath", "-o", filepath.Join(dir, "ojsd-previous"), "./cmd/ojsd"},
	} {
		output, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		require.NoError(t, err, "%s: %s", strings.Join(command, " "), output)
	}
	require.NoError(t, os.Remove(archive))
	return filepath.Join(dir, "ojsd-previous")
}
