package main

import (
	"context"

	"github.com/ojsd/ojsd/internal/embedpg"
)

// installPostgresCmd installs for make what `ojsd dev` would install.
// It is hidden, because users get the same from `ojsd dev`.
type installPostgresCmd struct{}

// Run does nothing if a usable PostgreSQL is found.
func (installPostgresCmd) Run(ctx context.Context) error { return embedpg.Install(ctx) }
