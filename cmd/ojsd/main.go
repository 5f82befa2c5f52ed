// Command ojsd is a job server that keeps its jobs in PostgreSQL, and its tools.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/config"
)

// cli has all subcommands, each in a file of its own.
type cli struct {
	Serve   serveCmd   `cmd:"" help:"Run a server on a database."`
	Dev     devCmd     `cmd:"" help:"Run a server with a private Postgres, for development."`
	Migrate migrateCmd `cmd:"" help:"Bring the schema of a database up to date, roll it back, or show it."`
	Doctor  doctorCmd  `cmd:"" help:"Check a database; exit 1 if something is wrong."`
	Config  configCmd  `cmd:"" help:"Print all settings, their values and where they come from."`
	Version versionCmd `cmd:"" help:"Print the version."`

	Healthcheck     healthcheckCmd     `cmd:"" hidden:"" help:"Exit 0 if the server on this machine answers; for container images."`
	InstallPostgres installPostgresCmd `cmd:"" hidden:"" help:"Install PostgreSQL with the system's package manager if it is missing; for make."`

	ShowVersion versionFlag `name:"version" help:"Print the version."`
}

// newCLI gives tools a few settings only, with the defaults of `ojsd dev`: their log is for people.
func newCLI() *cli {
	tool := config.Pick("database-url", "logging-level", "logging-format")
	return &cli{
		Serve: serveCmd{newSettings(config.Table(), false)},
		Dev:   devCmd{settings: newSettings(config.Table(), true)},
		Migrate: migrateCmd{Up: migrateUpCmd{newSettings(tool, true)}, Down: migrateDownCmd{newSettings(tool, true)},
			Status: migrateStatusCmd{newSettings(config.Pick("database-url"), true)}},
		Doctor: doctorCmd{newSettings(config.Pick("database-url", "database-listen-url", "database-max-conns",
			"tls-cert", "tls-key", "tls-client-ca", "grpc-listen", "grpc-tls-cert", "grpc-tls-key", "grpc-client-ca"), true)},
		Config:      configCmd{settings: newSettings(config.Table(), false)},
		Healthcheck: healthcheckCmd{settings: newSettings(config.Pick("listen", "tls-cert", "tls-key"), false)},
	}
}

func main() {
	// After the first signal the default is restored, so that a second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Otherwise a node that does not stop could be ended by SIGKILL only.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 0 for success, 1 for an error, 2 for a wrong flag or setting.
// It never calls os.Exit, so that tests can run it. Errors are written once: by the logger of a server, else here.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	exited := -1 // the exit code of --help and --version
	parser, err := kong.New(newCLI(),
		kong.Name("ojsd"),
		kong.Description("A job server on PostgreSQL. It speaks the Open Job Spec over HTTP."),
		// Commands take the context as an argument of Run.
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		panic(err) // the struct tags of cli are wrong
	}
	// `ojsd help serve` is `ojsd serve --help`.
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	kctx, err := parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err == nil {
		// It calls Run of the chosen command.
		err = kctx.Run()
	}
	if err == nil {
		return 0
	}
	// It is not written a second time.
	if _, logged := errors.AsType[loggedError](err); logged {
		return 1
	}
	// A URL may contain a password. There is one line for each wrong setting.
	for line := range strings.Lines(quotedURL.ReplaceAllString(err.Error(), "the URL")) {
		_, _ = fmt.Fprintln(stderr, "ojsd:", strings.TrimSuffix(line, "\n")) // an error of stderr cannot be reported
	}
	_, wrong := errors.AsType[wrongCall](err)
	if _, ok := errors.AsType[*kong.ParseError](err); ok || wrong {
		return 2
	}
	return 1
}

// wrongCall says that a flag or a variable is wrong or missing.
// It makes the exit code 2.
type wrongCall struct{ error }

func (e wrongCall) Unwrap() error { return e.error }

// quotedURL matches the URL in an error of url.Parse.
var quotedURL = regexp.MustCompile(`"[a-zA-Z0-9+.-]+://[^"]*"`)
