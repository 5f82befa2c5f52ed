package fakeserver

import (
	"fmt"

	"github.com/ojsd/ojsd/ojs"
)

// newError makes an error as servers send it. Kinds whose code is another one are those of docs/reference/errors.md, Catalogue.
func newError(kind ojs.ErrorKind, details object, format string, args ...any) *ojs.Error {
	e := &ojs.Error{Code: string(kind), Type: string(kind), Message: fmt.Sprintf(format, args...), Details: details}
	switch kind {
	case ojs.ErrInvalidStateTransition, ojs.ErrNotOwner, ojs.ErrStaleAttempt:
		e.Code = "conflict"
	case ojs.ErrDuplicateJob:
		e.Code = "duplicate"
	case ojs.ErrUnavailable, ojs.ErrTimeout:
		e.Code, e.Retryable = "backend_error", true
	case ojs.ErrInternal, ojs.ErrRateLimited, ojs.ErrQueuePaused, ojs.ErrWaitTimeout:
		e.Retryable = true
	}
	return e
}

func invalidPayload(field, format string, args ...any) *ojs.Error {
	return newError(ojs.ErrInvalidPayload, object{"field": field}, format, args...)
}

func noSuch(what, id string) *ojs.Error {
	return newError(ojs.ErrNotFound, object{"resource_type": what, "resource_id": id}, "%s %s does not exist.", what, id)
}

func wrongState(j *record, expected ...ojs.JobState) *ojs.Error {
	return newError(ojs.ErrInvalidStateTransition, object{"job_id": j.ID, "current_state": j.State, "expected_state": expected},
		"Job %s is in state %s; this operation needs one of %v.", j.ID, j.State, expected)
}

func duplicateID(id string) *ojs.Error {
	return newError(ojs.ErrDuplicateJob, object{"field": "id", "existing_job_id": id}, "A job with id %s already exists.", id)
}
