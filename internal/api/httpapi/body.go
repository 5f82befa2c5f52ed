package httpapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/ojs"
)

// bodyLimit is the most bytes of a body after decompression, and the field that an error names.
type bodyLimit struct {
	bytes int
	field string
}

// withBody reads the whole body for h, which must not keep it: its buffer serves the next request.
func (a *API) withBody(limit bodyLimit, h func(c echo.Context, body []byte) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		buf := buffers.Get().(*[]byte)
		defer release(buf)
		reserved := cap(*buf)
		if err := a.memory.Take(reserved); err != nil {
			return err
		}
		defer func() { a.memory.Free(reserved) }()
		body, err := readBody(c, limit, (*buf)[:0], func(capacity int) error {
			more := capacity - reserved
			if err := a.memory.Take(more); err != nil {
				return err
			}
			reserved += more
			return nil
		})
		*buf = body
		if err != nil {
			discardBody(c)
			return err
		}
		return h(c, body)
	}
}

// readBody appends the body to buf. grow is called before buf grows to a capacity.
func readBody(c echo.Context, limit bodyLimit, buf []byte, grow func(capacity int) error) ([]byte, error) {
	r := c.Request()
	if r.ContentLength == 0 {
		return buf, nil
	}
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return buf, err
	}
	src := io.Reader(r.Body)
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		if r.ContentLength > int64(limit.bytes) {
			return buf, ojs.ErrTooLarge(limit.field, limit.bytes, int(r.ContentLength))
		}
	case "gzip":
		zr, err := gzip.NewReader(r.Body)
		if err != nil {
			return buf, brokenStream(err)
		}
		src = zr
	default:
		return buf, ojs.ErrCompression(encoding)
	}

	buf, err := readUpTo(src, limit.bytes, buf, grow)
	var refused *ojs.Error
	switch {
	case errors.As(err, &refused):
		return buf, err
	case err != nil:
		return buf, brokenStream(err)
	case len(buf) > limit.bytes:
		return buf, ojs.ErrTooLarge(limit.field, limit.bytes, 0)
	}
	return buf, nil
}

// readUpTo appends to empty buf until the end, or until one byte more than the limit. Memory grows with what arrives,
// not with what a Content-Length promises.
func readUpTo(src io.Reader, limit int, buf []byte, grow func(capacity int) error) ([]byte, error) {
	for len(buf) <= limit {
		if len(buf) == cap(buf) {
			capacity := max(2*cap(buf), 512)
			if err := grow(capacity); err != nil {
				return buf, err
			}
			buf = append(make([]byte, 0, capacity), buf...)
		}
		n, err := src.Read(buf[len(buf):min(cap(buf), limit+1)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

const (
	maxDiscarded = 64 << 20
	discardTime  = 10 * time.Second
)

// discardBody reads the rest of a body that is refused, as far as it comes soon: a client that sends all of it before it reads would
// find the connection reset instead of the answer. Beyond that the connection ends with the answer. A client that waits for
// 100 Continue gets the answer instead, and sends nothing.
func discardBody(c echo.Context) {
	r, control := c.Request(), http.NewResponseController(c.Response())
	if r.Header.Get("Expect") == "" && control.SetReadDeadline(time.Now().Add(discardTime)) == nil {
		_, err := io.CopyN(io.Discard, r.Body, maxDiscarded)
		if _ = control.SetReadDeadline(time.Time{}); errors.Is(err, io.EOF) {
			return
		}
	}
	c.Response().Header().Set("Connection", "close")
}

func brokenStream(err error) error {
	return errors.Join(ojs.ErrInvalidPayload("body", "a complete body", nil,
		"The body could not be read to its end; if it is compressed, it must be one complete gzip stream."), err)
}

// checkContentType accepts the two JSON names, whatever their parameters. Only a body needs one.
func checkContentType(value string) error {
	if value == "" || isMedia(value, mediaOJS) || isMedia(value, mediaJSON) {
		return nil
	}
	return ojs.ErrInvalidRequest("Content-Type", mediaOJS+" or "+mediaJSON, value, "The Content-Type must be "+mediaOJS+" or "+mediaJSON+".")
}

// buffers serve request bodies and responses.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// maxPooled keeps a few huge messages from pinning memory.
const maxPooled = 1 << 20

func release(buf *[]byte) {
	if cap(*buf) <= maxPooled {
		buffers.Put(buf)
	}
}

// respond writes what build appends.
func respond(c echo.Context, status int, build func(b []byte) []byte) error {
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	*buf = build((*buf)[:0])
	return send(c, status, *buf)
}

// streamedAnswer is more than an answer has that is built whole.
const streamedAnswer = 1 << 20

// flush is called by a builder between items, with what it has appended, and returns where to append the next.
type flush func(b []byte) []byte

// whole lets an answer be built whole.
func whole(b []byte) []byte { return b }

// respondEach writes what build appends, an answer of about so many bytes. A large one is written item by item, and so has no
// Content-Length.
func respondEach(c echo.Context, status, bytes int, build func(b []byte, next flush) []byte) error {
	if bytes <= streamedAnswer || c.Request().Method == http.MethodHead {
		return respond(c, status, func(b []byte) []byte { return build(b, whole) })
	}
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	w := c.Response()
	w.WriteHeader(status)
	return inTime(c, timeFor(bytes), func() (err error) {
		*buf = build((*buf)[:0], func(b []byte) []byte {
			if len(b) < largeAnswer {
				return b
			}
			if err == nil {
				_, err = w.Write(b)
			}
			return b[:0]
		})
		if err == nil {
			_, err = w.Write(*buf)
		}
		return err
	})
}

func send(c echo.Context, status int, body []byte) error {
	w := c.Response()
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	if c.Request().Method == http.MethodHead {
		return nil
	}
	if len(body) > largeAnswer {
		return inTime(c, timeFor(len(body)), func() error {
			_, err := w.Write(body)
			return err
		})
	}
	_, err := w.Write(body)
	return err
}

const (
	// largeAnswer is more than the buffers of a connection without other answers take at once: a smaller answer never waits
	// for its client.
	largeAnswer = 64 << 10

	// A client has answerTime for an answer, and a second more for each answerRate bytes. Without a limit a client that does
	// not read keeps the answer in memory for as long as it likes.
	answerTime = 30 * time.Second
	answerRate = 256 << 10
)

// inTime writes an answer with a deadline, which it takes away again: the connection may serve a stream next.
func inTime(c echo.Context, within time.Duration, write func() error) error {
	control := http.NewResponseController(c.Response())
	timed := control.SetWriteDeadline(time.Now().Add(within)) == nil // a recorder of a test has no deadlines
	if err := write(); err != nil || !timed {
		return err
	}
	if err := control.Flush(); err != nil {
		return err
	}
	return control.SetWriteDeadline(time.Time{})
}

func timeFor(bytes int) time.Duration {
	return answerTime + time.Duration(bytes/answerRate)*time.Second
}

// blank reports whether a body holds nothing but white space.
func blank(body []byte) bool { return len(bytes.TrimSpace(body)) == 0 }
