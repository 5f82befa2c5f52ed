package ojs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Request is one call to a server, independent of how it is carried.
type Request struct {
	Method string
	Path   string // below /ojs/v1, such as /jobs; a path that starts with /ojs/ is absolute
	Query  url.Values
	Header http.Header // beyond those that the transport sends by itself
	Body   []byte      // JSON; nil: none
	// A transport must not end the request before its usual time and Wait are over.
	Wait   time.Duration // how much longer than usual the server may take, because it waits for something
	Stream bool          // the answer is read as it comes, without a limit of time
}

// Response is the answer to a Request, whatever its status. The caller reads Body to its end and closes it.
type Response struct {
	Status int
	Header http.Header // may be nil
	Body   io.ReadCloser
}

// Transport carries requests to a server. An error means that there was no answer; it should be a [*TransportError]. Transports are used
// by many goroutines at a time. Set Sent in it truthfully: the client repeats a request that must not come twice only if Sent
// is false.
type Transport interface {
	Do(ctx context.Context, request *Request) (*Response, error)
}

// Media types of requests and answers.
const (
	ContentType = "application/openjobspec+json"
	userAgent   = "ojs-go/1.0"
	basePath    = "/ojs/v1"
)

// defaultTimeout is above what a server takes for the slowest statement, 15 s, so that its answer comes first.
const (
	defaultTimeout = 30 * time.Second
	// maxBody is beyond the largest answer that a server of ours gives, 32 MiB.
	maxBody = 64 << 20
)

// HTTPTransport carries requests over HTTP. Its fields must not change after the first request. Redirects, proxies and TLS are
// those of its Client.
type HTTPTransport struct {
	URL     string        // of the server, such as http://localhost:8080; a path in it is put before /ojs
	Token   string        // sent as Authorization: Bearer; "": none
	Header  http.Header   // added to each request
	Timeout time.Duration // of a request; 0: 30 s. Long polls get what they wait for in addition, streams have none
	Client  *http.Client  // nil: one with a pool of connections for this transport
}

// NewHTTPTransport checks the URL and makes a transport with a pool of connections of its own. It keeps up to 64 idle
// connections, so that as many goroutines can call at once without connecting anew. Proxies and TLS are those of
// http.DefaultTransport.
func NewHTTPTransport(server, token string) (*HTTPTransport, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("ojs: server URL %q must look like http://localhost:8080", server)
	}
	u.RawQuery, u.Fragment = "", ""
	t := &HTTPTransport{URL: strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), basePath), Token: token}
	pool := http.DefaultTransport
	if standard, ok := pool.(*http.Transport); ok {
		own := standard.Clone()
		own.MaxIdleConns, own.MaxIdleConnsPerHost = 0, 64
		pool = own
	}
	t.Client = &http.Client{Transport: pool}
	return t, nil
}

// Do sends a request. The body is read here, within the time of the request, except for streams, which the caller closes.
func (t *HTTPTransport) Do(ctx context.Context, request *Request) (*Response, error) {
	var sent atomic.Bool
	fail := func(err error) error {
		return &TransportError{Method: request.Method, Path: request.Path, Sent: sent.Load(), Err: err}
	}
	if !request.Stream {
		timeout := t.Timeout
		if timeout <= 0 {
			timeout = defaultTimeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+request.Wait)
		defer cancel()
	}
	// A request counts as sent as soon as there is a connection for it: from then on bytes may have left.
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	r, err := t.build(traced, request)
	if err != nil {
		return nil, fail(err)
	}
	client := t.Client
	if client == nil {
		client = http.DefaultClient
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, fail(err)
	}
	if request.Stream {
		return &Response{answer.StatusCode, answer.Header, answer.Body}, nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody+1))
	err = errors.Join(err, answer.Body.Close())
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, fail(err)
	}
	return &Response{answer.StatusCode, answer.Header, io.NopCloser(bytes.NewReader(body))}, nil
}

// Headers of the transport and of the request replace the standard ones of the same name.
func (t *HTTPTransport) build(ctx context.Context, request *Request) (*http.Request, error) {
	target := t.URL
	if !strings.HasPrefix(request.Path, "/ojs/") {
		target += basePath
	}
	target += request.Path
	if len(request.Query) > 0 {
		target += "?" + request.Query.Encode()
	}
	var body io.Reader
	if request.Body != nil {
		body = bytes.NewReader(request.Body)
	}
	r, err := http.NewRequestWithContext(ctx, request.Method, target, body)
	if err != nil {
		return nil, err
	}
	h := r.Header
	h.Set("Accept", ContentType)
	h.Set("OJS-Version", "1.0")
	h.Set("User-Agent", userAgent)
	if request.Body != nil {
		h.Set("Content-Type", ContentType)
	}
	if t.Token != "" {
		h.Set("Authorization", "Bearer "+t.Token)
	}
	for _, more := range []http.Header{t.Header, request.Header} {
		for name, values := range more {
			h[http.CanonicalHeaderKey(name)] = values
		}
	}
	return r, nil
}

// CloseIdleConnections closes connections that no request uses.
func (t *HTTPTransport) CloseIdleConnections() {
	if t.Client != nil {
		t.Client.CloseIdleConnections()
	}
}
