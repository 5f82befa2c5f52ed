package grpcapi

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// Fetch is POST /workers/fetch without waiting.
// What is claimed and not delivered is handed back, in three places: the client is gone before the answer is made, the answer
// does not fit a message, the answer was not sent (see deliveries).
func (a *API) Fetch(ctx context.Context, in *ojsv1.FetchRequest) (*ojsv1.FetchResponse, error) {
	text, err := object(func(w *jsonWriter) {
		w.texts("queues", in.GetQueues())
		w.integer("count", int64(in.GetCount()))
		w.text("worker_id", in.GetWorkerId())
	})
	if err != nil {
		return nil, err
	}
	want, wire := job.DecodeFetch(text)
	if wire != nil {
		return nil, wire
	}
	// A bound of the claim is cheaper than handing back: what is not claimed needs no second statement.
	want.MaxBytes, want.Tenant = claimBytes, tenantOf(ctx)
	jobs, err := a.Pools.Fetch(ctx, want)
	if err != nil {
		return nil, err
	}
	// HandBack has a context of its own.
	if ctx.Err() != nil { // nobody waits for them any more
		a.Jobs.HandBack(ctx, jobs)
		return nil, ctx.Err()
	}
	out := jobsOf(jobs)
	fit := fitting(out)
	a.Jobs.HandBack(ctx, jobs[fit:])
	if d, ok := ctx.Value(deliveryKey{}).(*delivery); ok {
		d.jobs = jobs[:fit]
	}
	return &ojsv1.FetchResponse{Jobs: out[:fit]}, nil
}

// Ack is POST /workers/ack.
// It names neither worker nor attempt, so a late ack of a job that was lost and fetched again ends the run of the other
// worker.
func (a *API) Ack(ctx context.Context, in *ojsv1.AckRequest) (*ojsv1.AckResponse, error) {
	text, err := object(func(w *jsonWriter) {
		w.text("job_id", in.GetJobId())
		if result := in.GetResult(); result != nil {
			w.name("result")
			w.members("result", ojs.ErrInvalidPayload, result)
		}
	})
	if err != nil {
		return nil, err
	}
	// Limits of results hold here, too; the message itself has at most 4 MiB.
	ack, wire := job.DecodeAckItem(text, a.JobLimits)
	if wire != nil {
		return nil, wire
	}
	job, err := a.Jobs.Complete(ctx, ack)
	if err != nil {
		return nil, err
	}
	return &ojsv1.AckResponse{Acknowledged: job.State == string(ojs.StateCompleted)}, nil
}

// Nack is POST /workers/nack.
// A late nack, too, fails the run that is there.
func (a *API) Nack(ctx context.Context, in *ojsv1.NackRequest) (*ojsv1.NackResponse, error) {
	if e := in.GetError(); e != nil && e.GetCode() == "" && e.GetMessage() == "" {
		// Without them retryable is hardly meant as false: the job would be discarded for nothing that anybody could read.
		return nil, spec.InvalidPayload("error", "an error with a code or a message", nil, "'error' must have a code or a message.")
	}
	text, err := object(func(w *jsonWriter) {
		w.text("job_id", in.GetJobId())
		e := in.GetError()
		if e == nil {
			return
		}
		w.name("error")
		w.raw("{")
		w.text("code", e.GetCode())
		w.text("message", e.GetMessage())
		// It has no third value: unset is false.
		w.name("retryable")
		w.b = strconv.AppendBool(w.b, e.GetRetryable())
		w.text("backtrace", e.GetBacktrace())
		if details := e.GetDetails(); details != nil {
			w.name("details")
			w.members("details", ojs.ErrInvalidPayload, details)
		}
		w.raw("}")
	})
	if err != nil {
		return nil, err
	}
	nack, wire := job.DecodeNackItem(text)
	if wire != nil {
		return nil, wire
	}
	job, err := a.Jobs.Fail(ctx, nack)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.NackResponse{State: stateOf(job.State)}
	// In other states there is no next attempt at a known time.
	if job.State == string(ojs.StateRetryable) {
		out.NextAttemptAt = momentOf(job.NextAttemptAt)
	}
	return out, nil
}

