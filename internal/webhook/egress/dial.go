package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
)

// connectTimeout bounds resolving and connecting together. It is part of the timeout of the request
// (docs/reference/webhooks.md, Outcomes).
const connectTimeout = 10 * time.Second

// ErrBlocked is returned for a connection to an address that may not be called. It names no address: clients see the
// outcome, and must not learn what names resolve to inside.
var ErrBlocked = errors.New("the address may not be called")

// Dialer connects only to addresses that the rules allow. It connects to the very addresses it has checked. A check of the
// URL alone would not do: the name could resolve to another address at the connection (DNS rebinding). The standard dialer
// would resolve again by itself, so Resolve is done here and the addresses are dialled as literals.
type Dialer struct {
	Rules Rules

	// LookUp resolves names. nil: the system's resolver.
	LookUp func(ctx context.Context, host string) ([]netip.Addr, error)
}

// DialContext is for http.Transport. Addresses are tried in turn; the error joins those of all.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
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
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}

// Resolve returns the addresses of a host. It fails if one of them may not be called, because the next attempt could use that
// one. sender.admit calls it, too, for requests through a proxy.
func (d *Dialer) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := d.lookUp(ctx, host)
	if err != nil {
		return nil, err
	}
	if d.Rules.allowsHost(host) {
		return addrs, nil
	}
	if slices.ContainsFunc(addrs, d.Rules.Blocked) {
		return nil, ErrBlocked
	}
	return addrs, nil
}

// A literal is not given to the resolver, which may read it otherwise than parseLiteral does.
func (d *Dialer) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, literal, ok := parseLiteral(host); literal {
		if !ok {
			return nil, ErrBlocked
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
