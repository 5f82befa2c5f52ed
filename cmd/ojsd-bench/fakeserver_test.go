package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faults are what a broken server might do. Numbers count jobs from 1, those of the warm-up left out; 0 means never.
type faults struct {
	loseJob      int // acknowledged, never delivered
	repeatJob    int // delivered again after its ack
	refuseAck    int // its ack is answered 409
	repeatID     int // gets the id of the job before it
	inventJob    int // delivered together with it: a job that nobody enqueued
	loseEvent    int
	repeatEvent  int
	refusePush   int // answered 503 and not stored
	hangUpOnPush int // the connection is closed after this job was stored

	slowPush time.Duration // before a job is stored
}

// fakeServer implements the few routes that the load generator uses, in memory.
type fakeServer struct {
	faults faults
	notify func(payload string)

	mu     sync.Mutex
	wake   chan struct{} // closed when jobs arrive
	jobs   int
	parked int // fetches that had to wait for jobs
	last   string
	queues map[string][]fakeJob
	active map[string]fakeJob
	hooks  map[string]fakeHook
	events []fakeEvent
}

type fakeJob struct {
	ID    string `json:"id"`
	Queue string `json:"queue"`
	Type  string `json:"type"`
	Args  any    `json:"args"`
	State string `json:"state"`
	n     int
}

type fakeEvent struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Subject string `json:"subject"`
	Queue   string `json:"queue"`
}

type push struct {
	Type    string
	Args    any
	Options struct{ Queue string }
}

func startFake(t *testing.T, f faults) (*fakeServer, string) {
	t.Helper()
	s := &fakeServer{faults: f, wake: make(chan struct{}), queues: map[string][]fakeJob{}, active: map[string]fakeJob{}, hooks: map[string]fakeHook{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]string{"status": "ok"}) })
	mux.HandleFunc("POST /ojs/v1/jobs", s.push)
	mux.HandleFunc("POST /ojs/v1/jobs/batch", s.pushBatch)
	mux.HandleFunc("POST /ojs/v1/workers/fetch", s.fetch)
	mux.HandleFunc("POST /ojs/v1/workers/ack", s.ackOne)
	mux.HandleFunc("POST /ojs/v1/workers/ack/batch", s.ackBatch)
	mux.HandleFunc("GET /ojs/v1/events", s.listEvents)
	mux.HandleFunc("GET /ojs/v1/events/stream", s.streamEvents)
	mux.HandleFunc("POST /ojs/v1/webhooks", s.subscribe)
	mux.HandleFunc("DELETE /ojs/v1/webhooks/{id}", s.unsubscribe)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return s, server.URL
}

