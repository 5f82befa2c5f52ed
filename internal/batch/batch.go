// Package batch owns group commit: it collects the concurrent callers of one operation and flushes them as one statement.
//
// A flush takes the calls that arrived while the previous one was in flight: a single caller does not wait, and load makes
// batches. A few callers are waited for, shortly, if they come back after each answer (see gather). There is no goroutine:
// the first caller, the leader, flushes for all waiting callers and then makes one of those that arrived meanwhile the
// leader, which saves a context switch per call.
//
// The package must never reorder calls that share a key, never answer before the flush has returned, and contain nothing
// about jobs or SQL.
package batch

import (
	"context"
	"sync"
	"time"
)

// Config describes one operation. Flush is required.
type Config[Req, Res any] struct {
	// Flush performs the operation for all requests and returns one result each, in order. An error means that none of
	// them took effect.
	//
	// It runs on the goroutine of one of the callers, with that caller's context without its end. It must set a time limit of its
	// own: callers are answered when it returns, not before.
	Flush func(ctx context.Context, reqs []Req) ([]Res, error)

	// Key returns the key of a request, for example its job. Requests with equal keys never share a flush, and the later one
	// sees the changes of the earlier one. A request with ok false shares a flush with any other. nil: ok is false.
	Key func(req Req) (key [16]byte, ok bool)

	// Weight returns the weight of a request. nil: 1.
	// It must not change while the request waits: run and rounds both ask for it.
	Weight func(req Req) int

	// Max bounds the weight of a flush. A heavier call is flushed alone. Default 1 000.
	Max int

	// Split reports whether a single request may have caused the error. Then both halves are flushed apart, so that an invalid
	// request fails alone. nil: never.
	// The halves are new calls of Flush, so n bad requests among m cost about n·log2(m) more of them.
	Split func(err error) bool

	// Retry reports whether a failed flush may be tried again, up to three times: after a deadlock or a serialization failure.
	// nil: never.
	// There is no pause between the tries.
	Retry func(err error) bool

	// Flushed is called after each flush with the number of its requests and its duration, including retries and halves. May
	// be nil.
	Flushed func(requests int, took time.Duration)
}

// gatherFraction is the part of a flush's time that the next one may wait for callers.
// A larger part would delay every caller of a cohort that does not come back, a smaller one would miss slow callers.
const gatherFraction = 4

// maxGathered is the largest cohort that is waited for. What a wait saves is the fixed cost of a statement, which matters
// while few calls share it: with 4 producers and 8 workers throughput was 1.2 times that without waiting, and Postgres used
// 0.8 times the processor time per job. Waiting for 32 callers of acks, half of which are fetching, gave 0.96.
const maxGathered = 16

// Batcher collects the calls of one operation.
//
// There are at most two flushes at a time. The zero value does not work. It has nothing to close: it holds no goroutine and no
// timer while nobody calls.
type Batcher[Req, Res any] struct {
	config Config[Req, Res]
	// A call goes back to it only when nothing refers to it any more: after its answer, by its own caller.
	calls sync.Pool

	mu sync.Mutex
	// In the order of arrival. Those whose callers lead are among them until a flush takes them.
	pending  []*call[Req, Res]
	weight   int // of pending
	flushing int // leaders, 0 to 2

	// cohort, ended and took are about the latest flush of either leader: gather only needs them to be about right.
	cohort   int           // callers that may come with the next flush: those of the latest one, and those that waited then
	ended    time.Time     // of the latest flush
	took     time.Duration // the latest flush
	complete chan struct{} // closed when cohort calls are pending; nil: nobody waits for that
}

// call is one caller with its requests.
type call[Req, Res any] struct {
	one    [1]Req // the request and result of Do, which needs no slices of its own
	oneRes [1]Res
	reqs   []Req
	res    []Res
	errs   []error // nil: none failed
	weight int     // of reqs

	// A leader is never woken by true again: it would be a second lead for one caller.
	leading bool // guarded by Batcher.mu
	// Capacity 1, so that a leader never waits for a caller. A call that does not lead gets one value; one that leads gets false
	// if the other leader has answered it.
	wake chan bool // true: take the lead; false: answered
}

// New returns a batcher for the operation.
func New[Req, Res any](config Config[Req, Res]) *Batcher[Req, Res] {
	if config.Max == 0 {
		config.Max = 1000
	}
	b := &Batcher[Req, Res]{config: config}
	b.calls.New = func() any { return &call[Req, Res]{wake: make(chan bool, 1)} }
	return b
}

// Do performs one request and returns its own outcome.
// It does not return early if ctx ends: the flush may have committed already.
func (b *Batcher[Req, Res]) Do(ctx context.Context, req Req) (Res, error) {
	c := b.calls.Get().(*call[Req, Res])
	c.one[0] = req
	c.reqs, c.res, c.errs = c.one[:], c.oneRes[:], nil
	b.run(ctx, c)

	res := c.res[0]
	var err error
	if c.errs != nil {
		err = c.errs[0]
	}
	// The pool must not keep requests and results alive.
	var noReq Req
	var noRes Res
	c.one[0], c.oneRes[0] = noReq, noRes
	b.calls.Put(c)
	return res, err
}

// DoMany performs the requests as if each were sent alone, in order. errs is nil if none failed.
// Rounds are calls of their own, one after the other, so requests of others may come between two requests with one key. A failure
// of one round does not stop the next.
func (b *Batcher[Req, Res]) DoMany(ctx context.Context, reqs []Req) (res []Res, errs []error) {
	res = make([]Res, len(reqs))
	for _, round := range b.rounds(reqs) {
		c := b.calls.Get().(*call[Req, Res])
		c.reqs, c.res, c.errs = make([]Req, len(round)), make([]Res, len(round)), nil
		for i, at := range round {
			c.reqs[i] = reqs[at]
		}
		b.run(ctx, c)
		for i, at := range round {
			res[at] = c.res[i]
			if c.errs != nil && c.errs[i] != nil {
				if errs == nil {
					errs = make([]error, len(reqs))
				}
				errs[at] = c.errs[i]
			}
		}
		c.reqs, c.res, c.errs = nil, nil, nil // as in Do
		b.calls.Put(c)
	}
	return res, errs
}

// rounds splits requests into groups that fit a flush and in which every key occurs once.
// A request may stand in an earlier round than one that came before it, if their keys differ: only the order of equal keys
// counts.
func (b *Batcher[Req, Res]) rounds(reqs []Req) [][]int {
	var rounds [][]int
	weights := []int{}
	last := make(map[[16]byte]int) // the round that holds the key's latest request
	for i, req := range reqs {
		at := 0
		key, keyed := b.key(req)
		if keyed {
			if round, found := last[key]; found {
				at = round + 1
			}
		}
		w := b.weigh(req)
		for at < len(rounds) && weights[at]+w > b.config.Max {
			at++
		}
		if at == len(rounds) {
			rounds, weights = append(rounds, nil), append(weights, 0)
		}
		rounds[at] = append(rounds[at], i)
		weights[at] += w
		if keyed {
			last[key] = at
		}
	}
	return rounds
}

func (b *Batcher[Req, Res]) key(req Req) ([16]byte, bool) {
	if b.config.Key == nil {
		return [16]byte{}, false
	}
	return b.config.Key(req)
}

func (b *Batcher[Req, Res]) weigh(req Req) int {
	if b.config.Weight == nil {
		return 1
	}
	return b.config.Weight(req)
}
