package maintenance

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/clock"
)

// readGap is the least time between two reads.
const readGap = 100 * time.Millisecond

// Follower reads the switch when it may have changed, and notices when it is off again. It sends no query on a server on which
// nothing moves.
type Follower struct {
	baseservice.BaseService
	startstop.BaseStartStop

	state *Switch
	ended func()
}

// NewFollower returns a follower. ended is called after the switch was on: what has waited is to go on.
func NewFollower(archetype *baseservice.Archetype, s *Switch, ended func()) *Follower {
	return baseservice.Init(archetype, &Follower{state: s, ended: ended})
}

// Start runs the loop until stopped.
func (f *Follower) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := f.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		f.loop(ctx)
	}()
	return nil
}

func (f *Follower) loop(ctx context.Context) {
	was := f.state.On()
	for {
		var end <-chan time.Time // nil: it has no end
		if k := f.state.known.Load(); k.on() && !k.state.EndsAt.IsZero() {
			end = time.After(k.state.EndsAt.Sub(clock.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-end:
		case <-f.state.look:
			if _, err := f.state.Get(ctx); err != nil && ctx.Err() == nil {
				f.Logger.WarnContext(ctx, "the maintenance switch was not read; it is read again while fetches come", slog.Any("error", err))
			}
		}
		on := f.state.On()
		if was && !on {
			f.ended()
		}
		was = on
		select {
		case <-ctx.Done():
			return
		case <-time.After(readGap):
		}
	}
}
