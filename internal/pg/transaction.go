package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// idleInTransaction is how long a transaction waits for its node, and statementLimit how long a statement of it may take. After
// them the server rolls back, so the locks of a node that is frozen or unreachable end. A node gives its statements up earlier
// (DB.Bounded).
const (
	idleInTransaction = "10s"
	statementLimit    = "15s"
)

// A query is one message, so the settings cost no round trip. They last for the transaction, because behind a
// transaction-mode pooler the session belongs to others. READ COMMITTED is named, because the owner of the database may have
// chosen another default.
const (
	beginQuery    = "begin isolation level read committed; " + limits
	snapshotQuery = "begin isolation level repeatable read read only; " + limits

	limits = "set local idle_in_transaction_session_timeout = '" + idleInTransaction + "'; " +
		"set local statement_timeout = '" + statementLimit + "'; set local lock_timeout = 0"
)

// beginner is a pool or a connection, not a transaction.
type beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// InTx runs do in a transaction with limits that the server enforces, or in a savepoint if db is a transaction. Every transaction
// of the server begins in this file, except a pass of the relay, whose limits RelayLock sets.
//
// It marks the errors before the commit, for IsOutcomeUnknown. pgx.BeginFunc cannot be used for that: if a commit breaks the
// connection, it returns the error of its roll-back, that the connection is closed.
// A panic of do rolls back, too.
func InTx(ctx context.Context, db Conn, do func(tx pgx.Tx) error) error {
	tx, err := begin(ctx, db)
	if err != nil {
		return &notCommitted{err}
	}
	defer func() { _ = tx.Rollback(ctx) }() // no effect after the commit
	if err := do(tx); err != nil {
		return &notCommitted{err}
	}
	return tx.Commit(ctx)
}

// begin makes a savepoint if db is a transaction, whose limits hold for it, too.
func begin(ctx context.Context, db Conn) (pgx.Tx, error) {
	if b, ok := db.(beginner); ok {
		return b.BeginTx(ctx, pgx.TxOptions{BeginQuery: beginQuery})
	}
	return db.Begin(ctx)
}

// InSnapshot runs do in a transaction whose statements read one snapshot and change nothing.
// Its connection is taken for all of do, so do must send nothing outside of tx.
func InSnapshot(ctx context.Context, db beginner, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: snapshotQuery}, do)
}
