package embedpg

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	// maxSocketPath fits into sun_path with its final NUL on macOS (104 bytes); Linux has 108.
	maxSocketPath = 103
	// elsewhere is the parent of root's clusters if the server's user has no access to the data directory.
	elsewhere = "/var/lib/ojsd"
)

// place is the location of a cluster and the user that runs it.
// It is filled by newPlace and resolve, under the lock of the Server.
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

// It creates the directory.
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

// resolve chooses the user, the directory of the cluster and that of the socket.
// It may run again for a restart.
func (p *place) resolve() error {
	if err := p.chooseData(); err != nil {
		return err
	}
	return p.chooseSocket()
}

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

func (p *place) removeSocketDir() {
	if p.tmpSocket {
		_ = os.RemoveAll(p.socket) // if it fails, the system cleans the temporary directory
		p.socket, p.tmpSocket = "", false
	}
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
		if info, err := os.Stat(path); err == nil && !a.mayEnter(info) {
			return path
		}
	}
	return ""
}

// Supplementary groups and access lists are not looked at, so it may say no too often, which only moves the cluster.
func (a *account) mayEnter(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return true
	case stat.Uid == a.uid:
		return info.Mode()&0o100 != 0
	case stat.Gid == a.gid:
		return info.Mode()&0o010 != 0
	default:
		return info.Mode()&0o001 != 0
	}
}
