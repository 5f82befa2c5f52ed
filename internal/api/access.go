package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"strings"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// Keys are the accepted API keys. Without any, the node is open.
// It never changes after NewKeys, so it needs no lock.
type Keys []key

// key has in principal "key:" and the first four bytes of the hash in hexadecimal: enough to tell keys apart in events, and nothing
// to find the key by.
type key struct {
	sum       [sha256.Size]byte
	principal string
}

// NewKeys keeps only hashes of the keys.
// The texts themselves are not kept, so that a dump of the memory does not show them. Empty texts are no keys: Token refuses
// them.
func NewKeys(texts []string) Keys {
	hashed := make(Keys, len(texts))
	for i, text := range texts {
		sum := sha256.Sum256([]byte(text))
		hashed[i] = key{sum, "key:" + hex.EncodeToString(sum[:4])}
	}
	return hashed
}

// Bearer reads the value of an Authorization header. principal is how events name the caller (docs/reference/events.md, Payloads).
// Without keys nothing matches: the caller must ask for len(k) before it refuses a request.
func (k Keys) Bearer(header string) (principal string, ok bool) {
	scheme, token, found := strings.Cut(header, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return k.Token(strings.TrimSpace(token))
}

// Token compares with every key in constant time; hashing first makes the length irrelevant.
func (k Keys) Token(token string) (principal string, ok bool) {
	if token == "" {
		return "", false
	}
	sum := sha256.Sum256([]byte(token))
	// The loop does not end at a match, or its length would tell which key matched.
	for _, key := range k {
		if subtle.ConstantTimeCompare(sum[:], key.sum[:]) == 1 {
			principal, ok = key.principal, true
		}
	}
	return principal, ok
}

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

// Reach is what a route or an RPC shows to, and does for, a call that names a tenant (docs/reference/tenants.md, What a call reaches).
// Each is declared with its reach. The zero value refuses, so one that is declared without shows nothing of other tenants.
type Reach int

const (
	// Operators refuses the call of a tenant: permission_denied.
	Operators Reach = iota

	// Everybody answers a tenant like others: it shows nothing of any tenant.
	Everybody

	// Confined lets the call through. The handler must name the tenant in each filter and name, and look up the ids that a body has.
	Confined

	// AboutJob is about the job that the call names. For this and the following, what is not the tenant's is not found before the
	// handler runs, as if it did not exist.
	AboutJob

	// AboutDeadLetter is about the dead letter that the call names.
	AboutDeadLetter

	// AboutWorkflow is about the workflow that the call names.
	AboutWorkflow

	// AboutWebhook is about the webhook subscription that the call names.
	AboutWebhook

	// AboutDelivery is about the webhook delivery that the call names.
	AboutDelivery
)

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
