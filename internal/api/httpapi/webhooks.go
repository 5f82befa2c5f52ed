package httpapi

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/ojs"
)

// shortSecret warns in the log only, because receivers of other servers may have short secrets that cannot be changed at once.
const shortSecret = 24 // bytes; below it a secret gets a warning

// webhookRoutes are those of docs/reference/webhooks.md, Routes under both base paths.
// The router prefers literal segments, so /webhooks/deliveries and /webhooks/subscriptions are no ids.
func (a *API) webhookRoutes() (routes []route) {
	if !a.config.Webhooks.Enabled {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			routes = append(routes, route{method, "/webhooks", api.Confined, noBody, "", webhooksOff},
				route{method, "/webhooks/*", api.Confined, noBody, "", webhooksOff})
		}
		return routes
	}
	const log = paging + "status event_type subscription_id event_id since until"
	for _, base := range []string{"/webhooks", "/webhooks/subscriptions"} {
		routes = append(routes, []route{
			{"POST", base, api.Confined, oneBody, "", a.postWebhook},
			{"GET", base, api.Confined, noBody, paging + "active url", a.listWebhooks},
			{"GET", base + "/:id", api.AboutWebhook, noBody, "", about(webhookID, a.getWebhook)},
			{"PATCH", base + "/:id", api.AboutWebhook, oneBody, "", about(webhookID, a.patchWebhook)},
			{"PUT", base + "/:id", api.AboutWebhook, oneBody, "", about(webhookID, a.patchWebhook)},
			{"DELETE", base + "/:id", api.AboutWebhook, noBody, "", about(webhookID, a.deleteWebhook)},
			{"POST", base + "/:id/test", api.AboutWebhook, commandBody, "", about(webhookID, a.testWebhook)},
			{"POST", base + "/:id/rotate-secret", api.AboutWebhook, oneBody, "", about(webhookID, a.rotateSecret)},
			{"DELETE", base + "/:id/secrets/previous", api.AboutWebhook, noBody, "", about(webhookID, a.dropPreviousSecret)},
			{"POST", base + "/:id/replay", api.AboutWebhook, oneBody, "", about(webhookID, a.replayWebhook)},
			{"GET", base + "/:id/deliveries", api.AboutWebhook, noBody, log, a.listDeliveries},
		}...)
	}
	return append(routes,
		route{"GET", "/webhooks/deliveries", api.Confined, noBody, log, a.listDeliveries},
		route{"GET", "/webhooks/deliveries/:id", api.AboutDelivery, noBody, "", about(deliveryID, a.getDelivery)},
		route{"POST", "/webhooks/deliveries/:id/retry", api.AboutDelivery, commandBody, "", about(deliveryID, a.retryDelivery)},
	)
}

// webhooksOff is 422 and not 404, so that a client learns that a setting is missing and not a subscription.
func webhooksOff(*request) error {
	return spec.Unsupported("Webhooks are switched off on this server.", map[string]any{"feature": "webhooks"})
}

// parsePrefixed is for ids such as sub_….
func parsePrefixed(prefix string) func(text string) ([16]byte, bool) {
	return func(text string) ([16]byte, bool) {
		rest, prefixed := strings.CutPrefix(text, prefix)
		id, ok := spec.ParseUUIDv7(rest)
		return id, prefixed && ok
	}
}

// webhookID takes what has another form for the id of no subscription.
func webhookID(c echo.Context) ([16]byte, error) {
	id, ok := parsePrefixed(webhook.WebhookPrefix)(param(c, "id"))
	if !ok {
		return id, webhook.ErrNoWebhook(param(c, "id"))
	}
	return id, nil
}

