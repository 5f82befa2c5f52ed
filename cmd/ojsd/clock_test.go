//go:build linux && amd64

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
)

// clockSettings make everything that lasts shorter than the hour by which clocks are wrong.
var clockSettings = []string{
	"OJS_WORKERS_DEAD_AFTER=1200ms", "OJS_DEAD_LETTER_MAX_AGE=30m", "OJS_RETENTION_DISCARDED=30m", "OJS_EVENTS_RETENTION_PERIOD=30m",
	"OJS_JOBS_RESULT_TTL=30m", "OJS_WEBHOOKS_DELIVERY_RETENTION=30m",
}

const (
	withinTime = 30 * time.Second // much more than anything of these tests takes, much less than the clocks are wrong
	aWhile     = 30 * time.Minute // a time between the two clocks
)

// TestWrongClock runs a node with the right clock beside one whose clock is an hour off, and then that one alone, when its clock is set
// to an hour off in the other direction. All that depends on time is as if both clocks were right: the clock of the database, which is
// that of the test, decides.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	for name, offsets := range map[string][]time.Duration{"AheadThenBehind": {time.Hour, -time.Hour}, "BehindThenAhead": {-time.Hour, time.Hour}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.URL(t)
			right := startNode(t, url, clockSettings...)
			old, young := right.deadLetter(url, aWhile+time.Minute), right.deadLetter(url, aWhile-time.Minute)
			endpoint := newClockEndpoint(t)
			right.subscribes(endpoint)
			wrong := startNode(t, url, append(clockSettings, fmt.Sprintf("%s=%s,%s", clockVariable, offsets[0], offsets[1]))...)
			requireClock(t, wrong, offsets[0])
			var both sync.WaitGroup
			both.Go(func() { clockTest{t, right, wrong, "to-right"}.run() })
			both.Go(func() { clockTest{t, wrong, right, "to-wrong"}.run() })
			both.Wait()
			wrong.until(func() bool { status, _ := wrong.call("GET", "/ojs/v1/dead-letter/"+old, ""); return status == 404 })
			wrong.is(200, "GET", "/ojs/v1/dead-letter/"+young, "")
			right.kill()
			require.NoError(t, wrong.cmd.Process.Signal(syscall.SIGUSR1))
			requireClock(t, wrong, offsets[1])
			clockTest{t, wrong, wrong, "alone"}.run()
			endpoint.verify(t, 3)
		})
	}
}

// requireClock waits until a node shows that its clock is off, in a header that net/http writes.
func requireClock(t *testing.T, n *serverProcess, off time.Duration) {
	t.Helper()
	n.until(func() bool {
		res, err := http.Get(n.base + "/healthz")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		at, err := http.ParseTime(res.Header.Get("Date"))
		require.NoError(t, err)
		return time.Until(at.Add(-off)).Abs() < withinTime
	})
}

// clockTest has one node take jobs in and another one give them out.
type clockTest struct {
	t       *testing.T
	in, out *serverProcess
	queue   string // the prefix of its queues and workers
}

// run runs all tests at the same time, because they only wait.
func (c clockTest) run() {
	var all sync.WaitGroup
	for name, test := range map[string]func(clockTest){
		"Scheduled": clockTest.scheduled, "Retried": clockTest.retried, "LostLease": clockTest.lostLease, "DeadWorker": clockTest.deadWorker,
		"Cron": clockTest.cron, "LongPoll": clockTest.longPoll, "Pending": clockTest.pending, "Expiry": clockTest.expiry,
		"NewestFirst": clockTest.newestFirst, "Events": clockTest.events,
	} {
		all.Go(func() {
			c.t.Run(c.queue+"/"+name, func(t *testing.T) {
				test(clockTest{t, c.in.on(t), c.out.on(t), c.queue + "-" + strings.ToLower(name)})
			})
		})
	}
	all.Wait()
}

func (c clockTest) scheduled() {
	due := time.Now().Add(300 * time.Millisecond)
	c.push(`"scheduled_at":"` + spec.FormatTime(due) + `"`)
	c.fetched(due.Add(-time.Millisecond), "")
}

