package webhook

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
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

	// errorPause follows an error. Status tells of an outage only after degradedAfter, so that a restart of the database does not degrade
	// the node.
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

	// recordTries is for record.
	recordTries = 5
)

// Dispatcher sends due deliveries, on every node, at most config.Webhooks.Workers at a time.
//
// One goroutine claims; each request has another one. running is the number of requests, raised by the first only, so it
// never starts more than Workers. wake has room for one signal: a second one would lead to the same claim. senders is
// waited for at the stop.
type Dispatcher struct {
	baseservice.BaseService
	startstop.BaseStartStop

	config config.Config
	deps   DispatcherDeps
	store  *Store
	sender *sender

	wake    chan struct{}
	running atomic.Int64
	owners  owners
	senders sync.WaitGroup
	sent    atomic.Bool  // a delivery was sent since the last maintain
	failing atomic.Int64 // clock.Running at the first failed claim since a successful one; 0: none

	// Only the loop uses them.
	maintainAt, finishAt, warnedAt time.Time
	lost                           []Delivery // of claims that perhaps have committed
}

// NewDispatcher returns a dispatcher; Start it.
func NewDispatcher(archetype *baseservice.Archetype, s *Store, c config.Config, deps DispatcherDeps) *Dispatcher {
	// Functions that do nothing save a test for nil at each call.
	if deps.Observer.Attempt == nil {
		deps.Observer.Attempt = func(string, string, string, time.Duration) {}
	}
	if deps.Observer.Done == nil {
		deps.Observer.Done = func(string, int) {}
	}
	return baseservice.Init(archetype, &Dispatcher{config: c, deps: deps, store: s, sender: newSender(c.Webhooks, deps),
		wake: make(chan struct{}, 1)})
}

// Wake runs a claim soon, because a delivery may be due. It does not block.
func (d *Dispatcher) Wake() { loop.Signal(d.wake) }

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
	loop.Run(ctx, &d.BaseStartStop, d.run)
	return nil
}

// run claims until ctx ends. The requests that it has started go on, for at most stopGrace. The rest after a pass is not cut short by a
// wake-up; the wake-up stays in the channel and is taken after it.
func (d *Dispatcher) run(ctx context.Context) {
	// Requests must not end with ctx: they have their grace.
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	next := time.NewTimer(0)
	defer next.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-next.C:
		}
		if ctx.Err() == nil {
			start := time.Now()
			next.Reset(d.pass(ctx, sending))
			serviceutil.CancellableSleep(ctx, min(max(claimRest, claimShare*time.Since(start)), longClaimRest))
		}
	}
	// Only when no request can be started any more.
	grace := time.AfterFunc(stopGrace, cut)
	defer grace.Stop()
	d.senders.Wait()
	// Connections would otherwise outlive the service.
	d.sender.client.CloseIdleConnections()
}

// pass claims and starts due deliveries, and returns when the next pass is due without a wake-up. It runs in one goroutine
// per node and starts requests without waiting for them.
func (d *Dispatcher) pass(ctx, sending context.Context) time.Duration {
	want := d.config.Webhooks.Workers - int(d.running.Load())
	// No claim: a lease that waits for a free worker would run out.
	if want <= 0 {
		return busyPoll // a request that finishes wakes the loop
	}
	// Before the claim, so that the claim finds what was released.
	d.releaseLost(ctx)
	// A stop must not cut the claim off from its result: what it has leased would wait for the end of the lease.
	claimed, err := d.store.ClaimDeliveries(context.WithoutCancel(ctx), d.owners.share(want, d.config.Webhooks.Workers))
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
		delivery := &claimed.Deliveries[i]
		d.running.Add(1)
		d.owners.add(delivery.Owner, 1)
		d.sent.Store(true)
		d.senders.Go(func() {
			defer d.Wake() // another request may start, of this node and of this subscription
			// Before Wake, so that the pass that is woken sees the room.
			defer func() {
				d.owners.add(delivery.Owner, -1)
				d.running.Add(-1)
			}()
			d.deliver(sending, delivery)
		})
	}
	// After the start of the requests, which need not wait for it.
	d.finishChanges(ctx)
	d.maintain(ctx)
	next := idlePoll
	if len(claimed.Deliveries) > 0 || d.running.Load() > 0 {
		next = busyPoll
	}
	// Next includes the ends of the leases of other nodes, so a delivery of a crashed node is claimed when its lease ends.
	if claimed.Next >= 0 {
		next = min(next, claimed.Next)
	}
	return next
}