// postWebhook creates a subscription. It is not idempotent: two calls make two subscriptions, which both get every event. The
// answer is the only one that shows the secret.
func (a *API) postWebhook(r *request) error {
	in, wire := webhook.Decode(r.body)
	if wire != nil {
		return wire
	}
	match, err := a.checkWebhook(in, true)
	if err != nil {
		return err
	}
	// A subscription without a tenant gets the events of all.
	in.Tenant = a.tenant(r.Request())
	w, err := a.Webhooks.Create(r.Request().Context(), in, match)
	if err != nil {
		return err
	}
	a.judgeSecret(r, w, in.Secret)
	r.Response().Header().Set("Location", "/ojs/v1/webhooks/"+webhook.ID(w.ID))
	shown := showWebhook(w)
	// Shown here and after a rotation only.
	shown["secret"] = in.Secret
	return sendJSON(r, http.StatusCreated, twice(shown))
}

// checkWebhook checks what the decoder cannot: patterns, types, and where the URL leads.
// With newURL false the URL is not checked, so a subscription from before a stricter rule can still be changed; the sender
// enforces the rule anyway. It normalizes the sources of in. The patterns come back as operands of LIKE, as the fan-out
// compares them.
func (a *API) checkWebhook(in *webhook.Definition, newURL bool) (match webhook.Match, err error) {
	types, err := eventlog.ParseTypePatterns("events", in.Events)
	if err == nil {
		in.Sources, err = eventlog.ParseSourcePatterns("filter.sources", in.Sources)
	}
	// Patterns in a body are fields, so they are invalid_payload; in a query they are invalid_request.
	if pattern, ok := errors.AsType[*eventlog.PatternError](err); ok {
		return match, spec.InvalidPayload(pattern.Parameter, "patterns such as job.* or job.failed", pattern.Pattern,
			"'"+pattern.Parameter+"': "+pattern.Error())
	}
	// Those that this server writes, without webhook.test, which nobody subscribes to.
	written := ojs.EventTypes
	if a.config.Events.ExtensionTypes {
		written = slices.Concat(written, ojs.ExtensionEventTypes)
	}
	// Polling takes an unknown type, which matches nothing; a subscription that would never get an event is refused.
	for i, p := range types {
		if !slices.ContainsFunc(written, func(t string) bool { return eventlog.MatchPattern(p, t) }) {
			return match, spec.Validation("events", in.Events[i],
				"'events' contains "+strconv.Quote(in.Events[i])+", which no event type matches.")
		}
	}
	// ParseTypePatterns drops empty patterns.
	if len(types) < len(in.Events) {
		return match, spec.InvalidPayload("events", "patterns such as job.*", "", "'events' contains an empty pattern.")
	}
	if err := webhook.EgressRules(a.config.Webhooks).CheckURL(in.URL); newURL && err != nil {
		return match, spec.Validation("url", in.URL, "'url' is not admitted: "+err.Error()+".")
	}
	return webhook.Match{Types: eventlog.LikePatterns(types), Sources: eventlog.LikePatterns(in.Sources)}, nil
}

// judgeSecret must never log the secret itself.
func (a *API) judgeSecret(c echo.Context, w *webhook.Webhook, secret string) {
	if len(secret) < shortSecret {
		a.logger.WarnContext(c.Request().Context(), "webhook secret is short; use 24 bytes or more", slog.String("category", "webhook"),
			slog.Group("attributes", "subscription_id", webhook.ID(w.ID), "bytes", len(secret)))
	}
}

// getWebhook shows secrets by a hint only.
func (a *API) getWebhook(r *request, id [16]byte) error {
	w, err := a.Webhooks.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, twice(showWebhook(w)))
}

// listWebhooks has for its cursor the id of the last one shown. Secrets are shown by hints.
func (a *API) listWebhooks(r *request) error {
	p := r.page(api.DefaultPage, api.MaxPage)
	filter := webhook.Filter{
		Tenant: a.tenant(r.Request()), Before: behind(r, p, parsePrefixed(webhook.WebhookPrefix)), Active: r.boolean("active"),
		URL:    r.text("url"),                // compared exactly
		Offset: p.offset, Limit: p.limit + 1, // one more tells whether there are more
	}
	if r.err != nil {
		return r.err
	}
	list, total, err := a.Webhooks.List(r.Request().Context(), filter)
	if err != nil {
		return err
	}
	more := len(list) > p.limit
	list = list[:min(len(list), p.limit)]
	shown := make([]map[string]any, len(list))
	next := ""
	for i := range list {
		shown[i] = showWebhook(&list[i])
		next = webhook.ID(list[i].ID)
	}
	return sendJSON(r, http.StatusOK, map[string]any{
		"subscriptions": shown, "items": shown, "total": total, "pagination": p.shown(total, more, next),
	})
}

