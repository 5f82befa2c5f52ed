package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// nullConns are the connection counts of null: those of the other scenarios.
var nullConns = []int{32, 128}

// nullFigures are the upper limit for this machine: a server written with net/http cannot answer more requests while this load
// generator runs beside it. All answers carry the same job, so jobs are not checked.
func nullFigures(config) (all []measurement) {
	for _, conns := range nullConns {
		all = append(all, measurement{figure: "null", params: []param{{"conns", conns}}, end: callsOnly,
			body: func(ctx context.Context, l *load) (figure, error) {
				address, stop, err := startNullServer(l.cfg.executable)
				if err != nil {
					return figure{}, fmt.Errorf("start the server of scenario null: %w", err)
				}
				defer stop()
				l.target = target{base: "http://" + address, address: address}
				s, requests, err := l.closedLoop(ctx, conns, func(c *client) error {
					_, err := c.do(opEnqueue)
					return err
				})
				s.cpu = cpuTime{} // of a server that has nothing to do
				return figure{Metrics: s.perJob("requests_per_s", requests, latencies("", l.latency[opEnqueue], 50, 95, 99)...),
					Jobs: requests}, err
			}})
	}
	return all
}

// startNullServer starts the server of null as a child process, because a real server is a process of its own, too.
// stop returns when the process has ended.
func startNullServer(executable string) (address string, stop func(), err error) {
	cmd := exec.Command(executable, "--null-server")
	cmd.Stderr = os.Stderr
	keepAlive, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut, cmd.Start()); err != nil {
		return "", nil, err
	}
	line, _ := bufio.NewReader(out).ReadString('\n') // without a line, the error of the ended server says why
	_ = out.Close()
	if line == "" {
		_ = keepAlive.Close()
		return "", nil, fmt.Errorf("no address: %w", cmd.Wait())
	}
	return strings.TrimSpace(line), func() {
		_ = keepAlive.Close()
		_ = cmd.Wait() // its error does not matter any more
	}, nil
}

// serveNull runs the server of scenario null on a free loopback port, writes its address as one line to out, and stops
// when in ends. A child process that reads its stdin so ends with its parent.
func serveNull(in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("null server: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(nullHandler), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = server.Close()
	}()
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		return fmt.Errorf("null server: %w", err)
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("null server: %w", err)
	}
	return nil
}

// nullHandler reads the request and answers it, as every handler must, and does nothing else.
func nullHandler(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body) // net/http closes the connection of a broken request
	header := w.Header()
	header.Set("Content-Type", "application/openjobspec+json")
	header.Set("OJS-Version", "1.0")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, nullAnswer)
}

// nullAnswer is a server's answer to an enqueue. It is about as long as the answer of the real server, because reading it is a
// part of the client's work.
const nullAnswer = `{"job":{"specversion":"1.0","id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","type":"bench.noop",` +
	`"queue":"bench-null-00000000","args":[{"id":123456,"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}],` +
	`"meta":{},"priority":0,"state":"available","attempt":0,"max_attempts":3,` +
	`"created_at":"2026-05-04T03:02:01.120Z","enqueued_at":"2026-05-04T03:02:01.120Z"}}`

// enqueueFigures enqueue one job after the other on each connection. Taking them out and checking them is not timed.
func enqueueFigures(cfg config) (all []measurement) {
	for _, conns := range cfg.Conns {
		all = append(all, measurement{figure: "enqueue", params: []param{{"conns", conns}},
			body: func(ctx context.Context, l *load) (figure, error) {
				s, jobs, err := l.closedLoop(ctx, conns, (*client).enqueueOne)
				return figure{Metrics: s.perJob("jobs_per_s", jobs, latencies("", l.latency[opEnqueue], 50, 95, 99)...), Jobs: jobs}, err
			}})
	}
	return all
}

// uniqueFigures enqueue jobs with a unique policy. A duplicate has a key that was sent before, and is answered with its job.
// The first key is always new, so the percentage is reached only after some calls. A duplicate may overtake the call with the new
// key; that one is the duplicate then.
func uniqueFigures(config) (all []measurement) {
	const conns = 32
	for _, percent := range []int{0, 50, 99} {
		all = append(all, measurement{figure: "unique", params: []param{{"conns", conns}, {"duplicates", percent}},
			body: func(ctx context.Context, l *load) (figure, error) {
				var keys atomic.Int64
				s, calls, err := l.closedLoop(ctx, conns, func(c *client) error {
					key := keys.Load()
					if key == 0 || rand.IntN(100) >= percent {
						key = keys.Add(1)
					} else {
						key = 1 + rand.Int64N(key)
					}
					return c.enqueueUnique(key)
				})
				return figure{Metrics: s.perJob("calls_per_s", calls, latencies("", l.latency[opEnqueue], 50, 95, 99)...),
					Jobs: len(l.jobs.enqueued)}, err
			}})
	}
	return all
}

