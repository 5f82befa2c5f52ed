package eventlog

import (
	"slices"
	"time"
)

// An observation is the end of the log in one snapshot, with a transaction id drawn after it. Numbers are drawn in order,
// and every transaction owns its id before it draws a number (the default of ojs.events.seq). So a transaction that drew a
// number up to head, which is visible, has an id below bound. For a number up to head that is missing later it follows:
//   - it has been drawn, and has been missing since at;
//   - once xmin of a later snapshot has reached bound, every transaction that may own it has ended: it was rolled back.
//
// Observations live in memory. A number that is missing for some milliseconds, as at every commit in flight and every
// rollback, costs no write, and an open transaction costs one delay however many numbers it has drawn.
type observation struct {
	head  int64
	bound int64 // 0: not drawn yet
	at    time.Time
}

// maxObservations bounds the memory; while it is full, numbers drawn later are observed later. A pass adds at most one, and
// those at or below the watermark go, so it is full only while a missing number stops the watermark for many passes.
const maxObservations = 32

// observations are in ascending order of all three members.
type observations []observation

// record adds the head of a scan and forgets what is below the watermark. A head that is no higher than the last one adds
// nothing: the older observation has waited longer.
func (o *observations) record(watermark, head int64, now time.Time) {
	*o = slices.DeleteFunc(*o, func(old observation) bool { return old.head <= watermark })
	if head <= watermark || len(*o) == maxObservations || len(*o) > 0 && (*o)[len(*o)-1].head >= head {
		return
	}
	*o = append(*o, observation{head: head, at: now})
}

// bind completes the observations without a bound with a transaction id drawn now. The id must be drawn after the scan whose
// head was recorded. One id serves all of them: a higher bound is only waited for longer.
func (o observations) bind(bound int64) {
	for i := range o {
		if o[i].bound == 0 {
			o[i].bound = bound
		}
	}
}

// unbound reports whether an observation has no bound yet.
func (o observations) unbound() bool { return len(o) > 0 && o[len(o)-1].bound == 0 }

// decision is how far the watermark may go.
type decision struct {
	upto   int64         // the new watermark
	rows   int           // visible rows up to it
	passed []int64       // missing numbers up to it whose transaction may still commit
	wait   time.Duration // > 0: stopped at a missing number, which may be passed over then
}

// decide accepts numbers in order: visible ones, missing ones that were rolled back, and missing ones that have been
// waited for long enough. It stops at the first other one. A number that was rolled back needs no row in event_gaps. A passed
// one gets one, because its row may still appear and must then be found.
func (o observations) decide(found scan, now time.Time, delay time.Duration) decision {
	d := decision{upto: found.watermark}
	var rolledBack, due int64 // missing numbers up to these were rolled back, or may be passed over
	for _, old := range o {
		if old.bound != 0 && found.xmin >= old.bound {
			rolledBack = old.head
		}
		if now.Sub(old.at) >= delay {
			due = old.head
		}
	}
	numbers := found.numbers
	for n := found.watermark + 1; n <= min(found.head, found.limit); n++ {
		switch {
		case len(numbers) > 0 && numbers[0] == n:
			numbers = numbers[1:]
			d.rows++
		case n <= rolledBack:
		case n <= due:
			d.passed = append(d.passed, n)
		default:
			d.wait = o.untilDue(n, now, delay)
			return d
		}
		d.upto = n
	}
	return d
}

// untilDue is never 0, because a wait of 0 means that no number is missing.
func (o observations) untilDue(n int64, now time.Time, delay time.Duration) time.Duration {
	for _, old := range o {
		if old.head >= n {
			return max(old.at.Add(delay).Sub(now), time.Millisecond)
		}
	}
	return max(delay, time.Millisecond)
}
