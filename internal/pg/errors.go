package pg

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojsd/ojsd/ojs"
)

// IsRowError: the statement was refused for what one of its rows holds (data exceptions, constraint violations, limits
// of the program, a lock), so the others deserve a try of their own.
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

// IsTransient: deadlock or serialization failure; nothing happened.
func IsTransient(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}

// IsNoPartition: the row found no partition (contract: check_violation with this routine).
func IsNoPartition(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23514" && strings.HasPrefix(pg.Message, "no partition of relation")
}

// IsUnavailable reports whether the database cannot be reached or is starting, stopping or out of connections: a client
// should come back. Everything else is a defect of ours.
func IsUnavailable(err error) bool {
	if connecting(err) {
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57P"),
			pg.Code == "25006": // a standby during failover
			return true
		}
		return false
	}
	// Whatever else is not Postgres's own answer came from the connection: refused, reset, closed in the middle.
	var network net.Error
	// A deadline outside of pgconn is that of the pool, which has no connection left.
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) || strings.Contains(err.Error(), "conn closed")
}

// connecting: there was no connection yet.
func connecting(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}

// IsTimeout reports whether a statement or a wait for a lock took too long.
func IsTimeout(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "57014" || pg.Code == "55P03"
	}
	return pgconn.Timeout(err)
}

// ClientError turns what is the client's fault or business into an *ojs.Error and leaves the rest alone.
func ClientError(err error) error {
	var wire *ojs.Error
	switch {
	case err == nil, errors.As(err, &wire):
		return err
	case !connecting(err) && IsTimeout(err):
		return errors.Join(ojs.ErrTimeout(), err)
	case IsUnavailable(err):
		return errors.Join(ojs.ErrUnavailable(), err)
	}
	return err
}
