package follow

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/service"
)

// Follower reads a Value again, so that callers need not wait for it. Every node runs one for each value. While notifications arrive it
// sends no query on a server on which nothing moves.
type Follower[T any] struct {
	baseservice.BaseService
	startstop.BaseStartStop

	value *Value[T]
	what  string
}

// NewFollower returns a follower of the value. what says in log lines what the value is.
func NewFollower[T any](archetype *baseservice.Archetype, value *Value[T], what string) *Follower[T] {
	return baseservice.Init(archetype, &Follower[T]{value: value, what: what})
}

// Start runs the loop until stopped. It reads at once, before the first caller.
func (f *Follower[T]) Start(ctx context.Context) error {
	service.Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

func (f *Follower[T]) loop(ctx context.Context) {
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	for ctx.Err() == nil {
		wake := f.value.wake
		if !f.look(ctx) {
			wake = nil // not before the next tick: callers would have a failing read repeated without a pause
		}
		f.wait(ctx, wake, tick.C)
	}
}

// wait returns when the value is to be read.
func (f *Follower[T]) wait(ctx context.Context, wake <-chan struct{}, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
			return
		case <-tick:
			if f.value.stale.Load() || !f.value.listening() {
				return
			}
		}
	}
}

// look reads after a change, and else if the latest read is old: callers may have woken the follower for one that is done. It reports
// whether the value is known.
func (f *Follower[T]) look(ctx context.Context) bool {
	since := f.value.now()
	if !f.value.stale.Swap(false) {
		since -= lookAfter / 2
	}
	_, err := f.value.readSince(ctx, since)
	if err == nil || ctx.Err() != nil {
		return true
	}
	f.value.stale.Store(true)
	f.Logger.WarnContext(ctx, f.what+" not read; what was read last holds, and the next try is in half a second",
		slog.String("category", "error"), slog.Any("error", err))
	return false
}
