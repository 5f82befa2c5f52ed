package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

const (
	// maxFailures is the number of failed calls after which a load gives up: the server is down or refuses everything.
	maxFailures = 200
	// maxCalls limits one measurement by count, whatever its duration, so that memory and database stay bounded.
	maxCalls = 1_000_000
	// batchConns is how many connections send batches: enough to keep the cores busy that decode them.
	batchConns = 4
)

// load is one queue that nothing else uses, the clients that work on it, and what they saw. The fields jobs, latency and acks are
// added up from the clients when these have stopped; the atomic ones and failures are shared while they run.
type load struct {
	*runner
	target target
	bodies bodies

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
	queue := "bench-" + strings.ReplaceAll(name, "_", "-") + "-" + uuid.NewString()[:8] // names of queues have no _
	return &load{runner: r, target: r.target, bodies: newBodies(queue, r.cfg.ArgsBytes, 0)}
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

// perJob are the metrics of a span in which n things were done: their rate, the times of their calls, and their processor time.
func (s span) perJob(rate string, n int, times ...metric) []metric {
	return slices.Concat([]metric{{rate, float64(n) / s.seconds()}}, times, s.cpu.perJob(n))
}

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
			c := newClient(t, fmt.Sprintf("%s-%s-%d", l.bodies.queue, g.role, i), l.bodies)
			clients, works = append(clients, c), append(works, g.work)
			if _, err := c.do(opConnect); err != nil { // no measurement includes a dial
				return span{}, err
			}
		}
	}
	var done sync.WaitGroup
	barrier := make(chan struct{})
	for i, c := range clients {
		done.Go(func() {
			<-barrier
			works[i](c)
		})
	}
	before := l.private.cpuTime()
	s := span{start: time.Now()}
	l.lastProgress.Store(s.start.UnixNano())
	l.emptyFetches.Store(0)
	close(barrier)
	done.Wait()
	s.end = time.Now()
	s.cpu = l.private.cpuTime().minus(before)
	for _, c := range clients {
		c.close()
		l.jobs.enqueued = append(l.jobs.enqueued, c.enqueued...)
		l.jobs.fetched = append(l.jobs.fetched, c.fetched...)
		l.jobs.acked = append(l.jobs.acked, c.acked...)
		l.acks = append(l.acks, c.acks...)
		for o := range c.latency {
			l.latency[o] = append(l.latency[o], c.latency[o]...)
		}
	}
	return s, nil
}

// closedLoop has each of n clients make one call after the other, for --duration in all. A slow server gets fewer calls, so
// their latency is that at the rate which is reached. It also returns how many calls succeeded.
func (l *load) closedLoop(ctx context.Context, n int, call func(*client) error) (span, int, error) {
	more := l.limit()
	var succeeded atomic.Int64
	s, err := l.run(group{role: "producer", n: n, work: func(c *client) {
		for l.mayContinue(ctx) && more() {
			err := call(c)
			l.failures.addEnqueue(err, 1)
			if err == nil {
				succeeded.Add(1)
			}
		}
	}})
	return s, int(succeeded.Load()), err
}

// limit allows maxCalls calls, until --duration from the first of them is over. The first caller starts the clock,
// because connecting is not part of the measurement.
func (r *runner) limit() func() bool {
	var used, started atomic.Int64
	return func() bool {
		now := time.Now().UnixNano()
		started.CompareAndSwap(0, now)
		return used.Add(1) <= maxCalls && now-started.Load() < int64(r.cfg.Duration)
	}
}

// traffic is producers, and workers beside them until all jobs are done. Workers must read running first: a job is counted
// before its producer stops, so with running at 0 the number of enqueued jobs is final.
type traffic struct {
	producers, workers int                             // on each node
	next               func() (due time.Time, ok bool) // waits until the next enqueue is due; false: there is none
	times              *timeline                       // nil: not of interest
	nodes              []target                        // beside that of the load
	running, enqueued  atomic.Int64
}