func batchFigures(config) []measurement {
	return []measurement{{figure: "batch", params: []param{{"conns", batchConns}, {"batch", batchSize}},
		body: func(ctx context.Context, l *load) (figure, error) {
			s, err := l.fill(ctx, l.cfg.Jobs)
			jobs := len(l.jobs.enqueued)
			return figure{Metrics: s.perJob("jobs_per_s", jobs, latencies("call_", l.latency[opBatch], 50, 99)...), Jobs: jobs}, err
		}}}
}

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

// drainPlans are two ways to take and acknowledge jobs, each with every number of workers: as the SDKs do, and in batches.
func drainPlans(cfg config, jobs int) (plans []drainPlan) {
	for _, plan := range []drainPlan{{count: 10, ack: ackSingle}, {count: 100, ack: ackBatch}} {
		for _, workers := range cfg.Workers {
			plans = append(plans, drainPlan{jobs, workers, plan.count, plan.ack})
		}
	}
	return plans
}

func (p drainPlan) params() []param {
	return []param{{"workers", p.workers}, {"fetch", p.count}, {"ack", string(p.ack)}}
}

// measurement drains a new queue.
func (p drainPlan) measurement() measurement {
	return measurement{figure: "drain", params: p.params(), body: func(ctx context.Context, l *load) (figure, error) {
		if err := l.preload(ctx, p.jobs); err != nil {
			return figure{}, err
		}
		l.pause(ctx)
		metrics, err := l.drain(ctx, p)
		return figure{Metrics: metrics, Jobs: p.jobs}, err
	}}
}

// drainFigures are those of the usual plans, and with small fetches what a call saves.
func drainFigures(cfg config) (all []measurement) {
	plans := drainPlans(cfg, cfg.Jobs)
	for _, ack := range []ackStyle{ackBatch, ackFetch} {
		for _, workers := range cfg.Workers {
			plans = append(plans, drainPlan{cfg.Jobs, workers, 10, ack})
		}
	}
	for _, p := range plans {
		all = append(all, p.measurement())
	}
	return all
}

