package job

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// problem is one thing wrong with a body.
type problem struct {
	kind     ojs.ErrorKind
	field    string // as clients know it, such as unique.period
	path     string // JSONPath in this body
	expected string
	received jsontext.Value // nil: missing
	message  string
}

// problems collects what is wrong, so that a client sees all of it at once. The first one decides code and details.
type problems []problem

// maxProblems bounds the answer to a body that consists of nothing but mistakes.
const maxProblems = 50

// add notes that field, found at path with value v, is not what was expected.
func (ps *problems) add(kind ojs.ErrorKind, field, path, expected string, v jsontext.Value) {
	if len(*ps) == maxProblems {
		return
	}
	message := fmt.Sprintf("'%s' must be %s, got %s.", field, expected, brief(v))
	if v == nil {
		message = fmt.Sprintf("'%s' is required: send %s.", field, expected)
	}
	*ps = append(*ps, problem{kind, field, path, expected, v, message})
}

// err is the 400 for all problems, or nil.
func (ps problems) err() *ojs.Error {
	if len(ps) == 0 {
		return nil
	}
	first := ps[0]
	e := ojs.ErrInvalidField(first.kind, first.field, first.expected, rawjson.Show(first.received), first.message)
	return e.With("validation_errors", ps.list())
}

// violation is an element of details.validation_errors.
type violation struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

func (ps problems) list() []violation {
	list := make([]violation, len(ps))
	for i, p := range ps {
		list[i] = violation{p.path, p.message}
	}
	return list
}

// brief shows a value inside a sentence.
func brief(v jsontext.Value) string {
	if len(v) > 60 {
		return rawjson.Describe(v)
	}
	return string(rawjson.Compact(v))
}
