package httpapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// bodyLimit is the most bytes of a body after decompression, and the field that an error names.
// Exactly the limit is accepted. The field is a word of docs/reference/errors.md, Details: envelope, batch, result and so on.
type bodyLimit struct {
	bytes int
	field string
}

// withBody reads the whole body for h, which must not keep it: its buffer serves the next request.
// What a handler keeps beyond its return, it must copy. It may wait inside the call, as a long poll does: the buffer is its
// own until it returns.
//
// The capacity of the buffer is reserved in the memory of the node before a byte is read, and freed when the handler has
// returned. Reserving the bytes of the body alone would count too little: a pooled buffer of 1 MiB may serve a body of 100
// bytes.
func (a *API) withBody(limit bodyLimit, h func(c echo.Context, body []byte) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		buf := buffers.Get().(*[]byte)
		defer release(buf)
		reserved := cap(*buf)
		// 503, before the body is read: the node has no room for another request.
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
		// The grown buffer goes back to the pool, also after an error.
		*buf = body
		// discardBody must come before the error is answered: it reads, and it may still set a header.
		if err != nil {
			discardBody(c)
			return err
		}
		return h(c, body)
	}
}

// readBody appends the body to buf. grow is called before buf grows to a capacity.
// Checks are in the order of docs/reference/http.md, Check order: Content-Type, Content-Encoding, size. It returns the buffer
// with every error, because it may be another one than it got.
func readBody(c echo.Context, limit bodyLimit, buf []byte, grow func(capacity int) error) ([]byte, error) {
	r := c.Request()
	// A request without a body needs no Content-Type; -1 is a body of unknown length.
	if r.ContentLength == 0 {
		return buf, nil
	}
	// The two JSON names, whatever their parameters.
	if sent := r.Header.Get("Content-Type"); sent != "" && !isMedia(sent, mediaOJS) && !isMedia(sent, mediaJSON) {
		return buf, spec.InvalidRequest("Content-Type", mediaOJS+" or "+mediaJSON, sent,
			"The Content-Type must be "+mediaOJS+" or "+mediaJSON+".")
	}
	src := io.Reader(r.Body)
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		// An honest client with too much is refused before it is read. With gzip the length says nothing, so readUpTo counts.
		if r.ContentLength > int64(limit.bytes) {
			return buf, spec.TooLarge(limit.field, limit.bytes, int(r.ContentLength))
		}
	case "gzip":
		zr, err := gzip.NewReader(r.Body)
		if err != nil {
			return buf, brokenStream(err)
		}
		// Only one encoding is taken; "gzip, gzip" is refused below as another one.
		src = zr
	default:
		return buf, spec.Compression(encoding)
	}

	// readUpTo reads at most one byte beyond the limit, so a small gzip body that expands to gigabytes costs no more than the
	// limit.
	buf, err := readUpTo(src, limit.bytes, buf, grow)
	var refused *ojs.Error
	switch {
	// The memory of the node is full: grow has made the error.
	case errors.As(err, &refused):
		return buf, err
	case err != nil:
		return buf, brokenStream(err)
	case len(buf) > limit.bytes:
		return buf, spec.TooLarge(limit.field, limit.bytes, 0)
	}
	return buf, nil
}

