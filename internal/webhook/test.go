package webhook

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"

	"github.com/ojsd/ojsd/ojs"
)

// testType exists in this transport only, never in the log of events.
const testType = "webhook.test"

// Tested is the answer of an endpoint to a test.
type Tested struct {
	DeliveryID string
	Success    bool
	Result
}

// envelope has the members of docs/reference/events.md, Envelope in their order.
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

// Test sends one event, signed as usual, in one attempt, and waits for the answer. Inactive subscriptions can be tested, too.
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
	res := d.sender.send(context.WithoutCancel(ctx), m) // whoever asked may not wait, and it is logged
	status := "dead"
	if res.accepted() {
		status = "delivered"
	}
	id, _ := ojs.ParseUUIDv7(m.ID[len(DeliveryPrefix):])
	err = d.store.LogTest(context.WithoutCancel(ctx), TestDelivery{
		DeliveryOutcome: DeliveryOutcome{
			ID: id, Status: status, Code: res.Code, Error: res.Error, Snippet: res.Snippet, Duration: res.Duration, Secret: m.Signer.ID,
		},
		Webhook: w.ID, At: now, Type: testType, Subject: m.Webhook, Body: m.Body,
	})
	return Tested{DeliveryID: m.ID, Success: status == "delivered", Result: res}, err
}

func (d *Dispatcher) testMessage(w *Webhook, secrets []Secret, now time.Time) (*Message, error) {
	webhook := WebhookID(w.ID)
	data, err := json.Marshal(map[string]string{"message": "This is a test of the webhook subscription.", "subscription_id": webhook})
	if err != nil {
		return nil, err
	}
	e := envelope{
		SpecVersion: "1.0", ID: "evt_" + ojs.FormatID(job.NewID()), Type: testType, Source: "ojs://" + d.config.Service + "/api",
		Time: ojs.FormatTime(now), Subject: webhook, Data: data,
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
	}, nil
}
