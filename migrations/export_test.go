package migrations

import (
	"context"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"
)

// The functions of the package on migrations made up by a test.

func UpFS(ctx context.Context, url string, fsys fs.FS, log *slog.Logger) ([]*goose.MigrationResult, error) {
	m, err := newMigrator(url, fsys, log)
	if err != nil {
		return nil, err
	}
	return m.up(ctx)
}

func DownFS(ctx context.Context, url string, fsys fs.FS) (*goose.MigrationResult, error) {
	m, err := newMigrator(url, fsys, nil)
	if err != nil {
		return nil, err
	}
	return m.down(ctx)
}

func StatusFS(ctx context.Context, url string, fsys fs.FS) ([]*goose.MigrationStatus, error) {
	m, err := newMigrator(url, fsys, nil)
	if err != nil {
		return nil, err
	}
	return m.status(ctx)
}

func CheckFS(ctx context.Context, db Querier, fsys fs.FS) error { return check(ctx, db, fsys) }
