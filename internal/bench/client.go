package bench

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/valyala/fasthttp"
)

// callTimeout is above the longest wait of a parked fetch (20 s).
const callTimeout = 40 * time.Second

// op is a kind of call; latencies are kept per op.
type op int

const (
	opConnect op = iota
	opEnqueue
	opBatch
	opFetch
	opAck
	opAckBatch
	opEvents
	opCount
)

var opNames = [opCount]string{"connect", "enqueue", "enqueue batch", "fetch", "ack", "ack batch", "list events"}

// target is the server under test.
type target struct {
	base    string // scheme and host, without a slash at the end
	address string // host:port
	tls     *tls.Config
}

func parseTarget(base string) (target, error) {
	u, err := url.Parse(base)
	if err != nil {
		return target{}, fmt.Errorf("server address: %w", err)
	}
	t := target{base: u.Scheme + "://" + u.Host, address: u.Host}
	port := "80"
	switch u.Scheme {
	case "http":
	case "https":
		port = "443"
		t.tls = &tls.Config{ServerName: u.Hostname()}
	default:
		return target{}, fmt.Errorf("server address %q: it must begin with http:// or https://", base)
	}
	if u.Port() == "" {
		t.address = net.JoinHostPort(u.Hostname(), port)
	}
	return t, nil
}

// callError is a call that was not answered with 2xx, or not answered at all.
type callError struct {
	op      op
	status  int // 0: no answer
	body    string
	outcome error
}

func (e *callError) Error() string {
	if e.status == 0 {
		return fmt.Sprintf("%s: %v", opNames[e.op], e.outcome)
	}
	return fmt.Sprintf("%s: HTTP %d: %s", opNames[e.op], e.status, e.body)
}

func (e *callError) Unwrap() error { return e.outcome }

// client is one simulated producer or worker: one keep-alive connection, used by one goroutine.
//
// It uses fasthttp's reading and writing of messages but not its HostClient: a connection of our own has no pool, no
// cleaner, and above all no silent retry, which could enqueue a job twice. Measured against a server that does nothing
// (2 cores, 32 and 128 connections): within 10 % of HostClient and of hand-made requests on net.Conn, about 13 µs of
// CPU a call.
type client struct {
	target target
	name   string
	conn   net.Conn
	reader *bufio.Reader
	writer *bufio.Writer
	resp   fasthttp.Response
	calls  [opCount]*fasthttp.Request
	bodies bodies
	record
}

// record is what one client saw; the load it belongs to merges the records when the clients have stopped.
type record struct {
	enqueued, fetched, acked []jobID
	latency                  [opCount][]time.Duration
	marks                    []mark
}

// mark says that n more jobs were acknowledged at a time.
type mark struct {
	at time.Time
	n  int
}

func newClient(t target, name string, b bodies) *client {
	c := &client{target: t, name: name, bodies: b}
	c.calls[opConnect] = c.request("GET", "/healthz")
	c.calls[opEnqueue] = c.request("POST", "/ojs/v1/jobs")
	c.calls[opBatch] = c.request("POST", "/ojs/v1/jobs/batch")
	c.calls[opFetch] = c.request("POST", "/ojs/v1/workers/fetch")
	c.calls[opAck] = c.request("POST", "/ojs/v1/workers/ack")
	c.calls[opAckBatch] = c.request("POST", "/ojs/v1/workers/ack/batch")
	c.calls[opEvents] = c.request("GET", "/ojs/v1/events")
	c.calls[opEnqueue].SetBodyRaw(b.enqueue)
	c.calls[opBatch].SetBodyRaw(b.batch)
	return c
}

func (c *client) request(method, path string) *fasthttp.Request {
	req := &fasthttp.Request{}
	req.Header.SetMethod(method)
	req.SetRequestURI(c.target.base + path)
	if method == "POST" {
		req.Header.SetContentType("application/openjobspec+json")
	}
	// Its presence also spares us the flat copy of the job in the answer to an enqueue.
	req.Header.Set("OJS-Version", "1.0")
	req.Header.SetUserAgent("ojsd-bench")
	return req
}

// do makes one call and returns the body of its answer, which is valid until the next call. Errors close the
// connection; the next call opens a new one.
func (c *client) do(o op) ([]byte, error) {
	start := time.Now()
	err := c.exchange(c.calls[o], start.Add(callTimeout))
	if err != nil {
		c.close()
		return nil, &callError{op: o, outcome: err}
	}
	c.latency[o] = append(c.latency[o], time.Since(start))
	body := c.resp.Body()
	if status := c.resp.StatusCode(); status < 200 || status > 299 {
		err = &callError{op: o, status: status, body: string(body[:min(len(body), 500)])}
	}
	if c.resp.ConnectionClose() {
		c.close()
	}
	return body, err
}

func (c *client) exchange(req *fasthttp.Request, deadline time.Time) error {
	if c.conn == nil {
		if err := c.dial(); err != nil {
			return err
		}
	}
	if err := c.conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := req.Write(c.writer); err != nil {
		return err
	}
	if err := c.writer.Flush(); err != nil {
		return err
	}
	return c.resp.Read(c.reader)
}

func (c *client) dial() error {
	conn, err := net.DialTimeout("tcp", c.target.address, 5*time.Second)
	if err != nil {
		return err
	}
	if c.target.tls != nil {
		conn = tls.Client(conn, c.target.tls)
	}
	c.conn = conn
	c.reader = bufio.NewReaderSize(conn, 16<<10)
	c.writer = bufio.NewWriterSize(conn, 16<<10)
	return nil
}

// close ends the connection. What the peer thinks of it does not matter any more.
func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}
