package webhook

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/internal/tracing"
)

const (
	// busyLook and idleLook are how often a node looks although nobody has called it: the node that a delivery was leased to
	// may be gone, or LISTEN may not work.
	busyLook = 5 * time.Second
	idleLook = time.Minute

	// claimRest lets what happens at the same time share a claim. A long transaction anywhere in the cluster makes claims walk
	// dead entries (2 µs each), so they never take more than half of the time.
	claimRest     = 5 * time.Millisecond
	claimShare    = 1
	longClaimRest = 5 * time.Second

	errorPause = time.Second
	failedLate = 30 * time.Second // after which health calls the dispatcher degraded

	busyPrune = time.Minute
	idlePrune = 10 * time.Minute

	// stopGrace is how long requests may still take when the node stops. What is cut off then is given back.
	stopGrace = 5 * time.Second

	recordTries = 5
)

// Dispatcher sends what is due, on every node, at most Config.Workers at a time.
type Dispatcher struct {
	baseservice.BaseService
	startstop.BaseStartStop

	config Config
	store  *store.Store
	sender *sender

	wake    chan struct{}
	running atomic.Int64
	senders sync.WaitGroup
	stirred atomic.Bool  // something was sent since the last prune
	failing atomic.Int64 // local time of the first failed claim since a good one, in ns; 0: none

	pruneAt, warnedAt time.Time // of the loop
}

// NewDispatcher returns a dispatcher; Start it.
func NewDispatcher(archetype *baseservice.Archetype, s *store.Store, config Config) *Dispatcher {
	config = config.withDefaults()
	return baseservice.Init(archetype, &Dispatcher{config: config, store: s, sender: newSender(config), wake: make(chan struct{}, 1)})
}

// Wake says that something may be due. It does not block.
func (d *Dispatcher) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Status is ok, or degraded if due deliveries could not be claimed for a while.
func (d *Dispatcher) Status() string {
	if since := d.failing.Load(); since != 0 && time.Since(time.Unix(0, since)) > failedLate {
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
		start := time.Now()
		timer.Reset(d.pass(ctx, sending))
		serviceutil.CancellableSleep(ctx, min(max(claimRest, claimShare*time.Since(start)), longClaimRest))
	}
}

// pass claims and starts what is due, and returns when to look again without being woken.
func (d *Dispatcher) pass(ctx, sending context.Context) time.Duration {
	want := d.config.Workers - int(d.running.Load())
	if want <= 0 {
		return busyLook // whoever finishes wakes the loop
	}
	claimed, err := d.store.ClaimDeliveries(ctx, want)
	if err != nil {
		if ctx.Err() == nil {
			d.failing.CompareAndSwap(0, time.Now().UnixNano())
			d.Logger.WarnContext(ctx, "webhook deliveries were not claimed", slog.String("category", "webhook"), slog.Any("error", err))
		}
		serviceutil.CancellableSleep(ctx, errorPause) // whoever calls meanwhile would only fail, too
		return 0
	}
	d.failing.Store(0)
	d.warnSealed(ctx, claimed.Sealed)
	for i := range claimed.Deliveries {
		d.start(sending, &claimed.Deliveries[i])
	}
	d.prune(ctx)
	return d.nextLook(claimed)
}

// warnSealed says, now and then, which subscriptions are left to nodes that have their key.
func (d *Dispatcher) warnSealed(ctx context.Context, sealed [][16]byte) {
	if len(sealed) == 0 || time.Since(d.warnedAt) < time.Minute {
		return
	}
	d.warnedAt = time.Now()
	ids := make([]string, len(sealed))
	for i, id := range sealed {
		ids[i] = store.WebhookID(id)
	}
	d.Logger.WarnContext(ctx, "webhook secrets are sealed with a key that this node does not have; nodes that have it deliver",
		slog.String("category", "webhook"), slog.Group("attributes", "subscription_ids", ids))
}

