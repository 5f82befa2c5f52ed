package grpcapi

import "sync"

// runningCalls counts calls. Unlike a sync.WaitGroup it may be waited for while calls still come.
// The zero value is ready to use.
type runningCalls struct {
	mu   sync.Mutex
	n    int
	wait chan struct{} // closed at zero; nil: nobody waits
}

func (r *runningCalls) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += n
	if r.n == 0 && r.wait != nil {
		close(r.wait)
		r.wait = nil
	}
}

// none is closed when there is no call.
// A channel that is closed says that there was a moment without calls; another may have begun since. Stop asks when no new
// ones come.
func (r *runningCalls) none() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{})
	switch {
	case r.n == 0:
		close(c)
	case r.wait == nil:
		r.wait = c
	default:
		c = r.wait
	}
	return c
}
