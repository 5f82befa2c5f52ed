// Package webhook owns subscriptions, their secrets and their deliveries (docs/reference/webhooks.md). FanOut creates
// deliveries from the event log; Dispatcher claims due ones, signs and sends them, and records the outcomes.
//
// It must never change a job, send before the claim is committed, or call an address that package egress does not allow.
//
// A delivery is pending when FanOut has created it. A claim makes it delivering, with a lease and a number; the request is
// made outside of any transaction; the outcome makes it delivered, failed, with a next time, or dead. A lease that ends
// without an outcome makes it claimable again. So each delivery is sent at least once, and possibly more often, always under the same id.
package webhook

import (
	"context"
	"crypto/x509"
	"net/netip"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

// Fixed values of Config.
const (
	// Workers is a number of requests, each of which takes a goroutine, a connection and up to 64 KiB of a response.
	Workers = 100 // requests of a node at a time: more need more nodes
	// RetryJitter only lengthens a pause (docs/reference/webhooks.md, Retry table).
	RetryJitter = 0.1 // spreads the retries of deliveries that failed at the same time
)

const (
	// disableAfter is how long a subscription may fail before a delivery that is given up disables it. It is longer than the
	// outage of a long weekend, and about twice as long as the default retry schedule tries one delivery (51 h). Both
	// conditions must hold: time alone would disable a subscription that rarely has events.
	disableAfter = 5 * 24 * time.Hour

	// deliveryRetention is how long finished deliveries can be listed and replayed: as long as events by default, because a
	// delivery shows the event that it sent. It is counted from the end of a delivery.
	deliveryRetention = 7 * 24 * time.Hour
)

// Config holds the settings of a dispatcher. Values are not validated here.
type Config struct {
	// Rules say which addresses may be called.
	Rules egress.Rules

	// RootCAs verify endpoints. nil: the system's.
	RootCAs *x509.CertPool

	// ProxyURL is the proxy that all requests go through. nil: none; the environment's proxies are not used.
	ProxyURL *url.URL

	// RetrySchedule are the pauses before the second, third, … attempt. Its length plus one is the number of attempts.
	// Empty: one attempt.
	RetrySchedule []time.Duration

	// RetryJitter is the most that is added to a pause, as a share of it.
	RetryJitter float64

	// Workers is how many requests of this node run at a time.
	Workers int

	// Service is the {service} of the source of test events.
	Service string

	// Version of the server, for User-Agent.
	Version string

	// LookUp resolves host names. nil: the system's resolver.
	LookUp func(ctx context.Context, host string) ([]netip.Addr, error)

	// Observer counts attempts.
	Observer Observer

	// Tracer makes a span of every attempt. nil: none.
	Tracer *tracing.Tracer
}

// Observer counts attempts and deliveries. Its functions must not block; nil ones are not called. They are called after the
// outcome was recorded, from the goroutines of the requests, several at a time.
type Observer struct {
	// Attempt is called when an attempt has ended with status success, failed or dead.
	Attempt func(eventType, webhook, status string, took time.Duration)

	// Done is called when a delivery has ended, with the number of its retries.
	Done func(eventType string, retries int)
}

// Functions that do nothing save a test for nil at each call.
func (c Config) withDefaults() Config {
	if c.Observer.Attempt == nil {
		c.Observer.Attempt = func(string, string, string, time.Duration) {}
	}
	if c.Observer.Done == nil {
		c.Observer.Done = func(string, int) {}
	}
	return c
}

// StoreConfig holds the settings of a store. Values are not validated here. The keys are the same on all nodes but while
// they are being changed.
type StoreConfig struct {
	// Keys encrypt the secrets, 32 bytes each. The first one encrypts and decrypts, the others decrypt. None: plain text.
	Keys [][]byte

	// MaxWebhooks is the largest number of subscriptions.
	MaxWebhooks int32
}

// Store owns subscriptions, their secrets and their deliveries in the database. Use NewStore. It has no state but the
// batcher, so any number of stores may work on one database. Transactions that lock both lock subscriptions before
// deliveries, and subscriptions in the order of their ids; another order could deadlock with them.
type Store struct {
	db     *pg.DB
	config StoreConfig
	vault  vault

	maxLooked int32 // pg.MaxLooked; only tests change it

	deliveries *batch.Batcher[DeliveryOutcome, Recorded]
}

// NewStore returns a store on the database. Outcomes share a statement, as a node ends up to Workers requests at about the
// same time. Key keeps two outcomes of one delivery out of one flush, where the second UPDATE of a row would be lost.
func NewStore(db *pg.DB, config StoreConfig) *Store {
	s := &Store{db: db, config: config, vault: newVault(config.Keys), maxLooked: pg.MaxLooked}
	s.deliveries = batch.New(batch.Config[DeliveryOutcome, Recorded]{
		Flush: s.flushDeliveries, Split: pg.IsRowError, Retry: pg.IsTransient,
		Key: func(o DeliveryOutcome) ([16]byte, bool) { return o.ID, true },
	})
	return s
}

// batchRows is how many rows one statement changes of a backlog that may be large. A larger number keeps row locks and the
// transaction open for longer, a smaller one costs more commits: a subscription may have 1 000 000 deliveries.
const batchRows = 5000

// inBatches repeats a statement, each time in a transaction of its own, until it changes less than a whole batch. Batches
// that were committed stay after an error; change must be written so that it can be repeated.
func (s *Store) inBatches(ctx context.Context, change func(ctx context.Context, q *dbsqlc.Queries) (int64, error)) error {
	for {
		var n int64
		err := s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
			n, err = change(ctx, q)
			return err
		})
		if err != nil || n < batchRows {
			return pg.ClientError(err)
		}
	}
}