// patchWebhook does the same for PATCH and PUT. The change runs under the lock of the subscription and may run again after a deadlock, so
// it only computes; secret has the value of the run that was committed. A changed secret is a rotation.
func (a *API) patchWebhook(r *request, id [16]byte) error {
	secret := ""
	w, err := a.Webhooks.Change(r.Request().Context(), id, func(current webhook.Definition) (*webhook.Definition, webhook.Match, error) {
		in, wire := webhook.Patch(r.body, current)
		if wire != nil {
			return nil, webhook.Match{}, wire
		}
		// "" unless the body has one.
		secret = in.Secret
		// The address of the host is not looked up here: it may be another one when the webhook is sent.
		match, err := a.checkWebhook(in, in.URL != current.URL)
		return in, match, err
	})
	if err != nil {
		return err
	}
	shown := showWebhook(w)
	if secret != "" {
		a.judgeSecret(r, w, secret)
		showRotation(shown, w, secret)
	}
	return sendJSON(r, http.StatusOK, twice(shown))
}

// deleteWebhook does not stop what is being sent at the moment.
func (a *API) deleteWebhook(r *request, id [16]byte) error {
	if err := a.Webhooks.Delete(r.Request().Context(), id); err != nil {
		return err
	}
	return r.NoContent(http.StatusNoContent)
}

// rotateSecret is not idempotent: a second rotation ends the oldest secret at once, so a client that got no answer
// should read before it repeats.
func (a *API) rotateSecret(r *request, id [16]byte) error {
	// overlap is -1 if it was not sent; a negative one stands for the default of the store.
	secret, overlap, wire := webhook.DecodeRotation(r.body)
	if wire != nil {
		return wire
	}
	if secret == "" {
		// What Standard Webhooks calls one, too, of 256 bits.
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails
		secret = "whsec_" + base64.StdEncoding.EncodeToString(b[:])
	}
	w, err := a.Webhooks.RotateSecret(r.Request().Context(), id, secret, time.Duration(overlap)*time.Second)
	if err != nil {
		return err
	}
	a.judgeSecret(r, w, secret)
	shown := showWebhook(w)
	showRotation(shown, w, secret)
	return sendJSON(r, http.StatusOK, twice(shown))
}

// showRotation adds to shown. previous_secret_expires_at is null if there was no previous secret.
func showRotation(shown map[string]any, w *webhook.Webhook, secret string) {
	shown["secret"], shown["new_secret"] = secret, secret
	shown["previous_secret_expires_at"] = nil
	// Of at most two secrets only the previous one has an end.
	for _, s := range w.Secrets {
		if s.ExpiresAt.Valid {
			shown["previous_secret_expires_at"] = spec.FormatTime(s.ExpiresAt.Time)
		}
	}
}

// dropPreviousSecret is idempotent.
func (a *API) dropPreviousSecret(r *request, id [16]byte) error {
	w, err := a.Webhooks.DropPreviousSecret(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, twice(showWebhook(w)))
}

// testWebhook takes as long as the endpoint, at most the timeout of the subscription. A failing endpoint is an answer and no
// error.
func (a *API) testWebhook(r *request, id [16]byte) error {
	w, err := a.Webhooks.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	// No lock and no transaction is held while the endpoint answers.
	res, err := a.sendTest(r.Request().Context(), w)
	if err != nil {
		return err
	}
	answer := map[string]any{
		"success": res.Success, "status_code": res.Code, "status": res.Code, "response_time_ms": res.Duration.Milliseconds(),
		"response_body": res.Snippet, "delivery_id": res.DeliveryID,
	}
	if res.Error != "" {
		answer["error"] = res.Error
	}
	return sendJSON(r, http.StatusOK, answer)
}

