package embedpg

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// clusterMajor is the PostgreSQL version that created the cluster, 0 if there is no cluster yet.
// The file is written by initdb. A directory without it is not taken for a cluster.
func (p *place) clusterMajor() int {
	text, err := os.ReadFile(filepath.Join(p.pgdata(), "PG_VERSION"))
	if err != nil {
		return 0
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return major
}

// initCluster runs initdb, or pg_basebackup for a standby, unless the cluster exists. It works in a directory beside the final one
// and renames it at the end, because the result of a killed initdb cannot be told from a complete cluster.
// The lock of the data directory is held, so no other process does the same.
func (p *place) initCluster(ctx context.Context, bin binaries, cfg *Config) error {
	if p.clusterMajor() > 0 {
		return nil
	}
	tmp := p.pgdata() + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove unfinished cluster: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("create cluster: %w", err)
	}
	if err := p.give(tmp); err != nil {
		return err
	}
	var err error
	if cfg.primary != "" {
		err = p.baseBackup(ctx, bin, tmp, cfg.primary)
	} else {
		err = p.initdb(ctx, bin, tmp, cfg.Fsync)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, p.pgdata()); err != nil {
		return fmt.Errorf("create cluster: %w", err)
	}
	return nil
}

// initdb creates the cluster. The collation is C, so that order and index contents do not depend on the machine's locales.
// C.UTF-8 also maps the case of letters outside ASCII, but not every system has it.
// trust is no risk beyond that of the package: the server listens on loopback only. The second locale is tried only if the
// first is unknown.
func (p *place) initdb(ctx context.Context, bin binaries, dir string, fsync bool) error {
	args := []string{"-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-instructions"}
	if !fsync {
		args = append(args, "--no-sync")
	}
	var out bytes.Buffer
	var err error
	for _, locale := range []string{"C.UTF-8", "C"} {
		out.Reset()
		cmd := p.command(ctx, bin.path("initdb"), append(args, "--locale="+locale)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err = runProcess(cmd); err == nil {
			return nil
		}
		if !strings.Contains(out.String(), "invalid locale") {
			break
		}
	}
	return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(out.String()))
}

// command prepares a PostgreSQL program to run as the server's user, in a process group of its own: a Ctrl-C in the
// terminal goes to the whole foreground group, and Postgres must not stop before the server that uses it.
func (p *place) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/" // the server's user may have no access to the current directory
	cmd.Env = serverEnv(os.Environ())
	cmd.SysProcAttr = sysProcAttr(p.runAs)
	return cmd
}

// serverEnv drops variables that would redirect the PostgreSQL programs or translate their messages, which are parsed.
// PGHOST or PGDATA of the user's shell would otherwise lead to a server of the system.
func serverEnv(env []string) []string {
	kept := []string{"LC_ALL=C"}
	for _, entry := range env {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			kept = append(kept, entry)
		}
	}
	return kept
}
