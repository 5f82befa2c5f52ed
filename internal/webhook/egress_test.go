package webhook

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
)

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"https://example.com", "https://example.com/hook?x=1", "HTTPS://EXAMPLE.com:8443/", "https://93.184.216.34/", "https://[2606:2800:220:1::1]/",
		"https://a.b.example./", "https://xn--bcher-kva.example/", "https://1.example.com/", "https://bücher.example/", "https://a_b.example.com/", "https://example.com:65535/",
	} {
		require.NoError(t, EgressRules{}.CheckURL(url), url)
	}
	for _, url := range []string{
		"", "example.com", "/hook", "https://", "https:///x", "https:example.com", "http://example.com/", "ftp://example.com", "javascript:alert(1)", "file:///etc/passwd",
		"https://user@example.com/", "https://user:pw@example.com/", "https://@example.com/", "https://example.com/#a", "https://example.com/#", "https://example.com:0/",
		"https://example.com:65536/", "https://example.com:/", "https://example.com:x/", "https://exa mple.com/", "https://example.com\\@10.0.0.1/",
		"https://localhost/", "https://LOCALHOST./", "https://a.localhost/", "https://printer.local/", "https://vault.internal/", "https://intranet/", "https://intranet./",
		"https://127.0.0.1/", "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://017700000001/", "https://0/", "https://0.0.0.0/",
		"https://10.0.0.1/", "https://10.0.0.1./", "https://172.16.0.1/", "https://172.31.255.255/", "https://192.168.1.1/", "https://169.254.169.254/latest/meta-data", "https://100.64.0.1/",
		"https://192.0.2.1/", "https://198.18.0.1/", "https://198.51.100.1/", "https://203.0.113.1/", "https://224.0.0.1/", "https://255.255.255.255/", "https://192.88.99.1/", "https://192.0.0.1/",
		"https://[::1]/", "https://[::]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[64:ff9b::7f00:1]/", "https://[64:ff9b:1::1]/", "https://[fe80::1]/", "https://[fe80::1%25eth0]/",
		"https://[fc00::1]/", "https://[fd00::1]/", "https://[ff02::1]/", "https://[2001:db8::1]/", "https://[2002:7f00:1::]/", "https://[100::1]/", "https://[5f00::1]/", "https://[fec0::1]/", "https://[2001::1]/",
		"https://256.1.1.1/", "https://1.2.3.4.5/", "https://1.2.3.256/", "https://0x/", "https://99999999999999999999/", "https://a.08/", "https://1.2.3.09/",
		"https://foo.ｌocal/", "https://foo.locaⓛ/", "https://①②⑦.0.0.1/", "https://１２７.0.0.1/", "https://.com/", "https://a..com/", "https://10.0.0.1../",
	} {
		var refused *RefusedError
		require.ErrorAs(t, EgressRules{}.CheckURL(url), &refused, url)
		require.NotEmpty(t, refused.Reason)
	}
}

func TestRulesBypass(t *testing.T) {
	t.Parallel()
	r := EgressRules{
		AllowHTTP: true,
		AllowNetworks: config.Destinations{
			Networks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}, Hosts: []string{"localhost", "Vault.Internal", "10.9.9.9"},
		},
	}
	for _, url := range []string{"http://localhost/", "https://vault.internal./", "https://10.1.2.3/", "https://[::ffff:10.1.2.3]/", "https://[fd00::1]/", "https://10.9.9.9/", "http://example.com:80/"} {
		require.NoError(t, r.CheckURL(url), url)
	}
	for _, url := range []string{"https://10.2.0.1/", "https://sub.localhost/", "ftp://localhost/", "https://intranet/"} {
		require.Error(t, r.CheckURL(url), url)
	}
}

// Resolved addresses are checked like literal ones. A name that is allowed is not checked.
func TestResolve(t *testing.T) {
	t.Parallel()
	answer := map[string][]netip.Addr{
		"public.test": {netip.MustParseAddr("93.184.216.34")}, "mixed.test": {netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.0.0.1")},
		"mapped.test": {netip.MustParseAddr("::ffff:192.168.0.1")}, "own.internal": {netip.MustParseAddr("10.0.0.1")}, "empty.test": {},
		"zone.test": {netip.MustParseAddr("fe80::1%eth0")},
	}
	d := dialer{
		Rules:  EgressRules{AllowNetworks: config.Destinations{Hosts: []string{"own.internal"}}},
		LookUp: func(_ context.Context, host string) ([]netip.Addr, error) { return answer[host], nil },
	}
	for host, ok := range map[string]bool{"public.test": true, "mixed.test": false, "mapped.test": false, "own.internal": true, "0x7f.1": false, "1.2.3.4.5": false, "93.184.216.34": true, "empty.test": false, "zone.test": false} {
		addrs, err := d.Resolve(t.Context(), host)
		require.Equal(t, ok, err == nil, host)
		require.Equal(t, ok, len(addrs) > 0, host)
	}
}

func TestDialRefusesBeforeConnecting(t *testing.T) {
	t.Parallel()
	_, err := (&dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
	require.ErrorIs(t, err, errBlocked)
	_, err = (&dialer{}).DialContext(t.Context(), "tcp", "no port")
	require.Error(t, err)
}
