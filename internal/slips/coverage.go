package slips

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// alone is how long a test may take that runs by itself.
const alone = 2 * time.Minute

// Coverage says which test runs which code.
type Coverage struct {
	packages []*covered
}

// covered is the coverage of the tests of one package, as it is kept in the cache.
type covered struct {
	Key    string // of the code that the tests link
	Blocks []block
	Tests  []*Test

	pkg *Package
}

// block is a range of lines that run together.
type block struct {
	Path     string
	From, To int
}

// Test is a test function, with its subtests.
type Test struct {
	Name    string
	Source  string // a hash of the function
	Took    time.Duration
	Failed  bool   // by itself, without a slip: it is not used
	Reaches []byte // a bit for each block
	Size    int    // how many blocks

	pkg *Package
}

// reaches reports whether the test runs a block. Blocks that were found after the test was measured have no bit.
func (t *Test) reaches(block int) bool {
	return block/8 < len(t.Reaches) && t.Reaches[block/8]&(1<<(block%8)) != 0
}

// cover reads the coverage of the tests of packages from the cache, and measures what is missing.
func (t *Tree) cover(ctx context.Context, cfg Config, packages []*Package, servers *servers) (*Coverage, error) {
	cache := cfg.Cache
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(dir, "ojsd-slips")
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return nil, err
	}
	c := &Coverage{}
	for _, p := range packages {
		if !p.hasTests() {
			continue
		}
		known, err := t.coverPackage(ctx, p, filepath.Join(cache, strings.ReplaceAll(t.path(p), "/", "_")+".json"), servers, cfg.Log)
		if err != nil {
			return nil, err
		}
		c.packages = append(c.packages, known)
	}
	return c, nil
}

func (t *Tree) coverPackage(ctx context.Context, p *Package, cached string, servers *servers, log io.Writer) (*covered, error) {
	key, err := t.codeKey(p)
	if err != nil {
		return nil, err
	}
	sources, err := testSources(p)
	if err != nil {
		return nil, err
	}
	known := &covered{}
	if text, err := os.ReadFile(cached); err == nil {
		if err := json.Unmarshal(text, known); err != nil || known.Key != key {
			known = &covered{}
		}
	}
	known.Key = key
	before := len(known.Tests)
	known.Tests = slices.DeleteFunc(known.Tests, func(test *Test) bool { return sources[test.Name] != test.Source })
	if kept := len(known.Tests); before != kept || kept != len(sources) {
		start := time.Now()
		if err := t.measure(ctx, p, known, sources, servers); err != nil {
			return nil, fmt.Errorf("coverage of %s: %w", t.path(p), err)
		}
		_, _ = fmt.Fprintf(log, "slips: coverage of %s: %d tests in %s\n", t.path(p), len(known.Tests)-kept,
			time.Since(start).Round(time.Second))
		for _, test := range known.Tests {
			if test.Failed {
				_, _ = fmt.Fprintf(log, "slips: %s %s fails by itself and is not used\n", t.path(p), test.Name)
			}
		}
		text, err := json.Marshal(known)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(cached, text, 0o600); err != nil {
			return nil, err
		}
	}
	known.pkg = p
	for _, test := range known.Tests {
		test.pkg = p
	}
	return known, nil
}

