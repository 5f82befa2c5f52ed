package grpcapi

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// readRetry is the pause after the database could not be read: all clients coming back at once would help nobody.
const readRetry = time.Second

// It is compared by identity, to log it as what it is.
var errTooSlow = spec.NewError(ojs.ErrUnavailable, "The client takes too long to read; open the stream again where it ended.", nil)

// sender is a stream that the server writes to. Writing has a goroutine of its own: the library lets it wait for a client that
// does not read for as long as the handler does not return.
// blocked is armed by each write and stopped after it; slow has room for one, so the timer never blocks.
type sender struct {
	api     *API
	ctx     context.Context // ends with the client or the node
	cancel  context.CancelFunc
	client  context.Context // ends with the client
	leave   func()
	flow    *eventlog.Stream
	blocked *time.Timer // runs while something is written
	slow    chan struct{}
}

// open counts a stream in. The caller must run it.
// If it fails, nothing was counted. The timer is made stopped.
func (a *API) open(stream grpc.ServerStream) (*sender, error) {
	leave, err := a.Streams.Admit(callOf(stream.Context()).caller.Client())
	if err != nil {
		return nil, err
	}
	s := &sender{api: a, client: stream.Context(), leave: leave, flow: a.streams.Open(), slow: make(chan struct{}, 1)}
	s.ctx, s.cancel = a.Streams.Context(stream.Context())
	s.blocked = time.AfterFunc(time.Hour, func() {
		select {
		case s.slow <- struct{}{}:
		default:
		}
	})
	s.blocked.Stop()
	return s, nil
}

// run returns when do has, when the client is too slow, or when the node stops; do may then write until the library makes
// it stop, which follows at once.
// The slot and the count are given back when do has returned, which may be after run has: a client that does not read keeps
// its slot until the library has ended its stream.
func (s *sender) run(do func() error) error {
	defer s.cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer s.leave()
		defer s.flow.Close()
		defer close(done)
		err = recovered(do)
	}()
	stopped := s.api.Streams.Life()
	select {
	case <-done:
		// What do returns then is the end of its context, which the client should see as the stop of the node.
		if stopped.Err() != nil && s.client.Err() == nil {
			return spec.Unavailable()
		}
		return err
	case <-s.slow:
		return errTooSlow
	case <-stopped.Done():
		last := time.NewTimer(api.LastWrites)
		defer last.Stop()
		select {
		case <-done:
		case <-last.C:
		}
		return spec.Unavailable()
	}
}

// send writes one message.
// After WriteTimeout run returns, and with it the stream ends; write then fails.
func (s *sender) send(write func() error) error {
	s.blocked.Reset(s.api.Streams.Config().WriteTimeout)
	defer s.blocked.Stop()
	return write()
}

// failed rests after the database could not be read.
// It returns an error only if the stream has to end.
func (s *sender) failed(what string, err error) error {
	s.api.Logger.WarnContext(s.ctx, "stream cannot "+what+"; trying again", slog.Any("error", err))
	api.Pause(s.ctx, readRetry)
	return s.ctx.Err()
}
