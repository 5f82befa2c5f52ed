package queueadmin

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/queueconfig"
)

const (
	// finishInterval is how often a node looks at queues that are being deleted. It sends no query while it knows of none.
	finishInterval = time.Second

	// begunFor is how old a deletion is before a finisher touches it: the request that began it settles and finishes it itself.
	begunFor = queueconfig.Settled + 2*fenceWait
)

// Finisher deletes queues whose active jobs have ended, and goes on with deletions of nodes that have stopped. Any number of nodes may
// run one.
type Finisher struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
}

// NewFinisher returns a finisher.
func NewFinisher(archetype *baseservice.Archetype, s *Store) *Finisher {
	return baseservice.Init(archetype, &Finisher{store: s})
}

// Start runs the loop until stopped.
func (f *Finisher) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := f.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		f.store.queues.Changed() // a node that starts may be the only one
		ticker := time.NewTicker(finishInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if err := f.store.Finish(ctx); err != nil && ctx.Err() == nil {
					f.Logger.WarnContext(ctx, "deletion of a queue is not finished yet; it is tried again every second", slog.Any("error", err))
				}
			}
		}
	}()
	return nil
}

// Finish goes on with all deletions that this node knows of.
func (s *Store) Finish(ctx context.Context) error {
	view := s.queues.Latest()
	if view == nil || view.Plain() {
		return nil
	}
	var names []string
	view.Each(func(q *queueconfig.Queue) {
		if q.Deleting {
			names = append(names, q.Name)
		}
	})
	for _, name := range names {
		if err := s.finishOld(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) finishOld(ctx context.Context, name string) error {
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	d, found, err := s.deletionOf(ctx, name)
	if err != nil || !found || now.Sub(d.Began) < s.begunFor {
		return err
	}
	_, err = s.finish(ctx, name)
	return err
}