func (d *Dispatcher) nextLook(c store.Claimed) time.Duration {
	look := idleLook
	if len(c.Deliveries) > 0 || d.running.Load() > 0 {
		look = busyLook
	}
	if c.Next >= 0 {
		return min(c.Next, look)
	}
	return look
}

func (d *Dispatcher) start(ctx context.Context, delivery *store.Delivery) {
	d.running.Add(1)
	d.stirred.Store(true)
	d.senders.Go(func() {
		defer d.Wake() // there is room again, here and for this subscription
		defer d.running.Add(-1)
		d.deliver(ctx, delivery)
	})
}

// deliver makes one attempt and records it. ctx ends when the node will wait no longer.
func (d *Dispatcher) deliver(ctx context.Context, delivery *store.Delivery) {
	attempt := int(delivery.AttemptCount) + 1
	signer := signer(delivery.Secrets, delivery.ProvenSecret.Bytes, attempt)
	res := Result{Error: "lease_lost"}
	if delivery.Lost < maxLost {
		res = d.send(ctx, d.message(delivery, signer, attempt), delivery.TraceID.String)
	}
	if ctx.Err() != nil && res.Code == 0 {
		d.giveBack(delivery)
		return
	}
	o, gone := d.config.judge(res, attempt-int(delivery.RoundStart))
	o.ID, o.Webhook, o.Claims, o.Secret = delivery.ID, delivery.WebhookID, delivery.Claims, signer.ID
	if gone {
		o.GoneURL = delivery.Url
	}
	d.record(context.WithoutCancel(ctx), delivery, o, attempt)
}

// send makes the request inside a span of the event's trace.
func (d *Dispatcher) send(ctx context.Context, m *Message, traceID string) Result {
	ctx, traceparent, span := d.config.Tracer.Deliver(ctx, traceID)
	m.Traceparent = traceparent
	res := d.sender.send(ctx, m)
	if span.Recording() {
		span.End(deliverySpan(m, res))
	}
	return res
}

func deliverySpan(m *Message, res Result) tracing.Outcome {
	o := tracing.Outcome{Name: "ojs.webhook.deliver", ErrorType: res.Error, Attrs: []attribute.KeyValue{
		attribute.String("ojs.event.type", m.EventType), attribute.String("ojs.event.id", m.EventID), attribute.String("ojs.webhook.delivery_id", m.ID),
		attribute.String("ojs.webhook.subscription_id", m.Webhook), attribute.Int("ojs.webhook.attempt", m.Attempt),
	}}
	if res.Code > 0 {
		o.Attrs = append(o.Attrs, attribute.Int("http.response.status_code", res.Code))
	}
	switch {
	case res.accepted():
		o.OK = true
	case res.Error == "":
		o.Failed, o.ErrorType, o.ErrorMessage = true, strconv.Itoa(res.Code), "the endpoint answered "+strconv.Itoa(res.Code)
	default:
		o.Failed, o.ErrorMessage = true, res.Error
	}
	return o
}

func (d *Dispatcher) message(delivery *store.Delivery, signer store.Secret, attempt int) *Message {
	return &Message{
		URL: delivery.Url, ID: store.DeliveryID(delivery.ID), Webhook: store.WebhookID(delivery.WebhookID),
		EventID: eventID(delivery), EventType: delivery.EventType, Attempt: attempt, Body: delivery.Body,
		Secrets: delivery.Secrets, Signer: signer, Standard: delivery.StandardWebhooks, CloudEvents: delivery.Format == "cloudevents",
		Timeout: time.Duration(delivery.TimeoutMs) * time.Millisecond,
	}
}

func eventID(delivery *store.Delivery) string {
	return eventlog.NewPosition(delivery.EventTime.Time, delivery.EventSeq, delivery.EventSub).String()
}

