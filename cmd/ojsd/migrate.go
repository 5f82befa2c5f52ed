package main

import (
	"context"
	"fmt"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/migrations"
)

// databaseFlag is the database of all commands that need one.
type databaseFlag struct {
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" required:"" placeholder:"URL" help:"The database, postgres://user:password@host/name."`
}

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply all migrations that are missing."`
	Down   migrateDownCmd   `cmd:"" help:"Roll the newest migration back. For the first one that means: drop everything."`
	Status migrateStatusCmd `cmd:"" help:"List the migrations and which are applied."`
}

type migrateUpCmd struct{ databaseFlag }

// Run prints what was applied, even if a later migration did not work.
func (c *migrateUpCmd) Run(ctx context.Context, k *kong.Context, flags *cli) error {
	results, err := migrations.Up(ctx, c.DatabaseURL, flags.Log.logger(k.Stderr, "text"))
	for _, result := range results {
		if _, printErr := fmt.Fprintln(k.Stdout, result); printErr != nil {
			return printErr
		}
	}
	if err == nil && len(results) == 0 {
		_, err = fmt.Fprintln(k.Stdout, "nothing to do: the schema is up to date")
	}
	return err
}

type migrateDownCmd struct{ databaseFlag }

// Run prints what was rolled back.
func (c *migrateDownCmd) Run(ctx context.Context, k *kong.Context, flags *cli) error {
	result, err := migrations.Down(ctx, c.DatabaseURL, flags.Log.logger(k.Stderr, "text"))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(k.Stdout, result)
	return err
}

type migrateStatusCmd struct{ databaseFlag }

// Run prints one line per migration.
func (c *migrateStatusCmd) Run(ctx context.Context, k *kong.Context) error {
	list, err := migrations.Status(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(k.Stdout, 0, 0, 2, ' ', 0)
	for _, migration := range list {
		at := ""
		if !migration.AppliedAt.IsZero() {
			at = migration.AppliedAt.Format(time.DateTime)
		}
		_, err := fmt.Fprintf(w, "%s\t%s\t%s\n", filepath.Base(migration.Source.Path), migration.State, at)
		if err != nil {
			return err
		}
	}
	return w.Flush()
}
