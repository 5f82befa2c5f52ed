package httpapi

import (
	"net/http"

	"github.com/ojsd/ojsd/ojs"
)

// statuses gives the HTTP status of each kind of error (docs/reference/errors.md, Catalogue).
// A test asks for an entry for each kind of package ojs. gRPC has a table of its own.
var statuses = map[ojs.ErrorKind]int{
	ojs.ErrInvalidPayload:         http.StatusBadRequest,
	ojs.ErrInvalidJobType:         http.StatusBadRequest,
	ojs.ErrInvalidQueue:           http.StatusBadRequest,
	ojs.ErrInvalidArgs:            http.StatusBadRequest,
	ojs.ErrInvalidMetadata:        http.StatusBadRequest,
	ojs.ErrInvalidCron:            http.StatusBadRequest,
	ojs.ErrQueueNameTooLong:       http.StatusBadRequest,
	ojs.ErrJobTypeTooLong:         http.StatusBadRequest,
	ojs.ErrInvalidRequest:         http.StatusBadRequest,
	ojs.ErrMethodNotAllowed:       http.StatusMethodNotAllowed,
	ojs.ErrValidation:             http.StatusUnprocessableEntity,
	ojs.ErrSchemaValidation:       http.StatusUnprocessableEntity,
	ojs.ErrUnsupported:            http.StatusUnprocessableEntity,
	ojs.ErrCompression:            http.StatusUnsupportedMediaType,
	ojs.ErrUnauthenticated:        http.StatusUnauthorized,
	ojs.ErrPermissionDenied:       http.StatusForbidden,
	ojs.ErrNotFound:               http.StatusNotFound,
	ojs.ErrInvalidStateTransition: http.StatusConflict,
	ojs.ErrNotOwner:               http.StatusConflict,
	ojs.ErrStaleAttempt:           http.StatusConflict,
	ojs.ErrIdempotencyConflict:    http.StatusConflict,
	ojs.ErrDuplicateJob:           http.StatusConflict,
	ojs.ErrPayloadTooLarge:        http.StatusRequestEntityTooLarge,
	ojs.ErrMetadataTooLarge:       http.StatusRequestEntityTooLarge,
	ojs.ErrBatchSize:              http.StatusRequestEntityTooLarge,
	// The queue is draining (docs/reference/queues.md, Status); the same request succeeds after a resume.
	ojs.ErrQueuePaused:       http.StatusUnprocessableEntity,
	ojs.ErrQueueFull:         http.StatusTooManyRequests,
	ojs.ErrRateLimited:       http.StatusTooManyRequests,
	ojs.ErrInternal:          http.StatusInternalServerError,
	ojs.ErrUnavailable:       http.StatusServiceUnavailable,
	ojs.ErrTimeout:           http.StatusGatewayTimeout,
	ojs.ErrJobTypeNotAllowed: http.StatusUnprocessableEntity,
	// 408 although it is the server that has waited (docs/reference/jobs.md, Results).
	ojs.ErrWaitTimeout:   http.StatusRequestTimeout,
	ojs.ErrCursorExpired: http.StatusGone,
	ojs.ErrResultPruned:  http.StatusGone,
	ojs.ErrSchemaExists:  http.StatusConflict,
}

// statusOf is the HTTP status of an error.
// A kind that is missing is a defect of the server, so it is 500 and not 400.
func statusOf(e *ojs.Error) int {
	if status, known := statuses[ojs.ErrorKind(e.Type)]; known {
		return status
	}
	return http.StatusInternalServerError
}
