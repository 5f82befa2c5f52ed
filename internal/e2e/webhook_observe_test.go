package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWebhookTrace: the endpoint gets the trace of the event, and the attempt is a span of it.
func TestWebhookTrace(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setupTraced(t, e.quick)
	sub := a.subscribe(e, "/traced", `"job.enqueued"`)
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	a.push(`"type":"t","args":[],"meta":{"traceparent":"00-%s-b7ad6b7169203331-01"}`, traceID)
	c := e.await(t, "/traced", 1)[0]
	span := a.span("ojs.webhook.deliver", "ojs.webhook.subscription_id", sub)
	require.Equal(t, traceID, span.SpanContext.TraceID().String())
	require.Equal(t, "00-"+traceID+"-"+span.SpanContext.SpanID().String()+"-01", c.header.Get("traceparent"))
	require.Equal(t, "200", attr(span, "http.response.status_code"))
	for attribute, header := range map[string]string{"ojs.event.type": "X-OJS-Event-Type", "ojs.event.id": "X-OJS-Event-ID", "ojs.webhook.delivery_id": "X-OJS-Delivery-ID", "ojs.webhook.attempt": "X-OJS-Attempt"} {
		require.NotEmpty(t, c.header.Get(header))
		require.Equal(t, c.header.Get(header), attr(span, attribute))
	}

	a.push(`"type":"t","args":[],"meta":{"trace_id":"not-of-this-form"}`)
	require.Empty(t, e.await(t, "/traced", 2)[1].header.Get("traceparent"))
	untraced := setup(t, e.quick)
	untraced.subscribe(e, "/untraced", `"job.enqueued"`)
	untraced.push(`"type":"t","args":[],"meta":{"traceparent":"00-%s-b7ad6b7169203331-01"}`, traceID)
	require.Empty(t, e.await(t, "/untraced", 1)[0].header.Get("traceparent"))
}

func TestWebhookMetrics(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(w http.ResponseWriter, c call) {
		if c.header.Get("X-OJS-Attempt") == "1" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/counted", `"job.enqueued"`)
	a.push(`"type":"t","args":[]`)
	a.awaitStatus(sub, "delivered")
	e.status(http.StatusInternalServerError)
	a.push(`"type":"t","args":[]`)
	eventually(t, func() bool { return a.deliveries("status=dead").count("deliveries") == 1 })
	for _, line := range []string{
		`ojs_webhook_dead_delivery_count_total{event_type="job.enqueued",subscription_id="` + sub + `"} 1`,
		`ojs_webhook_delivery_count_total{event_type="job.enqueued",status="success"} 1`,
		`ojs_webhook_delivery_count_total{event_type="job.enqueued",status="failed"} 3`,
		`ojs_webhook_delivery_count_total{event_type="job.enqueued",status="dead"} 1`,
		`ojs_webhook_delivery_retry_count_count{event_type="job.enqueued"} 2`,
		`ojs_webhook_delivery_retry_count_sum{event_type="job.enqueued"} 3`,
		`ojs_webhook_delivery_duration_ms_count{event_type="job.enqueued",subscription_id="` + sub + `"} 5`,
		`ojs_webhook_subscription_count 1`,
		`ojs_webhook_pending 0`,
	} {
		eventually(t, func() bool { return strings.Contains(a.get("/metrics").is(200).body, line+"\n") }) // counted after the commit
	}
}
