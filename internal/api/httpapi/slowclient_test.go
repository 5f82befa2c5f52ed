package httpapi

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

// TestLargeAnswerHasADeadline serves a client that does not read.
func TestLargeAnswerHasADeadline(t *testing.T) {
	t.Parallel()
	body, failed := bytes.Repeat([]byte("x"), 16<<20), make(chan error, 1)
	e := echo.New()
	e.GET("/", func(c echo.Context) error {
		c.Response().WriteHeader(http.StatusOK)
		err := inTime(c, 50*time.Millisecond, func() error {
			_, err := c.Response().Write(body)
			return err
		})
		failed <- err
		return err
	})
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }()
	defer func() { require.NoError(t, server.Close()) }()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	_, err = client.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	require.NoError(t, err)
	select {
	case err := <-failed:
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
	case <-time.After(time.Minute):
		t.Fatal("the answer has no deadline")
	}
}

// TestTimeForAnAnswer grows with the answer.
func TestTimeForAnAnswer(t *testing.T) {
	t.Parallel()
	require.Equal(t, 30*time.Second, timeFor(largeAnswer))
	require.Equal(t, 62*time.Second, timeFor(8<<20))
}

// TestSlowBodyIsExplained serves a client that stops within its body.
func TestSlowBodyIsExplained(t *testing.T) {
	t.Parallel()
	shown := make(chan error, 1)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	const patience = 2 * time.Second // a busy machine must have sent the head by then
	server := &http.Server{ReadTimeout: patience, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		shown <- brokenStream(err)
	})}
	go func() { _ = server.Serve(ln) }()
	defer func() { require.NoError(t, server.Close()) }()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	_, err = client.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"))
	require.NoError(t, err)
	require.ErrorContains(t, <-shown, "within 2 minutes")
}
