// The program behind `make slips`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ojsd/ojsd/internal/slips"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "slips:", err)
		os.Exit(1)
	}
}

func run() error {
	cfg := slips.Config{Root: ".", Log: os.Stderr}
	var out string
	flag.Uint64Var(&cfg.Seed, "seed", 1, "the same seed makes the same slips")
	flag.IntVar(&cfg.N, "n", 30, "how many slips")
	flag.StringVar(&cfg.Only, "only", "", "prefixes of the files that get slips, such as internal/queue/ or queries/jobs.sql")
	flag.Func("tests", "directories of packages, with spaces between them: run only their tests", func(list string) error {
		cfg.Tests = strings.Fields(list)
		return nil
	})
	flag.Func("kinds", "kinds of slips, such as sql-lock, with spaces between them: make only these", func(list string) error {
		for kind := range strings.FieldsSeq(list) {
			cfg.Kinds = append(cfg.Kinds, slips.Kind(kind))
		}
		return nil
	})
	flag.Func("ids", "numbers of slips, with commas between them: run only these", func(list string) (err error) {
		for id := range strings.SplitSeq(list, ",") {
			n, convErr := strconv.Atoi(id)
			err = errors.Join(err, convErr)
			cfg.IDs = append(cfg.IDs, n)
		}
		return err
	})
	flag.IntVar(&cfg.Workers, "workers", 2, "test processes at a time, each with a PostgreSQL of its own")
	flag.DurationVar(&cfg.Budget, "budget", time.Minute, "most time for the tests of one slip")
	flag.BoolVar(&cfg.DryRun, "dry-run", false, "show the slips and run nothing")
	flag.StringVar(&out, "json", "bin/slips.json", "where the report is written as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := slips.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if cfg.DryRun {
		for _, s := range report.Results {
			_, err = fmt.Fprintf(os.Stdout, "%d (%s): %s:%d %s\n%s", s.ID, s.Kind, s.File, s.Line, s.Func, s.Change)
		}
		return err
	}
	if err := os.MkdirAll("bin", 0o750); err != nil {
		return err
	}
	if err := report.WriteJSON(out); err != nil {
		return err
	}
	return report.WriteTable(os.Stdout)
}
