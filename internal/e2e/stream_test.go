package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

const allEvents = "/ojs/v1/events/stream"

// frame is one frame of a stream, or a comment.
type frame struct {
	id, event, data, comment, retry string
}

// stream is an open event stream.
type stream struct {
	t      testing.TB
	header http.Header
	frames chan frame
	cancel context.CancelFunc
}

// open opens an event stream and returns when its headers have come.
func (a *node) open(path string, headers ...string) *stream {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	require.NoError(a.t, err)
	req.Header.Set("Accept", "text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := a.client.Do(req)
	require.NoError(a.t, err)
	require.Equal(a.t, 200, res.StatusCode)
	s := &stream{a.t, res.Header, make(chan frame, 10_000), cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.frames)
		defer func() { _ = res.Body.Close() }()
		_ = eachFrame(res.Body, func(f frame) bool { // ends with the test
			s.frames <- f
			return true
		})
	}()
	a.t.Cleanup(func() {
		cancel()
		<-done
	})
	require.Equal(a.t, "3000", s.next().retry)
	return s
}

// next waits for a frame; the zero frame is the end of the stream.
func (s *stream) next() frame {
	s.t.Helper()
	select {
	case f := <-s.frames:
		return f
	case <-time.After(waitFor):
		require.FailNow(s.t, "no frame")
		return frame{}
	}
}

// events takes n frames and returns their names.
func (s *stream) events(n int) (names []string) {
	s.t.Helper()
	for range n {
		names = append(names, s.next().name(s.t))
	}
	return names
}

// name is the event, or for a transition the state that it leads to.
func (f frame) name(t testing.TB) string {
	if f.event == "job.state_changed" {
		return "to " + f.at(t, "to")
	}
	return f.event
}

// at finds a value of the data.
func (f frame) at(t testing.TB, path string) string {
	t.Helper()
	return reply{t: t, body: f.data}.at(path)
}

// ends requires that the stream has ended.
func (s *stream) ends() {
	s.t.Helper()
	require.Equal(s.t, frame{}, s.next())
}

// dialBlocked opens a stream whose client reads the headers and nothing more.
func dialBlocked(t *testing.T, a *node, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", a.app.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(64<<10))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	require.NoError(t, err)
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, one...) {
		_, err := conn.Read(one) // not a byte of the body
		require.NoError(t, err)
	}
	return conn
}

// readFrames reads until n frames are as wanted and returns those.
func readFrames(t *testing.T, conn net.Conn, wanted func(frame) bool, n int) (got []frame) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(waitFor)))
	err := eachFrame(httputil.NewChunkedReader(conn), func(f frame) bool { // the headers have been read
		if wanted(f) {
			got = append(got, f)
		}
		return len(got) < n
	})
	require.NoError(t, err)
	require.Len(t, got, n)
	return got
}

// eachFrame calls f for each frame of an event stream, until f returns false or the stream ends.
func eachFrame(body io.Reader, f func(frame) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	var next frame
	for lines.Scan() {
		switch name, value, _ := strings.Cut(lines.Text(), ": "); {
		case lines.Text() == "":
			if !f(next) {
				return nil
			}
			next = frame{}
		case strings.HasPrefix(lines.Text(), ":"):
			next.comment = lines.Text()[1:]
		case name == "id":
			next.id = value
		case name == "event":
			next.event = value
		case name == "data":
			next.data = value
		case name == "retry":
			next.retry = value
		default:
			next.comment = "unexpected " + lines.Text()
		}
	}
	return lines.Err()
}

// socket is a WebSocket client.
type socket struct {
	t    testing.TB
	conn *websocket.Conn
}

func (a *node) dial(path string, headers ...string) (*socket, *http.Response, error) {
	a.t.Helper()
	options := &websocket.DialOptions{HTTPClient: a.client, HTTPHeader: http.Header{}, Subprotocols: []string{"other", "ojs.v1"}}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		options.HTTPHeader.Set(name, value)
	}
	conn, res, err := websocket.Dial(a.t.Context(), a.url+path, options)
	if err != nil {
		return nil, res, err
	}
	conn.SetReadLimit(1 << 20)
	a.t.Cleanup(func() { _ = conn.CloseNow() })
	return &socket{a.t, conn}, res, nil
}

func (a *node) socket(headers ...string) *socket {
	a.t.Helper()
	s, _, err := a.dial("/ojs/v1/ws", headers...)
	require.NoError(a.t, err)
	return s
}

func (s *socket) send(format string, args ...any) {
	s.t.Helper()
	require.NoError(s.t, s.conn.Write(s.t.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)))
}

func (s *socket) read() ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	_, message, err := s.conn.Read(ctx)
	return message, err
}

func (s *socket) receive() reply {
	s.t.Helper()
	message, err := s.read()
	require.NoError(s.t, err)
	return reply{t: s.t, body: string(message)}
}

// closed requires the code, after any other messages.
func (s *socket) closed(code websocket.StatusCode) {
	s.t.Helper()
	for {
		if _, err := s.read(); err != nil {
			var closing websocket.CloseError
			require.True(s.t, errors.As(err, &closing), "%v", err)
			require.Equal(s.t, code, closing.Code)
			return
		}
	}
}

func (s *socket) fails(code, format string, args ...any) reply {
	s.t.Helper()
	s.send(format, args...)
	r := s.receive()
	require.Equal(s.t, []string{"error", code}, []string{r.at("type"), r.at("code")}, r.body)
	require.NotEmpty(s.t, r.at("message"))
	return r
}
