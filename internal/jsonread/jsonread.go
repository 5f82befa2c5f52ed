// Package jsonread owns the reading of client JSON without decoding it. Check validates a body once, with jsontext. All other functions of
// jsonread.go walk valid text, so that number literals and escapes survive and no part is parsed twice. object.go reads the members of
// an object by name, with their types, and lists everything that is wrong with a body, so that a client sees all of it at once; duration.go
// reads durations. The package must know no rule of a domain.
//
// Only Check may be called with text that Check has not accepted: the other functions do not detect syntax errors.
package jsonread

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
	"unicode/utf16"
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

// bad leaves out received: a whole body in its own error would help nobody.
func bad(message, expected string) *ojs.Error {
	return spec.InvalidPayload("body", expected, nil, message)
}

// trim takes off the four characters that JSON permits, and no other white space.
func trim(b []byte) jsontext.Value { return bytes.Trim(b, " \t\r\n") }

// Members yields the names (as literals, in quotes) and values of an object, in order, with repeated names.
//
// The values share memory with the object, with their capacity cut, so that an append to one does not write over the next.
func Members(object jsontext.Value) iter.Seq2[jsontext.Value, jsontext.Value] {
	return func(yield func(jsontext.Value, jsontext.Value) bool) {
		i := space(object, 1)
		for object[i] != '}' {
			end := skip(object, i)
			name := object[i:end:end]
			i = space(object, space(object, end)+1) // over the colon
			end = skip(object, i)
			if !yield(name, object[i:end:end]) {
				return
			}
			i = next(object, end)
		}
	}
}

// Elements yields the values of an array.
// They share memory with the array, as those of Members do.
func Elements(array jsontext.Value) iter.Seq[jsontext.Value] {
	return func(yield func(jsontext.Value) bool) {
		i := space(array, 1)
		for array[i] != ']' {
			end := skip(array, i)
			if !yield(array[i:end:end]) {
				return
			}
			i = next(array, end)
		}
	}
}

// Len is the number of elements of an array.
// It walks the whole array; callers that need the elements as well should count them while they read.
func Len(array jsontext.Value) int {
	n := 0
	for range Elements(array) {
		n++
	}
	return n
}

// next returns the start of the next member or element, or the closing bracket.
func next(v []byte, i int) int {
	i = space(v, i)
	if v[i] == ',' {
		i = space(v, i+1)
	}
	return i
}

// space ends at a character, which is always there: a bracket ends every object and array.
func space(v []byte, i int) int {
	for v[i] == ' ' || v[i] == '\n' || v[i] == '\r' || v[i] == '\t' {
		i++
	}
	return i
}

// skip returns the end of the value that starts at i.
// It panics or runs on for text that is not JSON; see the package comment.
func skip(v []byte, i int) int {
	switch v[i] {
	case '"':
		return skipString(v, i)
	case '{', '[':
		return skipNested(v, i)
	}
	for i < len(v) && !delimiter(v[i]) {
		i++
	}
	return i
}