func answer(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// store is called with the lock held.
func (s *fakeServer) store(p push) fakeJob {
	n := -2 // never a number that a fault names
	if !strings.HasPrefix(p.Options.Queue, "bench-warmup") {
		s.jobs++
		n = s.jobs
	}
	if n != s.faults.repeatID {
		s.last = newID()
	}
	j := fakeJob{ID: s.last, Queue: p.Options.Queue, Type: p.Type, Args: p.Args, State: "available", n: n}
	if n != s.faults.loseJob && n != s.faults.refusePush {
		s.queues[j.Queue] = append(s.queues[j.Queue], j)
	}
	if n == s.faults.inventJob {
		s.queues[j.Queue] = append(s.queues[j.Queue], fakeJob{ID: newID(), Queue: j.Queue, n: -1})
	}
	for i := range 2 {
		if n != s.faults.loseEvent && (i == 0 || n == s.faults.repeatEvent) {
			s.publish(j)
		}
	}
	close(s.wake)
	s.wake = make(chan struct{})
	return j
}

func newID() string {
	var id jobID
	_, _ = rand.Read(id[:])
	return id.String()
}

func (s *fakeServer) publish(j fakeJob) {
	e := fakeEvent{ID: fmt.Sprintf("evt_%d", len(s.events)+1), Type: "job.enqueued", Subject: j.ID, Queue: j.Queue}
	s.events = append(s.events, e)
	for _, h := range s.hooks {
		if h.Filter.Queues[0] == j.Queue {
			go h.send(e)
		}
	}
	if s.notify != nil {
		payload, _ := json.Marshal(e)
		s.notify(string(payload))
	}
}

func (s *fakeServer) push(w http.ResponseWriter, req *http.Request) {
	var p push
	_ = json.NewDecoder(req.Body).Decode(&p)
	time.Sleep(s.faults.slowPush)
	s.mu.Lock()
	j := s.store(p)
	s.mu.Unlock()
	if j.n == s.faults.refusePush {
		answer(w, 503, map[string]any{"error": map[string]string{"code": "backend_error"}})
		return
	}
	if j.n == s.faults.hangUpOnPush {
		panic(http.ErrAbortHandler)
	}
	answer(w, 201, map[string]any{"job": j})
}

func (s *fakeServer) pushBatch(w http.ResponseWriter, req *http.Request) {
	var body struct{ Jobs []push }
	_ = json.NewDecoder(req.Body).Decode(&body)
	var jobs []fakeJob
	s.mu.Lock()
	for _, p := range body.Jobs {
		jobs = append(jobs, s.store(p))
	}
	s.mu.Unlock()
	answer(w, 201, map[string]any{"count": len(jobs), "jobs": jobs})
}

func (s *fakeServer) fetch(w http.ResponseWriter, req *http.Request) {
	var body struct {
		Queues []string
		Count  int
		WaitMS int `json:"wait_ms"`
	}
	_ = json.NewDecoder(req.Body).Decode(&body)
	end := time.After(time.Duration(body.WaitMS) * time.Millisecond)
	for {
		jobs, wake := s.claim(body.Queues[0], body.Count, body.WaitMS > 0)
		if len(jobs) > 0 || body.WaitMS == 0 {
			answer(w, 200, map[string]any{"jobs": jobs})
			return
		}
		select {
		case <-wake:
		case <-end:
			body.WaitMS = 0
		case <-req.Context().Done():
			return
		}
	}
}

func (s *fakeServer) claim(queue string, n int, wait bool) ([]fakeJob, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.queues[queue]
	n = min(n, len(waiting))
	jobs := append([]fakeJob{}, waiting[:n]...)
	s.queues[queue] = waiting[n:]
	for i := range jobs {
		jobs[i].State = "active"
		s.active[jobs[i].ID] = jobs[i]
	}
	if n == 0 && wait {
		s.parked++
	}
	return jobs, s.wake
}

type fakeAck struct {
	JobID string `json:"job_id"`
}

func (s *fakeServer) finish(a fakeAck) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, ok := s.active[a.JobID]
	if !ok || j.n == s.faults.refuseAck {
		return false
	}
	delete(s.active, a.JobID)
	if j.n == s.faults.repeatJob {
		j.n = -1 // once
		s.queues[j.Queue] = append(s.queues[j.Queue], j)
	}
	return true
}

func (s *fakeServer) ackOne(w http.ResponseWriter, req *http.Request) {
	var a fakeAck
	_ = json.NewDecoder(req.Body).Decode(&a)
	if !s.finish(a) {
		answer(w, 409, map[string]any{"error": map[string]string{"code": "conflict"}})
		return
	}
	answer(w, 200, map[string]any{"acknowledged": true, "job_id": a.JobID, "job": map[string]string{"id": a.JobID}})
}

func (s *fakeServer) ackBatch(w http.ResponseWriter, req *http.Request) {
	var body struct {
		Acks  []fakeAck
		Fetch struct {
			Queues []string
			Count  int
		}
	}
	_ = json.NewDecoder(req.Body).Decode(&body)
	items := []map[string]any{}
	for _, a := range body.Acks {
		item := map[string]any{"job_id": a.JobID, "status": "ok", "job": map[string]string{"id": a.JobID}}
		if !s.finish(a) {
			item = map[string]any{"job_id": a.JobID, "status": "failed", "error": map[string]string{"code": "conflict"}}
		}
		items = append(items, item)
	}
	res := map[string]any{"items": items}
	if body.Fetch.Count > 0 {
		res["jobs"], _ = s.claim(body.Fetch.Queues[0], body.Fetch.Count, false)
	}
	answer(w, 200, res)
}

