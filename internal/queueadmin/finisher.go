package queueadmin

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/follow"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/service"
)

const (
	// finishInterval is how often a node looks at queues that are being deleted. It sends no query while it knows of none.
	// docs/reference/queues.md, Deletion promises 10 s.
	finishInterval = time.Second

	// begunFor is how old a deletion is before a finisher touches it: the request that began it settles and finishes it
	// itself. Earlier, the row could go while a node still takes jobs for the queue.
	begunFor = follow.Settled + 2*fenceWait
)

// Finisher deletes queues whose active jobs have ended, and goes on with deletions of nodes that have stopped. Any number of nodes may
// run one. It learns of deletions from the cache of queues, which every change of a queue refreshes.
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
	service.Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

func (f *Finisher) loop(ctx context.Context) {
	// The deletion may have been begun by a node that has stopped since.
	f.store.queues.Changed() // a node that starts may be the only one
	service.Every(ctx, finishInterval, func(ctx context.Context) {
		if err := f.store.Finish(ctx); err != nil && ctx.Err() == nil {
			f.Logger.WarnContext(ctx, "deletion of a queue is not finished yet; it is tried again every second", slog.Any("error", err))
		}
	})
}

// Finish goes on with all deletions that this node knows of. One that fails does not stop the others.
func (s *Store) Finish(ctx context.Context) error {
	view := s.queues.Latest()
	// A server without settings pays nothing.
	if view == nil || view.Plain() {
		return nil
	}
	var names []string
	view.Each(func(q *queueconfig.Queue) {
		if q.Deleting {
			names = append(names, q.Name)
		}
	})
	var failed []error
	for _, name := range names {
		failed = append(failed, s.finishOld(ctx, name))
	}
	return errors.Join(failed...)
}

// Ages are compared by the clock of the database.
func (s *Store) finishOld(ctx context.Context, name string) error {
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	d, found, err := s.deletionOf(ctx, name)
	// The request that began it may still be at work.
	if err != nil || !found || now.Sub(d.Began) < s.begunFor {
		return err
	}
	_, err = s.finish(ctx, name)
	return err
}
