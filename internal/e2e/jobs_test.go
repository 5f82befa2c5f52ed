package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
)

// queue is a name that no other test uses.
func queue() string { return "q-" + newID() }

func newID() string { return spec.FormatID(job.NewID()) }

// push enqueues and returns the job's id. body is the object without its braces.
func (a *node) push(body string, args ...any) string {
	a.t.Helper()
	return a.post("/ojs/v1/jobs", "{"+fmt.Sprintf(body, args...)+"}").is(http.StatusCreated).at("job.id")
}

// pushMany enqueues n jobs in one call.
func (a *node) pushMany(t testing.TB, queue string, n int) []string {
	t.Helper()
	job := fmt.Sprintf(`{"type":"t","args":[],"queue":"%s"}`, queue)
	return a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(job+",", n), ",")+`]}`).is(201).list("jobs", "id")
}

func (a *node) fetch(queue string, more ...string) reply {
	a.t.Helper()
	body := fmt.Sprintf(`{"queues":["%s"]%s}`, queue, strings.Join(append([]string{""}, more...), ","))
	return a.post("/ojs/v1/workers/fetch", body).is(http.StatusOK)
}

// parked starts a fetch and returns when it waits for jobs.
func (a *node) parked(queue string, more ...string) <-chan reply {
	a.t.Helper()
	return a.whenParked(func() reply { return a.fetch(queue, more...) })
}

// whenParked starts a call that fetches and returns when it waits for jobs.
func (a *node) whenParked(fetch func() reply) <-chan reply {
	a.t.Helper()
	before := a.app.Domains().Jobs.Parked()
	got := make(chan reply, 1)
	go func() { got <- fetch() }()
	eventually(a.t, func() bool { return a.app.Domains().Jobs.Parked() > before })
	return got
}

func (a *node) ack(id string, more ...string) reply {
	a.t.Helper()
	return a.post("/ojs/v1/workers/ack", fmt.Sprintf(`{"job_id":"%s"%s}`, id, strings.Join(append([]string{""}, more...), ",")))
}

func (a *node) nack(id string, more ...string) reply {
	a.t.Helper()
	if len(more) == 0 {
		more = []string{`"error":{"message":"boom"}`}
	}
	return a.post("/ojs/v1/workers/nack", fmt.Sprintf(`{"job_id":"%s",%s}`, id, strings.Join(more, ",")))
}

func (a *node) job(id string) reply {
	a.t.Helper()
	return a.get("/ojs/v1/jobs/"+id, "OJS-Version: 1.0").is(http.StatusOK)
}

// jobIn makes a job in the state, in a queue of its own. cancelled-active was cancelled while worker w1 ran it.
func (a *node) jobIn(state string) string {
	a.t.Helper()
	q, extra := queue(), ""
	switch state {
	case "scheduled":
		extra = `,"scheduled_at":"PT1H"`
	case "pending":
		extra = `,"pending":true`
	}
	id := a.push(`"type":"t","args":[],"queue":"%s","retry":{"initial_interval":"PT1H"}%s`, q, extra)
	switch state {
	case "active", "retryable", "completed", "discarded", "cancelled-active":
		require.Equal(a.t, id, a.fetch(q, `"worker_id":"w1"`).at("jobs.0.id"))
	}
	switch state {
	case "retryable":
		a.nack(id).is(http.StatusOK)
	case "completed":
		a.ack(id).is(http.StatusOK)
	case "discarded":
		a.nack(id, `"error":{"message":"boom","retryable":false}`).is(http.StatusOK)
	case "cancelled", "cancelled-active":
		a.del("/ojs/v1/jobs/" + id).is(http.StatusOK)
	}
	want, _, _ := strings.Cut(state, "-")
	require.Equal(a.t, want, a.job(id).at("job.state"))
	return id
}

// busy makes a job that has been fetched.
func (a *node) busy(q, more string) string {
	a.t.Helper()
	id := a.push(`"type":"t","args":[],"queue":"%s"%s`, q, more)
	require.Equal(a.t, id, a.fetch(q).at("jobs.0.id"))
	return id
}

// finished makes a completed job; more are members of the job besides type, args and queue.
func (a *node) finished(result, more string) string {
	a.t.Helper()
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"%s`, q, more)
	a.fetch(q)
	a.ack(id, `"result":`+result).is(200)
	return id
}

