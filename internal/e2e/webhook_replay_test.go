package e2e_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWebhookReplay(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick)
	for range 4 {
		a.push(`"type":"t","args":[]`)
	}
	a.settled(a.push(`"type":"t","args":[]`))
	sub := a.subscribe(e, "/replay", `"job.enqueued"`)
	require.Equal(t, "0", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h"}`).is(http.StatusAccepted).at("enqueued"))
	require.Equal(t, "5", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"all"}`).is(http.StatusAccepted).at("enqueued"))
	first := e.await(t, "/replay", 5)
	eventually(t, func() bool { return a.get("/ojs/v1/webhooks/"+sub).at("success_count") == "5" })
	require.Equal(t, "5", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"all"}`).is(http.StatusAccepted).at("enqueued"))
	all := e.await(t, "/replay", 10)
	ids := map[string]int{}
	for _, c := range all {
		ids[c.header.Get("X-OJS-Delivery-ID")]++
	}
	require.Len(t, ids, len(first), "the same delivery ids")
	var paged []string
	for page, cursor := 0, ""; page < 3; page++ {
		log := a.deliveries("limit=2&subscription_id=" + sub + "&cursor=" + cursor)
		require.Equal(t, "5", log.at("pagination.total"))
		require.Equal(t, fmt.Sprint(page < 2), log.at("pagination.has_more"))
		paged, cursor = append(paged, log.list("deliveries", "id")...), log.at("pagination.next_cursor")
	}
	require.Equal(t, a.deliveries("subscription_id="+sub).list("deliveries", "id"), paged)
	require.Equal(t, 1, a.deliveries("event_id="+(reply{t: t, body: first[0].body}).at("id")).count("deliveries"))
	require.Equal(t, 0, a.deliveries("event_id=evt_019c0a11-2f40-7000-8000-000000000000").count("deliveries"))
	a.post("/ojs/v1/webhooks/"+sub+"/replay", `{}`).invalid("since")
	a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"some"}`).invalid("only")
	require.Equal(t, "0", a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z","only":"all"}`).is(202).at("enqueued"))
}

// TestWebhookConcurrentReplays: concurrent replays make each delivery once.
func TestWebhookConcurrentReplays(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	e.status(http.StatusInternalServerError)
	a := setup(t, e.quick)
	for range 49 {
		a.push(`"type":"t","args":[]`)
	}
	a.settled(a.push(`"type":"t","args":[]`))
	sub := a.subscribe(e, "/x", `"job.enqueued"`)
	var replaying sync.WaitGroup
	for range 4 {
		replaying.Go(func() { a.post("/ojs/v1/webhooks/"+sub+"/replay", `{"since":"1h","only":"all"}`).is(202) })
	}
	replaying.Wait()
	require.Equal(t, "50", a.deliveries("subscription_id="+sub).at("pagination.total"))
}
