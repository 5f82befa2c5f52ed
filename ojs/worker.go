package ojs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// WorkerConfig describes a [Worker]. Zero fields have the defaults that are named. NewWorker copies it; changes afterwards have
// no effect.
type WorkerConfig struct {
	// A queue that is empty, or does not exist, costs nothing but a look. Up to 100 names.
	Queues      []string       // looked at in this order: a later queue waits while an earlier one has jobs; default: the queue default
	Weights     map[string]int // of queues: each comes first in this share of the fetches, so that none waits for ever; 0 is 1
	Concurrency int            // jobs that run at the same time; default 10
	// The jobs of a queue that is full stay on the server, where other workers can fetch them. A fetch asks for no more jobs than each of
	// its queues has room for, and waits for PollInterval at most while a queue that is full is left out. After one that brings no job of
	// the queue with the least room, the next one is without that queue. A queue that the worker does not
	// serve, and a number below 1, are mistakes, and NewWorker panics.
	QueueConcurrency map[string]int // of queues: how many of its jobs run at the same time in this worker; default: Concurrency

	// Two running processes must not share an ID: a directive, or the end of one of them, would concern both.
	ID string // of this process; default: host name, process id and a random part
	// It bounds how long a job waits after this process has died. Too short, and a pause of the process (a garbage collection,
	// a machine that sleeps) loses its jobs; heartbeats are sent at least three times in each reservation.
	VisibilityTimeout time.Duration // reservation of a job, which heartbeats renew; default: that of the job or the server
	HeartbeatInterval time.Duration // default 5 s; shorter if reservations are
	PollInterval      time.Duration // between fetches without jobs, if the server has no long polling; default 1 s
	LongPoll          time.Duration // how long a fetch waits for jobs; default 15 s; negative: not at all
	// It should be 5 s below the time after which a supervisor kills the process, which is 30 s in most: see [Worker.Start].
	GracePeriod time.Duration // how long jobs may run on after a stop; default 25 s; negative: not at all
	// In a deployment old workers meet jobs of new types. They give them back without counting the attempt, and each is kept from workers
	// for 1 s at first and 1 min later on, until a worker that has the handler gets it. The time counts from the first job of the type.
	UnhandledFor time.Duration // how long jobs of a type without handler are given back before they fail; default 1 h; negative: not at all

	Labels  []string // shown in the registry of workers
	Version string   // of the program, shown in the registry of workers

	Logger *slog.Logger // nil: that of the client
}

// Worker fetches jobs and runs them with the handlers that are registered. It is made by NewWorker and runs once.
type Worker struct {
	// Middleware wraps the execution of jobs.
	Middleware Middlewares[MiddlewareFunc]

	client     *Client
	config     WorkerConfig
	id         string
	logger     *slog.Logger
	registered bool                     // of the heartbeats: the server has forgotten what an earlier process of this name has reported
	answered   bool                     // of the heartbeats: the server has answered one
	extensions atomic.Pointer[Manifest] // nil: not asked yet
	listeners  listeners

	fetchesAlone atomic.Bool // the server has passed over a fetch in a batch of reports

	completed      atomic.Int64 // jobs that the server has taken as completed
	reportAnswers  atomic.Int64 // requests with reports that were answered
	reportFailures atomic.Int64 // those that have failed since
	fetchFailures  atomic.Int64 // the same of fetches in batches of reports

	beatNow   chan struct{} // a heartbeat is due
	slotFree  chan struct{} // a fetch may be possible
	reportNow chan struct{} // a report is ready
	changed   chan struct{} // something that a stop waits for has ended
	stopNow   chan struct{} // closed by StopNow

	// mu guards the fields below and the marks of each run. It is never kept during a request or a call of a handler.
	mu        sync.Mutex
	handlers  map[string]HandlerFunc
	unhandled map[string]unhandled
	state     Directive // as in the heartbeats
	began     bool
	stop      context.CancelCauseFunc // begins the graceful stop
	inHand    map[string]*run         // by id of the job: all that this worker keeps reserved
	running   int                     // handlers that have not returned
	busy      map[string]int          // by queue: the same, and the jobs that fetches with reports may bring
	ready     []*report
	delayed   []*report // wait for their time
	sending   int       // requests of reports on their way
	polling   fetchPlan // of the fetch without reports that is on its way, and may wait there
	asked     int       // jobs that fetches with reports have asked for
	hungry    bool      // the last fetch has brought fewer jobs than there were slots
	// emptyQueues are passed over by the next fetch, see fetchPlan.result.
	emptyQueues []string
}

