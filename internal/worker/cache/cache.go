// Package cache is what a node knows of workers without asking the database: which of them get no jobs, which have called
// since their heartbeats were written last, and what each of them fetches. It is memory only and may be lost at any time.
package cache

import (
	"slices"
	"sync"
	"time"
)

// What a node remembers of ids that clients choose is bounded. A heartbeat too many is lost until the worker's next call.
const (
	maxBeats       = 100_000
	maxFetchers    = 10_000
	maxFetchQueues = 50
)

// Workers is the worker cache of a node. Use New.
type Workers struct {
	mu      sync.Mutex
	quiet   map[string]bool
	written map[string]bool // while the quiet workers are read again: what this node wrote meanwhile; else nil
	changed chan struct{}   // closed when a worker becomes quiet
	beats   map[string]time.Time
	fetches map[string]fetches

	onBeat func()
}

// fetches is what a worker asks for when it fetches.
type fetches struct {
	queues []string
	count  int
}

// New returns an empty cache.
func New() *Workers {
	return &Workers{
		quiet: map[string]bool{}, changed: make(chan struct{}), beats: map[string]time.Time{}, fetches: map[string]fetches{},
		onBeat: func() {},
	}
}

// OnBeat sets what is called when there are heartbeats to be written. It must not block.
func (w *Workers) OnBeat(f func()) { w.onBeat = f }

// Quiet reports whether the worker gets no jobs.
func (w *Workers) Quiet(worker string) bool {
	if worker == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quiet[worker]
}

// QuietChanged is closed when some worker becomes quiet after the call; nil for a fetch without worker, which never does.
func (w *Workers) QuietChanged(worker string) <-chan struct{} {
	if worker == "" {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// SetQuiet notes what a commit of this node says about a worker.
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

func (w *Workers) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// BeginRead is called before the quiet workers are read from the database; EndRead follows, unless the read failed.
func (w *Workers) BeginRead() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written = map[string]bool{}
}

// EndRead replaces what was known by ids, except for what this node wrote since BeginRead.
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

// Forget drops everything.
func (w *Workers) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.quiet)
	clear(w.beats)
	clear(w.fetches)
	w.written = nil
}

// Beat notes that a worker has called. It is written later, with those of other workers, and only for registered ones.
func (w *Workers) Beat(worker string) {
	if worker != "" && w.noteBeat(worker) {
		w.onBeat()
	}
}

// noteBeat reports whether it is the first since beats were taken.
func (w *Workers) noteBeat(worker string) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.beats) >= maxBeats {
		return false
	}
	first = len(w.beats) == 0
	w.beats[worker] = time.Now()
	return first
}

// TakeBeats returns the latest call of each worker since it was called last.
func (w *Workers) TakeBeats() map[string]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	beats := w.beats
	w.beats = map[string]time.Time{}
	return beats
}

// ReturnBeats keeps beats that could not be written for the next try, unless there are later ones.
func (w *Workers) ReturnBeats(beats map[string]time.Time) {
	if w.putBack(beats) {
		w.onBeat()
	}
}

func (w *Workers) putBack(beats map[string]time.Time) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first = len(w.beats) == 0
	for id, at := range beats {
		if _, later := w.beats[id]; !later && len(w.beats) < maxBeats {
			w.beats[id] = at
		}
	}
	return first
}

// Fetch notes that a worker has called, and what it asks for.
func (w *Workers) Fetch(worker string, queues []string, count int) {
	if worker == "" {
		return
	}
	w.noteFetch(worker, queues, count)
	w.Beat(worker)
}

func (w *Workers) noteFetch(worker string, queues []string, count int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, known := w.fetches[worker]
	if !known && len(w.fetches) >= maxFetchers {
		clear(w.fetches) // they come again with the next fetches
	}
	f.count = max(f.count, count)
	for _, q := range queues {
		if len(f.queues) < maxFetchQueues && !slices.Contains(f.queues, q) {
			f.queues = append(slices.Clip(f.queues), q) // a reader may have the old one
		}
	}
	w.fetches[worker] = f
}

// Fetches is what the worker asks for; nil and 0 if it has fetched nothing on this node.
func (w *Workers) Fetches(worker string) (queues []string, count int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.fetches[worker]
	return f.queues, f.count
}
