package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

const allEvents = "/ojs/v1/events/stream"

func TestStreamLimits(t *testing.T) {
	t.Parallel()

	t.Run("PerClient", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.APIKeys = []string{"one", "two"}; c.Realtime.MaxPerClient = 2 })
		first := a.open(allEvents, "Authorization: Bearer one")
		a.open("/ojs/v1/admin/stats/stream", "Authorization: Bearer one")
		r := a.get(allEvents, "Authorization: Bearer one").fails(429, "rate_limited", "rate_limited")
		require.NotEmpty(t, r.header.Get("Retry-After"))
		require.Equal(t, mediaOJS, r.header.Get("Content-Type"))
		a.open(allEvents, "Authorization: Bearer two")
		first.cancel()
		eventually(t, func() bool { return a.server.API().Streams() == 2 })
		a.open(allEvents, "Authorization: Bearer one")
		a.get(allEvents).fails(401, "unauthenticated", "unauthenticated")
	})

	t.Run("PerNode", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.MaxConnections = 1 })
		a.open(allEvents)
		a.get(allEvents).fails(429, "rate_limited", "rate_limited")
	})

	t.Run("RefusedStreamsAreNotCounted", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.MaxConnections = 1 })
		a.get("/ojs/v1/queues/none/events").is(404)
		a.do("HEAD", allEvents, nil).is(200)
		eventually(t, func() bool { return a.server.API().Streams() == 0 })
	})

	t.Run("RateDelaysAndLosesNothing", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.RateLimit = 20 })
		s := a.open(allEvents)
		start := time.Now()
		a.pushMany(t, "q", 40)
		for range 40 {
			s.next()
		}
		require.Greater(t, time.Since(start), 500*time.Millisecond)
	})

	t.Run("QueryToken", func(t *testing.T) {
		t.Parallel()
		log := &lockedBuffer{}
		a := setup(t, func(c *app.Config) {
			c.APIKeys, c.Realtime.QueryToken = []string{"sesame"}, true
			c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		a.open(allEvents + "?access_token=sesame")
		a.get(allEvents + "?access_token=wrong").is(401)
		a.get("/ojs/v1/jobs?access_token=sesame").is(401)
		a.get("/ojs/v1/events?access_token=sesame").is(401)
		a.open("/ojs/v1/events?access_token=sesame")
		require.NotContains(t, log.String(), "sesame")
		off := setup(t, func(c *app.Config) { c.APIKeys = []string{"sesame"} })
		off.get(allEvents + "?access_token=sesame").is(401)
	})
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// pushMany enqueues n jobs in one call.
func (a *api) pushMany(t testing.TB, queue string, n int) []string {
	t.Helper()
	job := fmt.Sprintf(`{"type":"t","args":[],"queue":"%s"}`, queue)
	return a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(job+",", n), ",")+`]}`).is(201).list("jobs", "id")
}

func TestStreamShutdown(t *testing.T) {
	t.Parallel()

	t.Run("TellsAndEnds", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		id := a.push(`"type":"t","args":[]`)
		a.settled(id)
		var open []*stream
		for _, path := range []string{allEvents, "/ojs/v1/jobs/" + id + "/events", "/ojs/v1/queues/default/events"} {
			open = append(open, a.open(path))
		}
		start := time.Now()
		require.NoError(t, a.server.Stop())
		require.Less(t, time.Since(start), 5*time.Second)
		for _, s := range open {
			require.Equal(t, frame{event: "server.shutdown", data: `{"reason":"shutdown","grace_period_ms":5000}`}, s.next())
			s.ends()
		}
	})

	t.Run("NewStreamsAreRefused", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		a.server.API().StopStreams()
		r := a.get(allEvents).fails(503, "backend_error", "backend_unavailable")
		require.NotEmpty(t, r.header.Get("Retry-After"))
	})

	t.Run("DoesNotWaitForAStuckClient", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.RateLimit = 0 })
		dialStuck(t, a, allEvents)
		socket := a.socket()
		socket.say(`{"action":"subscribe","channel":"events"}`)
		socket.hear()
		a.fillUp(t)
		start := time.Now()
		require.NoError(t, a.server.Stop())
		require.Less(t, time.Since(start), 5*time.Second)
	})
}

