package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// The tests of this file, of crash_webhook_test.go and of log_test.go run the program itself, as a process that they kill or as a
// command whose output they read. Tests that need only a node are in internal/e2e.

// crashKills is how often TestCrashes kills a server or Postgres. The environment variable OJSD_TEST_KILLS changes it: 200 take
// about ten minutes.
func crashKills(t *testing.T) int {
	text := os.Getenv("OJSD_TEST_KILLS")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// TestCrashes kills servers and Postgres under load on two nodes, while a transaction that enqueues from SQL stays open. Clients
// that retry by the rules of docs/reference/errors.md end with exactly one job for each that they sent, completed exactly once.
func TestCrashes(t *testing.T) {
	t.Parallel()
	kills := crashKills(t)
	cluster := dbtest.Cluster(t)
	url := cluster.URL(dbtest.ClusterDatabase)
	c := newCrashTest(t, kills)
	c.nodes = []*serverProcess{startNode(t, url), startNode(t, url)}

	producing, stopProducing := context.WithCancel(t.Context())
	defer stopProducing()
	deadline, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Duration(kills)*10*time.Second)
	defer cancel()
	var producers, workers sync.WaitGroup
	var produced atomic.Bool
	finished := func() bool { return produced.Load() && c.countLive(url) == 0 }
	for n := range 2 * len(producerKinds) {
		producers.Go(func() { c.produce(producing, deadline, n) })
	}
	for n := range 8 {
		workers.Go(func() { c.work(deadline, n, finished) })
	}

	hook := newReceiver(t)
	c.subscribe(hook)
	fromSQL := c.enqueueSlowly(url)
	c.registerCron()
	c.awaitTick(url, time.Time{})
	c.killWhileDelivering(hook)
	sleepContext(t.Context(), 300*time.Millisecond)
	c.nodes[0].start()
	fromSQL()
	sleepContext(t.Context(), 500*time.Millisecond)
	require.NoError(t, cluster.Kill())
	require.Eventually(t, func() bool { return c.unavailable.Load() > 0 }, time.Minute, time.Millisecond, "no call was answered 503 with Retry-After")
	sleepContext(t.Context(), 500*time.Millisecond)
	require.NoError(t, cluster.Restart(t.Context()))
	c.awaitTick(url, time.Now())
	for n := 2; n < kills; n++ {
		sleepContext(t.Context(), time.Duration(100+rand.IntN(400))*time.Millisecond)
		if n%2 == 0 {
			node := c.nodes[n/2%2]
			node.kill()
			node.start()
		} else {
			require.NoError(t, cluster.Kill())
			require.NoError(t, cluster.Restart(t.Context()))
		}
	}

	stopProducing()
	producers.Wait()
	c.endCron(url)
	produced.Store(true)
	workers.Wait()
	require.NoError(t, deadline.Err(), "jobs were left over")
	c.verify(url)
	c.verifyWebhooks(url, hook)
}

// enqueueSlowly opens a transaction that enqueues, and returns what commits it.
func (c *crashTest) enqueueSlowly(url string) (commit func()) {
	conn, err := pgx.Connect(c.t.Context(), url)
	require.NoError(c.t, err)
	tx, err := conn.Begin(c.t.Context())
	require.NoError(c.t, err)
	var ids []string
	for range 20 {
		var id string
		require.NoError(c.t, tx.QueryRow(c.t.Context(), `SELECT ojs.enqueue('crash.sql', '[1]', 'crash',
			'{"retry":{"max_attempts":100,"initial_interval":"PT0.1S","backoff_coefficient":1}}')::text`).Scan(&id))
		ids = append(ids, id)
	}
	return func() {
		require.NoError(c.t, tx.Commit(c.t.Context()))
		require.NoError(c.t, conn.Close(c.t.Context()))
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, id := range ids {
			c.stored[id] = true
		}
	}
}

