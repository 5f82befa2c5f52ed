package main

import (
	"context"
	"log/slog"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/observe/logging"
)

// serveCmd runs a node.
type serveCmd struct {
	databaseFlag
	settings
	Listen     string `env:"OJS_LISTEN" default:":8080" placeholder:"HOST:PORT" help:"HTTP address."`
	GRPCListen string `name:"grpc-listen" env:"OJS_GRPC_LISTEN" default:":9090" placeholder:"HOST:PORT" help:"gRPC address."`
	Migrate    bool   `help:"Bring the schema up to date first. Any number of nodes may do so at once."`
}

// Run serves until a signal arrives, then finishes the requests in hand.
func (c *serveCmd) Run(ctx context.Context, k *kong.Context, flags *cli) error {
	config := c.config(flags.Log.logger(k.Stderr, "json"))
	config.DatabaseURL, config.Listen, config.Migrate = c.DatabaseURL, c.Listen, c.Migrate
	config.GRPC = c.GRPC.config(c.GRPCListen)
	flags.Log.apply(&config)
	return serve(ctx, k, config)
}

// serve runs a server and says in the log, not beside it, why it cannot.
func serve(ctx context.Context, k *kong.Context, config app.Config) error {
	config.Logger.LogAttrs(ctx, slog.LevelInfo, "configuration", slog.String("category", "lifecycle"), summary(k))
	err := app.Run(ctx, config)
	if err == nil {
		return nil
	}
	config.Logger.LogAttrs(ctx, logging.LevelFatal, "server cannot run", slog.String("category", "lifecycle"), slog.Any("error", err))
	return loggedError{err}
}

// loggedError has been told to the user.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }
