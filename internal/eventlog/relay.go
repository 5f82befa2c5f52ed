package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/loop"
)

// RelayConfig says how events are shown and how fast. The zero value of a field means its default.
type RelayConfig struct {
	// Events has the {service} of event sources (docs/reference/events.md, Source). All nodes should have the same.
	Events config.Events

	// Pass begins the span of a pass; the function that it returns ends it, with the number of published events. nil: there are no spans.
	Pass func(ctx context.Context) (context.Context, func(published int, err error))

	// GapDelay is how long a missing number may hold up those behind it. 25 ms; negative: not at all. A longer delay lets slow
	// transactions keep their place in the order of numbers, at the price of delaying everybody's events; a shorter one makes
	// more late rows, each of which is written a second time.
	GapDelay time.Duration

	// HasReaders tells whether this node reads the log for somebody, who then waits less for each event. It is called on the goroutine of
	// the relay, as the two below are, and none of them may block. nil: nobody reads.
	HasReaders func() bool

	// AfterPublish is called after each pass that published something. nil: nobody is told.
	AfterPublish func()

	// Counts gets the counts of each pass that published something. nil: nobody counts, and nothing is parsed.
	Counts func(Counts)

	// Rest is the least time from one pass to the next under load; a pass publishes what has accumulated. 10 ms.
	// Less rest means more passes with fewer events each, and a pass costs about the same for one event as for twenty.
	Rest time.Duration

	// PollInterval is how often an idle relay checks for events that were written without waking it. 60 s.
	// Every commit of a node wakes its relay, and ojs.enqueue wakes all unless it is told not to. Polls find what was written
	// without waking one, or by a node that stopped before its relay could run.
	PollInterval time.Duration
}

func (c RelayConfig) withDefaults() RelayConfig {
	if c.GapDelay == 0 {
		c.GapDelay = 25 * time.Millisecond
	}
	c.GapDelay = max(c.GapDelay, 0)
	if c.Rest == 0 {
		c.Rest = 10 * time.Millisecond
	}
	if c.PollInterval == 0 {
		c.PollInterval = time.Minute
	}
	if c.Pass == nil {
		c.Pass = func(ctx context.Context) (context.Context, func(int, error)) { return ctx, func(int, error) {} }
	}
	if c.HasReaders == nil {
		c.HasReaders = func() bool { return false }
	}
	if c.AfterPublish == nil {
		c.AfterPublish = func() {}
	}
	return c
}

// Relay publishes committed events: it moves the watermark, notifies, and keeps the counts. Every node runs one, and a
// lock in the database lets one at a time work. An idle relay issues one statement per PollInterval. The lock is held for the
// length of one transaction, so there is no leader: the node whose relay wakes next publishes for all. If a node stops halfway,
// its transaction is rolled back and the next pass of any node begins at the same watermark.
type Relay struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals RelayTestSignals

	config RelayConfig
	pool   *pgxpool.Pool
	span   int64 // numbers a pass reads

	wake chan struct{}
	// woken and progress.reached together tell whether what this node has committed is published: reached lags behind woken
	// until then.
	woken    atomic.Uint64 // calls of Wake
	waiting  atomic.Int32  // calls of waitCaughtUp in progress
	heard    atomic.Int64  // clock.Running when BeginRest was called last
	progress progress
	status   relayStatus

	// Only the running goroutine uses these. They are what it knows of the database; it forgets them after an error,
	// because the next connection may lead to another server.
	configured    bool
	opened        int64  // connections of the pool at the latest check of the epoch
	scanned       string // the snapshot of the last scan whose gaps were all dealt with
	observations  observations
	noNotifyUntil time.Time // the notification queue is full
	owesNotify    bool      // passes have published without notifications since
}

// RelayTestSignals are set up by tests with Init.
type RelayTestSignals struct {
	Published testsignal.TestSignal[int64] // the watermark, after a pass that published something
	Polled    testsignal.TestSignal[bool]  // whether a poll of the idle relay found work
}

// Init makes the signals usable.
func (s *RelayTestSignals) Init(tb testutil.TestingTB) {
	s.Published.Init(tb)
	s.Polled.Init(tb)
}

// NewRelay returns a relay; Start it.
func NewRelay(archetype *baseservice.Archetype, pool *pgxpool.Pool, c RelayConfig) *Relay {
	return baseservice.Init(archetype, &Relay{
		config: c.withDefaults(), pool: pool, span: maxNumbers, wake: make(chan struct{}, 1), scanned: noSnapshot,
	})
}

// Wake runs a pass soon, because this node or an application in SQL has committed events. It does not block.
// The number is raised before the signal, so that the pass which takes the signal counts this call.
func (r *Relay) Wake() {
	r.woken.Add(1)
	loop.Signal(r.wake)
}

// BeginRest records that the relay of some node has published. It does not block. The next rest of this relay begins then,
// because that pass has published this node's events too.
func (r *Relay) BeginRest() { r.heard.Store(int64(clock.Running())) }

