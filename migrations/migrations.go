// Package migrations owns the schema of ojsd and migrates databases to it.
//
// The SQL files are plain goose migrations, so `goose -dir migrations -table ojs.goose_db_version postgres "$DATABASE_URL" up` does the same
// as `ojsd migrate up`, which also stores digests of them. All objects are in schema ojs; this package must never change objects of other schemas.
package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// FS holds the migrations, as files in its root.
//
//go:embed *.sql
var FS embed.FS

const (
	// lockTimeout is how long a migration may wait for a lock on a table in use. Later queries wait behind it meanwhile, so it
	// must be short; the migration is tried again instead.
	lockTimeout = 2 * time.Second
	// lockAttempts with their pauses take about five minutes.
	lockAttempts = 30
	maxPause     = 10 * time.Second
)

// Up applies all missing migrations and returns them; none on a newer schema that this binary works on. Any number of nodes may call it at
// once: one works, the others wait. On a running system it takes table locks only for moments, and retries if it does not get one in time.
func Up(ctx context.Context, databaseURL string, log *slog.Logger) ([]*goose.MigrationResult, error) {
	m, err := newMigrator(databaseURL, FS, log)
	if err != nil {
		return nil, err
	}
	return m.up(ctx)
}

// Down rolls the newest migration back and returns it. Rolling back the first one drops all jobs; the schema stays, because
// goose's table lives in it.
func Down(ctx context.Context, databaseURL string, log *slog.Logger) (*goose.MigrationResult, error) {
	m, err := newMigrator(databaseURL, FS, log)
	if err != nil {
		return nil, err
	}
	return m.down(ctx)
}

func (m *migrator) up(ctx context.Context) (results []*goose.MigrationResult, err error) {
	err = m.withProvider(ctx, func(db *sql.DB, p *goose.Provider) error {
		version, err := schemaVersion(db.QueryRowContext(ctx, versionQuery).Scan)
		if err != nil && !errors.Is(err, ErrSchemaMissing) {
			return err
		}
		if err := checkDigests(db.QueryRowContext(ctx, readDigests).Scan, m.fsys, version); err != nil {
			return err
		}
		done, err := p.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			done = partial.Applied
		}
		results = append(results, done...)
		recordErr := m.recordDigests(ctx, db, done)
		return cmp.Or(err, recordErr)
	})
	// A node that is started again after the next release has migrated.
	if newer, ok := errors.AsType[newerError](err); ok {
		db := m.open()
		defer func() { _ = db.Close() }() // nothing was written
		err = checkNewer(db.QueryRowContext(ctx, compatibleQuery).Scan, newer.have, newer.want)
	}
	if err != nil {
		return results, fmt.Errorf("migrate up: %w", explain(err))
	}
	return results, nil
}

func (m *migrator) down(ctx context.Context) (result *goose.MigrationResult, err error) {
	err = m.withProvider(ctx, func(db *sql.DB, p *goose.Provider) error {
		var err error
		result, err = p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return fmt.Errorf("nothing to roll back: %w", ErrSchemaMissing)
		}
		if err != nil {
			return err
		}
		return m.recordDigests(ctx, db, nil)
	})
	if err != nil {
		return nil, fmt.Errorf("migrate down: %w", explain(err))
	}
	return result, nil
}

// explain adds what to do to a refusal of the server.
func explain(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case "42501": // insufficient_privilege
			return fmt.Errorf("%w: migrate as the role that owns everything in schema ojs", err)
		case "25006": // read_only_sql_transaction
			return fmt.Errorf("%w: the database is read-only; let DATABASE_URL lead to the primary", err)
		}
	}
	return err
}

// withProvider calls fn under the migration lock, and repeats it while it fails because of table locks. Each migration is a
// transaction of its own, so a failed one is rolled back and the finished ones are kept.
func (m *migrator) withProvider(ctx context.Context, fn func(*sql.DB, *goose.Provider) error) error {
	return m.withLock(ctx, func() error {
		db := m.open()
		defer func() { _ = db.Close() }() // all transactions have ended
		table, err := m.versionTable(ctx, db)
		if err != nil {
			return err
		}
		store, err := database.NewStore(database.DialectPostgres, table)
		if err != nil {
			return fmt.Errorf("version table: %w", err)
		}
		p, err := goose.NewProvider(goose.DialectCustom, db, m.fsys, goose.WithStore(store),
			goose.WithDisableGlobalRegistry(true))
		if err != nil {
			return fmt.Errorf("read migrations: %w", err)
		}
		return m.retryLocked(ctx, func() error { return fn(db, p) })
	})
}

// retryLocked repeats fn while it fails with lock_not_available.
func (m *migrator) retryLocked(ctx context.Context, fn func() error) error {
	pause := lockTimeout / 4
	for attempt := 1; ; attempt++ {
		err := fn()
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pgErr.Code != "55P03" { // lock_not_available
			return err
		}
		if attempt == lockAttempts {
			return fmt.Errorf("another transaction keeps a lock that the migration needs "+
				"(look for old ones in pg_stat_activity), given up after %d attempts: %w", attempt, err)
		}
		m.log.WarnContext(ctx, "migration waits for a lock held by another transaction",
			"attempt", attempt, "pause", pause, "error", err)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, maxPause)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// latest is the number of the newest migration in fsys.
func latest(fsys fs.FS) (int64, error) {
	all, err := versions(fsys)
	if err != nil {
		return 0, err
	}
	return all[len(all)-1], nil
}

// versions lists the numbers of the migrations in fsys, in order: fs.Glob sorts, and the names have leading zeros.
func versions(fsys fs.FS) ([]int64, error) {
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	if len(names) == 0 {
		return nil, goose.ErrNoMigrations
	}
	var numbers []int64
	for _, name := range names {
		number, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}
