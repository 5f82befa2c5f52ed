package webhook

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// busyPoll and idlePoll are how often a node polls without a wake-up: the node with the lease may have died, or LISTEN
	// may not work.
	busyPoll = 5 * time.Second
	idlePoll = time.Minute

	// claimRest lets wake-ups at the same time share a claim. A long transaction anywhere in the cluster makes claims read
	// dead index entries (2 µs each), so claims take at most half of the time.
	claimRest     = 5 * time.Millisecond
	claimShare    = 1
	longClaimRest = 5 * time.Second

	errorPause    = time.Second
	degradedAfter = 30 * time.Second // of failed claims

	busyMaintain = time.Minute
	idleMaintain = 10 * time.Minute

	// stopGrace is how long requests may still take when the node stops. Then they are cancelled, and another node sends them.
	stopGrace = 5 * time.Second

	recordTries = 5
)

// Dispatcher sends due deliveries, on every node, at most Config.Workers at a time.
type Dispatcher struct {
	baseservice.BaseService
	startstop.BaseStartStop

	config Config
	store  *Store
	sender *sender

	wake    chan struct{}
	running atomic.Int64
	senders sync.WaitGroup
	sent    atomic.Bool  // a delivery was sent since the last maintain
	failing atomic.Int64 // clock.Running at the first failed claim since a successful one; 0: none

	maintainAt, warnedAt time.Time  // only the loop uses them
	lost                 []Delivery // the same; of claims that perhaps have committed
}

// NewDispatcher returns a dispatcher; Start it.
func NewDispatcher(archetype *baseservice.Archetype, s *Store, config Config) *Dispatcher {
	config = config.withDefaults()
	return baseservice.Init(archetype, &Dispatcher{config: config, store: s, sender: newSender(config), wake: make(chan struct{}, 1)})
}

// Wake runs a claim soon, because a delivery may be due. It does not block.
func (d *Dispatcher) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Status is ok, or degraded if claims have failed for 30 s.
func (d *Dispatcher) Status() string {
	if since := d.failing.Load(); since != 0 && clock.Running()-time.Duration(since) > degradedAfter {
		return "degraded"
	}
	return "ok"
}

// Start runs the loop until stopped.
func (d *Dispatcher) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := d.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		sending, cut := context.WithCancel(context.WithoutCancel(ctx))
		defer cut()
		d.loop(ctx, sending)
		timer := time.AfterFunc(stopGrace, cut)
		defer timer.Stop()
		d.senders.Wait()
		d.sender.client.CloseIdleConnections()
	}()
	return nil
}

// loop ends with ctx. The requests that it has started go on until sending ends, at most stopGrace later.
func (d *Dispatcher) loop(ctx, sending context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return
		}
		start := time.Now()
		timer.Reset(d.pass(ctx, sending))
		serviceutil.CancellableSleep(ctx, min(max(claimRest, claimShare*time.Since(start)), longClaimRest))
	}
}

// pass claims and starts due deliveries, and returns when the next pass is due without a wake-up.
func (d *Dispatcher) pass(ctx, sending context.Context) time.Duration {
	want := d.config.Workers - int(d.running.Load())
	if want <= 0 {
		return busyPoll // a request that finishes wakes the loop
	}
	d.releaseLost(ctx)
	// A stop must not cut the claim off from its result: what it has leased would wait for the end of the lease.
	claimed, err := d.store.ClaimDeliveries(context.WithoutCancel(ctx), want)
	if err != nil {
		if pg.IsUnknown(err) {
			d.lost = append(d.lost, claimed.Deliveries...)
		}
		if ctx.Err() == nil {
			d.failing.CompareAndSwap(0, int64(clock.Running()))
			d.warn(ctx, "webhook deliveries were not claimed; trying again", err)
		}
		serviceutil.CancellableSleep(ctx, errorPause) // even if Wake is called meanwhile
		return 0
	}
	d.failing.Store(0)
	d.warnSealed(ctx, claimed.Sealed)
	for i := range claimed.Deliveries {
		d.start(sending, &claimed.Deliveries[i])
	}
	d.maintain(ctx)
	return d.nextPass(claimed)
}

func (d *Dispatcher) warn(ctx context.Context, message string, err error) {
	d.Logger.WarnContext(ctx, message, slog.String("category", "webhook"), slog.Any("error", err))
}

// warnSealed logs, at most once a minute, the subscriptions that only nodes with another key can deliver.
func (d *Dispatcher) warnSealed(ctx context.Context, sealed [][16]byte) {
	if len(sealed) == 0 || time.Since(d.warnedAt) < time.Minute {
		return
	}
	d.warnedAt = time.Now()
	ids := make([]string, len(sealed))
	for i, id := range sealed {
		ids[i] = ID(id)
	}
	d.Logger.WarnContext(ctx, "webhook secrets are sealed with a key that this node does not have; only nodes that have it deliver. "+
		"Add it to OJS_WEBHOOKS_ENCRYPTION_KEY",
		slog.String("category", "webhook"), slog.Group("attributes", "subscription_ids", ids))
}

func (d *Dispatcher) nextPass(c Claimed) time.Duration {
	next := idlePoll
	if len(c.Deliveries) > 0 || d.running.Load() > 0 {
		next = busyPoll
	}
	if c.Next >= 0 {
		return min(c.Next, next)
	}
	return next
}

func (d *Dispatcher) start(ctx context.Context, delivery *Delivery) {
	d.running.Add(1)
	d.sent.Store(true)
	d.senders.Go(func() {
		defer d.Wake() // another request may start, of this node and of this subscription
		defer d.running.Add(-1)
		d.deliver(ctx, delivery)
	})
}
