package schema

import (
	"context"

	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/follow"
)

// NewFollower returns the service that reads the changes of schemas that other nodes make. It bounds how long a node checks
// by old schemas (docs/reference/schemas.md, Which schema applies).
func NewFollower(archetype *baseservice.Archetype, s *Store) *follow.Follower[index] {
	return follow.NewFollower(archetype, s.index, "schemas")
}

// readIndex reads the names of all schemas if they have changed. Documents are not read: most are never needed on this
// node. The bound of the list holds a table that was filled by hand. If the number has not moved the names are not read.
func readIndex(ctx context.Context, q *dbsqlc.Queries, known *index) (*index, error) {
	version, err := q.SchemaChangeVersion(ctx) // before the names: a change between the two is read again
	if err != nil || known != nil && known.version == version {
		return known, err
	}
	rows, err := q.SchemaListAll(ctx, MaxSchemas)
	if err != nil {
		return nil, err
	}
	list := make([]Info, len(rows))
	for i, r := range rows {
		list[i] = Info{Key{r.Type, r.Version}, r.VersionNumber, r.Uri, r.Enforce, r.CreatedAt.Time}
	}
	return newIndex(version, list), nil
}
