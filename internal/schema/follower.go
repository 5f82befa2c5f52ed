package schema

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
)

// lookInterval is how often a node that checks jobs looks whether schemas have changed, in case a notification was lost.
const lookInterval = time.Second

// Follower reads the changes of schemas that other nodes make. Every node runs one; without new jobs it reads nothing.
type Follower struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store   *Store
	changed chan struct{}
}

// NewFollower returns a follower for the schemas of the store.
func NewFollower(archetype *baseservice.Archetype, store *Store) *Follower {
	return baseservice.Init(archetype, &Follower{store: store, changed: make(chan struct{}, 1)})
}

// Notify reports that a node has changed schemas, or that notifications may be lost.
func (f *Follower) Notify() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Start runs the loop until stopped.
func (f *Follower) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := f.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		ticker := time.NewTicker(lookInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-f.changed:
			case <-ticker.C:
				if !f.store.checked.Load() {
					continue
				}
			}
			f.look(ctx)
		}
	}()
	return nil
}

func (f *Follower) look(ctx context.Context) {
	f.store.checked.Store(false)
	if _, err := f.store.reload(ctx, f.store.db.Q); err != nil && ctx.Err() == nil {
		f.store.checked.Store(true) // look again
		f.Logger.WarnContext(ctx, "changes of schemas were not read; trying again every second", slog.String("category", "error"), slog.Any("error", err))
	}
}
