package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// crashTest has clients that retry by the rules of docs/reference/errors.md, Retrying, and records what the answers have promised.
type crashTest struct {
	t      *testing.T
	nodes  []*serverProcess
	client *http.Client
	kills  int

	books       books
	unavailable atomic.Int64 // answers 503 with Retry-After
	deliveries  atomic.Int64

	mu       sync.Mutex
	sent     map[string]bool      // tokens of jobs that producers have sent until they were stored
	stored   map[string]bool      // ids of jobs that are stored
	reserved map[string]time.Time // until when nobody else may get it
	acked    map[string]bool
}

// books count requests and what became of them.
type books struct {
	requests, carriedOut, refused atomic.Int64 // refused: by another answer than 503 and 504
	notDone, unknown, cut         atomic.Int64
	again                         atomic.Int64 // requests that repeat another
	found                         atomic.Int64 // repeated, and an earlier try had been carried out
}

func newCrashTest(t *testing.T, kills int) *crashTest {
	c := &crashTest{
		t: t, kills: kills, client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		sent: map[string]bool{}, stored: map[string]bool{}, reserved: map[string]time.Time{}, acked: map[string]bool{},
	}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// outcome is what a client may conclude from the end of a request.
type outcome int

const (
	answered outcome = iota
	notDone          // 503, 504 after a time limit, or no connection: it had no effect
	unknown          // 504 with outcome unknown, or a connection that broke: it may have been carried out
)

type request struct {
	method, path, key string
	body              any
}

type reply struct {
	request
	outcome  outcome
	status   int
	body     map[string]any
	repeated bool // an earlier try may have been carried out
}

func (c *crashTest) send(ctx context.Context, node int, r request) reply {
	text, err := json.Marshal(r.body)
	require.NoError(c.t, err)
	req, err := http.NewRequestWithContext(ctx, r.method, c.nodes[node%len(c.nodes)].base+r.path, bytes.NewReader(text))
	require.NoError(c.t, err)
	req.GetBody = nil // or net/http repeats requests with a key by itself, and only the last try shows
	req.Header.Set("Content-Type", "application/json")
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	c.books.requests.Add(1)
	res, err := c.client.Do(req)
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return reply{request: r, outcome: c.count(notDone)}
	case err != nil:
		c.books.cut.Add(1)
		return reply{request: r, outcome: unknown}
	}
	out := reply{request: r, status: res.StatusCode}
	require.NoError(c.t, json.Unmarshal(answer, &out.body), string(answer))
	if res.StatusCode >= 500 {
		require.Contains(c.t, []int{503, 504}, res.StatusCode, string(answer))
		if res.Header.Get("Retry-After") != "" {
			c.unavailable.Add(1)
		}
		out.outcome = c.count(concluded(out.body))
		return out
	}
	if res.StatusCode < 300 {
		c.books.carriedOut.Add(1)
	} else {
		c.books.refused.Add(1)
	}
	return out
}

func (c *crashTest) count(o outcome) outcome {
	switch o {
	case notDone:
		c.books.notDone.Add(1)
	case unknown:
		c.books.unknown.Add(1)
	}
	return o
}

// concluded reads an error, of an answer or of an item.
func concluded(body map[string]any) outcome {
	failure, _ := body["error"].(map[string]any)
	if failure["code"] != "backend_error" {
		return answered
	}
	if details, _ := failure["details"].(map[string]any); details["outcome"] == "unknown" {
		return unknown
	}
	return notDone
}

