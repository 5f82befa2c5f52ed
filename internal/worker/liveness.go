package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
)

const (
	// readGap lets a change of many workers, a deployment, be read at once. It is far below the second that a node may take.
	readGap = 100 * time.Millisecond

	errorPause = time.Second
)

// Liveness keeps the worker cache and the registry in step: it writes the beats that fetches and acks are, and reads which
// workers get no jobs. While neither happens it issues no query.
type Liveness struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
	read  chan struct{}
	beats chan struct{}
}

// NewLiveness returns the service. The worker cache tells it of beats; ReadQuiet is for the caller.
func NewLiveness(archetype *baseservice.Archetype, s *Store) *Liveness {
	l := baseservice.Init(archetype, &Liveness{store: s, read: make(chan struct{}, 1), beats: make(chan struct{}, 1)})
	s.workers.OnBeat(func() { wake(l.beats) })
	return l
}

// ReadQuiet says that some worker may have become quiet, or no longer is. It does not block.
func (l *Liveness) ReadQuiet() { wake(l.read) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Start runs the loop until stopped.
func (l *Liveness) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := l.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		l.loop(ctx)
	}()
	return nil
}

// loop has two timers; nil channels mean that there is nothing to do.
func (l *Liveness) loop(ctx context.Context) {
	var readAt, writeAt <-chan time.Time
	var readLast time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.read:
			if readAt == nil {
				readAt = time.After(readGap - min(readGap, time.Since(readLast)))
			}
		case <-readAt:
			readAt, readLast = nil, time.Now()
			if err := l.store.readQuiet(ctx); err != nil && ctx.Err() == nil {
				l.Logger.WarnContext(ctx, "quiet workers were not read", slog.Any("error", err))
				readAt = time.After(errorPause)
			}
		case <-l.beats:
			if writeAt == nil {
				writeAt = time.After(l.store.beatInterval())
			}
		case <-writeAt:
			writeAt = nil
			if err := l.store.writeBeats(ctx); err != nil && ctx.Err() == nil {
				l.Logger.WarnContext(ctx, "heartbeats of workers were not written", slog.Any("error", err))
			}
		}
	}
}
