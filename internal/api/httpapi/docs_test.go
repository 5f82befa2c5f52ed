package httpapi_test

import (
	"cmp"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
)

// TestRoutesAreDocumented covers docs/CONTRIBUTING.md, Add an endpoint: the table of routes on the page lists each of them, with what a
// tenant gets.
func TestRoutesAreDocumented(t *testing.T) {
	t.Parallel()
	listed := routesOfReference(t)
	for route, reach := range allRoutes() {
		method, path, _ := strings.Cut(route, " ")
		// Some clients send the prefix twice (docs/reference/http.md, Official clients).
		path = strings.TrimPrefix(strings.TrimPrefix(path, "/ojs/v1"), "/ojs/v1")
		path = regexp.MustCompile(`:[a-z]+`).ReplaceAllString(path, "{}")
		tenants, ok := listed[method+" "+path]
		if !ok {
			t.Errorf("docs/reference/http.md, Routes, does not have %s %s", method, path)
			continue
		}
		want := "own"
		switch reach {
		case api.Operators:
			want = "–"
		case api.Everybody:
			want = "all"
		}
		if tenants != want {
			t.Errorf("docs/reference/http.md, Routes, says %q for tenants beside %s %s, which is %q", tenants, method, path, want)
		}
	}
}

// requireDescribed requires that the page to which a row links has the last segment of each of its paths.
func requireDescribed(t *testing.T, paths, link string) {
	t.Helper()
	_, target, found := strings.Cut(link, "](")
	require.True(t, found, link)
	file, _, _ := strings.Cut(strings.TrimSuffix(target, ")"), "#")
	text, err := os.ReadFile("../../../docs/reference/" + cmp.Or(file, "http.md"))
	require.NoError(t, err)
	described := string(text)
	if file == "" {
		before, after, _ := strings.Cut(described, "\n## Routes\n")
		_, after, _ = strings.Cut(after, "\n## ")
		described = before + after
	}
	for _, match := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(paths, -1) {
		segments := strings.FieldsFunc(match[1], func(r rune) bool { return r == '/' })
		last := segments[len(segments)-1]
		if !strings.HasPrefix(last, "{") && !strings.Contains(described, last) {
			t.Errorf("docs/reference/%s does not describe %s", cmp.Or(file, "http.md"), match[1])
		}
	}
}

// routesOfReference reads cells such as: GET, DELETE `/queues/{name}`; POST `/queues/{name}/pause`, `/resume`. A path behind another one
// may stand for its last segment, and all of a row may stand below another path, too. The values are what a tenant gets.
func routesOfReference(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/reference/http.md")
	require.NoError(t, err)
	_, page, found := strings.Cut(string(text), "\n## Routes\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	listed := map[string]string{}
	parameter, word := regexp.MustCompile(`\{[a-z_]+\}`), regexp.MustCompile("[A-Z]{3,}|`/[^`]*`")
	for row := range strings.Lines(page) {
		if !strings.HasPrefix(row, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(row, "| \n"), " | ")
		require.Len(t, cells, 4, row)
		cell, tenants := cells[0], cells[2]
		if cells[3] != "Details" { // the heading
			requireDescribed(t, cell, cells[3])
		}
		first, ofRow := "", []string{}
		for clause := range strings.SplitSeq(cell, ";") {
			var methods []string
			last := ""
			for _, w := range word.FindAllString(clause, -1) {
				if w[0] != '`' {
					if last != "" {
						methods, last = nil, ""
					}
					methods = append(methods, w)
					continue
				}
				path := strings.TrimPrefix(parameter.ReplaceAllString(strings.Trim(w, "`"), "{}"), "/ojs/v1")
				for _, m := range methods {
					ofRow = append(ofRow, m+" "+path)
					if last != "" {
						ofRow = append(ofRow, m+" "+last[:strings.LastIndex(last, "/")]+path)
					}
				}
				first = cmp.Or(first, path)
				if last == "" || strings.Count(path, "/") > 1 {
					last = path
				}
			}
		}
		_, below, also := strings.Cut(cell, "all also below `")
		for _, route := range ofRow {
			listed[route] = tenants
			if also {
				listed[strings.Replace(route, " "+first, " "+strings.TrimRight(below, "` "), 1)] = tenants
			}
		}
	}
	return listed
}
