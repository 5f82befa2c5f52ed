package retry

import (
	"math"
	"math/rand/v2"
	"time"
)

// Delay is the wait after failed attempt n, with the policy's jitter (docs/reference/retries.md, Backoff).
// It draws a random number, so two calls differ; the delay that a job gets is drawn once, when its failure is decided, and
// stored.
func Delay(p Policy, n int) time.Duration {
	return DelayWith(p, n, 0.5+rand.Float64())
}

// DelayWith is Delay with the jitter factor u, uniform in [0.5, 1.5). Tests and the worked numbers of the reference use it. An
// attempt below 1 counts as 1. The result is at least 1 ms and at most MaxInterval, in whole ms.
func DelayWith(p Policy, n int, u float64) time.Duration {
	limit := ms(p.MaxInterval)
	d := min(rawDelay(p, float64(max(n, 1))), limit)
	// The cap comes before and after the jitter: with jitter the delay may not exceed it either.
	if math.IsNaN(d) { // 0 · Inf
		d = limit
	}
	if p.Jitter {
		d = min(d*u, limit)
	}
	return time.Duration(max(math.Floor(d), 1)) * time.Millisecond
}

// rawDelay is the wait in ms before the cap. It may be infinite. A strategy that is not known counts as exponential, which is
// the default.
func rawDelay(p Policy, n float64) float64 {
	first := ms(p.InitialInterval)
	switch p.Strategy {
	case Linear:
		return first * n
	case Polynomial:
		return first * math.Pow(n, p.BackoffCoefficient)
	case Constant:
		return first
	default:
		return first * math.Pow(p.BackoffCoefficient, n-1)
	}
}

func ms(d time.Duration) float64 { return float64(d.Milliseconds()) }
