package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// runWebhooks measures how long an event takes to the endpoints of --hooks subscriptions.
func runWebhooks(ctx context.Context, r *runner) error { return r.repeat(ctx, measureWebhooks) }

// The endpoint runs in this process and takes its share of the processors.
func measureWebhooks(ctx context.Context, r *runner) (figure, error) {
	l, t := r.newLoad("webhooks"), newTimeline()
	l.cfg.Rate = r.cfg.HookRate
	e := &webhookEndpoint{received: make([]map[jobID]time.Time, r.cfg.Hooks)}
	server := httptest.NewServer(e)
	defer server.Close()
	defer e.unsubscribe(l.target)
	if err := e.subscribe(ctx, l.target, server.URL, l.bodies.queue); err != nil {
		return figure{}, err
	}
	if err := l.runAtRate(ctx, t); err != nil {
		return figure{}, err
	}
	e.waitForAll(ctx, len(t.answered), r.cfg.stallTimeout)
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	seconds := t.enqueueSeconds()
	metrics := append(latencies("", e.delays(t), 50, 99, 100),
		metric{"jobs_per_s", float64(len(t.answered)) / seconds}, metric{"deliveries_per_s", float64(len(t.answered)*r.cfg.Hooks) / seconds})
	params := []param{{"hooks", r.cfg.Hooks}, {"rate", r.cfg.HookRate}}
	f := l.figure("webhooks", params, metrics, len(t.answered))
	f.Problems = append(f.Problems, e.problems(t)...)
	return f, nil
}

// webhookEndpoint receives the deliveries of all subscriptions. The path of a request is the index of its subscription.
// mu guards the fields below it; ids is written before the first delivery.
type webhookEndpoint struct {
	ids []string // of the subscriptions

	mu         sync.Mutex
	received   []map[jobID]time.Time // by subscription: the job of the event, and when it arrived
	total      int
	duplicates int
}

// It answers 200 whatever comes, so that no delivery is repeated because of this program.
func (e *webhookEndpoint) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(req.Body)
	var n int
	if _, scanErr := fmt.Sscanf(req.URL.Path, "/%d", &n); err != nil || scanErr != nil || n < 0 || n >= len(e.received) {
		return
	}
	at := bytes.Index(body, subjectKey)
	if at < 0 || at+len(subjectKey)+idLen > len(body) {
		return
	}
	id, _ := parseID(body[at+len(subjectKey):][:idLen]) // a wrong id becomes the zero id, which is no job's
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.received[n] == nil {
		e.received[n] = map[jobID]time.Time{}
	}
	if _, duplicate := e.received[n][id]; duplicate {
		e.duplicates++
		return
	}
	e.received[n][id] = now
	e.total++
}

func (e *webhookEndpoint) subscribe(ctx context.Context, t target, url, queue string) error {
	for n := range e.received {
		id, err := createSubscription(ctx, t, fmt.Sprintf("%s/%d", url, n), queue)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		e.ids = append(e.ids, id)
	}
	return nil
}

// At most 100 deliveries are under way at a time, the largest number that a server allows.
func createSubscription(ctx context.Context, t target, url, queue string) (id string, err error) {
	body := fmt.Sprintf(`{"url":%q,"events":["job.enqueued"],"filter":{"queues":[%q]},"secret":"only-for-the-benchmark-0","max_in_flight":100}`, url, queue)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.base+"/ojs/v1/webhooks", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	text, readErr := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("HTTP %d: %s (the server needs OJS_WEBHOOKS_ALLOW_HTTP=true and OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8)", res.StatusCode, text)
	}
	var created struct{ ID string }
	err = errors.Join(readErr, json.Unmarshal(text, &created))
	return created.ID, err
}

// unsubscribe deletes the subscriptions, also after an interrupt.
func (e *webhookEndpoint) unsubscribe(t target) {
	for _, id := range e.ids {
		req, err := http.NewRequest(http.MethodDelete, t.base+"/ojs/v1/webhooks/"+id, nil)
		if err != nil {
			continue
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}
}

// waitForAll waits for the event of every job at every subscription, until nothing has arrived for limit.
func (e *webhookEndpoint) waitForAll(ctx context.Context, jobs int, limit time.Duration) {
	last, lastProgress := 0, time.Now()
	for ctx.Err() == nil && time.Since(lastProgress) < limit {
		e.mu.Lock()
		total := e.total
		e.mu.Unlock()
		if total >= jobs*len(e.received) {
			return
		}
		if total > last {
			last, lastProgress = total, time.Now()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// It counts from the answer to the enqueue to the arrival of the request.
func (e *webhookEndpoint) delays(t *timeline) (all []time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, received := range e.received {
		all = append(all, elapsed(t.answered, received)...)
	}
	return all
}

// A repeated delivery is allowed by the guarantees of webhooks; here nothing fails, so it is a defect.
func (e *webhookEndpoint) problems(t *timeline) (problems []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var lost problemCounter
	unknown := 0
	for _, received := range e.received {
		for id := range t.answered {
			_, ok := received[id]
			lost.countIf(!ok, id)
		}
		unknown += max(0, len(received)-len(t.answered))
	}
	problems = lost.appendTo(problems, "whose event job.enqueued was never delivered")
	if unknown > 0 {
		problems = append(problems, fmt.Sprintf("%d deliveries of events of jobs that were not enqueued", unknown))
	}
	if e.duplicates > 0 {
		problems = append(problems, fmt.Sprintf("%d events were delivered twice", e.duplicates))
	}
	return problems
}
