package spec

import (
	"fmt"
	"strings"

	"github.com/ojsd/ojsd/ojs"
)

// InvalidPayload refuses a field of the request body: 400. received is left out if nil. The constructors of this file and of
// errors_state.go are those of the server and of package ojstest. Clients get their results as an [*ojs.Error].
func InvalidPayload(field, expected string, received any, message string) *ojs.Error {
	return InvalidField(ojs.ErrInvalidPayload, field, expected, received, message)
}

// InvalidField is InvalidPayload for a field that has a type of its own (invalid_queue, job_type_too_long, …).
func InvalidField(kind ojs.ErrorKind, field, expected string, received any, message string) *ojs.Error {
	details := make(map[string]any, 4)
	set(details, "field", field)
	set(details, "expected", expected)
	if received != nil {
		details["received"] = received
	}
	return NewError(kind, message, details)
}

// InvalidRequest refuses a query parameter, header or cursor: 400.
func InvalidRequest(parameter, expected string, received any, message string) *ojs.Error {
	e := InvalidField(ojs.ErrInvalidRequest, parameter, expected, received, message)
	return With(e, "parameter", parameter)
}

// MethodNotAllowed refuses a known path with another method: 405. allowed is the content of the Allow header.
func MethodNotAllowed(method, path string, allowed []string) *ojs.Error {
	return NewError(ojs.ErrMethodNotAllowed, fmt.Sprintf("Method %s is not allowed on %s; use %s.", method, path, strings.Join(allowed, ", ")),
		map[string]any{"method": method, "allowed": allowed})
}

// Validation refuses a well-formed but inadmissible policy: 422. message must contain the bare name of the field.
func Validation(field string, received any, message string) *ojs.Error {
	return InvalidField(ojs.ErrValidation, field, "", received, message)
}

// Unsupported refuses what this server does not offer: 422.
func Unsupported(message string, details map[string]any) *ojs.Error {
	return NewError(ojs.ErrUnsupported, message, details)
}

// Version refuses a spec version: 422. field is specversion or the OJS-Version header.
func Version(field, requested string) *ojs.Error {
	return Unsupported(fmt.Sprintf("%s %q is not supported; send 1.0.", field, requested),
		map[string]any{"field": field, "requested": requested, "supported": []string{"1.0"}})
}

// Compression refuses a Content-Encoding: 415.
func Compression(received string) *ojs.Error {
	return NewError(ojs.ErrCompression, fmt.Sprintf("Content-Encoding %q is not supported; use gzip or identity.", received),
		map[string]any{"received": received, "supported": []string{"gzip", "identity"}})
}

// Unauthenticated refuses a request without a known key: 401.
func Unauthenticated() *ojs.Error {
	return NewError(ojs.ErrUnauthenticated, "Authentication is required: send a valid key in the Authorization header.", nil)
}

// PermissionDenied refuses a known key that lacks scope: 403.
func PermissionDenied(scope string) *ojs.Error {
	return NewError(ojs.ErrPermissionDenied, fmt.Sprintf("This key lacks the scope %s.", scope), map[string]any{"scope": scope})
}

// TooLarge refuses a value over its byte limit: 413. field is envelope, batch, result, … or meta, which has a code of
// its own. actual is left out if 0 (not known because reading stopped at the limit).
func TooLarge(field string, limit, actual int) *ojs.Error {
	kind := ojs.ErrPayloadTooLarge
	if field == "meta" {
		kind = ojs.ErrMetadataTooLarge
	}
	if actual <= 0 {
		return NewError(kind, fmt.Sprintf("%s is larger than the limit of %d bytes.", field, limit), map[string]any{"field": field, "max_bytes": limit})
	}
	return NewError(kind, fmt.Sprintf("%s has %d bytes; the limit is %d bytes.", field, actual, limit),
		map[string]any{"field": field, "max_bytes": limit, "actual_bytes": actual})
}

// BatchSize refuses too many items: 413.
func BatchSize(limit, actual int) *ojs.Error {
	return NewError(ojs.ErrBatchSize, fmt.Sprintf("The request has %d items; send at most %d.", actual, limit),
		map[string]any{"field": "batch", "max_batch_size": limit, "actual_size": actual})
}

// Indexed marks e as the failure of one item of a batch. It changes e: the message begins with the place of the job, and
// details.index has it as a number, from 0.
func Indexed(e *ojs.Error, index int) *ojs.Error {
	e.Message = fmt.Sprintf("job at index %d: %s", index, e.Message)
	return With(e, "index", index)
}

func set(details map[string]any, key, value string) {
	if value != "" {
		details[key] = value
	}
}
