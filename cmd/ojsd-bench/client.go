package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	// callTimeout is above the longest that a fetch may wait for jobs (20 s).
	callTimeout = 40 * time.Second
	// batchSize is the number of jobs in one batch call. The server accepts up to 10 000; a thousand is what its own group
	// commit takes in one statement.
	batchSize = 1000
	// visibilityTimeoutMS is longer than any scenario, so that no job returns to its queue because the machine is busy.
	// So every second delivery is an error of the server.
	visibilityTimeoutMS = 600_000
	jobType             = "bench.noop"
)

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
	opSubscribe
	opUnsubscribe
	opCount
)

// ops are the calls by kind. Those without a path are about one thing, which the caller names.
var ops = [opCount]struct{ name, method, path string }{
	opConnect:        {"connect", http.MethodGet, "/healthz"},
	opEnqueue:        {"enqueue", http.MethodPost, "/ojs/v1/jobs"},
	opBatch:          {"enqueue batch", http.MethodPost, "/ojs/v1/jobs/batch"},
	opFetch:          {"fetch", http.MethodPost, "/ojs/v1/workers/fetch"},
	opAck:            {"ack", http.MethodPost, "/ojs/v1/workers/ack"},
	opAckBatch:       {"ack batch", http.MethodPost, "/ojs/v1/workers/ack/batch"},
	opEvents:         {"list events", http.MethodGet, ""},
	opWorkflow:       {"create workflow", http.MethodPost, "/ojs/v1/workflows"},
	opCancelWorkflow: {"cancel workflow", http.MethodDelete, ""},
	opConfigure:      {"configure queue", http.MethodPut, ""},
	opCommand:        {"change queue", http.MethodPost, ""},
	opExplain:        {"explain", http.MethodGet, ""},
	opSubscribe:      {"subscribe", http.MethodPost, "/ojs/v1/webhooks"},
	opUnsubscribe:    {"unsubscribe", http.MethodDelete, ""},
}

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

func (t target) dial() (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", t.address, 5*time.Second)
	if err == nil && t.tls != nil {
		conn = tls.Client(conn, t.tls)
	}
	return conn, err
}

// bodies are the request bodies of one load, built once and sent many times. A bodies may be copied and its fields replaced,
// but the slices are shared by all clients and must not be written into.
type bodies struct {
	queue   string
	args    string // of each job
	waitMS  int    // of fetches
	enqueue []byte
	batch   []byte
}

// newBodies makes bodies for jobs whose args have about argsBytes bytes: an id and some text.
func newBodies(queue string, argsBytes, waitMS int) bodies {
	args := `[{"id":123456,"text":"` + strings.Repeat("x", max(1, argsBytes-len(`[{"id":123456,"text":""}]`))) + `"}]`
	b := bodies{queue: queue, args: args, waitMS: waitMS}
	b.setJob("", "")
	return b
}

// setJob gives the jobs more options, and members beside them. It makes new slices, so that copies from before keep their own.
func (b *bodies) setJob(options, members string) {
	job := b.job(options, members)
	b.enqueue, b.batch = []byte(job), batchBody(job, batchSize)
}

func (b *bodies) job(options, members string) string {
	return fmt.Sprintf(`{"type":%q,"args":%s,"options":{"queue":%q%s}%s}`, jobType, b.args, b.queue, options, members)
}

func batchBody(job string, n int) []byte { return []byte(`{"jobs":` + jobList(job, n) + `}`) }

func jobList(job string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(job+",", n), ",") + "]"
}

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
	for o, call := range ops {
		req := &fasthttp.Request{}
		req.Header.SetMethod(call.method)
		req.SetRequestURI(t.base + call.path)
		if call.method != http.MethodGet {
			req.Header.SetContentType("application/openjobspec+json")
		}
		// Without this header, the answer to an enqueue carries the job's members a second time, at the top level.
		req.Header.Set("OJS-Version", "1.0")
		req.Header.SetUserAgent("ojsd-bench")
		c.calls[o] = req
	}
	c.calls[opEnqueue].SetBodyRaw(b.enqueue)
	return c
}

