package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

const (
	writeTimeout = 10 * time.Second // of one write (contract 40 §6.5)
	lastWrites   = 2 * time.Second  // for what is written to a stream that ends with the node: 5 s in all
	streamRetry  = time.Second      // after the database could not be read
)

// Realtime are the settings of event streams (contract 40 §6.5, §15). The zero value of a field means its default.
type Realtime struct {
	// BufferSize is how many events may wait for a slow client that would rather lose some. 1 000.
	BufferSize int

	// DropOldest makes a slow client lose events and go on live. Otherwise it reads what it missed from the table.
	DropOldest bool

	// RateLimit delays what one connection gets to so many frames per second. 1 000; negative: no limit.
	RateLimit int

	// MaxConnections bounds the streams of this node, MaxPerClient those of one key, or address without keys. 10 000, 100.
	MaxConnections int
	MaxPerClient   int

	// QueryToken accepts access_token=<key> on streams, because browsers cannot set headers there.
	QueryToken bool

	// AllowedOrigins are origins besides the server's own from which browsers may open a WebSocket; * for all.
	AllowedOrigins []string

	// StatsInterval is the pause between two overviews of the stats stream. 2 s.
	StatsInterval time.Duration
}

func (r Realtime) withDefaults() Realtime {
	r.BufferSize = orDefault(r.BufferSize, 1000)
	if r.RateLimit == 0 {
		r.RateLimit = 1000
	}
	r.MaxConnections = orDefault(r.MaxConnections, 10_000)
	r.MaxPerClient = orDefault(r.MaxPerClient, 100)
	if r.StatsInterval == 0 {
		r.StatsInterval = 2 * time.Second
	}
	return r
}

// streams are the open streams of this node.
type streams struct {
	config Realtime
	ctx    context.Context // ends when all of them shall; derives from no request
	close  context.CancelFunc

	mu      sync.Mutex
	open    int
	clients map[string]int
	running sync.WaitGroup

	sse, socket eventlog.Tally
}

func newStreams(config Realtime) *streams {
	s := &streams{config: config.withDefaults(), clients: map[string]int{}}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s
}

// admit counts a stream in; leave must be called when it has ended.
func (s *streams) admit(client string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return nil, ojs.ErrUnavailable()
	case s.open >= s.config.MaxConnections:
		return nil, errTooManyStreams("This node has", s.config.MaxConnections)
	case s.clients[client] >= s.config.MaxPerClient:
		return nil, errTooManyStreams("This client has", s.config.MaxPerClient)
	}
	s.open++
	s.clients[client]++
	s.running.Add(1)
	return func() { s.leave(client) }, nil
}

func (s *streams) leave(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.clients[client]--; s.clients[client] == 0 {
		delete(s.clients, client)
	}
	s.running.Done()
}

// count is the number of open streams.
func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// stop ends all streams, and refuses new ones. It does not wait.
func (s *streams) stop() {
	s.mu.Lock() // nobody is between the look at ctx and the count
	defer s.mu.Unlock()
	s.close()
}

// wait returns when the streams have ended after stop, or with ctx.
func (s *streams) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("streams did not end: %w", ctx.Err())
	}
}

// context ends with the request or with all streams.
func (s *streams) context(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func errTooManyStreams(whose string, limit int) error {
	return ojs.NewError(ojs.KindRateLimited, fmt.Sprintf("%s %d open streams, which is the limit; close one.", whose, limit), map[string]any{"limit": limit})
}

// client is who a stream counts for: the key, else the address.
func (a *API) client(r *http.Request) string {
	if principal, ok := a.authenticate(r.Header.Get("Authorization")); ok {
		return principal
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// streamRoute reports whether a request is for a stream, before it is routed.
func streamRoute(r *http.Request) bool {
	path, found := strings.CutPrefix(r.URL.Path, "/ojs/v1/")
	if !found || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch path {
	case "events/stream", "events/ws", "ws", "admin/stats/stream":
		return true
	case "events":
		return wantsStream(r)
	}
	kind, rest, _ := strings.Cut(path, "/")
	_, rest, _ = strings.Cut(rest, "/")
	return kind == "jobs" && (rest == "events" || rest == "progress/stream") || kind == "queues" && rest == "events"
}

func wantsStream(r *http.Request) bool { return names(r.Header["Accept"], mediaStream) }

// takeQueryToken moves access_token into the header, if streams may have it there, so that no log shows it.
func (a *API) takeQueryToken(r *http.Request) {
	if !a.streams.config.QueryToken || !strings.Contains(r.URL.RawQuery, "access_token=") || !streamRoute(r) {
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return
	}
	if token := query.Get("access_token"); token != "" && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	query.Del("access_token")
	r.URL.RawQuery = query.Encode()
	r.RequestURI = r.URL.RequestURI()
}

// pace delays a connection's frames to the limit; a second's worth may come at once.
type pace struct {
	perSecond float64
	mu        sync.Mutex
	free      time.Time // when all that was sent is paid for
}

// spend notes n frames and returns how long to wait before the next.
func (p *pace) spend(n int) time.Duration {
	if p.perSecond <= 0 || n == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / p.perSecond * float64(time.Second)))
	return p.free.Sub(now) - time.Second
}

func (s *streams) newPace() *pace { return &pace{perSecond: float64(s.config.RateLimit)} }

// batch is how many events are taken at once: few enough that the limit delays evenly.
func (s *streams) batch() int {
	const most = 256
	if s.config.RateLimit <= 0 {
		return most
	}
	return min(most, max(1, s.config.RateLimit/4))
}

// pause sleeps unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// StopStreams ends all streams of this node and refuses new ones. AwaitStreams returns when they have ended.
func (a *API) StopStreams() { a.streams.stop() }

// AwaitStreams waits for them, also for WebSockets, which http.Server no longer knows of.
func (a *API) AwaitStreams(ctx context.Context) error { return a.streams.wait(ctx) }

// Tallies counts the streams by transport, for metrics.
func (a *API) Tallies() map[string]*eventlog.Tally {
	return map[string]*eventlog.Tally{"sse": &a.streams.sse, "websocket": &a.streams.socket}
}

// Streams is the number of open streams.
func (a *API) Streams() int { return a.streams.count() }

func (a *API) streamRoutes(v1 *echo.Group) {
	get := func(path string, h echo.HandlerFunc) {
		v1.Match([]string{http.MethodGet, http.MethodHead}, path, h)
	}
	get("/events/stream", a.streamEvents)
	get("/jobs/:id/events", a.streamJob)
	get("/queues/:name/events", a.streamQueue)
	get("/jobs/:id/progress/stream", a.streamProgress)
	get("/admin/stats/stream", a.streamStats)
	get("/ws", a.serveSocket)
	get("/events/ws", a.serveSocket)
}
