package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/config"
)

const (
	// maxResponse bounds what is read: an endpoint that sends without end would keep the place of a request until the timeout; what is
	// behind maxResponse is not read, and the connection is closed.
	maxResponse   = 64 << 10       // bytes that are read of a response
	maxSnippet    = 1024           // bytes of it in the delivery log
	maxRetryAfter = 24 * time.Hour // more is not granted to an endpoint
	tlsTimeout    = 10 * time.Second
)

// Message is one request to be sent. Secrets and Signer are plain text; a message is never logged. Traceparent is set by
// the dispatcher, for the span of the attempt.
type Message struct {
	URL         string
	ID          string // del_…; the same for all attempts, so that receivers notice a repetition
	Webhook     string // sub_…
	EventID     string // evt_…
	EventType   string
	Attempt     int           // from 1
	Body        string        // as it was stored: every attempt sends the same bytes
	Secrets     []Secret      // all valid ones, newest first
	Signer      Secret        // the one of X-OJS-Signature
	Standard    bool          // with the headers of Standard Webhooks, too
	CloudEvents bool          // the body is a CloudEvent
	Traceparent string        // "": none
	Timeout     time.Duration // of the whole request
	Clock       Clock         // of the database, for the timestamp that receivers check
}

// Result is the result of a request. Code and Error are both set if the response broke off. Error is one word of
// docs/reference/webhooks.md, Outcomes, which clients see. Duration is measured by this node.
type Result struct {
	Code       int           // HTTP status, 0: no response
	Error      string        // timeout, dns, tls, connect, blocked_address or body; "": the response was read
	Snippet    string        // the beginning of the response
	RetryAfter time.Duration // as the endpoint asks; 0: it does not
	Duration   time.Duration
}

// accepted reports whether the endpoint has accepted the delivery.
func (r Result) accepted() bool { return r.Error == "" && r.Code >= 200 && r.Code <= 299 }

// sender makes the requests. It never follows a redirect or calls an address that the rules do not allow. It keeps no state
// of deliveries, and its functions may be called from many goroutines.
type sender struct {
	config  config.Webhooks
	version string // of the server
	dialer  *dialer
	client  *http.Client
}

// newSender keeps as many connections to one host as there may be requests: with the default, two, a burst for one endpoint would
// connect for nearly every request. Compression is off, because the limit of what is read would hold for the packed bytes
// only.
func newSender(c config.Webhooks, deps DispatcherDeps) *sender {
	s := &sender{config: c, version: deps.Version, dialer: &dialer{Rules: EgressRules(c), LookUp: deps.LookUp}}
	transport := &http.Transport{
		DialContext:         s.dialer.DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: deps.RootCAs},
		TLSHandshakeTimeout: tlsTimeout,
		// A transport with its own dialer does not try HTTP/2 otherwise.
		ForceAttemptHTTP2:   true,
		DisableCompression:  true,
		MaxIdleConns:        c.Workers,
		MaxIdleConnsPerHost: c.Workers,
		IdleConnTimeout:     90 * time.Second,
	}
	if c.ProxyURL != nil {
		// The operator's proxy connects to the endpoint, so admit checks the endpoint's address before each request.
		transport.Proxy = http.ProxyURL(c.ProxyURL)
		transport.DialContext = (&net.Dialer{Timeout: tlsTimeout}).DialContext
	}
	s.client = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	return s
}

// noRedirect makes a redirect the response, which is a failed attempt. Subscriptions must name the final URL.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// admit checks a URL again: the rules may have changed since it was stored. A URL that is not admitted any more counts as
// blocked, whatever the reason. With a proxy the name is resolved only to check it: the proxy resolves it again, and may
// get another answer. That is why a proxy has to keep rules of its own.
func (s *sender) admit(ctx context.Context, u *url.URL) error {
	var refused *RefusedError
	if err := EgressRules(s.config).CheckURL(u.String()); errors.As(err, &refused) {
		return errBlocked
	}
	if s.config.ProxyURL == nil {
		return nil // the dialer checks
	}
	_, err := s.dialer.Resolve(ctx, u.Hostname())
	return err
}

