package schema

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Check refuses the first job whose args violate the schema that applies to it, with an *ojs.Error; at is its index, -1 without an
// error. q reads what this node does not know yet. A type without schemas costs a look into a map. A nil store has no
// schemas. It may run inside a transaction, and q is then on its connection: a second one could empty the pool. It changes
// nothing and may run anywhere at once. The index may be older than a change by up to a second (docs/reference/schemas.md,
// Which schema applies). An error that is no *ojs.Error is that of the database, and at is 0 then.
func (s *Store) Check(ctx context.Context, q *dbsqlc.Queries, jobs ...*job.Job) (at int, err error) {
	if s == nil {
		return -1, nil
	}
	ix, err := s.index.InTx(ctx, q)
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

// CheckEach is Check for jobs that are stored independently; nil: all may be stored. A job that is refused leaves the
// others to be checked. The result is nil or has an element for each job.
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

// A schema that was deleted since the index was read refuses nothing.
func (s *Store) checkOne(ctx context.Context, q *dbsqlc.Queries, info *Info, j *job.Job) error {
	c := s.compiled.get(info)
	if c == nil {
		var err error
		if c, err = s.load(ctx, q, info); err != nil || c == nil {
			return err
		}
	}
	// A typed nil must not become an error, hence the test.
	if refused := c.check(j.Args); refused != nil {
		return refused
	}
	return nil
}

// load reads and compiles a schema; nil: it was deleted meanwhile. It runs once per schema and node, and again after the
// schema was dropped for room. The compiled form is kept by its creation time, so that a schema that was registered anew
// under the same name is another one.
func (s *Store) load(ctx context.Context, q *dbsqlc.Queries, info *Info) (*compiled, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// No lock is held here.
	row, err := q.SchemaGet(ctx, info.Type, info.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.loading.Lock() // one at a time: that of a large schema takes long. Not while it reads, as in follow.Value.InTx
	defer s.loading.Unlock()
	if c := s.compiled.get(info); c != nil {
		return c, nil
	}
	stored := fromRow(&row)
	// It was compiled when it was registered, perhaps by a newer release. Its jobs are refused rather than stored
	// unchecked.
	c, err := compile(stored.Info, stored.Document)
	if err != nil {
		s.logger.ErrorContext(ctx, "this node cannot compile a registered schema; upgrade it, or delete the schema", slog.String("category", "error"),
			slog.String("schema", info.URI), slog.Any("error", err))
		return nil, spec.NewError(ojs.ErrSchemaValidation, "The schema "+info.URI+" cannot be read by this node; register it again.", map[string]any{"field": "args", "schema": info.URI})
	}
	s.compiled.put(c)
	return c, nil
}
