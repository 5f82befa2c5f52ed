package pg

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ConnectConfig says how to connect.
type ConnectConfig struct {
	URL string
	// Half of them serve slow reads at most (DB.Reading).
	MaxConns int32

	// Pooler says that URL leads to a transaction-mode pooler. Its sessions belong to nobody, so nothing is set in them, and
	// statements are not prepared by name: each is planned for its parameters and for the tables as they are.
	Pooler bool
}

// Connect returns a pool. It connects when it is used.
// An error means that the configuration is wrong; a database that cannot be reached shows at the first use.
func Connect(ctx context.Context, config ConnectConfig) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(config.URL)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	pc.MaxConns = config.MaxConns
	pc.MinIdleConns = min(2, config.MaxConns)
	// Idle connections above MinIdleConns cost the server a process each.
	pc.MaxConnIdleTime = 5 * time.Minute
	Prepare(pc.ConnConfig, "ojsd")
	if config.Pooler {
		// Unnamed statements with remembered parameter types: one round trip, no state left in the session.
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		maps.Copy(pc.ConnConfig.RuntimeParams, planSettings)
		maps.Copy(pc.ConnConfig.RuntimeParams, sessionSettings)
		maps.Copy(pc.ConnConfig.RuntimeParams, sharedSettings)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}
