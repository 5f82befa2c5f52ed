package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// hopelessAfter is the number of errors after which a load gives up: the server is gone or refuses everything.
const hopelessAfter = 200

// load is one queue of its own, the clients that work on it, and what they saw.
type load struct {
	cfg    Config
	target target
	bodies bodies
	db     *database

	ledger  ledger
	trouble trouble
	latency [opCount][]time.Duration
	marks   []mark
	moved   atomic.Int64 // unix ns of the latest enqueue or ack
	acked   atomic.Int64
}

// newLoad makes a load with a fresh queue. Workers do not wait for jobs unless bodies are replaced.
func (r *runner) newLoad(name string) *load {
	queue := "bench-" + name + "-" + randomSuffix()
	return &load{cfg: r.cfg, target: r.target, db: r.db, bodies: newBodies(queue, r.cfg.ArgsBytes, 0)}
}

// randomSuffix keeps queues of different runs apart.
func randomSuffix() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%x", b)
}

// group is a number of clients that do the same.
type group struct {
	role string
	n    int
	work func(*client)
}

// span is when a piece of work began and ended.
type span struct{ start, end time.Time }

func (s span) seconds() float64 { return max(s.end.Sub(s.start).Seconds(), 1e-9) }

// run connects the clients of all groups, lets them go at the same moment, and merges what they saw when all are done.
func (l *load) run(groups ...group) (span, error) {
	var clients []*client
	var works []func(*client)
	for _, g := range groups {
		for i := range g.n {
			clients = append(clients, newClient(l.target, fmt.Sprintf("%s-%s-%d", l.bodies.queue, g.role, i), l.bodies))
			works = append(works, g.work)
		}
	}
	if err := connect(clients); err != nil {
		return span{}, err
	}
	s := l.release(clients, works)
	for _, c := range clients {
		c.close()
		l.merge(c)
	}
	return s, nil
}

// connect opens every connection beforehand, so that no measurement contains a dial.
func connect(clients []*client) error {
	for _, c := range clients {
		if _, err := c.do(opConnect); err != nil {
			return err
		}
	}
	return nil
}

func (l *load) release(clients []*client, works []func(*client)) span {
	var done sync.WaitGroup
	barrier := make(chan struct{})
	for i, c := range clients {
		done.Go(func() {
			<-barrier
			works[i](c)
		})
	}
	s := span{start: time.Now()}
	l.moved.Store(s.start.UnixNano())
	close(barrier)
	done.Wait()
	s.end = time.Now()
	return s
}

func (l *load) merge(c *client) {
	l.ledger.enqueued = append(l.ledger.enqueued, c.enqueued...)
	l.ledger.fetched = append(l.ledger.fetched, c.fetched...)
	l.ledger.acked = append(l.ledger.acked, c.acked...)
	l.marks = append(l.marks, c.marks...)
	for o := range c.latency {
		l.latency[o] = append(l.latency[o], c.latency[o]...)
	}
}

// forgetTimes drops what was timed so far, so that filling a queue does not mix with emptying it.
func (l *load) forgetTimes() {
	l.latency = [opCount][]time.Duration{}
	l.marks = nil
}

// goOn reports whether the clients should make another call.
func (l *load) goOn(ctx context.Context) bool {
	return ctx.Err() == nil && l.trouble.count.Load() < hopelessAfter
}

// progress notes that n jobs moved; stalled measures from here.
func (l *load) progress(n int) {
	l.moved.Store(time.Now().UnixNano())
	l.acked.Add(int64(n))
}

func (l *load) stalled() bool {
	return time.Since(time.Unix(0, l.moved.Load())) > l.cfg.Stall
}

// ackAll acknowledges what was fetched, one by one or in one call.
func (l *load) ackAll(c *client, jobs []jobID, batch bool) {
	before := len(c.acked)
	if batch {
		l.trouble.note(c.ackBatch(jobs))
	} else {
		for _, id := range jobs {
			l.trouble.note(c.ack(id))
		}
	}
	n := len(c.acked) - before
	c.marks = append(c.marks, mark{time.Now(), n})
	l.progress(n)
}

// problems is everything that makes the figures of this load worthless.
func (l *load) problems() []string {
	problems := l.ledger.violations(int(l.trouble.unsure.Load()))
	if n := l.trouble.count.Load(); n > 0 {
		problems = append(problems, fmt.Sprintf("%d calls failed, the first: %v", n, l.trouble.first))
	}
	return problems
}

// trouble counts calls that failed and keeps the first, because the others usually say the same.
type trouble struct {
	count  atomic.Int64
	unsure atomic.Int64 // jobs that may or may not have been stored: their enqueue got no answer, or a 5xx
	mu     sync.Mutex
	first  error
}

// note counts err unless it is nil, and slows its client down a little.
func (t *trouble) note(err error) {
	if err == nil {
		return
	}
	t.count.Add(1)
	t.mu.Lock()
	if t.first == nil {
		t.first = err
	}
	t.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
}

// noteEnqueue is note for an enqueue of n jobs.
func (t *trouble) noteEnqueue(err error, n int) {
	var call *callError
	if err != nil && (!errors.As(err, &call) || call.status == 0 || call.status >= 500) {
		t.unsure.Add(int64(n))
	}
	t.note(err)
}