// run is an attempt in the hands of this worker.
type run struct {
	*Job

	queue    string // that of the job, which the handler can change
	worker   *Worker
	life     context.Context // of requests about the run, which go on while the worker stops
	ctx      context.Context // of the handler
	cancel   context.CancelCauseFunc
	duration time.Duration // of the handler, once it has ended
	output   atomic.Pointer[json.RawMessage]
	progress progressReports

	// Guarded by Worker.mu.
	lost      bool // nothing is to be reported
	ended     bool // the handler has returned
	reporting bool // the report is on its way, and its answer tells what became of it
}

func (r *run) setResult(data json.RawMessage) { r.output.Store(&data) }

func (r *run) isLost() bool {
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	return r.lost
}

func (r *run) result() json.RawMessage {
	if data := r.output.Load(); data != nil {
		return *data
	}
	return nil
}

// NewWorker makes a worker. Register handlers, then call Start. It calls nobody; the server learns of the worker with the first
// heartbeat of Start.
func NewWorker(client *Client, config WorkerConfig) *Worker {
	notNil("the client of a worker", client == nil)
	host, _ := os.Hostname()
	config.Queues = slices.Clone(config.Queues)
	for _, q := range slices.Sorted(maps.Keys(config.Weights)) {
		if !slices.Contains(config.Queues, q) {
			config.Queues = append(config.Queues, q)
		}
	}
	if len(config.Queues) == 0 {
		config.Queues = []string{"default"}
	}
	config.Concurrency = cmp.Or(max(config.Concurrency, 0), 10)
	config.QueueConcurrency = maps.Clone(config.QueueConcurrency)
	for _, q := range slices.Sorted(maps.Keys(config.QueueConcurrency)) {
		if limit := config.QueueConcurrency[q]; limit < 1 {
			panic(fmt.Sprintf("ojs: the QueueConcurrency of queue %q is %d: it must be at least 1", q, limit))
		}
		if !slices.Contains(config.Queues, q) {
			panic(fmt.Sprintf("ojs: QueueConcurrency names queue %q, which is not one of the queues of the worker", q))
		}
	}
	config.HeartbeatInterval = cmp.Or(max(config.HeartbeatInterval, 0), 5*time.Second)
	config.PollInterval = cmp.Or(max(config.PollInterval, 0), time.Second)
	config.LongPoll = cmp.Or(config.LongPoll, 15*time.Second)
	config.GracePeriod = cmp.Or(config.GracePeriod, 25*time.Second)
	config.UnhandledFor = cmp.Or(config.UnhandledFor, time.Hour)
	logger := cmp.Or(config.Logger, client.logger)
	named := config.ID != ""
	config.ID = cmp.Or(config.ID, fmt.Sprintf("%s-%d-%s", cmp.Or(host, "go"), os.Getpid(), NewID()[24:]))
	return &Worker{
		client: client, config: config, id: config.ID, logger: logger.With("worker_id", config.ID),
		listeners: listeners{source: "ojs-go/workers/" + config.ID, workerID: config.ID, logger: logger}, beatNow: make(chan struct{}, 1),
		slotFree: make(chan struct{}, 1), reportNow: make(chan struct{}, 1), changed: make(chan struct{}, 1), stopNow: make(chan struct{}),
		handlers: map[string]HandlerFunc{}, unhandled: map[string]unhandled{}, inHand: map[string]*run{}, busy: map[string]int{},
		state: DirectiveRunning, registered: !named,
	}
}