// Heartbeat is POST /workers/heartbeat for at most one job.
// The new deadline is read after the extension, in a statement of its own, so another heartbeat may have moved it further.
func (a *API) Heartbeat(ctx context.Context, in *ojsv1.HeartbeatRequest) (*ojsv1.HeartbeatResponse, error) {
	text, err := object(func(w *jsonWriter) {
		w.text("worker_id", in.GetWorkerId())
		if state := in.GetCurrentState(); state != 0 {
			w.text("state", word(state, "WORKER_STATE_"))
		}
		// 0 means the length chosen at the fetch.
		w.milliseconds("visibility_timeout_ms", "extend_by", in.GetExtendBy())
		w.text("job_id", in.GetId())
	})
	if err != nil {
		return nil, err
	}
	beat, wire := worker.DecodeHeartbeat(text)
	if wire != nil {
		return nil, wire
	}
	beat.Tenant = tenantOf(ctx)
	// A tenant must not extend the reservations of others by guessing ids: such a heartbeat is carried out, and extends nothing.
	if beat.Tenant != "" && len(beat.Jobs.IDs) > 0 {
		own, err := a.Tenants.HasJob(ctx, beat.Tenant, beat.Jobs.IDs[0])
		if err != nil {
			return nil, err
		}
		if !own {
			beat.Jobs, beat.ActiveJobs = job.IDList{}, 0
		}
	}
	// It registers a worker that is not known yet.
	res, err := a.Workers.Heartbeat(ctx, beat)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.HeartbeatResponse{DirectedState: enumOf[ojsv1.WorkerState](ojsv1.WorkerState_value, "WORKER_STATE_", res.State)}
	if len(res.Extended) > 0 {
		id := res.Extended[0]
		job, err := a.Jobs.Get(ctx, id)
		if err != nil { // it is extended all the same
			a.Logger.WarnContext(ctx, "extended job cannot be read; its new deadline is not told",
				slog.String("category", "worker"), slog.Group("ojs", "job_id", spec.FormatID(id)), slog.Any("error", err))
			return out, nil
		}
		out.NewDeadline = momentOf(job.LeaseUntil)
	}
	return out, nil
}

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
	text, err := object(func(w *jsonWriter) {
		w.texts("queues", in.GetQueues())
		w.text("worker_id", in.GetWorkerId())
	})
	if err != nil {
		return err
	}
	want, wire := job.DecodeFetch(text)
	if wire != nil {
		return wire
	}
	if want.WorkerID == "" {
		return errMissing("worker_id", "the non-empty id of this worker")
	}
	want.Wait, want.Tenant = jobWait, tenantOf(stream.Context())
	out, err := a.open(stream)
	if err != nil {
		return err
	}
	s := &jobStream{sender: out, stream: stream, slots: newSlots(int(in.GetMaxConcurrent())), fetch: want}
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

// serve returns only when both goroutines have ended, so sub is closed once and nothing is claimed afterwards. Jobs that were
// sent stay reserved.
func (s *jobStream) serve() error {
	// Before the first claim, so that no end of a job is missed. Internal rows tell of jobs that went back to their queue.
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
	every := s.api.config.GRPC.Reconcile
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

// readRetry is the pause after the database could not be read: all clients coming back at once would help nobody.
const readRetry = time.Second

// errTooSlow is compared by identity, to log it as what it is.
var errTooSlow = spec.NewError(ojs.ErrUnavailable, "The client takes too long to read; open the stream again where it ended.", nil)

// sender is a stream that the server writes to. Writing has a goroutine of its own: the library lets it wait for a client that
// does not read for as long as the handler does not return.
// blocked is armed by each write and stopped after it; slow has room for one, so the timer never blocks.
type sender struct {
	api     *API
	ctx     context.Context // ends with the client or the node
	cancel  context.CancelFunc
	client  context.Context // ends with the client
	leave   func()
	flow    *eventlog.Stream
	blocked *time.Timer // runs while something is written
	slow    chan struct{}
}

// open counts a stream in. The caller must run it.
// If it fails, nothing was counted. The timer is made stopped.
func (a *API) open(stream grpc.ServerStream) (*sender, error) {
	leave, err := a.Streams.Admit(callOf(stream.Context()).caller.Client())
	if err != nil {
		return nil, err
	}
	s := &sender{api: a, client: stream.Context(), leave: leave, flow: a.streams.Open(), slow: make(chan struct{}, 1)}
	s.ctx, s.cancel = a.Streams.Context(stream.Context())
	s.blocked = time.AfterFunc(time.Hour, func() {
		loop.Signal(s.slow)
	})
	s.blocked.Stop()
	return s, nil
}

// run returns when do has, when the client is too slow, or when the node stops; do may then write until the library makes
// it stop, which follows at once.
// The slot and the count are given back when do has returned, which may be after run has: a client that does not read keeps
// its slot until the library has ended its stream.
func (s *sender) run(do func() error) error {
	defer s.cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer s.leave()
		defer s.flow.Close()
		defer close(done)
		err = recovered(do)
	}()
	stopped := s.api.Streams.Life()
	select {
	case <-done:
		// What do returns then is the end of its context, which the client should see as the stop of the node.
		if stopped.Err() != nil && s.client.Err() == nil {
			return spec.Unavailable()
		}
		return err
	case <-s.slow:
		return errTooSlow
	case <-stopped.Done():
		last := time.NewTimer(api.LastWrites)
		defer last.Stop()
		select {
		case <-done:
		case <-last.C:
		}
		return spec.Unavailable()
	}
}

