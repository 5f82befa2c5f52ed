package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// runWebhooks measures how long an event takes to the endpoints of --hooks subscriptions.
func runWebhooks(ctx context.Context, r *runner) error { return r.repeat(ctx, r.measureWebhooks) }

func (r *runner) measureWebhooks(ctx context.Context) (Figure, error) {
	l, t := r.newLoad("webhooks"), newTimeline()
	l.cfg.Rate = r.cfg.HookRate
	h := &hooks{seen: make([]map[jobID]time.Time, r.cfg.Hooks)}
	endpoint := httptest.NewServer(h)
	defer endpoint.Close()
	defer h.unsubscribe(l.target)
	if err := h.subscribe(ctx, l.target, endpoint.URL, l.bodies.queue); err != nil {
		return Figure{}, err
	}
	if err := l.paced(ctx, t); err != nil {
		return Figure{}, err
	}
	h.await(ctx, len(t.answered), r.cfg.Stall)
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	took := t.answering()
	metrics := append(latencies("", h.delays(t), 50, 99, 100),
		Metric{"jobs_per_s", float64(len(t.answered)) / took}, Metric{"deliveries_per_s", float64(len(t.answered)*r.cfg.Hooks) / took})
	params := []Param{{"hooks", r.cfg.Hooks}, {"rate", r.cfg.HookRate}}
	f := l.figure("webhooks", params, metrics, len(t.answered))
	f.Problems = append(f.Problems, h.problems(t)...)
	return f, nil
}

// hooks is the endpoint of all subscriptions; each has a path of its own.
type hooks struct {
	ids []string // of the subscriptions

	mu       sync.Mutex
	seen     []map[jobID]time.Time // by subscription
	total    int
	repeated int
}

func (h *hooks) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(req.Body)
	var n int
	if _, scanErr := fmt.Sscanf(req.URL.Path, "/%d", &n); err != nil || scanErr != nil || n < 0 || n >= len(h.seen) {
		return
	}
	at := bytes.Index(body, subject)
	if at < 0 || at+len(subject)+idLen > len(body) {
		return
	}
	id, _ := parseID(body[at+len(subject):][:idLen]) // the zero id is found to be nobody's
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[n] == nil {
		h.seen[n] = map[jobID]time.Time{}
	}
	if _, again := h.seen[n][id]; again {
		h.repeated++
		return
	}
	h.seen[n][id] = now
	h.total++
}

func (h *hooks) subscribe(ctx context.Context, t target, url, queue string) error {
	for n := range h.seen {
		body := fmt.Sprintf(`{"url":"%s/%d","events":["job.enqueued"],"filter":{"queues":["%s"]},"secret":"only-for-the-benchmark-0","max_in_flight":100}`, url, n, queue)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.base+"/ojs/v1/webhooks", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		var made struct{ ID string }
		if err := json.Unmarshal(text, &made); err != nil || res.StatusCode != http.StatusCreated {
			return fmt.Errorf("subscribe: HTTP %d: %s (the server needs OJS_WEBHOOKS_ALLOW_HTTP=true and OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8)", res.StatusCode, text)
		}
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		h.ids = append(h.ids, made.ID)
	}
	return nil
}

// unsubscribe leaves the server as it was, also after an interrupt.
func (h *hooks) unsubscribe(t target) {
	for _, id := range h.ids {
		req, err := http.NewRequest(http.MethodDelete, t.base+"/ojs/v1/webhooks/"+id, nil)
		if err != nil {
			continue
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}
}

// await waits for what is still on its way, as long as something arrives.
func (h *hooks) await(ctx context.Context, jobs int, limit time.Duration) {
	last, moved := 0, time.Now()
	for ctx.Err() == nil && time.Since(moved) < limit {
		h.mu.Lock()
		total := h.total
		h.mu.Unlock()
		if total >= jobs*len(h.seen) {
			return
		}
		if total > last {
			last, moved = total, time.Now()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (h *hooks) delays(t *timeline) (all []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, seen := range h.seen {
		all = append(all, between(t.answered, seen)...)
	}
	return all
}

func (h *hooks) problems(t *timeline) (problems []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var lost finding
	strange := 0
	for _, seen := range h.seen {
		for id := range t.answered {
			_, ok := seen[id]
			lost.note(id, !ok)
		}
		strange += max(0, len(seen)-len(t.answered))
	}
	problems = lost.report(problems, "whose event job.enqueued was never delivered")
	if strange > 0 {
		problems = append(problems, fmt.Sprintf("%d deliveries of events that nobody caused", strange))
	}
	if h.repeated > 0 {
		problems = append(problems, fmt.Sprintf("%d deliveries came twice", h.repeated))
	}
	return problems
}
