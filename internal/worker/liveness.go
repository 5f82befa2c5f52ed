package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
)

const (
	// readGap is the least time between two reads, so that a change of many workers, as in a deployment, is read once. Nodes
	// must follow a change within a second.
	readGap = 100 * time.Millisecond

	errorPause = time.Second
)

// Liveness keeps the worker cache and the registry in step: fetches and acks count as beats, which it writes, and it reads
// which workers are quiet. If there is nothing to do it sends no query.
type Liveness struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
	read  chan struct{}
	beats chan struct{}
}

// NewLiveness returns the service and connects it to the worker cache. The caller connects ReadQuiet.
func NewLiveness(archetype *baseservice.Archetype, s *Store) *Liveness {
	l := baseservice.Init(archetype, &Liveness{store: s, read: make(chan struct{}, 1), beats: make(chan struct{}, 1)})
	s.workers.OnBeat(func() { signal(l.beats) })
	return l
}

// ReadQuiet requests a read, because the quiet state of some worker may have changed. It does not block.
func (l *Liveness) ReadQuiet() { signal(l.read) }

func signal(c chan struct{}) {
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

// loop has two timers. A nil channel means that there is nothing to read, or to write.
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
				l.Logger.WarnContext(ctx, "quiet workers were not read; the read is repeated in a second", slog.Any("error", err))
				readAt = time.After(errorPause)
			}
		case <-l.beats:
			if writeAt == nil {
				writeAt = time.After(l.store.beatInterval())
			}
		case <-writeAt:
			writeAt = nil
			if err := l.store.writeBeats(ctx); err != nil && ctx.Err() == nil {
				l.Logger.WarnContext(ctx, "beats of workers were not written; they are written with the next ones", slog.Any("error", err))
			}
		}
	}
}
