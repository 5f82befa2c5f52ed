package embedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

// choose does not touch the machine, for tests.
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

// output waits 10 s for a program that hangs, such as a wrapper that waits for a terminal.
func output(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	return string(out), err
}

// packageManager is one way to install PostgreSQL: a shell script, so that sudo asks once.
// The script must not start a server of the system.
type packageManager struct {
	program string
	script  string
	asUser  bool // refuses to be run by root
}

// packageManagers in the order they are looked for.
var packageManagers = []packageManager{
	{program: "apt-get", script: aptScript},
	{program: "dnf", script: "dnf install -y postgresql-server"},
	{program: "apk", script: "apk add --no-cache postgresql"},
	{program: "brew", script: "brew install postgresql@17", asUser: true},
}

// aptScript prevents Debian from creating and starting a cluster of the system: it writes a drop-in file for the time of the
// installation and removes it afterwards.
const aptScript = `set -e
export DEBIAN_FRONTEND=noninteractive
dropin=/etc/postgresql-common/createcluster.d
trap 'rm -f $dropin/ojsd.conf' EXIT
mkdir -p $dropin
echo 'create_main_cluster = false' > $dropin/ojsd.conf
apt-get update
apt-get install -y --no-install-recommends postgresql`

// Install installs PostgreSQL with the package manager of the machine, whose output goes to stderr. It does nothing if a
// usable version is installed.
// It runs only if the user asked for it, by `ojsd dev` without --no-install or by make.
func Install(ctx context.Context) error {
	if _, err := findBinaries(0); err == nil {
		return nil
	}
	if err := install(ctx, os.Stderr); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	_, err := findBinaries(0)
	return err
}

// install changes nothing without root and sudo and says what to run.
func install(ctx context.Context, out io.Writer) error {
	i := slices.IndexFunc(packageManagers, func(m packageManager) bool {
		_, err := exec.LookPath(m.program)
		return err == nil
	})
	if i < 0 {
		return fmt.Errorf("%w, and no package manager that ojsd knows was found: install PostgreSQL %d or newer, "+
			"or set DATABASE_URL to use a server that runs already", ErrNotInstalled, minMajor)
	}
	manager := packageManagers[i]
	// One script, so that sudo asks for a password once.
	command := []string{"sh", "-c", manager.script}
	if os.Geteuid() != 0 && !manager.asUser {
		// Images of containers often have none.
		if _, err := exec.LookPath("sudo"); err != nil {
			return fmt.Errorf("%w, and only root may install it: run `%s install postgresql` as root, "+
				"or set DATABASE_URL to use a server that runs already", ErrNotInstalled, manager.program)
		}
		command = append([]string{"sudo"}, command...)
	}
	_, err := fmt.Fprintf(out, "ojsd: PostgreSQL is not installed; installing it with %s\n", manager.program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out, out // sudo may ask for a password
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", manager.program, err)
	}
	return nil
}
