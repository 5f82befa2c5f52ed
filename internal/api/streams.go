package api

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// LastWrites is for what is written to a stream that ends with the node: 5 s in all.
// A client that does not read cannot hold up the stop for longer.
const LastWrites = 2 * time.Second

// Streams are the open streams of this node, whatever their transport. Use NewStreams.
// HTTP and gRPC share one, so that the limits hold for both together. mu guards open and clients; running counts the same
// streams, for Wait.
type Streams struct {
	config config.Realtime
	life   context.Context // derives from no request
	close  context.CancelFunc

	mu   sync.Mutex
	open int
	// clients has no entry for a client without streams, so it does not grow with every address seen.
	clients map[string]int
	running sync.WaitGroup
}

// NewStreams returns none.
// The zero MaxConnections admits none.
func NewStreams(c config.Realtime) *Streams {
	s := &Streams{config: c, clients: map[string]int{}}
	s.life, s.close = context.WithCancel(context.Background())
	return s
}

// Life ends when all streams shall.
// Streams derive from it and not from the context of a constructor, which may end with the start.
func (s *Streams) Life() context.Context { return s.life }

// Admit counts a stream in; leave must be called when it has ended.
// After an error leave is nil and must not be called. leave may be called once.
func (s *Streams) Admit(client string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.life.Err() != nil:
		return nil, spec.Unavailable()
	case s.open >= s.config.MaxConnections:
		return nil, errTooManyStreams("This node has", s.config.MaxConnections)
	case s.clients[client] >= s.config.MaxConnectionsPerClient:
		return nil, errTooManyStreams("This client has", s.config.MaxConnectionsPerClient)
	}
	s.open++
	s.clients[client]++
	s.running.Add(1)
	return func() { s.leave(client) }, nil
}

// leave calls Done after the count, so that Wait returns when Count is 0.
func (s *Streams) leave(client string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.clients[client]--; s.clients[client] == 0 {
		delete(s.clients, client)
	}
	s.running.Done()
}

// Count is the number of open streams.
func (s *Streams) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Stop ends all streams, and refuses new ones. It does not wait.
func (s *Streams) Stop() {
	// Otherwise a stream could be added to running after Wait has begun to wait at zero, which a WaitGroup forbids.
	s.mu.Lock() // nobody is between the look at ctx and the count
	defer s.mu.Unlock()
	s.close()
}

// Wait returns when the streams have ended after stop, or with ctx.
// Its goroutine outlives an error, until the streams have ended.
func (s *Streams) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("streams did not end: %w", ctx.Err())
	}
}

// Context ends with the request's, or with all streams.
// The returned function must be called, or the node remembers the stream for ever.
func (s *Streams) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }
}

func errTooManyStreams(whose string, limit int) error {
	return spec.NewError(ojs.ErrRateLimited, fmt.Sprintf("%s %d open streams, which is the limit; close one.", whose, limit),
		map[string]any{"limit": limit})
}

// Pace delays a connection's frames to the limit; a second's worth may come at once.
// Several subscriptions of a WebSocket share one, hence the lock. The zero value has no limit.
type Pace struct {
	perSecond float64
	mu        sync.Mutex
	free      time.Time // when all that was sent is paid for
}

// Spend notes n frames and returns how long to wait before the next.
// A negative result means that no wait is needed. free runs ahead of the clock by what was sent; up to a second of it is not
// waited for.
func (p *Pace) Spend(n int) time.Duration {
	if p.perSecond <= 0 || n == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / p.perSecond * float64(time.Second)))
	return p.free.Sub(now) - time.Second
}

// NewPace is for one connection.
func (s *Streams) NewPace() *Pace { return &Pace{perSecond: float64(s.config.RateLimitPerSecond)} }

// Batch is how many events are taken at once: few enough that the limit delays evenly.
// A quarter of a second's frames at a time; 256 without a limit, so that one stream does not hold many events at once.
func (s *Streams) Batch() int {
	const most = 256
	if s.config.RateLimitPerSecond <= 0 {
		return most
	}
	return min(most, max(1, s.config.RateLimitPerSecond/4))
}

// Pause sleeps unless ctx ends.
// It returns nothing: the caller looks at ctx, which it has to do anyway.
func Pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// maxMemory bounds the bytes of requests that a node works on: while the database is stalled, every producer's body waits in
// memory. The process takes up to six times as much (750 MiB, with 500 producers of 1 MiB in the same process): a body is decoded and
// sent on, and the garbage collector frees it only later.
const maxMemory = 128 << 20

// Memory counts the bytes of the requests in flight, of all interfaces of a node. The zero value is ready to use.
// It does not count answers, which are bounded by pages and by the time of writing.
type Memory struct{ used atomic.Int64 }

// Take reserves bytes, unless there is no room. The request is then refused, and its client sends it again.
// Concurrent calls may both be refused although one would have had room; neither exceeds the bound.
func (m *Memory) Take(bytes int) error {
	if m.used.Add(int64(bytes)) > maxMemory {
		m.used.Add(-int64(bytes))
		return spec.Overloaded()
	}
	return nil
}

// Free gives back what Take has reserved.
// It must be called with the same number, once.
func (m *Memory) Free(bytes int) { m.used.Add(-int64(bytes)) }
