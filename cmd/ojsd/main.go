// Command ojsd is a job server that keeps its jobs in PostgreSQL, and its tools.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/logging"
	"github.com/ojsd/ojsd/internal/server"
)

// cli is every subcommand, flag and environment variable. Each subcommand has a file of its own.
type cli struct {
	Serve   serveCmd   `cmd:"" help:"Run a server on a database."`
	Dev     devCmd     `cmd:"" help:"Run a server with a private Postgres, for development."`
	Migrate migrateCmd `cmd:"" help:"Bring the schema of a database up to date, roll it back, or show it."`
	Doctor  doctorCmd  `cmd:"" help:"Look a database over; exit 1 if something is wrong."`
	Version versionCmd `cmd:"" help:"Print the version."`

	Healthcheck     healthcheckCmd     `cmd:"" hidden:"" help:"Exit 0 if the server on this machine answers; for container images."`
	InstallPostgres installPostgresCmd `cmd:"" hidden:"" help:"Install PostgreSQL with the system's package manager if it is missing; for make."`

	Log logFlags `embed:"" prefix:"log-"`
}

// logFlags say how to log to stderr.
type logFlags struct {
	Format        string  `env:"OJS_LOGGING_FORMAT" enum:",json,text" default:"" placeholder:"json|text" help:"Format of log lines. Default: json, for dev text."`
	SampleSuccess float64 `env:"OJS_LOGGING_SAMPLE_SUCCESS" default:"1" placeholder:"SHARE" help:"Share of the lines about ordinary success that are written, 0 to 1; ends and failures always are."`
	Meta          bool    `env:"OJS_LOGGING_META" help:"Show jobs' meta in their lines, without members that are named like password, token, secret or authorization."`
	Payloads      bool    `env:"OJS_LOGGING_PAYLOADS" help:"Show args and results of jobs in their lines. For debugging only."`
	Level         string  `env:"OJS_LOGGING_LEVEL" enum:"debug,info,warn,error" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error."`
}

func (f logFlags) logger(w io.Writer, defaultFormat string) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.Level)) // kong has checked the value
	if f.Format != "" {
		defaultFormat = f.Format
	}
	return logging.New(w, defaultFormat, level)
}

func main() {
	// After the first signal the default is restored, so that a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code, 0 for success, 1 for an error, 2 for a wrong call.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	exited := -1 // what --help wants to exit with
	parser, err := kong.New(&c,
		kong.Name("ojsd"),
		kong.Description("A job server on PostgreSQL. It speaks the Open Job Spec over HTTP."),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		panic(err) // a mistake in the struct above
	}
	kctx, err := parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err == nil {
		err = kctx.Run()
	}
	if err == nil {
		return 0
	}
	if _, logged := errors.AsType[loggedError](err); logged {
		return 1
	}
	_, _ = fmt.Fprintln(stderr, "ojsd:", withoutValues(err)) // there is nowhere else to say it
	if _, ok := errors.AsType[*kong.ParseError](err); ok {
		return 2
	}
	return 1
}

var (
	// envValue is what kong appends to a value that it cannot read.
	envValue = regexp.MustCompile(`(?s) \(from envar (\w+)=.*\)$`)
	// quotedURL is how url.Parse repeats what it cannot read.
	quotedURL = regexp.MustCompile(`"[a-zA-Z0-9+.-]+://[^"]*"`)
)

// withoutValues keeps values of the environment, which may be keys and passwords, out of messages.
func withoutValues(err error) string {
	return quotedURL.ReplaceAllString(envValue.ReplaceAllString(err.Error(), " (from $1)"), "the URL")
}

// apply sets what a server has to know of its log. A zero LogSample would mean the default.
func (f logFlags) apply(c *server.Config) {
	c.LogSample, c.LogMeta, c.LogPayloads = f.SampleSuccess, f.Meta, f.Payloads
	if f.SampleSuccess <= 0 {
		c.LogSample = -1
	}
}
