package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The scenarios here measure how long an event takes from the answer to the enqueue to each of several subscribers: SSE streams and
// the endpoints of webhooks, which run in this process and take their share of the processors.

// streamFigures are of --streams subscribers, whose streams are open before the first enqueue, so that each has to get every event.
func streamFigures(cfg config) []measurement {
	return []measurement{{figure: "streams", params: []param{{"streams", cfg.Streams}, {"rate", cfg.StreamRate}},
		body: func(ctx context.Context, l *load) (figure, error) {
			t, base := newTimeline(), time.Now()
			s, err := l.openStreams(ctx, l.cfg.Streams, base)
			defer s.close()
			if err != nil {
				return figure{}, err
			}
			if err := l.runAtRate(ctx, t, l.cfg.StreamRate); err != nil {
				return figure{}, err
			}
			l.waitFor(ctx, func() (missing int) {
				for _, c := range s.clients {
					missing += max(0, len(t.answered)-int(c.count.Load()))
				}
				return missing
			})
			s.close()
			frames := 0
			for _, c := range s.clients {
				frames += len(c.at)
			}
			seconds := t.enqueueSeconds()
			metrics := append(latencies("", streamDelays(s.clients, t, base), 50, 99, 100),
				metric{"jobs_per_s", float64(len(t.answered)) / seconds}, metric{"frames_per_s", float64(frames) / seconds})
			return figure{Metrics: metrics, Jobs: len(t.answered), Problems: streamProblems(s.clients, t)}, nil
		}}}
}

// streams are SSE subscribers of one queue.
type streams struct {
	clients []*streamClient
	readers sync.WaitGroup
}

// streamDials is how many streams are opened at once. More would wait in the listen backlog of the server's socket.
const streamDials = 32

// openStreams returns when the server has answered to all: then no later event is missed. The streams must be closed also after an
// error.
func (l *load) openStreams(ctx context.Context, n int, base time.Time) (*streams, error) {
	s := &streams{}
	slots := make(chan struct{}, streamDials)
	var opening sync.WaitGroup
	for i := range n {
		c := &streamClient{base: base, keepsJobs: i == 0}
		s.clients = append(s.clients, c)
		opening.Add(1)
		s.readers.Go(func() {
			slots <- struct{}{}
			c.err = c.open(ctx, l.target, l.bodies.queue)
			<-slots
			opening.Done()
			if c.body != nil {
				c.read()
			}
		})
	}
	opening.Wait()
	for _, c := range s.clients {
		if c.body == nil {
			return s, fmt.Errorf("open a stream: %w", c.err)
		}
	}
	return s, nil
}

// close ends the connections, and so the readers.
func (s *streams) close() {
	for _, c := range s.clients {
		if c.conn != nil {
			_ = c.conn.Close()
		}
	}
	s.readers.Wait()
}

// streamClient is one subscriber. To save CPU it reads only the ids of events; the first one also reads of which jobs
// they are. Only its reader writes the fields; count may be read by others, and the rest after the reader has ended.
type streamClient struct {
	conn net.Conn
	body io.ReadCloser
	base time.Time

	count atomic.Int64 // frames so far
	// 32 bits hold 71 minutes, in a sixth of the memory of a time.Time.
	at        []uint32 // µs from base to each
	last      uint64   // position of the latest
	sum       uint64   // of the squares of all positions: equal if two clients got the same events
	repeated  int      // positions that were not above the one before
	keepsJobs bool
	jobs      []jobID // of the events, if keepsJobs
	err       error
}

func (c *streamClient) open(ctx context.Context, t target, queue string) error {
	conn, err := t.dial()
	if err != nil {
		return err
	}
	c.conn = conn
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.base+"/ojs/v1/events/stream?types=job.enqueued&queues="+queue, nil)
	if err == nil {
		err = errors.Join(conn.SetDeadline(time.Now().Add(callTimeout)), req.Write(conn))
	}
	if err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 16<<10), req) //nolint:bodyclose // ends with the connection
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		return fmt.Errorf("HTTP %d: %s (the server needs OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT of at least --streams)", res.StatusCode,
			text)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	c.body = res.Body
	return nil
}

