package workflow

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// refusals collects what is wrong with a definition. The earliest check decides the error, as for one job: fields (400) before
// policies (422) before sizes (413), and of equal ones the first in the body; validation_errors tells of all. all has at
// most payload.MaxProblems entries; first counts whether it is among them or not.
type refusals struct {
	first *ojs.Error
	all   []payload.Violation
}

// refuse notes that the value at path is not what was expected; nil: it is missing.
func (r *refusals) refuse(path, expected string, v jsontext.Value) {
	var ps payload.Problems
	ps.Add(ojs.ErrInvalidPayload, strings.TrimPrefix(path, "$."), path, expected, v)
	ps.Hint("Correct the definition of the workflow; docs/reference/workflows.md shows each form.")
	r.add("$", ps.Err())
}

// add notes a refusal of the object at path. Paths inside of a job begin with $; they are put behind the path of the job.
// Reading goes from the front of the body to its end, so a later refusal replaces the first one only if its check comes
// earlier.
func (r *refusals) add(path string, err *ojs.Error) {
	list, ok := err.Details["validation_errors"].([]payload.Violation)
	if !ok {
		list = []payload.Violation{{Path: "$", Message: err.Message}}
	}
	for _, v := range list {
		if len(r.all) < payload.MaxProblems {
			r.all = append(r.all, payload.Violation{Path: path + strings.TrimPrefix(v.Path, "$"), Message: v.Message})
		}
	}
	if r.first != nil && stage(r.first) <= stage(err) {
		return
	}
	if place := strings.TrimPrefix(strings.TrimPrefix(path, "$"), "."); place != "" {
		err.Message = place + ": " + err.Message
	}
	r.first = err
}

// full reports whether nothing more would be reported, so that a body of nothing but mistakes ends early.
func (r *refusals) full() bool { return len(r.all) >= payload.MaxProblems }

// Every refusal of a definition has all mistakes in its details, also when one of them decided the code.
func (r *refusals) err() *ojs.Error {
	if r.first == nil {
		return nil
	}
	return spec.With(r.first, "validation_errors", r.all)
}

// stage orders refusals by the check that makes them. A size is checked last, as in the decoder of a job: a client that
// corrects what is wrong should not have to shorten it first.
func stage(e *ojs.Error) int {
	switch ojs.ErrorKind(e.Type) {
	case ojs.ErrValidation, ojs.ErrUnsupported:
		return 1
	case ojs.ErrPayloadTooLarge, ojs.ErrMetadataTooLarge:
		return 2
	}
	return 0
}
