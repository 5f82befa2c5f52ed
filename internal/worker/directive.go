package worker

import (
	"context"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
)

// desiredState is the state that a worker should have (docs/reference/workers.md, Directives). A worker that terminates
// stays so. Otherwise the directive of an operator takes precedence, then that of a test, then the state it reported. Every
// argument is "" if there is none. A resume, the directive running, hides a reported quiet until the worker reports
// running; the statement removes it then.
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

// isQuiet reports whether a worker with that state or directive gets no jobs. The cache of quiet workers is made by this
// rule and WorkerListQuiet by the same in SQL; both must agree.
func isQuiet(state string) bool { return state == quiet || state == terminate }

// Direct stores an operator's directive: running, quiet or terminate. It is committed when it returns, and may be repeated.
// This node follows at once, the others by the notification that the statement sends (docs/reference/workers.md, Quiet
// workers). The directive is stored even if the worker terminates; desiredState decides what it is told.
func (s *Store) Direct(ctx context.Context, ref Ref, directive string) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirective(ctx, dbsqlc.WorkerUpdateDirectiveParams{Directive: directive, ID: ref.ID, Tenant: ref.Tenant})
	if err != nil {
		return pg.WriteError(err)
	}
	if len(rows) == 0 {
		return spec.NotFound("worker", ref.ID)
	}
	// After the commit, or a fetch could be refused for a change that is rolled back.
	s.workers.SetQuiet(ref.ID, isQuiet(directive) || isQuiet(rows[0].State))
	return nil
}

// DirectAll stores a directive for all workers that are alive, and returns their number. It is one statement, so either all
// have the directive or none; a worker that registers at the same time may miss it.
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
// off by default, because it lets any producer make a worker quiet. Of the jobs of one worker terminate wins over quiet.
// Nothing is stored.
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

// Other values are ignored: meta belongs to the client.
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