// Register adds the handler of a type of jobs. It panics if the type has one, if no job can have the type, or if handler is nil. It may
// be called after Start, too. Jobs of a type without handler are given back for a time (UnhandledFor), and then fail with the code
// handler_not_found. Options hold for the jobs of this type.
func (w *Worker) Register(jobType string, handler HandlerFunc, options ...HandlerOption) {
	if !typePattern.MatchString(jobType) {
		panic(fmt.Sprintf("ojs: no job can have the type %q: types are words of a to z, 0 to 9, _ and -, with dots between them", jobType))
	}
	notNil("the handler of "+jobType, handler == nil)
	handler = withOptions(jobType, handler, options)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, taken := w.handlers[jobType]; taken {
		panic("ojs: there is a handler for jobs of type " + jobType + " already")
	}
	w.handlers[jobType] = handler
}

// Use adds middleware around the execution of jobs at the end, that is, innermost.
func (w *Worker) Use(middleware ...MiddlewareFunc) { w.Middleware.Use(middleware...) }

// UseNamed adds middleware at the end under a new name, by which [Worker].Middleware finds it again.
func (w *Worker) UseNamed(name string, middleware MiddlewareFunc) {
	w.Middleware.UseNamed(name, middleware)
}

// typePattern is the form of types of jobs (docs/reference/jobs.md, Attributes).
var typePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$`)

// notNil panics where a nil would only be noticed in the middle of a job.
func notNil(what string, isNil bool) {
	if isNil {
		panic("ojs: " + what + " is nil")
	}
}

// ID is the name under which the server knows this worker.
func (w *Worker) ID() string { return w.id }

// ErrGracePeriod says that handlers did not return when the worker stopped, although their context was cancelled. Their jobs go to other
// workers when their reservations end.
var ErrGracePeriod = errors.New("ojs: jobs were still running after the grace period")

var (
	errTerminated = errors.New("the server directs this worker to terminate")
	errStopNow    = errors.New("StopNow was called")
)

// The times of a stop. What comes after the grace period takes 4 s, so that a stop ends within 29 s by default: most supervisors kill a
// process after 30 s.
const (
	// abortPeriod is how long handlers may take to return after their context is cancelled at the end of the grace period.
	abortPeriod = 2 * time.Second
	// flushPeriod is how long a stop waits for the reports of jobs that have ended, but no longer than the grace period and abortPeriod
	// leave. lastReports comes in addition, for the reports of jobs that have ended at the last moment.
	flushPeriod, lastReports = 10 * time.Second, time.Second
	// leavePeriod is how long the worker may take to end its entry in the registry of the server.
	leavePeriod = time.Second
	// fetchEnd is how long a stop waits for the answer to a fetch, whose jobs would be lost for the time of their reservation. It is a part
	// of the grace period.
	fetchEnd = 2 * time.Second
)

// Directive is what a server tells a worker to do, and what a worker says that it does (docs/reference/workers.md, Directives).
type Directive string

// Directives for workers.
const (
	DirectiveRunning   Directive = "running"
	DirectiveQuiet     Directive = "quiet"     // fetch no more, finish what is in hand
	DirectiveTerminate Directive = "terminate" // finish and stop
)

// Start fetches and runs jobs until ctx is done or the server tells the worker to terminate. Then it fetches no more, lets jobs in hand
// finish within the grace period, cancels the context of the others and hands those back. It returns nil, ErrGracePeriod, or why it could
// not begin. A server that cannot be reached is waited for. It can be called once, and not without a handler: such a worker would fail
// every job of its queues.
//
// A stop takes up to GracePeriod, of which a fetch on its way takes up to 2 s, and then up to 2 s for handlers whose context has ended to
// return, 1 s for their reports and 1 s to leave the registry of the server: 29 s by default. If a supervisor kills the process earlier,
// its jobs wait for the end of their reservations. [Worker.StopNow] ends the grace period early.
func (w *Worker) Start(ctx context.Context) error {
	stopping, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.mu.Lock()
	switch {
	case w.began:
		w.mu.Unlock()
		return errors.New("ojs: a worker runs once")
	case len(w.handlers) == 0:
		w.mu.Unlock()
		return errors.New("ojs: the worker has no handlers: call Register before Start")
	}
	w.began, w.stop = true, stop
	select {
	case <-w.stopNow: // before Start
		stop(errStopNow)
	default:
	}
	w.mu.Unlock()

	// life outlasts ctx: heartbeats and reports go on while jobs finish.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var loops, fetching sync.WaitGroup
	loops.Go(func() { w.heartbeatLoop(life) })
	loops.Go(func() { w.reportLoop(stopping, life) })
	var refused error
	fetching.Go(func() { refused = w.fetchLoop(stopping, life) })
	<-stopping.Done()
	stopped := time.Now()
	w.logger.InfoContext(ctx, "worker stops", "cause", context.Cause(stopping))
	// Before the heartbeat that follows, which tells the server that this worker terminates.
	w.setState(DirectiveTerminate)
	signal(w.beatNow) // it also ends a fetch that waits
	// Fetches end before the wait for jobs begins, or one could bring jobs that nobody waits for.
	fetching.Wait()
	// Heartbeats go on during the drain, so that no reservation ends while a handler finishes.
	err := errors.Join(refused, w.drain(stopped.Add(w.config.GracePeriod)))
	end()
	loops.Wait()
	// After the loops have ended: a heartbeat that was still on its way would list jobs again, and enter the worker in the registry.
	w.leave(ctx, err)
	w.listeners.emit(EventWorkerStopped, nil, nil)
	return err
}

// StopNow stops a worker without a grace period, or ends that of a stop: the contexts of all jobs are cancelled, and those whose handlers
// return with an error are handed back without counting the attempt. Start returns within 6 s; it returns [ErrGracePeriod] if handlers go
// on nevertheless. StopNow itself returns at once. It may be called at any time and more than once; a program calls it at a second signal.
func (w *Worker) StopNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.stopNow:
		return
	default:
	}
	close(w.stopNow)
	if w.stop != nil {
		w.stop(errStopNow)
	}
}

// drain waits for jobs in hand, which may run until the end of the grace period.
func (w *Worker) drain(graceEnd time.Time) error {
	var late bool
	if !w.await(time.Until(graceEnd), w.stopNow, w.idle) {
		w.cancelAll(ErrWorkerStopped)
		late = !w.await(abortPeriod, nil, w.idle)
	}
	// Reports that wait for their time cannot wait any longer: their jobs would stay reserved for a process that is gone.
	w.release()
	reported := func() bool { return len(w.ready)+len(w.delayed)+w.sending == 0 }
	flushed := w.await(min(flushPeriod, time.Until(graceEnd.Add(abortPeriod))), w.stopNow, reported) || w.await(lastReports, nil, reported)
	if !flushed {
		w.logger.Error("outcomes of jobs could not be reported; other workers will run these jobs again")
	}
	if late {
		return ErrGracePeriod
	}
	return nil
}

func (w *Worker) idle() bool { return w.running == 0 }

// await waits until done, which is called with the lock, and reports whether that was in time and before early was closed. changed is a
// wake-up with room for one: the condition is looked at again after each.
func (w *Worker) await(limit time.Duration, early <-chan struct{}, done func() bool) bool {
	timer := time.NewTimer(max(limit, 0))
	defer timer.Stop()
	for {
		w.mu.Lock()
		ok := done()
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-w.changed:
		case <-early:
			return false
		case <-timer.C:
			return false
		}
	}
}

// cancelAll cancels the contexts of all jobs in hand.
func (w *Worker) cancelAll(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.inHand {
		r.cancel(cause)
	}
}

func (w *Worker) setState(state Directive) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = state
}

// signal wakes the reader of a channel of capacity one. It never blocks: a wake-up that is there already is enough for the one
// who reads it.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
