package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func TestStatusOfEveryKind(t *testing.T) {
	t.Parallel()
	want := map[ojs.ErrorKind]api.Status{
		ojs.ErrInvalidPayload:         {400, codes.InvalidArgument},
		ojs.ErrInvalidJobType:         {400, codes.InvalidArgument},
		ojs.ErrInvalidQueue:           {400, codes.InvalidArgument},
		ojs.ErrInvalidArgs:            {400, codes.InvalidArgument},
		ojs.ErrInvalidMetadata:        {400, codes.InvalidArgument},
		ojs.ErrInvalidCron:            {400, codes.InvalidArgument},
		ojs.ErrQueueNameTooLong:       {400, codes.InvalidArgument},
		ojs.ErrJobTypeTooLong:         {400, codes.InvalidArgument},
		ojs.ErrInvalidRequest:         {400, codes.InvalidArgument},
		ojs.ErrMethodNotAllowed:       {405, codes.Internal},
		ojs.ErrValidation:             {422, codes.InvalidArgument},
		ojs.ErrSchemaValidation:       {422, codes.InvalidArgument},
		ojs.ErrUnsupported:            {422, codes.FailedPrecondition},
		ojs.ErrCompression:            {415, codes.InvalidArgument},
		ojs.ErrUnauthenticated:        {401, codes.Unauthenticated},
		ojs.ErrPermissionDenied:       {403, codes.PermissionDenied},
		ojs.ErrNotFound:               {404, codes.NotFound},
		ojs.ErrInvalidStateTransition: {409, codes.FailedPrecondition},
		ojs.ErrNotOwner:               {409, codes.FailedPrecondition},
		ojs.ErrStaleAttempt:           {409, codes.FailedPrecondition},
		ojs.ErrIdempotencyConflict:    {409, codes.FailedPrecondition},
		ojs.ErrDuplicateJob:           {409, codes.AlreadyExists},
		ojs.ErrPayloadTooLarge:        {413, codes.ResourceExhausted},
		ojs.ErrMetadataTooLarge:       {413, codes.ResourceExhausted},
		ojs.ErrBatchSize:              {413, codes.ResourceExhausted},
		ojs.ErrQueuePaused:            {422, codes.FailedPrecondition},
		ojs.ErrQueueFull:              {429, codes.ResourceExhausted},
		ojs.ErrRateLimited:            {429, codes.ResourceExhausted},
		ojs.ErrInternal:               {500, codes.Internal},
		ojs.ErrUnavailable:            {503, codes.Unavailable},
		ojs.ErrTimeout:                {504, codes.DeadlineExceeded},
		ojs.ErrJobTypeNotAllowed:      {422, codes.FailedPrecondition},
		ojs.ErrWaitTimeout:            {408, codes.DeadlineExceeded},
		ojs.ErrResultPruned:           {410, codes.NotFound},
		ojs.ErrQueueExists:            {409, codes.AlreadyExists},
		ojs.ErrSchemaExists:           {409, codes.FailedPrecondition},
		ojs.ErrCursorExpired:          {410, codes.OutOfRange},
	}
	require.Len(t, want, len(spec.Kinds()))
	for _, kind := range spec.Kinds() {
		require.Equal(t, want[kind], api.StatusOf(&ojs.Error{Type: string(kind)}), kind)
	}
	require.Equal(t, api.Status{HTTP: 500, GRPC: codes.Internal}, api.StatusOf(&ojs.Error{Type: "no_such_kind"}))
}
