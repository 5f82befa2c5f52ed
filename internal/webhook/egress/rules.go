// Package egress decides which addresses this server may call for clients, who choose the URL of a webhook. It must never
// allow an address inside the server's own network, unless the operator does (docs/reference/webhooks.md, URL and address
// rules). A URL is checked when it is stored, without resolving its name. Every connection is checked again with the resolved
// addresses, so that a change of the DNS record between both checks has no effect.
package egress

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Rules say what may be called. The zero value allows https to public addresses only. They are set at the start and may be
// read by many goroutines.
type Rules struct {
	// AllowHTTP allows http besides https. For development.
	AllowHTTP bool

	// AllowNetworks and AllowHosts are allowed although they are private. Hosts are exact names or addresses. AllowHosts
	// passes over every check of the name and of the addresses that it resolves to.
	AllowNetworks []netip.Prefix
	AllowHosts    []string
}

// RefusedError says in a sentence why a URL may not be called. Reason is shown to the client and names nothing but what the
// client has sent.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refused(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// CheckURL checks a URL without resolving its host name. An error is always a *RefusedError. It is called when a
// subscription is stored and before each attempt. It cannot be the only check, because a public name may resolve to a
// private address.
func (r Rules) CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Host == "", u.Hostname() == "", u.Opaque != "":
		return refused("url must be an absolute URL such as https://example.com/hook")
	// A password in a URL would be stored and shown in plain text.
	case u.User != nil:
		return refused("url must not contain a user name or password")
	case u.Fragment != "" || strings.HasSuffix(text, "#"):
		return refused("url must not contain a fragment")
	}
	if err := r.checkScheme(u.Scheme); err != nil {
		return err
	}
	if err := r.checkPort(u); err != nil {
		return err
	}
	return r.checkHost(u.Hostname())
}

func (r Rules) checkScheme(scheme string) error {
	switch {
	case scheme == "https", scheme == "http" && r.AllowHTTP:
		return nil
	case scheme == "http":
		return refused("url must start with https://")
	}
	return refused("url must start with https://, not with %q", scheme)
}

// All ports are allowed: what must not be reached is decided by address.
func (r Rules) checkPort(u *url.URL) error {
	if text := u.Port(); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 65535 {
			return refused("the port in url must be from 1 to 65535")
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return refused("the port in url is empty")
	}
	return nil
}

// The second call, with the mapped name, ends: mapping a mapped name changes nothing.
func (r Rules) checkHost(host string) error {
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
	case hasAnySuffix(name, ".localhost", ".local", ".internal"):
		return refused("%q is the name of a private host", host)
	}
	return nil
}

// allowsHost compares names without case and without a final dot.
func (r Rules) allowsHost(host string) bool {
	return slices.ContainsFunc(r.AllowHosts, func(allowed string) bool { return canonical(allowed) == canonical(host) })
}

// lookup maps names as a client does. It accepts underscores, which are common in private networks. localhost in full-width
// letters becomes localhost here, as in the resolver.
var lookup = idna.New(idna.MapForLookup(), idna.StrictDomainName(false), idna.BidiRule())

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

func hasAnySuffix(s string, suffixes ...string) bool {
	return slices.ContainsFunc(suffixes, func(suffix string) bool { return strings.HasSuffix(s, suffix) })
}
