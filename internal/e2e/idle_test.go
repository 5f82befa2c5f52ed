package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// statementCounter is a proxy in front of Postgres that records the statements of all connections: Query and Execute messages.
type statementCounter struct {
	ln    net.Listener
	begun time.Time

	mu   sync.Mutex
	seen []string // when, and which
	wg   sync.WaitGroup
}

func countStatements(t *testing.T, target string) *statementCounter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &statementCounter{ln: ln, begun: time.Now()}
	c.wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			backend, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			c.wg.Go(func() { _, _ = io.Copy(client, backend); _ = client.Close() })
			c.wg.Go(func() {
				_, _ = io.Copy(backend, io.TeeReader(client, &messages{counter: c, prepared: map[string]string{}}))
				_ = backend.Close()
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close() })
	return c
}

func (c *statementCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

// since returns all but the first n statements.
func (c *statementCounter) since(n int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen[n:])
}

func (c *statementCounter) note(sql string) {
	sql, _, _ = strings.Cut(strings.TrimSpace(sql), "\n")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, fmt.Sprintf("%6.2f s: %s", time.Since(c.begun).Seconds(), sql))
}

// messages follows the frontend protocol: a start-up message without type, then type, length and body.
type messages struct {
	counter  *statementCounter
	buf      bytes.Buffer
	started  bool
	prepared map[string]string // by name
	bound    string            // what the next Execute runs: pgx uses the unnamed portal only
}

func (m *messages) Write(p []byte) (int, error) {
	m.buf.Write(p)
	for {
		head := 5
		if !m.started {
			head = 4
		}
		b := m.buf.Bytes()
		if len(b) < head {
			return len(p), nil
		}
		size := int(b[head-4])<<24 | int(b[head-3])<<16 | int(b[head-2])<<8 | int(b[head-1])
		if len(b) < head-4+size {
			return len(p), nil
		}
		if m.started {
			m.follow(b[0], b[head:head-4+size])
		}
		m.started = true
		m.buf.Next(head - 4 + size)
	}
}

func (m *messages) follow(kind byte, body []byte) {
	first, rest, _ := bytes.Cut(body, []byte{0})
	second, _, _ := bytes.Cut(rest, []byte{0})
	switch kind {
	case 'P': // name, text
		m.prepared[string(first)] = string(second)
	case 'B': // portal, name
		m.bound = m.prepared[string(second)]
	case 'E':
		m.counter.note(m.bound)
	case 'Q':
		m.counter.note(string(first))
	}
}

// TestIdleServerIsSilent: without waiting workers and due jobs a server issues one statement a minute, which looks for due times,
// whether event streams are open or have been.
func TestIdleServerIsSilent(t *testing.T) {
	t.Parallel()
	target := dbtest.URL(t)
	config, err := pgconn.ParseConfig(target)
	require.NoError(t, err)
	counter := countStatements(t, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	through, err := url.Parse(target)
	require.NoError(t, err)
	through.Host = counter.ln.Addr().String()
	a := setup(t, func(c *app.Config) { c.Database.URL = through.String() })

	a.post("/ojs/v1/jobs", `{"type":"a.b","args":[]}`).is(201)
	a.beat("w") // known, so its calls are signs of life
	id := a.post("/ojs/v1/workers/fetch", `{"queues":["default"],"worker_id":"w"}`).is(200).at("jobs.0.id")
	a.post("/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`).is(200)
	require.Positive(t, counter.count())
	a.settled(id)
	a.open("/ojs/v1/events/stream").cancel()
	stream := a.open("/ojs/v1/events/stream")

	// Until no job has changed for 5 s, a statement looks for due times every 5 s, and the heartbeat of the worker is written.
	// Each may ping its connection first, if that was idle. A look for changes of workflows rests for 20 times as long as it took, which on
	// a busy machine may be a second. So 20 s without a statement mean that these have ended; the next one comes after a minute.
	const tick, rest, watched = 100 * time.Millisecond, 20 * time.Second, 8 * time.Second
	var quiet time.Duration // in ticks that were had: a machine that stands still is not quiet
	var before int
	require.Eventually(t, func() bool {
		now := counter.count()
		if quiet += tick; now != before {
			quiet, before = 0, now
		}
		return quiet >= rest
	}, 2*time.Minute, tick, "the server never gets quiet")
	time.Sleep(watched) // nothing to await: silence is what is tested
	for len(stream.frames) > 0 {
		require.NotEmpty(t, stream.next().comment, "keep-alives only")
	}
	require.Empty(t, counter.since(before), "statements in %s of idleness", watched)
}
