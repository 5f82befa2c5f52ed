package observe

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// errorAttr turns the attribute error of a caller into the group error (docs/reference/observability.md, Logs).
// Callers log the error under the key error or err; the handler calls this for both.
func errorAttr(v slog.Value) slog.Attr {
	err, ok := v.Any().(error)
	if !ok {
		return slog.Group("error", slog.String("type", "error"), slog.String("message", v.String()))
	}
	return slog.Group("error", slog.String("type", ErrorType(err)), slog.String("message", ErrorMessage(err)))
}

// ErrorType is the type of the innermost error, because the outer ones only wrap it. Of several joined errors the first one
// counts.
func ErrorType(err error) string {
	for {
		switch e := err.(type) { //nolint:errorlint // this walks the chain
		case interface{ Unwrap() error }:
			inner := e.Unwrap()
			if inner == nil {
				return fmt.Sprintf("%T", err)
			}
			err = inner
		case interface{ Unwrap() []error }:
			inner := e.Unwrap()
			if len(inner) == 0 {
				return fmt.Sprintf("%T", err)
			}
			err = inner[0]
		default:
			return fmt.Sprintf("%T", err)
		}
	}
}

// ErrorMessage is the text of an error without the values that PostgreSQL quotes from rows and arguments, which belong to clients.
// The details of PostgreSQL's errors, which quote most, are not part of that text.
//
// It also hides passwords in connection strings: pgx does not hide all of them. Class 22 (data exceptions) are the errors that
// quote values in their main message.
func ErrorMessage(err error) string {
	text := err.Error()
	for _, pg := range postgresErrors(err) {
		// The message is like `invalid input syntax for type bigint: "…"`. Everything behind the first quote goes, because a value may
		// contain quotes itself.
		if before, _, quotes := strings.Cut(pg.Message, "\""); quotes && strings.HasPrefix(pg.Code, "22") {
			text = strings.ReplaceAll(text, pg.Message, before+"(hidden)")
		}
	}
	return HidePasswords(text)
}

var (
	// urlPassword is for the form of a URL, keywordPassword for a list of keywords. Both are greedy rather than exact: hiding too much is
	// no loss.
	urlPassword     = regexp.MustCompile(`(://[^:@/\s]*):\S*@`)
	keywordPassword = regexp.MustCompile(`(?i)(password\s*=\s*)('[^']*'|[^\s'"` + "`" + `&]+)`)
)

// HidePasswords replaces passwords of connection strings in a text.
func HidePasswords(text string) string {
	return keywordPassword.ReplaceAllString(urlPassword.ReplaceAllString(text, "$1:xxxxx@"), "${1}xxxxx")
}

// postgresErrors are all errors of PostgreSQL in the tree of an error.
func postgresErrors(err error) (list []*pgconn.PgError) {
	switch e := err.(type) { //nolint:errorlint // this walks the tree
	case nil:
	case *pgconn.PgError:
		list = append(list, e)
	case interface{ Unwrap() error }:
		list = postgresErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			list = append(list, postgresErrors(inner)...)
		}
	}
	return list
}

// maxBacktrace bounds a backtrace in the log, in bytes.
const maxBacktrace = 4096

// CutBacktrace shortens a backtrace to maxBacktrace. It cuts between characters.
func CutBacktrace(backtrace string) string {
	if len(backtrace) <= maxBacktrace {
		return backtrace
	}
	return strings.ToValidUTF8(backtrace[:maxBacktrace], "")
}
