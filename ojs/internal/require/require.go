// Package require has the assertions of the SDK's own tests. Like their namesakes elsewhere they end the test. The module of the SDK
// requires no other module, its tests included, so that users get none with it.
package require

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// failf ends the test. message are a text, or a format with its arguments, that say what was tried.
func failf(t testing.TB, message []any, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if len(message) > 0 {
		if pattern, ok := message[0].(string); ok && len(message) > 1 {
			text += ": " + fmt.Sprintf(pattern, message[1:]...)
		} else {
			text += ": " + fmt.Sprint(message...)
		}
	}
	t.Fatal(text)
}

// Fail ends the test.
func Fail(t testing.TB, text string) {
	t.Helper()
	t.Fatal(text)
}

// NoError wants err to be nil.
func NoError(t testing.TB, err error, message ...any) {
	t.Helper()
	if err != nil {
		failf(t, message, "unexpected error: %v", err)
	}
}

// Error wants an error.
func Error(t testing.TB, err error, message ...any) {
	t.Helper()
	if err == nil {
		failf(t, message, "there is no error")
	}
}

// ErrorIs wants target in the chain of err.
func ErrorIs(t testing.TB, err, target error, message ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		failf(t, message, "error %v is not %v", err, target)
	}
}

// NotErrorIs wants target not to be in the chain of err.
func NotErrorIs(t testing.TB, err, target error, message ...any) {
	t.Helper()
	if errors.Is(err, target) {
		failf(t, message, "error %v is %v", err, target)
	}
}

// ErrorAs wants an error of the type that target points to, and sets it.
func ErrorAs(t testing.TB, err error, target any, message ...any) {
	t.Helper()
	if !errors.As(err, target) {
		failf(t, message, "error %v is no %T", err, target)
	}
}

// ErrorContains wants an error with a text.
func ErrorContains(t testing.TB, err error, text string, message ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		failf(t, message, "error %v does not contain %q", err, text)
	}
}

// Equal wants two values of one type to be deeply equal.
func Equal(t testing.TB, want, got any, message ...any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		failf(t, message, "want %#v\n got %#v", want, got)
	}
}

// JSONEq wants two texts of JSON with the same meaning.
func JSONEq(t testing.TB, want, got string, message ...any) {
	t.Helper()
	if canonical(want) != canonical(got) {
		failf(t, message, "want %s\n got %s", want, got)
	}
}

func canonical(text string) string {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return text
	}
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(v) // it was decoded
	return b.String()
}

// True wants a condition.
func True(t testing.TB, condition bool, message ...any) {
	t.Helper()
	if !condition {
		failf(t, message, "it is false")
	}
}

// False wants the opposite of a condition.
func False(t testing.TB, condition bool, message ...any) {
	t.Helper()
	if condition {
		failf(t, message, "it is true")
	}
}

// Zero wants the zero value of its type.
func Zero(t testing.TB, value any, message ...any) {
	t.Helper()
	if v := reflect.ValueOf(value); v.IsValid() && !v.IsZero() {
		failf(t, message, "%#v is not zero", value)
	}
}

// Nil wants a nil pointer, map, slice or interface.
func Nil(t testing.TB, value any, message ...any) {
	t.Helper()
	Zero(t, value, message...)
}

// Len wants a length.
func Len(t testing.TB, list any, n int, message ...any) {
	t.Helper()
	if got := reflect.ValueOf(list).Len(); got != n {
		failf(t, message, "want %d, got %d: %v", n, got, list)
	}
}

// Empty wants nothing in a list, map, text or channel.
func Empty(t testing.TB, list any, message ...any) {
	t.Helper()
	if v := reflect.ValueOf(list); v.IsValid() && v.Len() != 0 {
		failf(t, message, "it is not empty: %v", list)
	}
}

// Contains wants a part in a text.
func Contains(t testing.TB, text, part string, message ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		failf(t, message, "%q does not contain %q", text, part)
	}
}

// NotContains wants a part not to be in a text.
func NotContains(t testing.TB, text, part string, message ...any) {
	t.Helper()
	if strings.Contains(text, part) {
		failf(t, message, "%q contains %q", text, part)
	}
}

// Regexp wants a text to match a pattern.
func Regexp(t testing.TB, pattern, text string, message ...any) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		failf(t, message, "%q does not match %s", text, pattern)
	}
}

// compared wants the comparison of two values to give one of the results of cmp.Compare.
func compared[T cmp.Ordered](t testing.TB, a, b T, message []any, sign string, allowed ...int) {
	t.Helper()
	if !slices.Contains(allowed, cmp.Compare(a, b)) {
		failf(t, message, "%v %s %v is not so", a, sign, b)
	}
}

// Less wants a < b.
func Less[T cmp.Ordered](t testing.TB, a, b T, message ...any) {
	t.Helper()
	compared(t, a, b, message, "<", -1)
}

// LessOrEqual wants a ≤ b.
func LessOrEqual[T cmp.Ordered](t testing.TB, a, b T, message ...any) {
	t.Helper()
	compared(t, a, b, message, "≤", -1, 0)
}

// Greater wants a > b.
func Greater[T cmp.Ordered](t testing.TB, a, b T, message ...any) {
	t.Helper()
	compared(t, a, b, message, ">", 1)
}

// GreaterOrEqual wants a ≥ b.
func GreaterOrEqual[T cmp.Ordered](t testing.TB, a, b T, message ...any) {
	t.Helper()
	compared(t, a, b, message, "≥", 0, 1)
}

// Panics wants a function to panic.
func Panics(t testing.TB, function func(), message ...any) {
	t.Helper()
	defer func() {
		t.Helper()
		if recover() == nil {
			failf(t, message, "there is no panic")
		}
	}()
	function()
}
