package metrics

import (
	"context"
	"errors"
	"sync"
	"time"
)

// cached is one kind of gauges with the result of the last read. Readers that come during a read wait for its result.
// The fields below mu, but for reading, belong to the caller between begin and end; mu only guards reading.
type cached[T any] struct {
	every     time.Duration
	selfPaced bool // the read function limits its own share of the time
	onFailure func(error)

	mu      sync.Mutex
	reading chan struct{} // closed when the current read ends; nil: none

	value T
	err   error
	at    time.Time     // of the last read; zero: none
	took  time.Duration // by it
}

// share limits reads to a twentieth of the time. A larger share would let metrics of a slow database slow it down further; a
// smaller one would make them older.
const share = 20

// afterFailure is the pause after a failed read, short so that metrics come back soon after an outage.
const afterFailure = time.Second

// leastTime is the least time for a read: a shorter deadline would report a database as down that is not.
const leastTime = 300 * time.Millisecond

// errNoTime says that the deadline of the reader leaves no time for a read.
var errNoTime = errors.New("no time left to read gauges")

// get returns the last result, or reads if it is too old. The read has the deadline of ctx, but is not cancelled with ctx,
// because other readers wait for it, too. An error is kept like a value, so an outage costs one read per pause and not one per
// scrape. The value must not be changed: all readers share it.
func (p *cached[T]) get(ctx context.Context, read func(ctx context.Context) (T, error)) (T, error) {
	if !p.begin(ctx) {
		var nothing T
		return nothing, errNoTime
	}
	defer p.end()
	// Readers that have waited for another read come here and take its result.
	if !p.due() {
		return p.value, p.err
	}
	until, limited := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	// The deadline is kept without the cancellation: a scrape that gives up must not spoil the read for the others.
	if limited {
		if time.Until(until) < leastTime {
			var nothing T
			return nothing, errNoTime
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	p.read(ctx, read)
	return p.value, p.err
}

// begin waits until no other read runs. It holds no lock while it waits, so that a reader with a deadline can leave.
func (p *cached[T]) begin(ctx context.Context) bool {
	for {
		p.mu.Lock()
		other := p.reading
		if other == nil {
			p.reading = make(chan struct{})
			p.mu.Unlock()
			return true
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return false
		}
	}
}

func (p *cached[T]) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.reading)
	p.reading = nil
}

// The pause grows with the time of the last read, so that reads take a twentieth of the time at most however slow the database
// is.
func (p *cached[T]) due() bool {
	pause := p.every
	if !p.selfPaced {
		pause = max(pause, share*p.took)
	}
	if p.err != nil {
		pause = min(p.every, max(afterFailure, p.took))
	}
	return p.at.IsZero() || time.Since(p.at) >= pause
}

func (p *cached[T]) read(ctx context.Context, read func(ctx context.Context) (T, error)) {
	start := time.Now()
	before := p.err
	// An error replaces the value, so that nobody takes old figures for new ones.
	p.value, p.err = read(ctx)
	p.at = time.Now()
	p.took = p.at.Sub(start)
	if p.err != nil && before == nil && p.onFailure != nil {
		p.onFailure(p.err) // only the first of several in a row
	}
}
