package bench

import "fmt"

// ledger is every job of one queue as the clients saw it.
type ledger struct {
	enqueued, fetched, acked []jobID
}

// seen counts what happened to one job.
type seen struct{ enqueued, fetched, acked uint8 }

// violations compares the three lists: every acknowledged enqueue must have been fetched exactly once and its ack have
// succeeded. unsure is the number of enqueues whose answer is missing: so many jobs more may appear.
func (l *ledger) violations(unsure int) []string {
	jobs := make(map[jobID]seen, len(l.enqueued))
	count(jobs, l.enqueued, func(s *seen) *uint8 { return &s.enqueued })
	count(jobs, l.fetched, func(s *seen) *uint8 { return &s.fetched })
	count(jobs, l.acked, func(s *seen) *uint8 { return &s.acked })
	var sameID, lost, twice, unknown, unacked finding
	for id, s := range jobs {
		sameID.note(id, s.enqueued > 1)
		lost.note(id, s.enqueued > 0 && s.fetched == 0)
		twice.note(id, s.fetched > 1)
		unknown.note(id, s.enqueued == 0)
		unacked.note(id, s.fetched > 0 && s.acked == 0)
	}
	unknown.n = max(0, unknown.n-unsure)
	var found []string
	found = sameID.report(found, "enqueued under an id that was given before")
	found = lost.report(found, "lost: enqueue acknowledged, never fetched")
	found = twice.report(found, "delivered twice")
	found = unknown.report(found, "fetched though nobody enqueued them")
	return unacked.report(found, "fetched but their ack did not succeed")
}

func count(jobs map[jobID]seen, ids []jobID, field func(*seen) *uint8) {
	for _, id := range ids {
		s := jobs[id]
		if n := field(&s); *n < 255 {
			*n++
		}
		jobs[id] = s
	}
}

// finding counts jobs with one kind of flaw and keeps an example.
type finding struct {
	n       int
	example jobID
}

func (f *finding) note(id jobID, flawed bool) {
	if flawed {
		f.n++
		f.example = id
	}
}

func (f *finding) report(found []string, what string) []string {
	if f.n == 0 {
		return found
	}
	return append(found, fmt.Sprintf("%d jobs %s, e.g. %s", f.n, what, f.example))
}