// Start begins to publish and returns at once.
func (r *Relay) Start(ctx context.Context) error {
	loop.Run(ctx, &r.BaseStartStop, r.run)
	return nil
}

// run makes a pass for every wake-up, after the rest that the latest pass asks for, and when a missing number may have appeared. Between
// polls an idle relay waits for wake-ups only.
func (r *Relay) run(ctx context.Context) {
	r.forget()
	p := pace{config: r.config}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			r.drain(ctx)
			return
		case <-r.wake:
			r.rest(ctx, &p)
		case <-timer.C:
			r.notifyOwed(ctx)
			if p.idle && !r.poll(ctx) {
				timer.Reset(r.untilOwed(r.config.PollInterval))
				continue
			}
		}
		timer.Reset(r.untilOwed(r.step(ctx, &p)))
	}
}

// rest lets more events accumulate before the next pass. It looks again in steps of Rest, because a reader that comes shortens
// the rest, and the notification of another node extends it.
func (r *Relay) rest(ctx context.Context, p *pace) {
	for ctx.Err() == nil {
		now, heard := time.Now(), clock.Running()-time.Duration(r.heard.Load())
		left := p.restLeft(now.Add(-heard), now, r.waiting.Load() > 0 || r.config.HasReaders())
		if left <= 0 {
			return
		}
		serviceutil.CancellableSleep(ctx, min(left, r.config.Rest)) // meanwhile a reader may come
	}
}

// step runs one pass and returns when the next one is due without a wake-up.
func (r *Relay) step(ctx context.Context, p *pace) time.Duration {
	select {
	case <-r.wake: // Wake is called after a commit, so this pass reads what was committed
	default:
	}
	// Read before the pass begins: commits that are announced from here on may be invisible to it.
	woken := r.woken.Load()
	started := time.Now()
	// Stop does not cancel a pass that has begun.
	pass, end := r.config.Pass(context.WithoutCancel(ctx))
	done, err := r.runOnce(pass)
	end(done.published, err)
	r.status.record(done, err)
	if err != nil {
		r.failed(ctx, err)
	}
	if done.caughtUp() {
		r.progress.reach(woken)
	}
	if done.published > 0 {
		if r.config.Counts != nil {
			r.config.Counts(done.counts)
		}
		r.config.AfterPublish()
		r.TestSignals.Published.Signal(done.watermark)
	}
	return p.next(done, err, time.Since(started))
}

// drain publishes the last commits of this node before it stops, so that they do not wait for another node's relay.
// Three passes are enough for what fits into them; the rest is left to the relays of other nodes or to the next start. It does
// not wait for missing numbers, and gives up after the first error, so that stopping stays fast.
func (r *Relay) drain(ctx context.Context) {
	p := pace{config: r.config}
	for range 3 {
		if r.progress.reached.Load() >= r.woken.Load() || p.failures > 0 {
			return
		}
		r.step(ctx, &p)
	}
}

// poll is the idle relay's only statement. It reports whether a pass would have work. An error counts as dirty: the pass that
// follows fails too and then waits by the rules of pace.
func (r *Relay) poll(ctx context.Context) (dirty bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	row, err := dbsqlc.New(r.pool).RelayIsDirty(ctx)
	if err != nil {
		r.failed(ctx, err)
		return true
	}
	r.status.watermark.Store(row.Watermark)
	r.TestSignals.Polled.Signal(row.Dirty)
	return row.Dirty
}

// failed forgets first: the state of memory is only valid for the server on which it was read.
func (r *Relay) failed(ctx context.Context, err error) {
	r.forget()
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "54000" { // program_limit_exceeded: too many notifications
		// A session that LISTENs and stays in a transaction fills the queue. Publishing goes on without notifications, and
		// listeners find what they missed in the table, as after a reconnect.
		r.noNotifyUntil = r.Time.Now().Add(noNotifyTime)
		r.Logger.ErrorContext(ctx, r.Name+": the notification queue of PostgreSQL is full; publishing without notifications. "+
			"End the session that LISTENs inside a long transaction (pg_stat_activity)",
			slog.Duration("for", noNotifyTime), slog.Any("error", err))
		return
	}
	r.Logger.ErrorContext(ctx, r.Name+": pass failed", slog.Any("error", err))
}

// noNotifyTime is how long the relay publishes without notifications after the queue was full. Each try while the queue is full
// fails a whole pass at its commit, so tries must be rare; every second of it delays what listeners get.
const noNotifyTime = 10 * time.Second

// untilOwed is the pause before the next turn of run, shortened to the end of noNotifyTime if a notification is owed.
func (r *Relay) untilOwed(pause time.Duration) time.Duration {
	if !r.owesNotify {
		return pause
	}
	return min(pause, max(0, r.noNotifyUntil.Sub(r.Time.Now())))
}

