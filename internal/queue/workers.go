package queue

import (
	"slices"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/loop"
)

// What a node keeps in memory about workers: which of them are quiet, which have called since their beats were last written, and what each
// of them fetches. Nothing may depend on its survival.

// Clients choose the ids of workers, so the numbers of entries are bounded. A beat beyond maxBeats is dropped; the next call
// of the worker replaces it.
const (
	// maxBeats: see above. Workers above maxKnownFetchers clear the table, and queues above maxFetchQueues are not recorded. Both only
	// change what the registry shows.
	maxBeats         = 100_000
	maxKnownFetchers = 10_000
	maxFetchQueues   = 50
)

// Workers is the worker cache of a node. Use NewWorkers. mu guards all fields but beaten. It is held for map operations only: every
// fetch, ack and nack takes it.
//
// quiet has the quiet workers of the whole deployment, and may be stale (see worker.Liveness). beats has times of this
// node's monotonic clock. changed is replaced when it is closed.
type Workers struct {
	mu      sync.Mutex
	quiet   map[string]bool
	written map[string]bool // changes by this node since BeginRead; nil if no read is in progress
	changed chan struct{}   // closed when a worker becomes quiet
	beats   map[string]time.Time
	fetches map[string]fetches

	beaten chan struct{}
}

// fetches are the queues and the largest count that a worker has fetched with. Neither shrinks while the node runs; a
// worker that fetches less is shown with the most that it asked for.
type fetches struct {
	queues []string
	count  int
}

// NewWorkers returns an empty cache.
func NewWorkers() *Workers {
	return &Workers{
		quiet: map[string]bool{}, changed: make(chan struct{}), beats: map[string]time.Time{}, fetches: map[string]fetches{},
		beaten: make(chan struct{}, 1),
	}
}

// Beaten has a signal when there are beats to write.
func (w *Workers) Beaten() <-chan struct{} { return w.beaten }

// Quiet reports whether the worker gets no jobs.
func (w *Workers) Quiet(worker string) bool {
	if worker == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quiet[worker]
}

// QuietChanged is closed when some worker becomes quiet after the call. It is nil for a fetch without a worker. A parked
// fetch selects on it and asks Quiet again: the channel says that some worker has become quiet, not which. Take it before
// Quiet, or a change between the two is missed.
func (w *Workers) QuietChanged(worker string) <-chan struct{} {
	if worker == "" {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// SetQuiet records the state of a worker after a commit of this node. A read that is in progress may have its snapshot from
// before the commit, so the change is noted for EndRead, too.
func (w *Workers) SetQuiet(worker string, quiet bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.written != nil {
		w.written[worker] = quiet
	}
	if w.set(worker, quiet) {
		w.notify()
	}
}

// set reports whether the worker became quiet.
func (w *Workers) set(worker string, quiet bool) bool {
	was := w.quiet[worker]
	if quiet {
		w.quiet[worker] = true
	} else {
		delete(w.quiet, worker)
	}
	return quiet && !was
}

// notify tells waiting fetches that a worker became quiet. The caller has locked mu.
func (w *Workers) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// BeginRead is called before the quiet workers are read from the database; EndRead follows, unless the read failed. Reads
// must not overlap; Liveness makes them one after the other. After a failed read the changes go on being noted until the
// next BeginRead, which does no harm.
func (w *Workers) BeginRead() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = map[string]bool{}
}

// EndRead replaces the quiet workers by ids. Changes by this node since BeginRead take precedence: the read may not have
// included them.
func (w *Workers) EndRead(ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.written == nil {
		return // Forget came in between
	}
	was := w.quiet
	w.quiet = make(map[string]bool, len(ids))
	for _, id := range ids {
		w.quiet[id] = true
	}
	for id, quiet := range w.written {
		w.set(id, quiet)
	}
	w.written = nil
	for id := range w.quiet {
		if !was[id] {
			w.notify()
			return
		}
	}
}

// Forget drops everything. It is for a reset of the database, whose workers are gone.
func (w *Workers) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.quiet)
	clear(w.beats)
	clear(w.fetches)
	w.written = nil
}

// Beat records that a worker has called. Liveness writes the beats of many workers at once, and only those of registered
// ones. A thousand calls make one signal.
func (w *Workers) Beat(worker string) {
	if worker == "" {
		return
	}
	w.mu.Lock()
	first := len(w.beats) == 0
	if len(w.beats) < maxBeats {
		w.beats[worker] = time.Now()
	}
	w.mu.Unlock()
	if first {
		w.signal()
	}
}

// signal leaves one signal, which is enough if nobody has taken it yet: TakeBeats takes all.
func (w *Workers) signal() {
	loop.Signal(w.beaten)
}

// TakeBeats returns the latest call of each worker since the previous TakeBeats.
func (w *Workers) TakeBeats() map[string]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	beats := w.beats
	w.beats = map[string]time.Time{}
	return beats
}

// ReturnBeats keeps beats that could not be written for the next try, unless the workers have called again.
func (w *Workers) ReturnBeats(beats map[string]time.Time) {
	w.mu.Lock()
	first := len(w.beats) == 0
	for id, at := range beats {
		if _, later := w.beats[id]; !later && len(w.beats) < maxBeats { // at the bound, beats are dropped
			w.beats[id] = at
		}
	}
	w.mu.Unlock()
	if first {
		w.signal()
	}
}

// Fetch records that a worker has called, and what it asked for.
func (w *Workers) Fetch(worker string, queues []string, count int) {
	if worker == "" {
		return
	}
	w.mu.Lock()
	f, known := w.fetches[worker]
	if !known && len(w.fetches) >= maxKnownFetchers {
		clear(w.fetches) // the next fetches record them again
	}
	f.count = max(f.count, count)
	for _, q := range queues {
		if len(f.queues) < maxFetchQueues && !slices.Contains(f.queues, q) {
			f.queues = append(slices.Clip(f.queues), q) // clipped, because Fetches has returned the old slice
		}
	}
	w.fetches[worker] = f
	w.mu.Unlock()
	w.Beat(worker)
}

// Fetches returns what the worker fetches with; nil and 0 if it has not fetched on this node. The slice must not be
// changed; Fetch does not change it either.
func (w *Workers) Fetches(worker string) (queues []string, count int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.fetches[worker]
	return f.queues, f.count
}
