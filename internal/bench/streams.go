package bench

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

// streamDials is how many streams are opened at once: more would only fill the server's backlog.
const streamDials = 32

// runStreams measures how long an event takes to all subscribers: a fan-out of --streams from one event.
func runStreams(ctx context.Context, r *runner) error { return r.repeat(ctx, r.measureStreams) }

func (r *runner) measureStreams(ctx context.Context) (Figure, error) {
	l, t := r.newLoad("streams"), newTimeline()
	l.cfg.Rate = r.cfg.StreamRate
	base := time.Now()
	clients, err := l.openStreams(ctx, base)
	defer closeStreams(clients)
	if err != nil {
		return Figure{}, err
	}
	var reading sync.WaitGroup
	for _, c := range clients {
		reading.Go(c.read)
	}
	err = l.paced(ctx, t)
	if err == nil {
		awaitStreams(ctx, clients, len(t.answered), r.cfg.Stall)
	}
	closeStreams(clients)
	reading.Wait()
	if err != nil {
		return Figure{}, err
	}
	if err := l.settle(ctx); err != nil {
		return Figure{}, err
	}
	frames := 0
	for _, c := range clients {
		frames += len(c.at)
	}
	took := t.answering()
	metrics := append(latencies("", fanOut(clients, t, base), 50, 99, 100),
		Metric{"jobs_per_s", float64(len(t.answered)) / took}, Metric{"frames_per_s", float64(frames) / took})
	params := []Param{{"streams", r.cfg.Streams}, {"rate", r.cfg.StreamRate}}
	f := l.figure("streams", params, metrics, len(t.answered))
	f.Problems = append(f.Problems, streamProblems(clients, t)...)
	return f, nil
}

// answering is how many seconds lie between the first answer and the last.
func (t *timeline) answering() float64 {
	var first, last time.Time
	for _, at := range t.answered {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return span{first, last}.seconds()
}

// streamClient is one subscriber. To be light it looks at nothing but ids; only the first keeps whose events they are.
type streamClient struct {
	conn net.Conn
	body io.ReadCloser
	base time.Time

	count    atomic.Int64 // frames so far
	at       []uint32     // µs from base to each
	last     uint64       // position of the latest
	sum      uint64       // over all positions
	repeated int          // positions that did not grow
	leads    bool
	jobs     []jobID
	err      error
}

func (l *load) openStreams(ctx context.Context, base time.Time) (clients []*streamClient, err error) {
	var mu sync.Mutex
	var dialing sync.WaitGroup
	slots := make(chan struct{}, streamDials)
	for i := range l.cfg.Streams {
		c := &streamClient{base: base, leads: i == 0}
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
			_ = c.conn.Close() // its reader ends by it
		}
	}
}

// open returns when the server says that the stream is live.
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

// read takes frames until the connection ends.
func (c *streamClient) read() {
	buf := make([]byte, 0, 32<<10)
	for {
		n, err := c.body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			buf = c.take(buf, uint32(time.Since(c.base).Microseconds()))
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
	idLine  = []byte("id: evt_")
	subject = []byte(`"subject":"`)
)

// take consumes whole lines and returns the rest, at the beginning of the buffer.
func (c *streamClient) take(buf []byte, now uint32) []byte {
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
			c.frame(line[len(idLine):], now)
		case c.leads && len(c.jobs) < len(c.at) && bytes.HasPrefix(line, []byte("data: ")):
			c.subject(line)
		}
	}
}

// frame notes an event by its position: the last 62 bits of its id.
func (c *streamClient) frame(id []byte, now uint32) {
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

func (c *streamClient) subject(line []byte) {
	var id jobID
	if at := bytes.Index(line, subject); at >= 0 && at+len(subject)+idLen <= len(line) {
		id, _ = parseID(line[at+len(subject):][:idLen]) // the zero id is found to be nobody's
	}
	c.jobs = append(c.jobs, id)
}

// awaitStreams waits for the frames that are still on their way.
func awaitStreams(ctx context.Context, clients []*streamClient, n int, limit time.Duration) {
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

// fanOut lists, for every frame of every client, the time since the enqueue was answered; all get the same events in the
// same order, or streamProblems says so. A frame may overtake the answer; that counts as 0.
func fanOut(clients []*streamClient, t *timeline, base time.Time) []time.Duration {
	lead := clients[0]
	answered := make([]time.Duration, len(lead.jobs))
	for i, id := range lead.jobs {
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

func streamProblems(clients []*streamClient, t *timeline) (problems []string) {
	lead := clients[0]
	seen := map[jobID]bool{}
	for _, id := range lead.jobs {
		seen[id] = true
	}
	var lost finding
	for id := range t.answered {
		lost.note(id, !seen[id])
	}
	problems = lost.report(problems, "whose event job.enqueued was never streamed")
	differ, repeated, failed := 0, 0, 0
	for _, c := range clients {
		if c.repeated > 0 {
			repeated++
		}
		if len(c.at) != len(lead.at) || c.sum != lead.sum {
			differ++
		}
		if c.err != nil {
			failed++
			problems = append(problems[:min(len(problems), 5)], fmt.Sprintf("a stream ended: %v", c.err))
		}
	}
	if extra := len(lead.at) - len(t.answered); extra > 0 {
		problems = append(problems, fmt.Sprintf("%d events more than enqueues were streamed", extra))
	}
	if repeated > 0 {
		problems = append(problems, fmt.Sprintf("%d streams saw events twice or out of order", repeated))
	}
	if differ > 0 {
		problems = append(problems, fmt.Sprintf("%d streams saw other events than the first one", differ))
	}
	if failed > 1 {
		problems = append(problems, fmt.Sprintf("%d streams ended early", failed))
	}
	return problems
}
