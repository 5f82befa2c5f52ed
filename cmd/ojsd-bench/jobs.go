package main

import "fmt"

// jobLists are the jobs of one queue as the clients saw them, or one client's part of them. A list has a job as often as it
// happened.
type jobLists struct {
	enqueued, fetched, acked []jobID
}

func (l *jobLists) add(other jobLists) {
	l.enqueued = append(l.enqueued, other.enqueued...)
	l.fetched = append(l.fetched, other.fetched...)
	l.acked = append(l.acked, other.acked...)
}

// problems compares the three lists: each acknowledged enqueue must have been fetched exactly once, and its ack must
// have succeeded. unanswered is the number of enqueues without an answer: that many unknown jobs may appear.
// It counts up to 255 times for each job.
func (l *jobLists) problems(unanswered int) []string {
	jobs := make(map[jobID]jobCounts, len(l.enqueued))
	count(jobs, l.enqueued, func(c *jobCounts) *uint8 { return &c.enqueued })
	count(jobs, l.fetched, func(c *jobCounts) *uint8 { return &c.fetched })
	count(jobs, l.acked, func(c *jobCounts) *uint8 { return &c.acked })
	var sameID, lost, twice, unknown, unacked problemCounter
	for id, c := range jobs {
		sameID.countIf(c.enqueued > 1, id)
		lost.countIf(c.enqueued > 0 && c.fetched == 0, id)
		twice.countIf(c.fetched > 1, id)
		unknown.countIf(c.enqueued == 0, id)
		unacked.countIf(c.fetched > 0 && c.acked == 0, id)
	}
	unknown.n = max(0, unknown.n-unanswered)
	var problems []string
	problems = sameID.appendTo(problems, "got an id that another job has")
	problems = lost.appendTo(problems, "lost: enqueue acknowledged, never fetched")
	problems = twice.appendTo(problems, "delivered twice")
	problems = unknown.appendTo(problems, "fetched that were never enqueued")
	return unacked.appendTo(problems, "fetched whose ack did not succeed")
}

// jobCounts says how many times each thing happened to one job.
type jobCounts struct{ enqueued, fetched, acked uint8 }

func count(jobs map[jobID]jobCounts, ids []jobID, field func(*jobCounts) *uint8) {
	for _, id := range ids {
		c := jobs[id]
		if n := field(&c); *n < 255 {
			*n++
		}
		jobs[id] = c
	}
}

// problemCounter counts the jobs with one kind of problem and keeps one of them as an example.
type problemCounter struct {
	n       int
	example jobID
}

func (p *problemCounter) countIf(wrong bool, id jobID) {
	if wrong {
		p.n++
		p.example = id
	}
}

// appendTo appends a sentence to problems if any job was counted.
func (p *problemCounter) appendTo(problems []string, what string) []string {
	if p.n == 0 {
		return problems
	}
	return append(problems, fmt.Sprintf("%d jobs %s, e.g. %s", p.n, what, p.example))
}
