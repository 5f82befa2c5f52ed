package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/ojsd/ojsd/internal/pg"
)

// lockKey is the key of the advisory lock for migrations: the bytes of "ojsmigr".
const lockKey int64 = 0x6f6a736d696772

// settingsForLongWork switches off, for one transaction, the timeouts that operators set for ordinary queries: building an
// index may take minutes. It leaves out settings that the server version does not have.
const settingsForLongWork = `
	SELECT set_config(name, CASE name WHEN 'lock_timeout' THEN $1 ELSE '0' END, true)
	FROM pg_settings
	WHERE name IN ('lock_timeout', 'statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')`

type migrator struct {
	cfg  *pgx.ConnConfig
	fsys fs.FS
	log  *slog.Logger
}

func newMigrator(databaseURL string, fsys fs.FS, log *slog.Logger) (*migrator, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	// Prepared statements fail behind a transaction-mode pooler, which gives each transaction another connection. Of the modes
	// without them only this one leaves no open portal, whose snapshot withLock would keep.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pg.Prepare(cfg, "ojsd migrate")
	// goose reads times as text. Poolers know these two parameters.
	cfg.RuntimeParams["datestyle"], cfg.RuntimeParams["timezone"] = "ISO, MDY", "UTC"
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &migrator{cfg: cfg, fsys: fsys, log: log}, nil
}

// open returns a pool of one connection whose transactions wait lockTimeout for a lock, and without limit for all else.
func (m *migrator) open() *sql.DB {
	db := sql.OpenDB(connector{stdlib.GetConnector(*m.cfg, stdlib.OptionAfterConnect(pg.PinSession))})
	db.SetMaxOpenConns(1)
	return db
}

// connector makes connections whose transactions begin with settingsForLongWork. They are set in the transaction because
// behind a pooler a plain SET would reach another session, and PgBouncer refuses start-up parameters.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	dc, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return conn{dc.(*stdlib.Conn)}, nil
}

type conn struct{ *stdlib.Conn }

func (c conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	opts.Isolation = driver.IsolationLevel(sql.LevelReadCommitted)
	tx, err := c.Conn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	if _, err := c.Conn.Conn().Exec(ctx, settingsForLongWork, lockTimeout.String()); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

// withLock calls fn while no other node migrates.
//
// The lock is a transaction-level advisory lock in a transaction that stays open meanwhile, on a connection of its own. A
// session-level lock (goose's session locker) would be taken in another session behind a transaction-mode pooler. goose's
// table locker works there, but after a crash all nodes wait for its lease of 30 s, and a node that stalls for longer loses
// the lock without an error. An advisory lock ends with its connection. The open transaction has neither a snapshot nor an
// xid, so it delays no vacuum, and CREATE INDEX CONCURRENTLY does not wait for it. Waiting nodes poll instead of blocking in
// the database, because each blocked one would occupy a connection of the pooler, until none is left for the migration.
func (m *migrator) withLock(ctx context.Context, fn func() error) error {
	for {
		locked, err := m.tryLocked(ctx, fn)
		if err != nil || locked {
			return err
		}
		m.log.DebugContext(ctx, "another node is migrating the database; waiting")
		if err := sleep(ctx, 100*time.Millisecond+rand.N(200*time.Millisecond)); err != nil {
			return fmt.Errorf("wait for another node's migration: %w", err)
		}
	}
}

// tryLocked reports whether it got the lock and called fn.
func (m *migrator) tryLocked(ctx context.Context, fn func() error) (bool, error) {
	c, _, err := pg.ConnectSession(ctx, m.cfg)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	// In another isolation level the transaction would have a snapshot, for whose end CREATE INDEX CONCURRENTLY waits.
	tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false, fmt.Errorf("lock migrations: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // a pooler keeps the connection then
	if _, err := tx.Exec(ctx, settingsForLongWork, "0"); err != nil {
		return false, fmt.Errorf("lock migrations: %w", err)
	}
	var locked bool
	if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", lockKey).Scan(&locked); err != nil {
		return false, fmt.Errorf("lock migrations: %w", err)
	}
	if !locked {
		return false, nil
	}
	return true, fn()
}
