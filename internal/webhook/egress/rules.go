// Package egress decides which addresses this server may call on behalf of clients, who name the URL of a webhook: never
// one inside its own network unless the operator allows it (docs/reference/webhooks.md, URL and address rules). A URL is checked when it is stored, without
// looking its name up; every connection is checked again with the addresses it is about to be made to, so that a name
// cannot be pointed elsewhere in between.
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

// Rules say what may be called. The zero value admits https to public addresses only.
type Rules struct {
	// AllowHTTP admits http besides https. For development.
	AllowHTTP bool

	// AllowNetworks and AllowHosts are admitted although they are private. Hosts are exact names or addresses.
	AllowNetworks []netip.Prefix
	AllowHosts    []string
}

// RefusedError says in a sentence why a URL may not be called.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refused(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// CheckURL checks everything that can be known without a look-up.
func (r Rules) CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Host == "", u.Hostname() == "", u.Opaque != "":
		return refused("url must be an absolute URL such as https://example.com/hook")
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
	// As the resolver will see it: some letters of other scripts stand for those of localhost.
	name, err := lookup.ToASCII(canonical(host))
	if err != nil || name == "" || strings.Contains("."+name+".", "..") {
		return refused("%q is not a host name", host)
	}
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

// allowsHost compares without case and without the root's dot.
func (r Rules) allowsHost(host string) bool {
	return slices.ContainsFunc(r.AllowHosts, func(allowed string) bool { return canonical(allowed) == canonical(host) })
}

// lookup maps names as a client does; underscores are common inside networks that an operator allows.
var lookup = idna.New(idna.MapForLookup(), idna.StrictDomainName(false), idna.BidiRule())

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

func hasAnySuffix(s string, suffixes ...string) bool {
	return slices.ContainsFunc(suffixes, func(suffix string) bool { return strings.HasSuffix(s, suffix) })
}
