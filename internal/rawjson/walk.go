package rawjson

import (
	"bytes"
	"iter"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

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

// There is always a character behind it: a bracket ends every object and array.
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

// A loop and not a recursion, so deep nesting costs no stack.
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

// StorableText returns v with strings that SQL can read as texts, for reports of workers, which are stored without an error: without escapes
// of U+0000, and with U+FFFD for halves of surrogate pairs. PostgreSQL stores both in a json, but a statement that reads any member of it fails.
// A backslash that is itself escaped is not the beginning of an escape: \\u0000 in the text stays.
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
