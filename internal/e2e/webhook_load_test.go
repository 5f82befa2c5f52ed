package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestWebhookSlowEndpoints: an endpoint that hangs and one that fails do not delay a third.
func TestWebhookSlowEndpoints(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ inFlight, requests int }{
		"OwnLimit":    {3, 100},
		"HalfOfANode": {100, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			release := make(chan struct{})
			e.on(func(w http.ResponseWriter, c call) {
				switch c.path {
				case "/hangs":
					<-release
				case "/fails":
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			defer close(release)
			a := setup(t, e.quick, func(c *app.Config) { c.Webhooks.Workers = test.requests })
			hangs := a.subscribe(e, "/hangs", `"job.enqueued"`, fmt.Sprintf(`"max_in_flight":%d`, test.inFlight), `"timeout_ms":60000`)
			a.subscribe(e, "/fails", `"job.enqueued"`)
			a.subscribe(e, "/works", `"job.enqueued"`)
			const jobs = 60
			for range jobs {
				a.push(`"type":"t","args":[]`)
			}
			e.await(t, "/works", jobs)
			eventually(t, func() bool { return len(e.received("/hangs")) == 3 })
			require.Equal(t, 3, a.deliveries("status=delivering&subscription_id="+hangs).count("deliveries"))
		})
	}
}

// TestWebhookNodes: nodes share the deliveries; none is sent twice, and never more at a time than the subscription allows.
func TestWebhookNodes(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	four, once := make(chan struct{}), sync.Once{}
	e.on(func(http.ResponseWriter, call) {
		if e.atOnce() == 4 {
			once.Do(func() { close(four) })
		}
		<-four // so that as many run at a time as may
	})
	one, two := nodes(t, e.quick)
	sub := one.subscribe(e, "/nodes", `"job.enqueued"`, `"max_in_flight":4`, `"timeout_ms":60000`)
	const jobs = 120
	var work sync.WaitGroup
	for _, a := range []*node{one, two} {
		work.Go(func() {
			for range jobs / 2 {
				a.push(`"type":"t","args":[]`)
			}
		})
	}
	work.Wait()
	e.await(t, "/nodes", jobs)
	eventually(t, func() bool {
		return one.deliveries("subscription_id="+sub+"&status=delivered&per_page=1").at("pagination.total") == strconv.Itoa(jobs)
	})
	seen := map[string]bool{}
	for _, c := range e.received("/nodes") {
		require.False(t, seen[c.header.Get("X-OJS-Event-ID")])
		seen[c.header.Get("X-OJS-Event-ID")] = true
	}
	require.Equal(t, 4, e.most)
	require.Equal(t, strconv.Itoa(jobs), one.get("/ojs/v1/webhooks/"+sub).at("success_count"))
}

// TestWebhookBurst: a burst of events for many subscriptions does not delay their publication.
func TestWebhookBurst(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	answer := make(chan struct{})
	e.on(func(http.ResponseWriter, call) { <-answer }) // no delivery ends before the test does
	defer close(answer)
	a := setup(t, e.quick, connections(8), func(c *app.Config) { c.Webhooks.Workers = 1 })
	const hooks, jobs = 40, 300
	made := func() string { return a.one(`SELECT count(*)::text FROM ojs.webhook_deliveries`) }
	for range hooks {
		a.subscribe(e, "/burst", `"*"`)
	}
	stream := a.open("/ojs/v1/events/stream?types=job.enqueued")
	conn := a.connect()
	defer func() { _ = conn.Close(context.Background()) }()
	_, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE ojs.webhook_deliveries IN SHARE MODE") // nothing is written to it
	require.NoError(t, err)
	batch := `{"jobs":[` + strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[]},`, jobs), ",") + `]}`
	a.post("/ojs/v1/jobs/batch", batch).is(http.StatusCreated)
	for range jobs {
		stream.next()
	}
	require.Equal(t, "0", made(), "deliveries are made behind the log, not in front of it")
	_, err = conn.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	eventually(t, func() bool { return made() == strconv.Itoa(hooks*jobs) })
}

// TestWebhookDeleteUnderLoad: deleting a subscription while deliveries run neither fails nor deadlocks.
func TestWebhookDeleteUnderLoad(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	a := setup(t, e.quick)
	stop := make(chan struct{})
	var pushing sync.WaitGroup
	for range 2 {
		pushing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					a.push(`"type":"t","args":[]`)
				}
			}
		})
	}
	for range 15 {
		subs := make([]string, 4)
		for i := range subs {
			subs[i] = a.subscribe(e, "/deleted", `"*"`)
		}
		e.await(t, "/deleted", len(e.received("/deleted"))+1)
		var deleting sync.WaitGroup
		for _, sub := range subs {
			deleting.Go(func() {
				if r := a.del("/ojs/v1/webhooks/" + sub); r.status != http.StatusNoContent {
					t.Errorf("%d %s", r.status, r.body)
				}
			})
		}
		deleting.Wait()
	}
	close(stop)
	pushing.Wait()
	eventually(t, func() bool {
		n := 0
		for _, status := range []string{"pending", "delivering", "failed"} {
			n += a.deliveries("status=" + status).count("deliveries")
		}
		return n == 0
	})
}