// owners are the requests that a node runs for each owner of subscriptions: a tenant, or a subscription without one.
type owners struct {
	mu      sync.Mutex
	running map[string]int64
}

func (o *owners) add(owner string, n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = map[string]int64{}
	}
	if o.running[owner] += n; o.running[owner] == 0 {
		delete(o.running, owner)
	}
}

// share is what a node with so many workers may claim: at most want, and for one owner half of the workers with what it has.
func (o *owners) share(want, workers int) Share {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := Share{Want: want, OwnerRoom: max(1, workers/2)}
	for owner, n := range o.running {
		s.Owners, s.Running = append(s.Owners, owner), append(s.Running, n)
	}
	return s
}

// warn is for all lines of the loop: what has failed is tried again.
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

// leaseRoom is how long a lease lasts beyond the timeout of its request, so that the outcome can be recorded in it. Less,
// and a short outage of the database would have deliveries sent twice; more, and a delivery of a crashed node waits longer
// (docs/reference/webhooks.md, Deliveries).
const leaseRoom = 30 * time.Second

// Delivery is a delivery that this node has claimed. It is a copy of what the claim has read; only this node uses it, and
// the number in Claims is its right to record. Secrets is empty if the table of secrets was changed by hand.
type Delivery struct {
	dbsqlc.WebhookDeliveryClaimRow
	Secrets []Secret // newest first
	Clock   Clock
}

// Claimed is the result of a claim. Sealed is for a warning only: their deliveries stay due, for a node with the key.
type Claimed struct {
	Deliveries []Delivery
	Sealed     [][16]byte    // subscriptions whose secrets this node cannot open
	Next       time.Duration // until the next delivery is due; negative: none waits
}

// Share is what a node claims at most: Want deliveries, and OwnerRoom of one owner together with those that it runs, of which Running has
// the number for each of Owners.
type Share struct {
	Want, OwnerRoom int
	Owners          []string
	Running         []int64
}

// ClaimDeliveries leases at most Want due deliveries to this node (docs/reference/webhooks.md, Deliveries). The claim is
// committed when it returns; send them only then. After an error that pg.IsUnknown they may be leased all the same, and should be
// released. Any number of nodes may call it at once: the locks of the subscriptions put the claims of one subscription in a
// row, so max_in_flight holds over all nodes. It may return fewer than Want although more are due. The clock is read in the
// same transaction, after the claim.
func (s *Store) ClaimDeliveries(ctx context.Context, share Share) (c Claimed, err error) {
	err = s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		c = Claimed{}
		// This is the first statement with a lock. The next ones have later snapshots, so they count what the holder before has
		// claimed.
		locked, err := q.WebhookDeliveryLock(ctx)
		if err != nil {
			return err
		}
		if len(locked) > 0 {
			// The secrets are read under the locks of their subscriptions, so a rotation comes before or after the claim as a whole.
			secrets, sealed, err := s.secretsOf(ctx, q, locked)
			if err != nil {
				return err
			}
			c.Sealed = sealed
			// A delivery must not be leased by a node that cannot sign it; another one may. If none is left the claim runs all the
			// same and finds nothing.
			ours := slices.DeleteFunc(locked, func(id [16]byte) bool { return slices.Contains(sealed, id) })
			rows, err := q.WebhookDeliveryClaim(ctx, dbsqlc.WebhookDeliveryClaimParams{
				WebhookIds: ours, MaxRows: int32(share.Want), LeaseRoomMs: int32(leaseRoom.Milliseconds()),
				Owners: share.Owners, Running: share.Running, OwnerRoom: int64(share.OwnerRoom),
			})
			if err != nil {
				return err
			}
			for _, row := range rows {
				c.Deliveries = append(c.Deliveries, Delivery{WebhookDeliveryClaimRow: row, Secrets: secrets[row.WebhookID]})
			}
		}
		// After the claim, so the ends of the new leases are among the times.
		due, err := q.WebhookDeliveryGetNextDue(ctx)
		c.Next = time.Duration(due.WaitMs) * time.Millisecond
		for i := range c.Deliveries {
			c.Deliveries[i].Clock = NewClock(due.Now.Time)
		}
		return err
	})
	return c, err
}

