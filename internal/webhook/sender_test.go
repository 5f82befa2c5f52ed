package webhook

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
)

// local may call this machine.
var local = config.Webhooks{AllowNetworks: config.Destinations{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}

// endpoint is a TLS server that the sender trusts.
func endpoint(t *testing.T, h http.HandlerFunc, change ...func(*DispatcherDeps)) (*sender, *Message) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that the sender ends; a server that runs may read it at any time
	server.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	deps := DispatcherDeps{RootCAs: roots}
	for _, f := range change {
		f(&deps)
	}
	s := newSender(local, deps)
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		server.Close()
	})
	return s, message(server.URL)
}

func message(url string) *Message {
	secret := Secret{Value: "secret-0123456789"}
	return &Message{URL: url, ID: "del_1", Body: `{"a":1}`, Secrets: []Secret{secret}, Signer: secret, Timeout: 5 * time.Second, Attempt: 1, Clock: NewClock(time.Now())}
}

func TestSend(t *testing.T) {
	t.Parallel()

	t.Run("ReadsAtMost64KiBAndShowsTheBeginning", func(t *testing.T) {
		t.Parallel()
		s, m := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a\x00\xffé"+strings.Repeat("x", 1<<20))
		})
		res := s.send(t.Context(), m)
		require.Equal(t, 200, res.Code)
		require.Empty(t, res.Error)
		require.True(t, strings.HasPrefix(res.Snippet, "aéxxx"), res.Snippet[:10])
		require.LessOrEqual(t, len(res.Snippet), maxSnippet)
	})

	t.Run("SignsTheTimeOfTheDatabase", func(t *testing.T) {
		t.Parallel()
		for _, shift := range []time.Duration{-time.Hour, time.Hour} { // how far the clock of the node is off
			var stamp string
			s, m := endpoint(t, func(_ http.ResponseWriter, r *http.Request) { stamp = r.Header.Get("X-OJS-Timestamp") })
			m.Clock = NewClock(time.Now().Add(shift))
			require.Equal(t, 200, s.send(t.Context(), m).Code)
			seconds, err := strconv.ParseInt(stamp, 10, 64)
			require.NoError(t, err)
			require.InDelta(t, time.Now().Add(shift).Unix(), seconds, 10)
		}
	})

	t.Run("DoesNotFollowRedirects", func(t *testing.T) {
		t.Parallel()
		calls := 0
		s, m := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
			calls++
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		})
		require.Equal(t, 307, s.send(t.Context(), m).Code)
		require.Equal(t, 1, calls)
	})

	t.Run("TimesOut", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		s, m := endpoint(t, func(http.ResponseWriter, *http.Request) { <-release })
		defer close(release)
		m.Timeout = 50 * time.Millisecond
		res := s.send(t.Context(), m)
		require.Equal(t, "timeout", res.Error)
		require.Zero(t, res.Code)
		require.GreaterOrEqual(t, res.Duration, m.Timeout)
	})

	t.Run("TimesOutInTheBody", func(t *testing.T) {
		t.Parallel()
		release := make(chan struct{})
		s, m := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			<-release // not the request's end: the answer could be complete before the connection is closed
		})
		defer close(release)
		m.Timeout = 50 * time.Millisecond
		require.Equal(t, "timeout", s.send(t.Context(), m).Error)
	})

	t.Run("SaysBodyIfTheAnswerBreaksOff", func(t *testing.T) {
		t.Parallel()
		s, m := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
		})
		res := s.send(t.Context(), m)
		require.Equal(t, 200, res.Code)
		require.Equal(t, "body", res.Error)
	})

	t.Run("RefusesACertificateItDoesNotTrust", func(t *testing.T) {
		t.Parallel()
		s, m := endpoint(t, func(http.ResponseWriter, *http.Request) { t.Error("called") }, func(d *DispatcherDeps) { d.RootCAs = x509.NewCertPool() })
		require.Equal(t, "tls", s.send(t.Context(), m).Error)
	})

	t.Run("NamesOtherFailures", func(t *testing.T) {
		t.Parallel()
		refused, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, refused.Close())
		s := newSender(local, DispatcherDeps{
			LookUp: func(context.Context, string) ([]netip.Addr, error) {
				return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
			},
		})
		require.Equal(t, "connect", s.send(t.Context(), message("https://"+refused.Addr().String())).Error)
		require.Equal(t, "dns", s.send(t.Context(), message("https://nowhere.test")).Error)
		require.Equal(t, "blocked_address", s.send(t.Context(), message("https://10.0.0.1")).Error)
		require.Equal(t, "blocked_address", s.send(t.Context(), message("http://127.0.0.1")).Error)
	})

	t.Run("AHostThatSpeaksHTTPIsATLSFailure", func(t *testing.T) {
		t.Parallel()
		plainHTTP := httptest.NewServer(http.NotFoundHandler())
		defer plainHTTP.Close()
		s := newSender(local, DispatcherDeps{})
		require.Equal(t, "tls", s.send(t.Context(), message("https"+strings.TrimPrefix(plainHTTP.URL, "http"))).Error)
	})
}

