package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	chainSteps = 3
	chainConns = 8 // clients that each run one chain after the other
	groupSize  = 100
	maxMembers = 10_000 // what a server accepts
)

// runWorkflow measures how long workflows take over their steps, and one that is as large as workflows may be.
func runWorkflow(ctx context.Context, r *runner) error {
	for _, measure := range []func(context.Context, *runner) (figure, error){measureChains, measureGroups, measureLargeBatch} {
		if err := r.repeat(ctx, measure); err != nil {
			return err
		}
	}
	return nil
}

// measureChains runs chains, each by a client with a queue of its own. A step lasts from sending the ack of one job until the
// client has the next: that includes the advance of the chain, because the ack is answered after it. A step that is not there
// at once is an error: the server promises that the next job can be fetched when the ack was answered.
func measureChains(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("chain")
	more := r.limit(maxEnqueues)
	var steps durations
	s, err := l.run(group{role: "worker", n: chainConns, work: func(c *client) {
		c.bodies.queue = c.name
		body := workflowBody(c.bodies, "chain", "steps", chainSteps, "")
		for l.mayContinue(ctx) && more() {
			l.failures.add(c.runChain(body, &steps))
		}
	}})
	if err != nil {
		return figure{}, err
	}
	chains := len(l.jobs.acked) / chainSteps
	metrics := slices.Concat([]metric{{"workflows_per_s", float64(chains) / s.seconds()}}, latencies("step_", steps.list, 50, 99),
		latencies("create_", l.latency[opWorkflow], 50, 99), s.cpu.perJob(len(l.jobs.acked)))
	return l.figure("workflow.chain", []param{{"conns", chainConns}, {"steps", chainSteps}}, metrics, len(l.jobs.acked)), nil
}

// The queue of the client has no other jobs, so the job that it fetches is the next step.
func (c *client) runChain(body []byte, steps *durations) error {
	if _, err := c.createWorkflow(body); err != nil {
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
}

// measureGroups runs groups one after the other, with workers beside. A group lasts from the call that creates it to the ack
// of its last member.
func measureGroups(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("group")
	var groups durations
	body := workflowBody(l.bodies, "group", "jobs", groupSize, "")
	more := r.limit(maxEnqueues)
	start := time.Now()
	for l.mayContinue(ctx) && more() {
		begun := time.Now()
		if err := l.runMembers(ctx, body, groupSize); err != nil {
			return figure{}, err
		}
		groups.add(time.Since(begun))
	}
	jobs := len(l.jobs.acked)
	metrics := slices.Concat([]metric{{"workflows_per_s", float64(len(groups.list)) / time.Since(start).Seconds()}},
		latencies("", groups.list, 50, 99), latencies("create_", l.latency[opWorkflow], 50, 99))
	return l.figure("workflow.group", []param{{"members", groupSize}, {"workers", batchConns}}, metrics, jobs), nil
}

// measureLargeBatch runs one batch with a callback and cancels another. The second batch is cancelled before any of its jobs
// was fetched.
func measureLargeBatch(ctx context.Context, r *runner) (figure, error) {
	l := r.newLoad("workflow")
	n := min(r.cfg.Jobs, maxMembers)
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
	var cancelled time.Duration
	_, err := l.run(group{role: "canceller", n: 1, work: func(c *client) {
		id, err := c.createWorkflow(body)
		if l.failures.add(err); err != nil {
			return
		}
		c.calls[opCancelWorkflow] = c.request("DELETE", "/ojs/v1/workflows/"+id)
		begun := time.Now()
		_, err = c.do(opCancelWorkflow)
		l.failures.add(err)
		cancelled = time.Since(begun)
	}})
	if err != nil {
		return figure{}, err
	}
	metrics := slices.Concat([]metric{{"jobs_per_s", float64(jobs) / took.Seconds()}}, latencies("create_", l.latency[opWorkflow], 50),
		latencies("cancel_", []time.Duration{cancelled}, 50))
	return l.figure("workflow.batch", []param{{"members", n}, {"workers", batchConns}}, metrics, jobs), nil
}

// runMembers creates a workflow and works until n jobs were acknowledged. Workers count the jobs that they fetch as enqueued,
// because the answer to the creation does not list them; the check finds jobs that were fetched twice, not lost ones. A lost
// one shows as a run that stalls.
func (l *load) runMembers(ctx context.Context, body []byte, n int) error {
	done := len(l.jobs.acked) + n
	l.acked.Store(int64(len(l.jobs.acked)))
	created := make(chan struct{})
	creator := func(c *client) {
		defer close(created)
		_, err := c.createWorkflow(body)
		l.failures.add(err)
	}
	worker := func(c *client) {
		<-created
		for l.mayContinue(ctx) && l.acked.Load() < int64(done) {
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

// createWorkflow returns the id.
func (c *client) createWorkflow(body []byte) (string, error) {
	c.calls[opWorkflow].SetBodyRaw(body)
	answer, err := c.do(opWorkflow)
	if err != nil {
		return "", err
	}
	id, err := stringMember(answer, "id")
	return string(id), err
}

func workflowBody(b bodies, kind, members string, n int, more string) []byte {
	job := fmt.Sprintf(`{"type":%q,"args":%s,"options":{"queue":%q}}`, jobType, b.args, b.queue)
	return fmt.Appendf(nil, `{"type":%q,%q:[%s]%s}`, kind, members, strings.TrimSuffix(strings.Repeat(job+",", n), ","), more)
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
