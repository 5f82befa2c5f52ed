package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

var silent = slog.New(slog.DiscardHandler)

const mediaOJS = "application/openjobspec+json"

// api is a running node and a client of it.
type api struct {
	t      testing.TB
	server *app.Node
	client *http.Client
	url    string

	database string // its URL
}

// settings are those of a server for which nothing is set but its database and addresses of its own, without gRPC.
func settings(databaseURL string) app.Config {
	c := app.FromConfig(config.Default(), silent, "1.2.3")
	c.DatabaseURL, c.Listen, c.GRPC.Enabled, c.GRPC.Listen = databaseURL, "127.0.0.1:0", false, "127.0.0.1:0"
	return c
}

// setup starts a node on a database of the test's own and stops it at its end.
func setup(t testing.TB, change ...func(*app.Config)) *api {
	t.Helper()
	config := settings(dbtest.URL(t))
	config.DatabaseMaxConns, config.TestReset = 8, true
	for _, c := range change {
		c(&config)
	}
	s, err := app.Start(t.Context(), config)
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, s.Stop())
	})
	return &api{t, s, &http.Client{Transport: transport}, "http://" + s.Addr(), config.DatabaseURL}
}

// in is the same node for a subtest.
func (a *api) in(t testing.TB) *api {
	b := *a
	b.t = t
	return &b
}

// reply is what came back.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

// do sends a request; headers are written "Name: value".
func (a *api) do(method, path string, body io.Reader, headers ...string) reply {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, body)
	require.NoError(a.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	return a.send(req)
}

func (a *api) send(req *http.Request) reply {
	a.t.Helper()
	res, err := a.client.Do(req)
	require.NoError(a.t, err)
	defer func() { require.NoError(a.t, res.Body.Close()) }()
	text, err := io.ReadAll(res.Body)
	require.NoError(a.t, err)
	return reply{a.t, res.StatusCode, res.Header, string(text)}
}

func (a *api) get(path string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodGet, path, nil, headers...)
}

func (a *api) post(path, body string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodPost, path, strings.NewReader(body), headers...)
}

func (a *api) put(path, body string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodPut, path, strings.NewReader(body), headers...)
}

func (a *api) del(path string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodDelete, path, nil, headers...)
}

// is requires the status and returns the reply.
func (r reply) is(status int) reply {
	r.t.Helper()
	require.Equal(r.t, status, r.status, "%s", r.body)
	return r
}

// fails requires an error of the code and type.
func (r reply) fails(status int, code, kind string) reply {
	r.t.Helper()
	r.is(status)
	require.Equal(r.t, code, r.at("error.code"), r.body)
	require.Equal(r.t, kind, r.at("error.type"), r.body)
	return r
}

// invalid requires the 400 for a field of the body.
func (r reply) invalid(field string) reply {
	r.t.Helper()
	r.is(http.StatusBadRequest)
	require.Equal(r.t, "invalid_payload", r.at("error.code"), r.body)
	require.Equal(r.t, field, r.at("error.details.field"), r.body)
	return r
}

// at finds the value at a path such as "jobs.0.state": the content of a string, the text of anything else, "" if absent.
func (r reply) at(path string) string {
	r.t.Helper()
	text, _ := r.find(path)
	return text
}

func (r reply) has(path string) bool {
	r.t.Helper()
	_, found := r.find(path)
	return found
}

func (r reply) find(path string) (text string, found bool) {
	r.t.Helper()
	value := json.RawMessage(r.body)
	require.True(r.t, json.Valid(value), "%q", r.body)
	for _, name := range strings.Split(path, ".") {
		switch value[0] {
		case '{':
			members := map[string]json.RawMessage{}
			require.NoError(r.t, json.Unmarshal(value, &members))
			value, found = members[name]
		case '[':
			var elements []json.RawMessage
			require.NoError(r.t, json.Unmarshal(value, &elements))
			i, err := strconv.Atoi(name)
			require.NoError(r.t, err)
			if found = i < len(elements); found {
				value = elements[i]
			}
		default:
			found = false
		}
		if !found {
			return "", false
		}
	}
	if value[0] == '"' {
		require.NoError(r.t, json.Unmarshal(value, &text))
		return text, true
	}
	return string(value), true
}

// list gives one member of every element of an array.
func (r reply) list(array, member string) []string {
	r.t.Helper()
	texts := []string{}
	for _, element := range r.elements(array) {
		texts = append(texts, reply{t: r.t, body: string(element)}.at(member))
	}
	return texts
}

func (r reply) count(array string) int {
	r.t.Helper()
	return len(r.elements(array))
}

func (r reply) elements(array string) (elements []json.RawMessage) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(r.at(array)), &elements), r.body)
	return elements
}

// texts are the elements of an array of strings.
func (r reply) texts(array string) (texts []string) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(r.at(array)), &texts), r.body)
	return texts
}

// push enqueues and returns the job's id. body is the object without its braces.
func (a *api) push(body string, args ...any) string {
	a.t.Helper()
	return a.post("/ojs/v1/jobs", "{"+fmt.Sprintf(body, args...)+"}").is(http.StatusCreated).at("job.id")
}

func (a *api) job(id string) reply {
	a.t.Helper()
	return a.get("/ojs/v1/jobs/"+id, "OJS-Version: 1.0").is(http.StatusOK)
}

func (a *api) fetch(queue string, more ...string) reply {
	a.t.Helper()
	body := fmt.Sprintf(`{"queues":["%s"]%s}`, queue, strings.Join(append([]string{""}, more...), ","))
	return a.post("/ojs/v1/workers/fetch", body).is(http.StatusOK)
}

func (a *api) ack(id string, more ...string) reply {
	a.t.Helper()
	return a.post("/ojs/v1/workers/ack", fmt.Sprintf(`{"job_id":"%s"%s}`, id, strings.Join(append([]string{""}, more...), ",")))
}

func (a *api) nack(id string, more ...string) reply {
	a.t.Helper()
	if len(more) == 0 {
		more = []string{`"error":{"message":"boom"}`}
	}
	return a.post("/ojs/v1/workers/nack", fmt.Sprintf(`{"job_id":"%s",%s}`, id, strings.Join(more, ",")))
}

// queue is a name that no other test uses.
func queue() string { return "q-" + newID() }

func newID() string { return ojs.FormatID(job.NewID()) }

// jobIn makes a job in the state, in a queue of its own. cancelled-active was cancelled while worker w1 held it.
func (a *api) jobIn(state string) string {
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

// waitFor bounds each wait of a test. A wait costs it only if the test fails, so it leaves room for a busy machine.
const waitFor = time.Minute

// eventually waits for what another goroutine or the server's timers bring.
func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for start := time.Now(); !condition(); time.Sleep(5 * time.Millisecond) {
		require.Less(t, time.Since(start), waitFor, "it did not happen")
	}
}

// repeated is a reader of n times the same byte.
func repeated(c byte, n int) string { return string(bytes.Repeat([]byte{c}, n)) }

// parked starts a fetch and returns when it waits for jobs.
func (a *api) parked(queue string, more ...string) <-chan reply {
	a.t.Helper()
	before := a.server.Domains().Jobs.Parked()
	got := make(chan reply, 1)
	go func() { got <- a.fetch(queue, more...) }()
	eventually(a.t, func() bool { return a.server.Domains().Jobs.Parked() > before })
	return got
}