// read reads events until the connection ends. A closed connection is the usual end and no error.
func (c *streamClient) read() {
	buf := make([]byte, 0, 32<<10)
	for {
		n, err := c.body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			buf = c.consume(buf, uint32(time.Since(c.base).Microseconds()))
		}
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				c.err = err
			}
			return
		}
		if len(buf) == cap(buf) {
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
	}
}

// consume handles all whole lines and moves the rest to the beginning of buf. All events of one read have the same time, that
// of the read.
func (c *streamClient) consume(buf []byte, now uint32) []byte {
	text := buf
	for {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			return buf[:copy(buf, text)]
		}
		line := text[:end]
		text = text[end+1:]
		if id, ok := bytes.CutPrefix(line, []byte("id: evt_")); ok {
			c.addEvent(id, now)
		} else if c.keepsJobs && len(c.jobs) < len(c.at) && bytes.HasPrefix(line, []byte("data: ")) {
			job, _ := subject(line)
			c.jobs = append(c.jobs, job)
		}
	}
}

// addEvent records an event by its position, which is the last 62 bits of its id.
func (c *streamClient) addEvent(id []byte, now uint32) {
	var low [8]byte
	if len(id) == idLen {
		_, err := hex.Decode(low[:], append(append(make([]byte, 0, 16), id[19:23]...), id[24:]...))
		c.err = errors.Join(c.err, err)
	}
	position := binary.BigEndian.Uint64(low[:]) & (1<<62 - 1)
	if position <= c.last {
		c.repeated++
	}
	c.last = position
	c.sum += position * position
	c.at = append(c.at, now)
	c.count.Add(1)
}

// subject is the job of an event; a wrong id becomes the zero id, which is no job's.
func subject(event []byte) (job jobID, found bool) {
	_, id, found := bytes.Cut(event, []byte(`"subject":"`))
	job, _ = parseID(id[:min(len(id), idLen)])
	return job, found
}

// streamDelays lists, for each event at each client, the time since its enqueue was answered. It assumes that all clients
// got the same events in the same order, which streamProblems checks. An event before the answer counts as 0.
func streamDelays(clients []*streamClient, t *timeline, base time.Time) []time.Duration {
	first := clients[0]
	answered := make([]time.Duration, len(first.jobs))
	for i, id := range first.jobs {
		answered[i] = t.answered[id].Sub(base)
	}
	var samples []time.Duration
	for _, c := range clients {
		for i, at := range c.at[:min(len(c.at), len(answered))] {
			samples = append(samples, max(0, time.Duration(at)*time.Microsecond-answered[i]))
		}
	}
	return samples
}

// streamProblems compares each stream with the first one, by count and sum, which costs no memory for a list of ids per stream.
func streamProblems(clients []*streamClient, t *timeline) []string {
	first := clients[0]
	streamed := map[jobID]time.Time{}
	for _, id := range first.jobs {
		streamed[id] = time.Time{}
	}
	differ, repeated, ended := 0, 0, 0
	var endErr error
	for _, c := range clients {
		if c.repeated > 0 {
			repeated++
		}
		if len(c.at) != len(first.at) || c.sum != first.sum {
			differ++
		}
		if c.err != nil {
			ended++
			endErr = c.err
		}
	}
	return slices.Concat(problemOfMissing(t.answered, streamed, "whose event job.enqueued was never streamed"),
		problemIf(len(first.at)-len(t.answered), "more events than enqueued jobs were streamed"),
		problemIf(repeated, "streams got events twice or out of order"),
		problemIf(differ, "streams got other events than the first one"),
		problemIf(ended, fmt.Sprintf("streams ended early, one with: %v", endErr)))
}

