package schema

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Check refuses the first job whose args violate the schema that applies to it, with an *ojs.Error; at is its index, -1 without an
// error. q reads what this node does not know yet. A type without schemas costs a look into a map. A nil store has no schemas.
func (s *Store) Check(ctx context.Context, q *dbsqlc.Queries, jobs ...*job.Job) (at int, err error) {
	if s == nil {
		return -1, nil
	}
	ix, err := s.known(ctx, q)
	if err != nil {
		return 0, err
	}
	for i, j := range jobs {
		if info := ix.applies(j); info != nil {
			if err := s.checkOne(ctx, q, info, j); err != nil {
				return i, err
			}
		}
	}
	return -1, nil
}

// CheckEach is Check for jobs that are stored independently; nil: all may be stored.
func (s *Store) CheckEach(ctx context.Context, q *dbsqlc.Queries, jobs []*job.Job) (errs []error) {
	for next := 0; next < len(jobs); {
		at, err := s.Check(ctx, q, jobs[next:]...)
		if err == nil {
			break
		}
		if errs == nil {
			errs = make([]error, len(jobs))
		}
		if _, refused := errors.AsType[*ojs.Error](err); !refused { // the database: the others would meet it, too
			for i := next; i < len(jobs); i++ {
				errs[i] = pg.ClientError(err)
			}
			break
		}
		errs[next+at] = err
		next += at + 1
	}
	return errs
}

func (s *Store) checkOne(ctx context.Context, q *dbsqlc.Queries, info *Info, j *job.Job) error {
	c := s.compiled.get(info)
	if c == nil {
		var err error
		if c, err = s.load(ctx, q, info); err != nil || c == nil {
			return err
		}
	}
	if refused := c.check(j.Args); refused != nil {
		return refused
	}
	return nil
}

// load reads and compiles a schema; nil: it was deleted meanwhile.
func (s *Store) load(ctx context.Context, q *dbsqlc.Queries, info *Info) (*compiled, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := q.SchemaGet(ctx, info.Type, info.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.loading.Lock() // one at a time: that of a large schema takes long. Not while it reads, see reload
	defer s.loading.Unlock()
	if c := s.compiled.get(info); c != nil {
		return c, nil
	}
	stored := fromRow(&row)
	c, err := compile(stored.Info, stored.Document)
	if err != nil {
		s.logger.ErrorContext(ctx, "this node cannot compile a registered schema; upgrade it, or delete the schema", slog.String("category", "error"),
			slog.String("schema", info.URI), slog.Any("error", err))
		return nil, ojs.NewError(ojs.KindSchemaValidation, "The schema "+info.URI+" cannot be read by this node; register it again.", map[string]any{"field": "args", "schema": info.URI})
	}
	s.compiled.put(c)
	return c, nil
}

// known is the index of all schemas, which is read before the first check.
func (s *Store) known(ctx context.Context, q *dbsqlc.Queries) (*index, error) {
	if !s.checked.Load() {
		s.checked.Store(true)
	}
	if ix := s.index.Load(); ix != nil {
		return ix, nil
	}
	return s.reload(ctx, q)
}

// reload reads the names of all schemas. It holds no lock while it reads: a caller in a transaction would wait for one that waits for a
// connection, and all connections may belong to transactions that wait for the first.
func (s *Store) reload(ctx context.Context, q *dbsqlc.Queries) (*index, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	version, err := q.SchemaChangeVersion(ctx) // before the names: a change between the two is read again
	if err != nil {
		return nil, err
	}
	if ix := s.index.Load(); ix != nil && ix.version == version {
		return ix, nil
	}
	list, err := listAll(ctx, q)
	if err != nil {
		return nil, err
	}
	ix := newIndex(version, list)
	s.reading.Lock()
	defer s.reading.Unlock()
	if newer := s.index.Load(); newer != nil && newer.version > version {
		return newer, nil
	}
	s.index.Store(ix)
	return ix, nil
}

func listAll(ctx context.Context, q *dbsqlc.Queries) ([]Info, error) {
	rows, err := q.SchemaListAll(ctx, MaxSchemas)
	list := make([]Info, len(rows))
	for i, r := range rows {
		list[i] = Info{Key{r.Type, r.Version}, r.VersionNumber, r.Uri, r.Enforce, r.CreatedAt.Time}
	}
	return list, err
}
