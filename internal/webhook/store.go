package webhook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// StoreConfig holds the settings of a store. Values are not validated here.
type StoreConfig struct {
	// Keys encrypt the secrets, 32 bytes each. The first one encrypts and decrypts, the others decrypt. None: plain text.
	Keys [][]byte

	// MaxWebhooks is the largest number of subscriptions.
	MaxWebhooks int32
}

// Store owns subscriptions, their secrets and their deliveries in the database. Use NewStore.
type Store struct {
	db     *pg.DB
	config StoreConfig
	vault  vault

	maxLooked int32 // pg.MaxLooked; only tests change it

	deliveries *batch.Batcher[DeliveryOutcome, Recorded]
}

// NewStore returns a store on the database.
func NewStore(db *pg.DB, config StoreConfig) *Store {
	s := &Store{db: db, config: config, vault: newVault(config.Keys), maxLooked: pg.MaxLooked}
	s.deliveries = batch.New(batch.Config[DeliveryOutcome, Recorded]{
		Flush: s.flushDeliveries, Split: pg.IsRowError, Retry: pg.IsTransient,
		Key: func(o DeliveryOutcome) ([16]byte, bool) { return o.ID, true },
	})
	return s
}

// batchRows is how many rows one statement changes of a backlog that may be large.
const batchRows = 5000

// inBatches repeats a statement, each time in a transaction of its own, until it changes less than a whole batch.
func (s *Store) inBatches(ctx context.Context, change func(q *dbsqlc.Queries) (int64, error)) error {
	for {
		var n int64
		err := s.inPlannedTx(ctx, func(q *dbsqlc.Queries) (err error) {
			n, err = change(q)
			return err
		})
		if err != nil || n < batchRows {
			return pg.ClientError(err)
		}
	}
}

// inPlannedTx runs do in a transaction without sequential scans: the statistics of the delivery table are always out of date.
func (s *Store) inPlannedTx(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	return pg.Retry(func() error { return s.planned(ctx, do) })
}

func (s *Store) planned(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return s.db.InTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if err := q.WebhookDeliverySetPlanner(ctx); err != nil {
			return err
		}
		return do(q)
	})
}

// notNil returns an empty list instead of nil, which would be NULL in SQL.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// inWebhookTx is for subscriptions and secrets. Their tables are small, so every plan is good.
func (s *Store) inWebhookTx(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return pg.ClientError(pg.Retry(func() error {
		return s.db.InTx(ctx, func(tx pgx.Tx) error { return do(dbsqlc.New(tx)) })
	}))
}
