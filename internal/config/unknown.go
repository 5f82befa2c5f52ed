package config

import (
	"slices"
	"strings"

	"github.com/riverqueue/river/rivershared/levenshtein"
)

// clientVariables are variables of clients, which may run in the same environment.
var clientVariables = []string{"OJS_URL"}

// Unknown is a variable that begins with OJS_ and is not a setting.
// It is a warning and no error: an older server must start with the variables of a newer one.
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

// It always names one, however far.
func nearest(name string) string {
	closest := slices.MinFunc(table, func(a, b Setting) int {
		return levenshtein.ComputeDistance(name, a.Env) - levenshtein.ComputeDistance(name, b.Env)
	})
	return closest.Env
}
