package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// authority signs certificates, which it writes into files.
type authority struct {
	t       testing.TB
	ca      *x509.Certificate
	key     *ecdsa.PrivateKey
	pool    *x509.CertPool
	dir     string
	files   config.TLS // of the server
	expires time.Time
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), pool: x509.NewCertPool(), expires: time.Now().Add(time.Hour)}
	a.ca, a.key = newCertificate(t, nil, nil, a.expires)
	a.pool.AddCert(a.ca)
	a.files = config.TLS{Cert: filepath.Join(a.dir, "cert"), Key: filepath.Join(a.dir, "key"), ClientCA: filepath.Join(a.dir, "ca")}
	writePEM(t, a.files.ClientCA, "CERTIFICATE", a.ca.Raw)
	return a
}

// issue writes a new certificate for the server, the key last, and returns its serial number.
func (a *authority) issue(between ...func()) *big.Int {
	a.t.Helper()
	cert, key := newCertificate(a.t, a.ca, a.key, a.expires)
	writePEM(a.t, a.files.Cert, "CERTIFICATE", cert.Raw)
	for _, f := range between {
		f()
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	writePEM(a.t, a.files.Key, "PRIVATE KEY", der)
	return cert.SerialNumber
}

// setupTLS is a node with the certificate of the authority on both interfaces.
func (a *authority) setup(change ...func(*app.Config)) *node {
	a.t.Helper()
	n := setup(a.t, append([]func(*app.Config){func(c *app.Config) {
		c.Server.TLSCert, c.Server.TLSKey, c.GRPC.Listen = a.files.Cert, a.files.Key, "127.0.0.1:0"
	}}, change...)...)
	n.url = "https://" + n.app.Addr()
	n.client = a.client()
	return n
}

// client trusts the authority, and shows a certificate of its own if there is one.
func (a *authority) client(certificates ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool, Certificates: certificates}, ForceAttemptHTTP2: true}
	a.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serial is that of the certificate that a new connection gets.
func (a *authority) serial(n *node) *big.Int {
	a.t.Helper()
	conn, err := tls.Dial("tcp", n.app.Addr(), &tls.Config{RootCAs: a.pool})
	require.NoError(a.t, err)
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber
}

func (a *authority) grpc(n *node) *rpc {
	a.t.Helper()
	return n.dialGRPC(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.pool})))
}

// TestTLS covers docs/reference/http.md, TLS.
func TestTLS(t *testing.T) {
	t.Parallel()

	t.Run("BothInterfaces", func(t *testing.T) {
		t.Parallel()
		ca := newAuthority(t)
		ca.issue()
		a := ca.setup()
		id := a.push(`"type":"t","args":[]`)
		r := a.fetch("default")
		require.Equal(t, id, r.at("jobs.0.id"))
		require.Equal(t, "max-age=31536000", r.header.Get("Strict-Transport-Security"))
		require.Equal(t, "https://"+a.app.Addr()+"/ojs/v1", a.get("/ojs/manifest").at("endpoints.base_url"))
		_, err := ca.grpc(a).Manifest(a.t.Context(), &ojsv1.ManifestRequest{})
		require.NoError(t, err)

		res, err := ca.client().Get(a.url + "/ojs/v1/health")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, "HTTP/2.0", res.Proto)
		_, err = http.Get("https://" + a.app.Addr() + "/ojs/v1/health") //nolint:noctx // it ends with the handshake
		require.ErrorContains(t, err, "certificate")
		res, err = http.Get("http://" + a.app.Addr() + "/ojs/v1/health") //nolint:noctx // it is refused at once
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusBadRequest, res.StatusCode)
		require.Empty(t, setup(t).get("/ojs/v1/health").header.Get("Strict-Transport-Security"))
	})

	t.Run("WaitingCallsAndStreams", func(t *testing.T) {
		t.Parallel()
		ca := newAuthority(t)
		ca.issue()
		a := ca.setup()
		got := a.parked("q", `"wait_ms":20000`)
		conn, _, err := websocket.Dial(t.Context(), "wss://"+a.app.Addr()+"/ojs/v1/ws", &websocket.DialOptions{HTTPClient: &http.Client{
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}},
		}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.CloseNow() })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+"/ojs/v1/events/stream", nil)
		require.NoError(t, err)
		res, err := a.client.Do(req)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		require.Equal(t, "HTTP/2.0", res.Proto)
		id := a.push(`"type":"t","args":[],"queue":"q"`)
		require.Equal(t, id, (<-got).at("jobs.0.id"))
		text := make([]byte, 0, 4096)
		for !strings.Contains(string(text), id) {
			b := make([]byte, 1024)
			n, err := res.Body.Read(b)
			require.NoError(t, err)
			text = append(text, b[:n]...)
		}
	})

	t.Run("ClientCertificates", func(t *testing.T) {
		t.Parallel()
		ca, other := newAuthority(t), newAuthority(t)
		ca.issue()
		a := ca.setup(func(c *app.Config) { c.Server.ClientCA = ca.files.ClientCA })
		for _, path := range []string{"/ojs/v1/jobs", "/ojs/manifest", "/metrics", "/none"} {
			r := a.get(path).fails(401, "unauthenticated", "unauthenticated")
			require.Contains(t, r.at("error.hint"), "OJS_TLS_CLIENT_CA")
		}
		for _, path := range []string{"/healthz", "/livez", "/readyz", "/ready", "/health", "/ojs/v1/health"} {
			a.get(path).is(200)
		}
		_, err := ca.grpc(a).Manifest(a.t.Context(), &ojsv1.ManifestRequest{})
		require.Error(t, err)

		own := func(of *authority) tls.Certificate {
			cert, key := newCertificate(t, of.ca, of.key, of.expires)
			return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
		}
		a.client = ca.client(own(ca))
		a.get("/ojs/v1/jobs").is(200)
		a.get("/metrics").is(200)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+"/healthz", nil)
		require.NoError(t, err)
		_, err = ca.client(own(other)).Do(req)
		require.Error(t, err, "a certificate of somebody else")
	})

	t.Run("OwnCertificateOfGRPC", func(t *testing.T) {
		t.Parallel()
		ca, other := newAuthority(t), newAuthority(t)
		ca.issue()
		other.issue()
		a := ca.setup(func(c *app.Config) { c.GRPC.TLSCert, c.GRPC.TLSKey = other.files.Cert, other.files.Key })
		a.get("/ojs/v1/health").is(200)
		_, err := other.grpc(a).Manifest(a.t.Context(), &ojsv1.ManifestRequest{})
		require.NoError(t, err)
	})

	t.Run("Cleartext", func(t *testing.T) {
		t.Parallel()
		for _, on := range []bool{false, true} {
			a := setup(t, func(c *app.Config) { c.Server.HTTP2Cleartext = on })
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
			t.Cleanup(transport.CloseIdleConnections)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+"/ojs/v1/health", nil)
			require.NoError(t, err)
			res, err := (&http.Client{Transport: transport}).Do(req)
			require.Equal(t, on, err == nil)
			if on {
				require.NoError(t, res.Body.Close())
				require.Equal(t, "HTTP/2.0", res.Proto)
			}
			a.get("/ojs/v1/health").is(200)
		}
	})
}

