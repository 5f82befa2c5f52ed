package app

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/migrations"
)

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
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // behind a pooler, an earlier client may have prepared a statement of the same name
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	return migrations.Check(ctx, conn)
}

func connect(ctx context.Context, config Config) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(config.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	pc.MaxConns = config.DatabaseMaxConns
	pc.MinIdleConns = 2
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.ConnConfig.RuntimeParams["application_name"] = "ojsd"
	pc.ConnConfig.ConnectTimeout = 5 * time.Second
	if config.DatabasePooler {
		// Unnamed statements with remembered parameter types: one round trip, no state left in the session.
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		// PostgreSQL estimates small batches to be cheaper with a custom plan, so it would plan most acks anew: 0.45 ms, three
		// times their execution.
		pc.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
		for _, name := range []string{"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
			pc.ConnConfig.RuntimeParams[name] = "off"
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}
