package userguide_test

import (
	"errors"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ojsd/ojsd/ojs/internal/require"
)

// snippets are the Go code of the pages. Of each, testdata has two files: .page.txt is what the page shows, byte for byte, and .go.txt is the same
// code with the line breaks that the page has lost. The same code stands in a _test.go file of this package, inside of what makes
// it compile.
var snippets = []struct{ name, page string }{
	{"register", "implement-an-sdk.txt"},
	{"enqueue_batch", "implement-an-sdk.txt"},
	{"start", "implement-an-sdk.txt"},
	{"middleware", "implement-an-sdk.txt"},
	{"named_middleware", "implement-an-sdk.txt"},
	{"on_event", "events-reference.txt"},
}

// TestSnippets: what this package compiles and runs is what the pages show. White space is left out of the first comparison, because the
// pages have lost some of it. The second one compares tokens, so that code inside of a comment or a string does not count.
func TestSnippets(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	compiled := map[string]string{}
	for _, name := range sources {
		compiled[name] = tokens(t, read(t, name))
	}
	for _, s := range snippets {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			code := read(t, filepath.Join("testdata", s.name+".go.txt"))
			shown := read(t, filepath.Join("testdata", s.name+".page.txt"))
			require.Equal(t, withoutSpace(shown), withoutSpace(code))

			found := 0
			for _, source := range compiled {
				found += strings.Count(source, tokens(t, code))
			}
			require.Equal(t, 1, found, "places in the source of this package that have the code of %s.go.txt", s.name)
		})
	}
}

// TestPages: testdata has the Go code of the pages as they are now.
func TestPages(t *testing.T) {
	t.Parallel()
	dir := pagesDir(t)
	functions := map[string]int{} // by page
	for _, s := range snippets {
		page := read(t, filepath.Join(dir, s.page))
		shown := strings.TrimSuffix(read(t, filepath.Join("testdata", s.name+".page.txt")), "\n")
		require.Equal(t, 1, strings.Count(page, shown), "places in %s that show the snippet %s", s.page, s.name)
		functions[s.page] += countFunctions(shown)
	}
	for name, n := range functions {
		require.Equal(t, countFunctions(read(t, filepath.Join(dir, name))), n, "functions in Go in %s; add new code to the snippets", name)
	}
}

// countFunctions counts functions in Go. The other languages of the pages say function, def or fn.
func countFunctions(text string) int {
	return strings.Count(text, "func(") + strings.Count(text, "func (")
}

// pagesDir is the directory of the pages, which are no part of the repository: that of OJS_USER_PAGES, or shared/contract/user beside the
// checkout. Without them the test is skipped; TestSnippets compares with the copies.
func pagesDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("OJS_USER_PAGES"); dir != "" {
		return dir
	}
	at, err := os.Getwd()
	require.NoError(t, err)
	for ; ; at = filepath.Dir(at) {
		dir := filepath.Join(at, "shared", "contract", "user")
		_, err := os.Stat(dir)
		switch {
		case err == nil:
			return dir
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		case at == filepath.Dir(at):
			t.Skip("the user's pages are not here: set OJS_USER_PAGES to their directory")
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func withoutSpace(text string) string { return strings.Join(strings.Fields(text), "") }

// tokens gives the tokens of code in Go, comments among them, one in a line.
func tokens(t *testing.T, code string) string {
	t.Helper()
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(code))
	s.Init(file, []byte(code), func(at token.Position, message string) { t.Fatalf("%s: %s", at, message) }, scanner.ScanComments)
	list := "\n"
	for {
		_, kind, text := s.Scan()
		switch kind {
		case token.EOF:
			return list
		case token.SEMICOLON: // written, or the end of a line
			list += ";\n"
		default:
			list += kind.String() + " " + text + "\n"
		}
	}
}
