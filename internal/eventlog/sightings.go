package eventlog

import (
	"slices"
	"time"
)

// A sighting is what one snapshot showed of the end of the log, and an xid drawn after it. Numbers are drawn in order,
// and every transaction owns its xid before it draws one (the default of ojs.events.seq). So whoever drew a number up to
// head, which is visible, has an xid below bound, and two things follow for a number up to head that is missing later:
//   - once xmin of a later snapshot has reached bound, all who may own it have ended, and it belongs to nothing;
//   - it has been drawn, and missing, since at.
//
// Sightings live in memory: a number that is missing for some milliseconds, as at every commit in flight and every
// rollback, costs no write, and an open transaction costs one delay however many numbers it has drawn.
type sighting struct {
	head  int64
	bound int64 // 0: not drawn yet
	at    time.Time
}

// maxSightings bounds the memory; while it is full, numbers drawn later are sighted later.
const maxSightings = 32

// sightings are in ascending order of all three.
type sightings []sighting

// note remembers a scan and forgets what is below the watermark.
func (s *sightings) note(watermark, head int64, now time.Time) {
	*s = slices.DeleteFunc(*s, func(old sighting) bool { return old.head <= watermark })
	if head <= watermark || len(*s) == maxSightings || len(*s) > 0 && (*s)[len(*s)-1].head >= head {
		return
	}
	*s = append(*s, sighting{head: head, at: now})
}

// bind completes what has been noted up to now with an xid drawn now.
func (s sightings) bind(bound int64) {
	for i := range s {
		if s[i].bound == 0 {
			s[i].bound = bound
		}
	}
}

// unbound reports whether bind would have anything to do.
func (s sightings) unbound() bool { return len(s) > 0 && s[len(s)-1].bound == 0 }

// verdict is how far the watermark may go.
type verdict struct {
	upto   int64         // the new watermark
	rows   int           // visible rows up to it
	passed []int64       // missing numbers up to it whose transaction may still commit
	wait   time.Duration // > 0: stopped at a missing number, which may be passed over then
}

// judge accepts numbers in order: those that are visible; missing ones that belong to nothing; missing ones that have
// been waited for long enough. It stops at the first other one.
func (s sightings) judge(found scan, now time.Time, delay time.Duration) verdict {
	v := verdict{upto: found.watermark}
	var void, due int64 // missing numbers up to these belong to nothing, may be passed over
	for _, old := range s {
		if old.bound != 0 && found.xmin >= old.bound {
			void = old.head
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
			v.rows++
		case n <= void:
		case n <= due:
			v.passed = append(v.passed, n)
		default:
			v.wait = s.untilDue(n, now, delay)
			return v
		}
		v.upto = n
	}
	return v
}

// untilDue is at least a moment: it also says that there is something to wait for.
func (s sightings) untilDue(n int64, now time.Time, delay time.Duration) time.Duration {
	for _, old := range s {
		if old.head >= n {
			return max(old.at.Add(delay).Sub(now), time.Millisecond)
		}
	}
	return max(delay, time.Millisecond)
}
