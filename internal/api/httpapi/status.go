package httpapi

import (
	"net/http"

	"github.com/ojsd/ojsd/ojs"
)

// statuses gives the HTTP status of each kind of error (docs/reference/errors.md, Catalogue).
// A test asks for an entry for each kind of package ojs. gRPC has a table of its own.
var statuses = map[ojs.ErrorKind]int{
	ojs.KindInvalidPayload:         http.StatusBadRequest,
	ojs.KindInvalidJobType:         http.StatusBadRequest,
	ojs.KindInvalidQueue:           http.StatusBadRequest,
	ojs.KindInvalidArgs:            http.StatusBadRequest,
	ojs.KindInvalidMetadata:        http.StatusBadRequest,
	ojs.KindInvalidCron:            http.StatusBadRequest,
	ojs.KindQueueNameTooLong:       http.StatusBadRequest,
	ojs.KindJobTypeTooLong:         http.StatusBadRequest,
	ojs.KindInvalidRequest:         http.StatusBadRequest,
	ojs.KindMethodNotAllowed:       http.StatusMethodNotAllowed,
	ojs.KindValidation:             http.StatusUnprocessableEntity,
	ojs.KindSchemaValidation:       http.StatusUnprocessableEntity,
	ojs.KindUnsupported:            http.StatusUnprocessableEntity,
	ojs.KindCompression:            http.StatusUnsupportedMediaType,
	ojs.KindUnauthenticated:        http.StatusUnauthorized,
	ojs.KindPermissionDenied:       http.StatusForbidden,
	ojs.KindNotFound:               http.StatusNotFound,
	ojs.KindInvalidStateTransition: http.StatusConflict,
	ojs.KindNotOwner:               http.StatusConflict,
	ojs.KindStaleAttempt:           http.StatusConflict,
	ojs.KindIdempotencyConflict:    http.StatusConflict,
	ojs.KindDuplicateJob:           http.StatusConflict,
	ojs.KindPayloadTooLarge:        http.StatusRequestEntityTooLarge,
	ojs.KindMetadataTooLarge:       http.StatusRequestEntityTooLarge,
	ojs.KindBatchSize:              http.StatusRequestEntityTooLarge,
	// The queue is draining (docs/reference/queues.md, Status); the same request succeeds after a resume.
	ojs.KindQueuePaused:       http.StatusUnprocessableEntity,
	ojs.KindQueueFull:         http.StatusTooManyRequests,
	ojs.KindRateLimited:       http.StatusTooManyRequests,
	ojs.KindInternal:          http.StatusInternalServerError,
	ojs.KindUnavailable:       http.StatusServiceUnavailable,
	ojs.KindTimeout:           http.StatusGatewayTimeout,
	ojs.KindJobTypeNotAllowed: http.StatusUnprocessableEntity,
	// 408 although it is the server that has waited (docs/reference/jobs.md, Results).
	ojs.KindWaitTimeout:   http.StatusRequestTimeout,
	ojs.KindCursorExpired: http.StatusGone,
	ojs.KindResultPruned:  http.StatusGone,
	ojs.KindSchemaExists:  http.StatusConflict,
}

// statusOf is the HTTP status of an error.
// A kind that is missing is a defect of the server, so it is 500 and not 400.
func statusOf(e *ojs.Error) int {
	if status, known := statuses[ojs.ErrorKind(e.Type)]; known {
		return status
	}
	return http.StatusInternalServerError
}
