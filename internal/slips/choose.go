package slips

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// choice is a test that reaches a slip.
type choice struct {
	test   *Test
	group  int     // 0: it is in the package of the slip, or in one that calls the query; 1: in another
	likely float64 // how likely it notices the slip, for each second that it takes
}

// chooser knows the sources of the tests.
type chooser struct {
	coverage *Coverage
	schema   *Schema
	queryOf  map[string][]*query // by the names of objects of the schema in their texts
	packages []*Package

	once  sync.Once
	tests map[*Test]*testSource
	files map[*Package]map[string]string // names and texts of test files
	rare  map[string]float64             // how much a word tells: the fewer tests have it, the more
	calls map[string]map[*Package]bool   // who calls a method of this name
}

type testSource struct {
	file  string
	words map[string]bool
}

// read reads the sources of all tests.
func (c *chooser) read() {
	c.tests, c.files, c.rare = map[*Test]*testSource{}, map[*Package]map[string]string{}, map[string]float64{}
	c.calls = map[string]map[*Package]bool{}
	count := map[string]int{}
	for _, known := range c.coverage.packages {
		files := map[string]string{}
		for _, name := range slices.Concat(known.pkg.TestGoFiles, known.pkg.XTestGoFiles) {
			src, _ := os.ReadFile(filepath.Join(known.pkg.Dir, name)) // without it the test is merely less likely
			files[name] = string(src)
		}
		c.files[known.pkg] = files
		for _, test := range known.Tests {
			c.tests[test] = &testSource{}
			for name, text := range files {
				if body, ok := functionBody(text, test.Name); ok {
					c.tests[test] = &testSource{name, words(test.Name + " " + body)}
				}
			}
			for word := range c.tests[test].words {
				count[word]++
			}
		}
	}
	for _, p := range c.packages {
		for _, name := range p.GoFiles {
			src, _ := os.ReadFile(filepath.Join(p.Dir, name))
			for _, call := range methodCall.FindAllSubmatch(src, -1) {
				callers := c.calls[string(call[1])]
				if callers == nil {
					callers = map[*Package]bool{}
					c.calls[string(call[1])] = callers
				}
				callers[p] = true
			}
		}
	}
	for word, n := range count {
		c.rare[word] = math.Log(float64(len(c.tests)+1) / float64(n))
	}
}

// functionBody is the text of a function of a file that gofmt has formatted.
func functionBody(text, name string) (string, bool) {
	_, body, ok := strings.Cut(text, "\nfunc "+name+"(")
	if line, _, _ := strings.Cut(body, "\n"); strings.HasSuffix(line, "}") {
		return line, ok
	}
	body, _, _ = strings.Cut(body, "\n}")
	return body, ok
}

var wordPattern = regexp.MustCompile(`[A-Z]?[a-z]{2,}|[A-Z]{2,}`)

// words are the words of names such as total_due_at and TotalTimeout, in lower case.
func words(text string) map[string]bool {
	found := map[string]bool{}
	for _, word := range wordPattern.FindAllString(text, -1) {
		found[strings.ToLower(word)] = true
	}
	return found
}

var methodCall = regexp.MustCompile(`\.([A-Z]\w+)\(`)

// ofName is how much more a word of the name of the function counts than one beside the slip.
const ofName = 3

const (
	// ofFile is how much more likely a test notices the slip whose file is named after the file of the slip.
	ofFile = 3
	// starting is what a test costs besides the time that it takes.
	starting = 500 * time.Millisecond
)

// around is how many bytes before and after a slip are compared with the sources of tests.
const around = 80

// choose returns the tests that reach a slip: those of its package first, and the likely and cheap ones before the others. One that takes a
// minute and knows the words of all features is among the last, because twenty others cost as much.
func (c *chooser) choose(s *Slip) []*Test {
	c.once.Do(c.read)
	steps := map[*Test]int{}
	if s.routine != nil {
		steps = c.reachingRoutine(s.routine.name)
	} else {
		for _, known := range c.coverage.packages {
			for _, test := range known.reaching(s.reach) {
				steps[test] = 0
			}
		}
	}
	src := s.file.src
	name, near := words(s.Func), words(string(src[max(0, s.start-around):min(len(src), s.end+around)]))
	stem := strings.TrimSuffix(filepath.Base(s.File), filepath.Ext(s.File))
	chosen := make([]choice, 0, len(steps))
	for test, away := range steps {
		one := choice{test: test, group: 1, likely: 1}
		if test.pkg == s.pkg || s.query != nil && c.calls[s.Func][test.pkg] {
			one.group = 0
		}
		for word := range c.tests[test].words {
			switch {
			case name[word]:
				one.likely += ofName * c.rare[word]
			case near[word]:
				one.likely += c.rare[word]
			}
		}
		if one.group == 0 && c.tests[test].file == stem+"_test.go" {
			one.likely *= ofFile
		}
		one.likely /= float64(1+away) * (starting + test.Took).Seconds()
		chosen = append(chosen, one)
	}
	slices.SortFunc(chosen, func(a, b choice) int {
		return cmp.Or(a.group-b.group, cmp.Compare(b.likely, a.likely), cmp.Compare(a.test.pkg.ImportPath+a.test.Name,
			b.test.pkg.ImportPath+b.test.Name))
	})
	tests := make([]*Test, len(chosen))
	for i, one := range chosen {
		tests[i] = one.test
	}
	return tests
}

