package ojs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Config describes a [Client]. The zero value of a field has the default that is named; only URL must be set.
type Config struct {
	URL   string // of the server, such as http://localhost:8080; a path in it is put before /ojs
	Token string // an API key, if the server wants one, sent as Authorization: Bearer

	Header  http.Header   // added to each request
	Timeout time.Duration // of a request; 0: 30 s. Long polls get what they wait for in addition, streams have none

	// Transport sends the requests: nil is a pool of connections of this client, with the proxies and TLS of
	// http.DefaultTransport. Tests give one that calls nobody, and may leave URL empty then; package ojstest has one.
	Transport http.RoundTripper
	// HTTPClient takes the place of Transport, if the program has a client that it configures: its transport, its cookies and its
	// rule for redirects are used. Its Timeout is not: it would end long polls and streams, and the Timeout above bounds requests.
	HTTPClient *http.Client

	// MaxRetries is how often a request is sent again that the server has not carried out (429, 503, no connection), or that can be
	// repeated without harm whatever became of it: reads, and enqueues, whose id the client chooses. 0: three times; negative: never.
	// Between two tries the client waits as Retry-After says, else 100 ms doubling, up to 30 s, with jitter.
	MaxRetries int

	Logger *slog.Logger // nil: slog.Default
}

// Client talks to a server. It is made by NewClient and used by any number of goroutines. It keeps no state of the server, so
// one for the whole program is enough: its connections are shared.
type Client struct {
	// Middleware wraps the enqueue of jobs. It may be changed at any time; enqueues that have begun keep the chain that they
	// began with.
	Middleware Middlewares[EnqueueMiddleware]

	url, token string
	header     http.Header
	timeout    time.Duration
	http       *http.Client
	retries    int
	logger     *slog.Logger
	listeners  listeners
}

// NewClient checks the configuration. It does not call the server. The only errors are a URL that is none, and a Transport beside an
// HTTPClient. Whether the server can be reached shows with the first call, or with [Client.Health].
func NewClient(config Config) (*Client, error) {
	server, err := serverURL(config.URL, config.Transport != nil)
	if err != nil {
		return nil, err
	}
	sender := &http.Client{Transport: config.Transport}
	switch {
	case config.HTTPClient != nil && config.Transport != nil:
		return nil, errors.New("ojs: Config has both a Transport and an HTTPClient: set the Transport of the HTTPClient")
	case config.HTTPClient != nil:
		own := *config.HTTPClient
		own.Timeout = 0
		sender = &own
	case config.Transport == nil:
		sender.Transport = pooledTransport()
	}
	c := &Client{
		url: server, token: config.Token, header: config.Header.Clone(), timeout: defaultTimeout,
		http: sender, retries: cmp.Or(config.MaxRetries, 3), logger: cmp.Or(config.Logger, slog.Default()),
	}
	if config.Timeout > 0 {
		c.timeout = config.Timeout
	}
	c.listeners.source, c.listeners.logger = "ojs-go/client", c.logger
	return c, nil
}

// Use adds enqueue middleware at the end, that is, innermost.
func (c *Client) Use(middleware ...EnqueueMiddleware) { c.Middleware.Use(middleware...) }

// UseNamed adds enqueue middleware at the end under a new name, by which [Client].Middleware finds it again.
func (c *Client) UseNamed(name string, middleware EnqueueMiddleware) {
	c.Middleware.UseNamed(name, middleware)
}

// Close closes idle connections. A client can be used on afterwards.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call is a request to the server, for [Client.Do].
type Call struct {
	Method string
	Path   string // below /ojs/v1, such as /jobs; a path that starts with /ojs/ is absolute
	Query  url.Values
	Header http.Header
	Body   any // encoded as JSON; nil: none

	// Idempotent calls are sent again although they may have been carried out: they have no further effect. Reads are idempotent
	// by themselves.
	Idempotent bool
	// Accept is a status from 300 on that is no failure, unless the body is an error: an answer that says per item what became of it.
	Accept int

	// wait is how much longer than usual the server may take. once is for callers with a loop of their own, which must not wait
	// for the repetitions of a single call: the worker's fetch, heartbeat and reports.
	wait time.Duration
	once bool
}

// Do sends a request, again if that can do no harm, and decodes the answer into out, which may be nil. It is for what the server
// offers beyond the other methods; package ojsadmin has the calls of operators. Errors are as from every other call.
func (c *Client) Do(ctx context.Context, call Call, out any) error {
	_, err := c.repeat(ctx, call, out)
	return err
}

