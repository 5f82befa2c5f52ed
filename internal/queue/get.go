package queue

import (
	"context"
	"log/slog"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Get reads a live or finished job. The error of an unknown id is spec.NotFound.
// It looks into both tables by their primary keys, and takes no place among the slow reads: acks and cancels that were refused
// wait for it.
func (s *Store) Get(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByID(ctx, job.SizeOfEach(1), [][16]byte{id})
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, spec.NotFound("job", spec.FormatID(id))
	}
	return (*job.Record)(&rows[0]), nil
}

// getEach reads many jobs, of which large ones are cut. Unknown ids are missing from the map.
// How large depends on their number: together they stay within job.MaxBytes.
func (s *Store) getEach(ctx context.Context, ids [][16]byte) (map[[16]byte]*job.Record, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByID(ctx, job.SizeOfEach(len(ids)), ids)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	jobs := make(map[[16]byte]*job.Record, len(rows))
	for i := range rows {
		jobs[rows[i].ID] = (*job.Record)(&rows[i])
	}
	return jobs, nil
}

// complement reads what a statement for many jobs has left out of a large one. Its caller has changed the job already, so
// that an error only leaves these parts out of the answer.
// The row may have changed since, so only the attributes that a client has sent, and the history, are taken over.
func (s *Store) complement(ctx context.Context, j *job.Record) {
	whole, err := s.Get(ctx, j.ID)
	if err != nil {
		s.logger.WarnContext(ctx, "a large job was changed but cannot be read; the answer lacks its args", slog.String("category", "error"),
			slog.Group("ojs", "job_id", spec.FormatID(j.ID)), slog.Any("error", err))
		return
	}
	j.Args, j.Meta, j.Extra, j.Errors, j.PreviousErrors = whole.Args, whole.Meta, whole.Extra, whole.Errors, whole.PreviousErrors
}

func texts(states []ojs.JobState) []string {
	res := make([]string, len(states))
	for i, state := range states {
		res[i] = string(state)
	}
	return res
}
