package ojs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Config describes a [Client]. The zero value of a field has the default that is named; only URL or Transport must be set.
type Config struct {
	URL   string // of the server, such as http://localhost:8080
	Token string // an API key, if the server wants one

	// Transport replaces HTTP to URL with Token, for tests and for requests that need more than a token.
	// URL and Token are not looked at if it is set.
	Transport Transport

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

	transport Transport
	retries   int
	logger    *slog.Logger
}

// NewClient checks the configuration. It does not call the server. The only error is a URL that is none. Whether the server can
// be reached shows with the first call, or with [Client.Health].
func NewClient(config Config) (*Client, error) {
	c := &Client{transport: config.Transport, retries: config.MaxRetries, logger: cmp.Or(config.Logger, slog.Default())}
	if c.retries == 0 {
		c.retries = 3
	}
	if c.transport == nil {
		t, err := NewHTTPTransport(config.URL, config.Token)
		if err != nil {
			return nil, err
		}
		c.transport = t
	}
	return c, nil
}

// Close closes idle connections. A client can be used on afterwards.
func (c *Client) Close() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// call is a request whose answer is decoded. once is for callers with a loop of their own, which must not wait for the
// repetitions of a single call: the worker's fetch, heartbeat and reports.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	body         any // encoded as JSON; nil: none
	wait         time.Duration
	repeatable   bool // it can be sent again although it may have been carried out
	once         bool // the caller repeats
	accept       int  // a status from 300 on that is no failure, if the body is no error
}

// get is a request that only reads.
func get(path string, query url.Values) call {
	return call{method: http.MethodGet, path: path, query: query, repeatable: true}
}

// post is a request whose effect must not come twice. It is sent again only after errors that say that nothing was done.
func post(path string, body any) call {
	return call{method: http.MethodPost, path: path, body: body}
}

// again marks a request that has no further effect if it is sent twice. An id, a key of idempotency or the nature of the call
// must give that guarantee.
func (r call) again() call {
	r.repeatable = true
	return r
}

// do sends a request, again if that can do no harm, and decodes the answer into out, which may be nil.
func (c *Client) do(ctx context.Context, r call, out any) error {
	_, err := c.repeat(ctx, r, out)
	return err
}

// repeat is do. unknown reports whether a try before the last one may have been carried out. The body is encoded once, so that
// every try sends the same bytes and the same id. unknown tells the caller that a refusal of the last try, such as a duplicate,
// may be the work of an earlier one.
func (c *Client) repeat(ctx context.Context, r call, out any) (unknown bool, err error) {
	request := &Request{Method: r.method, Path: r.path, Query: r.query, Header: r.header, Wait: r.wait}
	if r.body != nil {
		if request.Body, err = json.Marshal(r.body); err != nil {
			return false, fmt.Errorf("ojs: encode request: %w", err)
		}
	}
	for n := 0; ; n++ {
		_, err = c.try(ctx, request, r.accept, out)
		if err == nil || r.once || n >= c.retries || ctx.Err() != nil || !Retryable(err) || (OutcomeUnknown(err) && !r.repeatable) {
			return unknown, err
		}
		unknown = unknown || OutcomeUnknown(err)
		if sleep(ctx, retryWait(err, n)) != nil {
			return unknown, err
		}
	}
}

// try sends a request once. Every error is an *Error or a *TransportError, whatever the transport returned. header is that of the
// answer, also of a refusal.
func (c *Client) try(ctx context.Context, request *Request, accept int, out any) (header http.Header, err error) {
	answer, err := c.transport.Do(ctx, request)
	if err != nil {
		if t := (*TransportError)(nil); errors.As(err, &t) {
			return nil, err
		}
		return nil, &TransportError{Method: request.Method, Path: request.Path, Sent: true, Err: err}
	}
	body, err := io.ReadAll(answer.Body)
	err = errors.Join(err, answer.Body.Close())
	// Redirects that the transport has not followed count as refusals.
	if err == nil && answer.Status >= 300 {
		refused := refusal(request, answer, body)
		if t := (*TransportError)(nil); answer.Status != accept || !errors.As(refused, &t) {
			return answer.Header, refused
		}
	}
	if err == nil && out != nil && len(body) > 0 {
		err = json.Unmarshal(body, out)
	}
	if err != nil {
		return answer.Header, &TransportError{Method: request.Method, Path: request.Path, Status: answer.Status, Sent: true, Err: fmt.Errorf("read the answer: %w", err)}
	}
	return answer.Header, nil
}

// refusal is the error of an answer that is no success. A body without a code comes from a proxy, or from something else than a
// server of the Open Job Spec; its first 200 bytes are quoted.
func refusal(request *Request, answer *Response, body []byte) error {
	var refused struct {
		Error json.RawMessage `json:"error"`
	}
	e := &Error{}
	known := json.Unmarshal(body, &refused) == nil && len(refused.Error) > 0 && json.Unmarshal(refused.Error, e) == nil && e.Code != ""
	wait := retryAfterHeader(answer.Header)
	if !known {
		return &TransportError{
			Method: request.Method, Path: request.Path, Status: answer.Status, Sent: true, retryAfter: wait,
			Err: fmt.Errorf("the answer is no error of the Open Job Spec: %.200q", bytes.TrimSpace(body)),
		}
	}
	e.Status, e.RetryAfter = answer.Status, wait
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
