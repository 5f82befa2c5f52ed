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

// Media types of requests and answers.
const (
	ContentType = "application/openjobspec+json"
	userAgent   = "ojs-go/1.0"
	basePath    = "/ojs/v1"
)

const (
	// defaultTimeout is above what a server takes for the slowest statement, 15 s, so that its answer comes first.
	defaultTimeout = 30 * time.Second
	// maxBody is beyond the largest answer that a server of ours gives, 32 MiB.
	maxBody = 64 << 20
)

// httpRequest is a call with its body encoded, which is sent once or several times.
type httpRequest struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte        // nil: none
	wait         time.Duration // how much longer than usual the server may take
}

// httpAnswer is an answer of any status, with its body read.
type httpAnswer struct {
	status int
	header http.Header
	body   []byte
}

// serverURL checks the URL of a server. A transport of the user's own may have no use for one.
func serverURL(text string, optional bool) (string, error) {
	if text == "" && optional {
		text = "http://ojs.invalid"
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fmt.Errorf("ojs: server URL %q must look like http://localhost:8080", text)
	}
	u.RawQuery, u.Fragment = "", ""
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), basePath), nil
}

// pooledTransport has a pool of connections of its own. It keeps up to 64 idle ones, so that as many goroutines can call at once
// without connecting anew. Proxies and TLS are those of http.DefaultTransport.
func pooledTransport() http.RoundTripper {
	standard, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	own := standard.Clone()
	own.MaxIdleConns, own.MaxIdleConnsPerHost = 0, 64
	return own
}

// roundTrip sends a request and reads the answer, within the time of a request. An error is a [*TransportError].
func (c *Client) roundTrip(ctx context.Context, request httpRequest) (httpAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+request.wait)
	defer cancel()
	answer, err := c.open(ctx, request)
	if err != nil {
		return httpAnswer{}, err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody+1))
	err = errors.Join(err, answer.Body.Close())
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	if err != nil {
		return httpAnswer{}, &TransportError{Method: request.method, Path: request.path, Sent: true, Err: err}
	}
	return httpAnswer{answer.StatusCode, answer.Header, body}, nil
}

// open sends a request and leaves the body of the answer to the caller, who closes it.
//
// A request counts as sent as soon as there is a connection for it: from then on bytes may have left. A transport that
// reports no connections, such as one of a test, may have carried out whatever it was given.
func (c *Client) open(ctx context.Context, request httpRequest) (*http.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, &TransportError{Method: request.method, Path: request.path, Err: err}
	}
	var asked, connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	r, err := c.newRequest(traced, request)
	if err != nil {
		return nil, &TransportError{Method: request.method, Path: request.path, Err: err}
	}
	answer, err := c.http.Do(r)
	if err != nil {
		sent := connected.Load() || !asked.Load()
		return nil, &TransportError{Method: request.method, Path: request.path, Sent: sent, Err: err}
	}
	return answer, nil
}

// newRequest has headers of the configuration and of the request replace the standard ones of the same name.
func (c *Client) newRequest(ctx context.Context, request httpRequest) (*http.Request, error) {
	target := c.url
	if !strings.HasPrefix(request.path, "/ojs/") {
		target += basePath
	}
	target += request.path
	if len(request.query) > 0 {
		target += "?" + request.query.Encode()
	}
	var body io.Reader
	if request.body != nil {
		body = bytes.NewReader(request.body)
	}
	r, err := http.NewRequestWithContext(ctx, request.method, target, body)
	if err != nil {
		return nil, err
	}
	h := r.Header
	h.Set("Accept", ContentType)
	h.Set("OJS-Version", "1.0")
	h.Set("User-Agent", userAgent)
	if request.body != nil {
		h.Set("Content-Type", ContentType)
	}
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	for _, more := range []http.Header{c.header, request.header} {
		for name, values := range more {
			h[http.CanonicalHeaderKey(name)] = values
		}
	}
	return r, nil
}