func (s *fakeServer) listEvents(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	s.mu.Lock()
	events := slices.Clone(s.events)
	s.mu.Unlock()
	if q.Has("page") {
		answer(w, 200, map[string]any{"events": events[max(0, len(events)-1):]})
		return
	}
	after, _ := strconv.Atoi(strings.TrimPrefix(q.Get("after"), "evt_"))
	found := []fakeEvent{}
	for _, e := range events[after:] {
		if e.Queue == q.Get("queues") && e.Type == q.Get("types") {
			found = append(found, e)
		}
	}
	var cursor any
	if len(events) > 0 {
		cursor = events[len(events)-1].ID
	}
	answer(w, 200, map[string]any{"events": found, "cursor": cursor, "has_more": false})
}

// streamEvents sends each event as a frame, in two pieces.
func (s *fakeServer) streamEvents(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	next, wake := len(s.events), s.wake
	s.mu.Unlock()
	_, _ = fmt.Fprint(w, "retry: 3000\n\n")
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	for {
		select {
		case <-wake:
		case <-req.Context().Done():
			return
		}
		s.mu.Lock()
		fresh := slices.Clone(s.events[next:])
		next, wake = len(s.events), s.wake
		s.mu.Unlock()
		for _, e := range fresh {
			n, _ := strconv.Atoi(strings.TrimPrefix(e.ID, "evt_"))
			if e.Queue == req.URL.Query().Get("queues") {
				_, _ = fmt.Fprintf(w, "id: evt_00000000-0000-7000-80")
				_ = rc.Flush()
				_, _ = fmt.Fprintf(w, "00-%012x\nevent: %s\ndata: {\"subject\":\"%s\"}\n\n", n, e.Type, e.Subject)
			}
		}
		_ = rc.Flush()
	}
}

type fakeHook struct {
	URL    string
	Filter struct{ Queues []string }
}

func (h fakeHook) send(e fakeEvent) {
	body, _ := json.Marshal(e)
	if res, err := http.Post(h.URL, "application/json", bytes.NewReader(body)); err == nil {
		_ = res.Body.Close()
	}
}

func (s *fakeServer) subscribe(w http.ResponseWriter, req *http.Request) {
	var h fakeHook
	_ = json.NewDecoder(req.Body).Decode(&h)
	s.mu.Lock()
	defer s.mu.Unlock()
	id := fmt.Sprintf("sub_%d", len(s.hooks))
	s.hooks[id] = h
	answer(w, 201, map[string]string{"id": id})
}

func (s *fakeServer) unsubscribe(_ http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hooks, req.PathValue("id"))
}

// TestFakeServer makes sure that a test with a fault fails because of that fault.
func TestFakeServer(t *testing.T) {
	t.Parallel()
	s, url := startFake(t, faults{})
	target, err := parseTarget(url)
	require.NoError(t, err)
	c := newClient(target, "w", newBodies("q", 100, 0))
	defer c.close()

	require.NoError(t, c.enqueueOne())
	require.NoError(t, c.enqueueBatch(3))
	require.NoError(t, c.enqueueBatch(batchSize))
	require.Len(t, s.queues["q"], batchSize+4)

	jobs, err := c.fetch(2)
	require.NoError(t, err)
	require.Equal(t, c.enqueued[:2], jobs)
	require.NoError(t, c.ack(jobs[0]))
	next, err := c.ackBatch(jobs[1:], 3)
	require.NoError(t, err)
	require.Equal(t, c.enqueued[2:5], next)
	require.Equal(t, jobs, c.acked)
	none, err := c.ackBatch(next, 0)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Empty(t, s.active)
	c.acked = c.acked[:2]

	require.ErrorContains(t, c.ack(jobs[0]), "HTTP 409")
	_, err = c.ackBatch(jobs, 0)
	require.ErrorContains(t, err, "conflict")
	require.Equal(t, jobs, c.acked)
}