// dialStuck opens a stream whose client reads the headers and nothing more.
func dialStuck(t *testing.T, a *api, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", a.server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(64<<10))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
	require.NoError(t, err)
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, one...) {
		_, err := conn.Read(one) // not a byte of the body
		require.NoError(t, err)
	}
	return conn
}

// fillUp writes more events than the buffers of a connection hold.
func (a *api) fillUp(t *testing.T) {
	t.Helper()
	for range 12 {
		a.pushMany(t, "full", 1000)
	}
}

// TestStreamSlowClient: what a client that reads late gets.
func TestStreamSlowClient(t *testing.T) {
	t.Parallel()

	t.Run("CatchesUp", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.RateLimit = 0 })
		conn := dialStuck(t, a, allEvents)
		a.fillUp(t)
		frames := readFrames(t, conn, func(f frame) bool { return f.event != "" }, 12_000)
		seen := map[string]bool{}
		for _, f := range frames {
			require.Equal(t, "job.enqueued", f.event)
			require.False(t, seen[f.id])
			seen[f.id] = true
		}
	})

	t.Run("DropsTheOldest", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) {
			c.Realtime.RateLimit, c.Realtime.DropOldest, c.Realtime.BufferSize = 0, true, 500
		})
		conn := dialStuck(t, a, allEvents)
		a.fillUp(t)
		last := a.push(`"type":"last","args":[]`)
		eventually(t, func() bool { return a.get("/ojs/v1/events?job_id="+last).count("events") == 1 })
		shown, dropped, comments := 0, 0, 0
		readFrames(t, conn, func(f frame) bool {
			switch {
			case strings.HasPrefix(f.comment, "events-dropped "):
				comments++
			case f.event == "system.events_dropped":
				require.Equal(t, f.id, f.at(t, "newest_dropped_id"))
				require.Equal(t, "events", f.at(t, "channel"))
				n := 0
				_, err := fmt.Sscan(f.at(t, "dropped_count"), &n)
				require.NoError(t, err)
				dropped += n
			case f.event == "job.enqueued":
				shown++
			}
			return f.event == "job.enqueued" && f.at(t, "job_id") == last
		}, 1)
		require.Positive(t, dropped)
		require.Positive(t, comments)
		require.Equal(t, 12_001, shown+dropped)
	})
}

// readFrames reads until n frames are as wanted and returns those.
func readFrames(t *testing.T, conn net.Conn, wanted func(frame) bool, n int) (got []frame) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	// The rest of a chunked body whose headers have been read.
	text := bufio.NewScanner(newChunked(conn))
	text.Buffer(nil, 1<<20)
	var f frame
	for len(got) < n && text.Scan() {
		switch name, value, _ := strings.Cut(text.Text(), ": "); {
		case text.Text() == "":
			if wanted(f) {
				got = append(got, f)
			}
			f = frame{}
		case strings.HasPrefix(text.Text(), ":"):
			f.comment = text.Text()[1:]
		case name == "id":
			f.id = value
		case name == "event":
			f.event = value
		case name == "data":
			f.data = value
		}
	}
	require.NoError(t, text.Err())
	require.Len(t, got, n)
	return got
}

func newChunked(conn net.Conn) io.Reader {
	res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), conn)), nil)
	if err != nil {
		panic(err)
	}
	return res.Body
}