// deliver makes one attempt and records it. ctx ends when the node stops and stopGrace is over. It runs in a goroutine of
// its own for each claimed delivery, and returns when the outcome is recorded, the lease was given back, or both have
// failed. In the last case the lease expires and any node sends again.
func (d *Dispatcher) deliver(ctx context.Context, delivery *Delivery) {
	attempt := int(delivery.AttemptCount) + 1
	// A NULL secret gives zero bytes, which no secret has.
	signer := signer(delivery.Secrets, delivery.ProvenSecret.Bytes, attempt)
	// After maxLost lost leases the request is not made at all: this attempt counts as failed, and the delivery goes on in
	// its schedule (docs/reference/webhooks.md, Deliveries).
	res := Result{Error: "lease_lost"}
	if delivery.Lost < maxLost {
		// Url, timeout and secrets are those at the claim. A change of the subscription has effect on the next attempt.
		m := &Message{
			URL: delivery.Url, ID: DeliveryID(delivery.ID), Webhook: ID(delivery.WebhookID),
			EventID: eventID(delivery), EventType: delivery.EventType, Attempt: attempt, Body: delivery.Body,
			Secrets: delivery.Secrets, Signer: signer, Standard: delivery.StandardWebhooks, CloudEvents: delivery.Format == "cloudevents",
			Timeout: time.Duration(delivery.TimeoutMs) * time.Millisecond, Clock: delivery.Clock,
		}
		// The span belongs to the trace of the event.
		ctx, traceparent, span := d.deps.Tracer.Deliver(ctx, delivery.TraceID.String)
		m.Traceparent = traceparent
		res = d.sender.send(ctx, m)
		if span.Recording() {
			span.End(deliverySpan(m, res))
		}
	}
	// The node stops and has cut the request off: the attempt does not count, and another node sends the delivery at once. With a
	// code the endpoint has answered, and the outcome counts although the node stops.
	if ctx.Err() != nil && res.Code == 0 {
		// The context of the request has ended. The number of the claim keeps it from ending the lease of another node that has
		// claimed since.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := d.store.ReleaseDelivery(ctx, delivery.ID, delivery.Claims); err != nil {
			d.warn(ctx, "webhook delivery "+DeliveryID(delivery.ID)+" was not released; another node sends it when its lease expires", err)
		}
		return
	}
	// RoundStart is subtracted, so that a manual retry has the whole schedule before it. The number that receivers see goes
	// on.
	o, gone := decide(d.config.Webhooks, res, attempt-int(delivery.RoundStart))
	o.ID, o.Webhook, o.Claims, o.Secret = delivery.ID, delivery.WebhookID, delivery.Claims, signer.ID
	if gone {
		o.GoneURL = delivery.Url
	}
	// The request has had its effect, so the outcome is recorded even if the node stops.
	d.record(context.WithoutCancel(ctx), delivery, o)
}

