package worker

import (
	"context"

	"github.com/ojsd/ojsd/internal/rawjson"
)

// desiredState is docs/reference/workers.md, Directives: a worker on its way out stays so; else the operator decides, then a test, then the
// worker's own wish.
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

// quieted reports whether a worker of that state, or with that directive, gets no jobs.
func quieted(state string) bool { return state == quiet || state == terminate }

// testDirectives lets jobs decide what their workers hear in this one answer (docs/reference/workers.md, Test directives). Off by default, because
// with it any producer could quiet a worker.
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
	rows, err := s.db.Q.JobListMetaHeld(ctx, ids)
	if err != nil {
		return err
	}
	wishes := make(map[string]string)
	for _, r := range rows {
		if wish := testDirective(r.Meta); wish != "" && wishes[r.WorkerID.String] != terminate {
			wishes[r.WorkerID.String] = wish
		}
	}
	for i, b := range beats {
		if wish := wishes[b.WorkerID]; wish != "" && !b.again {
			res[i].State = desiredState(res[i].reported, res[i].directive, wish)
		}
	}
	return nil
}

func testDirective(meta []byte) (wish string) {
	for literal, value := range rawjson.Members(meta) {
		if string(rawjson.Name(literal)) == "test_directive" {
			wish, _ = rawjson.Text(value)
		}
	}
	if !quieted(wish) {
		return ""
	}
	return wish
}