// notifyOwed tells the listeners of all nodes to read the log, once notifications are sent again. Without it, streams of other
// nodes would get what was published meanwhile only with the next event.
func (r *Relay) notifyOwed(ctx context.Context) {
	if !r.owesNotify || r.Time.Now().Before(r.noNotifyUntil) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	if err := dbsqlc.New(r.pool).RelayNotifyLost(ctx); err != nil {
		r.failed(ctx, err)
		r.noNotifyUntil = r.Time.Now().Add(noNotifyTime) // whatever the error, so that it is not tried without a pause
		return
	}
	r.owesNotify = false
}

// forget costs one statement for the settings, one scan of all gaps, and a new delay for numbers that are missing.
func (r *Relay) forget() {
	r.configured, r.scanned, r.observations = false, noSnapshot, nil
}

const (
	lockRetry   = 5 * time.Millisecond   // after the first pass that found the lock taken; longer each time, up to shortPause
	shortPause  = 100 * time.Millisecond // after the first error, or while the transaction of a passed number is open; up to longPause
	longPause   = time.Second
	maxRest     = 50 * time.Millisecond // so that no caller waits longer, however slow the latest pass was
	restFactor  = 5                     // passes take a sixth of the time at most, or half of it while somebody reads the log
	gapInterval = 5 * time.Millisecond  // between looks for a missing number
)

// pace decides when the relay runs the next pass by itself. Commits of its own node wake it earlier, but never before the
// rest after a pass is over. It belongs to the running goroutine. ended uses the node's clock, but only differences on this
// node are computed.
type pace struct {
	config RelayConfig
	ended  time.Time     // of the latest pass
	took   time.Duration // the latest pass
	jitter float64       // 1 to 1.25
	idle   bool          // nothing is pending: the next run may be a poll

	failures, notLocked, gapPasses int // in a row
}

// restLeft is how long the relay should still rest. A pass costs about the same for one event as for twenty, and under a pinned
// xmin every update of the same rows makes the next one slower: there should be few, but more if readers of this node wait.
//
// heard is when a relay of any node last notified. That pass has published the commits of this node too, so it counts like one
// of this relay: nodes share the passes. The random part keeps them from waking together. The rest is bounded, because callers
// of this node wait for a pass of its own relay. The last bound counts from this relay's own pass: a notification of other
// nodes may put it off, but by maxRest at most.
func (p *pace) restLeft(heard, now time.Time, readers bool) time.Duration {
	rest := max(p.config.Rest, restFactor*p.took)
	if readers {
		rest = max(p.config.Rest-p.took, p.took)
	}
	rest = min(time.Duration(p.jitter*float64(rest)), maxRest)
	until := p.ended.Add(rest)
	if turn := heard.Add(rest); turn.After(until) {
		until = turn
	}
	if last := p.ended.Add(maxRest); until.After(last) {
		until = last
	}
	return until.Sub(now)
}

// next takes the outcome of a pass and how long it took. An error, a lock that was taken and an open gap each have a count of
// their own, and any other outcome sets all to zero.
func (p *pace) next(done pass, err error, took time.Duration) time.Duration {
	p.idle = false
	p.ended, p.took, p.jitter = time.Now(), took, 1+rand.Float64()/4
	failures, notLocked, gapPasses := p.failures, p.notLocked, p.gapPasses
	p.failures, p.notLocked, p.gapPasses = 0, 0, 0
	switch {
	case err != nil:
		p.failures = failures + 1
		return backoff(shortPause, failures, longPause)
	case !done.locked:
		p.notLocked = notLocked + 1
		return backoff(lockRetry, notLocked, shortPause)
	case done.more:
		return 0
	case done.wait > 0:
		// A rollback sends no wake-up and may become visible before the delay is over.
		return min(done.wait, gapInterval)
	case done.gaps:
		// A long transaction is open. Its commit wakes the relay, its rollback does not.
		p.gapPasses = gapPasses + 1
		return backoff(shortPause, gapPasses, longPause)
	default:
		p.idle = true
		return p.config.PollInterval
	}
}

// backoff doubles the pause with each time. The shift is bounded, because the count is not.
func backoff(first time.Duration, times int, limit time.Duration) time.Duration {
	return min(first<<min(times, 10), limit)
}

// RelayStatus is how far a relay has come, for health and metrics. Watermark is that of this node's last pass that had the
// lock, or of its last poll, and Head that of the last such pass; another node may have published since.
type RelayStatus struct {
	Watermark int64         // published up to here
	Head      int64         // the highest number that a pass has read
	BehindFor time.Duration // how long events have been visible that this relay could not publish; 0: none
	Err       error         // of the last pass
}

// relayStatus has a mu that guards behind and err. behind is when the first pass ran that did not catch up; zero: the latest one did.
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

// waitCaughtUp waits for a pass that started after the last commit of this node and published all that was visible to it.
// While it waits, the relay rests less (Relay.rest).
func (r *Relay) waitCaughtUp(ctx context.Context) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	for woken := r.woken.Load(); r.progress.reached.Load() < woken; {
		// The channel is taken before the second Load, or a reach between both would be missed.
		r.progress.mu.Lock()
		if r.progress.changed == nil {
			r.progress.changed = make(chan struct{})
		}
		next := r.progress.changed
		r.progress.mu.Unlock()
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
