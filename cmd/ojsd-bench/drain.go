package main

import (
	"context"
	"slices"
	"time"
)

// drainPlan says how workers empty a queue.
type drainPlan struct {
	jobs    int
	workers int
	count   int // jobs per fetch
	ack     ackStyle
}

type ackStyle string

const (
	ackSingle ackStyle = "single"
	ackBatch  ackStyle = "batch" // one call for all jobs of a fetch
	ackFetch  ackStyle = "fetch" // the same, and the call fetches the next jobs
)

// drainStyle is a way to take and acknowledge jobs.
type drainStyle struct {
	count int
	ack   ackStyle
}

var (
	drainStyles = []drainStyle{{10, ackSingle}, {100, ackBatch}} // as the SDKs do, and in batches
	smallStyles = []drainStyle{{10, ackBatch}, {10, ackFetch}}   // only in scenario drain: what a call saves
)

func (p drainPlan) params() []param {
	return []param{{"workers", p.workers}, {"fetch", p.count}, {"ack", string(p.ack)}}
}

func runDrain(ctx context.Context, r *runner) error {
	return r.eachDrain(slices.Concat(drainStyles, smallStyles), r.cfg.Jobs, func(p drainPlan) error {
		return r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return r.measureDrain(ctx, p) })
	})
}

// eachDrain calls fn for every style and number of workers.
func (r *runner) eachDrain(styles []drainStyle, jobs int, fn func(drainPlan) error) error {
	for _, style := range styles {
		for _, workers := range r.cfg.Workers {
			if err := fn(drainPlan{jobs, workers, style.count, style.ack}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) measureDrain(ctx context.Context, p drainPlan) (figure, error) {
	l := r.newLoad("drain")
	if err := l.preload(ctx, p.jobs); err != nil {
		return figure{}, err
	}
	r.pause(ctx)
	metrics, err := l.drain(ctx, p)
	if err != nil {
		return figure{}, err
	}
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("drain", p.params(), metrics, p.jobs), nil
}

// drain takes p.jobs jobs out of the queue. The rates count up to the last ack; the empty fetches after it do not count.
// Workers share a budget of jobs: what a fetch did not bring is given back, so that exactly p.jobs are taken and none is
// fetched in vain at the end.
func (l *load) drain(ctx context.Context, p drainPlan) ([]metric, error) {
	l.resetTimes()
	var left budget
	left.giveBack(p.jobs)
	s, err := l.run(group{role: "worker", n: p.workers, work: func(c *client) {
		var jobs []jobID
		for l.mayContinue(ctx) {
			if len(jobs) == 0 {
				want := left.take(p.count)
				if want == 0 {
					return
				}
				jobs = l.fetch(c, want)
				left.giveBack(want - len(jobs))
			}
			switch {
			case len(jobs) == 0:
				if !l.waitForJobs() {
					return
				}
			case p.ack == ackFetch:
				want := left.take(p.count)
				jobs = l.ackAndFetch(c, jobs, want)
				left.giveBack(want - len(jobs))
			default:
				l.ackAll(c, jobs, p.ack == ackBatch)
				jobs = nil
			}
		}
	}})
	if err != nil {
		return nil, err
	}
	return slices.Concat(drainRates(s.start, l.acks), l.drainLatencies(), s.cpu.perJob(p.jobs)), nil
}

// waitForJobs pauses a worker after an empty fetch. It returns false if no job was acknowledged for too long.
func (l *load) waitForJobs() bool {
	if l.stalled() {
		return false
	}
	time.Sleep(2 * time.Millisecond)
	return true
}

func (l *load) drainLatencies() []metric {
	ack := l.latency[opAck]
	if len(ack) == 0 {
		ack = l.latency[opAckBatch]
	}
	return append(latencies("fetch_", l.latency[opFetch], 50, 99), latencies("ack_", ack, 50, 99)...)
}

// drainRates gives the overall rate, and those of the first and the last quarter of the jobs. They differ if the server
// slows down while it drains, for instance because of dead index entries that cannot be removed.
func drainRates(start time.Time, acks []ackMark) []metric {
	slices.SortFunc(acks, func(a, b ackMark) int { return a.at.Compare(b.at) })
	total := 0
	for _, m := range acks {
		total += m.n
	}
	quarter := total / 4
	return []metric{
		{"jobs_per_s", rateBetween(start, acks, 0, total)},
		{"first_quarter_jobs_per_s", rateBetween(start, acks, 0, quarter)},
		{"last_quarter_jobs_per_s", rateBetween(start, acks, total-quarter, total)},
	}
}

// rateBetween is the rate from the moment when `from` jobs were done to the moment when `to` jobs were.
// Acks must be in the order of time.
func rateBetween(start time.Time, acks []ackMark, from, to int) float64 {
	begin, end, done := start, start, 0
	for _, m := range acks {
		if done < from {
			begin = m.at
		}
		if done < to {
			end = m.at
		}
		done += m.n
	}
	if to <= from || !end.After(begin) {
		return 0
	}
	return float64(to-from) / end.Sub(begin).Seconds()
}

// emptyQueue takes out, untimed, all jobs that are left. When none should be left it fetches once more: a job that the
// server delivers twice appears then. After it the lists of jobs are complete. Jobs that other fetches still have reserved are
// not found: the visibility timeout is longer than any run.
func (l *load) emptyQueue(ctx context.Context) error {
	l.bodies.waitMS = 0
	enqueued := int64(len(l.jobs.enqueued))
	l.acked.Store(int64(len(l.jobs.acked)))
	_, err := l.run(group{role: "cleanup", n: batchConns, work: func(c *client) {
		for l.mayContinue(ctx) {
			jobs := l.fetch(c, batchSize)
			if len(jobs) > 0 {
				l.ackAll(c, jobs, true)
			} else if l.acked.Load() >= enqueued || !l.waitForJobs() {
				return
			}
		}
	}})
	return err
}
