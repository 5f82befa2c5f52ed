package payload

import (
	"cmp"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Problem is one thing wrong with a body.
type Problem struct {
	Kind     ojs.ErrorKind
	Field    string // as clients know it, such as unique.period
	Path     string // JSONPath in this body
	Expected string
	Received jsontext.Value // nil: missing
	Message  string
	Hint     string // empty: that of the kind
}

// Problems collects what is wrong, so that a client sees all of it at once. The first one decides code and details.
// The order is that of the checks and not of the body, so that the code of the answer does not depend on how a client sorts its
// members.
type Problems []Problem

// MaxProblems bounds the answer to a body that consists of nothing but mistakes.
// A body of 10 000 bad jobs would be answered with megabytes.
const MaxProblems = 50

// Add notes that field, found at path with value v, is not what was expected.
func (ps *Problems) Add(kind ojs.ErrorKind, field, path, expected string, v jsontext.Value) {
	if len(*ps) == MaxProblems {
		return
	}
	message := fmt.Sprintf("'%s' must be %s, got %s.", field, expected, Brief(v))
	if v == nil {
		message = fmt.Sprintf("'%s' is required: send %s.", field, expected)
	}
	*ps = append(*ps, Problem{Kind: kind, Field: field, Path: path, Expected: expected, Received: v, Message: message})
}

// Hint replaces the hint of the latest problem, for a mistake that the hint of its kind does not fit.
// There must be one.
func (ps Problems) Hint(hint string) {
	ps[len(ps)-1].Hint = hint
}

// Err is the 400 for all problems, or nil.
// It is docs/reference/errors.md, Body.
func (ps Problems) Err() *ojs.Error {
	if len(ps) == 0 {
		return nil
	}
	first := ps[0]
	e := spec.InvalidField(first.Kind, first.Field, first.Expected, rawjson.Show(first.Received), first.Message)
	e.Hint = cmp.Or(first.Hint, e.Hint)
	return spec.With(e, "validation_errors", ps.list())
}

// Violation is an element of details.validation_errors.
type Violation struct {
	Path    string `json:"path"`
	Pointer string `json:"pointer,omitempty"` // JSON Pointer inside the checked value, if a schema was violated
	Message string `json:"message"`
}

func (ps Problems) list() []Violation {
	list := make([]Violation, len(ps))
	for i, p := range ps {
		list[i] = Violation{Path: p.Path, Message: p.Message}
	}
	return list
}

// Brief shows a value inside a sentence.
func Brief(v jsontext.Value) string {
	if len(v) > 60 && v[0] == '"' {
		return fmt.Sprintf("%s of about %d bytes", rawjson.Describe(v), len(v)-2)
	}
	if len(v) > 60 {
		return rawjson.Describe(v)
	}
	return string(rawjson.Compact(v))
}