// inPlannedTx runs do in a transaction without sequential scans: the statistics of the delivery table are always out of
// date. do may run again after a deadlock, so it must set its results anew.
func (s *Store) inPlannedTx(ctx context.Context, do func(ctx context.Context, q *dbsqlc.Queries) error) error {
	return pg.Retry(func() error { return s.planned(ctx, do) })
}

// The planner settings last for the transaction only, so the connection goes back to the pool as it was.
func (s *Store) planned(ctx context.Context, do func(ctx context.Context, q *dbsqlc.Queries) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.db.InTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.WebhookDeliverySetPlanner(ctx); err != nil {
			return err
		}
		return do(ctx, q)
	})
}

// notNil returns an empty list instead of nil, which would be NULL in SQL.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Record is a subscription as it is stored. Its fields are the columns of ojs.webhooks, in their order. The order of the
// fields matters, because a row is converted to it as a whole. SuccessCount and FailureCount are changed by
// WebhookDeliveryRecord only, under the lock of the row.
type Record struct {
	ID                  [16]byte
	Url                 string
	Events              []string // patterns, as sent
	Filter              []byte   // as sent
	Types               []string // Types to JobTypes are Events and Filter in the form of ojs.event_matches
	Sources             []string
	Queues              []string
	JobTypes            []string
	Metadata            []byte
	Active              bool
	FromPlace           int64       // it gets events behind this place (seq * 65536 + sub)
	UptoPlace           pgtype.Int8 // of an inactive one: it still gets events up to this place
	TimeoutMs           int32       // of one request
	MaxInFlight         int32       // requests at the same time, over all nodes
	Ordering            string
	PayloadFormat       string
	StandardWebhooks    bool
	ProvenSecret        pgtype.UUID        // the secret that signed the latest success
	SuccessCount        int64              // deliveries
	FailureCount        int64              // deliveries that were given up
	ConsecutiveFailures int32              // attempts since the latest success
	FailingSince        pgtype.Timestamptz // the first of them
	LastDeliveryAt      pgtype.Timestamptz
	LastDeliveryStatus  pgtype.Int4 // HTTP status; 0: no response
	DisabledReason      pgtype.Text // why the server disabled it; NULL: it did not
	DisabledAt          pgtype.Timestamptz
	CreatedAt           pgtype.Timestamptz
	UpdatedAt           pgtype.Timestamptz
	Tenant              pgtype.Text // whose events it gets; NULL: those of all
	ReorderPending      bool        // its unfinished deliveries have to follow a change of Ordering
	ResumePending       bool        // they have to follow an activation
}

// SecretRecord is a secret as it is stored. At most two of a subscription are valid; an expired one may stay until the next
// rotation.
type SecretRecord struct {
	ID        [16]byte
	WebhookID [16]byte
	Secret    []byte // sealed, unless KeyID is ""
	KeyID     string // of the key that opens it
	Hint      string // its last four characters
	CreatedAt pgtype.Timestamptz
	ExpiresAt pgtype.Timestamptz // NULL: the current secret
}

// DeliveryRecord is a delivery as it is stored. The outcomes of attempts, claims and releases are guarded by Claims and
// Status in the statements, not by a lock that is held during a request.
type DeliveryRecord struct {
	ID             [16]byte
	WebhookID      [16]byte
	EventSeq       int64 // position of the event; 0: a test
	EventSub       int32
	EventTime      pgtype.Timestamptz
	EventType      string
	Subject        string
	TraceID        pgtype.Text
	Ordered        bool   // waits for earlier ones of its subject
	Body           string // of the request, byte for byte
	Format         string
	Status         string
	NextAttemptAt  pgtype.Timestamptz // while a node sends it: the end of the lease. NULL: ended, or it waits for another one
	Leased         bool               // a node sends it
	Claims         int32              // tells the outcome of a lost lease from that of the current one
	Lost           int32              // leases in a row that ended without an outcome
	AttemptCount   int32              // attempts with an outcome
	RoundStart     int32              // those before the latest manual retry, which begins the schedule again
	LastStatusCode pgtype.Int4        // HTTP status; 0: no response
	LastError      pgtype.Text
	CreatedAt      pgtype.Timestamptz
	CompletedAt    pgtype.Timestamptz
}

// AttemptRecord is one attempt of a delivery as it is stored. Snippet is at most 1 024 bytes. StartedAt is the time of the
// record less the duration, so it is that of the database.
type AttemptRecord struct {
	DeliveryID [16]byte
	Attempt    int32
	StartedAt  pgtype.Timestamptz
	DurationMs int64
	StatusCode int32
	Error      pgtype.Text
	Snippet    pgtype.Text
}
