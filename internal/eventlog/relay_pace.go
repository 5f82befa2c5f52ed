package eventlog

import "time"

const (
	lockRetry   = 5 * time.Millisecond
	shortPause  = 100 * time.Millisecond
	longPause   = time.Second
	maxRest     = 50 * time.Millisecond
	gapInterval = 5 * time.Millisecond
)

// pace decides when the relay runs the next pass by itself. Commits of its own node wake it earlier, but never before
// restUntil.
type pace struct {
	config    RelayConfig
	restUntil time.Time
	idle      bool // nothing is pending: the next run may be a poll

	failures, notLocked, gapPasses int // in a row
}

// next takes the outcome of a pass and how long it took.
func (p *pace) next(done pass, err error, took time.Duration) time.Duration {
	p.idle = false
	// Passes take half of the time at most: under a pinned xmin every update of the same rows makes the next one slower, so
	// there should be few.
	p.restUntil = time.Now().Add(min(max(p.config.Rest-took, took, 0), maxRest))
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

func backoff(first time.Duration, times int, limit time.Duration) time.Duration {
	return min(first<<min(times, 10), limit)
}
