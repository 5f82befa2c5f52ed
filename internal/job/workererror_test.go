package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func reported(t *testing.T, failure string) WorkerError {
	t.Helper()
	r, err := DecodeNack([]byte(`{"job_id":"` + anID + `","error":` + failure + `}`))
	require.Nil(t, err, "%.200s", failure)
	return r.Error
}

// docs/reference/jobs.md, Job error.
func TestWorkerErrorNormalised(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]WorkerError{
		`{}`: {Code: "handler_error", Type: "handler_error", Message: "handler_error", Retryable: true},
		`{"code":"c","type":"T","message":"m","retryable":false}`:                {Code: "c", Type: "T", Message: "m", RetryableSet: true},
		`{"code":"c","message":"m","retryable":true}`:                            {Code: "c", Type: "c", Message: "m", Retryable: true, RetryableSet: true},
		`{"type":"T","message":"m","backtrace":["a","b"]}`:                       {Code: "handler_error", Type: "T", Message: "m", Retryable: true, Backtrace: []string{"a", "b"}},
		`{"code":"c","message":"","details":{"error_class":"E"}}`:                {Code: "c", Type: "E", Message: "E", Retryable: true, ErrorClass: "E", Details: []byte(`{"error_class":"E"}`)},
		`{"code":"c","type":"T","details":{"error_class":"E"}}`:                  {Code: "c", Type: "T", Message: "T", Retryable: true, ErrorClass: "E", Details: []byte(`{"error_class":"E"}`)},
		`{"details":{"error_class":5, "n":1.0}}`:                                 {Code: "handler_error", Type: "handler_error", Message: "handler_error", Retryable: true, Details: []byte(`{"error_class":5,"n":1.0}`)},
		`{"details":[1]}`:                                                        {Code: "handler_error", Type: "handler_error", Message: "handler_error", Retryable: true, Details: []byte(`{"value":[1]}`)},
		`{"details":null}`:                                                       {Code: "handler_error", Type: "handler_error", Message: "handler_error", Retryable: true},
		`{"code":5,"type":{},"message":{"a": 1},"retryable":"no","backtrace":5}`: {Code: "handler_error", Type: "handler_error", Message: `{"a":1}`, Retryable: true},
		`{"message":"a\u0000b","code":"c\u0000","type":"\u0000"}`:                {Code: "c", Type: "c", Message: "a\x00b", Retryable: true},
		`{"message":"m","stack_trace":"a\r\nb\nc"}`:                              {Code: "handler_error", Type: "handler_error", Message: "m", Retryable: true, Backtrace: []string{"a", "b", "c"}},
		`{"message":"m","backtrace":"a\nb","stack_trace":"z"}`:                   {Code: "handler_error", Type: "handler_error", Message: "m", Retryable: true, Backtrace: []string{"a", "b"}},
		`{"message":"m","backtrace":["a",5,null,"b"]}`:                           {Code: "handler_error", Type: "handler_error", Message: "m", Retryable: true, Backtrace: []string{"a", "b"}},
		`{"message":"m","backtrace":[],"stack_trace":""}`:                        {Code: "handler_error", Type: "handler_error", Message: "m", Retryable: true},
		`{"message":"m","rate_limit_until":"2026-05-04T03:02:01Z"}`: {
			Code: "handler_error", Type: "handler_error", Message: "m", Retryable: true, RateLimitUntil: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC),
		},
	} {
		require.Equal(t, want, reported(t, text), text)
	}
}

