package webhook

import (
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/pg"
)

// secretOverlap is how long the secret before the current one stays valid, if the call does not say.
const secretOverlap = 24 * time.Hour

// StoreConfig holds what the subscriptions are kept by. Values are taken as they are.
type StoreConfig struct {
	// Keys seal the secrets, 32 bytes each; the first is current, the others only open. None: plain text.
	Keys [][]byte

	// MaxWebhooks is the most subscriptions.
	MaxWebhooks int32

	// DisableAfter is how long a subscription may fail before a delivery that is given up disables it; 0: for ever.
	DisableAfter time.Duration
}

// Store keeps subscriptions, their secrets and their deliveries. Use NewStore.
type Store struct {
	db     *pg.DB
	config StoreConfig
	vault  vault

	deliveries *batch.Batcher[DeliveryOutcome, Recorded]
}

// NewStore returns a store on the database.
func NewStore(db *pg.DB, config StoreConfig) *Store {
	s := &Store{db: db, config: config, vault: newVault(config.Keys)}
	s.deliveries = batch.New(batch.Config[DeliveryOutcome, Recorded]{
		Flush: s.flushDeliveries, Split: pg.IsRowError, Retry: pg.IsTransient,
		Key: func(o DeliveryOutcome) ([16]byte, bool) { return o.ID, true },
	})
	return s
}
