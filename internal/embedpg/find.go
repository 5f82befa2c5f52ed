package embedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNotInstalled says that the machine has no usable PostgreSQL server binaries. Install installs them.
// Errors that wrap it say what was found instead.
var ErrNotInstalled = errors.New("PostgreSQL is not installed")

// minMajor is the oldest PostgreSQL that ojsd works with: DETACH PARTITION … CONCURRENTLY came with 14.
const minMajor = 14

// binDirs are places outside PATH where packages put the server: Debian, PGDG on Red Hat, Alpine, source, Homebrew.
var binDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
}

// binaries is one installation of PostgreSQL.
// All programs of one installation are in dir.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// findBinaries returns the installation to use: PATH, then pg_config, then the newest of binDirs. Only the major version that
// created a cluster can run it, so want > 0 selects that version.
func findBinaries(want int) (binaries, error) { return choose(installations(), want) }

// It does not touch the machine, for tests.
func choose(found []binaries, want int) (binaries, error) {
	for _, b := range found {
		// The first is the preferred one.
		if b.major == want || want == 0 && b.major >= minMajor {
			return b, nil
		}
	}
	if want > 0 {
		return binaries{}, fmt.Errorf("%w: the data was made by PostgreSQL %d, found %s; "+
			"install version %d, or move the data directory away to start with an empty one",
			ErrNotInstalled, want, describe(found), want)
	}
	return binaries{}, fmt.Errorf("%w: found %s in PATH, by pg_config and in %s; "+
		"install PostgreSQL %d or newer, or set DATABASE_URL to use a server that runs already",
		ErrNotInstalled, describe(found), binDirs[0], minMajor)
}

func describe(found []binaries) string {
	if len(found) == 0 {
		return "nothing"
	}
	var versions []string
	for _, b := range found {
		versions = append(versions, fmt.Sprintf("%d (%s)", b.major, b.dir))
	}
	return "version " + strings.Join(versions, ", ")
}

// installations lists the installations on the machine in order of preference.
func installations() []binaries {
	var preferred, others []binaries
	if postgres, err := exec.LookPath("postgres"); err == nil {
		preferred = appendInstallation(preferred, filepath.Dir(postgres))
	}
	if out, err := output("pg_config", "--bindir"); err == nil {
		preferred = appendInstallation(preferred, strings.TrimSpace(out))
	}
	for _, pattern := range binDirs {
		dirs, _ := filepath.Glob(pattern) // the patterns are constant and well formed
		for _, dir := range dirs {
			others = appendInstallation(others, dir)
		}
	}
	// Stable, so that equal versions keep the order of binDirs.
	slices.SortStableFunc(others, func(a, b binaries) int { return cmp.Compare(b.major, a.major) })
	return append(preferred, others...)
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// appendInstallation adds dir if it has a complete server; client packages have a pg_config but no initdb.
// The version is asked of the program, because names of directories need not match it.
func appendInstallation(list []binaries, dir string) []binaries {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return list
	}
	out, err := output(filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return list
	}
	match := versionPattern.FindStringSubmatch(out)
	if match == nil {
		return list
	}
	major, err := strconv.Atoi(match[1])
	if err != nil {
		return list
	}
	return append(list, binaries{dir: dir, major: major})
}

// 10 s are for a program that hangs, such as a wrapper that waits for a terminal.
func output(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	return string(out), err
}
