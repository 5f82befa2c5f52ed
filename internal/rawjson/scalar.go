package rawjson

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

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
	for len(cut) > 0 && !utf8.Valid(cut) {
		cut = cut[:len(cut)-1]
	}
	return string(cut) + "…"
}