// drain takes p.jobs jobs out of the queue. The rates count up to the last ack; the empty fetches after it do not count.
// Workers share a budget of jobs: what a fetch did not bring is given back, so that exactly p.jobs are taken and none is
// fetched in vain at the end.
func (l *load) drain(ctx context.Context, p drainPlan) ([]metric, error) {
	l.resetTimes()
	left := newBudget(p.jobs)
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
	acks := l.latency[opAck]
	if len(acks) == 0 {
		acks = l.latency[opAckBatch]
	}
	return slices.Concat(drainRates(s.start, l.acks), latencies("fetch_", l.latency[opFetch], 50, 99), latencies("ack_", acks, 50, 99),
		s.cpu.perJob(p.jobs)), nil
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

func mixedFigures(cfg config) (all []measurement) {
	for _, m := range cfg.mixes {
		all = append(all, measurement{figure: "mixed", params: m.params(), body: func(ctx context.Context, l *load) (figure, error) {
			s, err := l.mixed(ctx, m)
			return figure{Metrics: mixedMetrics(s, l.cfg.Duration, l.acks, len(l.jobs.enqueued), l.latency[opEnqueue]),
				Jobs: len(l.jobs.enqueued)}, err
		}})
	}
	return all
}

func (m mix) params() []param { return []param{{"producers", m.producers}, {"workers", m.workers}} }

// mixed runs producers for --duration, and workers beside them. The workers outlive the producers until every job was acknowledged,
// or nothing moves any more.
func (l *load) mixed(ctx context.Context, m mix) (span, error) {
	more := l.limit()
	return l.runTraffic(ctx, &traffic{producers: m.producers, workers: m.workers, next: func() (time.Time, bool) {
		return time.Time{},
			more()
	}})
}

// mixedMetrics counts the jobs completed while the producers ran. The metric left is the jobs that were not: if it is
// large, the workers could not keep up, and a longer run would build up a backlog.
func mixedMetrics(s span, duration time.Duration, acks []ackMark, enqueued int, times []time.Duration) []metric {
	end := s.start.Add(duration)
	if s.end.Before(end) {
		end = s.end // maxCalls ended it early
	}
	done := 0
	for _, m := range acks {
		if !m.at.After(end) {
			done += m.n
		}
	}
	seconds := end.Sub(s.start).Seconds()
	metrics := []metric{
		{"jobs_per_s", float64(done) / seconds},
		{"enqueued_per_s", float64(enqueued) / seconds},
		{"left", float64(max(0, enqueued-done))},
	}
	return slices.Concat(metrics, latencies("enqueue_", times, 50, 99), s.cpu.perJob(enqueued))
}

// costFigures are what the database does for one job of mixed. It must serve nobody else meanwhile: the counters are of the whole
// server or database. A session may report its statistics up to 10 s after it has become idle, so they are read after a pause.
func costFigures(cfg config) (all []measurement) {
	for _, m := range cfg.mixes {
		all = append(all, measurement{figure: "cost", params: m.params(), body: func(ctx context.Context, l *load) (figure, error) {
			sleep(ctx, l.cfg.statsDelay)
			before, err := l.db.readCounters(ctx)
			if err != nil {
				return figure{}, err
			}
			if _, err := l.mixed(ctx, m); err != nil {
				return figure{}, err
			}
			sleep(ctx, l.cfg.statsDelay)
			after, err := l.db.readCounters(ctx)
			return figure{Metrics: after.perJob(before, len(l.jobs.acked)), Jobs: len(l.jobs.acked)}, err
		}})
	}
	return all
}

// sdkFigures compare one worker of package ojs, whose handler does nothing, with ten raw workers that together have as many jobs
// in hand and acknowledge and fetch in one call. Both run in each round, and take turns in being first. The ratio is of two rates of
// the same round, seconds apart, so a busy machine disturbs both.
func sdkFigures(config) (all []measurement) {
	const rawWorkers = 10
	for _, concurrency := range []int{100, 1000} {
		sdkFirst := true
		all = append(all, measurement{figure: "sdk", params: []param{{"concurrency", concurrency}}, end: callsOnly,
			body: func(ctx context.Context, l *load) (figure, error) {
				var sdk, raw figure
				measures := []func() error{
					func() (err error) {
						sdk, err = l.measureRound(ctx, measurement{figure: "sdk", end: check,
							body: func(ctx context.Context, l *load) (figure,
								error) {
								return l.drainBySDK(ctx, concurrency)
							}})
						return err
					},
					func() (err error) {
						raw, err = l.measureRound(ctx, drainPlan{l.cfg.Jobs, rawWorkers, concurrency / rawWorkers, ackFetch}.measurement())
						return err
					},
				}
				if sdkFirst = !sdkFirst; !sdkFirst {
					slices.Reverse(measures)
				}
				for _, measure := range measures {
					if err := measure(); err != nil {
						return figure{}, err
					}
				}
				rate, rawRate := sdk.Metrics[0].Value, raw.Metrics[0].Value
				return figure{
					Metrics: append([]metric{
						{"jobs_per_s", rate}, {"raw_jobs_per_s", rawRate}, {"sdk_to_raw_ratio", rate / max(rawRate, 1)},
					},
						sdk.Metrics[1:]...),
					Jobs: sdk.Jobs, Errors: sdk.Errors + raw.Errors, Problems: append(sdk.Problems, raw.Problems...),
				}, nil
			}})
	}
	return all
}

// drainBySDK measures from the start of the worker until it has stopped: the last outcomes are reported then.
// The handler that gets the last job stops the worker. Whether all acks arrived is asked of the server afterwards.
func (l *load) drainBySDK(ctx context.Context, concurrency int) (figure, error) {
	jobs := l.cfg.Jobs
	if err := l.preload(ctx, jobs); err != nil {
		return figure{}, err
	}
	c, err := ojs.NewClient(ojs.Config{URL: l.target.base, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return figure{}, err
	}
	defer c.Close()
	w := ojs.NewWorker(c, ojs.WorkerConfig{Queues: []string{l.bodies.queue}, Concurrency: concurrency,
		VisibilityTimeout: visibilityTimeoutMS * time.Millisecond})
	running, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	w.Register(jobType, func(ctx ojs.JobContext) error {
		id, err := parseID([]byte(ctx.Job.ID))
		mu.Lock()
		defer mu.Unlock()
		l.jobs.fetched = append(l.jobs.fetched, id)
		if len(l.jobs.fetched) == jobs {
			stop()
		}
		return err
	})
	l.pause(ctx)
	before, s := l.private.cpuTime(), span{start: time.Now()}
	err = w.Start(running)
	s.end = time.Now()
	s.cpu = l.private.cpuTime().minus(before)
	if err != nil {
		return figure{}, fmt.Errorf("worker: %w", errors.Join(err, ctx.Err()))
	}
	stats, err := ojsadmin.New(c).QueueStats(ctx, l.bodies.queue)
	if err != nil {
		return figure{}, err
	}
	l.jobs.acked = append(l.jobs.acked, l.jobs.fetched...)
	f := figure{Metrics: s.perJob("jobs_per_s", jobs), Jobs: jobs}
	if left := stats.Available + stats.Active + stats.Retryable + stats.Discarded; left > 0 {
		f.Problems = []string{fmt.Sprintf("%d jobs are not completed", left)}
	}
	return f, nil
}
