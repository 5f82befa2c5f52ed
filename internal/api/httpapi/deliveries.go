package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
)

// deliveryStatuses are those of docs/reference/webhooks.md, Delivery log, and of the CHECK of the table.
var deliveryStatuses = []string{"pending", "delivering", "delivered", "failed", "dead", "cancelled"}

// listDeliveries is the log of one subscription, or of all (docs/reference/webhooks.md, Routes).
// With an id in the path an unknown subscription is 404, while the filter subscription_id of the list of all then finds
// nothing. The cursor is the id of the last delivery that was looked at, not necessarily of one that was shown.
func (a *API) listDeliveries(r *request) error {
	p, err := readPage(r)
	if err != nil {
		return err
	}
	l, err := a.deliveryQuery(r, p)
	if err != nil {
		return err
	}
	if r.Param("id") != "" {
		id, err := webhookID(r)
		if err != nil {
			return err
		}
		// The two reads are not one snapshot; a subscription may be deleted in between.
		if _, err := a.Webhooks.Get(r.Request().Context(), id); err != nil {
			return err
		}
		l.Webhook = &id
	}
	found, err := a.Webhooks.Deliveries(r.Request().Context(), l)
	if err != nil {
		return err
	}
	shown := make([]map[string]any, len(found.Deliveries))
	for i := range shown {
		shown[i] = showDelivery(&found.Deliveries[i])
	}
	next := ""
	// next is also set where a page is short because of what it looked at.
	if found.Next != nil {
		next = webhook.DeliveryID(*found.Next)
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		"deliveries": shown, "items": shown, "total": found.Total, "pagination": json.RawMessage(p.append(nil, found.Total, next != "", next)),
	})
}

// deliveryQuery reads the filters. status is compared with a fixed list, because an unknown one would silently find nothing;
// event_type is not, because extensions and tests have types of their own.
func (a *API) deliveryQuery(c echo.Context, p page) (webhook.DeliveryList, error) {
	// Tenant confines the log to the subscriptions of the caller.
	l := webhook.DeliveryList{Tenant: a.tenant(c.Request()), Offset: p.offset, Limit: p.limit, Status: c.QueryParam("status"), Type: c.QueryParam("event_type")}
	var err error
	if l.Before, err = cursorID(p.cursor, webhook.DeliveryPrefix); err != nil {
		return l, err
	}
	if l.Status != "" && !slices.Contains(deliveryStatuses, l.Status) {
		expected := "one of " + strings.Join(deliveryStatuses, ", ")
		return l, spec.InvalidRequest("status", expected, l.Status, "status must be "+expected+".")
	}
	if !api.Storable(l.Type) {
		return l, spec.InvalidRequest("event_type", "an event type", nil, "event_type must be valid UTF-8 without U+0000.")
	}
	// In the log of one subscription the id of the path replaces it.
	if text := c.QueryParam("subscription_id"); text != "" {
		id, err := cursorID(text, webhook.WebhookPrefix)
		if err != nil {
			return l, spec.InvalidRequest("subscription_id", "the id of a subscription", text, "subscription_id must be the id of a subscription, such as sub_….")
		}
		l.Webhook = id
	}
	// An event has one delivery for each subscription, so this filter may find several.
	if text := c.QueryParam("event_id"); text != "" {
		position, err := eventlog.ParsePosition(text)
		if err != nil {
			return l, spec.InvalidRequest("event_id", "an event id", text, "event_id must be an event id, such as evt_….")
		}
		l.Event = &webhook.EventPlace{Seq: position.Seq, Sub: position.Sub}
	}
	if l.Since, err = timeParam(c, "since"); err != nil {
		return l, err
	}
	l.Until, err = timeParam(c, "until")
	return l, err
}

// What is no id is an unknown delivery.
func deliveryID(c echo.Context) ([16]byte, error) {
	return prefixedID(c, webhook.DeliveryPrefix, webhook.ErrNoDelivery)
}

func (a *API) getDelivery(r *request) error {
	id, err := deliveryID(r)
	if err != nil {
		return err
	}
	// The attempts are those of all retries, numbered on.
	row, attempts, err := a.Webhooks.Delivery(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, showDeliveryWhole(row, attempts))
}

// retryDelivery is 202, because the attempt is made later, by any node. The delivery keeps its id, by which a receiver
// recognizes a repetition.
func (a *API) retryDelivery(r *request) error {
	if err := checkCommand(r.body); err != nil {
		return err
	}
	id, err := deliveryID(r)
	if err != nil {
		return err
	}
	row, attempts, err := a.Webhooks.RetryDelivery(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusAccepted, showDeliveryWhole(row, attempts))
}

// showDelivery shows what the list has. Secrets and the body are not in it.
func showDelivery(d *webhook.DeliveryRecord) map[string]any {
	m := map[string]any{
		"id": webhook.DeliveryID(d.ID), "subscription_id": webhook.ID(d.WebhookID),
		"event_type": d.EventType, "subject": d.Subject, "status": d.Status, "attempt_count": d.AttemptCount,
		"created_at": spec.FormatTime(d.CreatedAt.Time), "event_id": deliveredEvent(d),
	}
	// While a node sends the delivery, the column has the end of the lease.
	if d.Status == "pending" || d.Status == "failed" {
		showTime(m, "next_attempt_at", d.NextAttemptAt)
	}
	// 0 means that there was no response; absent, that there was no attempt.
	if d.LastStatusCode.Valid {
		m["last_status_code"] = d.LastStatusCode.Int32
	}
	if d.LastError.Valid {
		m["last_error"] = d.LastError.String
	}
	showTime(m, "completed_at", d.CompletedAt)
	return m
}

// deliveredEvent is the id of the event; that of a test stands in the body only.
// event_seq is 0 for the event of a test, which is in no log.
func deliveredEvent(d *webhook.DeliveryRecord) string {
	if d.EventSeq > 0 {
		return eventlog.NewPosition(d.EventTime.Time, d.EventSeq, d.EventSub).String()
	}
	var body struct{ ID string }
	_ = json.Unmarshal([]byte(d.Body), &body) // it is ours
	return body.ID
}

// showDeliveryWhole adds the body that was sent and the attempts. error and response_snippet are null, not absent, because
// the admin UI has columns for them.
func showDeliveryWhole(d *webhook.DeliveryRecord, attempts []webhook.AttemptRecord) map[string]any {
	m := showDelivery(d)
	list := make([]map[string]any, len(attempts))
	for i, at := range attempts {
		list[i] = map[string]any{
			"attempt": at.Attempt, "started_at": spec.FormatTime(at.StartedAt.Time), "duration_ms": at.DurationMs, "status_code": at.StatusCode,
			"error": nil, "response_snippet": nil,
		}
		if at.Error.Valid {
			list[i]["error"] = at.Error.String
		}
		if at.Snippet.Valid {
			list[i]["response_snippet"] = at.Snippet.String
		}
	}
	// The body is the copy that was made with the delivery, so it can be shown after the event has gone.
	m["request_body"], m["attempts"] = d.Body, list
	return m
}
