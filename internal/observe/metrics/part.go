package metrics

import (
	"context"
	"errors"
	"sync"
	"time"
)

// part is what one kind of look at the database showed last. Whoever asks while one looks waits for the same answer.
type part[T any] struct {
	every time.Duration
	paced bool // looking knows itself when it would take too much
	told  func(error)

	mu      sync.Mutex
	looking chan struct{} // closed when the look ends that is under way; nil: none

	value T
	err   error
	at    time.Time // of the last look; zero: none
	cost  time.Duration
}

// share is how much of the time looking may take: a twentieth.
const share = 20

// afterFailure is how soon a look that failed may be tried again, so that what comes back is seen.
const afterFailure = time.Second

// leastTime is what a look needs: one that is cut short would say that the database does not answer.
const leastTime = 300 * time.Millisecond

// errNoTime says that the round ended before anybody knew.
var errNoTime = errors.New("no time left to look")

// get looks if it is time to. The look ends by the deadline of the one who asked, but not when that one goes, because its
// answer is for everybody.
func (p *part[T]) get(ctx context.Context, look func(ctx context.Context) (T, error)) (T, error) {
	if !p.begin(ctx) {
		var nothing T
		return nothing, errNoTime
	}
	defer p.end()
	if !p.due() {
		return p.value, p.err
	}
	until, limited := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if limited {
		if time.Until(until) < leastTime {
			var nothing T
			return nothing, errNoTime
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	p.look(ctx, look)
	return p.value, p.err
}

// begin waits until nobody else looks.
func (p *part[T]) begin(ctx context.Context) bool {
	for {
		p.mu.Lock()
		other := p.looking
		if other == nil {
			p.looking = make(chan struct{})
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

func (p *part[T]) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.looking)
	p.looking = nil
}

func (p *part[T]) due() bool {
	pause := p.every
	if !p.paced {
		pause = max(pause, share*p.cost)
	}
	if p.err != nil {
		pause = min(p.every, max(afterFailure, p.cost))
	}
	return p.at.IsZero() || time.Since(p.at) >= pause
}

func (p *part[T]) look(ctx context.Context, look func(ctx context.Context) (T, error)) {
	start := time.Now()
	before := p.err
	p.value, p.err = look(ctx)
	p.at = time.Now()
	p.cost = p.at.Sub(start)
	if p.err != nil && before == nil && p.told != nil {
		p.told(p.err) // the first of several in a row
	}
}