func (c clockTest) retried() {
	c.push(`"retry":{"max_attempts":3,"initial_interval":"PT0.4S","backoff_coefficient":1,"jitter":false}`)
	id := c.fetched(time.Time{}, "").Get("id").String()
	failed := time.Now()
	c.in.is(200, "POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"code":"c","message":"m"}}`)
	c.fetched(failed.Add(400*time.Millisecond), "")
}

func (c clockTest) lostLease() {
	c.push("")
	earliest := time.Now().Add(700 * time.Millisecond)
	id := c.fetched(time.Time{}, `,"worker_id":"`+c.queue+`","visibility_timeout_ms":700`).Get("id").String()
	beat := time.Now()
	r := c.in.is(200, "POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"`+c.queue+`","active_jobs":["`+id+`"],"visibility_timeout_ms":900}`)
	if r.Get("jobs_extended.0").String() == id { // on a busy machine the heartbeat may have come too late
		earliest = beat.Add(900 * time.Millisecond)
	}
	requireNow(c.t, r.Get("server_time"))
	c.fetched(earliest, "")
}

func (c clockTest) deadWorker() {
	c.push("")
	id := c.fetched(time.Time{}, `,"worker_id":"`+c.queue+`","visibility_timeout_ms":3600000`).Get("id").String()
	beat := time.Now()
	c.in.is(200, "POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"`+c.queue+`","active_jobs":["`+id+`"]}`)
	r := c.out.is(200, "GET", "/ojs/v1/workers/"+c.queue, "")
	if time.Since(beat) < 1200*time.Millisecond { // a busy machine may be later
		require.Equal(c.t, "running", r.Get("state").String(), r.Raw)
	}
	c.fetched(beat.Add(1200*time.Millisecond), "")
}

func (c clockTest) cron() {
	before := time.Now()
	c.in.is(201, "POST", "/ojs/v1/cron", `{"name":"`+c.queue+`","expression":"@every 1s","type":"t","overlap_policy":"allow","options":{"queue":"`+c.queue+`"}}`)
	requireNow(c.t, c.fetched(time.Time{}, "").Get("created_at"))
	more := c.out.is(200, "POST", "/ojs/v1/workers/fetch", `{"queues":["`+c.queue+`"],"count":100}`).Get("jobs").Array()
	require.LessOrEqual(c.t, len(more), int(time.Since(before).Seconds())+1, "more ticks than seconds")
	c.in.is(200, "DELETE", "/ojs/v1/cron/"+c.queue, "")
}

func (c clockTest) longPoll() {
	start := time.Now()
	r := c.out.is(200, "POST", "/ojs/v1/workers/fetch", `{"queues":["`+c.queue+`"],"wait_ms":300}`)
	require.Empty(c.t, r.Get("jobs").Array())
	require.GreaterOrEqual(c.t, time.Since(start), 300*time.Millisecond)
	require.Less(c.t, time.Since(start), withinTime)
}

// pending: a time to come contradicts it, a time that has passed does not.
func (c clockTest) pending() {
	for at, want := range map[time.Duration]int{-aWhile: 201, aWhile: 400} {
		c.in.is(want, "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"pending":true,"scheduled_at":"`+spec.FormatTime(time.Now().Add(at))+`"}`)
	}
}

func (c clockTest) expiry() {
	c.push(`"expires_at":"` + spec.FormatTime(time.Now().Add(aWhile)) + `"`)
	c.fetched(time.Time{}, "")
}

// newestFirst: lists are sorted by ids, which nodes make.
func (c clockTest) newestFirst() {
	var pushed []string
	for _, node := range []*serverProcess{c.in, c.out, c.in, c.out} {
		c.in = node
		pushed = append([]string{c.push("").Get("job.id").String()}, pushed...)
		time.Sleep(time.Second) // nodes know the clock of the database to half of a round trip, which takes long on a busy machine
	}
	var listed []string
	for _, id := range c.out.is(200, "GET", "/ojs/v1/jobs?queue="+c.queue, "").Get("jobs.#.id").Array() {
		listed = append(listed, id.String())
	}
	require.Equal(c.t, pushed, listed)
}

// events: those of a job can be read from both nodes, and its end is sent to the endpoint.
func (c clockTest) events() {
	id := c.push("").Get("job.id").String()
	c.fetched(time.Time{}, "")
	c.in.is(200, "POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","result":7}`)
	require.Equal(c.t, "7", c.out.is(200, "GET", "/ojs/v1/jobs/"+id+"/result", "").Get("result").Raw)
	for _, node := range []*serverProcess{c.in, c.out} {
		var events []gjson.Result
		node.until(func() bool {
			events = node.is(200, "GET", "/ojs/v1/events?job_id="+id, "").Get("events").Array()
			return len(events) == 3
		})
		for _, e := range events {
			requireNow(c.t, e.Get("time"))
		}
	}
}

// push enqueues a job to the queue of the test.
func (c clockTest) push(options string) gjson.Result {
	if options != "" {
		options = "," + options
	}
	r := c.in.is(201, "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+c.queue+`"`+options+`}`)
	requireNow(c.t, r.Get("job.created_at"))
	return r
}

// fetched waits for a job, which may come at that time at the earliest.
func (c clockTest) fetched(earliest time.Time, members string) gjson.Result {
	c.t.Helper()
	start := time.Now()
	r := c.out.is(200, "POST", "/ojs/v1/workers/fetch", `{"queues":["`+c.queue+`"],"wait_ms":20000`+members+`}`)
	require.False(c.t, time.Now().Before(earliest), "too early: %s", r.Raw)
	require.Less(c.t, time.Since(start), 15*time.Second, "a poll of the database found it, or nothing did")
	job := r.Get("jobs.0")
	requireNow(c.t, job.Get("started_at"))
	return job
}

func requireNow(t *testing.T, at gjson.Result) {
	t.Helper()
	shown, err := time.Parse(time.RFC3339, at.String())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), shown, withinTime)
}

// deadLetter makes a dead letter of that age.
func (n *serverProcess) deadLetter(url string, age time.Duration) (id string) {
	id = n.is(201, "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"queue":"dead","max_attempts":1}`).Get("job.id").String()
	n.is(200, "POST", "/ojs/v1/workers/fetch", `{"queues":["dead"]}`)
	n.is(200, "POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"code":"c","message":"m"}}`)
	conn, err := pgx.Connect(n.t.Context(), url)
	require.NoError(n.t, err)
	defer func() { require.NoError(n.t, conn.Close(n.t.Context())) }()
	tag, err := conn.Exec(n.t.Context(), `UPDATE ojs.jobs SET dead_lettered_at = now() - $2::interval, finished_at = now() - $2::interval WHERE id = $1`, id, age)
	require.NoError(n.t, err)
	require.EqualValues(n.t, 1, tag.RowsAffected())
	return id
}

func (n *serverProcess) subscribes(e *clockEndpoint) {
	body, err := json.Marshal(map[string]any{"url": e.URL, "events": []string{"job.completed"}, "secret": crashSecret})
	require.NoError(n.t, err)
	n.is(201, "POST", "/ojs/v1/webhooks", string(body))
}

// clockEndpoint checks the times of deliveries.
type clockEndpoint struct {
	*httptest.Server
	got chan string // what is wrong with a delivery; "": nothing
}

func newClockEndpoint(t *testing.T) *clockEndpoint {
	e := &clockEndpoint{got: make(chan string, 100)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		at, _ := strconv.ParseInt(req.Header.Get("X-OJS-Timestamp"), 10, 64)
		off := time.Since(time.Unix(at, 0)).Abs()
		switch {
		case off > withinTime:
			e.got <- "the timestamp is off by " + off.String()
		case req.Header.Get("X-OJS-Signature") != webhook.Sign(crashSecret, at, string(body)):
			e.got <- "another signature"
		default:
			e.got <- ""
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *clockEndpoint) verify(t *testing.T, want int) {
	for range want {
		select {
		case problem := <-e.got:
			require.Empty(t, problem)
		case <-time.After(withinTime):
			require.Fail(t, "a delivery is missing")
		}
	}
}