// runTraffic has workers fetch ten jobs at a time, waiting for them, and acknowledge them one by one, as workers do that run one
// job at a time.
func (l *load) runTraffic(ctx context.Context, t *traffic) (span, error) {
	l.bodies.waitMS = l.cfg.WaitMS
	producer := func(c *client) {
		defer t.running.Add(-1)
		for l.mayContinue(ctx) {
			due, ok := t.next()
			if !ok {
				return
			}
			if err := c.enqueueOne(); err != nil {
				l.failures.addEnqueue(err, 1)
				continue
			}
			t.enqueued.Add(1)
			if t.times != nil {
				t.times.recordEnqueue(c.enqueued[len(c.enqueued)-1], due)
			}
		}
	}
	worker := func(c *client) {
		for l.mayContinue(ctx) {
			jobs := l.fetch(c, 10)
			if len(jobs) > 0 {
				if t.times != nil {
					t.times.recordFetch(jobs)
				}
				l.ackAll(c, jobs, false)
				continue
			}
			if t.running.Load() == 0 && (l.acked.Load() >= t.enqueued.Load() || l.stalled()) {
				return
			}
		}
	}
	groups := []group{{role: "producer", n: t.producers, work: producer}, {role: "worker", n: t.workers, work: worker}}
	for i := range t.nodes {
		groups = append(groups, group{fmt.Sprintf("producer%d", i+2), t.producers, producer, &t.nodes[i]},
			group{fmt.Sprintf("worker%d", i+2), t.workers, worker, &t.nodes[i]})
	}
	t.running.Store(int64(t.producers * (1 + len(t.nodes))))
	return l.run(groups...)
}

// fill enqueues n jobs by batch calls.
func (l *load) fill(ctx context.Context, n int) (span, error) {
	left := newBudget(n)
	return l.run(group{role: "producer", n: batchConns, work: func(c *client) {
		for l.mayContinue(ctx) {
			n := left.take(batchSize)
			if n == 0 {
				return
			}
			l.failures.addEnqueue(c.enqueueBatch(n), n)
		}
	}})
}

// preload fills the queue before a measurement. Any failed call is an error, because the measurement would be worthless.
// The times of filling are forgotten, so that they are not part of the figure.
func (l *load) preload(ctx context.Context, n int) error {
	if _, err := l.fill(ctx, n); err != nil {
		return err
	}
	l.resetTimes()
	if l.failures.count.Load() > 0 {
		return l.failures.first
	}
	return nil
}

// resetTimes drops all times so far, so that those of filling a queue do not count for emptying it.
func (l *load) resetTimes() {
	l.latency = [opCount][]time.Duration{}
	l.acks = nil
}

// budget is a number of jobs that clients share.
type budget struct{ left atomic.Int64 }

func newBudget(n int) *budget {
	b := &budget{}
	b.giveBack(n)
	return b
}

// take gives up to n, and 0 when nothing is left.
func (b *budget) take(n int) int {
	for {
		left := b.left.Load()
		got := min(int64(n), left)
		if got <= 0 {
			return 0
		}
		if b.left.CompareAndSwap(left, left-got) {
			return int(got)
		}
	}
}

func (b *budget) giveBack(n int) { b.left.Add(int64(n)) }

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

