// Package spec gives ids, times and errors the form in which clients see them (docs/reference/jobs.md, Times and durations;
// docs/reference/errors.md). It has the catalogue of errors, and is the only place that knows codes and hints. It knows no
// transport: which status an error is answered with is the transport's business.
package spec

import (
	"encoding/hex"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// TimeFormat is the layout of all times in responses and events (docs/reference/jobs.md, Times and durations).
const TimeFormat = "2006-01-02T15:04:05.000Z"

// FormatTime formats t in UTC with three fractional digits, which are cut, not rounded.
func FormatTime(t time.Time) string { return t.UTC().Format(TimeFormat) }

// ParseID reads a job or workflow id: a lower-case UUIDv7. It ignores a leading job_ or wf_, which requests may use everywhere
// but in the `id` of a new job (docs/reference/http.md, Unmatched requests). A text that is no id names no job, so a server
// answers not_found for it and not an error of its form.
func ParseID(s string) (id [16]byte, ok bool) {
	if rest, cut := strings.CutPrefix(s, "job_"); cut {
		s = rest
	} else {
		s = strings.TrimPrefix(s, "wf_")
	}
	return ParseUUIDv7(s)
}

// ParseUUIDv7 reads exactly ^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$. It is a loop and not a
// regular expression, because the server calls it for every id that it reads.
func ParseUUIDv7[T string | []byte](s T) (id [16]byte, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, false
	}
	n := 0
	for i := range len(s) {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			continue
		}
		d, ok := hexDigit(s[i])
		if !ok {
			return [16]byte{}, false
		}
		id[n/2] = id[n/2]<<4 | d
		n++
	}
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return [16]byte{}, false
	}
	return id, true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	default:
		return 0, false
	}
}

// FormatID returns the text of an id.
func FormatID(id [16]byte) string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// AppendID appends the text of an id. It is FormatID without a text of its own, for encoders.
func AppendID(b []byte, id [16]byte) []byte {
	b = hex.AppendEncode(b, id[0:4])
	b = hex.AppendEncode(append(b, '-'), id[4:6])
	b = hex.AppendEncode(append(b, '-'), id[6:8])
	b = hex.AppendEncode(append(b, '-'), id[8:10])
	return hex.AppendEncode(append(b, '-'), id[10:16])
}

// docsURL is the beginning of the stable names of errors.
const docsURL = "https://openjobspec.org/errors/"

// NewError makes an error of a kind. details may be nil. It panics for a kind that is not in the catalogue, which is a mistake
// of the program.
func NewError(kind ojs.ErrorKind, message string, details map[string]any) *ojs.Error {
	c, ok := catalogue[kind]
	if !ok {
		panic("spec: error kind is not in the catalogue: " + string(kind))
	}
	code, doc := c.code, c.doc
	if code == "" {
		code = string(kind)
	}
	if doc == "" {
		doc = strings.ToUpper(string(kind))
	}
	return &ojs.Error{
		Code: code, Type: string(kind), Message: message, Retryable: c.retryable,
		Hint: c.hint, DocsURL: docsURL + doc, Details: details,
	}
}

// With adds one member to the details of e and returns e. It changes e, so it is for errors that nobody else has yet.
func With(e *ojs.Error, key string, value any) *ojs.Error {
	if e.Details == nil {
		e.Details = make(map[string]any, 1)
	}
	e.Details[key] = value
	return e
}
