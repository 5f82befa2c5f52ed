package grpcapi

import (
	"time"

	"google.golang.org/grpc"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// jobWait is how long one fetch is parked; it then looks again.
	// It equals the longest wait of a fetch over HTTP.
	jobWait = 20 * time.Second

	// maxClaim bounds what waits here for its turn to be sent, while its reservation runs.
	maxClaim = 100

	// emptyPause follows a fetch that found nothing without waiting: its worker shall be quiet, for example.
	emptyPause = time.Second
)

// StreamJobs streams jobs (docs/reference/grpc.md, StreamJobs).
// The worker must have a name: its slots are compared with what is reserved for it. A stream of another node, or a second one
// of the same worker, has slots of its own.
func (a *API) StreamJobs(in *ojsv1.StreamJobsRequest, stream grpc.ServerStreamingServer[ojsv1.Job]) error {
	want, wire := job.NewFetch(in.GetQueues(), 1, in.GetWorkerId())
	if wire != nil {
		return wire
	}
	if want.WorkerID == "" {
		return spec.InvalidPayload("worker_id", "the non-empty id of this worker", nil, "'worker_id' is required: send the non-empty id of this worker.")
	}
	want.Wait, want.Tenant = jobWait, tenantOf(stream.Context())
	out, err := a.open(stream)
	if err != nil {
		return err
	}
	s := &jobStream{
		sender: out, stream: stream, slots: newSlots(int(in.GetMaxConcurrent())),
		fetch: want,
	}
	return s.run(s.serve)
}

// jobStream is one stream of jobs. One goroutine claims and sends; another learns which jobs are over.
// slots guards itself; fetch belongs to the goroutine that claims.
type jobStream struct {
	*sender
	stream grpc.ServerStreamingServer[ojsv1.Job]
	fetch  job.Fetch
	slots  *slots
}

// It returns only when both goroutines have ended, so sub is closed once and nothing is claimed afterwards. Jobs that were
// sent stay reserved.
func (s *jobStream) serve() error {
	// Before the first claim, so that no end of a job is missed. Gap rows tell of jobs that went back to their queue.
	sub, err := s.api.Feed.Subscribe(s.ctx, eventlog.Query{Queues: s.fetch.Queues, Tenant: s.fetch.Tenant, Internal: true}, nil)
	if err != nil {
		return pg.ClientError(err)
	}
	sub.CountIn(s.flow)
	if err := s.stream.SendHeader(nil); err != nil {
		sub.Close()
		return err
	}
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		defer sub.Close()
		s.follow(sub)
	}()
	err = s.claim()
	// follow waits for events until the context ends.
	s.cancel()
	<-followed
	return err
}

// claim keeps the slots filled.
// An error of the database is logged and tried again; only the end of the stream ends the loop.
func (s *jobStream) claim() error {
	for {
		free, err := s.slots.wait(s.ctx)
		if err != nil {
			return err
		}
		// A free slot cannot be taken by anybody else meanwhile: only this goroutine takes slots.
		s.fetch.Count = min(free, maxClaim)
		start := time.Now()
		jobs, err := s.api.Pools.Fetch(s.ctx, s.fetch)
		switch {
		case err != nil && s.ctx.Err() == nil:
			err = s.failed("fetch jobs", err)
		case err == nil:
			err = s.deliver(jobs)
		}
		if err != nil {
			return err
		}
		if len(jobs) == 0 {
			api.Pause(s.ctx, emptyPause-time.Since(start))
		}
	}
}

// deliver sends claimed jobs. Those that cannot be sent any more go back.
// The slot is taken before the job is sent, because its ack may come back before Send returns.
func (s *jobStream) deliver(jobs []*job.Record) error {
	for i, job := range jobs {
		err := s.ctx.Err()
		if err == nil {
			s.slots.take(job.ID, job.StartedAt.Time)
			err = s.send(func() error { return s.stream.Send(jobOf(job)) })
		}
		if err != nil {
			s.api.Jobs.HandBack(s.ctx, jobs[i:])
			return err
		}
	}
	return nil
}

// follow frees the slots of jobs that are over, whichever node that happened on. The log loses nothing, but it may be read
// late or, after a long outage, not at all: therefore a look at the jobs themselves now and then.
// An end that is published before its slot is taken cannot exist: the slot is taken before the worker knows of the job. A
// lost reservation of a job that was claimed and not sent yet is found by reconcile.
func (s *jobStream) follow(sub *eventlog.Subscription) {
	every := s.api.config.Reconcile
	tick := time.NewTicker(every)
	defer tick.Stop()
	looked := time.Now()
	for s.ctx.Err() == nil {
		items, gap, err := sub.Next(s.ctx, tick.C, s.api.Streams.Batch())
		if err != nil && s.ctx.Err() == nil {
			_ = s.failed("read events", err) // the loop looks for the end
		}
		for _, item := range items {
			// Any row that leaves active frees the slot, whatever its type.
			if e := item.Event; e.From == string(ojs.StateActive) && e.JobID != nil {
				s.slots.release(*e.JobID, e.Time)
			}
		}
		if gap != nil || time.Since(looked) >= every {
			s.reconcile()
			looked = time.Now()
		}
	}
}

// reconcile frees the slots of jobs that this worker does not hold, or not for the run that was sent.
// It compares the start of the run, not only the job: a job that was lost and fetched again by the same worker is another
// run.
func (s *jobStream) reconcile() {
	held, ids := s.slots.all()
	if len(ids) == 0 {
		return
	}
	rows, err := s.api.Workers.Reserved(s.ctx, worker.Ref{Tenant: s.fetch.Tenant, ID: s.fetch.WorkerID}, ids)
	if err != nil {
		if s.ctx.Err() == nil {
			_ = s.failed("look at its jobs", err)
		}
		return
	}
	for _, r := range rows {
		if r.StartedAt.Time.Equal(held[r.ID]) {
			delete(held, r.ID)
		}
	}
	for id, started := range held {
		s.slots.drop(id, started)
	}
}
