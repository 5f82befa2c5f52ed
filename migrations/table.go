package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/pressly/goose/v3/database"
)

const (
	// ownTable is goose's version table of this package.
	ownTable = "ojs.goose_db_version"
	// cliTable is the default version table of the goose command. The user's own migrations may also use it.
	cliTable = "public.goose_db_version"
)

// versionTable returns the table that lists the applied migrations. It creates ownTable if there is none, and lets it list what the schema
// has: goose with the other table, or a first try with this one on a schema that cliTable lists, may have left it behind.
func (m *migrator) versionTable(ctx context.Context, db *sql.DB) (string, error) {
	r, err := readRights(db.QueryRowContext(ctx, ownersQuery, true).Scan)
	if err != nil {
		return "", err
	}
	if err := r.checkOwner(); err != nil {
		return "", err
	}
	version, err := schemaVersion(db.QueryRowContext(ctx, versionQuery).Scan)
	if err != nil && !errors.Is(err, ErrSchemaMissing) {
		return "", err
	}
	if err := r.checkMigrate(version); err != nil {
		return "", err
	}
	newest, err := latest(m.fsys)
	if err != nil {
		return "", err
	}
	if version > newest {
		return "", newerError{version, newest}
	}
	table, err := m.findVersionTable(ctx, db, version)
	if err != nil || table == cliTable {
		return table, err
	}
	return ownTable, m.setVersionTable(ctx, db, version, table == ownTable)
}

// newerError says that the schema is newer than this binary, which therefore cannot migrate it. Whether it works on it is for checkNewer.
type newerError struct{ have, want int64 }

func (e newerError) Error() string {
	return fmt.Sprintf("%v (it is at version %d, this ojsd knows %d)", ErrSchemaNewer, e.have, e.want)
}

func (e newerError) Unwrap() error { return ErrSchemaNewer }

// findVersionTable returns the table in use, or "". cliTable is in use only if it lists exactly the migrations of the schema;
// otherwise it belongs to other migrations.
func (m *migrator) findVersionTable(ctx context.Context, db *sql.DB, version int64) (string, error) {
	if exists, err := tableExists(ctx, db, ownTable); err != nil || exists {
		return ownTable, err
	}
	if version == 0 {
		return "", nil
	}
	exists, err := tableExists(ctx, db, cliTable)
	if err != nil || !exists {
		return "", err
	}
	store, err := database.NewStore(database.DialectPostgres, cliTable)
	if err != nil {
		return "", fmt.Errorf("version table: %w", err)
	}
	listed, err := listedVersions(ctx, store, db)
	if err != nil {
		return "", err
	}
	expected, err := m.applied(version)
	if err != nil {
		return "", err
	}
	if !slices.Equal(listed, expected) {
		return "", nil
	}
	return cliTable, nil
}

// listedVersions are the applied migrations that a version table lists, in order.
func listedVersions(ctx context.Context, store database.Store, db database.DBTxConn) (listed []int64, err error) {
	rows, err := store.ListMigrations(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", store.Tablename(), err)
	}
	for _, row := range rows {
		if row.IsApplied {
			listed = append(listed, row.Version)
		}
	}
	slices.Sort(listed)
	return slices.Compact(listed), nil
}

// setVersionTable lets ownTable list the migrations up to version, as if goose had applied them with it.
func (m *migrator) setVersionTable(ctx context.Context, db *sql.DB, version int64, exists bool) error {
	applied, err := m.applied(version)
	if err != nil {
		return err
	}
	store, err := database.NewStore(database.DialectPostgres, ownTable)
	if err != nil {
		return fmt.Errorf("version table: %w", err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write %s: %w", ownTable, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if !exists {
		// Where there is a schema the role need not have the right to make one.
		if version == 0 {
			if _, err := tx.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS ojs"); err != nil {
				return fmt.Errorf("create schema ojs: %w", err)
			}
		}
		if err := store.CreateVersionTable(ctx, tx); err != nil {
			return fmt.Errorf("create %s: %w", ownTable, err)
		}
	}
	listed, err := listedVersions(ctx, store, tx)
	if err != nil {
		return err
	}
	for _, number := range applied {
		if slices.Contains(listed, number) {
			continue
		}
		if err := store.Insert(ctx, tx, database.InsertRequest{Version: number}); err != nil {
			return fmt.Errorf("write %s: %w", ownTable, err)
		}
	}
	for _, number := range listed {
		if slices.Contains(applied, number) {
			continue
		}
		if err := store.Delete(ctx, tx, number); err != nil {
			return fmt.Errorf("write %s: %w", ownTable, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write %s: %w", ownTable, err)
	}
	return nil
}

// applied lists the rows of goose's table for a schema at version, with goose's own version 0.
func (m *migrator) applied(version int64) ([]int64, error) {
	all, err := versions(m.fsys)
	if err != nil {
		return nil, err
	}
	numbers := []int64{0}
	for _, number := range all {
		if number <= version {
			numbers = append(numbers, number)
		}
	}
	return numbers, nil
}

func tableExists(ctx context.Context, db database.DBTxConn, table string) (bool, error) {
	var exists bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&exists); err != nil {
		return false, fmt.Errorf("look for table %s: %w", table, err)
	}
	return exists, nil
}
