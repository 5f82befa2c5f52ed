package webhook

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
)

// makeRest lets several publications share a pass.
const makeRest = 10 * time.Millisecond

// FanOut follows the log of events and makes deliveries of what is published. Every node runs one; a lock in the database lets
// one at a time work. While there are no subscriptions it looks once a minute, and publications do not wake it.
type FanOut struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store  *Store
	wake   chan struct{}
	wanted atomic.Bool // there are active subscriptions, as far as this node knows
}

// NewFanOut returns a maker; Start it.
func NewFanOut(archetype *baseservice.Archetype, s *Store) *FanOut {
	return baseservice.Init(archetype, &FanOut{store: s, wake: make(chan struct{}, 1)})
}

// Published says that there is more in the log. It does not block.
func (m *FanOut) Published() {
	if m.wanted.Load() {
		m.Wake()
	}
}

// Wake says that subscriptions may have changed.
func (m *FanOut) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Start runs the loop until stopped.
func (m *FanOut) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := m.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		m.loop(ctx)
	}()
	return nil
}

func (m *FanOut) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		timer.Reset(m.run(ctx))
		serviceutil.CancellableSleep(ctx, makeRest)
	}
}

// run makes what there is to make, and returns when to look again without being woken.
func (m *FanOut) run(ctx context.Context) time.Duration {
	for ctx.Err() == nil {
		// Not cancelled by Stop: the work in hand is finished.
		made, err := m.store.MakeDeliveries(context.WithoutCancel(ctx))
		if err != nil {
			m.Logger.WarnContext(ctx, "webhook deliveries were not made", slog.String("category", "webhook"), slog.Any("error", err))
			serviceutil.CancellableSleep(ctx, errorPause) // whoever calls meanwhile would only fail, too
			return 0
		}
		if made.Skipped > 0 {
			m.Logger.WarnContext(ctx, "retention has removed events that webhook deliveries were still to be made of",
				slog.String("category", "webhook"), slog.Group("attributes", "events_at_most", made.Skipped))
		}
		known := m.wanted.Swap(made.Active > 0)
		switch {
		case !known && made.Active > 0: // what was published until now has woken nobody
			continue
		case made.Busy: // that node may be gone before it has finished
			return errorPause
		case !made.More && made.Active > 0:
			return busyLook
		case !made.More:
			return idleLook
		}
	}
	return idleLook
}
