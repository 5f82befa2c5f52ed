// Package fakeserver is a server of the Open Job Spec in memory: the transport of package ojstest, and of the SDK's own tests, which
// also break its connections. It has jobs with retries, the worker protocol, workflows, crons, rate limits, dead letters, webhooks and
// events, and refuses what servers refuse. It has no schemas, tenants, pools, configurations of queues and histories, and delivers no
// webhooks. Nothing listens, and no time passes but by [Server.Advance] and that of the test.
package fakeserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Server is a server in memory. It is made by New and used by any number of goroutines. It is a transport for clients, and is
// never closed, and what it holds goes with it. Its clock is that of the machine plus what Advance has added, so the time that
// a test itself takes passes, too.
type Server struct {
	// mu guards all fields. Routes run with it locked, except those that wait (fetch, stream).
	mu         sync.Mutex
	offset     time.Duration // of the clock, by Advance
	extensions []string
	jobs       map[string]*record
	order      []*record // as they were enqueued
	tick       int64     // counts entries into available
	workflows  map[string]*workflow
	crons      map[string]*cron
	webhooks   map[string]map[string]any
	workers    map[string]*worker
	paused     map[string]bool // queues
	draining   map[string]bool
	limits     map[string]*partition
	began      time.Time
	events     []*ojs.Event
	requests   []Request
	// faults are looked through in the order in which they were added; the first that fits is used up first.
	faults  []*fault
	changed chan struct{} // closed at each change, for requests that wait
}

// Request is a call that was made. Requests that a fault has answered are among them.
type Request struct {
	Method string
	Path   string // below /ojs/v1
	Query  url.Values
	Header http.Header
	Body   json.RawMessage
}

type worker struct {
	directive ojs.Directive
	reported  ojs.Directive
	seen      time.Time // latest heartbeat
	active    int       // jobs that it has named
}

type fault struct {
	method, path string
	times        int
	before       bool // the server does not see the request
	err          error
	status       int
	header       http.Header
}

// Option changes a new server.
type Option func(*Server)

// WithoutExtensions hides what other servers do not have: long polling, batches of acks and fetches in them, delays of jobs that are handed
// back, streams of events. Test with and without it if the program is to run against other servers.
func WithoutExtensions() Option { return func(s *Server) { s.extensions = nil } }

// New makes an empty server.
func New(options ...Option) *Server {
	s := &Server{
		extensions: []string{
			ojs.ExtensionLongPolling, ojs.ExtensionBatchAck, ojs.ExtensionRequeueDelay, ojs.ExtensionRetryDelay, "urn:ojs:ext:realtime",
		},
		jobs: map[string]*record{}, workflows: map[string]*workflow{}, crons: map[string]*cron{},
		webhooks: map[string]map[string]any{}, workers: map[string]*worker{}, paused: map[string]bool{}, draining: map[string]bool{},
		limits: map[string]*partition{}, began: time.Now(), changed: make(chan struct{}),
	}
	for _, o := range options {
		o(s)
	}
	return s
}

// Advance moves the clock of the server: delayed jobs and retries whose time has come can be fetched then, and reservations that are
// over end. Timers of workers do not move with it: heartbeats and pauses of a running worker go on in real time.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
	s.promote()
	s.wake()
}

// FailNext answers the next requests of a method and path with a status and an error of the Open Job Spec, without carrying them out.
// The path may end in *. Clients repeat a request after an error that may pass, such as 503, so such an error reaches the
// caller only if times is not below the tries of the client: four, by default. header may carry Retry-After; nil: none.
func (s *Server) FailNext(times int, method, path string, status int, header http.Header) {
	s.addFault(&fault{method: method, path: path, times: times, before: true, status: status, header: header})
}

// CutNext breaks the connection of the next requests of a method and path: before the server sees them, or after it has carried
// them out. Jobs that were fetched by them are handed back. With carriedOut the client cannot know the outcome
// ([ojs.OutcomeUnknown]): it is the way to test that repeating does no harm.
func (s *Server) CutNext(times int, method, path string, carriedOut bool) {
	s.addFault(&fault{method: method, path: path, times: times, before: !carriedOut, err: errors.New("connection reset by the test")})
}

func (s *Server) addFault(f *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// Direct tells all workers that have sent a heartbeat what to do: quiet, terminate or running. Workers that come later are not told.
func (s *Server) Direct(directive ojs.Directive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		w.directive = directive
	}
	s.wake()
}

// Requests lists the calls that were made, the oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// RoundTrip carries out a request. A request whose context ends while it is served is answered with an error although it may have
// been carried out, as with a real server.
func (s *Server) RoundTrip(hr *http.Request) (*http.Response, error) {
	r := &Request{Method: hr.Method, Path: strings.TrimPrefix(hr.URL.EscapedPath(), "/ojs/v1"), Query: hr.URL.Query(), Header: hr.Header}
	if hr.Body != nil {
		data, err := io.ReadAll(hr.Body)
		if err := errors.Join(err, hr.Body.Close()); err != nil {
			return nil, err
		}
		r.Body = data
	}
	ctx := hr.Context()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.requests = append(s.requests, *r)
	f := s.takeFault(r)
	s.mu.Unlock()
	if f != nil && f.before {
		return f.answer()
	}
	a := s.serve(ctx, r)
	if err := ctx.Err(); err != nil && a.stream == nil {
		return nil, err
	}
	if f != nil {
		s.handBack(a.jobs)
		return f.answer()
	}
	return a.response()
}

// takeFault needs the lock of the caller.
func (s *Server) takeFault(r *Request) *fault {
	for i, f := range s.faults {
		prefix, wild := strings.CutSuffix(f.path, "*")
		if f.method != r.Method || (r.Path != f.path && (!wild || !strings.HasPrefix(r.Path, prefix))) {
			continue
		}
		if f.times--; f.times <= 0 {
			s.faults = slices.Delete(s.faults, i, i+1)
		}
		return f
	}
	return nil
}

