package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// maxFailures is the number of failed calls after which a load gives up: the server is down or refuses everything.
const maxFailures = 200

// load is one queue that nothing else uses, the clients that work on it, and what they saw. The fields behind server are added
// up from the clients when these have stopped; the atomic ones and failures are shared while they run.
type load struct {
	cfg    config
	target target
	bodies bodies
	db     *database
	server *processes

	jobs         jobLists
	failures     failures
	latency      [opCount][]time.Duration
	acks         []ackMark
	lastProgress atomic.Int64 // unix ns of the latest ack, or of the start
	emptyFetches atomic.Int64 // since lastProgress
	acked        atomic.Int64
}

// newLoad makes a load with a fresh queue. Its fetches do not wait for jobs unless bodies.waitMS is set.
func (r *runner) newLoad(name string) *load {
	queue := "bench-" + name + "-" + randomSuffix()
	return &load{cfg: r.cfg, target: r.target, db: r.db, server: r.private.processes(), bodies: newBodies(queue, r.cfg.ArgsBytes, 0)}
}

// randomSuffix keeps the queues of different runs apart.
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
	on   *target // nil: the target of the load
}

// span is when a piece of work began and ended, and what the server used meanwhile.
type span struct {
	start, end time.Time
	cpu        cpuTime
}

func (s span) seconds() float64 { return max(s.end.Sub(s.start).Seconds(), 1e-9) }

// run connects the clients of all groups, starts them together, waits until all are done, and adds up what they saw.
// An error means that a connection could not be made; nothing has run then. Failed calls are counted and are no error.
func (l *load) run(groups ...group) (span, error) {
	var clients []*client
	var works []func(*client)
	for _, g := range groups {
		t := l.target
		if g.on != nil {
			t = *g.on
		}
		for i := range g.n {
			clients = append(clients, newClient(t, fmt.Sprintf("%s-%s-%d", l.bodies.queue, g.role, i), l.bodies))
			works = append(works, g.work)
		}
	}
	if err := connect(clients); err != nil {
		return span{}, err
	}
	s := l.startTogether(clients, works)
	for _, c := range clients {
		c.close()
		l.add(&c.record)
	}
	return s, nil
}

// connect opens every connection beforehand, so that no measurement includes a dial.
func connect(clients []*client) error {
	for _, c := range clients {
		if _, err := c.do(opConnect); err != nil {
			return err
		}
	}
	return nil
}

// startTogether runs works[i] with clients[i], all from the same moment, and returns when all have ended.
func (l *load) startTogether(clients []*client, works []func(*client)) span {
	var done sync.WaitGroup
	barrier := make(chan struct{})
	for i, c := range clients {
		done.Go(func() {
			<-barrier
			works[i](c)
		})
	}
	before := l.server.cpuTime()
	s := span{start: time.Now()}
	l.lastProgress.Store(s.start.UnixNano())
	l.emptyFetches.Store(0)
	close(barrier)
	done.Wait()
	s.end = time.Now()
	s.cpu = l.server.cpuTime().minus(before)
	return s
}

func (l *load) add(r *record) {
	l.jobs.add(r.jobLists)
	l.acks = append(l.acks, r.acks...)
	for o := range r.latency {
		l.latency[o] = append(l.latency[o], r.latency[o]...)
	}
}

// resetTimes drops all times so far, so that those of filling a queue do not count for emptying it.
func (l *load) resetTimes() {
	l.latency = [opCount][]time.Duration{}
	l.acks = nil
}

// mayContinue reports whether the clients should make another call.
func (l *load) mayContinue(ctx context.Context) bool {
	return ctx.Err() == nil && l.failures.count.Load() < maxFailures
}

// fetch takes up to n jobs, and counts a failed call.
func (l *load) fetch(c *client, n int) []jobID {
	jobs, err := c.fetch(n)
	l.failures.add(err)
	if len(jobs) == 0 {
		l.emptyFetches.Add(1)
	}
	return jobs
}

// progress records that n more jobs were acknowledged.
func (l *load) progress(n int) {
	l.emptyFetches.Store(0)
	l.lastProgress.Store(time.Now().UnixNano())
	l.acked.Add(int64(n))
}

// stalled reports whether to give up waiting for jobs that are still missing: no job was acknowledged for a long time,
// although the server was asked often enough. Time alone would not do, because this process may itself get no CPU.
func (l *load) stalled() bool {
	const enough = 10
	return l.emptyFetches.Load() >= enough && time.Since(time.Unix(0, l.lastProgress.Load())) > l.cfg.stallTimeout
}

// ackAll acknowledges what was fetched, one by one or in one call.
func (l *load) ackAll(c *client, jobs []jobID, batch bool) {
	before := len(c.acked)
	if batch {
		_, err := c.ackBatch(jobs, 0)
		l.failures.add(err)
	} else {
		for _, id := range jobs {
			l.failures.add(c.ack(id))
		}
	}
	l.markAcks(c, before)
}

// ackAndFetch acknowledges what was fetched and takes up to n more jobs in the same call.
func (l *load) ackAndFetch(c *client, jobs []jobID, n int) []jobID {
	before := len(c.acked)
	more, err := c.ackBatch(jobs, n)
	l.failures.add(err)
	l.markAcks(c, before)
	return more
}

func (l *load) markAcks(c *client, before int) {
	n := len(c.acked) - before
	c.acks = append(c.acks, ackMark{time.Now(), n})
	l.progress(n)
}

// problems is everything that makes the figures of this load unusable.
func (l *load) problems() []string {
	problems := l.jobs.problems(int(l.failures.unanswered.Load()))
	if n := l.failures.count.Load(); n > 0 {
		problems = append(problems, fmt.Sprintf("%d calls failed, the first: %v", n, l.failures.first))
	}
	return problems
}

// failures counts calls that failed. It keeps the first error only, because the others are usually the same.
// mu guards first; it may be read without it when the clients have stopped.
type failures struct {
	count      atomic.Int64
	unanswered atomic.Int64 // jobs whose enqueue got no answer or a 5xx: they may be stored, or not
	mu         sync.Mutex
	first      error
}

// add counts err unless it is nil. It pauses, so that a client whose calls all fail does not make thousands a second.
func (f *failures) add(err error) {
	if err == nil {
		return
	}
	f.count.Add(1)
	f.mu.Lock()
	if f.first == nil {
		f.first = err
	}
	f.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
}

// addEnqueue is add for an enqueue of n jobs. A refusal (4xx) stored nothing, so no job of it can appear.
func (f *failures) addEnqueue(err error, n int) {
	var call *callError
	if err != nil && (!errors.As(err, &call) || call.status == 0 || call.status >= 500) {
		f.unanswered.Add(int64(n))
	}
	f.add(err)
}
