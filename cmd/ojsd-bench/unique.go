package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
)

// uniqueConns is how many connections send unique jobs, and duplicatePercents how many of them are duplicates.
const uniqueConns = 32

var duplicatePercents = []int{0, 50, 99}

func runUnique(ctx context.Context, r *runner) error {
	for _, percent := range duplicatePercents {
		err := r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) { return r.measureUnique(ctx, percent) })
		if err != nil {
			return err
		}
	}
	return nil
}

// measureUnique enqueues jobs with a unique policy. Duplicates have a key that was sent before, and are answered with its job.
// The first key is always new, so percent is reached only after some calls. A duplicate may overtake the call with the new key;
// that one is the duplicate then.
func (r *runner) measureUnique(ctx context.Context, percent int) (figure, error) {
	l := r.newLoad("unique")
	more := r.limit(maxEnqueues)
	var keys, answered atomic.Int64
	s, err := l.run(group{role: "producer", n: uniqueConns, work: func(c *client) {
		for l.mayContinue(ctx) && more() {
			key := keys.Load()
			if key == 0 || rand.IntN(100) >= percent {
				key = keys.Add(1)
			} else {
				key = 1 + rand.Int64N(key)
			}
			err := c.enqueueUnique(key)
			l.failures.addEnqueue(err, 1)
			if err == nil {
				answered.Add(1)
			}
		}
	}})
	if err != nil {
		return figure{}, err
	}
	jobs, calls := len(l.jobs.enqueued), int(answered.Load())
	metrics := slices.Concat([]metric{{"calls_per_s", float64(calls) / s.seconds()}}, latencies("", l.latency[opEnqueue], 50, 95, 99), s.cpu.perJob(calls))
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	return l.figure("unique", []param{{"conns", uniqueConns}, {"duplicates", percent}}, metrics, jobs), nil
}

// enqueueUnique enqueues a job with a key of this load. An answer 200 is that of a duplicate, for which nothing was stored.
// The body is built from the usual one each time, into memory that is used again.
func (c *client) enqueueUnique(key int64) error {
	c.uniqueBody = append(c.uniqueBody[:0], c.bodies.enqueue[:len(c.bodies.enqueue)-len(`}}`)]...)
	c.uniqueBody = append(append(append(c.uniqueBody, `,"unique":{"on_conflict":"ignore","key":"`...), c.bodies.queue...), '-')
	c.uniqueBody = append(strconv.AppendInt(c.uniqueBody, key, 10), `"}}}`...)
	c.calls[opEnqueue].SetBodyRaw(c.uniqueBody)
	body, err := c.do(opEnqueue)
	if err != nil || c.resp.StatusCode() == http.StatusOK {
		return err
	}
	return c.keepID(body)
}