// replayWebhook is 202: the deliveries are due and are sent by any node.
func (a *API) replayWebhook(r *request, id [16]byte) error {
	in, wire := webhook.DecodeReplay(r.body)
	if wire != nil {
		return wire
	}
	// It works in portions; n counts what was made due.
	n, err := a.Webhooks.Replay(r.Request().Context(), id, in)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusAccepted, map[string]any{"enqueued": n})
}

// twice puts the object under its name beside its own members: suites and tools read either (docs/reference/webhooks.md, Routes).
func twice(shown map[string]any) map[string]any {
	both := maps.Clone(shown)
	both["subscription"] = shown
	return both
}

// showWebhook leaves out times and figures that do not exist. Nothing of it is a secret.
func showWebhook(w *webhook.Webhook) map[string]any {
	secrets := make([]map[string]any, len(w.Secrets))
	for i, s := range w.Secrets {
		// The hint is the last four characters.
		secrets[i] = map[string]any{
			"id": webhook.SecretPrefix + spec.FormatID(s.ID), "created_at": spec.FormatTime(s.CreatedAt.Time), "hint": "…" + s.Hint,
		}
		showTime(secrets[i], "expires_at", s.ExpiresAt)
	}
	m := map[string]any{
		"id": webhook.ID(w.ID), "url": w.Url, "events": w.Events, "active": w.Active,
		"timeout_ms": w.TimeoutMs, "max_in_flight": w.MaxInFlight, "ordering": w.Ordering, "payload_format": w.PayloadFormat,
		"standard_webhooks": w.StandardWebhooks, "success_count": w.SuccessCount, "failure_count": w.FailureCount,
		"created_at": spec.FormatTime(w.CreatedAt.Time), "updated_at": spec.FormatTime(w.UpdatedAt.Time), "secrets": secrets,
	}
	showJSON(m, "filter", w.Filter)
	showJSON(m, "metadata", w.Metadata)
	showTime(m, "last_delivery_at", w.LastDeliveryAt)
	if w.LastDeliveryStatus.Valid {
		m["last_delivery_status"] = w.LastDeliveryStatus.Int32
	}
	if w.DisabledReason.Valid {
		m["disabled_reason"] = w.DisabledReason.String
	}
	showTime(m, "disabled_at", w.DisabledAt)
	showTime(m, "failing_since", w.FailingSince)
	return m
}

// showJSON gets what a client has sent, stored as valid JSON.
func showJSON(m map[string]any, name string, value []byte) {
	if value != nil {
		m[name] = json.RawMessage(value)
	}
}

// showTime adds nothing for NULL.
func showTime(m map[string]any, name string, t pgtype.Timestamptz) {
	if t.Valid {
		m[name] = spec.FormatTime(t.Time)
	}
}

// deliveryStatuses are those of docs/reference/webhooks.md, Delivery log, and of the CHECK of the table.
var deliveryStatuses = []string{"pending", "delivering", "delivered", "failed", "dead", "cancelled"}

// listDeliveries is the log of one subscription, or of all (docs/reference/webhooks.md, Routes).
// With an id in the path an unknown subscription is 404, while the filter subscription_id of the list of all then finds
// nothing. The cursor is the id of the last delivery that was looked at, not necessarily of one that was shown.
func (a *API) listDeliveries(r *request) error {
	p := r.page(api.DefaultPage, api.MaxPage)
	l := a.deliveryQuery(r, p)
	if r.err != nil {
		return r.err
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
		"deliveries": shown, "items": shown, "total": found.Total, "pagination": p.shown(found.Total, next != "", next),
	})
}

