package webhook

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"

	"github.com/ojsd/ojsd/internal/spec"
)

// testType is a type that webhooks alone send. It is never in the event log.
const testType = "webhook.test"

// Tested is the result of a test. Success false is no error of the call (docs/reference/webhooks.md, Test event).
type Tested struct {
	DeliveryID string
	Success    bool
	Result
}

// envelope has the members of an event in the order of docs/reference/events.md, Envelope. Events of the log get their
// envelope in SQL (ojs.webhook_body); a test event is in no log, so it is made here.
type envelope struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Type            string          `json:"type"`
	Source          string          `json:"source"`
	Time            string          `json:"time"`
	Subject         string          `json:"subject"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	Data            json.RawMessage `json:"data"`
}

// Test sends one signed event in one attempt and waits for the answer. It also tests inactive subscriptions. It goes past
// the claim, max_in_flight and the schedule. Of the subscription it changes the latest status and, if it succeeds, the
// proven secret, but no count. It holds no transaction while it waits for the endpoint. If the log cannot be written, the
// caller gets an error although the request was made.
func (d *Dispatcher) Test(ctx context.Context, w *Webhook) (Tested, error) {
	secrets, err := d.store.SecretsOf(ctx, w.ID)
	if err != nil {
		return Tested{}, err
	}
	now, err := d.store.db.Now(ctx)
	if err != nil {
		return Tested{}, pg.ClientError(err)
	}
	m, err := d.testMessage(w, secrets, now)
	if err != nil {
		return Tested{}, err
	}
	res := d.sender.send(context.WithoutCancel(ctx), m) // the attempt is logged even if the client has disconnected
	status := "dead"
	if res.accepted() {
		status = "delivered"
	}
	id, _ := spec.ParseUUIDv7(m.ID[len(DeliveryPrefix):])
	err = d.store.LogTest(context.WithoutCancel(ctx), TestDelivery{
		DeliveryOutcome: DeliveryOutcome{
			ID: id, Status: status, Code: res.Code, Error: res.Error, Snippet: res.Snippet, Duration: res.Duration, Secret: m.Signer.ID,
		},
		Webhook: w.ID, At: now, Type: testType, Subject: m.Webhook, Body: m.Body,
	})
	return Tested{DeliveryID: m.ID, Success: status == "delivered", Result: res}, err
}

// Attempt 1 signs with the secret that a real first attempt would use.
func (d *Dispatcher) testMessage(w *Webhook, secrets []Secret, now time.Time) (*Message, error) {
	webhook := ID(w.ID)
	data, err := json.Marshal(map[string]string{"message": "This is a test of the webhook subscription.", "subscription_id": webhook})
	if err != nil {
		return nil, err
	}
	e := envelope{
		SpecVersion: "1.0", ID: "evt_" + spec.FormatID(job.NewID()), Type: testType, Source: "ojs://" + d.config.Service + "/api",
		Time: spec.FormatTime(now), Subject: webhook, Data: data,
	}
	if w.PayloadFormat == "cloudevents" {
		e.Type, e.DataContentType = "org.openjobspec."+testType, "application/json"
	}
	body, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return &Message{
		URL: w.Url, ID: DeliveryID(job.NewID()), Webhook: webhook, EventID: e.ID, EventType: testType, Attempt: 1,
		Body: string(body), Secrets: secrets, Signer: signer(secrets, w.ProvenSecret.Bytes, 1), Standard: w.StandardWebhooks,
		CloudEvents: w.PayloadFormat == "cloudevents", Timeout: time.Duration(w.TimeoutMs) * time.Millisecond,
		Clock: NewClock(now),
	}, nil
}

// TestDelivery is the one attempt of a test event.
type TestDelivery struct {
	DeliveryOutcome
	Webhook [16]byte
	At      time.Time
	Type    string
	Subject string
	Body    string
}

// LogTest writes a test delivery to the delivery log. The row has position 0, which no event has, so it can be neither
// retried nor replayed.
func (s *Store) LogTest(ctx context.Context, t TestDelivery) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.PartlyError(s.db.Q.WebhookDeliveryInsertTest(ctx, dbsqlc.WebhookDeliveryInsertTestParams{
		ID: t.ID, WebhookID: t.Webhook, EventTime: pg.Timestamp(t.At), EventType: t.Type, Subject: t.Subject, Body: t.Body, Status: t.Status,
		Code: int32(t.Code), Error: t.Error, Snippet: t.Snippet, DurationMs: t.Duration.Milliseconds(), Secret: t.Secret,
	}))
}
