package webhook

import (
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/pg"
)

// StoreConfig holds what the subscriptions are kept by.
type StoreConfig struct {
	// Keys seal the secrets, 32 bytes each; the first is current, the others only open. None: plain text.
	Keys [][]byte

	// MaxWebhooks is the most subscriptions. 100.
	MaxWebhooks int32

	// SecretOverlap is how long the secret before the current one stays valid after a rotation, in whole seconds: less than
	// one ends it at once. 24 h.
	SecretOverlap time.Duration

	// DisableAfter is how long a subscription may fail before a delivery that is given up disables it; negative: for ever.
	// 120 h.
	DisableAfter time.Duration
}

func (c StoreConfig) withDefaults() StoreConfig {
	if c.MaxWebhooks == 0 {
		c.MaxWebhooks = 100
	}
	if c.SecretOverlap == 0 {
		c.SecretOverlap = 24 * time.Hour
	}
	if c.DisableAfter == 0 {
		c.DisableAfter = 120 * time.Hour
	}
	return c
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
	s := &Store{db: db, config: config.withDefaults(), vault: newVault(config.Keys)}
	s.deliveries = batch.New(batch.Config[DeliveryOutcome, Recorded]{
		Flush: s.flushDeliveries, Split: pg.IsRowError, Retry: pg.IsTransient,
		Key: func(o DeliveryOutcome) ([16]byte, bool) { return o.ID, true },
	})
	return s
}