// deliveryQuery reads the filters. status is compared with a fixed list, because an unknown one would silently find nothing;
// event_type is not, because extensions and tests have types of their own.
func (a *API) deliveryQuery(r *request, p page) webhook.DeliveryList {
	l := webhook.DeliveryList{
		Tenant: a.tenant(r.Request()), // of the subscriptions
		Offset: p.offset, Limit: p.limit, Before: behind(r, p, parsePrefixed(webhook.DeliveryPrefix)),
		Status: r.QueryParam("status"), Type: r.QueryParam("event_type"),
	}
	if l.Status != "" && !slices.Contains(deliveryStatuses, l.Status) {
		expected := "one of " + strings.Join(deliveryStatuses, ", ")
		r.refuse(spec.InvalidRequest("status", expected, l.Status, "status must be "+expected+"."))
	}
	if !api.Storable(l.Type) {
		r.refuse(spec.InvalidRequest("event_type", "an event type", nil, "event_type must be valid UTF-8 without U+0000."))
	}
	// In the log of one subscription the id of the path replaces it.
	if text := r.QueryParam("subscription_id"); text != "" {
		id, ok := parsePrefixed(webhook.WebhookPrefix)(text)
		if !ok {
			r.refuse(spec.InvalidRequest("subscription_id", "the id of a subscription", text,
				"subscription_id must be the id of a subscription, such as sub_…."))
		}
		l.Webhook = &id
	}
	// An event has one delivery for each subscription, so this filter may find several.
	if text := r.QueryParam("event_id"); text != "" {
		position, err := eventlog.ParsePosition(text)
		if err != nil {
			r.refuse(spec.InvalidRequest("event_id", "an event id", text, "event_id must be an event id, such as evt_…."))
		}
		l.Event = &webhook.EventPlace{Seq: position.Seq, Sub: position.Sub}
	}
	l.Since, l.Until = r.time("since"), r.time("until")
	return l
}

// deliveryID takes what is no id for an unknown delivery.
func deliveryID(c echo.Context) ([16]byte, error) {
	id, ok := parsePrefixed(webhook.DeliveryPrefix)(param(c, "id"))
	if !ok {
		return id, webhook.ErrNoDelivery(param(c, "id"))
	}
	return id, nil
}

func (a *API) getDelivery(r *request, id [16]byte) error {
	// The attempts are those of all retries, numbered on.
	row, attempts, err := a.Webhooks.Delivery(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, showDeliveryWhole(row, attempts))
}

// retryDelivery is 202, because the attempt is made later, by any node. The delivery keeps its id, by which a receiver
// recognizes a repetition.
func (a *API) retryDelivery(r *request, id [16]byte) error {
	row, attempts, err := a.Webhooks.RetryDelivery(r.Request().Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusAccepted, showDeliveryWhole(row, attempts))
}

// showDelivery shows what the list has. Secrets and the body are not in it.
func showDelivery(d *webhook.DeliveryRecord) map[string]any {
	var event struct{ ID string }
	if d.EventSeq > 0 {
		event.ID = eventlog.NewPosition(d.EventTime.Time, d.EventSeq, d.EventSub).String()
	} else { // that of a test is in no log; its id stands in the body only
		_ = json.Unmarshal([]byte(d.Body), &event) // it is ours
	}
	m := map[string]any{
		"id": webhook.DeliveryID(d.ID), "subscription_id": webhook.ID(d.WebhookID),
		"event_type": d.EventType, "subject": d.Subject, "status": d.Status, "attempt_count": d.AttemptCount,
		"created_at": spec.FormatTime(d.CreatedAt.Time), "event_id": event.ID,
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

// showDeliveryWhole adds the body that was sent and the attempts. error and response_snippet are null, not absent, because
// the admin UI has columns for them.
func showDeliveryWhole(d *webhook.DeliveryRecord, attempts []webhook.AttemptRecord) map[string]any {
	m := showDelivery(d)
	list := make([]map[string]any, len(attempts))
	for i, at := range attempts {
		list[i] = map[string]any{
			"attempt": at.Attempt, "started_at": spec.FormatTime(at.StartedAt.Time), "duration_ms": at.DurationMs,
			"status_code": at.StatusCode, "error": nil, "response_snippet": nil,
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