// ackAll acknowledges what was fetched, one by one or in one call.
func (l *load) ackAll(c *client, jobs []jobID, batch bool) {
	if batch {
		l.ackAndFetch(c, jobs, 0)
		return
	}
	before := len(c.acked)
	for _, id := range jobs {
		l.failures.add(c.ack(id))
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

// markAcks records when the client's acks after the first `before` ones succeeded.
func (l *load) markAcks(c *client, before int) {
	n := len(c.acked) - before
	c.acks = append(c.acks, ackMark{time.Now(), n})
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

// waitForJobs pauses a worker after an empty fetch. It returns false if no job was acknowledged for too long.
func (l *load) waitForJobs() bool {
	if l.stalled() {
		return false
	}
	time.Sleep(2 * time.Millisecond)
	return true
}

// emptyQueue takes out, untimed, all jobs that are left. When none should be left it fetches once more: a job that the
// server delivers twice appears then. After it the lists of jobs are complete. Jobs that other fetches still have reserved are
// not found: the visibility timeout is longer than any run.
func (l *load) emptyQueue(ctx context.Context) error {
	l.bodies.waitMS = 0
	enqueued := int64(len(l.jobs.enqueued))
	l.acked.Store(int64(len(l.jobs.acked)))
	_, err := l.run(group{role: "cleanup", n: batchConns, work: func(c *client) {
		for l.mayContinue(ctx) {
			jobs := l.fetch(c, batchSize)
			if len(jobs) > 0 {
				l.ackAll(c, jobs, true)
			} else if l.acked.Load() >= enqueued || !l.waitForJobs() {
				return
			}
		}
	}})
	return err
}

// command makes one call about the load's queue.
func (l *load) command(o op, path, body string) error {
	_, err := l.run(group{role: "admin", n: 1, work: func(c *client) {
		_, err := c.doAt(o, "/ojs/v1/queues/"+l.bodies.queue+path, body)
		l.failures.add(err)
	}})
	return err
}

// waitFor waits until nothing is missing, or nothing has arrived for the stall timeout.
func (l *load) waitFor(ctx context.Context, missing func() int) {
	last, lastProgress := missing(), time.Now()
	for last > 0 && ctx.Err() == nil && time.Since(lastProgress) < l.cfg.stallTimeout {
		time.Sleep(5 * time.Millisecond)
		if now := missing(); now < last {
			last, lastProgress = now, time.Now()
		}
	}
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

// problems reports failed calls beyond the first `before` ones.
func (f *failures) problems(before int) []string {
	n := int(f.count.Load()) - before
	if n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d calls failed, the first: %v", n, f.first)}
}

// jobLists are the jobs of one queue as the clients saw them, or one client's part of them. A list has a job as often as it
// happened.
type jobLists struct {
	enqueued, fetched, acked []jobID
}

// problems compares the three lists: each acknowledged enqueue must have been fetched exactly once, and its ack must
// have succeeded. unanswered is the number of enqueues without an answer: that many unknown jobs may appear.
// It counts up to 255 times for each job.
func (l *jobLists) problems(unanswered int) []string {
	const enqueued, fetched, acked = 0, 1, 2
	jobs := make(map[jobID][3]uint8, len(l.enqueued))
	for list, ids := range [][]jobID{enqueued: l.enqueued, fetched: l.fetched, acked: l.acked} {
		for _, id := range ids {
			n := jobs[id]
			n[list] = max(n[list], n[list]+1)
			jobs[id] = n
		}
	}
	var sameID, lost, twice, unknown, unacked problemCounter
	for id, n := range jobs {
		sameID.countIf(n[enqueued] > 1, id)
		lost.countIf(n[enqueued] > 0 && n[fetched] == 0, id)
		twice.countIf(n[fetched] > 1, id)
		unknown.countIf(n[enqueued] == 0, id)
		unacked.countIf(n[fetched] > 0 && n[acked] == 0, id)
	}
	unknown.n = max(0, unknown.n-unanswered)
	return slices.Concat(
		sameID.problem("got an id that another job has"),
		lost.problem("lost: enqueue acknowledged, never fetched"),
		twice.problem("delivered twice"),
		unknown.problem("fetched that were never enqueued"),
		unacked.problem("fetched whose ack did not succeed"))
}

// problemCounter counts the jobs with one kind of problem and keeps one of them as an example.
type problemCounter struct {
	n       int
	example jobID
}

func (p *problemCounter) countIf(wrong bool, id jobID) {
	if wrong {
		p.n++
		p.example = id
	}
}

// problem is a sentence if any job was counted.
func (p *problemCounter) problem(what string) []string {
	if p.n == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d jobs %s, e.g. %s", p.n, what, p.example)}
}

func problemIf(n int, what string) []string {
	if n <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d %s", n, what)}
}
