package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// Status lists all migrations of this binary and whether the database has them. It only reads, needs no lock, and works with
// the rights of the server's role.
func Status(ctx context.Context, databaseURL string) ([]*goose.MigrationStatus, error) {
	m, err := newMigrator(databaseURL, FS, nil)
	if err != nil {
		return nil, err
	}
	return m.status(ctx)
}

func (m *migrator) status(ctx context.Context) ([]*goose.MigrationStatus, error) {
	db := m.open()
	defer func() { _ = db.Close() }() // nothing was written
	r, err := readRights(db.QueryRowContext(ctx, ownersQuery, false).Scan)
	if err == nil {
		err = r.checkOwner()
	}
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	version, err := schemaVersion(db.QueryRowContext(ctx, versionQuery).Scan)
	if err != nil && !errors.Is(err, ErrSchemaMissing) {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, m.fsys, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var list []*goose.MigrationStatus
	for _, source := range p.ListSources() {
		state := goose.StatePending
		if source.Version <= version {
			state = goose.StateApplied
		}
		list = append(list, &goose.MigrationStatus{Source: source, State: state})
	}
	return list, m.addTimes(ctx, list, version)
}

// addTimes adds the times at which the migrations were applied, if there is a version table.
func (m *migrator) addTimes(ctx context.Context, list []*goose.MigrationStatus, version int64) error {
	db := m.open()
	defer func() { _ = db.Close() }() // nothing was written
	table, err := m.findVersionTable(ctx, db, version)
	if err != nil || table == "" {
		return err
	}
	store, err := database.NewStore(database.DialectPostgres, table)
	if err != nil {
		return fmt.Errorf("version table: %w", err)
	}
	for _, migration := range list {
		row, err := store.GetMigration(ctx, db, migration.Source.Version)
		switch {
		case err == nil:
			migration.AppliedAt = row.Timestamp
		case !errors.Is(err, database.ErrVersionNotFound):
			return fmt.Errorf("read %s: %w", table, err)
		}
	}
	return nil
}