// deadLetter makes a dead letter of the type in the queue.
func (a *node) deadLetter(q, kind, failure string) string {
	a.t.Helper()
	id := a.push(`"type":"%s","args":[1],"queue":"%s","retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}`, kind, q)
	require.Equal(a.t, id, a.fetch(q).at("jobs.0.id"))
	require.Equal(a.t, "discarded", a.nack(id, `"error":`+failure).is(200).at("state"))
	return id
}

// beat sends a heartbeat; more are members of its body.
func (a *node) beat(worker string, more ...string) reply {
	a.t.Helper()
	id, err := json.Marshal(worker)
	require.NoError(a.t, err)
	return a.post("/ojs/v1/workers/heartbeat", fmt.Sprintf(`{"worker_id":%s%s}`, id, strings.Join(append([]string{""}, more...), ","))).is(200)
}

func (a *node) direct(worker, command string) reply {
	a.t.Helper()
	return a.post("/ojs/v1/admin/workers/"+url.PathEscape(worker)+"/"+command, "")
}

func (a *node) worker(id string) reply {
	a.t.Helper()
	return a.get("/ojs/v1/workers/" + url.PathEscape(id))
}

// workerEvents are the published worker.* events of a worker, each with its data, without the heartbeats.
func (a *node) workerEvents(worker string) (types []string, data []reply) {
	a.t.Helper()
	r := a.get("/ojs/v1/events?limit=200&types=worker.started,worker.quiet,worker.stopped").is(200)
	for _, element := range r.elements("events") {
		e := reply{t: a.t, body: string(element)}
		if e.at("subject") == worker {
			types, data = append(types, e.at("type")), append(data, e)
		}
	}
	return types, data
}

// withoutParking requires that no fetch of the node waits for jobs while f runs.
func (a *node) withoutParking(f func()) {
	a.t.Helper()
	done, most := make(chan struct{}), make(chan int)
	go func() {
		for parked := 0; ; {
			parked = max(parked, a.app.Domains().Jobs.Parked())
			select {
			case <-done:
				most <- parked
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	require.Zero(a.t, <-most, "a fetch has waited")
}

// report sends a progress report in the form of PUT; body is the object without its braces.
func (a *node) report(id, body string, args ...any) reply {
	a.t.Helper()
	return a.put("/ojs/v1/jobs/"+id+"/progress", "{"+fmt.Sprintf(body, args...)+"}")
}

func (a *node) events(id, kind string) reply {
	a.t.Helper()
	return a.get("/ojs/v1/events?job_id=" + id + "&types=" + kind).is(200)
}

// eventOf finds the event of a job over HTTP.
func (a *node) eventOf(t testing.TB, job, kind string) reply {
	t.Helper()
	var r reply
	eventually(t, func() bool {
		r = a.in(t).get("/ojs/v1/events?job_id=" + job + "&types=" + kind).is(200)
		return r.count("events") == 1
	})
	return reply{t: t, body: string(r.elements("events")[0])}
}

// published waits until so many events of a job can be read.
func (a *node) published(id string, n int) {
	a.t.Helper()
	eventually(a.t, func() bool { return a.get("/ojs/v1/jobs/"+id+"/history").is(200).at("total") == strconv.Itoa(n) })
}

// settled waits until the latest transition of the job is published, so that a stream opened now begins behind it.
func (a *node) settled(id string) {
	a.t.Helper()
	state := a.job(id).at("job.state")
	eventually(a.t, func() bool {
		states := a.get("/ojs/v1/events/"+id+"/history").list("events", "state")
		return len(states) > 0 && states[len(states)-1] == state
	})
}

// awaiting starts a wait for a result and returns when it has begun.
func (a *node) awaiting(id string) <-chan reply {
	a.t.Helper()
	before := a.app.Domains().Jobs.Awaited()
	got := make(chan reply, 1)
	go func() { got <- a.get("/ojs/v1/jobs/" + id + "/result?wait=true&timeout=20") }()
	eventually(a.t, func() bool { return a.app.Domains().Jobs.Awaited() > before })
	return got
}

// fillUp writes more events than the buffers of a connection hold.
func (a *node) fillUp(t *testing.T) {
	t.Helper()
	for range 12 {
		a.pushMany(t, "full", 1000)
	}
}
