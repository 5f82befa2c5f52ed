package grpcapi

import "sync"

// inHand counts calls. Unlike a sync.WaitGroup it may be waited for while calls still come.
type inHand struct {
	mu   sync.Mutex
	n    int
	wait chan struct{} // closed at zero; nil: nobody waits
}

func (h *inHand) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n += n
	if h.n == 0 && h.wait != nil {
		close(h.wait)
		h.wait = nil
	}
}

// none is closed when there is no call.
func (h *inHand) none() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan struct{})
	switch {
	case h.n == 0:
		close(c)
	case h.wait == nil:
		h.wait = c
	default:
		c = h.wait
	}
	return c
}