// deliverySpan describes an attempt. A status other than 2xx has no Error: the request worked, and the status is the error type of the
// span. The address is not among the attributes, as it may contain a token.
func deliverySpan(m *Message, res Result) tracing.Outcome {
	o := tracing.Outcome{Name: "ojs.webhook.deliver", ErrorType: res.Error, Attrs: []attribute.KeyValue{
		attribute.String("ojs.event.type", m.EventType), attribute.String("ojs.event.id", m.EventID),
		attribute.String("ojs.webhook.delivery_id", m.ID),
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

// eventID is the id that polling shows for the event, so receivers can compare the two.
func eventID(delivery *Delivery) string {
	return eventlog.NewPosition(delivery.EventTime.Time, delivery.EventSeq, delivery.EventSub).String()
}

// releaseLost releases the deliveries of claims whose commit was not answered, because nobody sends them. The number of a claim
// guards those that it did not get. If the database is still away, the next pass tries again. The loop calls it before each
// claim. The deliveries stay in d.lost in order until each release was answered.
func (d *Dispatcher) releaseLost(ctx context.Context) {
	for len(d.lost) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		err := d.store.ReleaseDelivery(ctx, d.lost[0].ID, d.lost[0].Claims)
		cancel()
		if err != nil {
			return
		}
		// Only after the release was answered.
		d.lost = d.lost[1:]
	}
}

// record tries for as long as the lease lasts: a delivery whose outcome is not recorded is sent again. The pauses of five
// tries are 1, 2, 4 and 8 s: half of leaseRoom.
func (d *Dispatcher) record(ctx context.Context, delivery *Delivery, o DeliveryOutcome) {
	pause := errorPause
	for try := 1; ; try++ {
		recorded, err := d.store.RecordDelivery(ctx, o)
		if err == nil {
			d.report(ctx, delivery, o, recorded)
			return
		}
		if try == recordTries {
			d.warn(ctx, "outcome of webhook delivery "+DeliveryID(delivery.ID)+" was not recorded; it is sent again when its lease expires",
				err)
			return
		}
		d.warn(ctx, "outcome of webhook delivery "+DeliveryID(delivery.ID)+" was not recorded; trying again", err)
		serviceutil.CancellableSleep(ctx, pause)
		pause *= 2
	}
}

// report counts and logs a recorded outcome. It counts what was recorded and not what was sent: an outcome of a lost lease
// is reported by the node whose outcome counts.
func (d *Dispatcher) report(ctx context.Context, delivery *Delivery, o DeliveryOutcome, recorded Recorded) {
	if !recorded.Counted {
		return
	}
	attempt := int(delivery.AttemptCount) + 1
	webhook := ID(delivery.WebhookID)
	status := map[string]string{"delivered": "success", "failed": "failed", "dead": "dead"}[o.Status]
	d.deps.Observer.Attempt(delivery.EventType, webhook, status, o.Duration)
	if o.Status != "failed" {
		d.deps.Observer.Done(delivery.EventType, attempt-1)
	}
	attributes := slog.Group("attributes", "subscription_id", webhook, "delivery_id", DeliveryID(delivery.ID),
		"attempt", attempt, "status_code", o.Code, "error", o.Error)
	fields := []any{"event_id", eventID(delivery)}
	// The subject of such an event is the id of the job.
	if strings.HasPrefix(delivery.EventType, "job.") {
		fields = append(fields, "job_id", delivery.Subject)
	}
	event := slog.Group("ojs", fields...)
	if o.Status == "dead" {
		d.Logger.WarnContext(ctx, "webhook delivery given up", slog.String("category", "webhook"), event, attributes)
	}
	if recorded.Disabled != "" {
		d.Logger.WarnContext(ctx, "webhook subscription disabled", slog.String("category", "webhook"), event, attributes,
			slog.String("reason", recorded.Disabled))
	}
}

// maxLost is how many leases in a row may expire before that counts as a failed attempt: a request that makes the node crash
// must not be repeated without end. A node that is killed loses its leases, too, so one or two prove nothing.
const maxLost = 5

// decide returns the outcome of an attempt (docs/reference/webhooks.md, Outcomes). try is its number within the schedule, from
// 1. gone means that the endpoint answered 410. 410 ends a delivery at once, whatever is left of the schedule. A status of
// 2xx is a failure if the response could not be read to its end. It has no effect of its own: record stores what it
// returns.
func decide(c config.Webhooks, res Result, try int) (o DeliveryOutcome, gone bool) {
	o = DeliveryOutcome{Code: res.Code, Error: res.Error, Snippet: res.Snippet, Duration: res.Duration}
	switch {
	case res.accepted():
		o.Status = "delivered"
	case res.Error == "" && res.Code == http.StatusGone:
		o.Status, gone = "dead", true
	case try > len(c.RetrySchedule):
		o.Status = "dead"
	default:
		// The random part keeps deliveries that failed together from being retried together.
		pause := c.RetrySchedule[try-1]
		pause += time.Duration(rand.Float64() * float64(c.RetryJitter) / 100 * float64(pause))
		o.Status, o.Delay = "failed", max(pause, res.RetryAfter)
	}
	return o, gone
}

// DeliveryOutcome is the outcome of one attempt. decide makes it; deliver adds the ids, the claim and the secret. Delay
// counts from the moment of the record, by the clock of the database.
type DeliveryOutcome struct {
	ID       [16]byte
	Webhook  [16]byte
	Claims   int32  // of the claim that it was made with
	Status   string // delivered, failed or dead
	GoneURL  string // the URL that answered 410, which disables the subscription; "": another answer
	Code     int    // HTTP status, 0: no response
	Error    string // Result.Error, or lease_lost; "": none
	Snippet  string // of the response
	Duration time.Duration
	Delay    time.Duration // failed: until the next attempt
	Secret   [16]byte      // that X-OJS-Signature was made with
}

// Recorded is the effect of an outcome. The zero value is that of an outcome that had no effect.
type Recorded struct {
	Counted  bool   // false: the lease had expired, and another node records the attempt
	Disabled string // why the outcome disabled the subscription; "": it did not
}

// RecordDelivery stores an outcome. Concurrent calls share a statement. It is committed when it returns without an error.
// It may be called again with the same outcome after an error, also if the first call has committed: the delivery is no
// longer in the state delivering then, and the second call counts nothing.
func (s *Store) RecordDelivery(ctx context.Context, o DeliveryOutcome) (Recorded, error) {
	return s.deliveries.Do(ctx, o)
}

// flushDeliveries locks the subscriptions before their deliveries, as every transaction does, or two could deadlock. A
// success counts even if the lease was lost, because the receiver has got the delivery; any other outcome of a lost lease
// is left to the node that claimed after it (WebhookDeliveryRecord).
func (s *Store) flushDeliveries(ctx context.Context, outcomes []DeliveryOutcome) ([]Recorded, error) {
	p := dbsqlc.WebhookDeliveryRecordParams{DisableAfterS: disableAfter.Seconds()}
	// No id is there twice, see NewStore.
	at := make(map[[16]byte]int, len(outcomes))
	var webhooks [][16]byte
	for i, o := range outcomes {
		at[o.ID] = i
		p.Ids, p.Claims, p.Statuses = append(p.Ids, o.ID), append(p.Claims, o.Claims), append(p.Statuses, o.Status)
		p.DisableUrls, p.Codes, p.Errors = append(p.DisableUrls, o.GoneURL), append(p.Codes, int32(o.Code)), append(p.Errors, o.Error)
		webhooks = append(webhooks, o.Webhook)
		p.Snippets, p.Secrets = append(p.Snippets, o.Snippet), append(p.Secrets, o.Secret)
		p.DurationsMs, p.DelaysMs = append(p.DurationsMs, o.Duration.Milliseconds()), append(p.DelaysMs, o.Delay.Milliseconds())
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.WebhookDeliveryRecordRow
	err := s.db.InTx(ctx, func(tx pgx.Tx) (err error) {
		q := dbsqlc.New(tx)
		// The statement after it decides about disabling and about the next delivery of a subject; under the lock no claim
		// and no fan-out of the subscription comes between.
		if err := q.WebhookLockByID(ctx, webhooks); err != nil {
			return err
		}
		rows, err = q.WebhookDeliveryRecord(ctx, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	recorded := make([]Recorded, len(outcomes))
	// Outcomes without a row keep the zero value.
	for _, row := range rows {
		recorded[at[row.ID]] = Recorded{Counted: true, Disabled: row.Disabled}
	}
	return recorded, nil
}

// ReleaseDelivery ends the lease of a delivery: it is due at once, and the attempt does not count. It does nothing if the
// delivery was claimed again or has ended. The notification is a statement of its own; without it the delivery waits for a
// poll.
func (s *Store) ReleaseDelivery(ctx context.Context, id [16]byte, claims int32) error {
	if err := s.db.Q.WebhookDeliveryRelease(ctx, id, claims); err != nil {
		return err
	}
	return s.db.Q.WebhookNotify(ctx)
}

// A change of a subscription that its unfinished deliveries have to follow sets marks in its row, in its own transaction:
// reorder_pending after a change of ordering, resume_pending after an activation. The deliveries follow in batches, outside of that
// transaction: there may be a million, and its lock would stop their claims meanwhile. The last batch clears the mark. So any
// node finishes what another one has begun.

// finishChanges runs more often than maintain, because deliveries may wait for it that are due. Like maintain it runs in the loop.
func (d *Dispatcher) finishChanges(ctx context.Context) {
	if time.Now().Before(d.finishAt) {
		return
	}
	d.finishAt = time.Now().Add(finishInterval)
	finished, err := d.store.FinishChanges(ctx)
	if err != nil && ctx.Err() == nil {
		d.warn(ctx, "deliveries did not follow a change of their webhook subscription; trying again later", err)
	}
	if finished > 0 {
		d.Wake() // deliveries have become due
	}
}

// FinishChanges finishes changes whose node has stopped, or was cut off from the database, before all deliveries followed.
// Any number of nodes may run it, also beside the call that made the change. It returns how many subscriptions it has found.
func (s *Store) FinishChanges(ctx context.Context) (int, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	unfinished, err := s.db.Q.WebhookListUnfinishedChanges(bounded)
	for _, id := range unfinished {
		err = errors.Join(err, s.finishChange(ctx, id))
	}
	return len(unfinished), err
}

// finishChange does nothing for a subscription without marks. Order: first which deliveries wait for others, then which are due.
// Fan-out passes meanwhile use the new settings already, as they read them under the lock.
func (s *Store) finishChange(ctx context.Context, id [16]byte) error {
	// It goes by the ordering that the subscription has now: a second change may have come since. The lock keeps the end of a
	// delivery, which makes the next one due, out of the batch.
	err := s.inBatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) (int64, error) {
		rows, err := q.WebhookGetForUpdate(ctx, id)
		if err != nil || len(rows) == 0 || !rows[0].ReorderPending {
			return 0, err
		}
		n, err := q.WebhookDeliveryReorder(ctx, dbsqlc.WebhookDeliveryReorderParams{WebhookID: id, Ordered: rows[0].Ordering == "subject",
			MaxRows: batchRows})
		if err != nil || n == batchRows {
			return n, err
		}
		return n, q.WebhookClearReorder(ctx, id)
	})
	if err != nil {
		return err
	}
	// It waits for the next activation if the subscription was deactivated again. Under the lock no activation comes between the
	// last batch and the end of the mark.
	return s.inBatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) (int64, error) {
		rows, err := q.WebhookGetForUpdate(ctx, id)
		if err != nil || len(rows) == 0 || !rows[0].ResumePending || !rows[0].Active {
			return 0, err
		}
		n, err := q.WebhookDeliveryResume(ctx, id, batchRows)
		if err != nil || n == batchRows {
			return n, err
		}
		return n, q.WebhookClearResume(ctx, id)
	})
}

// maintain repairs and prunes the deliveries at intervals. It runs in the loop, between claims, so a long prune delays the
// claims of this node.
func (d *Dispatcher) maintain(ctx context.Context) {
	if time.Now().Before(d.maintainAt) {
		return
	}
	interval := idleMaintain
	if d.sent.Swap(false) {
		interval = busyMaintain
	}
	d.maintainAt = time.Now().Add(interval)
	// Both are safety nets for what a stopped node has left in a wrong state: deliveries of a subscription whose delete was
	// interrupted, and those of a defect of the order.
	if err := d.store.CancelOrphans(ctx); err != nil && ctx.Err() == nil {
		d.warn(ctx, "deliveries of deleted webhook subscriptions were not cancelled; trying again later", err)
	}
	restarted, err := d.store.RestartStuckDeliveries(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		d.warn(ctx, "webhook deliveries were not checked for stuck ones; trying again later", err)
	case restarted > 0:
		d.Logger.ErrorContext(ctx, "webhook deliveries were stuck behind finished ones and have been restarted; please report this",
			slog.String("category", "webhook"), slog.Group("attributes", "deliveries", restarted))
		d.Wake()
	}
	// A portion per transaction keeps each lock short.
	for ctx.Err() == nil {
		n, err := d.store.PruneDeliveries(ctx, deliveryRetention)
		if err != nil && ctx.Err() == nil {
			d.warn(ctx, "old webhook deliveries were not deleted; trying again later", err)
		}
		if err != nil || n < pruneRows {
			return
		}
	}
}

// pruneRows bounds the deliveries that one statement deletes.
const pruneRows = 1000

// PruneDeliveries removes at most pruneRows finished deliveries that are older than keep, and returns how many. Several nodes
// may run it at once.
func (s *Store) PruneDeliveries(ctx context.Context, keep time.Duration) (n int64, err error) {
	err = s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		n, err = q.WebhookDeliveryPrune(ctx, int64(keep/time.Second), pruneRows)
		return err
	})
	return n, err
}