// doAt makes a call about the thing at path.
func (c *client) doAt(o op, path, body string) ([]byte, error) {
	c.calls[o].SetRequestURI(c.target.base + path)
	c.calls[o].SetBodyRaw([]byte(body))
	return c.do(o)
}

// do makes one call and returns the body of its answer, which is valid until the next call. Errors close the
// connection; the next call opens a new one. A call is never repeated: an enqueue whose answer was lost may have been stored
// (failures.unanswered). Calls without an answer have no latency.
func (c *client) do(o op) ([]byte, error) {
	start := time.Now()
	if err := c.exchange(c.calls[o], start.Add(callTimeout)); err != nil {
		c.close()
		return nil, &callError{op: o, cause: err}
	}
	c.latency[o] = append(c.latency[o], time.Since(start))
	if c.resp.ConnectionClose() {
		c.close()
	}
	body := c.resp.Body()
	if status := c.resp.StatusCode(); status < 200 || status > 299 {
		return body, &callError{op: o, status: status, body: string(body[:min(len(body), 500)])}
	}
	return body, nil
}

func (c *client) exchange(req *fasthttp.Request, deadline time.Time) (err error) {
	if c.conn == nil {
		if c.conn, err = c.target.dial(); err != nil {
			c.conn = nil // not an interface that holds no connection
			return err
		}
		c.reader, c.writer = bufio.NewReaderSize(c.conn, 16<<10), bufio.NewWriterSize(c.conn, 16<<10)
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

// close ends the connection. An error does not matter: all answers have been read.
func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
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
		return fmt.Sprintf("%s: %v", ops[e.op].name, e.cause)
	}
	return fmt.Sprintf("%s: HTTP %d: %s", ops[e.op].name, e.status, e.body)
}

func (e *callError) Unwrap() error { return e.cause }

// enqueueOne enqueues one job. An answer without an id is an error, because the job could not be checked.
func (c *client) enqueueOne() error {
	body, err := c.do(opEnqueue)
	if err != nil {
		return err
	}
	return c.keepID(body)
}

// enqueueUnique enqueues a job with a unique key of this load. An answer 200 is that of a duplicate, for which nothing was stored.
// The body is built from the usual one each time, into memory that is used again.
func (c *client) enqueueUnique(key int64) error {
	c.uniqueBody = append(c.uniqueBody[:0], c.bodies.enqueue[:len(c.bodies.enqueue)-len(`}}`)]...)
	c.uniqueBody = append(append(append(c.uniqueBody, `,"unique":{"on_conflict":"ignore","key":"`...), c.bodies.queue...), '-')
	c.uniqueBody = append(strconv.AppendInt(c.uniqueBody, key, 10), `"}}}`...)
	c.calls[opEnqueue].SetBodyRaw(c.uniqueBody)
	body, err := c.do(opEnqueue)
	if err != nil || c.resp.StatusCode() == http.StatusOK {
		return err
	}
	return c.keepID(body)
}

// keepID notes the id of the job that the answer to an enqueue shows.
func (c *client) keepID(body []byte) error {
	job, err := member(body, "job")
	var id jobID
	if err == nil {
		id, err = idMember(job, "id")
	}
	if err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	c.enqueued = append(c.enqueued, id)
	return nil
}

// enqueueBatch enqueues n jobs, batchSize at most, in one call. An answer with another number of jobs is an error: jobs that
// are not known cannot be checked.
func (c *client) enqueueBatch(n int) error {
	batch := c.bodies.batch
	if n != batchSize {
		batch = batchBody(string(c.bodies.enqueue), n)
	}
	c.calls[opBatch].SetBodyRaw(batch)
	body, err := c.do(opBatch)
	if err != nil {
		return err
	}
	before := len(c.enqueued)
	c.enqueued, err = appendIDs(c.enqueued, body, "jobs")
	if err != nil {
		return fmt.Errorf("enqueue batch: %w", err)
	}
	if got := len(c.enqueued) - before; got != n {
		return fmt.Errorf("enqueue batch: sent %d jobs, the answer has %d", n, got)
	}
	return nil
}