func sleepContext(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (c *crashTest) pause(ctx context.Context) {
	c.books.again.Add(1)
	sleepContext(ctx, 20*time.Millisecond)
}

// carryOut sends a request until it is answered. After a 503 it makes the request anew, with another id or key: if the first one
// was carried out all the same, there are two jobs. After an unknown outcome it only repeats the request.
func (c *crashTest) carryOut(ctx context.Context, node int, create func() request) reply {
	req, repeated := create(), false
	for ; ctx.Err() == nil; node++ {
		res := c.send(ctx, node, req)
		switch {
		case res.outcome == answered:
			res.repeated = repeated
			return res
		case res.outcome == unknown:
			repeated = true
		case !repeated:
			req = create()
		}
		c.pause(ctx)
	}
	return reply{outcome: unknown}
}

// post carries out a call that may be repeated.
func (c *crashTest) post(ctx context.Context, node int, path string, body any) (int, map[string]any) {
	res := c.carryOut(ctx, node, func() request { return request{method: http.MethodPost, path: path, body: body} })
	return res.status, res.body
}

// patient is a retry policy with more attempts than a job of the test can fail.
var patient = map[string]any{"max_attempts": 1000, "initial_interval": "PT0.1S", "backoff_coefficient": 1}

const crashBatch = 3

func newCrashID() string { return spec.FormatID(job.NewID()) }

func crashJob(token, id string) map[string]any {
	j := map[string]any{"type": "crash.test", "args": []string{token}, "options": map[string]any{"queue": "crash", "retry": patient}}
	if id != "" {
		j["id"] = id
	}
	return j
}

func crashTokens(token string) (tokens []string, jobs []map[string]any) {
	for i := range crashBatch {
		tokens = append(tokens, fmt.Sprintf("%s-%d", token, i))
		jobs = append(jobs, crashJob(tokens[i], ""))
	}
	return tokens, jobs
}

// producerKinds are the ways to enqueue so that a repetition is safe. Each sends one or three jobs, until they are stored.
var producerKinds = []func(c *crashTest, ctx context.Context, n int, token string){
	(*crashTest).pushWithID, (*crashTest).pushWithKey, (*crashTest).pushBatch, (*crashTest).pushBulk, (*crashTest).pushBulkWithIDs,
}

func (c *crashTest) produce(ctx, deadline context.Context, n int) {
	for i := 0; ctx.Err() == nil; i++ {
		producerKinds[n%len(producerKinds)](c, deadline, n, fmt.Sprintf("%d-%d", n, i))
		sleepContext(ctx, 30*time.Millisecond)
	}
}

func (c *crashTest) isStored(token, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	require.False(c.t, c.stored[id])
	c.sent[token], c.stored[id] = true, true
}

func (c *crashTest) pushWithID(ctx context.Context, n int, token string) {
	var id string
	res := c.carryOut(ctx, n, func() request {
		id = newCrashID()
		return request{method: http.MethodPost, path: "/ojs/v1/jobs", body: crashJob(token, id)}
	})
	switch {
	case res.outcome != answered:
		return
	case res.status == http.StatusConflict:
		require.True(c.t, res.repeated, "the id of a job that was not stored is taken")
		c.books.found.Add(1)
	default:
		require.Equal(c.t, http.StatusCreated, res.status, res.body)
	}
	c.isStored(token, id)
}

func (c *crashTest) pushWithKey(ctx context.Context, n int, token string) {
	res := c.carryOut(ctx, n, func() request {
		return request{method: http.MethodPost, path: "/ojs/v1/jobs", key: newCrashID(), body: crashJob(token, "")}
	})
	if res.outcome == answered {
		require.Equal(c.t, http.StatusCreated, res.status, res.body)
		c.isStored(token, res.body["job"].(map[string]any)["id"].(string))
	}
}

func (c *crashTest) pushBatch(ctx context.Context, n int, token string) {
	tokens, jobs := crashTokens(token)
	res := c.carryOut(ctx, n, func() request {
		return request{method: http.MethodPost, path: "/ojs/v1/jobs/batch", key: newCrashID(), body: map[string]any{"jobs": jobs}}
	})
	if res.outcome == answered {
		require.Equal(c.t, http.StatusCreated, res.status, res.body)
		for i, j := range res.body["jobs"].([]any) {
			c.isStored(tokens[i], j.(map[string]any)["id"].(string))
		}
	}
}

func (c *crashTest) pushBulk(ctx context.Context, n int, token string) {
	tokens, jobs := crashTokens(token)
	res := c.carryOut(ctx, n, func() request {
		return request{method: http.MethodPost, path: "/ojs/v1/jobs/bulk", body: map[string]any{"jobs": jobs, "idempotency_key": newCrashID()}}
	})
	if res.outcome == answered {
		require.Equal(c.t, http.StatusCreated, res.status, res.body)
		for i, item := range res.body["items"].([]any) {
			c.isStored(tokens[i], item.(map[string]any)["job"].(map[string]any)["id"].(string))
		}
	}
}

// item is a job of a call that has an outcome for each.
type item struct {
	token, id string
	attempt   any
	repeated  bool // an earlier try may have been carried out
}

// eachItem sends items until each is answered, and calls done with the error of each, or nil. renew may give an item that was not
// carried out another id.
func (c *crashTest) eachItem(ctx context.Context, n int, items []*item, create func([]*item) request, renew func(*item), done func(*item, map[string]any)) {
	for ; len(items) > 0 && ctx.Err() == nil; n++ {
		res := c.send(ctx, n, create(items))
		var open []*item
		for i, it := range items {
			o, answer := res.outcome, map[string]any(nil)
			if o == answered {
				answer = res.body["items"].([]any)[i].(map[string]any)
				o = concluded(answer)
			}
			switch {
			case o == answered:
				failure, _ := answer["error"].(map[string]any)
				done(it, failure)
				continue
			case o == unknown:
				it.repeated = true
			case !it.repeated:
				renew(it)
			}
			open = append(open, it)
		}
		if items = open; len(items) > 0 {
			c.pause(ctx)
		}
	}
}

func (c *crashTest) pushBulkWithIDs(ctx context.Context, n int, token string) {
	tokens, _ := crashTokens(token)
	items := make([]*item, len(tokens))
	for i := range items {
		items[i] = &item{token: tokens[i], id: newCrashID()}
	}
	c.eachItem(ctx, n, items, func(items []*item) request {
		jobs := make([]map[string]any, len(items))
		for i, it := range items {
			jobs[i] = crashJob(it.token, it.id)
		}
		return request{method: http.MethodPost, path: "/ojs/v1/jobs/bulk", body: map[string]any{"jobs": jobs}}
	}, func(it *item) { it.id = newCrashID() }, func(it *item, failure map[string]any) {
		if failure != nil {
			require.Equal(c.t, "duplicate", failure["code"], failure)
			require.True(c.t, it.repeated, "the id of a job that was not stored is taken")
			c.books.found.Add(1)
		}
		c.isStored(it.token, it.id)
	})
}

const lease = 3 * time.Second

// work fetches jobs and acks, fails, returns or abandons them, until all stored jobs are acknowledged. Every other worker does so
// in batches.
func (c *crashTest) work(deadline context.Context, n int, finished func() bool) {
	w := crashWorker{c, n, fmt.Sprintf("w%d", n)}
	for node := n; deadline.Err() == nil && !finished(); {
		asked := time.Now()
		res := c.send(deadline, node, request{method: http.MethodPost, path: "/ojs/v1/workers/fetch", body: map[string]any{
			"queues": []string{"crash"}, "count": 5, "worker_id": w.name, "visibility_timeout_ms": lease.Milliseconds(), "wait_ms": 200,
		}})
		if res.outcome != answered { // jobs that it may have reserved come back by themselves
			c.pause(deadline)
			node++
			continue
		}
		jobs, _ := res.body["jobs"].([]any)
		w.finish(deadline, asked, jobs)
	}
}

type crashWorker struct {
	*crashTest
	n    int
	name string
}

// finish ends the deliveries. How is decided by the number of each, so that each way is taken whatever the number of jobs.
func (w crashWorker) finish(ctx context.Context, asked time.Time, jobs []any) {
	var acks, fails, returns []*item
	for _, j := range jobs {
		job := j.(map[string]any)
		it := &item{id: job["id"].(string), attempt: job["attempt"]}
		number := w.deliveries.Add(1) - 1
		w.mu.Lock()
		require.False(w.t, w.acked[it.id], "delivered after its ack")
		require.False(w.t, time.Now().Before(w.reserved[it.id]), "delivered to two workers at once")
		w.reserved[it.id] = asked.Add(lease)
		w.mu.Unlock()
		switch way := number * 37 % 200; {
		case way < 1: // forgotten: the lease runs out
		case way < 10:
			returns = append(returns, it)
		case way < 30:
			fails = append(fails, it)
		default:
			acks = append(acks, it)
		}
	}
	w.end(ctx, "ack", acks, nil)
	w.release(append(fails, returns...))
	w.end(ctx, "nack", fails, map[string]any{"error": map[string]any{"code": "crash", "message": "by number"}})
	w.end(ctx, "nack", returns, map[string]any{"requeue": true})
}

// release records that somebody else may get the jobs, before it is sent.
func (w crashWorker) release(items []*item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range items {
		w.reserved[it.id] = time.Time{}
	}
}

// end acks or nacks the jobs, one by one or together.
func (w crashWorker) end(ctx context.Context, call string, items []*item, more map[string]any) {
	body := func(it *item) map[string]any {
		b := map[string]any{"job_id": it.id, "worker_id": w.name, "attempt": it.attempt}
		maps.Copy(b, more)
		return b
	}
	done := func(it *item, failure map[string]any) {
		if call == "ack" {
			w.learn(ctx, it, failure)
		}
	}
	path := "/ojs/v1/workers/" + call
	if w.n%2 == 1 {
		w.eachItem(ctx, w.n, items, func(items []*item) request {
			bodies := make([]map[string]any, len(items))
			for i, it := range items {
				bodies[i] = body(it)
			}
			return request{method: http.MethodPost, path: path + "/batch", body: map[string]any{call + "s": bodies}}
		}, func(*item) {}, done)
		return
	}
	for _, it := range items {
		res := w.carryOut(ctx, w.n, func() request { return request{method: http.MethodPost, path: path, body: body(it)} })
		if res.outcome == answered {
			failure, _ := res.body["error"].(map[string]any)
			it.repeated = res.repeated
			done(it, failure)
		}
	}
}

// learn records that the worker has completed a job. After a refusal it looks: an earlier try may have been carried out, or the
// lease ran out while the database was away.
func (w crashWorker) learn(ctx context.Context, it *item, failure map[string]any) {
	if failure != nil {
		require.Equal(w.t, "conflict", failure["code"], failure)
		res := w.carryOut(ctx, w.n, func() request { return request{method: http.MethodGet, path: "/ojs/v1/jobs/" + it.id} })
		job, _ := res.body["job"].(map[string]any)
		if job == nil || job["state"] != "completed" || job["attempt"] != it.attempt { // no other worker that acks has the same attempt
			return
		}
		require.True(w.t, it.repeated, "an ack was carried out that was answered 503")
		w.books.found.Add(1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	require.False(w.t, w.acked[it.id], "acknowledged twice")
	w.acked[it.id] = true
}

// closeBooks compares what clients sent with what there is: one job for each that was sent, and one completion for each job.
func (c *crashTest) closeBooks(conn *pgx.Conn) {
	t, b := c.t, &c.books
	var jobs, distinct, completions, completed int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT args->>0) FROM ojs.jobs_done WHERE type = 'crash.test'`).Scan(&jobs, &distinct))
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT job_id) FROM ojs.events WHERE type = 'job.completed'`).Scan(&completions, &completed))
	t.Logf(`books of %d kills:
	requests            %7d, of which %d repeat another
	carried out         %7d
	refused             %7d
	answered 503        %7d, or no connection
	outcome unknown     %7d answers 504, %d broken connections; %d turned out to be carried out
	jobs sent           %7d
	jobs in the end     %7d: %d duplicates, %d lost
	deliveries          %7d
	completions         %7d: %d twice; workers know of %d`,
		c.kills, b.requests.Load(), b.again.Load(), b.carriedOut.Load(), b.refused.Load(), b.notDone.Load(), b.unknown.Load(), b.cut.Load(), b.found.Load(),
		len(c.sent), jobs, jobs-distinct, len(c.sent)-distinct, c.deliveries.Load(), completions, completions-completed, len(c.acked))
	rows, err := conn.Query(t.Context(), `SELECT args->>0 || ' ' || string_agg(id || ' ' || created_at, ', ') FROM ojs.jobs_done WHERE type = 'crash.test' GROUP BY args->>0 HAVING count(*) > 1`)
	require.NoError(t, err)
	twice, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, twice, "jobs that are there twice, by the number of their producer")
	require.Equal(t, len(c.sent), jobs)
	require.Equal(t, len(c.sent), distinct)
	require.Equal(t, completed, completions)
	require.Equal(t, completed, len(c.acked))
}
