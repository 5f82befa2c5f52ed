package queue

import (
	"context"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

// Explain is why a job is not running, as the JSON object of docs/reference/jobs.md, Explain. SQL makes it, because applications ask
// in SQL, too.
// It takes a place among the slow reads (pg.DB.Reading), because it looks at the queue, its limits and the jobs ahead.
func (s *Store) Explain(ctx context.Context, id [16]byte) ([]byte, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	defer done()
	explanation, err := s.db.Q.JobExplain(ctx, id)
	if err == nil && explanation == nil {
		err = spec.NotFound("job", spec.FormatID(id))
	}
	return explanation, pg.ClientError(err)
}
