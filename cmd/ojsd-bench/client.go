package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/valyala/fasthttp"
)

// callTimeout is above the longest that a fetch may wait for jobs (20 s).
const callTimeout = 40 * time.Second

// op is a kind of call. Latencies are recorded per op.
type op int

const (
	opConnect op = iota
	opEnqueue
	opBatch
	opFetch
	opAck
	opAckBatch
	opEvents
	opWorkflow
	opCancelWorkflow
	opConfigure
	opCommand
	opExplain
	opCount
)

var opNames = [opCount]string{"connect", "enqueue", "enqueue batch", "fetch", "ack", "ack batch", "list events", "create workflow", "cancel workflow", "configure queue", "change queue", "explain"}

// target is the server under test.
type target struct {
	base    string // scheme and host, without a slash at the end
	address string // host:port
	tls     *tls.Config
}

func parseTarget(base string) (target, error) {
	u, err := url.Parse(base)
	if err != nil {
		return target{}, fmt.Errorf("--url: %w", err)
	}
	t := target{base: u.Scheme + "://" + u.Host, address: u.Host}
	port := "80"
	switch u.Scheme {
	case "http":
	case "https":
		port = "443"
		t.tls = &tls.Config{ServerName: u.Hostname()}
	default:
		return target{}, fmt.Errorf("--url %q must begin with http:// or https://", base)
	}
	if u.Port() == "" {
		t.address = net.JoinHostPort(u.Hostname(), port)
	}
	return t, nil
}

// callError is a call that was not answered with 2xx, or not answered at all.
type callError struct {
	op     op
	status int // 0: no answer
	body   string
	cause  error
}

func (e *callError) Error() string {
	if e.status == 0 {
		return fmt.Sprintf("%s: %v", opNames[e.op], e.cause)
	}
	return fmt.Sprintf("%s: HTTP %d: %s", opNames[e.op], e.status, e.body)
}

func (e *callError) Unwrap() error { return e.cause }

// client is one simulated producer or worker: one keep-alive connection, used by one goroutine.
//
// It reads and writes messages with fasthttp but does not use fasthttp's HostClient, because that retries by itself and
// so could enqueue a job twice; it also keeps a pool and a goroutine that cleans it, which are not needed here. Measured
// against scenario null on 2 cores with 32 and 128 connections: within 10 % of HostClient and of hand-written requests
// on net.Conn, about 13 µs of CPU a call. calls has one request of each kind, made beforehand and sent many times; a caller
// changes body or path before it sends it.
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

	uniqueBody []byte // the other bodies of enqueues are shared by all clients
}

// record is what one client saw. Its load adds up the records when the clients have stopped. Only the goroutine of the client
// writes it while it runs.
type record struct {
	jobLists
	latency [opCount][]time.Duration
	acks    []ackMark
}

// ackMark says that n jobs were acknowledged at one time.
type ackMark struct {
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
	c.calls[opWorkflow] = c.request("POST", "/ojs/v1/workflows")
	c.calls[opEnqueue].SetBodyRaw(b.enqueue)
	c.calls[opBatch].SetBodyRaw(b.batch)
	return c
}

func (c *client) request(method, path string) *fasthttp.Request {
	req := &fasthttp.Request{}
	req.Header.SetMethod(method)
	req.SetRequestURI(c.target.base + path)
	if method != http.MethodGet {
		req.Header.SetContentType("application/openjobspec+json")
	}
	// Without this header, the answer to an enqueue carries the job's members a second time, at the top level.
	req.Header.Set("OJS-Version", "1.0")
	req.Header.SetUserAgent("ojsd-bench")
	return req
}

// do makes one call and returns the body of its answer, which is valid until the next call. Errors close the
// connection; the next call opens a new one. A call is never repeated: an enqueue whose answer was lost may have been stored
// (failures.unanswered). Calls without an answer have no latency.
func (c *client) do(o op) ([]byte, error) {
	start := time.Now()
	err := c.exchange(c.calls[o], start.Add(callTimeout))
	if err != nil {
		c.close()
		return nil, &callError{op: o, cause: err}
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

// close ends the connection. An error does not matter: all answers have been read.
func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}