// send writes one message.
// After WriteTimeout run returns, and with it the stream ends; write then fails.
func (s *sender) send(write func() error) error {
	s.blocked.Reset(s.api.config.Realtime.WriteTimeout)
	defer s.blocked.Stop()
	return write()
}

// failed rests after the database could not be read.
// It returns an error only if the stream has to end.
func (s *sender) failed(what string, err error) error {
	s.api.Logger.WarnContext(s.ctx, "stream cannot "+what+"; trying again", slog.Any("error", err))
	api.Pause(s.ctx, readRetry)
	return s.ctx.Err()
}

// deliveries is the stats.Handler that learns what became of the answer to a fetch: the library sends it after the handler has
// returned. Claimed jobs whose answer was not sent go back to their queue, and their attempt does not count.
// StreamJobs does not need it: it sends its jobs itself and sees the error.
type deliveries struct{ api *API }

// delivery is the answer of one call.
// The handler writes jobs, HandleRPC sent; both run on the goroutine of the call, or after it.
type delivery struct {
	jobs []*job.Record // claimed for it
	sent bool
}

type deliveryKey struct{}

// TagRPC prepares a call whose answer carries claimed jobs.
func (deliveries) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if rpcByName[info.FullMethodName].is&claims == 0 {
		return ctx
	}
	return context.WithValue(ctx, deliveryKey{}, &delivery{})
}

// HandleRPC hands back jobs at the end of a call. The library calls it from one goroutine for each call.
func (h deliveries) HandleRPC(ctx context.Context, event stats.RPCStats) {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	if !ok {
		return
	}
	switch event.(type) {
	// The event means that the message was handed to the transport. What the network loses after that is found by the end of
	// the reservation.
	case *stats.OutPayload:
		d.sent = true
	case *stats.End:
		if !d.sent {
			h.api.Jobs.HandBack(ctx, d.jobs)
		}
	}
}

// TagConn does nothing.
func (deliveries) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (deliveries) HandleConn(context.Context, stats.ConnStats) {}

// slots are the jobs of one stream that are still active, each with the start of the run that was sent. A job that came back and
// was sent again has a later start, so that news of its earlier run frees nothing. All times are the database's.
// The goroutine that claims takes slots, the one that follows frees them.
type slots struct {
	most  int
	freed chan struct{} // has an element when it is worth looking again

	mu   sync.Mutex
	held map[[16]byte]time.Time
}

// newSlots takes a most of at least 1; the size of held is at most most.
func newSlots(most int) *slots {
	return &slots{most: max(most, 1), freed: make(chan struct{}, 1), held: map[[16]byte]time.Time{}}
}

// wait returns the number of free slots when there is one.
// A token in freed may be stale; the loop counts again.
func (s *slots) wait(ctx context.Context) (int, error) {
	for {
		s.mu.Lock()
		free := s.most - len(s.held)
		s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case free > 0:
			return free, nil
		}
		select {
		case <-s.freed:
		case <-ctx.Done():
		}
	}
}

func (s *slots) take(id [16]byte, started time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id] = started
}

// release frees the slot of a job that ended at a time, if that is after its start.
// An event of an earlier run has a time before the start of this one.
func (s *slots) release(id [16]byte, ended time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if started, ok := s.held[id]; ok && ended.After(started) {
		s.free(id)
	}
}

// drop frees the slot of a job unless it has been sent again since.
func (s *slots) drop(id [16]byte, started time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.held[id]; ok && at.Equal(started) {
		s.free(id)
	}
}

// free wants s.mu held.
func (s *slots) free(id [16]byte) {
	delete(s.held, id)
	loop.Signal(s.freed)
}

// all copies what is held.
// The copy may be changed by its caller.
func (s *slots) all() (held map[[16]byte]time.Time, ids [][16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held = make(map[[16]byte]time.Time, len(s.held))
	for id, started := range s.held {
		held[id], ids = started, append(ids, id)
	}
	return held, ids
}
