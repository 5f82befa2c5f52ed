package slips

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Verdict is what became of a slip.
type Verdict string

// The verdicts.
const (
	Noticed   Verdict = "noticed"   // a test failed, did not end or could not begin
	Survived  Verdict = "survived"  // all tests passed that were run
	Unreached Verdict = "unreached" // no test runs the code
	Unseen    Verdict = "unseen"    // survived, and unseen.txt says why
)

// Result is the verdict on a slip.
type Result struct {
	*Slip

	Verdict  Verdict `json:"verdict"`
	By       string  `json:"by,omitempty"`     // the test that noticed it
	How      string  `json:"how,omitempty"`    // failed, panic, timeout
	Unstable string  `json:"unstable"`         // a test that failed once and passed when it was repeated
	Reason   string  `json:"reason,omitempty"` // of unseen.txt
	Reaching int     `json:"reaching"`         // tests that run the code
	Run      int     `json:"run"`              // tests that were run
	Seconds  float64 `json:"seconds"`          // without the compilation of test binaries, which all slips share
	Change   string  `json:"diff"`

	compiled time.Duration
}

const (
	// perBatch is the most tests of one process. The first batches are small, because the likely tests come first.
	perBatch = 10
	// patience is what a batch may take, above a multiple of what its tests took by themselves.
	patience         = 10 * time.Second
	patienceMultiple = 3
)

// runner runs tests with slips.
type runner struct {
	tree    *Tree
	chooser *chooser
	servers *servers
	budget  time.Duration // for the tests of one slip, as long as they took by themselves
	dir     string
	overlay string // with all slips of functions and queries
	unseen  map[string]string
	log     io.Writer

	building sync.Mutex

	mu       sync.Mutex
	binaries map[string]*binary
}

// binary is a test binary, built once.
type binary struct {
	once sync.Once
	path string
	err  error
}

// run finds out about all slips, several at a time, and returns the results in the order of the draw.
func (r *runner) run(ctx context.Context, drawn []*Slip) ([]*Result, error) {
	results := make([]*Result, len(drawn))
	var logging sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.servers.workers)
	for i, s := range drawn {
		g.Go(func() error {
			server := r.servers.take()
			defer r.servers.give(server)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			result, err := r.one(ctx, s, server)
			if err != nil {
				return fmt.Errorf("slip %d: %w", s.ID, err)
			}
			results[i] = result
			logging.Lock()
			defer logging.Unlock()
			_, _ = fmt.Fprintf(r.log, "slips: %d/%d %-9s %5.1f s  %-11s %s:%d %s %s %s\n", s.ID, len(drawn), result.Verdict, result.Seconds, s.Kind, s.File, s.Line, s.Func, result.How, result.By)
			return nil
		})
	}
	return results, g.Wait()
}

func (r *runner) one(ctx context.Context, s *Slip, server *server) (*Result, error) {
	start := time.Now()
	result := &Result{Slip: s, Verdict: Survived, Change: s.Diff()}
	defer func() { result.Seconds = (time.Since(start) - result.compiled).Seconds() }()
	tests := r.chooser.choose(s)
	result.Reaching = len(tests)
	if len(tests) == 0 {
		result.Verdict = Unreached
	}
	db := database{server, dbName}
	if s.routine != nil && len(tests) > 0 {
		if err := server.change(ctx, s); err != nil {
			return nil, err
		}
		db.template = changedName
	}
	for _, batch := range batches(tests, r.budget) {
		noticed, err := r.try(ctx, result, batch, db)
		if err != nil {
			return nil, err
		}
		result.Run += len(batch)
		if noticed {
			result.Verdict = Noticed
			break
		}
	}
	if reason, ok := r.unseen[s.Identity()]; ok && result.Verdict == Survived {
		result.Verdict, result.Reason = Unseen, reason
	}
	return result, server.clean(ctx)
}

// try runs a batch. Unless a test panicked, what failed is run once more, and what hung with more time: what fails for another reason than
// the slip, such as a busy machine, passes then, and the rest of the batch goes on without it.
func (r *runner) try(ctx context.Context, result *Result, batch []*Test, db database) (noticed bool, err error) {
	for len(batch) > 0 {
		failure, err := r.process(ctx, result, batch, db, 1)
		if failure == nil || err != nil {
			return false, err
		}
		result.By, result.How = r.tree.path(batch[0].pkg)+" "+failure.test, failure.how
		if failure.how == "panic" {
			return true, nil
		}
		suspects := batch
		top, _, _ := strings.Cut(failure.test, "/")
		if i := slices.IndexFunc(batch, func(t *Test) bool { return t.Name == top }); i >= 0 {
			suspects = batch[i : i+1]
		}
		again, err := r.process(ctx, result, suspects, db, 2)
		if err != nil {
			return false, err
		}
		if again != nil {
			return true, nil
		}
		result.Unstable = result.By + " " + result.How
		result.By, result.How = "", ""
		batch = slices.DeleteFunc(slices.Clone(batch), func(t *Test) bool { return slices.Contains(suspects, t) })
	}
	return false, nil
}

