package rawjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// options allow equal names, of which callers use the last, and escapes of lone surrogates, such as "\ud800" from a JavaScript
// client, which are JSON and must survive. Check tests the raw bytes for UTF-8 before.
var options = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// Check returns body without surrounding white space if it is exactly one JSON object, else a 400 that says what is
// wrong with it (docs/reference/http.md, Bodies).
//
// The result shares memory with body. It limits neither depth nor size: callers bound the bytes before, and depth by Depth.
func Check(body []byte) (jsontext.Value, *ojs.Error) {
	switch {
	// PostgreSQL refuses other bytes, and would fail a whole statement of many jobs.
	case !utf8.Valid(body):
		return nil, bad("The request body is not valid UTF-8.", "UTF-8 text")
	case bytes.HasPrefix(body, []byte("\xef\xbb\xbf")):
		return nil, bad("The request body starts with a byte order mark; send JSON without one.", "a JSON object")
	// The only pass of a parser over the body.
	case !jsontext.Value(body).IsValid(options...):
		return nil, explain(body)
	}
	v := trim(body)
	if v[0] != '{' {
		return nil, bad(fmt.Sprintf("The request body must be a JSON object, got %s.", Describe(v)), "a JSON object")
	}
	return v, nil
}

// explain describes the error in a body that is not JSON. It parses again, which only invalid requests pay for.
func explain(body []byte) *ojs.Error {
	if len(trim(body)) == 0 {
		return bad("The request body is empty; send one JSON object.", "a JSON object")
	}
	d := jsontext.NewDecoder(bytes.NewReader(body), options...)
	_, err := d.ReadValue()
	if err == nil {
		return bad(fmt.Sprintf("The request body has data after its JSON value, at byte %d.", d.InputOffset()), "one JSON object")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return bad("The request body is not valid JSON: it ends too early.", "a JSON object")
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return bad(fmt.Sprintf("The request body is not valid JSON: %v at byte %d.", syntax.Err, syntax.ByteOffset), "a JSON object")
	}
	return bad("The request body is not valid JSON.", "a JSON object")
}

// received is left out: a whole body in its own error would help nobody.
func bad(message, expected string) *ojs.Error {
	return spec.InvalidPayload("body", expected, nil, message)
}

// The four characters that JSON permits, and no other white space.
func trim(b []byte) jsontext.Value { return bytes.Trim(b, " \t\r\n") }
