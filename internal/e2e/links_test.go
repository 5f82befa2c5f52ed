package e2e_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	mdLink     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	mdCode     = regexp.MustCompile("`[^`]*`")
	mdHeading  = regexp.MustCompile(`^#{1,6} +(.*?) *$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`)
)

// TestLinks follows every relative link of README.md and docs/ to its file and heading.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages := []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	require.NoError(t, err)
	require.Greater(t, len(pages), 15)
	broken := map[string][]string{}
	for _, page := range pages {
		if _, found := checkLinks(t, page); len(found) > 0 {
			broken[page] = found
		}
	}
	require.Empty(t, broken)
}

var (
	commentWrap = regexp.MustCompile(`\n[ \t]*(?://|--) ?`)
	citation    = regexp.MustCompile(`docs/reference/([a-z]+\.md)(?:, ([A-Z][^).;:\n]*))?`)
)

// TestCitations looks up the headings of the reference that comments in Go and SQL cite.
func TestCitations(t *testing.T) {
	t.Parallel()
	found := 0
	var broken []string
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." {
			return fs.SkipDir
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".sql" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, cited := range citation.FindAllStringSubmatch(commentWrap.ReplaceAllString(string(text), " "), -1) {
			found++
			if !hasHeading(t, "../../docs/reference/"+cited[1], cited[2]) {
				broken = append(broken, path+": "+cited[0])
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, broken)
	require.Greater(t, found, 50)
}

// hasHeading reports whether the page exists and text, if any, begins with one of its headings.
func hasHeading(t *testing.T, page, text string) bool {
	t.Helper()
	if _, err := os.Stat(page); err != nil || text == "" {
		return err == nil
	}
	return slices.ContainsFunc(proseLines(t, page), func(line string) bool {
		heading := mdHeading.FindStringSubmatch(strings.ReplaceAll(line, "`", ""))
		return heading != nil && strings.HasPrefix(text, heading[1])
	})
}

func TestLinksFindsBrokenOnes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("other.md", "# Other: `GET /x` & more\n## Same\n## Same\n```\n# no heading\n```\n")
	page := write("page.md", "# A\n[x](other.md) [x](#a) [x](other.md#other-get-x--more) [x](other.md#same-1) [x](https://example.com/#y)\n"+
		"[x](none.md) [x](#b) [x](other.md#same-2) [x](other.md#no-heading)\n`[x](code.md)`\n```\n[x](fenced.md)\n```\n")
	links, broken := checkLinks(t, page)
	require.Equal(t, 8, links)
	require.Equal(t, []string{"none.md", "#b", "other.md#same-2", "other.md#no-heading"}, broken)

	require.True(t, hasHeading(t, page, "A"))
	require.False(t, hasHeading(t, page, "B"))
	require.False(t, hasHeading(t, filepath.Join(dir, "none.md"), "A"))
}

// checkLinks counts the relative links of a page and gives those that lead nowhere.
func checkLinks(t *testing.T, page string) (links int, broken []string) {
	t.Helper()
	for _, line := range proseLines(t, page) {
		for _, match := range mdLink.FindAllStringSubmatch(mdCode.ReplaceAllString(line, "``"), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			if !leadsSomewhere(t, page, match[1]) {
				broken = append(broken, match[1])
			}
		}
	}
	return links, broken
}

func leadsSomewhere(t *testing.T, page, target string) bool {
	t.Helper()
	file, anchor, hasAnchor := strings.Cut(target, "#")
	if file == "" {
		file = page
	} else {
		file = filepath.Join(filepath.Dir(page), file)
	}
	if _, err := os.Stat(file); err != nil {
		return false
	}
	return !hasAnchor || anchors(t, file)[anchor]
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, line := range proseLines(t, page) {
		heading := mdHeading.FindStringSubmatch(line)
		if heading == nil {
			continue
		}
		slug := strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")
		name := slug
		for n := 1; names[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		names[name] = true
	}
	return names
}

// proseLines are the lines outside of fenced blocks.
func proseLines(t *testing.T, page string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	fenced := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if !fenced {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}