type failure struct{ test, how string }

var failedTest = regexp.MustCompile(`^\s*--- FAIL: (\S+)`)

// process runs tests of one package with a slip until one fails. times multiplies the time that it may take.
func (r *runner) process(ctx context.Context, result *Result, batch []*Test, db database, times int) (*failure, error) {
	s, p, overlay := result.Slip, batch[0].pkg, r.overlay
	if s.needsOwnBuild() {
		overlay = filepath.Join(r.dir, fmt.Sprint(s.ID), "overlay.json")
	}
	start := time.Now()
	path, err := r.build(ctx, p, s, overlay)
	result.compiled += time.Since(start)
	if err != nil {
		return nil, err
	}
	names, limit := make([]string, len(batch)), patience
	for i, test := range batch {
		names[i] = test.Name
		limit += patienceMultiple * test.Took
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(times)*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-test.v", "-test.failfast", "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir = p.Dir
	if cmd.Env, err = db.environment(ctx, r.tree.usesDatabase(p)); err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", activeVariable, s.ID), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	return watch(ctx, cmd)
}

// watch runs a test process up to the first line that says that a test has failed.
func watch(ctx context.Context, cmd *exec.Cmd) (*failure, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = time.Second
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_ = in.Close()
	found := make(chan *failure, 1)
	go func() {
		defer close(found)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<26)
		for lines.Scan() {
			line := lines.Text()
			match := failedTest.FindStringSubmatch(line)
			switch {
			case match != nil:
				found <- &failure{match[1], "failed"}
			case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
				found <- &failure{"(" + line + ")", "panic"}
			default:
				continue
			}
			_ = killGroup(cmd) // its end is noticed below
			_, _ = io.Copy(io.Discard, out)
			return
		}
	}()
	err = cmd.Wait()
	_ = killGroup(cmd)
	first := <-found
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, ctx.Err()
	case first != nil:
		return first, nil
	case ctx.Err() != nil:
		return &failure{"", "timeout"}, nil
	case err != nil:
		return &failure{"(" + err.Error() + ")", "failed"}, nil
	}
	return nil, nil
}

// needsOwnBuild says that the slip cannot be switched on in a process.
func (s *Slip) needsOwnBuild() bool { return s.decl == nil && s.query == nil && s.routine == nil }

func (r *runner) build(ctx context.Context, p *Package, s *Slip, overlay string) (string, error) {
	key := overlay + " " + p.ImportPath
	r.mu.Lock()
	b := r.binaries[key]
	if b == nil {
		b = &binary{path: filepath.Join(r.dir, fmt.Sprintf("%d.test", len(r.binaries)))}
		r.binaries[key] = b
	}
	r.mu.Unlock()
	b.once.Do(func() {
		if s.needsOwnBuild() {
			dir := filepath.Dir(overlay)
			if b.err = os.MkdirAll(dir, 0o750); b.err == nil {
				_, b.err = r.tree.writeOverlay(dir, []*Slip{s})
			}
		}
		if b.err == nil {
			// One at a time: two builds at once compile the packages that both link twice.
			r.building.Lock()
			defer r.building.Unlock()
			b.err = build(ctx, p, b.path, "-overlay="+overlay)
		}
	})
	return b.path, b.err
}

// batches cuts the tests into processes: the likely ones of each package, then more of each, up to the budget.
func batches(tests []*Test, budget time.Duration) (all [][]*Test) {
	var packages []*Package
	byPackage := map[*Package][]*Test{}
	for _, t := range tests {
		if byPackage[t.pkg] == nil {
			packages = append(packages, t.pkg)
		}
		byPackage[t.pkg] = append(byPackage[t.pkg], t)
	}
	for size := 4; len(packages) > 0; size = perBatch {
		packages = slices.DeleteFunc(packages, func(p *Package) bool {
			if budget <= 0 {
				return true
			}
			list := byPackage[p]
			n, took := 0, time.Duration(0)
			for n < len(list) && n < size && (n == 0 || took+list[n].Took < patience/2) {
				took += list[n].Took
				n++
			}
			budget -= took
			all = append(all, list[:n])
			byPackage[p] = list[n:]
			return n == len(list)
		})
	}
	return all
}
