package eventlog

import (
	"math/rand/v2"
	"time"
)

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
