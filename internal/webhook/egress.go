package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/idna"

	"github.com/ojsd/ojsd/internal/config"
)

// EgressRules decide which addresses this server may call for clients, who choose the URL of a webhook. They must never allow an address
// inside the server's own network, unless the operator does (docs/reference/webhooks.md, URL and address rules). A URL is checked when it
// is stored, without resolving its name. Every connection is checked again with the resolved addresses, so that a change of the DNS record
// between both checks has no effect.
//
// They go by AllowHTTP and AllowNetworks. The zero value allows https to public addresses only. Networks and hosts are allowed although
// they are private. Hosts are exact names or addresses; an allowed one passes over every check of the name and of the addresses that it
// resolves to.
type EgressRules config.Webhooks

// RefusedError says in a sentence why a URL may not be called. Reason is shown to the client and names nothing but what the
// client has sent.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refused(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// CheckURL checks a URL without resolving its host name. An error is always a *RefusedError. It is called when a
// subscription is stored and before each attempt. It cannot be the only check, because a public name may resolve to a
// private address.
func (r EgressRules) CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Host == "", u.Hostname() == "", u.Opaque != "":
		return refused("url must be an absolute URL such as https://example.com/hook")
	// A password in a URL would be stored and shown in plain text.
	case u.User != nil:
		return refused("url must not contain a user name or password")
	case u.Fragment != "" || strings.HasSuffix(text, "#"):
		return refused("url must not contain a fragment")
	case u.Scheme == "http" && !r.AllowHTTP:
		return refused("url must start with https://")
	case u.Scheme != "http" && u.Scheme != "https":
		return refused("url must start with https://, not with %q", u.Scheme)
	}
	// All ports are allowed: what must not be reached is decided by address.
	if text := u.Port(); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 65535 {
			return refused("the port in url must be from 1 to 65535")
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return refused("the port in url is empty")
	}
	return r.checkHost(u.Hostname())
}

// checkHost calls itself once, with the mapped name: mapping a mapped name changes nothing.
func (r EgressRules) checkHost(host string) error {
	if r.allowsHost(host) {
		return nil
	}
	if a, literal, ok := parseLiteral(host); literal {
		if !ok {
			return refused("%q is not an address", host)
		}
		if r.Blocked(a) {
			return refused("%s is an address that this server may not call", a)
		}
		return nil
	}
	// The name as the resolver gets it: some letters of other scripts are mapped to those of localhost.
	name, err := lookup.ToASCII(canonical(host))
	if err != nil || name == "" || strings.Contains("."+name+".", "..") {
		return refused("%q is not a host name", host)
	}
	// The mapped name may be one that the operator allows, an address or a private name, so all checks run again.
	if name != canonical(host) {
		return r.checkHost(name)
	}
	switch {
	case name == "localhost", !strings.Contains(name, "."):
		return refused("%q is not the name of a public host", host)
	case strings.HasSuffix(name, ".localhost"), strings.HasSuffix(name, ".local"), strings.HasSuffix(name, ".internal"):
		return refused("%q is the name of a private host", host)
	}
	return nil
}

// allowsHost compares names without case and without a final dot.
func (r EgressRules) allowsHost(host string) bool {
	return slices.ContainsFunc(r.AllowNetworks.Hosts, func(allowed string) bool { return canonical(allowed) == canonical(host) })
}

// lookup maps names as a client does. It accepts underscores, which are common in private networks. localhost in full-width
// letters becomes localhost here, as in the resolver.
var lookup = idna.New(idna.MapForLookup(), idna.StrictDomainName(false), idna.BidiRule())

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// blockedPrefixes are private, local, reserved and documentation networks, and tunnels into these
// (docs/reference/webhooks.md, URL and address rules). 2001::/23 holds Teredo and 2002::/16 holds 6to4, which carry IPv4
// addresses. 169.254.0.0/16 holds the metadata services of cloud providers.
var blockedPrefixes = prefixes(`
	0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16
	198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
	::/128 ::1/128 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8`)

// nat64 addresses contain an IPv4 address in their last four bytes, which the rules are applied to. The other NAT64 prefix,
// 64:ff9b:1::/48, is blocked as a whole, as its networks choose where the IPv4 address stands.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(list string) []netip.Prefix {
	var parsed []netip.Prefix
	for text := range strings.FieldsSeq(list) {
		parsed = append(parsed, netip.MustParsePrefix(text))
	}
	return parsed
}

