package bench

import (
	"context"
	"slices"
	"time"
)

// drainPlan says how workers empty a queue.
type drainPlan struct {
	jobs    int
	workers int
	count   int  // jobs per fetch
	ackAll  bool // one call for all jobs of a fetch
}

// drainStyles are the two ways to take and acknowledge jobs: as the SDKs do, and with the batch extension.
var drainStyles = []struct {
	count  int
	ackAll bool
}{
	{10, false},
	{100, true},
}

func (p drainPlan) params() []Param {
	ack := "single"
	if p.ackAll {
		ack = "batch"
	}
	return []Param{{"workers", p.workers}, {"fetch", p.count}, {"ack", ack}}
}

func runDrain(ctx context.Context, r *runner) error {
	return r.eachDrain(r.cfg.Jobs, func(p drainPlan) error {
		return r.repeat(ctx, func(ctx context.Context) (Figure, error) { return r.measureDrain(ctx, p) })
	})
}

// eachDrain calls fn for every style and number of workers.
func (r *runner) eachDrain(jobs int, fn func(drainPlan) error) error {
	for _, style := range drainStyles {
		for _, workers := range r.cfg.Workers {
			if err := fn(drainPlan{jobs, workers, style.count, style.ackAll}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) measureDrain(ctx context.Context, p drainPlan) (Figure, error) {
	l := r.newLoad("drain")
	if err := l.preload(ctx, p.jobs); err != nil {
		return Figure{}, err
	}
	r.pause(ctx)
	metrics, err := l.drain(ctx, p)
	if err != nil {
		return Figure{}, err
	}
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	return l.figure("drain", p.params(), metrics, p.jobs), nil
}

// drain takes p.jobs jobs out of the queue. The time ends with the last ack, not with the last empty fetch.
func (l *load) drain(ctx context.Context, p drainPlan) ([]Metric, error) {
	l.forgetTimes()
	var left budget
	left.giveBack(p.jobs)
	s, err := l.run(group{"worker", p.workers, func(c *client) {
		for l.goOn(ctx) {
			want := left.take(p.count)
			if want == 0 {
				return
			}
			jobs, err := c.fetch(want)
			l.trouble.note(err)
			left.giveBack(want - len(jobs))
			if len(jobs) > 0 {
				l.ackAll(c, jobs, p.ackAll)
			} else if !l.idle() {
				return
			}
		}
	}})
	if err != nil {
		return nil, err
	}
	return append(drainRates(s.start, l.marks), l.drainLatencies()...), nil
}

// idle is what a worker does after an empty fetch: a short pause, or false if nothing has moved for too long.
func (l *load) idle() bool {
	if l.stalled() {
		return false
	}
	time.Sleep(2 * time.Millisecond)
	return true
}

func (l *load) drainLatencies() []Metric {
	ack := l.latency[opAck]
	if len(ack) == 0 {
		ack = l.latency[opAckBatch]
	}
	return append(latencies("fetch_", l.latency[opFetch], 50, 99), latencies("ack_", ack, 50, 99)...)
}

// drainRates gives the overall rate, and those of the first and the last quarter of the jobs: a server that slows down
// while it drains (dead index entries under a pinned xmin) shows there first.
func drainRates(start time.Time, marks []mark) []Metric {
	slices.SortFunc(marks, func(a, b mark) int { return a.at.Compare(b.at) })
	total := 0
	for _, m := range marks {
		total += m.n
	}
	quarter := total / 4
	return []Metric{
		{"jobs_per_s", rateBetween(start, marks, 0, total)},
		{"first_quarter_jobs_per_s", rateBetween(start, marks, 0, quarter)},
		{"last_quarter_jobs_per_s", rateBetween(start, marks, total-quarter, total)},
	}
}

// rateBetween is the rate from the moment when more than the first `from` jobs were done to the moment of `to`.
func rateBetween(start time.Time, marks []mark, from, to int) float64 {
	begin, end, done := start, start, 0
	for _, m := range marks {
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

// settle takes out everything that is left in the queue, untimed, and looks once more when it should be empty: then
// the ledger is complete, and a job that would be delivered twice has had its chance.
func (l *load) settle(ctx context.Context) error {
	l.bodies.waitMS = 0
	enqueued := int64(len(l.ledger.enqueued))
	l.acked.Store(int64(len(l.ledger.acked)))
	_, err := l.run(group{"settle", batchConns, func(c *client) {
		for l.goOn(ctx) {
			jobs, err := c.fetch(batchSize)
			l.trouble.note(err)
			if len(jobs) > 0 {
				l.ackAll(c, jobs, true)
			} else if l.acked.Load() >= enqueued || !l.idle() {
				return
			}
		}
	}})
	return err
}