// registerCron registers a cron that makes a job each second.
func (c *crashTest) registerCron() {
	status, answer := c.post(c.t.Context(), 0, "/ojs/v1/cron", map[string]any{
		"name": "crash-tick", "expression": "@every 1s", "type": "crash.tick", "overlap_policy": "allow",
		"options": map[string]any{"queue": "crash", "retry": patient, "visibility_timeout_ms": lease.Milliseconds()},
	})
	require.Equal(c.t, http.StatusCreated, status, answer)
}

// awaitTick waits until a tick has fired that was due after a time.
func (c *crashTest) awaitTick(url string, after time.Time) {
	t := c.t
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	require.Eventually(t, func() bool {
		var fired bool
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM ojs.cron_runs WHERE scheduled_at > $1)`, after).Scan(&fired))
		return fired
	}, time.Minute, 20*time.Millisecond, "the cron does not fire")
}

// endCron disables the cron. Each tick has fired at most once and has one job. How many there are depends on how long the
// database was away and on how busy the machine is; awaitTick has seen that ticks fire before and after the crashes.
func (c *crashTest) endCron(url string) {
	t := c.t
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, c.nodes[1].base+"/ojs/v1/cron/crash-tick", strings.NewReader(`{"enabled":false}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := c.client.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	rows, err := conn.Query(t.Context(), `SELECT r.job_id::text, r.scheduled_at, r.outcome FROM ojs.cron_runs r ORDER BY r.scheduled_at`)
	require.NoError(t, err)
	var id, outcome string
	var at, first, last time.Time
	fired := 0
	_, err = pgx.ForEachRow(rows, []any{&id, &at, &outcome}, func() error {
		require.Equal(t, "fired", outcome)
		if fired == 0 {
			first = at
		} else {
			require.GreaterOrEqual(t, at.Sub(last), time.Second, "a tick has fired twice")
			require.Zero(t, at.Sub(first)%time.Second, "a tick has moved")
		}
		last = at
		fired++
		c.mu.Lock()
		c.stored[id] = true // so verify looks for it
		c.mu.Unlock()
		return nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, fired, 2)
	var jobs int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ojs.jobs WHERE cron = 'crash-tick') + (SELECT count(*) FROM ojs.jobs_done WHERE cron = 'crash-tick')`).Scan(&jobs))
	require.Equal(t, fired, jobs, "each tick has one job")
}

// countLive asks the database itself; -1 while it is away.
func (c *crashTest) countLive(url string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return -1
	}
	defer func() { _ = conn.Close(ctx) }()
	n := -1
	_ = conn.QueryRow(ctx, `SELECT count(*) FROM ojs.jobs`).Scan(&n)
	return n
}

// verify compares the answers to clients with the database: jobs, their events, and the counts.
func (c *crashTest) verify(url string) {
	t := c.t
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()

	c.closeBooks(conn)
	completed := map[string]int{}
	rows, err := conn.Query(ctx, `SELECT id::text, state FROM ojs.jobs_done`)
	require.NoError(t, err)
	var id, state string
	_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		require.Equal(t, "completed", state)
		completed[id]++
		return nil
	})
	require.NoError(t, err)
	for id := range c.stored {
		require.Equal(t, 1, completed[id], "job %s was acknowledged to its producer and is completed %d times", id, completed[id])
	}
	for id := range c.acked {
		require.Equal(t, 1, completed[id])
	}
	for id := range completed {
		require.True(t, c.acked[id], "job %s is completed, and no worker learned that it has completed it", id)
	}

	requirePublished(t, conn)

	last, count := map[string]string{}, map[string]int{}
	rows, err = conn.Query(ctx, `SELECT job_id::text, COALESCE(from_state, ''), COALESCE(to_state, '') FROM ojs.events
		WHERE job_id IS NOT NULL AND (from_state IS NOT NULL OR to_state IS NOT NULL) ORDER BY seq, sub`)
	require.NoError(t, err)
	var from, to string
	_, err = pgx.ForEachRow(rows, []any{&id, &from, &to}, func() error {
		require.Equal(t, last[id], from, "events of job %s are not in order", id)
		last[id] = to
		count[id]++
		return nil
	})
	require.NoError(t, err)
	for id := range completed {
		require.Equal(t, "completed", last[id])
		require.GreaterOrEqual(t, count[id], 3)
	}
	c.verifyAttempts(conn)
	findings, err := examine(ctx, conn, config.Default().Database)
	require.NoError(t, err)
	for _, f := range findings {
		require.True(t, f.OK, f.Text)
	}
}

// requirePublished waits until all events are published.
func requirePublished(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		var late int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ojs.events WHERE seq > (SELECT watermark FROM ojs.event_relay))
			+ (SELECT count(*) FROM ojs.event_gaps g JOIN ojs.events e ON e.seq = g.seq AND e.sub = 0)`).Scan(&late))
		return late == 0
	}, time.Minute, 50*time.Millisecond, "events stay unpublished")
}

