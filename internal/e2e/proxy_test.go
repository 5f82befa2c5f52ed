package e2e_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// proxy is what a node connects to instead of the database.
type proxy struct {
	t *testing.T
	*toxiproxy.Proxy
	url string // of the database, through the proxy
}

// newProxy ends after what the test builds on it.
func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{t: t, Proxy: toxiproxy.NewProxy(server, "database", "127.0.0.1:0", u.Host)}
	require.NoError(t, p.Start())
	t.Cleanup(p.Stop)
	u.Host = p.Listen
	p.url = u.String()
	return p
}

// swallow drops every packet from now on, in both directions. Neither side notices, not even that the other has closed.
func (p *proxy) swallow() {
	p.t.Helper()
	for _, direction := range []string{"upstream", "downstream"} {
		_, err := p.Toxics.AddToxicJson(strings.NewReader(`{"name":"` + direction + `","type":"swallow","stream":"` + direction + `"}`))
		require.NoError(p.t, err)
	}
}

// end closes all connections, so that the node need not wait for its timeouts when it stops.
func (p *proxy) end() {
	p.Toxics.ResetToxics(context.Background())
	p.Stop()
}

// swallowing is the toxic. That of the library passes on that a side has closed, which a broken network does not.
type swallowing struct{}

func (*swallowing) Pipe(stub *toxics.ToxicStub) {
	input := stub.Input
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-input:
			if chunk == nil {
				input = nil
			}
		}
	}
}

func (*swallowing) Cleanup(stub *toxics.ToxicStub) { stub.Close() }

func init() { toxics.Register("swallow", new(swallowing)) }
