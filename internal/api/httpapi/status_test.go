package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func TestStatusOfEveryKind(t *testing.T) {
	t.Parallel()
	want := map[ojs.ErrorKind]int{
		ojs.ErrInvalidPayload:         400,
		ojs.ErrInvalidJobType:         400,
		ojs.ErrInvalidQueue:           400,
		ojs.ErrInvalidArgs:            400,
		ojs.ErrInvalidMetadata:        400,
		ojs.ErrInvalidCron:            400,
		ojs.ErrQueueNameTooLong:       400,
		ojs.ErrJobTypeTooLong:         400,
		ojs.ErrInvalidRequest:         400,
		ojs.ErrMethodNotAllowed:       405,
		ojs.ErrValidation:             422,
		ojs.ErrSchemaValidation:       422,
		ojs.ErrUnsupported:            422,
		ojs.ErrCompression:            415,
		ojs.ErrUnauthenticated:        401,
		ojs.ErrPermissionDenied:       403,
		ojs.ErrNotFound:               404,
		ojs.ErrInvalidStateTransition: 409,
		ojs.ErrNotOwner:               409,
		ojs.ErrStaleAttempt:           409,
		ojs.ErrIdempotencyConflict:    409,
		ojs.ErrDuplicateJob:           409,
		ojs.ErrPayloadTooLarge:        413,
		ojs.ErrMetadataTooLarge:       413,
		ojs.ErrBatchSize:              413,
		ojs.ErrQueuePaused:            422,
		ojs.ErrQueueFull:              429,
		ojs.ErrRateLimited:            429,
		ojs.ErrInternal:               500,
		ojs.ErrUnavailable:            503,
		ojs.ErrTimeout:                504,
		ojs.ErrJobTypeNotAllowed:      422,
		ojs.ErrWaitTimeout:            408,
		ojs.ErrResultPruned:           410,
		ojs.ErrSchemaExists:           409,
		ojs.ErrCursorExpired:          410,
	}
	require.Equal(t, want, statuses)
	for _, kind := range spec.Kinds() {
		require.Contains(t, statuses, kind)
	}
	require.Equal(t, 500, statusOf(&ojs.Error{Type: "no_such_kind"}))
}
