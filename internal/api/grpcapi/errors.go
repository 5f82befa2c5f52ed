package grpcapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// domain is that of ErrorInfo. maxDetail is for each text, maxMessageLen for the message, in bytes; maxViolations is how many
// fields are named.
const (
	domain = "openjobspec.org"

	// maxDetail and the next two bound details, which travel in trailers, for which some clients have 8 KiB.
	maxDetail     = 256
	maxMessageLen = 1024
	maxViolations = 10
)

// notOffered is an RPC of a feature that this server does not have, or has switched off.
// Its status is UNIMPLEMENTED, where an ordinary unsupported error is FAILED_PRECONDITION.
type notOffered struct{ wire *ojs.Error }

func (e notOffered) Error() string { return e.wire.Error() }

// statusOf is the error that a client is shown, and the gRPC status that carries it.
// It also sets retry-after. Details that cannot be encoded are left out rather than the error.
func (a *API) statusOf(ctx context.Context, err error) (wire *ojs.Error, shown error) {
	if err == nil {
		return nil, nil
	}
	// The code is decided before the details, which depend on it.
	wire, code := a.classify(ctx, err)
	// The client has asked for the end and looks at nothing else.
	if code == codes.Canceled {
		return wire, status.Error(code, "The call was cancelled.")
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: wire.Code, Domain: domain, Metadata: errorMetadata(ctx, wire)}}
	if code == codes.InvalidArgument {
		if violations := violationsOf(wire); len(violations) > 0 {
			details = append(details, &errdetails.BadRequest{FieldViolations: violations})
		}
	}
	// The two kinds that a client should repeat after a pause.
	if wire.Type == string(ojs.ErrRateLimited) || wire.Type == string(ojs.ErrQueueFull) {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(api.RetryAfter(wire)) * time.Second)})
	}
	s := status.New(code, shorten(wire.Message, maxMessageLen))
	if detailed, dErr := s.WithDetails(details...); dErr == nil {
		s = detailed
	}
	if code == codes.ResourceExhausted && wire.Retryable || code == codes.Unavailable {
		c := callOf(ctx)
		// Once a stream has sent its headers they cannot be added to; RetryInfo says the same.
		_ = c.setHeader(metadata.Pairs(retryAfterKey, strconv.Itoa(api.RetryAfter(wire))))
	}
	return wire, s.Err()
}

// classify finds the error that is shown and its code.
// What is shown is decided by api.Shown, as for HTTP; only the code is chosen here.
func (a *API) classify(ctx context.Context, err error) (*ojs.Error, codes.Code) {
	// First, because the error inside is an ordinary refusal.
	if refused, ok := errors.AsType[notOffered](err); ok {
		return refused.wire, codes.Unimplemented
	}
	shown, cause := api.Shown(ctx, err)
	switch cause {
	case api.CauseHungUp:
		return shown, codes.Canceled
	case api.CauseDeadline:
		return shown, codes.DeadlineExceeded
	// Its text is safe to show: the library has written it.
	case api.CauseUnknown: // perhaps of the library, such as a message that is too large
		if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
			return fromLibrary(s), s.Code()
		}
	}
	return shown, api.StatusOf(shown).GRPC
}

// fromLibrary gives what the library refuses an OJS code.
func fromLibrary(s *status.Status) *ojs.Error {
	switch s.Code() {
	case codes.ResourceExhausted:
		return spec.NewError(ojs.ErrPayloadTooLarge, s.Message(), nil)
	case codes.InvalidArgument:
		return spec.InvalidPayload("message", "", nil, s.Message())
	case codes.NotFound:
		return spec.NewError(ojs.ErrNotFound, s.Message(), nil)
	case codes.Unimplemented:
		return spec.Unsupported(s.Message(), nil)
	case codes.Unavailable, codes.Canceled:
		return spec.Unavailable()
	}
	return spec.Internal()
}

// errorMetadata shows the details that are no objects or lists.
// Objects and lists other than states are left out, because the map holds texts only.
func errorMetadata(ctx context.Context, e *ojs.Error) map[string]string {
	m := make(map[string]string, len(e.Details)+3)
	for name, value := range e.Details {
		switch v := value.(type) {
		case string:
			m[name] = shorten(v, maxDetail)
		case ojs.JobState:
			m[name] = string(v)
		case bool, int, int32, int64, float64:
			m[name] = fmt.Sprint(v)
		// expected_state may be a list.
		case []ojs.JobState:
			states := make([]string, len(v))
			for i, s := range v {
				states[i] = string(s)
			}
			m[name] = strings.Join(states, ",")
		}
	}
	m["type"] = e.Type
	m["retryable"] = strconv.FormatBool(e.Retryable)
	// It is in the metadata of the answer as well, which some clients do not show with an error.
	m["request_id"] = callOf(ctx).requestID
	return m
}

// violationsOf lists the fields, named as in the JSON of the HTTP twin.
// Without a list the one field of the error is named.
func violationsOf(e *ojs.Error) []*errdetails.BadRequest_FieldViolation {
	var problems []struct{ Path, Message string }
	// Details have several Go types for it; JSON has one.
	if text, err := json.Marshal(e.Details["validation_errors"]); err == nil {
		_ = json.Unmarshal(text, &problems) // null if there are none
	}
	var list []*errdetails.BadRequest_FieldViolation
	for _, p := range problems[:min(len(problems), maxViolations)] {
		list = append(list, &errdetails.BadRequest_FieldViolation{
			Field: shorten(strings.TrimPrefix(p.Path, "$."), maxDetail), Description: shorten(p.Message, maxDetail),
		})
	}
	if field, _ := e.Details["field"].(string); list == nil && field != "" {
		list = append(list, &errdetails.BadRequest_FieldViolation{Field: field, Description: shorten(e.Message, maxDetail)})
	}
	return list
}

// shorten cuts a text that a client may have sent, and leaves valid UTF-8, without which a status has no details.
func shorten(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "")
}