// send makes one attempt. It returns when the response was read, or its timeout or ctx has ended.
func (s *sender) send(ctx context.Context, m *Message) Result {
	start := time.Now() // before the timeout begins, or a request that takes all of it would seem shorter
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	res := s.attempt(ctx, m)
	res.Duration = time.Since(start)
	return res
}

// attempt never returns an error: each way to fail is a word in Result.Error, for the log of deliveries.
func (s *sender) attempt(ctx context.Context, m *Message) Result {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, strings.NewReader(m.Body))
	if err != nil {
		return Result{Error: "blocked_address"}
	}
	// Before the request, as a proxy would otherwise connect before anything is checked.
	if err := s.admit(ctx, req.URL); err != nil {
		return Result{Error: classify(ctx, err)}
	}
	// docs/reference/webhooks.md, Request lists the headers. The timestamp is made here and not at the claim, so it is that of the attempt.
	h := req.Header
	h.Set("Content-Type", "application/json")
	if m.CloudEvents {
		h.Set("Content-Type", "application/cloudevents+json")
	}
	h.Set("User-Agent", "OJS-Webhook/1.0 (ojsd/"+s.version+")")
	h.Set("X-OJS-Event-Type", m.EventType)
	h.Set("X-OJS-Delivery-ID", m.ID)
	h.Set("X-OJS-Subscription-ID", m.Webhook)
	h.Set("X-OJS-Attempt", strconv.Itoa(m.Attempt))
	h.Set("X-OJS-Event-ID", m.EventID)
	if m.Traceparent != "" {
		h.Set("traceparent", m.Traceparent)
	}
	m.sign(h, m.Clock.Now())
	resp, err := s.client.Do(req)
	if err != nil {
		return Result{Error: classify(ctx, err)}
	}
	defer func() { _ = resp.Body.Close() }() // it has been read
	// The status of a response whose body breaks off is kept for the log.
	res := Result{Code: resp.StatusCode, RetryAfter: retryAfter(resp, m.Clock.Now())}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		res.Error = "body"
		if ctx.Err() != nil {
			res.Error = "timeout"
		}
	}
	// PostgreSQL stores valid text without U+0000. Cutting by bytes may split a character, which ToValidUTF8 then drops.
	text := strings.ToValidUTF8(string(body[:min(len(body), maxSnippet)]), "")
	res.Snippet = strings.ReplaceAll(text, "\x00", "")
	return res
}

// classify turns an error into the word that the delivery log shows. Its text may contain internals that clients must not
// see. The order matters: a refused address and the end of ctx hide in errors of the network, too. Some errors of package
// tls have no type, so their text is compared.
func classify(ctx context.Context, err error) string {
	var (
		dns      *net.DNSError
		record   tls.RecordHeaderError
		cert     *tls.CertificateVerificationError
		alert    tls.AlertError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		network  net.Error
	)
	switch {
	case errors.Is(err, errBlocked):
		return "blocked_address"
	// The end of the node counts as a timeout here; deliver looks at its own ctx before it records.
	case ctx.Err() != nil:
		return "timeout"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &record), errors.As(err, &cert), errors.As(err, &alert), errors.As(err, &unknown), errors.As(err, &hostname),
		strings.Contains(err.Error(), "tls: "), strings.Contains(err.Error(), "TLS handshake"),
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "tls"
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	return "connect"
}

// retryAfter reads the header Retry-After of a 429 or 503: seconds or a date. A date is compared with the clock of the
// database. What cannot be read counts as absent.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	text := strings.TrimSpace(resp.Header.Get("Retry-After"))
	if text != "" && strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseUint(text, 10, 32)
		if err != nil { // out of range
			return maxRetryAfter
		}
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// Clock shows the time of the database, which it has read once. The clock of the node, which may be wrong, only measures how long
// ago that was. Receivers refuse requests whose timestamp is minutes away from theirs. A clock that is set while the node
// runs has no effect, as time.Since uses the monotonic one. Network and queue time of the reading make Now late by
// milliseconds, which do not matter for a tolerance of minutes.
type Clock struct {
	database time.Time
	read     time.Time // by the node, with its monotonic clock
}

// NewClock takes the time that the database has just shown.
func NewClock(database time.Time) Clock { return Clock{database, time.Now()} }

// Now is the time of the database.
func (c Clock) Now() time.Time { return c.database.Add(time.Since(c.read)) }
