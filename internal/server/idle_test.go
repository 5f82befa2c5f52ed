package server_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/server"
)

// statementCounter is a proxy before Postgres that counts the statements of all connections: Query and Execute messages.
type statementCounter struct {
	ln net.Listener

	mu sync.Mutex
	n  int
	wg sync.WaitGroup
}

func countStatements(t *testing.T, target string) *statementCounter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &statementCounter{ln: ln}
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
			c.wg.Go(func() { _, _ = io.Copy(backend, io.TeeReader(client, &messages{counter: c})); _ = backend.Close() })
		}
	})
	t.Cleanup(func() { _ = ln.Close() })
	return c
}

func (c *statementCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// messages follows the frontend protocol: a start-up message without type, then type, length and body.
type messages struct {
	counter *statementCounter
	buf     bytes.Buffer
	started bool
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
		if m.started && (b[0] == 'Q' || b[0] == 'E') {
			m.counter.mu.Lock()
			m.counter.n++
			m.counter.mu.Unlock()
		}
		m.started = true
		m.buf.Next(head - 4 + size)
	}
}

// TestIdleServerIsSilent: without waiting workers and due jobs a server issues no SQL beyond a handful a minute, whether
// streams are open or have been.
func TestIdleServerIsSilent(t *testing.T) {
	t.Parallel()
	target := dbtest.URL(t)
	config, err := pgconn.ParseConfig(target)
	require.NoError(t, err)
	counter := countStatements(t, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	through, err := url.Parse(target)
	require.NoError(t, err)
	through.Host = counter.ln.Addr().String()
	a := setup(t, func(c *server.Config) { c.DatabaseURL = through.String() })

	a.post("/ojs/v1/jobs", `{"type":"a.b","args":[]}`).is(201)
	a.beat("w") // known, so its calls are signs of life
	id := a.post("/ojs/v1/workers/fetch", `{"queues":["default"],"worker_id":"w"}`).is(200).at("jobs.0.id")
	a.post("/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`).is(200)
	require.Positive(t, counter.count())
	a.open("/ojs/v1/events/stream").cancel()
	stream := a.open("/ojs/v1/events/stream")

	// The look at due times 5 s after the last job, its worker's signs of life, and the end of the job's lease are still to come.
	var quiet, before int
	require.Eventually(t, func() bool {
		now := counter.count()
		if quiet++; now != before {
			quiet, before = 0, now
		}
		return quiet >= 10
	}, 20*time.Second, 100*time.Millisecond, "the server never gets quiet")
	const watched = 12 * time.Second
	time.Sleep(watched) // nothing to await: silence is what is tested
	stream.quiet()
	require.LessOrEqual(t, counter.count()-before, 5, "statements in %s of idleness", watched)
}