// A name whose answer changes between the check and the connection: there is only one look-up, and its answer is dialled.
func TestSendRebinding(t *testing.T) {
	t.Parallel()
	var answers []string
	s, m := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		require.Equal(t, "example.com", strings.Split(r.Host, ":")[0])
	})
	lookUps := 0
	s.dialer.LookUp = func(context.Context, string) ([]netip.Addr, error) {
		lookUps++
		var addrs []netip.Addr
		for a := range strings.FieldsSeq(answers[min(lookUps, len(answers))-1]) {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs, nil
	}
	u, err := url.Parse(m.URL)
	require.NoError(t, err)
	m.URL = "https://example.com:" + u.Port() // the name that httptest's certificate is for

	answers = []string{"127.0.0.1", "10.0.0.1"}
	require.Equal(t, 200, s.send(t.Context(), m).Code)
	require.Equal(t, 1, lookUps)
	s.client.CloseIdleConnections()
	require.Equal(t, "blocked_address", s.send(t.Context(), m).Error, "the next connection is checked again")

	answers, lookUps = []string{"127.0.0.1 10.0.0.1"}, 0
	require.Equal(t, "blocked_address", s.send(t.Context(), m).Error, "one bad address refuses them all")
	answers, lookUps = []string{"::ffff:10.0.0.1"}, 0
	require.Equal(t, "blocked_address", s.send(t.Context(), m).Error)
	answers, lookUps = []string{"64:ff9b::a00:1"}, 0
	require.Equal(t, "blocked_address", s.send(t.Context(), m).Error)
}

func TestSendThroughProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer proxy.Close()
	u, err := url.Parse(proxy.URL)
	require.NoError(t, err)
	private := "93.184.216.34"
	s := newSender(config.Webhooks{ProxyURL: u}, DispatcherDeps{
		LookUp: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(private)}, nil
		},
	})
	require.NotEmpty(t, s.send(t.Context(), message("https://hooks.test/x")).Error)
	require.Equal(t, "CONNECT hooks.test:443", <-asked)
	private = "10.0.0.1"
	require.Equal(t, "blocked_address", s.send(t.Context(), message("https://hooks.test/x")).Error)
	require.Empty(t, asked)
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, " 5 ": 5 * time.Second, "0": 0, "-5": 0, "soon": 0, "1.5": 0, "4294967295": maxRetryAfter, "99999999999999999999": maxRetryAfter,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat): 0, time.Now().Add(1000 * time.Hour).UTC().Format(http.TimeFormat): maxRetryAfter,
	} {
		for code, answers := range map[int]bool{429: true, 503: true, 500: false, 200: false} {
			resp := &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {value}}}
			if answers {
				require.Equal(t, want, retryAfter(resp, time.Now()), value)
			} else {
				require.Zero(t, retryAfter(resp, time.Now()), value)
			}
		}
	}
	before := time.Now()
	resp := &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {before.Add(time.Hour).UTC().Format(http.TimeFormat)}}}
	wait := retryAfter(resp, time.Now())
	require.LessOrEqual(t, wait, time.Hour)
	require.GreaterOrEqual(t, wait, time.Hour-time.Second-time.Since(before), "the header has whole seconds")
}
