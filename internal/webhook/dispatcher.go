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
	"github.com/ojsd/ojsd/internal/service"
)

const (
	// busyPoll and idlePoll are how often a node polls without a wake-up: the node with the lease may have died, or LISTEN
	// may not work. A lost wake-up delays a first attempt by at most one of them.
	busyPoll = 5 * time.Second
	idlePoll = time.Minute

	// claimRest lets wake-ups at the same time share a claim. A long transaction anywhere in the cluster makes claims read
	// dead index entries (2 µs each), so claims take at most half of the time. longClaimRest bounds the rest: a claim of
	// minutes must not silence the node for minutes.
	claimRest     = 5 * time.Millisecond
	claimShare    = 1
	longClaimRest = 5 * time.Second

	// Status tells of an outage only after degradedAfter, so that a restart of the database does not degrade the node.
	errorPause    = time.Second
	degradedAfter = 30 * time.Second // of failed claims

	// finishInterval is the least time between two looks for changes whose deliveries have not followed. An idle node looks when
	// it polls, every minute.
	finishInterval = 10 * time.Second

	busyMaintain = time.Minute
	idleMaintain = 10 * time.Minute

	// stopGrace is how long requests may still take when the node stops. Then they are cancelled, and another node sends
	// them. A longer grace would delay every stop by the slowest endpoint.
	stopGrace = 5 * time.Second

	// See record.
	recordTries = 5
)

// Dispatcher sends due deliveries, on every node, at most Config.Workers at a time.
//
// One goroutine runs loop; each request has another one. running is the number of requests, raised by the loop only, so the
// loop never starts more than Workers. wake has room for one signal: a second one would lead to the same claim. senders is
// waited for at the stop.
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

	// Only the loop uses them.
	maintainAt, finishAt, warnedAt time.Time
	lost                           []Delivery // of claims that perhaps have committed
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

// Status is ok, or degraded if claims have failed for 30 s. The time comes from a clock that cannot be set (package clock).
func (d *Dispatcher) Status() string {
	if since := d.failing.Load(); since != 0 && clock.Running()-time.Duration(since) > degradedAfter {
		return "degraded"
	}
	return "ok"
}

// Start runs the loop until stopped. It claims at once: deliveries may have waited while no node ran. A stop ends the loop
// first, gives the requests stopGrace, cuts them off then, and returns when each has recorded its outcome or released its
// lease.
func (d *Dispatcher) Start(ctx context.Context) error {
	service.Run(ctx, &d.BaseStartStop, d.run)
	return nil
}

// run lets the requests that it has started end, for at most stopGrace.
func (d *Dispatcher) run(ctx context.Context) {
	// Requests must not end with ctx: they have their grace.
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	d.loop(ctx, sending)
	// Only when the loop has ended: before, a request could still be started.
	timer := time.AfterFunc(stopGrace, cut)
	defer timer.Stop()
	d.senders.Wait()
	// Connections would otherwise outlive the service.
	d.sender.client.CloseIdleConnections()
}

// loop ends with ctx. The requests that it has started go on until sending ends, at most stopGrace later. The rest after a
// pass is not cut short by a wake-up; the wake-up stays in the channel and is taken after it.
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

// pass claims and starts due deliveries, and returns when the next pass is due without a wake-up. It runs in one goroutine
// per node and starts requests without waiting for them.
func (d *Dispatcher) pass(ctx, sending context.Context) time.Duration {
	want := d.config.Workers - int(d.running.Load())
	// No claim: a lease that waits for a free worker would run out.
	if want <= 0 {
		return busyPoll // a request that finishes wakes the loop
	}
	// Before the claim, so that the claim finds what was released.
	d.releaseLost(ctx)
	// A stop must not cut the claim off from its result: what it has leased would wait for the end of the lease.
	claimed, err := d.store.ClaimDeliveries(context.WithoutCancel(ctx), want)
	if err != nil {
		// claimed has what the claim has returned before its commit was sent.
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
	// After the start of the requests, which need not wait for it.
	d.finishChanges(ctx)
	d.maintain(ctx)
	return d.nextPass(claimed)
}

// All lines of this loop are warnings: what has failed is tried again.
func (d *Dispatcher) warn(ctx context.Context, message string, err error) {
	d.Logger.WarnContext(ctx, message, slog.String("category", "webhook"), slog.Any("error", err))
}

// warnSealed logs, at most once a minute, the subscriptions that only nodes with another key can deliver. While keys are
// being changed it is normal that some nodes cannot open some secrets, hence a warning and no error.
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

// c.Next includes the ends of the leases of other nodes, so a delivery of a crashed node is claimed when its lease ends.
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

// running is lowered before Wake, so that the pass that is woken sees the room.
func (d *Dispatcher) start(ctx context.Context, delivery *Delivery) {
	d.running.Add(1)
	d.sent.Store(true)
	d.senders.Go(func() {
		defer d.Wake() // another request may start, of this node and of this subscription
		defer d.running.Add(-1)
		d.deliver(ctx, delivery)
	})
}
