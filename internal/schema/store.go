package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Store registers schemas and checks jobs against them. Use New.
type Store struct {
	db     *pg.DB
	logger *slog.Logger

	index    atomic.Pointer[index] // nil: not read yet
	reading  sync.Mutex
	checked  atomic.Bool // since the latest look of the follower
	compiled compiledSchemas
	loading  sync.Mutex
}

// New returns a registry on the database.
func New(db *pg.DB, logger *slog.Logger) *Store { return &Store{db: db, logger: logger} }

// Forget drops what this node knows, after a reset of the database.
func (s *Store) Forget() {
	s.index.Store(nil)
	s.compiled.clear()
}

// Registration is a request to register a schema.
type Registration struct {
	Schema
	Enforce *bool // nil: not sent
}

// Put registers a schema. A version never changes: the same schema again changes at most whether it is enforced, and another one under
// its version or URI is a conflict. When Put returns, this node checks jobs by it; the others do within a second.
func (s *Store) Put(ctx context.Context, in *Registration) (stored *Schema, created bool, err error) {
	err = s.change(ctx, func(q *dbsqlc.Queries) (err error) {
		if n, err := q.SchemaCount(ctx, MaxSchemas); err != nil || n >= MaxSchemas {
			if stored, err = s.repeated(ctx, q, in); errors.Is(err, pgx.ErrNoRows) {
				err = ErrTooMany()
			}
			return err
		}
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

// repeated is the registered schema, if it is the same. The error of an unknown one is pgx.ErrNoRows.
func (s *Store) repeated(ctx context.Context, q *dbsqlc.Queries, in *Registration) (*Schema, error) {
	row, err := q.SchemaGet(ctx, in.Type, in.Version)
	if errors.Is(err, pgx.ErrNoRows) {
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

func sameJSON(a, b []byte) bool {
	if string(a) == string(b) {
		return true
	}
	x, errX := decodeJSON(a)
	y, errY := decodeJSON(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

func errTaken(message string, stored *Schema) *ojs.Error {
	return ojs.NewError(ojs.KindSchemaExists, message, map[string]any{"schema_type": stored.Type, "schema_version": stored.Version, "uri": stored.URI})
}

// ErrTooMany refuses one schema more than a database may have.
func ErrTooMany() *ojs.Error {
	return ojs.NewError(ojs.KindUnsupported, fmt.Sprintf("The server has %d schemas, and keeps no more; delete some.", MaxSchemas), map[string]any{"max_schemas": MaxSchemas})
}

// Delete removes a version. Jobs that name it are not checked any more; if it was the newest, the one before is.
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

func errMissing(key Key) error { return ojs.ErrNotFound("schema", key.Type+"/"+key.Version) }

// change runs do in a transaction that no other change overlaps. After its commit this node knows the change.
func (s *Store) change(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // this node reads the change even if the client hangs up
	defer cancel()
	err := pg.Retry(func() error {
		return s.db.InTx(bounded, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			if err := q.SchemaChange(bounded); err != nil {
				return err
			}
			return do(q)
		})
	})
	if err != nil {
		return pg.ClientError(err)
	}
	if _, err := s.reload(bounded, s.db.Q); err != nil {
		s.index.Store(nil) // read before the next check
	}
	return nil
}

// Get returns a version of the schema of a type.
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
		return nil, ojs.ErrNotFound("schema", uri)
	}
	return fromRow(&row), pg.ClientError(err)
}

// Versions are those of a type, newest first.
func (s *Store) Versions(ctx context.Context, jobType string) ([]*Info, error) {
	ix, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if versions := ix.types[jobType]; len(versions) > 0 {
		return versions, nil
	}
	return nil, ojs.ErrNotFound("schema", jobType)
}

// List are all schemas by type, newest version first.
func (s *Store) List(ctx context.Context) ([]*Info, error) {
	ix, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	return ix.all(), nil
}

// fresh is the index as it is now, for answers that list schemas.
func (s *Store) fresh(ctx context.Context) (*index, error) {
	ix, err := s.reload(ctx, s.db.Q)
	return ix, pg.ClientError(err)
}
