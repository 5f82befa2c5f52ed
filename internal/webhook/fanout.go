package webhook

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/service"
)

// fanOutRest lets several publications share a pass. It is a part of the time between publication and the first attempt, so
// it stays far below the second that docs/reference/webhooks.md, Deliveries promises.
const fanOutRest = 10 * time.Millisecond

// FanOut reads published events and creates the deliveries for subscriptions. Every node runs one, and a lock in the database
// lets one at a time work. Without subscriptions it polls once a minute, and publications do not wake it. It keeps no place
// of its own: the cursor is a row, and any node goes on from it. subscribed is written by the loop and read by
// publications.
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

// Subscribed reports whether the last pass found active subscriptions. The relay asks it for whether anybody reads what it
// publishes. It may be stale by a pass.
func (m *FanOut) Subscribed() bool { return m.subscribed.Load() }

// Published runs a pass soon if there are subscriptions, because events were published. It does not block. Without the
// test, a server without webhooks would run a transaction for each publication.
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

// Start runs the loop until stopped. It runs a pass at once, for events that were published while no node ran.
func (m *FanOut) Start(ctx context.Context) error {
	service.Run(ctx, &m.BaseStartStop, m.loop)
	return nil
}

// The timer is set anew after each run; a wake-up does not stop it, it only runs the pass earlier.
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

// run runs passes until no published event is left, and returns when the next one is due without a wake-up. It blocks the
// loop for as long as there is a backlog, which is all that the loop does. A failed pass has changed nothing, or has committed as a whole.
func (m *FanOut) run(ctx context.Context) time.Duration {
	for ctx.Err() == nil {
		// Stop does not cancel a pass that has begun.
		created, err := m.store.CreateDeliveries(context.WithoutCancel(ctx))
		if err != nil {
			m.Logger.WarnContext(ctx, "webhook deliveries were not created; trying again", slog.String("category", "webhook"), slog.Any("error", err))
			serviceutil.CancellableSleep(ctx, errorPause) // even if Wake is called meanwhile
			return 0
		}
		// The deliveries of these events are lost; the number is an upper bound, as not each number of the log is an event
		// that matches.
		if created.Skipped > 0 {
			m.Logger.WarnContext(ctx, "retention has removed events before webhook deliveries were created for them; raise OJS_EVENTS_RETENTION_PERIOD",
				slog.String("category", "webhook"), slog.Group("attributes", "events_at_most", created.Skipped))
		}
		// The order is: store that there are subscribers, then look once more. The other way round an event that is
		// published between the look and the store would wait for the next poll.
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
