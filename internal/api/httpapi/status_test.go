package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

func TestStatusOfEveryKind(t *testing.T) {
	t.Parallel()
	want := map[ojs.ErrorKind]int{
		ojs.KindInvalidPayload:         400,
		ojs.KindInvalidJobType:         400,
		ojs.KindInvalidQueue:           400,
		ojs.KindInvalidArgs:            400,
		ojs.KindInvalidMetadata:        400,
		ojs.KindInvalidCron:            400,
		ojs.KindQueueNameTooLong:       400,
		ojs.KindJobTypeTooLong:         400,
		ojs.KindInvalidRequest:         400,
		ojs.KindMethodNotAllowed:       405,
		ojs.KindValidation:             422,
		ojs.KindSchemaValidation:       422,
		ojs.KindUnsupported:            422,
		ojs.KindCompression:            415,
		ojs.KindUnauthenticated:        401,
		ojs.KindPermissionDenied:       403,
		ojs.KindNotFound:               404,
		ojs.KindInvalidStateTransition: 409,
		ojs.KindNotOwner:               409,
		ojs.KindStaleAttempt:           409,
		ojs.KindIdempotencyConflict:    409,
		ojs.KindDuplicateJob:           409,
		ojs.KindPayloadTooLarge:        413,
		ojs.KindMetadataTooLarge:       413,
		ojs.KindBatchSize:              413,
		ojs.KindQueuePaused:            422,
		ojs.KindQueueFull:              429,
		ojs.KindRateLimited:            429,
		ojs.KindInternal:               500,
		ojs.KindUnavailable:            503,
		ojs.KindTimeout:                504,
		ojs.KindJobTypeNotAllowed:      422,
		ojs.KindWaitTimeout:            408,
		ojs.KindResultPruned:           410,
		ojs.KindSchemaExists:           409,
		ojs.KindCursorExpired:          410,
	}
	require.Equal(t, want, statuses)
	for _, kind := range ojs.ErrorKinds() {
		require.Contains(t, statuses, kind)
	}
	require.Equal(t, 500, statusOf(&ojs.Error{Type: "no_such_kind"}))
}
