package domaintest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Plan is a node of a plan, with those below it.
type Plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Plans    []Plan `json:"Plans"`
}

// Explained is the plan that the sessions of the pool use for a statement with parameters.
func Explained(t testing.TB, conn *pgxpool.Conn, statement string) Plan {
	t.Helper()
	described, err := conn.Conn().Prepare(t.Context(), "", statement)
	require.NoError(t, err)
	args := strings.TrimSuffix(strings.Repeat("NULL,", len(described.ParamOIDs)), ",")
	if args != "" {
		args = "(" + args + ")"
	}
	_, err = conn.Exec(t.Context(), "PREPARE explained AS "+statement)
	require.NoError(t, err)
	var text []byte
	require.NoError(t, conn.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&text))
	_, err = conn.Exec(t.Context(), "DEALLOCATE explained")
	require.NoError(t, err)
	var plans []struct{ Plan Plan }
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan
}

// Problems are joins that read whole tables, and scans of all of a table that grows or of an index of it. whole says of which indexes
// the statement may read the beginning, up to its LIMIT.
func (p Plan) Problems(grows, whole func(name string) bool) (found []string) {
	switch {
	case strings.Contains(p.Type, "Hash Join") || strings.Contains(p.Type, "Merge Join"):
		found = append(found, p.Type)
	case grows(p.Relation) && (p.Type == "Seq Scan" || strings.HasPrefix(p.Type, "Bitmap")),
		grows(p.Relation) && strings.HasPrefix(p.Type, "Index") && p.Cond == "" && !whole(p.Index):
		found = append(found, p.Type+" of "+p.Relation+" "+p.Index)
	}
	for _, child := range p.Plans {
		found = append(found, child.Problems(grows, whole)...)
	}
	return found
}

// Indexes are those that the plan reads.
func (p Plan) Indexes() (found []string) {
	if p.Index != "" {
		found = append(found, p.Index)
	}
	for _, child := range p.Plans {
		found = append(found, child.Indexes()...)
	}
	return found
}