// verifyAttempts checks that each attempt was counted once: claims that were not handed back, and all but the last failed.
func (c *crashTest) verifyAttempts(conn *pgx.Conn) {
	rows, err := conn.Query(c.t.Context(), `
		SELECT d.id::text, d.attempt, COALESCE(cardinality(d.errors), 0),
			count(*) FILTER (WHERE e.type = 'job.started'),
			count(*) FILTER (WHERE e.type = 'job.failed'),
			count(*) FILTER (WHERE e.from_state = 'active' AND e.to_state = 'available' AND e.data->>'reason' = 'requeue')
		FROM ojs.jobs_done d JOIN ojs.events e ON e.job_id = d.id GROUP BY 1, 2, 3`)
	require.NoError(c.t, err)
	var id string
	var attempt, errors, started, failed, released int
	retried, lost := 0, 0
	_, err = pgx.ForEachRow(rows, []any{&id, &attempt, &errors, &started, &failed, &released}, func() error {
		require.Equal(c.t, started-released, attempt, "job %s: claims and attempts differ", id)
		require.Equal(c.t, attempt-1, failed, "job %s: every attempt but the last has failed once", id)
		require.Equal(c.t, min(failed, 50), errors, "job %s: every failure is in its history", id)
		retried += min(failed, 1)
		return nil
	})
	require.NoError(c.t, err)
	require.NoError(c.t, conn.QueryRow(c.t.Context(), `SELECT count(*) FROM ojs.events WHERE data->>'reason' = 'visibility_timeout'`).Scan(&lost))
	require.Positive(c.t, retried, "no job was tried again")
	require.Positive(c.t, lost, "no lease ran out")
}

// TestSigterm ends a server under load: what was acknowledged is stored, and the exit code is 0.
func TestSigterm(t *testing.T) {
	t.Parallel()
	n := startNode(t, dbtest.URL(t))
	done := make(chan int)
	var accepted atomic.Int64
	go func() {
		stored := 0
		for {
			res, err := http.Post(n.base+"/ojs/v1/jobs", "application/json", bytes.NewReader([]byte(`{"type":"a.b","args":[]}`)))
			if err != nil {
				done <- stored
				return
			}
			if res.StatusCode == http.StatusCreated {
				stored++
				accepted.Add(1)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}()
	waiting, served := make(chan int, 1), make(chan struct{})
	go func() {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(served) }})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.base+"/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["other"],"wait_ms":20000}`))
		if err != nil {
			waiting <- 0
			return
		}
		req.Header.Set("Expect", "100-continue") // the node says so when it reads the body
		res, err := (&http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: patience}).RoundTrip(req)
		if err != nil {
			waiting <- 0
			return
		}
		_ = res.Body.Close()
		waiting <- res.StatusCode
	}()
	<-served
	n.until(func() bool { return accepted.Load() > 20 })
	require.NoError(t, n.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, n.cmd.Wait(), n.log.String())
	require.Equal(t, http.StatusOK, <-waiting, "a waiting fetch is answered")
	stored := <-done
	require.Positive(t, stored)
	conn, err := pgx.Connect(t.Context(), n.args[3])
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var found int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM ojs.jobs`).Scan(&found))
	require.GreaterOrEqual(t, found, stored)
}
