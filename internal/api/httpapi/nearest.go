package httpapi

import (
	"slices"
	"strings"

	"github.com/riverqueue/river/rivershared/levenshtein"
)

// maxComparedPath bounds what a request for an unknown route costs: longer paths are compared with no route.
const maxComparedPath = 128

// maxMisspelt is the edit distance up to which a route resembles a path. A farther one is no help: for a route that this server does
// not have it names any other.
const maxMisspelt = 3

// basePath is where all routes but those of health, manifest and metrics are.
const basePath = "/ojs/v1"

// template is a route as it is registered.
// Parameters are written :name.
type template struct{ method, path string }

// nearest is the route whose template has the smallest edit distance to the path, among those with the method if there are
// any. A parameter of the template stands for the segment of the path at its place. "" if none
// resembles it, or the path is too long to compare.
// It is called for each request without a route, so its cost matters: see maxComparedPath.
func nearest(routes []template, method, path string) string {
	if len(path) > maxComparedPath {
		return ""
	}
	segments := strings.Split(path, "/")
	sameMethod := slices.ContainsFunc(routes, func(r template) bool { return r.method == method })
	best, least := template{}, -1
	for _, r := range routes {
		if sameMethod && r.method != method {
			continue
		}
		d := levenshtein.ComputeDistance(path, filled(r.path, segments))
		if short, cut := strings.CutPrefix(r.path, basePath); cut { // the base path is what is forgotten most often
			d = min(d, 1+levenshtein.ComputeDistance(path, filled(short, segments)))
		}
		if least < 0 || d < least {
			best, least = r, d
		}
	}
	if least < 0 || least > maxMisspelt {
		return ""
	}
	return best.method + " " + shownTemplate(best.path)
}

// filled puts the segments of a path in the place of a template's parameters.
// Otherwise a long id in the path would be farther from :id than from another route.
func filled(path string, segments []string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, ":") && i < len(segments) && segments[i] != "" {
			parts[i] = segments[i]
		}
	}
	return strings.Join(parts, "/")
}

// shownTemplate writes :id as {id}, like the documentation.
func shownTemplate(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if name, isParameter := strings.CutPrefix(part, ":"); isParameter {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
}
