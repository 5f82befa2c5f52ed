package ojs

import (
	"fmt"
	"strings"
)

// ErrInvalidPayload refuses a field of the request body: 400. received is left out if nil. The constructors of this file and of
// errors_state.go are those of the server and of package ojstest. Clients get their results as an [*Error].
func ErrInvalidPayload(field, expected string, received any, message string) *Error {
	return ErrInvalidField(KindInvalidPayload, field, expected, received, message)
}

// ErrInvalidField is ErrInvalidPayload for a field that has a type of its own (invalid_queue, job_type_too_long, …).
func ErrInvalidField(kind ErrorKind, field, expected string, received any, message string) *Error {
	details := make(map[string]any, 4)
	set(details, "field", field)
	set(details, "expected", expected)
	if received != nil {
		details["received"] = received
	}
	return NewError(kind, message, details)
}

// ErrInvalidRequest refuses a query parameter, header or cursor: 400.
func ErrInvalidRequest(parameter, expected string, received any, message string) *Error {
	e := ErrInvalidField(KindInvalidRequest, parameter, expected, received, message)
	return e.With("parameter", parameter)
}

// ErrMethodNotAllowed refuses a known path with another method: 405. allowed is the content of the Allow header.
func ErrMethodNotAllowed(method, path string, allowed []string) *Error {
	return NewError(KindMethodNotAllowed, fmt.Sprintf("Method %s is not allowed on %s; use %s.", method, path, strings.Join(allowed, ", ")),
		map[string]any{"method": method, "allowed": allowed})
}

// ErrValidation refuses a well-formed but inadmissible policy: 422. message must contain the bare name of the field.
func ErrValidation(field string, received any, message string) *Error {
	return ErrInvalidField(KindValidation, field, "", received, message)
}

// ErrUnsupported refuses what this server does not offer: 422.
func ErrUnsupported(message string, details map[string]any) *Error {
	return NewError(KindUnsupported, message, details)
}

// ErrVersion refuses a spec version: 422. field is specversion or the OJS-Version header.
func ErrVersion(field, requested string) *Error {
	return ErrUnsupported(fmt.Sprintf("%s %q is not supported; send 1.0.", field, requested),
		map[string]any{"field": field, "requested": requested, "supported": []string{"1.0"}})
}

// ErrCompression refuses a Content-Encoding: 415.
func ErrCompression(received string) *Error {
	return NewError(KindCompression, fmt.Sprintf("Content-Encoding %q is not supported; use gzip or identity.", received),
		map[string]any{"received": received, "supported": []string{"gzip", "identity"}})
}

// ErrUnauthenticated refuses a request without a known key: 401.
func ErrUnauthenticated() *Error {
	return NewError(KindUnauthenticated, "Authentication is required: send a valid key in the Authorization header.", nil)
}

// ErrPermissionDenied refuses a known key that lacks scope: 403.
func ErrPermissionDenied(scope string) *Error {
	return NewError(KindPermissionDenied, fmt.Sprintf("This key lacks the scope %s.", scope), map[string]any{"scope": scope})
}

// ErrTooLarge refuses a value over its byte limit: 413. field is envelope, batch, result, … or meta, which has a code of
// its own. actual is left out if 0 (not known because reading stopped at the limit).
func ErrTooLarge(field string, limit, actual int) *Error {
	kind := KindPayloadTooLarge
	if field == "meta" {
		kind = KindMetadataTooLarge
	}
	if actual <= 0 {
		return NewError(kind, fmt.Sprintf("%s is larger than the limit of %d bytes.", field, limit), map[string]any{"field": field, "max_bytes": limit})
	}
	return NewError(kind, fmt.Sprintf("%s has %d bytes; the limit is %d bytes.", field, actual, limit),
		map[string]any{"field": field, "max_bytes": limit, "actual_bytes": actual})
}

// ErrBatchSize refuses too many items: 413.
func ErrBatchSize(limit, actual int) *Error {
	return NewError(KindBatchSize, fmt.Sprintf("The request has %d items; send at most %d.", actual, limit),
		map[string]any{"field": "batch", "max_batch_size": limit, "actual_size": actual})
}

// ErrIndexed marks e as the failure of one item of a batch. It changes e: the message begins with the place of the job, and
// details.index has it as a number, from 0.
func ErrIndexed(e *Error, index int) *Error {
	e.Message = fmt.Sprintf("job at index %d: %s", index, e.Message)
	return e.With("index", index)
}

func set(details map[string]any, key, value string) {
	if value != "" {
		details[key] = value
	}
}
