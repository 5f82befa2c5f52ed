package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/service"
)

const (
	// readGap is the least time between two reads, so that a change of many workers, as in a deployment, is read once. Nodes
	// must follow a change within a second. A failed read is repeated after errorPause, as no further notification may
	// come.
	readGap = 100 * time.Millisecond

	errorPause = time.Second
)

// Liveness keeps the worker cache and the registry in step: fetches and acks count as beats, which it writes, and it reads
// which workers are quiet. If there is nothing to do it sends no query. It has one goroutine. read and beats have room for
// one signal each; more would lead to the same statement. The quiet workers that the node knows may be stale by the time of
// a notification and readGap; without notifications the fetch of a quiet worker may get jobs.
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
	service.Run(ctx, &l.BaseStartStop, l.loop)
	return nil
}

// loop has two timers. A nil channel means that there is nothing to read, or to write. A signal only arms a timer, so that
// a burst of signals makes one statement. Beats that are collected at the stop are not written.
func (l *Liveness) loop(ctx context.Context) {
	var readAt, writeAt <-chan time.Time
	var readLast time.Time
	for {
		select {
		case <-ctx.Done():
			return
		// A signal while a read is planned changes nothing: that read comes later than the change.
		case <-l.read:
			if readAt == nil {
				// The first change after a quiet time is read at once.
				readAt = time.After(readGap - min(readGap, time.Since(readLast)))
			}
		case <-readAt:
			readAt, readLast = nil, time.Now()
			if err := l.store.readQuiet(ctx); err != nil && ctx.Err() == nil {
				l.Logger.WarnContext(ctx, "quiet workers were not read; the read is repeated in a second", slog.Any("error", err))
				readAt = time.After(errorPause)
			}
		// The first beat after a write starts the timer, so a beat waits for one interval at most.
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
