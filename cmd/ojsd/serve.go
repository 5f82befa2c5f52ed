package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/observe/logging"
)

// serveCmd runs a node.
type serveCmd struct{ settings }

// Run serves until a signal arrives, then waits for running requests.
func (c *serveCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	return serve(ctx, loaded, serverConfig(loaded.Config, newLogger(k, loaded.Config.Logging)))
}

// It is the only place where settings of OpenTelemetry reach the node.
func serverConfig(c config.Config, log *slog.Logger) app.Config {
	sc := app.FromConfig(c, log, currentVersion())
	sc.Metrics.Protocol = metricsProtocol(os.Getenv)
	return sc
}

// serve runs a server. An error goes into the log, not to stderr as text.
// By then the log has its format, and whatever collects it should have the reason, too.
func serve(ctx context.Context, loaded *config.Loaded, c app.Config) error {
	logSettings(ctx, c.Logger, loaded)
	collectGarbageLater()
	err := app.Run(ctx, c)
	if err == nil {
		return nil
	}
	c.Logger.LogAttrs(ctx, logging.LevelFatal, "server cannot run", slog.String("category", "lifecycle"), slog.Any("error", err))
	return loggedError{err}
}

// logSettings logs the settings that differ from the defaults, and warns of unknown variables.
// Values are shown without secrets. An unknown variable is most often a misspelt one, whose setting silently kept its
// default.
func logSettings(ctx context.Context, log *slog.Logger, loaded *config.Loaded) {
	var attrs []slog.Attr
	for _, v := range loaded.Changed() {
		attrs = append(attrs, slog.String(v.Env, v.Shown()))
	}
	log.LogAttrs(ctx, slog.LevelInfo, "settings that differ from the defaults", slog.String("category", "lifecycle"), slog.GroupAttrs("attributes", attrs...))
	for _, unknown := range config.UnknownVariables(os.Environ()) {
		log.LogAttrs(ctx, slog.LevelWarn, "the environment has a variable that is no setting: "+unknown.Name+" has no effect; the nearest setting is "+unknown.Nearest,
			slog.String("category", "lifecycle"), slog.Group("attributes", slog.String("variable", unknown.Name), slog.String("nearest", unknown.Nearest)))
	}
}

// loggedError is an error that is in the log already.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }
