package queue

import (
	"context"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Get reads a live or finished job. The error of an unknown id is ojs.ErrNotFound.
func (s *Store) Get(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByID(ctx, [][16]byte{id})
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, ojs.ErrNotFound("job", ojs.FormatID(id))
	}
	return (*job.Record)(&rows[0]), nil
}

// getEach reads many jobs. Unknown ids are missing from the map.
func (s *Store) getEach(ctx context.Context, ids [][16]byte) (map[[16]byte]*job.Record, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByID(ctx, ids)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	jobs := make(map[[16]byte]*job.Record, len(rows))
	for i := range rows {
		jobs[rows[i].ID] = (*job.Record)(&rows[i])
	}
	return jobs, nil
}

func texts(states []ojs.JobState) []string {
	res := make([]string, len(states))
	for i, state := range states {
		res[i] = string(state)
	}
	return res
}
