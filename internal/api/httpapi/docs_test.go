package httpapi_test

import (
	"cmp"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoutesAreDocumented covers docs/CONTRIBUTING.md, Add an endpoint: the table of routes on the page lists each of them.
func TestRoutesAreDocumented(t *testing.T) {
	t.Parallel()
	listed := routesOfReference(t)
	for _, route := range allRoutes() {
		method, path, _ := strings.Cut(route, " ")
		// Some clients send the prefix twice (docs/reference/http.md, Official clients).
		path = strings.TrimPrefix(strings.TrimPrefix(path, "/ojs/v1"), "/ojs/v1")
		path = regexp.MustCompile(`:[a-z]+`).ReplaceAllString(path, "{}")
		if !listed[method+" "+path] {
			t.Errorf("docs/reference/http.md, Routes, does not have %s %s", method, path)
		}
	}
}

// routesOfReference reads cells such as: GET, DELETE `/queues/{name}`; POST `/queues/{name}/pause`, `/resume`. A path behind another one
// may stand for its last segment, and all of a row may stand below another path, too.
func routesOfReference(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../../docs/reference/http.md")
	require.NoError(t, err)
	_, page, found := strings.Cut(string(text), "\n## Routes\n")
	require.True(t, found)
	page, _, _ = strings.Cut(page, "\n## ")
	listed := map[string]bool{}
	parameter, word := regexp.MustCompile(`\{[a-z_]+\}`), regexp.MustCompile("[A-Z]{3,}|`/[^`]*`")
	for row := range strings.Lines(page) {
		if !strings.HasPrefix(row, "| ") {
			continue
		}
		cell, _, _ := strings.Cut(row[2:], " |")
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
			listed[route] = true
			if also {
				listed[strings.Replace(route, " "+first, " "+strings.TrimRight(below, "` "), 1)] = true
			}
		}
	}
	return listed
}
