package userguide_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// server answers the requests of a client from memory, as the pages describe the endpoints. It is the mock that they want to be
// injected in place of the transport.
type server struct {
	acked, nacked chan string   // bodies of reports
	holdAck       chan struct{} // if there is one, acks are answered when it is closed

	mu        sync.Mutex
	requests  []request
	jobs      []map[string]any // in the order of their enqueue
	directive string           // state in the answer to a heartbeat
}

type request struct {
	method, path string
	header       http.Header
	body         string
}

func newServer() *server {
	return &server{acked: make(chan string, 100), nacked: make(chan string, 100), directive: "running"}
}

// RoundTrip implements http.RoundTripper.
func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	q := request{method: r.Method, path: r.URL.Path, header: r.Header}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		q.body = string(body)
	}
	if q.path == "/ojs/v1/workers/ack" && s.holdAck != nil {
		select {
		case <-s.holdAck:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, q)
	status, answer := s.answer(q)
	return respond(status, answer), nil
}

func (s *server) answer(q request) (status int, answer any) {
	var body struct {
		Jobs  []map[string]any
		Count int
		JobID string `json:"job_id"`
	}
	if q.body != "" {
		if err := json.Unmarshal([]byte(q.body), &body); err != nil {
			return http.StatusBadRequest, refusal("invalid_payload")
		}
	}
	id, isJob := strings.CutPrefix(q.path, "/ojs/v1/jobs/")
	switch route := q.method + " " + q.path; {
	case route == "GET /ojs/manifest":
		return http.StatusOK, map[string]any{"extensions": []any{}}
	case route == "POST /ojs/v1/jobs":
		job := map[string]any{}
		_ = json.Unmarshal([]byte(q.body), &job) // was read above
		return http.StatusCreated, map[string]any{"job": s.store(job)}
	case route == "POST /ojs/v1/jobs/batch":
		for _, job := range body.Jobs {
			s.store(job)
		}
		return http.StatusCreated, map[string]any{"jobs": body.Jobs}
	case route == "POST /ojs/v1/workers/fetch":
		return http.StatusOK, map[string]any{"jobs": s.reserve(body.Count)}
	case route == "POST /ojs/v1/workers/ack":
		s.job(body.JobID)["state"] = "completed"
		s.acked <- q.body
		return http.StatusOK, map[string]any{"acknowledged": true}
	case route == "POST /ojs/v1/workers/nack":
		s.job(body.JobID)["state"] = "discarded"
		s.nacked <- q.body
		return http.StatusOK, map[string]any{"state": "discarded"}
	case route == "POST /ojs/v1/workers/heartbeat":
		return http.StatusOK, map[string]any{"state": s.directive, "server_time": "2026-02-12T10:30:00Z"}
	case route == "POST /ojs/v1/workflows":
		return http.StatusCreated, map[string]any{"workflow": map[string]any{"id": "test-workflow", "state": "running"}}
	case isJob && s.job(id) != nil && q.method == http.MethodGet:
		return http.StatusOK, map[string]any{"job": s.job(id)}
	case isJob && s.job(id) != nil && q.method == http.MethodDelete:
		s.job(id)["state"] = "cancelled"
		return http.StatusOK, map[string]any{"job": s.job(id)}
	}
	return http.StatusNotFound, refusal("not_found")
}

// store adds what the server assigns.
func (s *server) store(job map[string]any) map[string]any {
	if job["id"] == nil {
		job["id"] = fmt.Sprintf("job-%d", len(s.jobs)+1)
	}
	job["state"], job["queue"], job["attempt"], job["created_at"] = "available", "default", 0, time.Now().UTC()
	if options, ok := job["options"].(map[string]any); ok && options["delay_until"] != nil {
		job["state"] = "scheduled"
	}
	s.jobs = append(s.jobs, job)
	return job
}

func (s *server) reserve(count int) []map[string]any {
	reserved := []map[string]any{}
	for _, job := range s.jobs {
		if job["state"] == "available" && len(reserved) < count {
			job["state"], job["attempt"] = "active", 1
			reserved = append(reserved, job)
		}
	}
	return reserved
}

func (s *server) job(id string) map[string]any {
	i := slices.IndexFunc(s.jobs, func(job map[string]any) bool { return job["id"] == id })
	if i < 0 {
		return nil
	}
	return s.jobs[i]
}

func (s *server) direct(directive string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.directive = directive
}

// sent gives the requests of a method and path, such as POST /jobs; "": all.
func (s *server) sent(route string) (list []request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.requests {
		if route == "" || route == q.method+" "+strings.TrimPrefix(q.path, "/ojs/v1") {
			list = append(list, q)
		}
	}
	return list
}

// transport is a mock of one function.
type transport func(r *http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body any) *http.Response {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(data))}
}

func refusal(code string) any {
	return map[string]any{"error": map[string]any{"code": code, "message": "refused", "retryable": false}}
}

// bubble runs a parallel subtest with a clock of its own (testing/synctest): it goes on at once when all goroutines wait, so that no time
// is slept.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// newClient makes a client that sends everything once.
func newClient(t *testing.T, transport http.RoundTripper) *ojs.Client {
	t.Helper()
	c, err := ojs.NewClient(ojs.Config{
		URL: "http://unused", Transport: transport, MaxRetries: -1, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return c
}

// bundle is a worker with a client of a server of its own.
type bundle struct {
	*server

	client *ojs.Client
	worker *ojs.Worker
}

func setup(t *testing.T, config ojs.WorkerConfig) *bundle {
	t.Helper()
	s := newServer()
	c := newClient(t, s)
	return &bundle{s, c, ojs.NewWorker(c, config)}
}

// start runs the worker until stop is called, or the test ends. ended gets what Start returns.
func (b *bundle) start(t *testing.T) (stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- b.worker.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil { // nil, if the test has received it
			t.Errorf("Start: %v", err)
		}
	})
	return cancel, done
}

func enqueue(t *testing.T, c *ojs.Client, jobType string, args ...any) *ojs.Job {
	t.Helper()
	job, err := c.Enqueue(t.Context(), jobType, args)
	require.NoError(t, err)
	return job
}

// pass lets time of the bubble pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// receive waits for a minute of the clock of the bubble.
func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing has come for a minute")
	}
	return v
}

// decode reads JSON whose form the caller knows.
func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	m := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(text), &m))
	return m
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
