package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/observe"
)

// failures lets PostgreSQL answer statements of nodes with an error: the first of each way to each query. A way is the functions of this
// module that call it. The ways of requests are left out.
type failures struct {
	mu     sync.Mutex
	on     bool
	gauges bool
	failed map[string]*failure // by the way
}

// failure is a statement that PostgreSQL has answered with an error.
type failure struct {
	statement, service, text string

	again bool // it was sent again
}

// pool changes the pool of a node.
func (f *failures) pool(c *pgxpool.Config) {
	c.ConnConfig.Tracer = f
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &failingConn{Conn: conn}, err
	}
}

var statementName = regexp.MustCompile(`^-- name: (\w+) `)

// fails returns the text of the error that the statement is to have, "" for none.
func (f *failures) fails(sql string) (text string) {
	name := statementName.FindStringSubmatch(sql)
	if name == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.on {
		return ""
	}
	service, way := callers()
	if service == "" || spared.MatchString(name[1]+" "+way) {
		return ""
	}
	way = name[1] + " " + way
	if strings.HasPrefix(service, "observe/metrics.") {
		if !f.gauges {
			return ""
		}
		defer func() { f.gauges = text == "" }()
	}
	before, found := f.failed[way]
	if found {
		before.again = true
		return ""
	}
	text = fmt.Sprintf("injected_%d_%s", len(f.failed), name[1])
	f.failed[way] = &failure{name[1], service, text, false}
	return text
}

var spared = regexp.MustCompile(`workflow\.\(\*Store\)\.Get < workflow\.\(\*Store\)\.Cancel `)

// callers are the functions of the module on the stack, without those that all ways share. service is what calls them: the type whose method
// is a loop, request, or start; "" for the test itself.
func callers() (service, way string) {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var names []string
	for {
		frame, more := frames.Next()
		name, inside := strings.CutPrefix(frame.Function, "github.com/ojsd/ojsd/internal/")
		switch {
		case strings.HasPrefix(frame.Function, "net/http."):
			service = "request"
		case strings.HasPrefix(name, "e2e_test.(*node)"):
			return "", ""
		case strings.HasPrefix(name, "e2e_test.") || !inside:
		case !strings.HasPrefix(name, "dbsqlc.") && !slices.Contains(names, name):
			names = append(names, name)
			if !strings.HasPrefix(name, "loop.Run") && name != "loop.Every" && service != "request" {
				service, _, _ = strings.Cut(strings.NewReplacer("(*", "", ")", "").Replace(name), "[")
				if parts := strings.Split(service, "."); len(parts) > 2 {
					service = parts[0] + "." + parts[1]
				}
			}
		}
		if !more {
			return service, strings.Join(names, " < ")
		}
	}
}

func (f *failures) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if text := f.fails(q.SQL); text != "" {
		conn.PgConn().Conn().(*failingConn).fail(0, text)
	}
	return ctx
}

func (*failures) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (f *failures) TraceBatchStart(ctx context.Context, conn *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for i, q := range b.Batch.QueuedQueries {
		if text := f.fails(q.SQL); text != "" {
			conn.PgConn().Conn().(*failingConn).fail(i, text)
			break
		}
	}
	return ctx
}

func (*failures) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*failures) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// failingConn is a connection of which one statement is replaced by a text that is no SQL, so that PostgreSQL answers it, and what belongs to
// it, with a syntax error that has the text.
type failingConn struct {
	net.Conn
	mu   sync.Mutex
	left int    // statements before it
	text string // "": none fails
}

func (c *failingConn) fail(after int, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.text = after, text
}

// Write replaces a Bind by a Parse, and a Query, which has a statement without arguments, by another one. pgx writes whole messages.
func (c *failingConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := 0; c.text != "" && at+5 <= len(b); {
		end := at + 1 + int(binary.BigEndian.Uint32(b[at+1:]))
		if b[at] == 'B' || b[at] == 'Q' {
			if c.left--; c.left < 0 {
				message := []byte("\x00" + c.text + "\x00\x00\x00") // an unnamed statement without parameters
				kind := byte('P')
				if b[at] == 'Q' {
					kind, message = 'Q', []byte(c.text+"\x00")
				}
				c.text = ""
				other := append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(4+len(message))), message...)
				if _, err := c.Conn.Write(slices.Concat(b[:at], other, b[end:])); err != nil {
					return 0, err
				}
				return len(b), nil
			}
		}
		at = end
	}
	return c.Conn.Write(b)
}

