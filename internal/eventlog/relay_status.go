package eventlog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// RelayStatus is how far a relay has come, for health and metrics. Watermark is that of this node's last pass that had the
// lock, or of its last poll, and Head that of the last such pass; another node may have published since.
type RelayStatus struct {
	Watermark int64         // published up to here
	Head      int64         // the highest number that a pass has read
	BehindFor time.Duration // how long events have been visible that this relay could not publish; 0: none
	Err       error         // of the last pass
}

// mu guards behind and err. behind is when the first pass ran that did not catch up; zero: the latest one did.
type relayStatus struct {
	watermark, head atomic.Int64

	mu     sync.Mutex
	behind time.Time
	err    error
}

// record keeps since when the relay is behind. Only a pass that catches up ends that: one that publishes something may still be slower
// than the writers. A pass that found the lock taken counts as behind until a later one catches up: it does not know what the
// other relay publishes.
func (s *relayStatus) record(done pass, err error) {
	if done.locked {
		s.watermark.Store(done.watermark)
		s.head.Store(max(done.head, done.watermark))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if done.caughtUp() {
		s.behind = time.Time{}
	} else if s.behind.IsZero() {
		s.behind = time.Now()
	}
}

// Status returns the outcome of the latest pass.
func (r *Relay) Status() RelayStatus {
	s := RelayStatus{Watermark: r.status.watermark.Load(), Head: r.status.head.Load()}
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	s.Err = r.status.err
	if !r.status.behind.IsZero() {
		s.BehindFor = time.Since(r.status.behind)
	}
	return s
}

// progress is the number of calls of Wake whose events are published. WaitCaughtUp waits for it. mu guards changed. reached
// only grows: one goroutine calls reach, with numbers that it has read from a counter.
type progress struct {
	reached atomic.Uint64

	mu      sync.Mutex
	changed chan struct{} // closed by the next reach; nil: no call waits
}

// reach records that the events of all wake-ups up to this number are published.
func (p *progress) reach(woken uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reached.Store(woken)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// next returns a channel that the next reach closes.
func (p *progress) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// waitCaughtUp waits for a pass that started after the last commit of this node and published all that was visible to it.
// While it waits, the relay rests less (Relay.rest).
func (r *Relay) waitCaughtUp(ctx context.Context) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	for woken := r.woken.Load(); r.progress.reached.Load() < woken; {
		next := r.progress.next() // before the second Load, or a reach between both would be missed
		if r.progress.reached.Load() >= woken {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}
