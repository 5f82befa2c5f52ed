package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

const (
	// batchSize is the number of jobs in one batch call. The server accepts up to 10 000; a thousand is what its own group
	// commit takes in one statement.
	batchSize = 1000
	// visibilityTimeoutMS is longer than any scenario, so that no job returns to its queue because the machine is busy.
	// So every second delivery is an error of the server.
	visibilityTimeoutMS = 600_000
	jobType             = "bench.noop"
)

// bodies are the request bodies of one load, built once and sent many times. A bodies may be copied and its fields replaced,
// but the slices are shared by all clients and must not be written into.
type bodies struct {
	queue   string
	args    string // of each job
	waitMS  int    // of fetches
	enqueue []byte
	batch   []byte
}

func newBodies(queue string, argsBytes, waitMS int) bodies {
	args := jobArgs(argsBytes)
	job := fmt.Sprintf(`{"type":%q,"args":%s,"options":{"queue":%q}}`, jobType, args, queue)
	return bodies{
		queue:   queue,
		args:    args,
		waitMS:  waitMS,
		enqueue: []byte(job),
		batch:   batchBody(job, batchSize),
	}
}

// jobArgs is the args of a small job: an id and some text, about size bytes.
func jobArgs(size int) string {
	return `[{"id":123456,"text":"` + strings.Repeat("x", max(1, size-len(`[{"id":123456,"text":""}]`))) + `"}]`
}

func batchBody(job string, n int) []byte {
	return []byte(`{"jobs":[` + strings.TrimSuffix(strings.Repeat(job+",", n), ",") + `]}`)
}

// enqueueOne enqueues one job. An answer without an id is an error, because the job could not be checked.
func (c *client) enqueueOne() error {
	body, err := c.do(opEnqueue)
	if err != nil {
		return err
	}
	return c.keepID(body)
}

// keepID notes the id of the job that the answer shows.
func (c *client) keepID(body []byte) error {
	job, err := member(body, "job")
	if err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	id, err := idMember(job, "id")
	if err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	c.enqueued = append(c.enqueued, id)
	return nil
}

// enqueueBatch enqueues n jobs, batchSize at most, in one call. An answer with another number of jobs is an error: jobs that
// are not known cannot be checked.
func (c *client) enqueueBatch(n int) error {
	if n == batchSize {
		c.calls[opBatch].SetBodyRaw(c.bodies.batch)
	} else {
		c.calls[opBatch].SetBodyRaw(batchBody(string(c.bodies.enqueue), n))
	}
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
	buf = append(buf, `{"queues":["`...)
	buf = append(buf, c.bodies.queue...)
	buf = append(buf, `"],"count":`...)
	buf = strconv.AppendInt(buf, int64(n), 10)
	buf = append(buf, `,"worker_id":"`...)
	buf = append(buf, c.name...)
	buf = append(buf, `","visibility_timeout_ms":`...)
	buf = strconv.AppendInt(buf, visibilityTimeoutMS, 10)
	buf = append(buf, `,"wait_ms":`...)
	buf = strconv.AppendInt(buf, int64(waitMS), 10)
	return append(buf, '}')
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
	var text [idLen]byte
	id.put(text[:])
	buf = append(buf, `{"job_id":"`...)
	buf = append(buf, text[:]...)
	buf = append(buf, `","worker_id":"`...)
	buf = append(buf, c.name...)
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

// Items after a refused one are still read: their acks count.
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
