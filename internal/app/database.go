package app

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/migrations"
)

// checkSchema migrates if the configuration says so, and refuses a schema that this program does not know. It uses a
// connection of its own, before there is a pool.
func checkSchema(ctx context.Context, config Config) error {
	if config.Migrate {
		if _, err := migrations.Up(ctx, config.DatabaseURL, config.Logger); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	cfg, err := pgx.ParseConfig(config.DatabaseURL)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	pg.Prepare(cfg, "ojsd")
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // behind a pooler, an earlier client may have prepared a statement of the same name
	conn, _, err := pg.ConnectSession(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	return migrations.Check(ctx, conn)
}
