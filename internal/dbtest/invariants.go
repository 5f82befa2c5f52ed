package dbtest

import (
	"context"
	_ "embed"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// invariants has queries that return what must not be in any database. Each is preceded by "-- name:" and what it looks for.
//
//go:embed invariants.sql
var invariants string

// writing has the names of tests that have called WritesTables.
var writing sync.Map

// WritesTables says that the test, with its subtests, writes rows of its own, not only those of the server and of functions of the schema.
// At the end of the other ones the database is checked against invariants.sql.
func WritesTables(t testing.TB) { writing.Store(t.Name(), true) }

// checkInvariants fails the test if its database violates an invariant.
func checkInvariants(ctx context.Context, t testing.TB, url string) {
	t.Helper()
	writes := false
	writing.Range(func(name, _ any) bool {
		writes = name == t.Name() || strings.HasPrefix(name.(string), t.Name()+"/") || strings.HasPrefix(t.Name(), name.(string)+"/")
		return !writes
	})
	if writes {
		return
	}
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	var written bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_sequences WHERE schemaname = 'ojs' AND sequencename = 'event_seq' AND last_value > 0)").Scan(&written)
	require.NoError(t, err)
	if !written {
		return
	}
	for name, query := range namedQueries(invariants) {
		rows, err := conn.Query(ctx, "SELECT v::text FROM ("+query+") AS q (v) LIMIT 3")
		require.NoError(t, err, name)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, name)
		if len(found) > 0 {
			t.Errorf("%s: the database has\n%s", name, strings.Join(found, "\n"))
		}
	}
}

var queryName = regexp.MustCompile(`(?m)^-- name: (.*)\n`)

// namedQueries are the queries of a file, by their names.
func namedQueries(text string) map[string]string {
	queries := map[string]string{}
	names := queryName.FindAllStringSubmatchIndex(text, -1)
	for i, at := range names {
		end := len(text)
		if i+1 < len(names) {
			end = names[i+1][0]
		}
		queries[text[at[2]:at[3]]] = strings.TrimSuffix(strings.TrimSpace(text[at[1]:end]), ";")
	}
	return queries
}
