package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/embedpg"
)

// devDatabase is the database in the private Postgres.
const devDatabase = "ojsd"

// postgresStopTimeout bounds the fast shutdown; a checkpoint on a slow disk takes the longest.
const postgresStopTimeout = 30 * time.Second

// devCmd is serve with everything it needs.
type devCmd struct {
	settings
	DataDir     string `name:"data-dir" env:"OJSD_DATA_DIR" default:".ojsd" placeholder:"DIR" help:"Where the private Postgres keeps its data."`
	Port        int    `name:"postgres-port" placeholder:"PORT" help:"Loopback port of the private Postgres. Default: that of the last run, if it is free, else any."`
	Install     bool   `default:"true" negatable:"" help:"Install PostgreSQL with the system's package manager if it is missing."`
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" placeholder:"URL" help:"Use this database and start no Postgres."`
	Listen      string `env:"OJS_LISTEN" default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"HTTP address."`
	GRPCListen  string `name:"grpc-listen" env:"OJS_GRPC_LISTEN" default:"127.0.0.1:9090" placeholder:"HOST:PORT" help:"gRPC address."`
}

// Run stops the server before its Postgres, so that the requests in hand can end.
func (c *devCmd) Run(ctx context.Context, k *kong.Context, flags *cli) (err error) {
	log := flags.Log.logger(k.Stderr, "text")
	databaseURL := c.DatabaseURL
	if databaseURL == "" {
		pg, err := c.startPostgres(ctx, log)
		if err != nil {
			return err
		}
		defer func() {
			stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postgresStopTimeout)
			defer cancel()
			err = errors.Join(err, pg.Stop(stopCtx))
		}()
		if err := pg.CreateDatabase(ctx, devDatabase); err != nil {
			return err
		}
		databaseURL = pg.URL(devDatabase)
		if _, err := fmt.Fprintf(k.Stderr, "Look inside with:  psql '%s'\n", databaseURL); err != nil {
			return err
		}
	}
	config := c.config(log)
	config.DatabaseURL, config.Listen, config.Migrate = databaseURL, c.Listen, true
	config.GRPC = c.GRPC.config(c.GRPCListen)
	flags.Log.apply(&config)
	return serve(ctx, k, config)
}

// startPostgres installs PostgreSQL only when a start finds none.
func (c *devCmd) startPostgres(ctx context.Context, log *slog.Logger) (*embedpg.Server, error) {
	cfg := embedpg.Config{DataDir: c.DataDir, Port: c.Port, Fsync: true, Logger: log}
	pg, err := embedpg.Start(ctx, cfg)
	if !errors.Is(err, embedpg.ErrNotInstalled) || !c.Install {
		return pg, err
	}
	if err := embedpg.Install(ctx); err != nil {
		return nil, err
	}
	return embedpg.Start(ctx, cfg)
}
