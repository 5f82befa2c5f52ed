package main

import (
	"context"

	"github.com/ojsd/ojsd/internal/embedpg"
)

// installPostgresCmd lets make install what `ojsd dev` would install, so that there is one way to do it.
type installPostgresCmd struct{}

// Run does nothing if a usable PostgreSQL is found.
func (installPostgresCmd) Run(ctx context.Context) error { return embedpg.Install(ctx) }