// skipString returns the end of the string literal that starts at i. For short literals, the usual ones, a loop is faster than
// bytes.IndexByte.
func skipString(v []byte, i int) int {
	for i++; v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipNested is a loop and not a recursion, so deep nesting costs no stack.
func skipNested(v []byte, i int) int {
	for depth := 0; ; {
		switch v[i] {
		case '"':
			i = skipString(v, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
}

func delimiter(c byte) bool {
	return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\n' || c == '\r' || c == '\t'
}

// Depth is the number of levels of nesting: 0 for a scalar, 1 for [] or {}.
// Brackets inside of strings do not count.
func Depth(v jsontext.Value) int {
	deepest, depth := 0, 0
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '"':
			i = skipString(v, i) - 1
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}

// AppendCompact appends v without white space between its tokens. Literals stay as they are.
// dst must not share memory with v.
func AppendCompact(dst []byte, v jsontext.Value) []byte {
	start := 0
	for i := 0; i < len(v); {
		switch v[i] {
		case '"':
			i = skipString(v, i)
		case ' ', '\n', '\r', '\t':
			dst = append(dst, v[start:i]...)
			i++
			start = i
		default:
			i++
		}
	}
	return append(dst, v[start:]...)
}

// Compact is AppendCompact to a new slice.
// The result never shares memory with v.
func Compact(v jsontext.Value) []byte { return AppendCompact(make([]byte, 0, len(v)), v) }

// IsNull reports whether v is absent or the literal null.
// No other literal begins with n.
func IsNull(v jsontext.Value) bool { return v == nil || v[0] == 'n' }

// StorableText returns v with strings that SQL can read as texts, for reports of workers, which are stored without an error: without
// escapes of U+0000, and with U+FFFD for halves of surrogate pairs. PostgreSQL stores both in a json, but a statement that reads any member
// of it fails. A backslash that is itself escaped is not the beginning of an escape: \\u0000 in the text stays.
func StorableText(v []byte) []byte {
	if !bytes.Contains(v, []byte(`\u`)) {
		return v
	}
	out := make([]byte, 0, len(v))
	for i := 0; i < len(v); {
		unit, escaped := codeUnit(v[i:])
		switch {
		case escaped && unit == 0:
			i += escapeLen
		case escaped && utf16.IsSurrogate(unit):
			if low, ok := codeUnit(v[i+escapeLen:]); ok && utf16.DecodeRune(unit, low) != utf8.RuneError {
				out = append(out, v[i:i+2*escapeLen]...)
				i += 2 * escapeLen
				continue
			}
			out = utf8.AppendRune(out, utf8.RuneError)
			i += escapeLen
		case v[i] == '\\':
			out = append(out, v[i], v[i+1])
			i += 2
		default:
			out = append(out, v[i])
			i++
		}
	}
	return out
}

// escapeLen is the length of \u0000.
const escapeLen = 6

// codeUnit reads the escape \uXXXX with which v begins.
func codeUnit(v []byte) (unit rune, ok bool) {
	if len(v) < escapeLen || v[0] != '\\' || v[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(v[2:escapeLen]), 16, 16)
	return rune(n), err == nil
}

// Name returns the content of a name or string literal, for comparisons. The result may share memory with the literal.
// It must not be changed by the caller.
func Name(literal jsontext.Value) []byte {
	inner := literal[1 : len(literal)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	// The only possible error is a lone surrogate, which becomes U+FFFD.
	text, _ := jsontext.AppendUnquote(nil, literal)
	return text
}

// Text returns the content of v if it is a string.
// nil, null and other types give false. The text is a copy.
func Text(v jsontext.Value) (string, bool) {
	if v == nil || v[0] != '"' {
		return "", false
	}
	return string(Name(v)), true
}

// Bool returns the content of v if it is true or false.
// ok is false for absent values, so callers ask for presence themselves.
func Bool(v jsontext.Value) (value, ok bool) {
	if v == nil {
		return false, false
	}
	return v[0] == 't', v[0] == 't' || v[0] == 'f'
}

// IntResult classifies the argument of Int.
// Clients get different messages for the two refusals.
type IntResult int

// The results of Int.
const (
	IsInt    IntResult = iota // an integral number within int64
	NotInt                    // not a number, or one with a fraction
	TooLarge                  // integral, but beyond int64
)

// Int reads a number with integral value: 5, 5.0, 50e-1, never "5".
// No float is involved, so that integers beyond 2^53 are exact.
func Int(v jsontext.Value) (int64, IntResult) {
	if v == nil || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return 0, NotInt
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, IsInt
	}
	return wideInt(v)
}

// wideInt reads a number with fraction or exponent, or beyond int64. It never expands the exponent, because a literal such as
// 1e999999999 must cost nothing.
// The number is digits times ten to the power of shift, with neither leading nor trailing zeros in digits.
func wideInt(v jsontext.Value) (int64, IntResult) {
	// The sign is taken off and put back, so that -0.0 and -5e0 are read like 0 and 5.
	sign := ""
	if v[0] == '-' {
		sign, v = "-", v[1:]
	}
	mantissa, exponent, _ := bytes.Cut(bytes.ToLower(v), []byte("e"))
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))
	digits := bytes.TrimLeft(append(bytes.Clone(whole), fraction...), "0")
	shift := -len(fraction)
	if trimmed := bytes.TrimRight(digits, "0"); len(trimmed) < len(digits) {
		shift += len(digits) - len(trimmed)
		digits = trimmed
	}
	if len(digits) == 0 {
		return 0, IsInt
	}
	if len(exponent) > 0 {
		e, err := strconv.Atoi(string(exponent))
		// An exponent that large makes a fraction or a number beyond int64, whatever the digits are.
		if err != nil || e > 1<<30 || e < -1<<30 {
			return 0, either(exponent[0] == '-', NotInt, TooLarge)
		}
		shift += e
	}
	if shift < 0 {
		return 0, NotInt
	}
	// int64 has 19 digits. So the zeros that are appended below are enough.
	if len(digits)+shift > 19 {
		return 0, TooLarge
	}
	n, err := strconv.ParseInt(sign+string(digits)+"0000000000000000000"[:shift], 10, 64)
	if err != nil {
		return 0, TooLarge
	}
	return n, IsInt
}

func either(condition bool, yes, no IntResult) IntResult {
	if condition {
		return yes
	}
	return no
}

// Describe names the kind of v for a message.
// It is for sentences: with an article, and without the value.
func Describe(v jsontext.Value) string {
	switch {
	case v == nil:
		return "nothing"
	case v[0] == '{':
		return "an object"
	case v[0] == '[':
		return "an array"
	case v[0] == '"':
		return "a string"
	case v[0] == 'n':
		return "null"
	case v[0] == 't' || v[0] == 'f':
		return "a boolean"
	default:
		return "a number"
	}
}

// shownBytes bounds how much of an invalid value an error repeats.
const shownBytes = 200

// Show returns v for the member `received` of an error: the value itself, or the beginning of its text if it is long.
// It never parses a long value: a bad body of 1 MiB must not cost more than its check.
func Show(v jsontext.Value) any {
	if v == nil {
		return nil
	}
	if len(v) <= 4*shownBytes {
		if c := Compact(v); len(c) <= shownBytes {
			return json.RawMessage(c)
		}
	}
	// A cut inside of a character would make invalid UTF-8 of it.
	cut := v[:shownBytes]
	for !utf8.Valid(cut) {
		cut = cut[:len(cut)-1]
	}
	return string(cut) + "…"
}

// AppendNumber appends a finite number as JSON: whole numbers as such as long as that is short, like JavaScript.
// The bounds are those at which JavaScript changes to an exponent.
func AppendNumber(b []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}