// testSources are hashes of the test functions of a package, by their names.
func testSources(p *Package) (map[string]string, error) {
	sources := map[string]string{}
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return nil, err
		}
		for _, match := range testFunction.FindAllStringSubmatch(string(text), -1) {
			body, _ := functionBody(string(text), match[1])
			hash := sha256.Sum256([]byte(body))
			sources[match[1]] = hex.EncodeToString(hash[:8])
		}
	}
	return sources, nil
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\((?:\w+ \*testing\.[TF])?\)`)

// codeKey is a hash of the files of all packages of the repository that the tests link, without the tests: a test that stays as it is
// is not measured again because another one was added. What a helper of tests runs may be out of date then.
func (t *Tree) codeKey(p *Package) (string, error) {
	hash := sha256.New()
	deps := t.testDeps(p)
	for _, dep := range t.Packages {
		if !deps[dep.ImportPath] {
			continue
		}
		files := slices.Concat(dep.GoFiles, dep.EmbedFiles)
		for _, name := range files {
			src, err := os.ReadFile(filepath.Join(dep.Dir, name))
			if err != nil {
				return "", err
			}
			_, _ = fmt.Fprintf(hash, "%s/%s %d\n", dep.ImportPath, name, len(src))
			_, _ = hash.Write(src)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// measure runs each test of a package that is not known yet, in a process of its own: tests that run in parallel share their counters.
func (t *Tree) measure(ctx context.Context, p *Package, known *covered, sources map[string]string, servers *servers) error {
	dir, err := os.MkdirTemp("", "ojsd-slips-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "package.test")
	if err := build(ctx, p, binary, "-cover", "-covermode=set", "-coverpkg="+t.coverPattern()); err != nil {
		return err
	}
	m := measurement{tree: t, known: known, sources: sources, ids: map[block]int{}, sets: map[*Test]map[int]bool{}}
	for id, b := range known.Blocks {
		m.ids[b] = id
	}
	measured := map[string]bool{}
	for _, test := range known.Tests {
		measured[test.Name] = true
	}
	var g errgroup.Group
	g.SetLimit(servers.workers)
	for name := range sources {
		if measured[name] {
			continue
		}
		g.Go(func() error {
			server := servers.take()
			defer servers.give(server)
			return m.run(ctx, p, binary, name, filepath.Join(dir, name), server)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	m.finish()
	return nil
}

// coverPattern matches the packages of the module at the root and of those below it.
func (t *Tree) coverPattern() string {
	for _, p := range t.Packages {
		if p.Module != nil && p.Module.Dir == t.Root {
			return p.Module.Path + "/..."
		}
	}
	return "./..."
}

func build(ctx context.Context, p *Package, binary string, flags ...string) error {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, ".")...)
	cmd.Dir = p.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w: %s", p.ImportPath, err, out)
	}
	return nil
}

type measurement struct {
	tree    *Tree
	sources map[string]string

	mu    sync.Mutex
	known *covered
	ids   map[block]int
	sets  map[*Test]map[int]bool
}

func (m *measurement) run(ctx context.Context, p *Package, binary, name, profile string, server *server) error {
	ctx, cancel := context.WithTimeout(ctx, alone)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+name+"$", "-test.coverprofile", profile)
	cmd.Dir = p.Dir
	env, err := database{server, dbName}.environment(ctx, m.tree.usesDatabase(p))
	if err != nil {
		return err
	}
	cmd.Env = env
	start := time.Now()
	failed := runGroup(cmd) != nil
	took := time.Since(start)
	set := map[int]bool{}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.read(profile, set); err != nil {
		failed = true
	}
	test := &Test{Name: name, Source: m.sources[name], Took: took, Failed: failed, Size: len(set)}
	m.known.Tests = append(m.known.Tests, test)
	m.sets[test] = set
	return os.RemoveAll(profile)
}

// read reads a coverage profile: "import/path/file.go:from.column,to.column statements count".
func (m *measurement) read(profile string, set map[int]bool) error {
	f, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	dirs := map[string]string{}
	for _, p := range m.tree.Packages {
		dirs[p.ImportPath] = m.tree.path(p)
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if !strings.HasSuffix(line, " 1") {
			continue
		}
		file, rest, _ := strings.Cut(line, ":")
		var b block
		var column, endColumn, n, count int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.From, &column, &b.To, &endColumn, &n, &count); err != nil {
			continue
		}
		b.Path = path.Join(dirs[path.Dir(file)], path.Base(file))
		id, ok := m.ids[b]
		if !ok {
			id = len(m.known.Blocks)
			m.ids[b] = id
			m.known.Blocks = append(m.known.Blocks, b)
		}
		set[id] = true
	}
	return nil
}

func (m *measurement) finish() {
	for test, set := range m.sets {
		test.Reaches = make([]byte, len(m.known.Blocks)/8+1)
		for id := range set {
			test.Reaches[id/8] |= 1 << (id % 8)
		}
	}
	slices.SortFunc(m.known.Tests, func(a, b *Test) int { return cmp.Compare(a.Name, b.Name) })
}

// reaching returns the tests of a package that run code of the spans.
func (c *covered) reaching(spans []span) (tests []*Test) {
	var blocks []int
	for id, b := range c.Blocks {
		for _, s := range spans {
			if b.Path == s.path && b.From <= s.to && s.from <= b.To {
				blocks = append(blocks, id)
				break
			}
		}
	}
	for _, test := range c.Tests {
		if !test.Failed && slices.ContainsFunc(blocks, test.reaches) {
			tests = append(tests, test)
		}
	}
	return tests
}
