package e2e_test

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestWebhookOrdering: with ordering "subject" an event waits for the earlier ones of its subject only.
func TestWebhookOrdering(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	refused := map[string]int{}
	var mu sync.Mutex
	e.on(func(w http.ResponseWriter, c call) {
		mu.Lock()
		defer mu.Unlock()
		id := c.header.Get("X-OJS-Delivery-ID")
		if refused[id]++; refused[id] <= 2 && id[len(id)-1] < '8' { // half of them succeed with the third attempt
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/ordered", `"job.*"`, `"ordering":"subject"`)
	q := queue()
	const jobs = 20
	for range jobs {
		a.push(`"type":"t","args":[],"queue":"%s"`, q)
	}
	for range jobs {
		a.ack(a.fetch(q).at("jobs.0.id")).is(200)
	}
	eventually(t, func() bool {
		return a.deliveries("subscription_id="+sub+"&status=delivered&per_page=1").at("pagination.total") == strconv.Itoa(3*jobs)
	})
	accepted := map[string][]string{} // types by subject, in the order of success
	tries := map[string]int{}
	for _, c := range e.received("/ordered") {
		id := c.header.Get("X-OJS-Delivery-ID")
		if tries[id]++; tries[id] == refused[id] {
			event := reply{t: t, body: c.body}
			accepted[event.at("subject")] = append(accepted[event.at("subject")], event.at("type"))
		}
	}
	require.Len(t, accepted, jobs)
	for subject, types := range accepted {
		require.Equal(t, []string{"job.enqueued", "job.started", "job.completed"}, types, subject)
	}
}

// TestWebhookOrderingAfterRetryByHand: when the first delivery of a subject ends, by whatever means, the next is sent.
func TestWebhookOrderingAfterRetryByHand(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.on(func(w http.ResponseWriter, _ call) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	a := setup(t, e.quick)
	sub := a.subscribe(e, "/head", `"job.*"`, `"ordering":"subject"`)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	d := a.awaitStatus(sub, "failed")
	a.fetch(q)
	a.ack(id).is(200)
	eventually(t, func() bool { return a.deliveries("status=pending").count("deliveries") == 2 })
	e.status(200)
	a.post("/ojs/v1/webhooks/deliveries/"+d.at("id")+"/retry", "").is(http.StatusAccepted)
	calls := e.await(t, "/head", 4)
	require.Equal(t, []string{"job.enqueued", "job.started", "job.completed"},
		[]string{calls[1].header.Get("X-OJS-Event-Type"), calls[2].header.Get("X-OJS-Event-Type"), calls[3].header.Get("X-OJS-Event-Type")})
}

// TestWebhookOrderingChanges: a change of ordering applies to deliveries that wait already.
func TestWebhookOrderingChanges(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusInternalServerError)
	a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.RetrySchedule = []time.Duration{time.Hour} })
	sub := a.subscribe(e, "/changes", `"job.*"`)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.awaitStatus(sub, "failed")
	a.patch("/ojs/v1/webhooks/"+sub, `{"ordering":"subject"}`).is(200)
	a.fetch(q)
	eventually(t, func() bool { return a.deliveries("").count("deliveries") == 2 })
	a.push(`"type":"other","args":[]`)
	e.await(t, "/changes", 2) // a later event of another subject has been sent, job.started has not
	require.Len(t, e.received("/changes"), 2)
	require.Equal(t, "pending", a.deliveries("event_type=job.started").at("deliveries.0.status"))
	a.patch("/ojs/v1/webhooks/"+sub, `{"ordering":"none"}`).is(200)
	e.await(t, "/changes", 3)
	require.NotEmpty(t, id)
}
