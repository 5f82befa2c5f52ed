package embedpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// maxSocketPath fits into sun_path with its final NUL on macOS (104 bytes); Linux has 108.
	maxSocketPath = 103
	// elsewhere is the parent of root's clusters if the server's user has no access to the data directory.
	elsewhere = "/var/lib/ojsd"
)

// place is the location of a cluster and the user that runs it.
// It is filled by newPlace, chooseData and chooseSocket, under the lock of the Server.
type place struct {
	base      string // Config.DataDir, absolute: lock, log, port
	data      string // the parent of pgdata: base, or a directory below elsewhere
	blockedBy string // why data is not base: the directory that the server's user may not enter
	socket    string
	tmpSocket bool // socket was created for this run and is removed at its end
	runAs     *account
}

// account is the unprivileged user that runs PostgreSQL if this process is root: PostgreSQL refuses to run as root.
type account struct {
	name     string
	uid, gid uint32
}

// newPlace creates the directory.
func newPlace(dataDir string) (place, error) {
	if dataDir == "" {
		return place{}, errors.New("no data directory given")
	}
	base, err := filepath.Abs(dataDir)
	if err != nil {
		return place{}, fmt.Errorf("data directory: %w", err)
	}
	// As root the directory belongs to root, and the server's user needs access to what is in it.
	// Otherwise nobody else needs to look into it.
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755
	}
	if err := os.MkdirAll(base, mode); err != nil {
		return place{}, fmt.Errorf("data directory: %w", err)
	}
	// The checks for access below need the real parents.
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return place{}, fmt.Errorf("data directory: %w", err)
	}
	return place{base: base}, nil
}

func (p *place) pgdata() string  { return filepath.Join(p.data, "pgdata") }
func (p *place) logFile() string { return filepath.Join(p.base, "postgres.log") }

// chooseData puts the cluster into base if the server's user has access to it. It has none if, for example, base is below
// /root, of mode 0700. Then the cluster is below elsewhere, with a link named pgdata in base, so that later starts find it and
// removing base still means a new cluster.
func (p *place) chooseData() error {
	link := filepath.Join(p.base, "pgdata")
	p.data = p.base
	// The cluster was put elsewhere by an earlier start.
	if target, err := os.Readlink(link); err == nil {
		p.data = filepath.Dir(target)
	}
	var err error
	if p.runAs, err = serverAccount(p.pgdata()); err != nil || p.runAs == nil {
		return err
	}
	p.blockedBy = p.runAs.blockedBy(p.base)
	if p.data != p.base {
		return p.makeData() // it may have been removed since
	}
	if p.blockedBy == "" {
		return nil
	}
	// A cluster is there that this user may not reach: another one must not be made in its place.
	if _, err := os.Stat(link); err == nil {
		return fmt.Errorf("user %s, who has to run Postgres, may not enter %s: "+
			"allow it with chmod o+x, or choose another data directory", p.runAs.name, p.blockedBy)
	}
	// Each data directory has one of its own.
	p.data = filepath.Join(elsewhere, "dev-"+rand.Text()[:8])
	if err := p.makeData(); err != nil {
		return fmt.Errorf("user %s may not enter %s, and the data cannot be kept in %s instead: %w",
			p.runAs.name, p.blockedBy, elsewhere, err)
	}
	if err := os.Symlink(p.pgdata(), link); err != nil {
		return fmt.Errorf("link to the cluster: %w", err)
	}
	return nil
}

// makeData creates a parent of pgdata that is not base.
func (p *place) makeData() error {
	if err := os.MkdirAll(p.data, 0o755); err != nil {
		return fmt.Errorf("directory of the cluster: %w", err)
	}
	return nil
}

// chooseSocket puts the socket beside the cluster, or into a short temporary directory if the path is too long or the server's
// user has no access to it.
func (p *place) chooseSocket() error {
	// A restart keeps it, because clients know it.
	if p.socket != "" {
		return nil
	}
	dir := filepath.Join(p.base, "socket")
	if p.blockedBy == "" && socketFits(dir) {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("socket directory: %w", err)
		}
		p.socket = dir
		return p.give(dir)
	}
	parent := os.TempDir()
	if !socketFits(filepath.Join(parent, "ojsd-0123456789")) || p.runAs.blockedBy(parent) != "" {
		parent = "/tmp"
	}
	var err error
	if p.socket, err = os.MkdirTemp(parent, "ojsd-"); err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	p.tmpSocket = true
	return p.give(p.socket)
}

func socketFits(dir string) bool { return len(filepath.Join(dir, ".s.PGSQL.65535")) <= maxSocketPath }

// give makes the server's user the owner of a directory.
func (p *place) give(dir string) error {
	if p.runAs == nil {
		return nil
	}
	if err := os.Chown(dir, int(p.runAs.uid), int(p.runAs.gid)); err != nil {
		return fmt.Errorf("give directory to user %s: %w", p.runAs.name, err)
	}
	return nil
}

// serverAccount returns nil unless this process is root. The owner of an existing cluster runs it.
// nil means that PostgreSQL runs as this process.
func serverAccount(pgdata string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if info, err := os.Stat(pgdata); err == nil {
		// PostgreSQL refuses a cluster that another user owns.
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 {
			return &account{name: "id " + strconv.Itoa(int(stat.Uid)), uid: stat.Uid, gid: stat.Gid}, nil
		}
	}
	// The packages of the system make postgres; nobody is there without them.
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("root may not run Postgres, and there is no user postgres or nobody to do it: " +
		"start ojsd as another user")
}

// blockedBy returns the first directory on the way to dir (included) that the account may not enter, or "".
// A directory that does not exist blocks nobody; it will be made.
func (a *account) blockedBy(dir string) string {
	if a == nil {
		return ""
	}
	path := "/"
	for name := range strings.SplitSeq(dir, "/") {
		path = filepath.Join(path, name)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			continue
		}
		// Supplementary groups and access lists are not looked at, so it may say no too often, which only moves the cluster.
		enter := os.FileMode(0o001)
		switch {
		case stat.Uid == a.uid:
			enter = 0o100
		case stat.Gid == a.gid:
			enter = 0o010
		}
		if info.Mode()&enter == 0 {
			return path
		}
	}
	return ""
}

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
	// Variables are dropped that would redirect the programs or translate their messages, which are parsed: PGHOST or PGDATA of the user's
	// shell would lead to a server of the system.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "PG") || strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG")
	}), "LC_ALL=C")
	cmd.SysProcAttr = sysProcAttr(p.runAs)
	return cmd
}

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
		return nil // the start fails with PostgreSQL's own message
	}
	command := commandLine(pid)
	if !strings.Contains(command, s.place.pgdata()) {
		// Another program has the process id now, as is usual after the restart of a container, where ids are small.
		// PostgreSQL would take that program for a postmaster and refuse to start.
		if command != "" && !strings.Contains(command, "postgres") {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("remove stale postmaster.pid: %w", err)
			}
		}
		// Otherwise the process has ended, and PostgreSQL checks for orphaned backends itself; or it is another postgres, which
		// must not be stopped.
		return nil
	}
	// The postmaster is not a child of this process, so its end is polled for.
	s.log.InfoContext(ctx, "stopping the postgres of an earlier run", "pid", pid)
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
