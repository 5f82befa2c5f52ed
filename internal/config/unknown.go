package config

import (
	"slices"
	"strings"
)

// clientVariables are variables of clients, which may run in the same environment.
var clientVariables = []string{"OJS_URL"}

// Unknown is a variable that begins with OJS_ and is not a setting.
type Unknown struct {
	Name    string
	Nearest string // the most similar variable of a setting
}

// UnknownVariables finds the OJS_ variables that are not settings.
func UnknownVariables(environ []string) (unknown []Unknown) {
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		isSetting := slices.ContainsFunc(table, func(s Setting) bool { return s.Env == name })
		if !strings.HasPrefix(name, "OJS_") || isSetting || slices.Contains(clientVariables, name) {
			continue
		}
		unknown = append(unknown, Unknown{name, nearest(name)})
	}
	return unknown
}

func nearest(name string) string {
	closest := slices.MinFunc(table, func(a, b Setting) int { return distance(name, a.Env) - distance(name, b.Env) })
	return closest.Env
}

// distance is the Levenshtein distance: the number of insertions, deletions and replacements that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
