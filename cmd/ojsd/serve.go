package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/observe"
)

// serveCmd runs a node.
type serveCmd struct{ settings }

// Run serves until a signal arrives, then waits for running requests.
func (c *serveCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	log := newLogger(k, loaded.Config.Logging)
	defer ignoreHangup(log)()
	return serve(ctx, loaded, serverConfig(loaded.Config, log))
}

// ignoreHangup lets a node survive SIGHUP, which its default would end at once: supervisors and log rotation send it to daemons that read
// their configuration again. A node has nothing to read again: its settings are flags and the environment of the process.
func ignoreHangup(log *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-hangups:
				log.Info("SIGHUP is ignored: settings are read at the start; SIGTERM stops the server", slog.String("category", "lifecycle"))
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(hangups); close(done) }
}

// serverConfig is the only place where settings of OpenTelemetry reach the node.
func serverConfig(c config.Config, log *slog.Logger) app.Config {
	return app.Config{Config: c, Logger: log, Version: currentVersion(), MetricsProtocol: metricsProtocol(os.Getenv)}
}

// serve runs a server. An error goes into the log, not to stderr as text.
// By then the log has its format, and whatever collects it should have the reason, too.
func serve(ctx context.Context, loaded *config.Loaded, c app.Config) error {
	// Values are shown without secrets.
	var changed []slog.Attr
	for _, v := range loaded.Changed() {
		changed = append(changed, slog.String(v.Env, v.Shown()))
	}
	c.Logger.LogAttrs(ctx, slog.LevelInfo, "settings that differ from the defaults", slog.String("category", "lifecycle"),
		slog.GroupAttrs("attributes", changed...))
	// An unknown variable is most often a misspelt one, whose setting silently kept its default.
	for _, unknown := range config.UnknownVariables(os.Environ()) {
		c.Logger.LogAttrs(ctx, slog.LevelWarn, "the environment has a variable that is no setting: "+unknown.Name+" has no effect; the nearest setting is "+unknown.Nearest,
			slog.String("category", "lifecycle"), slog.Group("attributes", slog.String("variable", unknown.Name),
				slog.String("nearest", unknown.Nearest)))
	}
	// Memory is traded for processor time while that is cheap. GOGC overrides it.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(lazyPercent)
		adjustAfterCollections(&collections{percent: lazyPercent})
	}
	err := loaded.CheckProtected()
	if err == nil {
		err = app.Run(ctx, c)
	}
	if err == nil {
		return nil
	}
	c.Logger.LogAttrs(ctx, observe.LevelFatal, "server cannot run", slog.String("category", "lifecycle"), slog.Any("error", err))
	return loggedError{err}
}

// loggedError is an error that is in the log already.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }

// metricsProtocol is how metrics are pushed, by the standard variables of OpenTelemetry (docs/reference/observability.md,
// Metrics); "": they are not. The exporter reads the other variables itself.
// It takes the environment as a function, because only main may read it.
func metricsProtocol(getenv func(string) string) string {
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || getenv("OTEL_METRICS_EXPORTER") == "none" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return ""
	}
	return cmp.Or(getenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
}

const (
	// lazyPercent is GOGC while the heap is small: that of a server is some ten MB, which Go's default would collect many times a second.
	lazyPercent = 400

	// smallHeap is how much may be live for that. Beyond, Go's default holds: while the database is stalled 300 MB are live, and the
	// garbage of large jobs took 1.4 GB more before it was collected.
	smallHeap = 64 << 20
)

// collections is an object that nothing refers to, so that its finalizer runs after each collection.
// Each run of the finalizer makes the next one. Only the goroutine of finalizers uses it.
type collections struct{ percent int }

// adjustAfterCollections sets GOGC for what each collection has left.
func adjustAfterCollections(c *collections) {
	runtime.SetFinalizer(c, func(c *collections) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		percent := 100
		if live[0].Value.Uint64() < smallHeap {
			percent = lazyPercent
		}
		// It stops the program for a moment, so only if something changes.
		if percent != c.percent {
			c.percent = percent
			debug.SetGCPercent(percent)
		}
		adjustAfterCollections(c)
	})
}
