package worker

import (
	"context"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// desiredState is the state that a worker should have (docs/reference/workers.md, Directives). A worker that terminates
// stays so. Otherwise the directive of an operator takes precedence, then that of a test, then the state it reported.
func desiredState(reported, directive, test string) string {
	switch {
	case reported == terminate:
		return reported
	case directive != "":
		return directive
	case test != "":
		return test
	case reported == quiet:
		return reported
	}
	return running
}

// States of a worker, and directives.
const (
	running   = "running"
	quiet     = "quiet"
	terminate = "terminate"
)

// isQuiet reports whether a worker with that state or directive gets no jobs.
func isQuiet(state string) bool { return state == quiet || state == terminate }

// Direct stores an operator's directive: running, quiet or terminate.
func (s *Store) Direct(ctx context.Context, id, directive string) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirective(ctx, directive, id)
	if err != nil {
		return pg.WriteError(err)
	}
	if len(rows) == 0 {
		return ojs.ErrNotFound("worker", id)
	}
	s.workers.SetQuiet(id, isQuiet(directive) || isQuiet(rows[0].State))
	return nil
}

// DirectAll stores a directive for all workers that are alive, and returns their number.
func (s *Store) DirectAll(ctx context.Context, directive string) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirectiveAll(ctx, directive)
	for _, r := range rows {
		s.workers.SetQuiet(r.ID, isQuiet(directive) || isQuiet(r.State))
	}
	return len(rows), pg.WriteError(err)
}

// testDirectives lets jobs choose the state in the answers to these beats (docs/reference/workers.md, Test directives). It is
// off by default, because it lets any producer make a worker quiet.
func (s *Store) testDirectives(ctx context.Context, beats []Beat, res []BeatResult) error {
	if !s.config.TestDirectives {
		return nil
	}
	var ids [][16]byte
	for _, b := range beats {
		ids = append(ids, b.Jobs.IDs...)
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := s.db.Q.JobListMetaActive(ctx, ids)
	if err != nil {
		return err
	}
	requested := make(map[string]string)
	for _, r := range rows {
		if directive := testDirective(r.Meta); directive != "" && requested[r.WorkerID.String] != terminate {
			requested[r.WorkerID.String] = directive
		}
	}
	for i, b := range beats {
		if directive := requested[b.WorkerID]; directive != "" && !b.jobsOnly {
			res[i].State = desiredState(res[i].reported, res[i].directive, directive)
		}
	}
	return nil
}

func testDirective(meta []byte) (directive string) {
	for literal, value := range rawjson.Members(meta) {
		if string(rawjson.Name(literal)) == "test_directive" {
			directive, _ = rawjson.Text(value)
		}
	}
	if !isQuiet(directive) {
		return ""
	}
	return directive
}
