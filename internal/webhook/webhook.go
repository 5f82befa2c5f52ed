// Package webhook owns subscriptions, their secrets and their deliveries (docs/reference/webhooks.md). FanOut creates
// deliveries from the event log; Dispatcher claims due ones, signs and sends them, and records the outcomes.
//
// It must never change a job, send before the claim is committed, or call an address that EgressRules do not allow (egress.go).
//
// A delivery is pending when FanOut has created it. A claim makes it delivering, with a lease and a number; the request is
// made outside of any transaction; the outcome makes it delivered, failed, with a next time, or dead. A lease that ends
// without an outcome makes it claimable again. So each delivery is sent at least once, and possibly more often, always under the same id.
package webhook

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
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

// DispatcherDeps are the parts of a node that a dispatcher uses.
type DispatcherDeps struct {
	// RootCAs verify endpoints. nil: the system's.
	RootCAs *x509.CertPool

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

// Store owns subscriptions, their secrets and their deliveries in the database. Use NewStore. It has no state but the
// batcher, so any number of stores may work on one database. Transactions that lock both lock subscriptions before
// deliveries, and subscriptions in the order of their ids; another order could deadlock with them.
type Store struct {
	db     *pg.DB
	config config.Webhooks
	vault  vault
	logger *slog.Logger

	maxLooked int32 // pg.MaxLooked; only tests change it

	deliveries *batch.Batcher[DeliveryOutcome, Recorded]
}

// NewStore returns a store on the database. Outcomes share a statement, as a node ends up to config.Webhooks.Workers requests at about the
// same time. Key keeps two outcomes of one delivery out of one flush, where the second UPDATE of a row would be lost.
func NewStore(db *pg.DB, c config.Webhooks, logger *slog.Logger) *Store {
	s := &Store{db: db, config: c, vault: newVault(c.EncryptionKeys), logger: logger, maxLooked: pg.MaxLooked}
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
// date. The setting ends with the transaction. do may run again after a deadlock, so it must set its results anew.
func (s *Store) inPlannedTx(ctx context.Context, do func(ctx context.Context, q *dbsqlc.Queries) error) error {
	return pg.Retry(func() error {
		ctx, cancel := s.db.Bounded(ctx)
		defer cancel()
		return s.db.InTx(ctx, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			if err := q.WebhookDeliverySetPlanner(ctx); err != nil {
				return err
			}
			return do(ctx, q)
		})
	})
}

// The rows as they are stored; the migration describes their columns.
type (
	// Record is a subscription. WebhookDeliveryRecord alone counts its successes and failures, under the lock of the row.
	Record = dbsqlc.Webhook

	// SecretRecord is a secret. At most two of a subscription are valid; an expired one may stay until the next rotation.
	SecretRecord = dbsqlc.WebhookSecret

	// DeliveryRecord is a delivery. It is not locked during its request: Claims and Status guard it in the statements.
	DeliveryRecord = dbsqlc.WebhookDelivery

	// AttemptRecord is one attempt of a delivery. StartedAt is the time of the record less the duration, so it is that of the database.
	AttemptRecord = dbsqlc.WebhookAttempt
)
