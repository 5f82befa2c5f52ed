package eventlog

import "time"

const (
	firstRetry  = 5 * time.Millisecond
	dirtyPause  = 100 * time.Millisecond
	longPause   = time.Second
	maxRest     = 50 * time.Millisecond
	gapInterval = 5 * time.Millisecond
)

// pace says when the relay looks again by itself. Commits of its own node wake it earlier, but never before restUntil.
type pace struct {
	config    RelayConfig
	restUntil time.Time
	idle      bool // nothing is pending: the next look may be a cheap one

	failures, missed, waits int // in a row
}

// next takes the outcome of a pass and what it took.
func (p *pace) next(done pass, err error, cost time.Duration) time.Duration {
	p.idle = false
	// Half of the time at most: under a pinned xmin the rows that a pass updates get slow, and resting keeps them fewer.
	p.restUntil = time.Now().Add(min(max(p.config.Rest-cost, cost, 0), maxRest))
	failures, missed, waits := p.failures, p.missed, p.waits
	p.failures, p.missed, p.waits = 0, 0, 0
	switch {
	case err != nil:
		p.failures = failures + 1
		return backoff(dirtyPause, failures, longPause)
	case !done.locked:
		p.missed = missed + 1
		return backoff(firstRetry, missed, dirtyPause)
	case done.more:
		return 0
	case done.wait > 0:
		// A rollback wakes nobody, and shows before the delay is over.
		return min(done.wait, gapInterval)
	case done.gaps:
		// A long transaction somewhere. If it commits here, or in SQL, the relay is woken.
		p.waits = waits + 1
		return backoff(dirtyPause, waits, longPause)
	default:
		p.idle = true
		return p.config.LookInterval
	}
}

func backoff(first time.Duration, times int, limit time.Duration) time.Duration {
	return min(first<<min(times, 10), limit)
}
