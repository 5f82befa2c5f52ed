package webhook

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

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
		res = d.send(ctx, d.message(delivery, signer, attempt), delivery.TraceID.String)
	}
	// The node stops and has cut the request off: the attempt does not count. With a code the endpoint has answered, and
	// the outcome counts although the node stops.
	if ctx.Err() != nil && res.Code == 0 {
		d.release(delivery)
		return
	}
	// RoundStart is subtracted, so that a manual retry has the whole schedule before it. The number that receivers see goes
	// on.
	o, gone := d.config.decide(res, attempt-int(delivery.RoundStart))
	o.ID, o.Webhook, o.Claims, o.Secret = delivery.ID, delivery.WebhookID, delivery.Claims, signer.ID
	if gone {
		o.GoneURL = delivery.Url
	}
	// The request has had its effect, so the outcome is recorded even if the node stops.
	d.record(context.WithoutCancel(ctx), delivery, o)
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

// A status other than 2xx has no Error: the request worked, and the status is the error type of the span. The address is
// not among the attributes, as it may contain a token.
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

// Url, timeout and secrets are those at the claim. A change of the subscription has effect on the next attempt.
func (d *Dispatcher) message(delivery *Delivery, signer Secret, attempt int) *Message {
	return &Message{
		URL: delivery.Url, ID: DeliveryID(delivery.ID), Webhook: ID(delivery.WebhookID),
		EventID: eventID(delivery), EventType: delivery.EventType, Attempt: attempt, Body: delivery.Body,
		Secrets: delivery.Secrets, Signer: signer, Standard: delivery.StandardWebhooks, CloudEvents: delivery.Format == "cloudevents",
		Timeout: time.Duration(delivery.TimeoutMs) * time.Millisecond, Clock: delivery.Clock,
	}
}

// It is the id that polling shows for the event, so receivers can compare the two.
func eventID(delivery *Delivery) string {
	return eventlog.NewPosition(delivery.EventTime.Time, delivery.EventSeq, delivery.EventSub).String()
}

// release lets another node send a delivery at once whose request was cancelled. If that fails, the lease expires. It has a
// second and a context of its own, because that of the request has ended. The number of the claim keeps it from ending the
// lease of another node that has claimed since.
func (d *Dispatcher) release(delivery *Delivery) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := d.store.ReleaseDelivery(ctx, delivery.ID, delivery.Claims); err != nil {
		d.warn(ctx, "webhook delivery "+DeliveryID(delivery.ID)+" was not released; another node sends it when its lease expires", err)
	}
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
			d.warn(ctx, "outcome of webhook delivery "+DeliveryID(delivery.ID)+" was not recorded; it is sent again when its lease expires", err)
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
	d.config.Observer.Attempt(delivery.EventType, webhook, status, o.Duration)
	if o.Status != "failed" {
		d.config.Observer.Done(delivery.EventType, attempt-1)
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
		d.Logger.WarnContext(ctx, "webhook subscription disabled", slog.String("category", "webhook"), event, attributes, slog.String("reason", recorded.Disabled))
	}
}
