package queue

import (
	"context"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// checkSchemas refuses jobs whose args violate a schema; at is the index of the first one.
// It runs outside of flushes and transactions, because a check may take long (schema/compile.go bounds it).
func (s *Store) checkSchemas(ctx context.Context, jobs ...*job.Job) (at int, err error) {
	at, err = s.schemas.Check(ctx, s.db.Q, jobs...)
	return at, pg.ClientError(err)
}

// without are the jobs that have no error, and their indexes.
func without(jobs []*job.Job, errs []error) (valid []*job.Job, at []int) {
	for i, j := range jobs {
		if errs[i] == nil {
			valid, at = append(valid, j), append(at, i)
		}
	}
	return valid, at
}

// spread puts the outcomes of the jobs at some indexes among the errors of the others.
func spread(errs []error, at []int, stored []*job.Record, failed []error) []*job.Record {
	all := make([]*job.Record, len(errs))
	for n, i := range at {
		all[i] = stored[n]
		if failed != nil {
			errs[i] = failed[n]
		}
	}
	return all
}
