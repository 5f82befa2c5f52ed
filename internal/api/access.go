package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// maxGuesses is how many different unknown keys an address may show in a guessWindow (docs/reference/http.md, Authentication). One unknown
// key that comes again and again is no guess: clients that have not been told about a new key do that.
const (
	maxGuesses  = 20
	guessWindow = time.Minute
	maxRecords  = 10_000 // of guesses, and of keys and addresses; they bound the memory
)

// Keys are the accepted API keys of an interface. Without any, it is open.
type Keys struct {
	known []key

	mu      sync.Mutex
	guesses map[netip.Prefix]*guesses
	used    map[use]struct{}
}

// key has in principal "key:" and the first four bytes of the hash in hexadecimal: enough to tell keys apart in events, and nothing
// to find the key by.
type key struct {
	sum       [sha256.Size]byte
	principal string
}

// guesses are the hashes of the unknown keys from one address. They are forgotten at until.
type guesses struct {
	tried map[[sha256.Size]byte]struct{}
	until time.Time
}

// use is a key that was accepted from an address.
type use struct {
	network   netip.Prefix
	principal string
}

// NewKeys keeps only hashes of the keys.
// The texts themselves are not kept, so that a dump of the memory does not show them. Empty texts are no keys: an empty token is refused.
func NewKeys(texts []string) *Keys {
	k := &Keys{known: make([]key, len(texts)), guesses: map[netip.Prefix]*guesses{}, used: map[use]struct{}{}}
	for i, text := range texts {
		sum := sha256.Sum256([]byte(text))
		k.known[i] = key{sum, "key:" + hex.EncodeToString(sum[:4])}
	}
	return k
}

// Any reports whether keys are configured.
func (k *Keys) Any() bool { return len(k.known) > 0 }

// BearerToken is the key in the value of an Authorization header; empty: there is none.
func BearerToken(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Admit gives the principal of the first of the tokens that is a key; it is how events name the caller (docs/reference/events.md,
// Payloads). It refuses all if there are no keys: call it only if there are Any.
//
// From an address with too many guesses, a key that was never accepted from there is refused, or a further guess could succeed. Keys that
// were accepted before go on: the address may be that of a proxy, and the guesses those of one client behind it.
func (k *Keys) Admit(address string, tokens ...string) (principal string, err error) {
	var unknown [][sha256.Size]byte
	for _, token := range tokens {
		if token == "" {
			continue
		}
		sum := sha256.Sum256([]byte(token))
		if principal = k.principal(sum); principal != "" {
			break
		}
		unknown = append(unknown, sum)
	}
	if principal == "" && len(unknown) == 0 {
		return "", spec.Unauthenticated()
	}
	from := network(address)
	k.mu.Lock()
	defer k.mu.Unlock()
	now, g := time.Now(), k.guesses[from]
	if g != nil && !now.Before(g.until) {
		delete(k.guesses, from)
		g = nil
	}
	if principal != "" {
		accepted := use{from, principal}
		if _, before := k.used[accepted]; before {
			return principal, nil
		}
		if g != nil && len(g.tried) >= maxGuesses {
			return "", spec.TooManyKeys(maxGuesses, g.until.Sub(now))
		}
		makeRoom(k.used)
		k.used[accepted] = struct{}{}
		return principal, nil
	}
	if g == nil {
		makeRoom(k.guesses)
		g = &guesses{map[[sha256.Size]byte]struct{}{}, now.Add(guessWindow)}
		k.guesses[from] = g
	}
	for _, sum := range unknown {
		if _, again := g.tried[sum]; again {
			continue
		}
		if len(g.tried) >= maxGuesses {
			return "", spec.TooManyKeys(maxGuesses, g.until.Sub(now))
		}
		g.tried[sum] = struct{}{}
	}
	return "", spec.Unauthenticated()
}

// principal compares with every key in constant time; hashing first makes the length irrelevant.
func (k *Keys) principal(sum [sha256.Size]byte) (principal string) {
	// The loop does not end at a match, or its length would tell which key matched.
	for _, key := range k.known {
		if subtle.ConstantTimeCompare(sum[:], key.sum[:]) == 1 {
			principal = key.principal
		}
	}
	return principal
}

// Principal is that of a token that was admitted.
func (k *Keys) Principal(token string) string {
	if token == "" {
		return ""
	}
	return k.principal(sha256.Sum256([]byte(token)))
}

// network is the address of a client without its port; of IPv6 the first 64 bits, because a host has as many addresses as it likes there.
// Addresses that cannot be read, such as those of sockets in files, are one.
func network(address string) netip.Prefix {
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := host.Addr().Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // fails for no address that was read
	return prefix
}

// makeRoom forgets some record of a full map.
func makeRoom[K comparable, V any](records map[K]V) {
	for key := range records {
		if len(records) < maxRecords {
			return
		}
		delete(records, key)
	}
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
