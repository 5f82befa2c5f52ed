package webhook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

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
