package pg

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// readOnly is the SQLSTATE read_only_sql_transaction.
const readOnly = "25006"

// IsRowError reports whether a single row may have caused the error of a statement over many rows: a data exception, a
// constraint violation, a program limit or a locked row. The other rows may then succeed in a statement of their own.
// 55P03 is a lock timeout: one row was locked.
func IsRowError(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) != 5 {
		return false
	}
	switch pg.Code[:2] {
	case "21", "22", "23", "54":
		return true
	}
	return pg.Code == "55P03"
}

// IsDivisible reports whether a part of the rows of a statement may succeed where all of them failed: after the error of a
// row, and if the message of the statement was too large for the driver or for Postgres.
func IsDivisible(err error) bool {
	return IsRowError(err) || isTooLarge(err)
}

// isTooLarge recognises the error of pgx, which has no type, and those of Postgres: a protocol violation by the length of a
// message, and memory that could not be allocated for it.
func isTooLarge(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code == "08P01" && strings.Contains(pg.Message, "message length") || pg.Code == "53200"
	}
	return err != nil && strings.Contains(err.Error(), "message body too large")
}

// IsTransient reports a deadlock or a serialization failure. Nothing has changed, so the transaction can be tried again.
func IsTransient(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}

// IsNoPartition reports that there is no partition for a row. Postgres has no SQLSTATE for it, only that of check violations.
func IsNoPartition(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23514" && strings.HasPrefix(pg.Message, "no partition of relation")
}

// IsUnavailable reports whether the database cannot be reached, or is starting, stopping or out of resources. A client should
// try again later. Other errors are defects of this program.
// It says nothing about whether a statement was carried out; see IsOutcomeUnknown.
func IsUnavailable(err error) bool {
	if connecting(err) {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57P"),
			pg.Code == readOnly,                      // a standby during failover
			pg.Code == "25P03" || pg.Code == "25P04": // the server has ended a transaction whose node stood still
			return true
		}
		return false
	}
	// An error that is not an answer of Postgres comes from the connection, which was refused, reset or closed. A deadline that
	// pgconn does not report comes from the pool, which had no free connection.
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) || strings.Contains(err.Error(), "conn closed")
}

// IsReadOnly reports whether a write was refused because the database is a standby, or was made read-only.
func IsReadOnly(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == readOnly
}

// connecting reports whether the error occurred before there was a connection.
func connecting(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}

// IsTimeout reports whether a statement, or its wait for a lock, exceeded its time limit.
func IsTimeout(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code == "57014" || pg.Code == "55P03"
	}
	return pgconn.Timeout(err)
}

// IsUnknown reports whether the error is an *Unknown, of a write that Write has sent.
func IsUnknown(err error) bool {
	_, ok := errors.AsType[*Unknown](err)
	return ok
}

// WriteError is ClientError for a statement that changes something and is a transaction of its own: it may have committed.
func WriteError(err error) error {
	if _, shown := errors.AsType[*ojs.Error](err); !shown && IsOutcomeUnknown(err) {
		return errors.Join(spec.OutcomeUnknown(), err)
	}
	return ClientError(err)
}

// PartlyError is the error of a call that failed after its first commit. A database that is away hides how far the call got, so
// clients are not told that nothing was done.
func PartlyError(err error) error {
	if err != nil && (IsUnavailable(err) || IsTimeout(err)) {
		return errors.Join(spec.OutcomeUnknown(), err)
	}
	return err
}

// ClientError joins a timeout or an unavailable database with the *ojs.Error that clients see. It returns other errors as they
// are.
// The order of the cases counts: an unknown outcome must never be shown as unavailable, which says that nothing was done.
func ClientError(err error) error {
	var wire *ojs.Error
	switch {
	case err == nil, errors.As(err, &wire):
		return err
	case IsUnknown(err):
		return errors.Join(spec.OutcomeUnknown(), err)
	case !connecting(err) && IsTimeout(err):
		return errors.Join(spec.Timeout(), err)
	case IsUnavailable(err):
		return errors.Join(spec.Unavailable(), err)
	}
	return err
}