// get is a request that only reads.
func get(path string, query url.Values) Call {
	return Call{Method: http.MethodGet, Path: path, Query: query}
}

// post is a request whose effect must not come twice. It is sent again only after errors that say that nothing was done.
func post(path string, body any) Call {
	return Call{Method: http.MethodPost, Path: path, Body: body}
}

// again marks a request that has no further effect if it is sent twice. An id, a key of idempotency or the nature of the call
// must give that guarantee.
func (r Call) again() Call {
	r.Idempotent = true
	return r
}

// repeat is Do. unknown reports whether a try before the last one may have been carried out: then a refusal of the last try, such
// as a duplicate, may be the work of an earlier one. The body is encoded once, so that every try sends the same bytes and the
// same id.
func (c *Client) repeat(ctx context.Context, r Call, out any) (unknown bool, err error) {
	request := httpRequest{method: r.Method, path: r.Path, query: r.Query, header: r.Header, wait: r.wait}
	if r.Body != nil {
		if request.body, err = json.Marshal(r.Body); err != nil {
			return false, fmt.Errorf("ojs: encode request: %w", err)
		}
	}
	repeatable := r.Idempotent || r.Method == http.MethodGet
	for n := 0; ; n++ {
		_, err = c.try(ctx, request, r.Accept, out)
		if err == nil || r.once || n >= c.retries || ctx.Err() != nil || !Retryable(err) || (OutcomeUnknown(err) && !repeatable) {
			return unknown, err
		}
		unknown = unknown || OutcomeUnknown(err)
		if sleep(ctx, retryWait(err, n)) != nil {
			return unknown, err
		}
	}
}

// try sends a request once. Every error is an *Error or a *TransportError. header is that of the answer, also of a refusal.
func (c *Client) try(ctx context.Context, request httpRequest, accept int, out any) (header http.Header, err error) {
	answer, err := c.roundTrip(ctx, request)
	if err != nil {
		return nil, err
	}
	// Redirects that were not followed count as refusals.
	if answer.status >= 300 {
		refused := refusal(request, answer)
		if t := (*TransportError)(nil); answer.status != accept || !errors.As(refused, &t) {
			return answer.header, refused
		}
	}
	if out != nil && len(answer.body) > 0 {
		if jobs, ok := out.(*jobsAnswer); ok {
			err = jobs.decode(answer.body)
		} else {
			err = json.Unmarshal(answer.body, out)
		}
		if err != nil {
			return answer.header, &TransportError{
				Method: request.method, Path: request.path, Status: answer.status, Sent: true, Err: fmt.Errorf("read the answer: %w", err),
			}
		}
	}
	return answer.header, nil
}

// refusal is the error of an answer that is no success. A body without a code comes from a proxy, or from something else than a
// server of the Open Job Spec; its first 200 bytes are quoted.
func refusal(request httpRequest, answer httpAnswer) error {
	var refused struct {
		Error json.RawMessage `json:"error"`
	}
	e := &Error{}
	known := json.Unmarshal(answer.body, &refused) == nil && len(refused.Error) > 0 && json.Unmarshal(refused.Error, e) == nil &&
		e.Code != ""
	wait := retryAfterHeader(answer.header)
	if !known {
		return &TransportError{
			Method: request.method, Path: request.path, Status: answer.status, Sent: true, retryAfter: wait,
			Err: fmt.Errorf("the answer is no error of the Open Job Spec: %.200q", bytes.TrimSpace(answer.body)),
		}
	}
	e.Method, e.Path, e.Status, e.RetryAfter = request.method, request.path, answer.status, wait
	return e
}

// retryAfterHeader reads seconds or a date.
func retryAfterHeader(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(max(seconds, 0)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

const (
	firstWait = 100 * time.Millisecond
	maxWait   = 30 * time.Second
)

// retryWait is the time before a request is sent again after n+1 failures. A wait that the server asked for is kept and
// lengthened by up to a tenth; one that the client chooses varies by half.
func retryWait(err error, n int) time.Duration {
	if after := RetryAfter(err); after > 0 {
		return jitter(min(after, maxWait), 1, 1.1)
	}
	return jitter(min(firstWait<<min(n, 16), maxWait), 0.5, 1.5)
}

// jitter multiplies d by a random factor, so that clients that failed together do not return together.
func jitter(d time.Duration, low, high float64) time.Duration {
	return time.Duration(float64(d) * (low + (high-low)*rand.Float64()))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
