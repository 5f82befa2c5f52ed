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

// migrateCmd takes a lock in the database, which lets one call at a time through. Up may run while servers run; down drops what the
// migration has made.
type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply all migrations that are missing."`
	Down   migrateDownCmd   `cmd:"" help:"Roll the newest migration back. For the first one that means: drop everything."`
	Status migrateStatusCmd `cmd:"" help:"List the migrations and which are applied."`
}

type migrateUpCmd struct{ settings }

// Run prints the applied migrations, even if a later one failed.
// A repetition goes on where the last one ended.
func (c *migrateUpCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	// Each migration is committed by itself.
	results, err := migrations.Up(ctx, loaded.Config.Database.URL, newLogger(k, loaded.Config.Logging))
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

type migrateDownCmd struct{ settings }

// Run prints the migration that was rolled back.
// It rolls back one migration per call.
func (c *migrateDownCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	result, err := migrations.Down(ctx, loaded.Config.Database.URL, newLogger(k, loaded.Config.Logging))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(k.Stdout, result)
	return err
}

type migrateStatusCmd struct{ settings }

// Run prints one line per migration.
func (c *migrateStatusCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	list, err := migrations.Status(ctx, loaded.Config.Database.URL)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(k.Stdout, 0, 0, 2, ' ', 0)
	for _, migration := range list {
		// The time is that of the zone of this machine, for people.
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
