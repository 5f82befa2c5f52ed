package e2e_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

func TestStreamLimits(t *testing.T) {
	t.Parallel()

	t.Run("PerClient", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two"}; c.Realtime.MaxConnectionsPerClient = 2 })
		first := a.open(allEvents, "Authorization: Bearer one")
		a.open("/ojs/v1/admin/stats/stream", "Authorization: Bearer one")
		r := a.get(allEvents, "Authorization: Bearer one").fails(429, "rate_limited", "rate_limited")
		require.NotEmpty(t, r.header.Get("Retry-After"))
		require.Equal(t, mediaOJS, r.header.Get("Content-Type"))
		a.open(allEvents, "Authorization: Bearer two")
		first.cancel()
		eventually(t, func() bool { return a.app.API().Streams() == 2 })
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
		eventually(t, func() bool { return a.app.API().Streams() == 0 })
	})

	t.Run("RateDelaysAndLosesNothing", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.RateLimitPerSecond = 20 })
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
			c.Server.APIKeys, c.Realtime.AllowQueryToken = []string{"sesame"}, true
			c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		a.open(allEvents + "?access_token=sesame")
		a.get(allEvents + "?access_token=wrong").is(401)
		a.get("/ojs/v1/jobs?access_token=sesame").is(401)
		a.get("/ojs/v1/events?access_token=sesame").is(401)
		a.open("/ojs/v1/events?access_token=sesame")
		require.NotContains(t, log.String(), "sesame")
		off := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"sesame"} })
		off.get(allEvents + "?access_token=sesame").is(401)
	})
}

func TestStreamShutdown(t *testing.T) {
	t.Parallel()

	t.Run("SendsShutdownAndEnds", func(t *testing.T) {
		t.Parallel()
		a := setup(t, patientStop)
		id := a.push(`"type":"t","args":[]`)
		a.settled(id)
		var open []*stream
		for _, path := range []string{allEvents, "/ojs/v1/jobs/" + id + "/events", "/ojs/v1/queues/default/events"} {
			open = append(open, a.open(path))
		}
		require.NoError(t, a.app.Stop())
		for _, s := range open {
			require.Equal(t, frame{event: "server.shutdown", data: `{"reason":"shutdown","grace_period_ms":5000}`}, s.next())
			s.ends()
		}
	})

	t.Run("NewStreamsAreRefused", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		a.app.API().StopStreams()
		r := a.get(allEvents).fails(503, "backend_error", "backend_unavailable")
		require.NotEmpty(t, r.header.Get("Retry-After"))
	})

	t.Run("DoesNotWaitForABlockedClient", func(t *testing.T) {
		t.Parallel()
		a := setup(t, patientStop, func(c *app.Config) { c.Realtime.RateLimitPerSecond = 0 })
		dialBlocked(t, a, allEvents)
		socket := a.socket()
		socket.send(`{"action":"subscribe","channel":"events"}`)
		socket.receive()
		a.fillUp(t)
		require.NoError(t, a.app.Stop())
	})
}

// TestStreamSlowClient shows what a client gets that reads late.
func TestStreamSlowClient(t *testing.T) {
	t.Parallel()

	t.Run("CatchesUp", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Realtime.RateLimitPerSecond = 0 })
		conn := dialBlocked(t, a, allEvents)
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
			c.Realtime.RateLimitPerSecond, c.Realtime.Overflow, c.Realtime.BufferSize = 0, "drop", 500
		})
		conn := dialBlocked(t, a, allEvents)
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

// TestStreamGap: retention has overtaken the id that a client resumes from.
func TestStreamGap(t *testing.T) {
	t.Parallel()
	a := setup(t)
	s := a.open(allEvents)
	a.push(`"type":"t","args":[]`)
	a.push(`"type":"t","args":[]`)
	old := s.next().id
	s.cancel() // else the node has them in memory, and there is no gap
	eventually(t, func() bool { return a.app.API().Streams() == 0 })
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
		missed, err := strconv.Atoi(gap.at(t, "estimated_missed_count"))
		require.NoError(t, err)
		require.Positive(t, missed)
		f := again.next()
		require.Equal(t, kept, f.at(t, "job_id"))
		resumed := a.open(path, "Last-Event-ID: "+gap.id)
		require.Equal(t, f, resumed.next())
	}
}

// TestStreamResume: a client that resumes, on whichever node, sees each event once.
func TestStreamResume(t *testing.T) {
	t.Parallel()
	one, two := nodes(t)
	nodes := []*node{one, two}
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
			go func(a *node) { _ = a.app.Stop() }(nodes[0])
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
			require.NoError(t, nodes[0].app.Stop())
			nodes[0] = two.another()
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

// TestStreamKeepsAlive: a stream without events gets comments, and a connection that has had a stream serves other requests.
func TestStreamKeepsAlive(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	a := setup(t, func(c *app.Config) { c.Realtime.KeepAlive = interval })
	id := a.jobIn("completed")
	a.settled(id)
	ended := a.open("/ojs/v1/jobs/" + id + "/events")
	event := func() frame { // a busy machine may send a comment before each frame
		for {
			if f := ended.next(); f.comment != "heartbeat" {
				return f
			}
		}
	}
	require.Equal(t, "to completed", event().name(t))
	require.Equal(t, frame{}, event(), "the stream has ended")
	start := time.Now()
	s := a.open(allEvents)
	for n := range 2 {
		require.Equal(t, frame{comment: "heartbeat"}, s.next())
		require.GreaterOrEqual(t, time.Since(start), time.Duration(n+1)*interval)
	}
	a.job(id)
}

// TestStreamClosesBlockedClient: a write that takes too long ends the stream; the client may resume.
func TestStreamClosesBlockedClient(t *testing.T) {
	t.Parallel()
	log := &lockedBuffer{}
	a := setup(t, func(c *app.Config) {
		c.Realtime.RateLimitPerSecond, c.Realtime.WriteTimeout = 0, 2*time.Second // a busy machine must not be too slow before the client is
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	dialBlocked(t, a, allEvents)
	socket := a.socket()
	socket.send(`{"action":"subscribe","channel":"events"}`)
	socket.receive()
	eventually(t, func() bool { return a.app.API().Streams() == 2 })
	a.fillUp(t)
	eventually(t, func() bool { return a.app.API().Streams() == 0 })
	require.Contains(t, log.String(), "client is too slow: stream closed")
	require.Contains(t, log.String(), "client is too slow: WebSocket closed")
}
