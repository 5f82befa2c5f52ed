package slips

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	subject = `package m

import "sync"

const most = 3

var mu sync.Mutex

// Tested is 0 below 1, and at most 3.
func Tested(n int, _ string) int {
	mu.Lock()
	defer mu.Unlock()
	return max(min(n, most), 0)
}

type box[T any] struct{ value T }

func (b *box[T]) get(...T) T { return b.value }

func generic[T comparable](a, b T) bool { return a == b }

func half(n int) bool { return n > 0 }

func untested(n int) bool { return n > 0 }

func chosen(n int) bool {
	switch {
	case n < 5:
		return true
	}
	return false
}
`
	subjectTest = `package m

import "testing"

func TestTested(t *testing.T) {
	for n, want := range map[int]int{-1: 0, 2: 2, 3: 3, 9: 3} {
		if got := Tested(n, ""); got != want {
			t.Fatal(n, got)
		}
	}
	if chosen(5) || !chosen(4) {
		t.Fatal("chosen")
	}
	if (&box[int]{5}).get(1, 2) != 5 || !generic(1, 1) {
		t.Fatal("generic")
	}
}

func TestHalf(t *testing.T) { half(1) }
`
)

func TestRun(t *testing.T) {
	t.Parallel()
	tree := module(t, map[string]string{"m.go": subject, "m_test.go": subjectTest})
	var log bytes.Buffer
	cfg := Config{Root: tree.Root, Seed: 1, N: 100, Workers: 2, Budget: time.Minute, Cache: t.TempDir(), Log: &log}
	report, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	verdicts := map[string]Verdict{}
	for _, r := range report.Results {
		verdicts[r.Func+" "+r.Old+" => "+r.New] = r.Verdict
	}
	require.Equal(t, Noticed, verdicts["Tested min => max"])
	require.Equal(t, Noticed, verdicts["Tested max => min"])
	require.Equal(t, Noticed, verdicts["(package level) 3 => 4"])
	require.Equal(t, Noticed, verdicts["Tested defer mu.Unlock() => {}"], "a test that hangs notices it")
	require.Equal(t, Noticed, verdicts["generic == => !="])
	require.Equal(t, Survived, verdicts["half > => >="])
	require.Equal(t, Unreached, verdicts["untested > => >="])
	require.Equal(t, Noticed, verdicts["chosen < => <="])
	require.Contains(t, log.String(), "coverage of .: 2 tests")

	log.Reset()
	cfg.N, cfg.IDs = 1, []int{5}
	again, err := Run(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, again.Results, 1)
	require.Equal(t, report.Results[4].Identity(), again.Results[0].Identity())
	require.NotContains(t, log.String(), "coverage of", "it is kept")

	more := "\nfunc TestUntested(t *testing.T) {\n\tif untested(0) {\n\t\tt.Fatal()\n\t}\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(tree.Root, "m_test.go"), []byte(subjectTest+more), 0o600))
	cfg.N, cfg.IDs = 100, nil
	again, err = Run(t.Context(), cfg)
	require.NoError(t, err)
	require.Contains(t, log.String(), "coverage of .: 1 tests", "only a new test is measured")
	for _, r := range again.Results {
		if r.Func == "untested" && r.New == ">=" {
			require.Equal(t, Noticed, r.Verdict)
		}
	}

	file := filepath.Join(t.TempDir(), "slips.json")
	require.NoError(t, report.WriteJSON(file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, json.Valid(text))
	var table strings.Builder
	require.NoError(t, report.WriteTable(&table))
	require.Contains(t, table.String(), "- func half(n int) bool { return n > 0 }\n+ func half(n int) bool { return n >= 0 }\n")
}

// The tests of one module notice slips in another, although the other requires an older version of a library.
func TestRunModules(t *testing.T) {
	t.Parallel()
	const requires = "module example.com/m%s\n\ngo 1.26\n\nrequire example.com/lib v0.%d.0\n\nreplace example.com/lib => %s\n"
	tree := module(t, map[string]string{
		"go.mod":    fmt.Sprintf(requires, "", 2, "./testdata/lib2") + "\nrequire example.com/m/sub v0.0.0\n\nreplace example.com/m/sub => ./sub\n",
		"m.go":      "package m\n\nimport \"example.com/lib\"\n\nvar _ = lib.New\n",
		"m_test.go": "package m\n\nimport (\n\t\"testing\"\n\n\t\"example.com/m/sub\"\n)\n\nfunc TestSub(t *testing.T) {\n\tif !sub.Positive(1) {\n\t\tt.Fatal()\n\t}\n}\n",

		"sub/go.mod":      fmt.Sprintf(requires, "/sub", 1, "../testdata/lib1"),
		"sub/sub.go":      "// Package sub is a module.\npackage sub\n\nimport \"example.com/lib\"\n\nvar _ = lib.Old\n\n// Positive is true above 0.\nfunc Positive(n int) bool { return n > 0 }\n",
		"sub/sub_test.go": "package sub\n\nimport \"testing\"\n\nfunc TestPositive(t *testing.T) { Positive(1) }\n",

		"testdata/lib1/go.mod": "module example.com/lib\n",
		"testdata/lib1/lib.go": "package lib\n\n// Old is in both versions.\nvar Old int\n",
		"testdata/lib2/go.mod": "module example.com/lib\n",
		"testdata/lib2/lib.go": "package lib\n\n// Old and New are in this version.\nvar Old, New int\n",
	})
	for _, p := range tree.Packages {
		require.NoError(t, tree.parse(p))
	}
	report, err := Run(t.Context(), Config{Root: tree.Root, N: 9, Only: "sub/", Workers: 1, Budget: time.Minute, Cache: t.TempDir(), Log: &bytes.Buffer{}})
	require.NoError(t, err)
	by := map[string]string{}
	for _, r := range report.Results {
		by[r.New] = r.By
	}
	require.Equal(t, map[string]string{"<": ". TestSub", ">=": "", "1": ". TestSub"}, by)
}

func TestNextBatch(t *testing.T) {
	t.Parallel()
	a, b := &Package{}, &Package{}
	long, dear := &Test{Name: "long", pkg: a, Took: time.Minute}, &Test{Name: "dear", pkg: a, Took: 4 * time.Second}
	var cheap []*Test
	for range 30 {
		cheap = append(cheap, &Test{Name: "cheap", pkg: a, Took: time.Second / 2})
	}
	other := &Test{Name: "other", pkg: b, Took: time.Second}
	tests := append([]*Test{long, dear, other}, cheap...)

	require.Equal(t, []*Test{dear, cheap[0], cheap[1]}, nextBatch(tests, 0, 30*time.Second), "the first process is short")
	require.Len(t, nextBatch(tests, 4, 30*time.Second), perBatch, "later ones have more tests")
	require.Equal(t, []*Test{other}, nextBatch(append([]*Test{other}, cheap...), 4, 30*time.Second), "a process runs one package")
	require.Equal(t, []*Test{other, other}, nextBatch([]*Test{long, other, other, other}, 4, 2500*time.Millisecond), "what the budget does not permit is passed over")
	require.Equal(t, []*Test{long}, nextBatch([]*Test{long}, 0, time.Second), "the only test runs at any cost")
	all := []*Test{long}
	batch := nextBatch(all, 0, time.Second)
	all[0] = nil
	require.Equal(t, []*Test{long}, batch, "a batch stays when the tests are deleted of which it was taken")
	require.Empty(t, nextBatch([]*Test{long}, 1, time.Second))
	require.Empty(t, nextBatch(nil, 0, time.Second))
}

// A test of the package comes first, then the cheap ones, although the dear one has more of the words.
func TestChoose(t *testing.T) {
	t.Parallel()
	tree := module(t, map[string]string{
		"m.go":                "package m\n\n// Retry says whether.\nfunc Retry(attempts int) bool { return attempts < 3 }\n",
		"m_test.go":           "package m\n\nimport \"testing\"\n\nfunc TestOwn(t *testing.T) {}\n",
		"other/other_test.go": "package other\n\nimport \"testing\"\n\nfunc TestCheap(t *testing.T) {\n\tattempts := 1\n\t_ = attempts\n}\n\nfunc TestDear(t *testing.T) {\n\tretry, attempts := 1, 2\n\t_, _ = retry, attempts\n}\n\nfunc TestNothing(t *testing.T) {}\n",
		"other/other.go":      "package other\n",
	})
	blocks := []block{{"m.go", 1, 9}}
	test := func(p *Package, name string, took time.Duration) *Test {
		return &Test{Name: name, Took: took, Reaches: []byte{1}, pkg: p}
	}
	m, other := tree.Packages[0], tree.Packages[1]
	c := &chooser{packages: tree.Packages, coverage: &Coverage{packages: []*covered{
		{Blocks: blocks, pkg: m, Tests: []*Test{test(m, "TestOwn", 9*time.Second)}},
		{Blocks: blocks, pkg: other, Tests: []*Test{
			test(other, "TestDear", time.Minute), test(other, "TestNothing", time.Second), test(other, "TestCheap", time.Second),
		}},
	}}}
	slips, err := tree.goSlips(m)
	require.NoError(t, err)
	var order []string
	for _, chosen := range c.choose(slips[0]) {
		order = append(order, chosen.Name)
	}
	require.Equal(t, []string{"TestOwn", "TestCheap", "TestNothing", "TestDear"}, order)
}

func TestUnseen(t *testing.T) {
	t.Parallel()
	unseen := readUnseen("# comment\n\na.go f: x => y\n  because\n  of it\nb.go g: 1 => 2\n  no\n")
	require.Equal(t, map[string]string{"a.go f: x => y": "because of it", "b.go g: 1 => 2": "no"}, unseen)
	for identity, reason := range readUnseen(unseenText) {
		require.NotEmpty(t, reason, identity)
	}
}