// reachingRoutine finds the tests that run a query that leads to a function of the database, or whose source names it. The steps in
// between say how likely it is that the test sees the slip.
func (c *chooser) reachingRoutine(name string) map[*Test]int {
	found := map[*Test]int{}
	note := func(t *Test, steps int) {
		if before, ok := found[t]; !t.Failed && (!ok || steps < before) {
			found[t] = steps
		}
	}
	for object, steps := range c.schema.callers(name) {
		for _, known := range c.coverage.packages {
			direct, others := c.mentioning(known, object)
			for _, test := range direct {
				note(test, steps)
			}
			for _, test := range others {
				note(test, steps+1)
			}
			for _, q := range c.queryOf[object] {
				for _, test := range known.reaching([]span{q.reach}) {
					note(test, steps+1)
				}
			}
		}
	}
	return found
}

// mentioning returns the tests whose source names an object of the schema, and the others of these files, because a helper may name it too.
func (c *chooser) mentioning(known *covered, object string) (direct, others []*Test) {
	for _, name := range slices.Sorted(maps.Keys(c.files[known.pkg])) {
		text := c.files[known.pkg][name]
		if !names(text, object) {
			continue
		}
		for _, test := range known.Tests {
			switch body, ok := functionBody(text, test.Name); {
			case ok && names(body, object):
				direct = append(direct, test)
			case ok:
				others = append(others, test)
			}
		}
	}
	return direct, others
}

// perFunction is how many slips of one function a draw has at most, while others remain.
const perFunction = 2

// shuffled orders slips as they are drawn. Each kind is as likely as the others to be next, and within a kind each place.
// The place of a slip comes from a hash of the seed and its text, so that a change of code elsewhere moves few others.
func shuffled(all []*Slip, seed uint64) []*Slip {
	rnd := rand.New(rand.NewPCG(seed, 0))
	byKind := map[Kind][]*Slip{}
	for _, s := range all {
		byKind[s.Kind] = append(byKind[s.Kind], s)
	}
	var kinds []Kind
	for kind, list := range byKind {
		hashes := make(map[*Slip]string, len(list))
		for _, s := range list {
			hash := sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, s.Identity()))
			hashes[s] = string(hash[:])
		}
		slices.SortFunc(list, func(a, b *Slip) int {
			return cmp.Or(cmp.Compare(hashes[a], hashes[b]), a.start-b.start, a.end-b.end)
		})
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	var order, rest []*Slip
	taken := map[functionName]int{}
	for len(kinds) > 0 {
		i := rnd.IntN(len(kinds))
		list := byKind[kinds[i]]
		s := list[0]
		if taken[s.key]++; taken[s.key] <= perFunction {
			order = append(order, s)
		} else {
			rest = append(rest, s)
		}
		if byKind[kinds[i]] = list[1:]; len(list) == 1 {
			kinds = slices.Delete(kinds, i, i+1)
		}
	}
	return append(order, rest...)
}

// Draw takes the first n slips that compile, and numbers them.
func (t *Tree) Draw(ctx context.Context, all []*Slip, seed uint64, n int, sql sqlCheck) ([]*Slip, error) {
	var drawn []*Slip
	for order := shuffled(all, seed); len(drawn) < n && len(order) > 0; {
		batch := order[:min(len(order), n-len(drawn)+n/4+1)]
		order = order[len(batch):]
		invalid, err := t.invalid(ctx, batch, sql)
		if err != nil {
			return nil, err
		}
		for _, s := range batch {
			if !invalid[s] && len(drawn) < n {
				drawn = append(drawn, s)
				s.ID = len(drawn)
			}
		}
	}
	return drawn, nil
}

// sqlCheck says whether PostgreSQL takes a query or the statement that creates a function.
type sqlCheck func(ctx context.Context, s *Slip) (bool, error)

// invalid finds the slips that do not compile.
func (t *Tree) invalid(ctx context.Context, batch []*Slip, sql sqlCheck) (map[*Slip]bool, error) {
	invalid := map[*Slip]bool{}
	byPackage := map[*Package][]*Slip{}
	for i, s := range batch {
		s.ID = i + 1 // until the draw is complete
		switch {
		case s.query == nil && s.routine == nil:
			byPackage[s.pkg] = append(byPackage[s.pkg], s)
		default:
			ok, err := sql(ctx, s)
			if err != nil {
				return nil, err
			}
			invalid[s] = !ok
		}
	}
	for p, list := range byPackage {
		for _, s := range t.notCompiled(p, list) {
			invalid[s] = true
		}
	}
	return invalid, nil
}
