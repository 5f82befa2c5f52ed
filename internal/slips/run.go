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
	CPU      float64 `json:"cpu_seconds"`      // of the processors, for the tests and without PostgreSQL
	Change   string  `json:"diff"`

	compiled time.Duration
}

const (
	// firstBatch and perBatch are the most tests of a process, and firstTime and batchTime how long they took by themselves, unless one
	// alone took longer. The first ones are small, because the likely tests come first; in a large one more tests wait at the same time.
	firstBatch, firstTime = 4, 5 * time.Second
	perBatch, batchTime   = 20, 20 * time.Second
	// patience is what a batch may take, above a multiple of what its tests took by themselves.
	patience         = 10 * time.Second
	patienceMultiple = 3
)

// runner runs tests with slips.
type runner struct {
	tree    *Tree
	chooser *chooser
	servers *servers
	budget  time.Duration // for the tests of one slip
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
			_, _ = fmt.Fprintf(r.log, "slips: %d/%d %-9s %5.1f s, %5.1f of processors  %-11s %s:%d %s %s %s\n",
				s.ID, len(drawn), result.Verdict, result.Seconds, result.CPU, s.Kind, s.File, s.Line, s.Func, result.How, result.By)
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
	for budget := r.budget; ; {
		batch := nextBatch(tests, result.Run, budget)
		if len(batch) == 0 {
			break
		}
		tests = slices.DeleteFunc(tests, func(t *Test) bool { return slices.Contains(batch, t) })
		began, compiled := time.Now(), result.compiled
		noticed, err := r.try(ctx, result, batch, db)
		if err != nil {
			return nil, err
		}
		// Tests that run together take less than one after the other; on a busy machine they take more, which is no fault of theirs.
		budget -= min(time.Since(began)-(result.compiled-compiled), took(batch))
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

// try runs a batch. Unless a test panicked, what failed is run once more, and what hung with more time, and then without the slip: what
// fails for another reason, such as a busy machine, passes then or fails without it, too, and the rest of the batch goes on without it.
func (r *runner) try(ctx context.Context, result *Result, batch []*Test, db database) (noticed bool, err error) {
	for s := result.Slip; len(batch) > 0; {
		failed, err := r.process(ctx, result, batch, attempt{db, s.ID, 1})
		if failed == nil || err != nil {
			return false, err
		}
		result.By, result.How = r.tree.path(batch[0].pkg)+" "+failed.test, failed.how
		if failed.how == "panic" {
			return true, nil
		}
		suspects := batch
		top, _, _ := strings.Cut(failed.test, "/")
		if i := slices.IndexFunc(batch, func(t *Test) bool { return t.Name == top }); i >= 0 {
			suspects = batch[i : i+1]
		}
		again, err := r.process(ctx, result, suspects, attempt{db, s.ID, 2})
		if err != nil {
			return false, err
		}
		without := (*failure)(nil)
		if again != nil && (failed.how == timeout || again.how == timeout) && !s.needsOwnBuild() {
			without, err = r.process(ctx, result, suspects, attempt{database{db.server, dbName}, 0, 2})
			if err != nil {
				return false, err
			}
		}
		if again != nil && without == nil {
			return true, nil
		}
		result.Unstable = result.By + " " + result.How
		result.By, result.How = "", ""
		batch = slices.DeleteFunc(slices.Clone(batch), func(t *Test) bool { return slices.Contains(suspects, t) })
	}
	return false, nil
}

type failure struct{ test, how string }

// timeout is how tests fail that do not end.
const timeout = "timeout"

// attempt is how a process runs tests.
type attempt struct {
	db     database
	active int // the slip that is in force; 0: none
	times  int // what the tests may take is multiplied by it
}

var failedTest = regexp.MustCompile(`^\s*--- FAIL: (\S+)`)

// process runs tests of one package with a slip until one fails.
func (r *runner) process(ctx context.Context, result *Result, batch []*Test, how attempt) (*failure, error) {
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
	names := make([]string, len(batch))
	for i, test := range batch {
		names[i] = test.Name
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(how.times)*(patience+patienceMultiple*took(batch)))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-test.v", "-test.failfast", "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir = p.Dir
	if cmd.Env, err = how.db.environment(ctx, r.tree.usesDatabase(p)); err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", activeVariable, how.active),
		"GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	failed, err := watch(ctx, cmd)
	if state := cmd.ProcessState; state != nil {
		result.CPU += (state.UserTime() + state.SystemTime()).Seconds()
	}
	return failed, err
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
		return &failure{"", timeout}, nil
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

// nextBatch takes tests for the next process: the first one that the budget permits, and those of its package that come soon after it. ran
// is how many have run; if the budget permits none at all, one runs nevertheless.
func nextBatch(tests []*Test, ran int, budget time.Duration) (batch []*Test) {
	most, limit := perBatch, min(batchTime, budget)
	if ran < firstBatch {
		most, limit = firstBatch, min(firstTime, budget)
	}
	for i, t := range tests {
		isFirst := len(batch) == 0 && t.Took <= budget
		isMore := len(batch) > 0 && len(batch) < most && i < 3*most && t.pkg == batch[0].pkg && took(batch)+t.Took <= limit
		if isFirst || isMore {
			batch = append(batch, t)
		}
	}
	if len(batch) == 0 && ran == 0 {
		return slices.Clone(tests[:min(len(tests), 1)]) // the caller deletes them from tests
	}
	return batch
}

// took is how long tests took by themselves.
func took(tests []*Test) (sum time.Duration) {
	for _, t := range tests {
		sum += t.Took
	}
	return sum
}