// giveBack lets another node send at once what this one will not wait for. If that fails, the lease runs out.
func (d *Dispatcher) giveBack(delivery *store.Delivery) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := d.store.ReleaseDelivery(ctx, delivery.ID, delivery.Claims); err != nil {
		d.Logger.WarnContext(ctx, "webhook delivery was not given back", slog.String("category", "webhook"), slog.Any("error", err))
	}
}

// record tries for as long as the lease lasts: an outcome that is lost is sent again.
func (d *Dispatcher) record(ctx context.Context, delivery *store.Delivery, o store.DeliveryOutcome, attempt int) {
	pause := errorPause
	for try := 1; ; try++ {
		recorded, err := d.store.RecordDelivery(ctx, o)
		if err == nil {
			d.tell(ctx, delivery, o, recorded, attempt)
			return
		}
		d.Logger.WarnContext(ctx, "outcome of a webhook delivery was not recorded", slog.String("category", "webhook"), slog.Any("error", err))
		if try == recordTries {
			return
		}
		serviceutil.CancellableSleep(ctx, pause)
		pause *= 2
	}
}

// tell counts and logs what has been recorded.
func (d *Dispatcher) tell(ctx context.Context, delivery *store.Delivery, o store.DeliveryOutcome, recorded store.Recorded, attempt int) {
	if !recorded.Counted {
		return
	}
	webhook := store.WebhookID(delivery.WebhookID)
	status := map[string]string{"delivered": "success", "failed": "failed", "dead": "dead"}[o.Status]
	d.config.Observer.Attempt(delivery.EventType, webhook, status, o.Duration)
	if o.Status != "failed" {
		d.config.Observer.Done(delivery.EventType, attempt-1)
	}
	about := slog.Group("attributes", "subscription_id", webhook, "delivery_id", store.DeliveryID(delivery.ID),
		"attempt", attempt, "status_code", o.Code, "error", o.Error)
	fields := []any{"event_id", eventID(delivery)}
	if strings.HasPrefix(delivery.EventType, "job.") {
		fields = append(fields, "job_id", delivery.Subject)
	}
	event := slog.Group("ojs", fields...)
	if o.Status == "dead" {
		d.Logger.WarnContext(ctx, "webhook delivery given up", slog.String("category", "webhook"), event, about)
	}
	if recorded.Disabled != "" {
		d.Logger.WarnContext(ctx, "webhook subscription disabled", slog.String("category", "webhook"), event, about, slog.String("reason", recorded.Disabled))
	}
}

// prune removes what is older than retention, now and then.
func (d *Dispatcher) prune(ctx context.Context) {
	if time.Now().Before(d.pruneAt) {
		return
	}
	interval := idlePrune
	if d.stirred.Swap(false) {
		interval = busyPrune
	}
	d.pruneAt = time.Now().Add(interval)
	if err := d.store.CancelOrphans(ctx); err != nil && ctx.Err() == nil {
		d.Logger.WarnContext(ctx, "deliveries of deleted webhook subscriptions were not cancelled", slog.String("category", "webhook"), slog.Any("error", err))
	}
	if healed, err := d.store.HealDeliveries(ctx); err != nil && ctx.Err() == nil {
		d.Logger.WarnContext(ctx, "waiting webhook deliveries were not looked at", slog.String("category", "webhook"), slog.Any("error", err))
	} else if healed > 0 {
		d.Logger.ErrorContext(ctx, "webhook deliveries waited for nobody", slog.String("category", "webhook"), slog.Group("attributes", "deliveries", healed))
		d.Wake()
	}
	for d.config.Retention > 0 && ctx.Err() == nil {
		n, err := d.store.PruneDeliveries(ctx, d.config.Retention)
		if err != nil && ctx.Err() == nil {
			d.Logger.WarnContext(ctx, "webhook deliveries were not pruned", slog.String("category", "webhook"), slog.Any("error", err))
		}
		if err != nil || n < 1000 {
			return
		}
	}
}
