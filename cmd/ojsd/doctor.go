package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/doctor"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/migrations"
)

type doctorCmd struct{ settings }

// errFindings makes the exit code 1.
var errFindings = errors.New("something is wrong: see the lines that begin with BAD")

// Run prints one line per finding.
// It needs no running server, and writes nothing. A schema of another version is an error, because the checks would be wrong.
func (c *doctorCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(loaded.Config.Database.URL)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	// The name shows in pg_stat_activity.
	pg.Prepare(cfg, "ojsd doctor")
	conn, _, err := pg.ConnectSession(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}
	// An error means that nothing is known, not that something is wrong; the exit code is 1 in both cases.
	findings, err := doctor.Examine(ctx, conn)
	if err != nil {
		return err
	}
	ok := true
	for _, f := range findings {
		// Both marks have the same width, so that texts are aligned and grep '^BAD' finds the rest.
		mark := "ok  "
		if !f.OK {
			mark, ok = "BAD ", false
		}
		if _, err := fmt.Fprintln(k.Stdout, mark, f.Text); err != nil {
			return err
		}
	}
	if !ok {
		return errFindings
	}
	return nil
}
