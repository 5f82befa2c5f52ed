package store

import (
	"context"
	"encoding/hex"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// Get reads one job, wherever it is; unknown gives ojs.ErrNotFound.
func (s *Store) Get(ctx context.Context, id [16]byte) (*dbsqlc.Job, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobListByID(ctx, [][16]byte{id})
	if err != nil {
		return nil, WireError(err)
	}
	if len(rows) == 0 {
		return nil, ojs.ErrNotFound("job", ojs.FormatID(id))
	}
	return &rows[0], nil
}

// getEach reads many; unknown ones are missing from the map.
func (s *Store) getEach(ctx context.Context, ids [][16]byte) (map[[16]byte]*dbsqlc.Job, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobListByID(ctx, ids)
	if err != nil {
		return nil, WireError(err)
	}
	jobs := make(map[[16]byte]*dbsqlc.Job, len(rows))
	for i := range rows {
		jobs[rows[i].ID] = &rows[i]
	}
	return jobs, nil
}

// AppendID appends the text of an id.
func AppendID(b []byte, id [16]byte) []byte {
	b = hex.AppendEncode(b, id[0:4])
	b = hex.AppendEncode(append(b, '-'), id[4:6])
	b = hex.AppendEncode(append(b, '-'), id[6:8])
	b = hex.AppendEncode(append(b, '-'), id[8:10])
	return hex.AppendEncode(append(b, '-'), id[10:16])
}

func texts(states []ojs.JobState) []string {
	res := make([]string, len(states))
	for i, state := range states {
		res[i] = string(state)
	}
	return res
}
