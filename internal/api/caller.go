package api

import (
	"net"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// Caller is who sent a request.
// It is made for each request from what the client sent; only Principal is proven.
type Caller struct {
	Principal string // names the key that was shown; "" without one
	Tenant    string // named by the call; "": an operator's
	Address   string // of the client, host:port
}

// maxActorBytes bounds the name that a client gives itself.
// A longer name counts as absent and is not refused: a cancel must not fail because of it.
const maxActorBytes = 255

// Actor names in events who did something: the key, else the first of the claimed names that can be stored, else api.
// api means that nobody has named himself.
func (c Caller) Actor(claimed ...string) string {
	if c.Principal != "" {
		return c.Principal
	}
	for _, name := range claimed {
		if name != "" && len(name) <= maxActorBytes && Storable(name) {
			return name
		}
	}
	return "api"
}

// Client is whose limit of open streams a stream counts against: the key, else the host.
// All clients behind one proxy share the limit of its address if there are no keys.
func (c Caller) Client() string {
	if c.Principal != "" {
		return c.Principal
	}
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return c.Address
	}
	return host
}

// Holder is whose idempotency keys a call uses: those of its key, and of its tenant.
// No name of a tenant has a slash, and a principal has none either, so two callers never share a holder by accident.
func (c Caller) Holder() string {
	if c.Tenant == "" {
		return c.Principal
	}
	return c.Principal + "/" + c.Tenant
}

// RequestID is the caller's id if it is 1–200 printable ASCII characters without spaces, else a new one
// (docs/reference/http.md, Request headers).
// A text that could break a log line or a header is replaced, not refused.
func RequestID(sent string) string {
	ok := len(sent) >= 1 && len(sent) <= 200
	for i := 0; ok && i < len(sent); i++ {
		ok = sent[i] > ' ' && sent[i] < 0x7f
	}
	if ok {
		return sent
	}
	var b [40]byte
	return string(spec.AppendID(append(b[:0], "req_"...), job.NewID()))
}
