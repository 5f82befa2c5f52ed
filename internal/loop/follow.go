package loop

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// A Value has the copy in memory of some rows: the configuration of queues, the names of schemas, the maintenance switch. A Follower reads
// it again after changes. How changes are counted is the matter of the Value's owner, which reads it.

const (
	// Settled is how long after its commit a change holds on every node.
	Settled = time.Second

	// lookAfter is the age of the latest read from which the Follower reads again, without a caller that waits for it.
	lookAfter = Settled / 2
)

// Read reads the value with q. known is what was read last, nil if nothing was; a read that finds it unchanged returns it.
type Read[T any] func(ctx context.Context, q *dbsqlc.Queries, known *T) (*T, error)

// ValueConfig says how a Value is read, and who is told of it.
type ValueConfig[T any] struct {
	Read Read[T]

	// Found is called when a read has found something new, before any read follows. before is nil if nothing was known. What waits because
	// of the old value goes on then: a notification comes too early for it. It must not block. nil: nobody is told.
	Found func(before, now *T)

	// Listening tells whether notifications arrive. nil: they do not.
	Listening func() bool
}

// Value is what a node knows of rows that seldom change. It is replaced as a whole, and what View and the others return does not change.
// Use NewValue.
//
// A notification (Changed) has the Follower read again; in case one was lost, it also reads while there are callers. A node without
// notifications reads twice a second. Only callers without a transaction wait for the read of another caller: one in a transaction has a
// connection, and the read may wait for that.
type Value[T any] struct {
	db     *pg.DB
	config ValueConfig[T]

	began time.Time
	last  atomic.Pointer[reading[T]]
	turn  chan struct{} // has an element while a caller without transaction reads

	wake  chan struct{} // wakes the Follower
	stale atomic.Bool   // the value has changed since the latest read of the Follower
}

// reading is what a read has found.
type reading[T any] struct {
	value *T            // nil: nothing was read yet
	at    time.Duration // when the read began, since Value.began: the value has every change that was committed before
}

// NewValue returns a value that was not read yet.
func NewValue[T any](db *pg.DB, config ValueConfig[T]) *Value[T] {
	if config.Found == nil {
		config.Found = func(*T, *T) {}
	}
	if config.Listening == nil {
		config.Listening = func() bool { return false }
	}
	v := &Value[T]{db: db, config: config, began: time.Now(), turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	v.last.Store(&reading[T]{})
	return v
}

// Latest is what was read last; nil: nothing yet. It is for callers that cannot wait, and does not have the Follower read.
func (v *Value[T]) Latest() *T { return v.last.Load().value }

// Poll has the Follower read again if the latest read is old. It does not block.
func (v *Value[T]) Poll() {
	if v.age(v.last.Load()) > lookAfter {
		v.notify()
	}
}

// View is what is known. It has every change that was committed Settled ago, unless its notification was lost: then the Follower reads it
// for the next caller. The caller must be in no transaction; see InTx.
func (v *Value[T]) View(ctx context.Context) (*T, error) {
	last := v.last.Load()
	age := v.age(last)
	switch {
	case last.value == nil || age > Settled && !v.config.Listening():
		return v.readSince(ctx, v.now()-Settled)
	case age > lookAfter:
		v.notify()
	}
	return last.value, nil
}

// InTx is what was read last. What was never read is read with q, the connection of the caller's transaction, without waiting for another
// caller: all connections could be in transactions that wait for one without.
func (v *Value[T]) InTx(ctx context.Context, q *dbsqlc.Queries) (*T, error) {
	last := v.last.Load()
	if last.value != nil {
		v.Poll()
		return last.value, nil
	}
	ctx, cancel := v.db.Bounded(ctx)
	defer cancel()
	began := v.now()
	value, err := v.config.Read(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	return v.keep(&reading[T]{value, began}), nil
}

// Read reads what is committed now. The caller must be in no transaction.
func (v *Value[T]) Read(ctx context.Context) (*T, error) { return v.readSince(ctx, v.now()) }

// Changed is called when the value may have changed on any node, or when notifications may be lost. It does not block.
func (v *Value[T]) Changed() {
	v.stale.Store(true)
	v.notify()
}

// Forget drops what is known, and what was read before but is not known yet.
func (v *Value[T]) Forget() { v.keep(&reading[T]{nil, v.now()}) }

func (v *Value[T]) now() time.Duration { return time.Since(v.began) }

func (v *Value[T]) age(last *reading[T]) time.Duration { return v.now() - last.at }

func (v *Value[T]) notify() { Signal(v.wake) }

// readSince reads, unless a read has begun since then when the caller's turn has come. A wait for the turn ends with the time limit of
// statements.
func (v *Value[T]) readSince(ctx context.Context, since time.Duration) (*T, error) {
	ctx, cancel := v.db.Bounded(ctx)
	defer cancel()
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	last, began := v.last.Load(), v.now()
	if last.value != nil && last.at > since {
		return last.value, nil
	}
	value, err := v.config.Read(ctx, v.db.Q, last.value)
	if err != nil {
		return nil, err
	}
	kept := v.keep(&reading[T]{value, began})
	if kept != last.value {
		v.config.Found(last.value, kept)
	}
	return kept, nil
}

// keep remembers what was read, unless a read that began later has found something. It returns what is known then; for a value that was
// forgotten meanwhile, what was read.
func (v *Value[T]) keep(r *reading[T]) *T {
	for {
		last := v.last.Load()
		if last.at > r.at {
			if last.value == nil {
				return r.value
			}
			return last.value
		}
		if v.last.CompareAndSwap(last, r) {
			return r.value
		}
	}
}

// Follower reads a Value again, so that callers need not wait for it. Every node runs one for each value. While notifications arrive it
// sends no query on a server on which nothing moves.
type Follower[T any] struct {
	baseservice.BaseService
	startstop.BaseStartStop

	value *Value[T]
	what  string
}

// NewFollower returns a follower of the value. what says in log lines what the value is.
func NewFollower[T any](archetype *baseservice.Archetype, value *Value[T], what string) *Follower[T] {
	return baseservice.Init(archetype, &Follower[T]{value: value, what: what})
}

// Start runs the loop until stopped. It reads at once, before the first caller.
func (f *Follower[T]) Start(ctx context.Context) error {
	Run(ctx, &f.BaseStartStop, f.loop)
	return nil
}

func (f *Follower[T]) loop(ctx context.Context) {
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	for ctx.Err() == nil {
		wake := f.value.wake
		if !f.look(ctx) {
			wake = nil // not before the next tick: callers would have a failing read repeated without a pause
		}
		f.wait(ctx, wake, tick.C)
	}
}

// wait returns when the value is to be read.
func (f *Follower[T]) wait(ctx context.Context, wake <-chan struct{}, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
			return
		case <-tick:
			if f.value.stale.Load() || !f.value.config.Listening() {
				return
			}
		}
	}
}

// look reads after a change, and else if the latest read is old: callers may have woken the follower for one that is done. It reports
// whether the value is known.
func (f *Follower[T]) look(ctx context.Context) bool {
	since := f.value.now()
	if !f.value.stale.Swap(false) {
		since -= lookAfter / 2
	}
	_, err := f.value.readSince(ctx, since)
	if err == nil || ctx.Err() != nil {
		return true
	}
	f.value.stale.Store(true)
	f.Logger.WarnContext(ctx, f.what+" not read; what was read last holds, and the next try is in half a second",
		slog.String("category", "error"), slog.Any("error", err))
	return false
}