// fetch takes up to n jobs, and waits up to bodies.waitMS for the first one. The slice that it returns is a part of the
// client's record and stays valid.
func (c *client) fetch(n int) ([]jobID, error) {
	req := c.calls[opFetch]
	req.SetBodyRaw(c.appendFetch(req.Body()[:0], n, c.bodies.waitMS))
	body, err := c.do(opFetch)
	if err != nil {
		return nil, err
	}
	return c.readJobs(body, n)
}

func (c *client) appendFetch(buf []byte, n, waitMS int) []byte {
	return fmt.Appendf(buf, `{"queues":["%s"],"count":%d,"worker_id":"%s","visibility_timeout_ms":%d,"wait_ms":%d}`,
		c.bodies.queue, n, c.name, visibilityTimeoutMS, waitMS)
}

// readJobs reads the jobs of an answer that was to have up to n. Jobs beyond the number that was asked for are recorded, too,
// so that they are not reported as lost later.
func (c *client) readJobs(body []byte, n int) (_ []jobID, err error) {
	before := len(c.fetched)
	if c.fetched, err = appendIDs(c.fetched, body, "jobs"); err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	jobs := c.fetched[before:]
	if len(jobs) > n {
		return jobs, fmt.Errorf("fetch: asked for %d jobs, got %d", n, len(jobs))
	}
	return jobs, nil
}

func (c *client) appendAck(buf []byte, id jobID) []byte {
	buf = append(append(buf, `{"job_id":"`...), id.String()...)
	buf = append(append(buf, `","worker_id":"`...), c.name...)
	return append(buf, `"}`...)
}

// ack acknowledges one job. Only an answer that says acknowledged counts.
func (c *client) ack(id jobID) error {
	req := c.calls[opAck]
	req.SetBodyRaw(c.appendAck(req.Body()[:0], id))
	body, err := c.do(opAck)
	if err != nil {
		return err
	}
	done, err := member(body, "acknowledged")
	if err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	if string(done) != "true" {
		return fmt.Errorf("ack of %s: the answer has no acknowledged:true: %.200s", id, body)
	}
	c.acked = append(c.acked, id)
	return nil
}

// ackBatch acknowledges all jobs in one call, and fetches up to next jobs with it if next is above 0. A server that does not know
// that answers without jobs. The error is that of the first job whose ack was refused.
func (c *client) ackBatch(ids []jobID, next int) ([]jobID, error) {
	req := c.calls[opAckBatch]
	buf := req.Body()[:0]
	buf = append(buf, `{"acks":[`...)
	for _, id := range ids {
		buf = append(c.appendAck(buf, id), ',')
	}
	buf = append(bytes.TrimSuffix(buf, []byte(",")), ']')
	if next > 0 {
		buf = c.appendFetch(append(buf, `,"fetch":`...), next, 0)
	}
	req.SetBodyRaw(append(buf, '}'))
	body, err := c.do(opAckBatch)
	if err != nil {
		return nil, err
	}
	if err := c.readAckItems(ids, body); err != nil {
		return nil, fmt.Errorf("ack batch: %w", err)
	}
	if jobs, err := member(body, "jobs"); jobs == nil {
		return nil, err
	}
	return c.readJobs(body, next)
}

// readAckItems reads items after a refused one, too: their acks count.
func (c *client) readAckItems(ids []jobID, body []byte) error {
	items, err := member(body, "items")
	if err != nil {
		return err
	}
	var refused error
	n := 0
	err = elements(items, func(item []byte) error {
		id, err := idMember(item, "job_id")
		if err != nil {
			return err
		}
		if n >= len(ids) || id != ids[n] {
			return fmt.Errorf("item %d of the answer is about %s, not about the job that was sent in this place", n, id)
		}
		n++
		status, err := stringMember(item, "status")
		if string(status) == "ok" {
			c.acked = append(c.acked, id)
		} else if refused == nil {
			refused = fmt.Errorf("item %d: %.300s", n-1, item)
		}
		return err
	})
	if err == nil && n != len(ids) {
		err = fmt.Errorf("sent %d acks, the answer has %d", len(ids), n)
	}
	if err != nil {
		return err
	}
	return refused
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
