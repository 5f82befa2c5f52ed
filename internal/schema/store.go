package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/follow"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Store registers schemas and checks jobs against them. Use New, and run its NewFollower. index may be older than the
// database by a second, and follow.Value decides who reads it. loading is held while a schema is compiled, never while a
// statement runs: a transaction that waits for it would keep its connection.
type Store struct {
	db     *pg.DB
	logger *slog.Logger

	index    *follow.Value[index]
	compiled compiledSchemas
	loading  sync.Mutex
}

// New returns a registry on the database.
func New(db *pg.DB, logger *slog.Logger) *Store {
	return &Store{db: db, logger: logger, index: follow.New(db, readIndex)}
}

// Changed is called when schemas may have changed on any node. It does not block.
func (s *Store) Changed() { s.index.Changed() }

// OnListening sets how the store learns whether notifications arrive.
func (s *Store) OnListening(f func() bool) { s.index.OnListening(f) }

// Forget drops what this node knows, after a reset of the database. The next check reads the names again.
func (s *Store) Forget() {
	s.index.Forget()
	s.compiled.clear()
}

// Registration is a request to register a schema. The document was compiled by the decoder, so Put does not look at it
// again.
type Registration struct {
	Schema
	Enforce *bool // nil: not sent
}

// Put registers a schema. A version never changes: the same schema again changes at most whether it is enforced, and another one under
// its version or URI is a conflict. When Put returns, this node checks jobs by it; the others do within a second. It is
// idempotent. Changes take turns at a row, so no two of them both find a version free, or room for one more.
func (s *Store) Put(ctx context.Context, in *Registration) (stored *Schema, created bool, err error) {
	err = s.change(ctx, func(q *dbsqlc.Queries) (err error) {
		// At the bound a repetition must still succeed.
		n, err := q.SchemaCount(ctx, MaxSchemas)
		if err != nil {
			return err
		}
		if n >= MaxSchemas {
			if stored, err = s.repeated(ctx, q, in); errors.Is(err, pgx.ErrNoRows) {
				err = ErrTooMany()
			}
			return err
		}
		// No row means that the version or the URI is taken; repeated tells which.
		rows, err := q.SchemaInsert(ctx, dbsqlc.SchemaInsertParams{
			Type: in.Type, Version: in.Version, VersionNumber: in.VersionNumber, Uri: in.URI, Schema: in.Document,
			Enforce: in.Enforce != nil && *in.Enforce,
		})
		if err != nil {
			return err
		}
		if created = len(rows) > 0; created {
			stored = fromRow(&rows[0])
			return nil
		}
		stored, err = s.repeated(ctx, q, in)
		return err
	})
	return stored, created, err
}

// repeated is the registered schema, if it is the same. The error of an unknown one is pgx.ErrNoRows. It runs under the
// lock of the change. in.Enforce nil keeps what is stored.
func (s *Store) repeated(ctx context.Context, q *dbsqlc.Queries, in *Registration) (*Schema, error) {
	row, err := q.SchemaGet(ctx, in.Type, in.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		// Neither the version nor the URI is known only if the insert was not tried, at the bound of schemas.
		other, err := q.SchemaGetByURI(ctx, in.URI)
		if err != nil {
			return nil, err
		}
		return nil, errTaken("The URI "+in.URI+" names another schema.", fromRow(&other))
	}
	if err != nil {
		return nil, err
	}
	stored := fromRow(&row)
	if stored.URI != in.URI {
		return nil, errTaken(fmt.Sprintf("Version %s of the schema of %s is registered with another URI.", in.Version, in.Type), stored)
	}
	if !sameJSON(stored.Document, in.Document) {
		return nil, errTaken(fmt.Sprintf("Version %s of the schema of %s is registered with another schema.", in.Version, in.Type), stored)
	}
	if in.Enforce == nil || *in.Enforce == stored.Enforce {
		return stored, nil
	}
	row, err = q.SchemaEnforce(ctx, dbsqlc.SchemaEnforceParams{Type: in.Type, Version: in.Version, Enforce: *in.Enforce})
	return fromRow(&row), err
}

// White space and the order of members do not count; the digits of numbers do.
func sameJSON(a, b []byte) bool {
	if string(a) == string(b) {
		return true
	}
	x, errX := decodeJSON(a)
	y, errY := decodeJSON(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// It names the schema that is in the way, so that the client can compare.
func errTaken(message string, stored *Schema) *ojs.Error {
	return spec.NewError(ojs.ErrSchemaExists, message, map[string]any{"schema_type": stored.Type, "schema_version": stored.Version, "uri": stored.URI})
}

// ErrTooMany refuses one schema more than a database may have.
func ErrTooMany() *ojs.Error {
	return spec.NewError(ojs.ErrUnsupported, fmt.Sprintf("The server has %d schemas, and keeps no more; delete some.", MaxSchemas), map[string]any{"max_schemas": MaxSchemas})
}

// Delete removes a version. Jobs that name it are not checked any more; if it was the newest, the one before is. Jobs that
// are stored already are not touched.
func (s *Store) Delete(ctx context.Context, key Key) (deleted *Schema, err error) {
	err = s.change(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.SchemaDelete(ctx, key.Type, key.Version)
		if err == nil && len(rows) == 0 {
			err = errMissing(key)
		}
		if err == nil {
			deleted = fromRow(&rows[0])
		}
		return err
	})
	return deleted, err
}

func errMissing(key Key) error { return spec.NotFound("schema", key.Type+"/"+key.Version) }

// change runs do in a transaction that no other change overlaps. After its commit this node knows the change. The
// notification goes with the commit. If the outcome of the commit is unknown, the next look of the Follower finds it out.
func (s *Store) change(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // this node reads the change even if the client hangs up
	defer cancel()
	err := pg.Retry(func() error {
		return s.db.InTx(bounded, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			// It locks the one row of schema_change to the commit, and raises the number that all nodes compare.
			if err := q.SchemaChange(bounded); err != nil {
				return err
			}
			return do(q)
		})
	})
	if err != nil {
		return pg.ClientError(err)
	}
	// The change holds all the same, so the error is not returned.
	if _, err := s.index.Read(bounded); err != nil {
		s.index.Forget() // read before the next check
	}
	return nil
}

// Get returns a version of the schema of a type. It reads the database and so shows a change at once.
func (s *Store) Get(ctx context.Context, key Key) (*Schema, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.SchemaGet(ctx, key.Type, key.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errMissing(key)
	}
	return fromRow(&row), pg.ClientError(err)
}

// GetByURI returns a schema by its URI.
func (s *Store) GetByURI(ctx context.Context, uri string) (*Schema, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.SchemaGetByURI(ctx, uri)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, spec.NotFound("schema", uri)
	}
	return fromRow(&row), pg.ClientError(err)
}

// Versions are those of a type, newest first. It takes the names from the index, which is compared with the database for it.
func (s *Store) Versions(ctx context.Context, jobType string) ([]*Info, error) {
	ix, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if versions := ix.types[jobType]; len(versions) > 0 {
		return versions, nil
	}
	return nil, spec.NotFound("schema", jobType)
}

// List are all schemas by type, newest version first.
func (s *Store) List(ctx context.Context) ([]*Info, error) {
	ix, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	return ix.all(), nil
}

// fresh is the index as it is now, for answers that list schemas. It costs one row while nothing has changed.
func (s *Store) fresh(ctx context.Context) (*index, error) {
	ix, err := s.index.Read(ctx)
	return ix, pg.ClientError(err)
}
