package webhook

import (
	"context"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/loop"
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

// WakeIfSubscribed runs a pass soon if there are subscriptions, because events were published. It does not block. Without the
// test, a server without webhooks would run a transaction for each publication.
func (m *FanOut) WakeIfSubscribed() {
	if m.Subscribed() {
		m.Wake()
	}
}

// Wake runs a pass soon, because subscriptions may have changed.
func (m *FanOut) Wake() { loop.Signal(m.wake) }

// Start runs the loop until stopped. It runs a pass at once, for events that were published while no node ran.
func (m *FanOut) Start(ctx context.Context) error {
	loop.Run(ctx, &m.BaseStartStop, m.loop)
	return nil
}

// loop sets the timer anew after each run; a wake-up does not stop it, it only runs the pass earlier.
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
			m.Logger.WarnContext(ctx, "webhook deliveries were not created; trying again", slog.String("category", "webhook"),
				slog.Any("error", err))
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

// Created is the result of one pass over the log.
type Created struct {
	Busy       bool  // another node runs a pass
	Active     int64 // subscriptions that get events
	Deliveries int64
	More       bool  // the next pass may have work at once
	Skipped    int64 // numbers of the log that retention removed before deliveries were created for them
}

const (
	// maxCreated bounds the deliveries of a pass: 2 000 take a tenth of a second, and claims need the tables, too. minRows
	// lets a pass move at all if there are more than a hundred subscriptions.
	maxCreated = 2000
	minRows    = 20
)

// CreateDeliveries reads the next events of the log and creates a delivery for every subscription that matches
// (docs/reference/webhooks.md, Deliveries). It may run on any number of nodes at once: one has the lock of the cursor, the
// others return Busy. The cursor moves in the transaction of the deliveries, so a crash leaves neither a gap nor a double;
// a unique index over event and subscription guards against the latter once more. An error whose outcome is unknown may be
// followed by another pass at once.
func (s *Store) CreateDeliveries(ctx context.Context) (created Created, err error) {
	err = s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		created = Created{}
		// Counted before the lock, so that a server without subscriptions takes none.
		subscribers, err := q.WebhookCountSubscribers(ctx)
		if err != nil || subscribers == 0 {
			return err
		}
		locked, err := q.WebhookCursorLock(ctx)
		if err != nil {
			return err
		}
		created.Active = subscribers
		// SKIP LOCKED instead of waiting: a queue of nodes behind the lock would pass over the same events one after the
		// other.
		if created.Busy = len(locked) == 0; created.Busy {
			return nil
		}
		cursor := locked[0]
		// The lists are read after the lock of the cursor and lock the subscriptions, plain ones before ordered ones, each in the
		// order of ids. The passes of two nodes do not meet here, because of the cursor.
		plain, err := q.WebhookListSubscribers(ctx)
		if err != nil {
			return err
		}
		ordered, err := q.WebhookListSubscribersOrdered(ctx)
		if err != nil || len(plain)+len(ordered) == 0 {
			return err
		}
		p := dbsqlc.WebhookDeliveryCreateParams{WebhookIds: [][16]byte{}, OrderedIds: [][16]byte{}}
		// The lowest end of all lists: a subscription that was made between two of them begins behind it.
		begin, upto := int64(math.MaxInt64), int64(math.MaxInt64)
		for _, w := range plain {
			p.WebhookIds = append(p.WebhookIds, w.ID)
			begin, upto = min(begin, w.FromPlace), min(upto, w.Head)
		}
		// Their ids are also among WebhookIds; the second list says which deliveries may have to wait.
		for _, w := range ordered {
			p.WebhookIds, p.OrderedIds = append(p.WebhookIds, w.ID), append(p.OrderedIds, w.ID)
			begin, upto = min(begin, w.FromPlace), min(upto, w.Head)
		}
		// The cursor may be behind the first subscription, because it does not move while there is none. The number of events is
		// bounded as if every subscription wanted each.
		after, rows := max(cursor.Place, begin), max(minRows, maxCreated/int64(len(p.WebhookIds)))
		// A place is seq * 65536 + sub, hence the shifts.
		created.Skipped = max(0, cursor.Pruned-after>>16)
		p.AfterSeq, p.AfterSub, p.UptoSeq, p.UptoSub, p.MaxRows = after>>16, int32(after&0xffff), upto>>16, int32(upto&0xffff), int32(rows)
		row, err := q.WebhookDeliveryCreate(ctx, p)
		created.Deliveries, created.More = row.Deliveries, row.Scanned == rows
		return err
	})
	return created, err
}
