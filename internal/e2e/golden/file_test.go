package golden_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// golden collects the exchanges of one route or RPC in the order in which they were sent.
type golden struct {
	b     strings.Builder
	seen  map[string]string // the case that had an answer first
	hints map[string]bool   // hints and addresses that were written
	cases int
}

func newGolden(title string) *golden {
	g := &golden{seen: map[string]string{}, hints: map[string]bool{}}
	g.b.WriteString(title + "\n")
	return g
}

// The same few hints stand in thousands of errors.
var (
	aHint = regexp.MustCompile(`"(hint|docs_url)":"(\\.|[^"\\])*",?`)
	blank = regexp.MustCompile(`\n( +\n)+`)
)

// add writes an exchange. An answer that an earlier case had is written as its name, and a hint or address of an error that an earlier
// answer of the file had is left out.
func (g *golden) add(name, request, reply string) {
	g.cases++
	g.b.WriteString("\n== " + name + "\n")
	for line := range strings.SplitSeq(printable(request), "\n") {
		g.b.WriteString("> " + line + "\n")
	}
	reply = printable(reply)
	if before, known := g.seen[reply]; known {
		g.b.WriteString("same answer as: " + before + "\n")
		return
	}
	g.seen[reply] = name
	reply = aHint.ReplaceAllStringFunc(reply, func(hint string) string {
		if g.hints[hint] {
			return ""
		}
		g.hints[hint] = true
		return hint
	})
	reply = blank.ReplaceAllString(reply, "\n")
	g.b.WriteString(reply + "\n")
}

// printable writes bytes that are no text as \xNN.
func printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1, r < ' ' && r != '\n', r == '\ufeff':
			for _, c := range []byte(s[i : i+size]) {
				b.WriteString(`\x` + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
			}
		default:
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

const folder = "testdata/golden"

// compare compares with the file, or with -update writes it. The first line that differs is shown; git diff after -update shows all.
func (g *golden) compare(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(folder, name+".txt")
	got := g.b.String()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
		return
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err, "there is no golden for this route: run make goldens")
	if got == string(text) {
		return
	}
	want, have := strings.Split(string(text), "\n"), strings.Split(got, "\n")
	inCase := ""
	for i, line := range have {
		if i >= len(want) || line != want[i] {
			was := "the end of the file"
			if i < len(want) {
				was = want[i]
			}
			t.Fatalf("%s differs in case %q, line %d:\n- %s\n+ %s\nIf clients should see this, run make goldens and look at git diff.", path, inCase, i+1, was, line)
		}
		if rest, ok := strings.CutPrefix(line, "== "); ok {
			inCase = rest
		}
	}
	t.Fatalf("%s has lines behind the last case", path)
}

// recorded returns the answer that the file has for a case, or "" if it has none.
func recorded(t *testing.T, name, inCase string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name+".txt"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return ""
	}
	for exchange := range strings.SplitSeq(string(text), "\n\n== ") {
		title, rest, _ := strings.Cut(exchange, "\n")
		if title != inCase {
			continue
		}
		for strings.HasPrefix(rest, "> ") {
			_, rest, _ = strings.Cut(rest, "\n")
		}
		if same, ok := strings.CutPrefix(strings.TrimSpace(rest), "same answer as: "); ok {
			return recorded(t, name, same)
		}
		return rest
	}
	return ""
}

// orphans are the files below a folder without a test.
func orphans(t *testing.T, kind string, names map[string]bool) (left []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, kind, "*.txt"))
	require.NoError(t, err)
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txt"); !names[name] {
			left = append(left, f)
		}
	}
	return left
}
