package eventlog

import (
	"fmt"
	"strings"

	"github.com/ojsd/ojsd/ojs"
)

// maxPatternBytes bounds a pattern of types (docs/reference/events.md, Filters).
const maxPatternBytes = 128

// PatternError says that a filter value is invalid. Every reader answers 400 for it.
type PatternError struct {
	Parameter string // types or sources
	Pattern   string
}

func (e *PatternError) Error() string {
	return fmt.Sprintf("%s contains %q; a pattern is a literal, or a literal prefix followed by one * at its end.", e.Parameter, e.Pattern)
}

// aliases are other names of catalogue types (docs/reference/events.md, Filters). A pattern with * is never an alias.
var aliases = map[string]string{
	"worker.registered":   ojs.EventWorkerStarted,
	"worker.deregistered": ojs.EventWorkerStopped,
	"worker.stale":        ojs.EventWorkerStopped,
	"job.retried":         ojs.EventJobRetrying,
	"job.dead":            ojs.EventJobDiscarded,
}

// ParseTypePatterns validates type patterns, drops empty ones, and translates aliases. A well-formed pattern that names no type
// of the catalogue is valid here and matches nothing; webhooks refuse it by themselves.
func ParseTypePatterns(parameter string, patterns []string) ([]string, error) {
	parsed := make([]string, 0, len(patterns))
	for _, p := range patterns {
		if p == "" {
			continue
		}
		if !validTypePattern(p) {
			return nil, &PatternError{parameter, p}
		}
		if name, ok := aliases[p]; ok {
			p = name
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}

// ParseSourcePatterns validates source patterns and drops empty ones. Sources contain names that clients chose, so any text is
// a literal; only a * before the end is refused.
func ParseSourcePatterns(parameter string, patterns []string) ([]string, error) {
	parsed := make([]string, 0, len(patterns))
	for _, p := range patterns {
		if p == "" {
			continue
		}
		if star := strings.IndexByte(p, '*'); star >= 0 && star < len(p)-1 {
			return nil, &PatternError{parameter, p}
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}

// validTypePattern accepts dot-separated segments of [a-z0-9_] that start with a letter, optionally ended by *; or *.
func validTypePattern(p string) bool {
	if len(p) > maxPatternBytes {
		return false
	}
	if p == "*" {
		return true
	}
	prefix, wild := strings.CutSuffix(p, "*")
	segments := strings.Split(prefix, ".")
	for i, s := range segments {
		if s == "" && wild && i > 0 && i == len(segments)-1 {
			return true // job.*
		}
		if !validSegment(s) {
			return false
		}
	}
	return true
}

func validSegment(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != ""
}

// MatchPattern reports whether a valid pattern matches a type or a source. Its result must equal that of LIKE with
// LikePatterns.
func MatchPattern(pattern, value string) bool {
	if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
		return strings.HasPrefix(value, prefix)
	}
	return pattern == value
}

// A name may contain _ or %, which LIKE takes for wildcards.
var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// LikePatterns turns valid patterns into operands of LIKE ANY. It never returns nil, which would be NULL in SQL.
func LikePatterns(patterns []string) []string {
	likes := make([]string, 0, len(patterns))
	for _, p := range patterns {
		prefix, wild := strings.CutSuffix(p, "*")
		like := likeEscaper.Replace(prefix)
		if wild {
			like += "%"
		}
		likes = append(likes, like)
	}
	return likes
}