// webhookFigures are of the endpoints of --hooks subscriptions.
func webhookFigures(cfg config) []measurement {
	return []measurement{{figure: "webhooks", params: []param{{"hooks", cfg.Hooks}, {"rate", cfg.HookRate}},
		body: func(ctx context.Context, l *load) (figure, error) {
			t := newTimeline()
			e, err := l.openEndpoint(l.cfg.Hooks)
			defer e.close()
			if err != nil {
				return figure{}, err
			}
			if err := l.runAtRate(ctx, t, l.cfg.HookRate); err != nil {
				return figure{}, err
			}
			jobs := len(t.answered)
			l.waitFor(ctx, func() int {
				e.mu.Lock()
				defer e.mu.Unlock()
				return jobs*len(e.received) - e.total
			})
			delays, problems := e.outcome(t)
			seconds := t.enqueueSeconds()
			metrics := append(latencies("", delays, 50, 99, 100),
				metric{"jobs_per_s", float64(jobs) / seconds}, metric{"deliveries_per_s", float64(jobs*l.cfg.Hooks) / seconds})
			return figure{Metrics: metrics, Jobs: jobs, Problems: problems}, nil
		}}}
}

// webhookEndpoint receives the deliveries of all subscriptions. The path of a request is the index of its subscription.
// mu guards the fields below it.
type webhookEndpoint struct {
	server *httptest.Server
	client *client
	ids    []string // of the subscriptions

	mu         sync.Mutex
	received   []map[jobID]time.Time // by subscription: the job of the event, and when it arrived
	total      int
	duplicates int
}

// openEndpoint makes n subscriptions for the queue of the load. The endpoint must be closed also after an error. At most 100
// deliveries are under way at a time, the largest number that a server allows.
func (l *load) openEndpoint(n int) (*webhookEndpoint, error) {
	e := &webhookEndpoint{client: newClient(l.target, "", l.bodies)}
	for range n {
		e.received = append(e.received, map[jobID]time.Time{})
	}
	e.server = httptest.NewServer(e)
	for i := range n {
		body, err := e.client.doAt(opSubscribe, "/ojs/v1/webhooks", fmt.Sprintf(
			`{"url":"%s/%d","events":["job.enqueued"],"filter":{"queues":[%q]},"secret":"only-for-the-benchmark-0","max_in_flight":100}`,
			e.server.URL, i, l.bodies.queue))
		var id []byte
		if err == nil {
			id, err = stringMember(body, "id")
		}
		if err != nil {
			return e, fmt.Errorf("%w (the server needs OJS_WEBHOOKS_ALLOW_HTTP=true and OJS_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8)", err)
		}
		e.ids = append(e.ids, string(id))
	}
	return e, nil
}

// close deletes the subscriptions, also after an interrupt.
func (e *webhookEndpoint) close() {
	for _, id := range e.ids {
		_, _ = e.client.doAt(opUnsubscribe, "/ojs/v1/webhooks/"+id, "") // what is left has an endpoint that does not answer
	}
	e.client.close()
	e.server.Close()
}

// ServeHTTP answers 200 whatever comes, so that no delivery is repeated because of this program.
func (e *webhookEndpoint) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(req.Body)
	n, pathErr := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/"))
	job, found := subject(body)
	if err != nil || pathErr != nil || n < 0 || n >= len(e.received) || !found {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, duplicate := e.received[n][job]; duplicate {
		e.duplicates++
		return
	}
	e.received[n][job] = now
	e.total++
}

// outcome is how long each delivery took from the answer to the enqueue. A repeated one is allowed by the guarantees of webhooks;
// here nothing fails, so it is a defect.
func (e *webhookEndpoint) outcome(t *timeline) (delays []time.Duration, problems []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var lost problemCounter
	unknown := 0
	for _, received := range e.received {
		delays = append(delays, elapsed(t.answered, received)...)
		for id := range t.answered {
			_, ok := received[id]
			lost.countIf(!ok, id)
		}
		unknown += max(0, len(received)-len(t.answered))
	}
	return delays, slices.Concat(lost.problem("whose event job.enqueued was never delivered"),
		problemIf(unknown, "deliveries of events of jobs that were not enqueued"),
		problemIf(e.duplicates, "events were delivered twice"))
}

