package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	chainSteps = 3
	chainConns = 8 // clients that each run one chain after the other
	groupSize  = 100
	maxMembers = 10_000 // what a server accepts
)

// workflowFigures are how long workflows take over their steps, and one that is as large as workflows may be.
func workflowFigures(cfg config) []measurement {
	members := min(cfg.Jobs, maxMembers)
	return []measurement{
		{figure: "workflow.chain", params: []param{{"conns", chainConns}, {"steps", chainSteps}}, body: measureChains, end: check},
		{figure: "workflow.group", params: []param{{"members", groupSize}, {"workers", batchConns}}, body: measureGroups, end: check},
		{figure: "workflow.batch", params: []param{{"members", members}, {"workers", batchConns}}, end: check,
			body: func(ctx context.Context, l *load) (figure, error) {
				return measureLargeBatch(ctx, l, members)
			}},
	}
}

// measureChains runs chains, each by a client with a queue of its own. A step lasts from sending the ack of one job until the
// client has the next: that includes the advance of the chain, because the ack is answered after it. A step that is not there
// at once is an error: the server promises that the next job can be fetched when the ack was answered.
func measureChains(ctx context.Context, l *load) (figure, error) {
	var steps durations
	s, _, err := l.closedLoop(ctx, chainConns, func(c *client) error {
		c.bodies.queue = c.name
		if _, err := c.createWorkflow(workflowBody(c.bodies, "chain", "steps", chainSteps, "")); err != nil {
			return err
		}
		var acked time.Time
		for i := range chainSteps {
			jobs, err := c.fetch(1)
			if err != nil {
				return err
			}
			if len(jobs) != 1 {
				return fmt.Errorf("step %d of a chain was not there when the ack of the one before had been answered", i)
			}
			if i > 0 {
				steps.add(time.Since(acked))
			}
			c.enqueued = append(c.enqueued, jobs...)
			acked = time.Now()
			if err := c.ack(jobs[0]); err != nil {
				return err
			}
		}
		return nil
	})
	jobs := len(l.jobs.acked)
	metrics := slices.Concat([]metric{{"workflows_per_s", float64(jobs/chainSteps) / s.seconds()}}, latencies("step_", steps.list, 50, 99),
		latencies("create_", l.latency[opWorkflow], 50, 99), s.cpu.perJob(jobs))
	return figure{Metrics: metrics, Jobs: jobs}, err
}

// measureGroups runs groups one after the other, with workers beside. A group lasts from the call that creates it to the ack
// of its last member.
func measureGroups(ctx context.Context, l *load) (figure, error) {
	var groups []time.Duration
	body := workflowBody(l.bodies, "group", "jobs", groupSize, "")
	more, start := l.limit(), time.Now()
	for l.mayContinue(ctx) && more() {
		begun := time.Now()
		if err := l.runMembers(ctx, body, groupSize); err != nil {
			return figure{}, err
		}
		groups = append(groups, time.Since(begun))
	}
	metrics := slices.Concat([]metric{{"workflows_per_s", float64(len(groups)) / time.Since(start).Seconds()}},
		latencies("", groups, 50, 99), latencies("create_", l.latency[opWorkflow], 50, 99))
	return figure{Metrics: metrics, Jobs: len(l.jobs.acked)}, nil
}

// measureLargeBatch runs one batch with a callback and cancels another. The second batch is cancelled before any of its jobs
// was fetched.
func measureLargeBatch(ctx context.Context, l *load, n int) (figure, error) {
	callback := fmt.Sprintf(`,"callbacks":{"on_success":{"type":%q,"args":[],"options":{"queue":%q}}}`, jobType, l.bodies.queue)
	body := workflowBody(l.bodies, "batch", "jobs", n, callback)
	start := time.Now()
	if err := l.runMembers(ctx, body, n+1); err != nil {
		return figure{}, err
	}
	took := time.Since(start)
	jobs := len(l.jobs.acked)
	if jobs != n+1 {
		return figure{}, fmt.Errorf("a batch of %d members and a callback had %d jobs", n, jobs)
	}
	_, err := l.run(group{role: "canceller", n: 1, work: func(c *client) {
		id, err := c.createWorkflow(body)
		if err == nil {
			_, err = c.doAt(opCancelWorkflow, "/ojs/v1/workflows/"+id, "")
		}
		l.failures.add(err)
	}})
	metrics := slices.Concat([]metric{{"jobs_per_s", float64(jobs) / took.Seconds()}}, latencies("create_", l.latency[opWorkflow], 50),
		latencies("cancel_", l.latency[opCancelWorkflow], 50))
	return figure{Metrics: metrics, Jobs: jobs}, err
}

// runMembers creates a workflow and works until n jobs were acknowledged. Workers count the jobs that they fetch as enqueued,
// because the answer to the creation does not list them; the check finds jobs that were fetched twice, not lost ones. A lost
// one shows as a run that stalls.
func (l *load) runMembers(ctx context.Context, body []byte, n int) error {
	l.acked.Store(int64(len(l.jobs.acked)))
	done := l.acked.Load() + int64(n)
	created := make(chan struct{})
	creator := func(c *client) {
		defer close(created)
		_, err := c.createWorkflow(body)
		l.failures.add(err)
	}
	worker := func(c *client) {
		<-created
		for l.mayContinue(ctx) && l.acked.Load() < done {
			jobs := l.fetch(c, 100)
			if len(jobs) == 0 {
				if !l.waitForJobs() {
					return
				}
				continue
			}
			c.enqueued = append(c.enqueued, jobs...)
			l.ackAll(c, jobs, true)
		}
	}
	_, err := l.run(group{role: "creator", n: 1, work: creator}, group{role: "worker", n: batchConns, work: worker})
	return err
}

func workflowBody(b bodies, kind, members string, n int, more string) []byte {
	return fmt.Appendf(nil, `{"type":%q,%q:%s%s}`, kind, members, jobList(b.job("", ""), n), more)
}

// durations is a list that several clients add to.
type durations struct {
	mu   sync.Mutex
	list []time.Duration
}

func (d *durations) add(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, took)
}
