package pg

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// planSettings leave one plan for each statement, whatever the planner knows of the tables. Statements run as generic plans:
// PostgreSQL estimates small batches to be cheaper with a custom plan, and would plan most acks anew (0.45 ms, three times
// their execution). What a generic plan guesses is often wrong: made with fresh statistics of a table in which 155 000 jobs
// of another queue waited, the claim's plan became a hash join over a sequential scan, and a fetch took 130 ms instead of 3.
// Every statement finds its rows by an index, so no other way to read a table is offered. The planner still uses one if it
// must, and would compile it: hence jit.
var planSettings = map[string]string{
	"plan_cache_mode":   "force_generic_plan",
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
	"jit":               "off",
}

// ConnectConfig says how to connect.
type ConnectConfig struct {
	URL      string
	MaxConns int32

	// Pooler says that URL leads to a transaction-mode pooler. Its sessions belong to nobody, so nothing is set in them, and
	// statements are not prepared by name: each is planned for its parameters and for the tables as they are.
	Pooler bool
}

// Connect returns a pool. It connects when it is used.
func Connect(ctx context.Context, config ConnectConfig) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(config.URL)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	pc.MaxConns = config.MaxConns
	pc.MinIdleConns = min(2, config.MaxConns)
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.ConnConfig.RuntimeParams["application_name"] = "ojsd"
	pc.ConnConfig.ConnectTimeout = 5 * time.Second
	if config.Pooler {
		// Unnamed statements with remembered parameter types: one round trip, no state left in the session.
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		maps.Copy(pc.ConnConfig.RuntimeParams, planSettings)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}
