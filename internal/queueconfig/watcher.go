package queueconfig

import (
	"context"
	"log/slog"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
)

// Watcher reads the cache again, so that requests need not wait for it. It does nothing while there are neither requests nor
// changes. Use NewWatcher.
type Watcher struct {
	baseservice.BaseService
	startstop.BaseStartStop

	cache *Cache
}

// NewWatcher returns the watcher of a cache.
func NewWatcher(archetype *baseservice.Archetype, cache *Cache) *Watcher {
	return baseservice.Init(archetype, &Watcher{cache: cache})
}

// Start begins to wait for requests and notifications.
func (w *Watcher) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := w.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.cache.kick:
				w.runOnce(ctx)
			}
		}
	}()
	return nil
}

// runOnce looks at once after a notification, and else if the latest look is old.
func (w *Watcher) runOnce(ctx context.Context) {
	fresh := lookAfter
	if w.cache.stale.Swap(false) {
		fresh = 0
	}
	if _, err := w.cache.look(ctx, fresh); err != nil && ctx.Err() == nil {
		w.Logger.WarnContext(ctx, "read the configuration of queues", slog.String("category", "queue"), slog.Any("error", err))
	}
}