const (
	steadyProducers = 16 // per node
	steadyWorkers   = 4  // per node
	steadyStep      = time.Minute
)

// runSteady measures minute by minute what a fixed rate does to two nodes on one database, with a stream and a webhook
// beside the workers. What piles up, in a queue or as dead rows, shows as figures that do not stay the same.
func runSteady(ctx context.Context, r *runner) error {
	if r.private == nil {
		return errors.New("it needs --private, because it starts a second node")
	}
	return r.onSides(func(r *runner) error { return r.measureSteady(ctx) })
}

// measureSteady gives both nodes one schedule of producers, so the rate is that of both together. The stream and the webhook only have to
// keep up. Figures are made at the end, because a job that is due in one step may be fetched in the next.
func (r *runner) measureSteady(ctx context.Context) error {
	node, err := r.private.startNode(ctx)
	if err != nil {
		return err
	}
	defer r.private.stopNode()
	second, err := parseTarget(node.url)
	if err != nil {
		return err
	}
	l, times := r.newLoad("steady"), newTimeline()
	s, err := l.openStreams(ctx, 1, time.Now())
	defer s.close()
	if err != nil {
		return err
	}
	e, err := l.openEndpoint(1)
	defer e.close()
	if err != nil {
		return err
	}
	t := &traffic{
		producers: steadyProducers, workers: steadyWorkers, next: openLoop(r.cfg.SteadyRate, r.cfg.Duration),
		times: times, nodes: []target{second},
	}
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	var samples []sample
	var sampler sync.WaitGroup
	sampler.Go(func() { samples = l.sampleEach(sampling, t, min(steadyStep, r.cfg.Duration/3)) })
	_, err = l.runTraffic(ctx, t)
	stop()
	sampler.Wait()
	if err == nil {
		err = l.emptyQueue(ctx)
	}
	if err != nil {
		return err
	}
	problems := l.problems()
	for i := 1; i < len(samples); i++ {
		f := times.steadyFigure(samples[i-1], samples[i])
		f.Params = append(r.label(), param{"rate", r.cfg.SteadyRate}, param{"nodes", 2}, param{"step", i})
		f.Problems, problems = problems, nil // once
		if err := r.out.report(summarize([]figure{f})); err != nil {
			return err
		}
	}
	return nil
}

// sample is the state of a run at one moment. Numbers but deadRows are totals since the start, and figures are made of
// differences.
type sample struct {
	at              time.Time
	enqueued, acked int64
	cpu             cpuTime
	deadRows        int64 // of ojs.jobs, as PostgreSQL estimates them
}

// sampleEach takes a sample at the start and after each step, until ctx ends.
func (l *load) sampleEach(ctx context.Context, t *traffic, step time.Duration) (samples []sample) {
	for ctx.Err() == nil {
		s := sample{at: time.Now(), enqueued: t.enqueued.Load(), acked: l.acked.Load(), cpu: l.private.cpuTime()}
		// Without the number the figure has 0; the run goes on.
		_ = l.db.conn.QueryRow(ctx, `SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'ojs' AND relname = 'jobs'`).Scan(&s.deadRows)
		samples = append(samples, s)
		sleep(ctx, step)
	}
	return samples
}

// steadyFigure is about the jobs that were due between two samples, and the state at the second one.
func (t *timeline) steadyFigure(from, to sample) figure {
	var delays []time.Duration
	for id, due := range t.due {
		if fetched, ok := t.fetched[id]; ok && !due.Before(from.at) && due.Before(to.at) {
			delays = append(delays, fetched.Sub(due))
		}
	}
	done := int(to.acked - from.acked)
	metrics := append(latencies("", delays, 50, 99, 100),
		metric{"jobs_per_s", float64(done) / to.at.Sub(from.at).Seconds()},
		metric{"backlog", float64(to.enqueued - to.acked)}, metric{"dead_rows", float64(to.deadRows)})
	return figure{Name: "steady", Metrics: append(metrics, to.cpu.minus(from.cpu).perJob(done)...), Jobs: done}
}