// answer has internal_error for a status without a kind of its own.
func (f *fault) answer() (*http.Response, error) {
	if f.err != nil {
		return nil, f.err
	}
	kind := ojs.ErrInternal
	switch f.status {
	case http.StatusServiceUnavailable:
		kind = ojs.ErrUnavailable
	case http.StatusGatewayTimeout:
		kind = ojs.ErrTimeout
	case http.StatusTooManyRequests:
		kind = ojs.ErrRateLimited
	case http.StatusBadRequest:
		kind = ojs.ErrInvalidPayload
	}
	a := refuse(f.status, newError(kind, nil, "the test has asked for this answer"))
	a.header = f.header
	return a.response()
}

// answer is what a route gives.
type answer struct {
	status int
	header http.Header
	body   any
	jobs   []shownJob // that were claimed for it
	stream io.ReadCloser
}

func ok(body any) answer                     { return answer{status: http.StatusOK, body: body} }
func created(body any) answer                { return answer{status: http.StatusCreated, body: body} }
func refuse(status int, e *ojs.Error) answer { return answer{status: status, body: object{"error": e}} }
func notFound(what, id string) answer        { return refuse(http.StatusNotFound, noSuch(what, id)) }

type object = map[string]any

func (a answer) response() (*http.Response, error) {
	body := a.stream
	if body == nil {
		data, err := json.Marshal(a.body)
		if err != nil {
			return nil, fmt.Errorf("encode the answer: %w", err)
		}
		body = io.NopCloser(bytes.NewReader(data))
	}
	header := a.header
	if header == nil {
		header = http.Header{}
	}
	header.Set("OJS-Version", "1.0")
	header.Set("X-Request-Id", "req_"+ojs.NewID())
	if header.Set("Content-Type", "application/openjobspec+json"); a.stream != nil {
		header.Set("Content-Type", "text/event-stream")
	}
	return &http.Response{StatusCode: a.status, Header: header, Body: body, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1}, nil
}

// serve finds the route. A request first makes available what is due by the clock, and at its end wakes the requests that wait.
func (s *Server) serve(ctx context.Context, r *Request) answer {
	path := strings.Split(strings.Trim(r.Path, "/"), "/")
	for i, part := range path {
		if text, err := url.PathUnescape(part); err == nil {
			path[i] = text
		}
	}
	switch {
	case r.Path == "/ojs/manifest":
		return ok(object{"specversion": "1.0", "implementation": object{"name": "fakeserver", "version": "1.0", "language": "go"},
			"extensions":        s.extensions,
			"conformance_level": 0, "protocols": []string{"http"}, "backend": "memory", "capabilities": object{}})
	case r.Path == "/health":
		return ok(object{"status": "ok"})
	case r.Path == "/workers/fetch":
		return s.fetch(ctx, r)
	case r.Path == "/events/stream":
		return s.stream(ctx, r)
	}
	if refused := s.checkParameters(path, r); refused != nil {
		return refusal(refused)
	}
	if refused := oneOf(r, "wait", "true", "false", "1", "0"); refused != nil {
		return refusal(refused)
	}
	if wait := r.Query.Get("wait"); (wait == "true" || wait == "1") && s.has(ojs.ExtensionLongPolling) {
		return s.awaitResult(ctx, path, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promote()
	defer s.wake()
	switch path[0] {
	case "jobs":
		return s.serveJobs(path[1:], r)
	case "workers":
		return s.serveWorkers(path[1:], r)
	case "workflows":
		return s.serveWorkflows(path[1:], r)
	case "dead-letter":
		return s.serveDeadLetters(path[1:], r)
	case "cron":
		return s.serveCrons(path[1:], r)
	case "queues":
		return s.serveQueues(path[1:], r)
	case "webhooks":
		return s.serveWebhooks(path[1:], r)
	case "events":
		return s.serveEvents(r)
	case "rate-limits":
		return s.serveLimits(path[1:], r)
	case "admin":
		return s.serveAdmin(path[1:], r)
	}
	return noRoute(r)
}

func noRoute(r *Request) answer {
	return refuse(http.StatusNotFound, newError(ojs.ErrNotFound, object{"resource_type": "route"},
		"The server in memory has no route %s %s; package ojstest says what it leaves out.", r.Method, r.Path))
}

func (s *Server) now() time.Time { return time.Now().Add(s.offset).UTC() }

// wake lets requests that wait look again. The caller has the lock.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// page cuts a list as its query says, under its names. Cursors are offsets here.
func page[T any](r *Request, name string, all []T, also ...string) answer {
	number := func(names ...string) (n int, sent bool) {
		for _, name := range names {
			if n, err := strconv.Atoi(r.Query.Get(name)); err == nil {
				return n, true
			}
		}
		return 0, false
	}
	limit, sent := number("limit", "per_page")
	if !sent {
		limit = 50
	}
	limit = max(1, min(limit, 200))
	offset, sent := number("cursor", "offset")
	if at, there := number("page"); !sent && there {
		offset = (at - 1) * limit
	}
	end := min(max(offset, 0)+limit, len(all))
	p := object{"total": len(all), "limit": limit, "offset": offset, "page": offset/limit + 1, "per_page": limit,
		"has_more": end < len(all)}
	if end < len(all) {
		p["next_cursor"] = strconv.Itoa(end)
	}
	items := append([]T{}, all[min(max(offset, 0), end):end]...)
	body := object{"pagination": p, "total": len(all)}
	for _, name := range append(also, name) {
		body[name] = items
	}
	return ok(body)
}