// RestartStuckDeliveries makes ordered deliveries due that wait although no earlier one of their subject is unfinished. Every
// finished delivery makes the next one due, so there should be none; see WebhookDeliveryMakeDue. Each subscription is
// locked for its look, because the end of a delivery and the next one's turn are one statement under the same lock: without
// it the look could come between. An error of one subscription does not keep the others from being looked at.
func (s *Store) RestartStuckDeliveries(ctx context.Context) (restarted int64, err error) {
	ordered, err := s.db.Q.WebhookListOrdered(ctx)
	for _, id := range ordered {
		var n int64
		err = errors.Join(err, s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
			if err := q.WebhookLockByID(ctx, [][16]byte{id}); err != nil {
				return err
			}
			n, err = q.WebhookDeliveryMakeDue(ctx, id)
			return err
		}))
		restarted += n
	}
	return restarted, err
}

// CancelOrphans cancels deliveries of deleted subscriptions: the node that deleted the subscription has stopped before it
// cancelled all of them. Any number of nodes may run it; a delivery is cancelled once.
func (s *Store) CancelOrphans(ctx context.Context) error {
	var orphans [][16]byte
	err := s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
		orphans, err = q.WebhookDeliveryListOrphans(ctx)
		return err
	})
	for _, webhook := range orphans {
		err = errors.Join(err, s.cancelDeliveries(ctx, webhook))
	}
	return err
}

// cancelDeliveries is for a deleted subscription: there is no row to lock, and no claim can find the deliveries.
func (s *Store) cancelDeliveries(ctx context.Context, webhook [16]byte) error {
	return s.inBatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) (int64, error) {
		return q.WebhookDeliveryCancel(ctx, webhook, batchRows)
	})
}
