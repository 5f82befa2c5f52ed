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

// fanOutRest lets several publications share a pass.
const fanOutRest = 10 * time.Millisecond

// FanOut reads published events and creates the deliveries for subscriptions. Every node runs one, and a lock in the database
// lets one at a time work. Without subscriptions it polls once a minute, and publications do not wake it.
type FanOut struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store      *Store
	wake       chan struct{}
	subscribed atomic.Bool // the last pass found active subscriptions
}

// NewFanOut returns a fan-out; Start it.
func NewFanOut(archetype *baseservice.Archetype, s *Store) *FanOut {
	return baseservice.Init(archetype, &FanOut{store: s, wake: make(chan struct{}, 1)})
}

// Subscribed reports whether the last pass found active subscriptions.
func (m *FanOut) Subscribed() bool { return m.subscribed.Load() }

// Published runs a pass soon if there are subscriptions, because events were published. It does not block.
func (m *FanOut) Published() {
	if m.Subscribed() {
		m.Wake()
	}
}

// Wake runs a pass soon, because subscriptions may have changed.
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
		serviceutil.CancellableSleep(ctx, fanOutRest)
	}
}

// run runs passes until no published event is left, and returns when the next one is due without a wake-up.
func (m *FanOut) run(ctx context.Context) time.Duration {
	for ctx.Err() == nil {
		// Stop does not cancel a pass that has begun.
		created, err := m.store.CreateDeliveries(context.WithoutCancel(ctx))
		if err != nil {
			m.Logger.WarnContext(ctx, "webhook deliveries were not created; trying again", slog.String("category", "webhook"), slog.Any("error", err))
			serviceutil.CancellableSleep(ctx, errorPause) // even if Wake is called meanwhile
			return 0
		}
		if created.Skipped > 0 {
			m.Logger.WarnContext(ctx, "retention has removed events before webhook deliveries were created for them; raise OJS_EVENTS_RETENTION_PERIOD",
				slog.String("category", "webhook"), slog.Group("attributes", "events_at_most", created.Skipped))
		}
		subscribed := m.subscribed.Swap(created.Active > 0)
		switch {
		case !subscribed && created.Active > 0: // events published before the Swap have not woken this node
			continue
		case created.Busy: // the other node may stop before it has finished
			return errorPause
		case !created.More && created.Active > 0:
			return busyPoll
		case !created.More:
			return idlePoll
		}
	}
	return idlePoll
}
