package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
)

// streamRetry is the pause after the database could not be read.
// It applies to each stream.
const streamRetry = time.Second

// streamRoute reports whether a request is for a stream, before it is routed.
// It decides whether access_token may be read, so it must name stream routes only: a key in the query of any other route
// would get into logs of proxies for nothing.
func streamRoute(r *http.Request) bool {
	path, found := strings.CutPrefix(r.URL.Path, "/ojs/v1/")
	if !found || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch path {
	case "events/stream", "events/ws", "ws", "admin/stats/stream":
		return true
	// The same route polls or streams.
	case "events":
		return wantsStream(r)
	}
	// The second segment is an id or a name, whatever it is.
	kind, rest, _ := strings.Cut(path, "/")
	_, rest, _ = strings.Cut(rest, "/")
	return kind == "jobs" && (rest == "events" || rest == "progress/stream") || kind == "queues" && rest == "events"
}

// A range such as */* asks for no stream.
func wantsStream(r *http.Request) bool { return names(r.Header["Accept"], mediaStream) }

// takeQueryToken moves access_token into the header, if streams may have it there, so that no log shows it.
// The header wins over the query. It changes r in place; RequestURI is changed, too, because it has the query as well. A
// query that cannot be parsed is left to the handler.
func (a *API) takeQueryToken(r *http.Request) {
	if !a.streams.Config().QueryToken || !strings.Contains(r.URL.RawQuery, "access_token=") || !streamRoute(r) {
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return
	}
	// An empty token is as none.
	if token := query.Get("access_token"); token != "" && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	query.Del("access_token")
	r.URL.RawQuery = query.Encode()
	r.RequestURI = r.URL.RequestURI()
}

// StopStreams ends all streams of this node and refuses new ones. AwaitStreams returns when they have ended.
// It must come before http.Server.Shutdown, which waits for streams as for any request.
func (a *API) StopStreams() { a.streams.Stop() }

// AwaitStreams waits for them, also for WebSockets, which http.Server no longer knows of.
// It must come after StopStreams.
func (a *API) AwaitStreams(ctx context.Context) error { return a.streams.Wait(ctx) }

// StreamCounters counts the streams by transport, for metrics.
// The keys are values of a label.
func (a *API) StreamCounters() map[string]*eventlog.StreamCounter {
	return map[string]*eventlog.StreamCounter{"sse": &a.sse, "websocket": &a.socket}
}

// Streams is the number of open streams.
// It counts gRPC streams as well.
func (a *API) Streams() int { return a.streams.Count() }