// Blocked reports whether no connection may be made to the address. It fails closed: an invalid address is blocked. A
// network that the operator allows wins over a blocked one, whatever their sizes.
func (r EgressRules) Blocked(a netip.Addr) bool {
	if !a.IsValid() {
		return true
	}
	// Prefixes never contain addresses with a zone, so a zone would hide a link-local address.
	a = a.WithZone("").Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	inside := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(blockedPrefixes, inside) && !slices.ContainsFunc(r.AllowNetworks.Networks, inside)
}

// parseLiteral reads an address as URLs and C libraries do: also 127.1, 2130706433, 0x7f000001 and 0177.0.0.1. literal means
// that the host must be an address, because its last part is a number; ok, that it is a valid one. A name that Go takes for
// a name and the C library of a proxy for an address would pass the check and then reach the address.
func parseLiteral(host string) (a netip.Addr, literal, ok bool) {
	if strings.Contains(host, ":") {
		a, err := netip.ParseAddr(host)
		return a, true, err == nil && a.Zone() == ""
	}
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if !numeric(parts[len(parts)-1]) {
		return a, false, false
	}
	if len(parts) > 4 {
		return a, true, false
	}
	var value uint64
	for i, part := range parts {
		n, err := parseNumber(part)
		width := 8 // bits of this part: the last one fills up what is left
		if i == len(parts)-1 {
			width = 8 * (5 - len(parts))
		}
		if err != nil || n >= 1<<width {
			return a, true, false
		}
		value = value<<width | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true, true
}

// numeric reports whether a part consists of digits, or is a hexadecimal number with 0x. 080 is no valid octal number, but
// browsers and C libraries take such a host for an address, so it is refused and not looked up.
func numeric(part string) bool {
	if part == "" {
		return false
	}
	if _, err := parseNumber(part); err == nil {
		return true
	}
	return strings.Trim(part, "0123456789") == ""
}

// parseNumber takes 0x alone for 0, as in the URL standard.
func parseNumber(part string) (uint64, error) {
	lower := strings.ToLower(part)
	switch {
	case strings.HasPrefix(lower, "0x"):
		if lower == "0x" {
			return 0, nil
		}
		return strconv.ParseUint(lower[2:], 16, 64)
	case len(part) > 1 && part[0] == '0':
		return strconv.ParseUint(part[1:], 8, 64)
	}
	return strconv.ParseUint(part, 10, 64)
}

// connectTimeout bounds resolving and connecting together. It is part of the timeout of the request
// (docs/reference/webhooks.md, Outcomes).
const connectTimeout = 10 * time.Second

// errBlocked is returned for a connection to an address that may not be called. It names no address: clients see the
// outcome, and must not learn what names resolve to inside.
var errBlocked = errors.New("the address may not be called")

// dialer connects only to addresses that the rules allow. It connects to the very addresses it has checked. A check of the
// URL alone would not do: the name could resolve to another address at the connection (DNS rebinding). The standard dialer
// would resolve again by itself, so Resolve is done here and the addresses are dialled as literals.
type dialer struct {
	Rules EgressRules

	// LookUp resolves names. nil: the system's resolver.
	LookUp func(ctx context.Context, host string) ([]netip.Addr, error)
}

// DialContext is for http.Transport. Addresses are tried in turn; the error joins those of all.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	// Every new connection resolves and checks again; a connection that is kept open goes to an address that was checked.
	addrs, err := d.Resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var failed error
	for i, a := range addrs {
		conn, err := dial(ctx, network, net.JoinHostPort(a.String(), port), len(addrs)-i)
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// dial takes an equal share of the time left, so that an address that does not answer leaves time for the others.
func dial(ctx context.Context, network, address string, shares int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(shares))
		defer cancel()
	}
	var direct net.Dialer
	return direct.DialContext(ctx, network, address)
}

// Resolve returns the addresses of a host. It fails if one of them may not be called, because the next attempt could use that
// one. sender.admit calls it, too, for requests through a proxy.
func (d *dialer) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := d.lookUp(ctx, host)
	if err != nil {
		return nil, err
	}
	if d.Rules.allowsHost(host) {
		return addrs, nil
	}
	if slices.ContainsFunc(addrs, d.Rules.Blocked) {
		return nil, errBlocked
	}
	return addrs, nil
}

// lookUp does not give a literal to the resolver, which may read it otherwise than parseLiteral does.
func (d *dialer) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, literal, ok := parseLiteral(host); literal {
		if !ok {
			return nil, errBlocked
		}
		return []netip.Addr{a}, nil
	}
	lookUp := d.LookUp
	if lookUp == nil {
		lookUp = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	addrs, err := lookUp(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return addrs, err
}
