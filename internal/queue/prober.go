package queue

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
)

// Prober looks once a second for jobs that waiting fetchers were not told of.
type Prober struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
}

// NewProber returns a prober. While nobody waits it issues no query.
func NewProber(archetype *baseservice.Archetype, s *Store) *Prober {
	return baseservice.Init(archetype, &Prober{store: s})
}

// Start runs the loop until stopped.
func (p *Prober) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := p.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if err := p.store.Probe(ctx); err != nil && ctx.Err() == nil {
					p.Logger.WarnContext(ctx, "probe for waiting fetchers failed", slog.Any("error", err))
				}
			}
		}
	}()
	return nil
}