// patient repeats requests that were answered with an error of the server.
type patient struct{ http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	for {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		res, err := p.RoundTripper.RoundTrip(again)
		if err == nil && res.StatusCode >= 500 {
			fmt.Println(r.Method, r.URL, res.Status)
		}
		if err != nil || res.StatusCode < 500 {
			return res, err
		}
		_ = res.Body.Close()
		time.Sleep(time.Millisecond)
	}
}

func TestFailuresOfServices(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	f := &failures{failed: map[string]*failure{}}
	log := &lineBuffer{}
	change := []func(*app.Config){e.quick, connections(8), freshGauges, deadAfter(2 * time.Second), func(c *app.Config) {
		c.Pool, c.Logger = f.pool, observe.NewLogger(log, "json", slog.LevelWarn)
		c.Retention.PruneInterval = 200 * time.Millisecond
		c.DeadLetter.MaxCount = 3
	}}
	a := setup(t, change...)
	a.client.Transport = patient{a.client.Transport}
	a.subscribe(e, "/all", `"*"`)
	a.subscribe(e, "/ordered", `"job.completed"`, `"ordering":"subject"`)
	ctx, stop := context.WithCancel(t.Context())
	var waker sync.WaitGroup
	waker.Go(func() {
		conn, err := pgx.Connect(ctx, a.database)
		if err != nil {
			return
		}
		for ctx.Err() == nil {
			_, _ = conn.Exec(ctx, `SELECT pg_notify('ojs_wake', '')`)
			time.Sleep(20 * time.Millisecond)
		}
		_ = conn.Close(context.Background())
	})
	defer waker.Wait()
	defer stop()
	f.on = true
	a.exerciseServices(t)
	for range 3 {
		began := time.Now()
		a.exercise(t, e)
		t.Log(time.Since(began), len(f.failed))
	}
	for range 25 {
		began := time.Now()
		c := settings(a.database)
		for _, g := range change {
			g(&c)
		}
		if other, err := app.Start(t.Context(), c); err != nil {
			t.Log(err)
		} else {
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, other.Stop())
		}
		t.Log(time.Since(began), len(f.failed))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	names := map[string]bool{}
	for _, way := range slices.Sorted(maps.Keys(f.failed)) {
		one := f.failed[way]
		names[one.service+" "+one.statement] = true
		if !strings.Contains(log.String(), one.text) || !one.again {
			t.Log("WAY", strings.Contains(log.String(), one.text), one.again, one.service, way)
		}
	}
	t.Log(len(names), "NAMES\n"+strings.Join(slices.Sorted(maps.Keys(names)), "\n"))
	require.NoError(t, os.WriteFile("/tmp/failures.log", []byte(log.String()), 0o600))
}

// exerciseServices gives services work that exercise has not.
func (a *node) exerciseServices(t *testing.T) {
	t.Helper()
	// Numbers of events that are missing, of a transaction that commits and of one that does not.
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		q, conn := queue(), a.connect()
		_, err := conn.Exec(t.Context(), `BEGIN; SELECT ojs.enqueue('t', '[]', '`+q+`')`)
		require.NoError(t, err)
		a.published(a.push(`"type":"t","args":[],"queue":"%s"`, q), 1)
		_, err = conn.Exec(t.Context(), end)
		require.NoError(t, err)
		a.published(a.push(`"type":"t","args":[],"queue":"%s"`, q), 1)
		require.NoError(t, conn.Close(t.Context()))
	}
	for _, policy := range []string{"skip", "allow", "enqueue", "cancel_previous"} {
		a.post("/ojs/v1/cron", `{"name":"`+strings.ReplaceAll(policy, "_", "-")+`","expression":"30 2 1 * *","timezone":"Europe/Berlin","type":"t","options":{"queue":"cron-`+strings.ReplaceAll(policy, "_", "-")+`"},"overlap_policy":"`+policy+`"}`).is(201)
	}
	a.post("/ojs/v1/cron", `{"name":"daily","expression":"30 2 * * *","timezone":"Europe/Berlin","type":"t"}`).is(201)
	for range 3 {
		a.exec(`UPDATE ojs.crons SET next_run_at = CASE name WHEN 'daily' THEN '2026-03-28T01:30:00Z' ELSE now() END`)
		eventually(t, func() bool { return a.one(`SELECT count(*)::text FROM ojs.crons WHERE next_run_at <= now()`) == "0" })
	}
	for _, id := range a.fetch("cron-enqueue", `"count":10`).list("jobs", "id") {
		a.ack(id).is(200)
	}
}
