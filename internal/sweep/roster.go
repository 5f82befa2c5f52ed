package sweep

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/store"
)

// learnGap lets a change of many workers, a deployment, be learnt at once. It is far below the second that a node may take.
const learnGap = 100 * time.Millisecond

// Roster keeps what this node knows of workers up to date: it writes the signs of life that fetches and acks are, and
// reads which workers get no jobs. While neither happens it issues no query.
type Roster struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *store.Store
	learn chan struct{}
	seen  chan struct{}
}

// NewRoster returns a roster. It has the store tell it of signs of life; Learn is for the caller.
func NewRoster(archetype *baseservice.Archetype, s *store.Store) *Roster {
	r := baseservice.Init(archetype, &Roster{store: s, learn: make(chan struct{}, 1), seen: make(chan struct{}, 1)})
	s.OnSeen(func() { poke(r.seen) })
	return r
}

// Learn says that some worker may have become quiet, or no longer is. It does not block.
func (r *Roster) Learn() { poke(r.learn) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Start runs the loop until stopped.
func (r *Roster) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := r.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		r.loop(ctx)
	}()
	return nil
}

// loop has two timers; nil channels mean that there is nothing to do.
func (r *Roster) loop(ctx context.Context) {
	var learnAt, writeAt <-chan time.Time
	var learnt time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.learn:
			if learnAt == nil {
				learnAt = time.After(learnGap - min(learnGap, time.Since(learnt)))
			}
		case <-learnAt:
			learnAt, learnt = nil, time.Now()
			if err := r.store.LearnQuiet(ctx); err != nil && ctx.Err() == nil {
				r.Logger.WarnContext(ctx, "quiet workers were not read", slog.Any("error", err))
				learnAt = time.After(errorPause)
			}
		case <-r.seen:
			if writeAt == nil {
				writeAt = time.After(r.store.SeenInterval())
			}
		case <-writeAt:
			writeAt = nil
			if err := r.store.WriteSeen(ctx); err != nil && ctx.Err() == nil {
				r.Logger.WarnContext(ctx, "signs of life of workers were not written", slog.Any("error", err))
			}
		}
	}
}