// Certificates are replaced while the server runs; no request is refused meanwhile.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	first := ca.issue()
	a := ca.setup()
	require.Equal(t, first, ca.serial(a))
	a.get("/ojs/v1/health").is(200) // on a connection that stays

	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 3 {
		load.Go(func() {
			for ctx.Err() == nil {
				transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}, DisableKeepAlives: true}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+"/healthz", nil)
				res, err := (&http.Client{Transport: transport}).Do(req)
				if !assertNoError(t, err) {
					return
				}
				_ = res.Body.Close()
			}
		})
	}
	status := func() string { return a.get("/ojs/v1/health").at("components.tls") }
	require.Equal(t, "ok", status())
	second := ca.issue(func() {
		// The key does not belong to the certificate yet.
		eventually(t, func() bool { return status() == "degraded" })
		require.Equal(t, first, ca.serial(a))
		require.Contains(t, a.get("/readyz").is(200).body, `"tls":"degraded"`)
	})
	eventually(t, func() bool { return ca.serial(a).Cmp(second) == 0 })
	require.Equal(t, "ok", status())
	_, err := ca.grpc(a).Manifest(a.t.Context(), &ojsv1.ManifestRequest{})
	require.NoError(t, err)
	stop()
	load.Wait()
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Errorf("a request was refused: %v", err)
	}
	return err == nil
}

// With a certificate that has expired the server runs, and says so.
func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.expires = time.Now().Add(-time.Minute)
	ca.issue()
	a := ca.setup()
	a.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // it has expired
	t.Cleanup(a.client.CloseIdleConnections)
	require.Equal(t, "degraded", a.get("/ojs/v1/health").is(200).at("status"))
	require.Equal(t, "degraded", a.get("/ojs/v1/health").at("components.tls"))
	a.get("/readyz").is(200)
	for _, name := range []string{"http", "grpc"} {
		require.InDelta(t, -60, a.scrape().values("ojs_tls_expires_seconds")["interface="+name], 30)
	}
}

// A node does not start with files that it cannot use.
func TestTLSFilesThatCannotWork(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue()
	other := newAuthority(t)
	other.issue()
	none := filepath.Join(ca.dir, "none")
	for want, files := range map[string]config.TLS{
		"load TLS certificate":                    {Cert: ca.files.Cert, Key: none},
		"does not match public key":               {Cert: ca.files.Cert, Key: other.files.Key},
		"load certificates of client authorities": {Cert: ca.files.Cert, Key: ca.files.Key, ClientCA: none},
		"it holds no certificate in PEM":          {Cert: ca.files.Cert, Key: ca.files.Key, ClientCA: ca.files.Key},
	} {
		for _, ofGRPC := range []bool{false, true} {
			wrong := settings(dbtest.URL(t))
			if ofGRPC {
				wrong.GRPC.Listen = net.JoinHostPort("127.0.0.1", "0")
				wrong.GRPC.TLSCert, wrong.GRPC.TLSKey, wrong.GRPC.ClientCA = files.Cert, files.Key, files.ClientCA
			} else {
				wrong.Server.TLSCert, wrong.Server.TLSKey, wrong.Server.ClientCA = files.Cert, files.Key, files.ClientCA
			}
			_, err := app.Start(t.Context(), wrong)
			require.ErrorContains(t, err, want)
		}
	}
}