func TestWorkerErrorCuts(t *testing.T) {
	t.Parallel()
	e := reported(t, `{"code":"`+strings.Repeat("é", 300)+`","message":"x`+strings.Repeat("é", 20_000)+`"}`)
	require.Len(t, e.Code, 254)
	require.Len(t, e.Message, 16_383, "cut between characters")
	require.True(t, utf8.ValidString(e.Message))
	require.Len(t, reported(t, `{"message":"`+strings.Repeat("x", 16_384)+`"}`).Message, 16_384)

	fits := `{"a":"` + strings.Repeat("x", 65_536-len(`{"a":""}`)) + `"}`
	require.Equal(t, fits, string(reported(t, `{"details":`+fits+`}`).Details))
	require.Equal(t, `{"truncated":true,"original_bytes":65537}`, string(reported(t, `{"details":`+strings.Replace(fits, "a", "ab", 1)+`}`).Details))
	e = reported(t, `{"details":{"error_class":"E","a":"`+strings.Repeat("x", 70_000)+`"}}`)
	require.Equal(t, "E", e.Type, "the class is read before the details are cut")
	e = reported(t, `{"details":{"a":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+`}}`)
	require.Equal(t, `{"truncated":true,"original_bytes":206}`, string(e.Details))

	e = reported(t, `{"backtrace":[`+strings.TrimSuffix(strings.Repeat(`"f",`, 80), ",")+`]}`)
	require.Len(t, e.Backtrace, 50)
	e = reported(t, `{"stack_trace":"`+strings.Repeat(`f\n`, 80)+`"}`)
	require.Len(t, e.Backtrace, 50)
	e = reported(t, `{"backtrace":["`+strings.Repeat("é", 6000)+`","`+strings.Repeat("é", 6000)+`","z"]}`)
	require.Len(t, e.Backtrace, 2)
	require.Equal(t, 4000, utf8.RuneCountInString(e.Backtrace[1]))
	e = reported(t, `{"backtrace":["`+strings.Repeat("x", 10_000)+`","z"]}`)
	require.Len(t, e.Backtrace, 1)
}

func TestWorkerErrorEncode(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 10, 0, 0, 120_000_000, time.UTC)
	e := reported(t, `{"code":"handler_error","message":"refused <\"\u0000>","details":{"error_class":"SmtpConnectionError","n":1.0},"backtrace":["a","b\n"]}`)
	require.Equal(t, `{"attempt":1,"code":"handler_error","type":"SmtpConnectionError","message":"refused <\"\u0000>","retryable":true,`+
		`"details":{"error_class":"SmtpConnectionError","n":1.0},"backtrace":["a","b\n"],"worker_id":"w\"7",`+
		`"occurred_at":"2026-03-01T10:00:00.120Z","timestamp":"2026-03-01T10:00:00.120Z"}`, string(e.Encode(1, at, `w"7`)))
	require.Equal(t, `{"attempt":2,"code":"c","type":"c","message":"c","retryable":false}`, string(reported(t, `{"code":"c","retryable":false}`).Encode(2, time.Time{}, "")))
	require.Equal(t, `{"code":"handler_error","type":"SmtpConnectionError","message":"refused <\"\u0000>","retryable":true,"stack_trace":"a\nb\n"}`, string(e.EventError()))
}

func TestServerError(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{"attempt":1,"code":"timeout","type":"timeout","message":"The attempt ran longer than its execution timeout.","retryable":true,`+
		`"timeout_kind":"execution","limit_seconds":2,"elapsed_seconds":2.013}`, string(ServerError(Timeout, 2*time.Second, 2013*time.Millisecond).Encode(1, time.Time{}, "")))
	require.Equal(t, `{"attempt":0,"code":"expired","type":"expired","message":"The job expired before it was started.","retryable":false}`,
		string(ServerError(Expired, 0, 0).Encode(0, time.Time{}, "")))
	for code, want := range map[string]string{
		VisibilityTimeout: "true ", WorkerDeath: "true ", Timeout: "true execution", Stalled: "true stalled", TotalTimeout: "false total",
		EnqueueTTLExpired: "false enqueue_ttl", Expired: "false ", RateLimited: "false ", Overflow: "false ", QueueDeleted: "false ",
	} {
		e := ServerError(code, time.Second, time.Second)
		require.Equal(t, want, fmt.Sprint(e.Retryable, " ", e.TimeoutKind), code)
		require.Equal(t, Failure{Code: code, Type: code, Retryable: e.Retryable, RetryableSet: true, ServerMade: code}, e.Failure())
		require.NotEmpty(t, e.Message)
	}
	require.Panics(t, func() { ServerError("nonsense", 0, 0) })
}

func TestEventErrorStaysSmall(t *testing.T) {
	t.Parallel()
	long := WorkerError{Code: "c", Type: "t", Message: strings.Repeat("m", 16_384), Backtrace: []string{strings.Repeat("b", 10_000)}}
	var shown struct {
		Message string
		Trace   string `json:"stack_trace"`
	}
	see := func(b []byte) {
		shown.Message, shown.Trace = "", ""
		require.NoError(t, json.Unmarshal(b, &shown))
	}
	b := long.EventError()
	see(b)
	require.LessOrEqual(t, len(b), maxEventErrorBytes)
	require.Len(t, shown.Message, 16_384, "the stack trace goes first")
	require.Len(t, shown.Trace, 4096)

	b = long.EventErrorWithin(11_000)
	see(b)
	require.Len(t, shown.Message, 2048)
	require.Len(t, shown.Trace, 4096)

	long.Message, long.Backtrace = strings.Repeat("\x00", 16_384), []string{strings.Repeat("\x01", 10_000)}
	b = long.EventErrorWithin(11_000)
	see(b)
	require.LessOrEqual(t, len(b), 11_000)
	require.NotEmpty(t, shown.Message)
}