// readUpTo appends to empty buf until the end, or until one byte more than the limit. Memory grows with what arrives,
// not with what a Content-Length promises.
// The buffer doubles, so that grow is called a few times and not for each read. grow is told the whole new capacity; the old
// buffer is garbage from then on, and not counted.
func readUpTo(src io.Reader, limit int, buf []byte, grow func(capacity int) error) ([]byte, error) {
	for len(buf) <= limit {
		if len(buf) == cap(buf) {
			capacity := max(2*cap(buf), 512)
			if err := grow(capacity); err != nil {
				return buf, err
			}
			buf = append(make([]byte, 0, capacity), buf...)
		}
		// The slice ends one byte behind the limit, so a body of exactly the limit ends with EOF.
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
	// maxDiscarded and discardTime bound what a refused body costs. net/http itself reads 256 KiB more and then closes the
	// connection: a client that writes some MiB before it reads saw a broken pipe instead of 413. More than 64 MiB is an
	// attack or a mistake that no answer helps.
	maxDiscarded = 64 << 20
	discardTime  = 10 * time.Second
)

// discardBody reads the rest of a body that is refused, as far as it comes soon: a client that sends all of it before it reads would
// find the connection reset instead of the answer. Beyond that the connection ends with the answer. A client that waits for
// 100 Continue gets the answer instead, and sends nothing.
// It reads into no buffer. It sets the read deadline of the connection and takes it away again, because the connection may
// serve another request.
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

// brokenStream joins the cause for the log; the client sees only the first error. Errors of the connection and of gzip are
// not told apart here: nobody reads the answer of a broken connection.
func brokenStream(err error) error {
	text := "The body could not be read to its end; if it is compressed, it must be one complete gzip stream."
	if errors.Is(err, os.ErrDeadlineExceeded) { // http.Server.ReadTimeout
		text = "The body took too long: a request must arrive within 2 minutes."
	}
	return errors.Join(spec.InvalidPayload("body", "a complete body", nil, text), err)
}

// buffers serve request bodies and responses.
// A buffer begins with 4 KiB, which holds nearly every single job and its answer.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// maxPooled keeps a few huge messages from pinning memory.
// A buffer that grew beyond it is left to the garbage collector.
const maxPooled = 1 << 20

// release must be called once for each buffer that was taken from the pool, when nothing points into it any more.
func release(buf *[]byte) {
	if cap(*buf) <= maxPooled {
		buffers.Put(buf)
	}
}

// respond writes what build appends.
// build must not fail: when it runs, the change that it shows is committed. Errors belong before it.
func respond(c echo.Context, status int, build func(b []byte) []byte) error {
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	*buf = build((*buf)[:0])
	return send(c, status, *buf)
}

// streamedAnswer is more than an answer has that is built whole.
// A larger one would also leave a buffer that release drops.
const streamedAnswer = 1 << 20

// flush is called by a builder between items, with what it has appended, and returns where to append the next.
// The slice that it returns may be empty and share the memory of its argument: a builder must not keep an index into b across
// a call.
type flush func(b []byte) []byte

// whole lets an answer be built whole.
// It is the flush of answers that are kept, such as those of idempotency keys, and of small ones.
func whole(b []byte) []byte { return b }

// respondEach writes what build appends, an answer of about so many bytes. A large one is written item by item, and so has no
// Content-Length.
// bytes is an estimate and decides only between the two ways and the time for writing. HEAD needs the exact Content-Length
// and is therefore built whole.
//
// An error after the first piece cannot be answered any more: the connection ends, which the client sees as a truncated
// chunked body, and the access log as "answer was cut short".
func respondEach(c echo.Context, status, bytes int, build func(b []byte, next flush) []byte) error {
	if bytes <= streamedAnswer || c.Request().Method == http.MethodHead {
		return respond(c, status, func(b []byte) []byte { return build(b, whole) })
	}
	buf := buffers.Get().(*[]byte)
	defer release(buf)
	w := c.Response()
	// From here on an error cannot be answered.
	w.WriteHeader(status)
	return inTime(c, timeFor(bytes), func() (err error) {
		*buf = build((*buf)[:0], func(b []byte) []byte {
			if len(b) < largeAnswer {
				return b
			}
			// After a failed write the builder runs on, because it cannot be stopped, and its bytes are dropped.
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

// send sets Content-Length itself, so net/http does not chunk a body that is longer than its buffer. HEAD gets the length of
// what GET would send.
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

// object is a JSON object whose members keep their order. Answers off the hot path are made of it, without a type for each.
type object []member

type member struct {
	name  string
	value any
}

// omitted is the value of a member that is left out.
type omitted struct{}

// given is the value, or leaves the member out if it is zero.
func given[T comparable](value T) any {
	var zero T
	if value == zero {
		return omitted{}
	}
	return value
}

// orNull is the value, or null if it is zero.
func orNull[T comparable](value T) any {
	if value := given(value); value != any(omitted{}) {
		return value
	}
	return nil
}

// each shows all elements of a list.
func each[T any](list []T, show func(item *T) object) []object {
	shown := make([]object, len(list))
	for i := range list {
		shown[i] = show(&list[i])
	}
	return shown
}

func (o object) append(b []byte) []byte { return append(o.appendMembers(append(b, '{')), '}') }

// appendMembers leaves the object open. b may have members of it already.
func (o object) appendMembers(b []byte) []byte {
	for _, m := range o {
		switch v := m.value.(type) {
		case omitted:
			continue
		case time.Time:
			if v.IsZero() {
				continue
			}
		case *time.Time:
			if v == nil || v.IsZero() {
				continue
			}
		}
		if n := len(b); n == 0 || b[n-1] != '{' {
			b = append(b, ',')
		}
		b = appendValue(append(appendQuoted(b, m.name), ':'), m.value)
	}
	return b
}

// appendValue writes texts, ids and times as all answers have them, JSON as it is, and what this package does not know by the library.
// A zero time is left out, while what is NULL is null. A function appends a value of its own, such as a job.
func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case string:
		return appendQuoted(b, v)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int32:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return appendFloat(b, v)
	case [16]byte:
		return append(spec.AppendID(append(b, '"'), v), '"')
	case time.Time:
		return append(appendClock(append(b, '"'), v.UTC()), '"')
	case *time.Time:
		return appendValue(b, *v)
	case []byte:
		return appendOrNull(b, v)
	case jsontext.Value:
		return appendOrNull(b, v)
	case []string:
		return appendEach(b, v, whole, func(b []byte, text *string) []byte { return appendQuoted(b, *text) })
	case object:
		return v.append(b)
	case []object:
		return appendEach(b, v, whole, func(b []byte, o *object) []byte { return o.append(b) })
	case func(b []byte) []byte:
		return v(b)
	case *[16]byte:
		if v != nil {
			return appendValue(b, *v)
		}
	case pgtype.Timestamptz:
		if v.Valid {
			return appendValue(b, v.Time)
		}
	case pgtype.Text:
		if v.Valid {
			return appendQuoted(b, v.String)
		}
	case pgtype.Float8:
		if v.Valid {
			return appendFloat(b, v.Float64)
		}
	case pgtype.UUID:
		if v.Valid {
			return appendValue(b, v.Bytes)
		}
	case nil:
	default:
		text, err := marshal(value)
		if err != nil {
			panic(err) // not a type that can be shown
		}
		return append(b, text...)
	}
	return append(b, `null`...)
}

// MarshalJSON lets an object stand in what the library encodes.
func (o object) MarshalJSON() ([]byte, error) { return o.append(nil), nil }

// appendEach appends an array.
func appendEach[T any](b []byte, list []T, next flush, show func(b []byte, item *T) []byte) []byte {
	b = append(b, '[')
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = next(show(b, &list[i]))
	}
	return append(b, ']')
}

// answer is an answer of values.
func (r *request) answer(status int, o object) error { return respond(r, status, o.append) }

const (
	// largeAnswer is more than the buffers of a connection without other answers take at once: a smaller answer never waits
	// for its client.
	largeAnswer = 64 << 10

	// answerTime is what a client has for an answer, and a second more for each answerRate bytes. Without a limit a client that does
	// not read keeps the answer in memory for as long as it likes.
	answerTime = 30 * time.Second
	answerRate = 256 << 10
)

// inTime writes an answer with a deadline, which it takes away again: the connection may serve a stream next.
// The deadline is cleared only after the flush, because what is written may still lie in the buffer of net/http. After an
// error it stays: the connection is not used again.
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

// timeFor is 30 s for anything below 256 KiB, and 2 min 38 s for 32 MiB.
func timeFor(bytes int) time.Duration {
	return answerTime + time.Duration(bytes/answerRate)*time.Second
}

// blank reports whether a body holds nothing but white space.
func blank(body []byte) bool { return len(bytes.TrimSpace(body)) == 0 }
