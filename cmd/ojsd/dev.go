package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/embedpg"
	"github.com/ojsd/ojsd/internal/observe"
)

// devDatabase is the database in the private Postgres.
// The role is postgres, the superuser of the private cluster.
const devDatabase = "ojsd"

// postgresStopTimeout bounds the fast shutdown; a checkpoint on a slow disk takes the longest.
// After it PostgreSQL is stopped at once and recovers at its next start.
const postgresStopTimeout = 30 * time.Second

// devCmd is serve with a private PostgreSQL.
// With DATABASE_URL nothing is started, and the two fields about PostgreSQL have no effect.
type devCmd struct {
	settings
	DataDir string `name:"data-dir" default:".ojsd" placeholder:"DIR" help:"Where the private Postgres keeps its data; without DATABASE_URL only."`
	Port    int    `name:"postgres-port" placeholder:"PORT" help:"Loopback port of the private Postgres. Default: that of the last run, if it is free, else any."`
	Install bool   `default:"true" negatable:"" help:"Install PostgreSQL with the system's package manager if it is missing."`
}

// Run stops the server before its PostgreSQL, so that running requests can end.
// serve returns only when the node has stopped, so the deferred stop of PostgreSQL comes after it.
func (c *devCmd) Run(ctx context.Context, k *kong.Context) (err error) {
	// The end of the terminal ends the server, and then PostgreSQL, which would stay otherwise. nohup ignores the signal.
	if !signal.Ignored(syscall.SIGHUP) {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
		defer stop()
	}
	loaded, err := c.load()
	if err != nil {
		return err
	}
	level, unmute := muted(loaded)
	log := observe.NewLogger(k.Stderr, loaded.Config.Logging.Format, level)
	settings := loaded.Config
	if settings.Database.URL == "" {
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
		settings.Database.URL = pg.URL(devDatabase)
	}
	sc := serverConfig(settings, log)
	sc.OnStarted = func(address, grpcAddress string) {
		writeBanner(k.Stderr, loaded, settings, address, grpcAddress)
		unmute()
	}
	return serve(ctx, loaded, sc)
}

// muted suppresses log lines below warnings until unmute, so that they do not scroll the banner away. A level that the user has
// set applies at once.
// The level is an atomic variable, which loggers read for each line.
func muted(loaded *config.Loaded) (muted *slog.LevelVar, unmute func()) {
	wanted := level(loaded.Config.Logging)
	muted = &slog.LevelVar{}
	muted.Set(wanted)
	if v, _ := loaded.Get("logging-level"); v.Source == config.FromDefault {
		muted.Set(max(wanted, slog.LevelWarn))
	}
	return muted, func() { muted.Set(wanted) }
}

// writeBanner prints the addresses of the server and a first request.
// It goes to stderr like the log, so that stdout stays empty. It must show no password.
func writeBanner(w io.Writer, loaded *config.Loaded, c config.Config, address, grpcAddress string) {
	if grpcAddress == "" {
		grpcAddress = "off"
	}
	psql := "psql \"$DATABASE_URL\""
	if loaded.Config.Database.URL == "" { // the URL of the private PostgreSQL has no password
		psql = "psql '" + c.Database.URL + "'"
	} else if v, _ := loaded.Get("database-url"); v.Source == config.FromFlag {
		psql = "psql on " + v.Shown()
	}
	key := ""
	if len(c.Server.APIKeys) > 0 {
		key = " -H 'Authorization: Bearer KEY'"
	}
	_, _ = fmt.Fprintf(w, `
ojsd %s is running; Ctrl-C stops it.
  HTTP      http://%s
  gRPC      %s
  Database  %s
  Docs      README.md, docs/, http://%s/ojs/manifest
  Enqueue   curl -s%s http://%s/ojs/v1/jobs -H 'Content-Type: application/json' -d '{"type":"email.send","args":["ada@example.com"]}'

`, currentVersion(), address, grpcAddress, psql, address, key, address) // an error of stderr cannot be reported
}

// startPostgres installs PostgreSQL only when a start finds none.
// It never touches a server of the system.
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

// installPostgresCmd installs for make what `ojsd dev` would install.
// It is hidden, because users get the same from `ojsd dev`.
type installPostgresCmd struct{}

// Run does nothing if a usable PostgreSQL is found.
func (installPostgresCmd) Run(ctx context.Context) error { return embedpg.Install(ctx) }
