package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// streamDials is how many streams are opened at once. More would wait in the listen backlog of the server's socket.
const streamDials = 32

// runStreams measures how long an event takes to each of --streams subscribers.
func runStreams(ctx context.Context, r *runner) error { return r.repeat(ctx, measureStreams) }

// Streams are open before the first enqueue, so each has to get every event.
func measureStreams(ctx context.Context, r *runner) (figure, error) {
	l, t := r.newLoad("streams"), newTimeline()
	l.cfg.Rate = r.cfg.StreamRate
	base := time.Now()
	clients, err := l.openStreams(ctx, base)
	defer closeStreams(clients)
	if err != nil {
		return figure{}, err
	}
	var reading sync.WaitGroup
	for _, c := range clients {
		reading.Go(c.read)
	}
	err = l.runAtRate(ctx, t)
	if err == nil {
		waitForStreams(ctx, clients, len(t.answered), r.cfg.stallTimeout)
	}
	closeStreams(clients)
	reading.Wait()
	if err != nil {
		return figure{}, err
	}
	if err := l.emptyQueue(ctx); err != nil {
		return figure{}, err
	}
	frames := 0
	for _, c := range clients {
		frames += len(c.at)
	}
	seconds := t.enqueueSeconds()
	metrics := append(latencies("", streamDelays(clients, t, base), 50, 99, 100),
		metric{"jobs_per_s", float64(len(t.answered)) / seconds}, metric{"frames_per_s", float64(frames) / seconds})
	params := []param{{"streams", r.cfg.Streams}, {"rate", r.cfg.StreamRate}}
	f := l.figure("streams", params, metrics, len(t.answered))
	f.Problems = append(f.Problems, streamProblems(clients, t)...)
	return f, nil
}

// enqueueSeconds is the time from the first answered enqueue to the last.
func (t *timeline) enqueueSeconds() float64 {
	var first, last time.Time
	for _, at := range t.answered {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return span{start: first, end: last}.seconds()
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

// On an error it returns the streams that are open, for closeStreams.
func (l *load) openStreams(ctx context.Context, base time.Time) (clients []*streamClient, err error) {
	var mu sync.Mutex
	var dialing sync.WaitGroup
	slots := make(chan struct{}, streamDials)
	for i := range l.cfg.Streams {
		c := &streamClient{base: base, keepsJobs: i == 0}
		clients = append(clients, c)
		dialing.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if openErr := c.open(ctx, l.target, l.bodies.queue); openErr != nil {
				mu.Lock()
				defer mu.Unlock()
				err = openErr
			}
		})
	}
	dialing.Wait()
	return clients, err
}

func closeStreams(clients []*streamClient) {
	for _, c := range clients {
		if c.conn != nil {
			_ = c.conn.Close() // so that its reader ends
		}
	}
}

// open returns when the server has answered: then no later event is missed.
func (c *streamClient) open(ctx context.Context, t target, queue string) error {
	d := newClient(t, "", bodies{})
	if err := d.dial(); err != nil {
		return fmt.Errorf("open a stream: %w", err)
	}
	c.conn = d.conn
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.base+"/ojs/v1/events/stream?types=job.enqueued&queues="+queue, nil)
	if err != nil {
		return err
	}
	if err := c.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	if err := req.Write(c.conn); err != nil {
		return fmt.Errorf("open a stream: %w", err)
	}
	res, err := http.ReadResponse(bufio.NewReaderSize(c.conn, 16<<10), req) //nolint:bodyclose // ends with the connection
	if err != nil {
		return fmt.Errorf("open a stream: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		return fmt.Errorf("open a stream: HTTP %d: %s (the server needs OJS_REALTIME_MAX_CONNECTIONS_PER_CLIENT of at least --streams)", res.StatusCode, text)
	}
	c.body = res.Body
	return c.conn.SetDeadline(time.Time{})
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

var (
	idLine     = []byte("id: evt_")
	subjectKey = []byte(`"subject":"`)
)

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
		switch {
		case bytes.HasPrefix(line, idLine):
			c.addEvent(line[len(idLine):], now)
		case c.keepsJobs && len(c.jobs) < len(c.at) && bytes.HasPrefix(line, []byte("data: ")):
			c.addJob(line)
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
	var position uint64
	for _, b := range low {
		position = position<<8 | uint64(b)
	}
	if position &= 1<<62 - 1; position <= c.last {
		c.repeated++
	}
	c.last = position
	c.sum += position * position
	c.at = append(c.at, now)
	c.count.Add(1)
}

// addJob records the job of the event in a data line.
func (c *streamClient) addJob(line []byte) {
	var id jobID
	if at := bytes.Index(line, subjectKey); at >= 0 && at+len(subjectKey)+idLen <= len(line) {
		id, _ = parseID(line[at+len(subjectKey):][:idLen]) // a wrong id becomes the zero id, which is no job's
	}
	c.jobs = append(c.jobs, id)
}

// waitForStreams waits, up to limit, until each client has n events.
func waitForStreams(ctx context.Context, clients []*streamClient, n int, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		missing := false
		for _, c := range clients {
			missing = missing || c.count.Load() < int64(n)
		}
		if !missing {
			return
		}
	}
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

// Comparing each stream with the first one, by count and sum, costs no memory for a list of ids per stream.
func streamProblems(clients []*streamClient, t *timeline) (problems []string) {
	first := clients[0]
	streamed := map[jobID]bool{}
	for _, id := range first.jobs {
		streamed[id] = true
	}
	var lost problemCounter
	for id := range t.answered {
		lost.countIf(!streamed[id], id)
	}
	problems = lost.appendTo(problems, "whose event job.enqueued was never streamed")
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
	if extra := len(first.at) - len(t.answered); extra > 0 {
		problems = append(problems, fmt.Sprintf("%d more events than enqueued jobs were streamed", extra))
	}
	if repeated > 0 {
		problems = append(problems, fmt.Sprintf("%d streams got events twice or out of order", repeated))
	}
	if differ > 0 {
		problems = append(problems, fmt.Sprintf("%d streams got other events than the first one", differ))
	}
	if ended > 0 {
		problems = append(problems, fmt.Sprintf("%d streams ended early, one with: %v", ended, endErr))
	}
	return problems
}
