package queue

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/loop"
)

const (
	// servedPause is between two notes that this node reaches the database. An outage is three seconds without a note of any node
	// (ojs.is_served), so it allows for two that are late.
	servedPause = time.Second

	// restAfter is how long no job must have changed until a node asks whether it may rest, and restPause how often it asks.
	restAfter = 5 * time.Second
	restPause = 30 * time.Second
)

// OutageWatch notes every second that this node reaches the database. After a time in which no node did, it extends the reservations, run
// times and heartbeat timeouts of all active jobs by that time, as nobody could renew or report them (docs/reference/retries.md, Outages).
// Every node has one; the database decides what was an outage, so a node that was cut off alone extends nothing. It rests while nothing
// runs.
type OutageWatch struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
	moved atomic.Int64 // clock.Running at the latest change of a job

	// Only the running goroutine uses these.
	resting bool          // nothing is noted, as of the time asked
	asked   time.Duration // clock.Running when it asked last whether it may rest
	failing bool          // the latest note was not written, which was logged
}

// NewOutageWatch returns the service.
func NewOutageWatch(archetype *baseservice.Archetype, s *Store) *OutageWatch {
	return baseservice.Init(archetype, &OutageWatch{store: s})
}

// Notify reports that jobs change, on this node or on another one. It does not block.
func (w *OutageWatch) Notify() { w.moved.Store(int64(clock.Running())) }

// Start runs the loop until stopped. The first note is not delayed: sweeps fail no active job before it if all nodes were down.
func (w *OutageWatch) Start(ctx context.Context) error {
	loop.Run(ctx, &w.BaseStartStop, func(ctx context.Context) {
		w.resting, w.asked = false, clock.Running()
		w.Notify()
		w.check(ctx)
		loop.Every(ctx, servedPause, w.check)
	})
	return nil
}

func (w *OutageWatch) check(ctx context.Context) {
	now, moved := clock.Running(), time.Duration(w.moved.Load())
	if w.resting && moved <= w.asked {
		return
	}
	// asked is before the statement: what moves meanwhile ends the rest.
	mayRest := now-moved >= restAfter && now-w.asked >= restPause
	var err error
	w.resting, err = w.store.checkOutage(ctx, mayRest)
	if mayRest {
		w.asked = now
	}
	if err != nil && ctx.Err() == nil && !w.failing {
		w.Logger.WarnContext(ctx, "the database was not reached; it is tried every second, and jobs keep their reservations meanwhile",
			slog.Any("error", err))
	}
	w.failing = err != nil
}

// CheckOutage notes that this node has reached the database, and extends what was running if none had for three seconds. Every node may
// call it at any time: one of them finds an outage. Until the call that follows a commit of the extension, sweeps of all nodes fail no
// active job.
func (s *Store) CheckOutage(ctx context.Context) error {
	_, err := s.checkOutage(ctx, false)
	return err
}

// checkOutage is CheckOutage for a node that rests if it may and nothing runs.
func (s *Store) checkOutage(ctx context.Context, mayRest bool) (resting bool, err error) {
	for {
		bounded, cancel := s.db.Bounded(ctx)
		outage, err := s.db.Q.OutageCheck(bounded, mayRest)
		cancel()
		if err != nil || !outage.Ended {
			return outage.Resting, err
		}
		s.logger.WarnContext(ctx, "no node has reached the database for a while; active jobs and the silence of workers have that much more time",
			slog.String("category", "system"),
			slog.Group("attributes", "lasted_ms", outage.LastedMs, "jobs", outage.Jobs))
		if s.observe.Outage != nil {
			s.observe.Outage()
		}
	}
}