// TestStreamGap: retention has overtaken the id that a client resumes from.
func TestStreamGap(t *testing.T) {
	t.Parallel()
	a := setup(t)
	s := a.open(allEvents)
	a.push(`"type":"t","args":[]`)
	a.push(`"type":"t","args":[]`)
	old := s.next().id
	s.cancel() // else the node has them in memory, and there is no gap
	eventually(t, func() bool { return a.server.API().Streams() == 0 })
	a.post("/ojs/v1/admin/reset", "").is(200)
	kept := a.push(`"type":"t","args":[]`)
	eventually(t, func() bool { return a.get("/ojs/v1/events").count("events") == 1 })
	for _, path := range []string{allEvents, allEvents + "?channel=queue:default", "/ojs/v1/jobs/" + kept + "/events"} {
		again := a.open(path, "Last-Event-ID: "+old)
		gap := again.next()
		require.Equal(t, "system.gap", gap.event)
		require.Equal(t, old, gap.at(t, "gap_start"))
		require.Equal(t, gap.id, gap.at(t, "gap_end"))
		require.NotEmpty(t, gap.at(t, "channel"))
		f := again.next()
		require.Equal(t, kept, f.at(t, "job_id"))
		resumed := a.open(path, "Last-Event-ID: "+gap.id)
		require.Equal(t, f, resumed.next())
	}
}

// TestStreamResume: a client that resumes, on whichever node, sees each event once.
func TestStreamResume(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	same := func(c *app.Config) { c.DatabaseURL = url }
	nodes := []*api{setup(t, same), setup(t, same)}
	const n = 300
	var pushed sync.WaitGroup
	for _, a := range nodes[1:] {
		pushed.Go(func() {
			for range n / 5 {
				for range 5 {
					a.push(`"type":"t","args":[],"queue":"q"`)
				}
			}
		})
	}
	var ids []string
	last := "evt_00000000-0000-7000-8000-000000000000"
	for i := 0; len(ids) < n; i++ {
		s := nodes[i%2].open(allEvents+"?types=job.enqueued", "Last-Event-ID: "+last)
		if i == 4 { // the node goes away, and another one comes
			go func(a *api) { _ = a.server.Stop() }(nodes[0])
		}
		for k := 0; len(ids) < n && (k < 40 || i == 4); k++ {
			f := s.next()
			if f.event != "job.enqueued" {
				break
			}
			last = f.id
			ids = append(ids, f.at(t, "job_id"))
		}
		s.cancel()
		if i == 4 {
			require.NoError(t, nodes[0].server.Stop())
			nodes[0] = setup(t, same)
		}
	}
	pushed.Wait()
	seen := map[string]bool{}
	for _, id := range ids {
		require.False(t, seen[id])
		seen[id] = true
	}
	require.Len(t, seen, n)
}

// TestStreamKeepsAlive: silence is kept alive, and a connection that has had a stream serves other requests later on.
func TestStreamKeepsAlive(t *testing.T) {
	t.Parallel()
	a := setup(t)
	id := a.jobIn("completed")
	a.settled(id)
	ended := a.open("/ojs/v1/jobs/" + id + "/events")
	require.Equal(t, "to completed", ended.next().name(t))
	ended.ends()
	s := a.open(allEvents)
	start := time.Now()
	var f frame
	select {
	case f = <-s.frames:
	case <-time.After(17 * time.Second):
	}
	require.Equal(t, frame{comment: "heartbeat"}, f)
	require.Greater(t, time.Since(start), 14*time.Second)
	a.job(id)
}

// TestStreamClosesBlockedClient: a write that is stuck for 10 s ends the stream; the client may resume.
func TestStreamClosesBlockedClient(t *testing.T) {
	t.Parallel()
	log := &lockedBuffer{}
	a := setup(t, func(c *app.Config) {
		c.Realtime.RateLimit = 0
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	dialStuck(t, a, allEvents)
	socket := a.socket()
	socket.say(`{"action":"subscribe","channel":"events"}`)
	socket.hear()
	a.fillUp(t)
	require.Equal(t, 2, a.server.API().Streams())
	require.Eventually(t, func() bool { return a.server.API().Streams() == 0 }, 20*time.Second, 50*time.Millisecond)
	require.Contains(t, log.String(), "client is too slow")
}
