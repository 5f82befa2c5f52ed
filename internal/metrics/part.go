package metrics

import (
	"context"
	"sync"
	"time"
)

// part is what one kind of look at the database showed last. Whoever asks while one looks waits for the same answer.
type part[T any] struct {
	every time.Duration
	paced bool // looking knows itself when it would take too much
	told  func(error)

	mu    sync.Mutex
	value T
	err   error
	at    time.Time // of the last look; zero: none
	cost  time.Duration
}

// share is how much of the time looking may take: a twentieth.
const share = 20

// afterFailure is how soon a look that failed may be tried again, so that what comes back is seen.
const afterFailure = time.Second

// get looks if it is time to. The look does not end with the one who asked, because its answer is for everybody.
func (p *part[T]) get(ctx context.Context, look func(ctx context.Context) (T, error)) (T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := p.every
	if !p.paced {
		pause = max(pause, share*p.cost)
	}
	if p.err != nil {
		pause = min(p.every, max(afterFailure, p.cost))
	}
	if !p.at.IsZero() && time.Since(p.at) < pause {
		return p.value, p.err
	}
	start := time.Now()
	before := p.err
	p.value, p.err = look(context.WithoutCancel(ctx))
	p.at = time.Now()
	p.cost = p.at.Sub(start)
	if p.err != nil && before == nil && p.told != nil {
		p.told(p.err) // the first of several in a row
	}
	return p.value, p.err
}
