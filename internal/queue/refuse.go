package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Statements guard state, owner and attempt in their WHERE clause, so a refused request only has no row in the result. The
// functions of this file read the job once more to choose the error.

// Run names the run of a job that a request is about, as the client described it.
type Run struct {
	JobID    [16]byte
	WorkerID string // "": not sent, so ownership is not checked
	Attempt  int32  // -1: not sent, so the attempt is not checked
	cancels  bool   // the request is a cancel, which any live state accepts
}

// Owns reports whether the run may belong to the owner of the job. It may if the request or the job names no worker.
// A job that was fetched without a name has no owner, and anyone may end it (docs/reference/http.md, Ack).
func (r Run) Owns(owner pgtype.Text) bool {
	return r.WorkerID == "" || !owner.Valid || owner.String == r.WorkerID
}

// refuse returns why the request had no effect.
// It may find a newer state than the one because of which the statement left the job out. The error then describes that state,
// which is as true for the client.
func (s *Store) refuse(ctx context.Context, r Run) (*job.Record, error) {
	stored, err := s.Get(ctx, r.JobID)
	if err != nil {
		return nil, err
	}
	return r.Refused(stored)
}

// refuseMissing does refuse for every request without a job, with one statement for all. failed may be nil, and so are the
// errors it returns if there is none.
// A request with an error keeps it: it was not refused, and its job may have changed.
func (s *Store) refuseMissing(ctx context.Context, jobs []*job.Record, failed []error, runs []Run) ([]*job.Record, []error) {
	var missing [][16]byte
	for i, job := range jobs {
		if job == nil && (failed == nil || failed[i] == nil) {
			missing = append(missing, runs[i].JobID)
		}
	}
	if missing == nil && failed == nil {
		return jobs, nil
	}
	errs := make([]error, len(jobs))
	stored, readErr := s.getEach(ctx, missing)
	for i, job := range jobs {
		switch {
		case failed != nil && failed[i] != nil:
			errs[i] = pg.ClientError(failed[i])
		case job != nil:
		case readErr != nil:
			errs[i] = readErr
		default:
			jobs[i], errs[i] = runs[i].Refused(stored[runs[i].JobID])
		}
	}
	return jobs, errs
}

// Refused chooses the error for a job that the statement did not change: 404 or a conflict (docs/reference/jobs.md, Allowed
// operations). If the job was cancelled during this run, it returns the job and no error.
func (r Run) Refused(job *job.Record) (*job.Record, error) {
	id := spec.FormatID(r.JobID)
	switch {
	case job == nil:
		return nil, spec.NotFound("job", id)
	// The statement takes every live job, so it can only have been locked.
	case r.cancels && !ojs.JobState(job.State).Terminal():
		return nil, ErrLocked
	case r.cancels:
		return nil, spec.Conflict(id, ojs.JobState(job.State), LiveStates...)
	}
	owned := r.Owns(job.WorkerID)
	current := r.Attempt < 0 || r.Attempt == job.Attempt
	switch {
	case job.State == string(ojs.StateCancelled) && job.PreviousState.String == string(ojs.StateActive) && owned && current:
		return job, nil
	case job.State == string(ojs.StateActive) && !owned:
		return nil, spec.NotOwner(id, r.WorkerID, job.WorkerID.String)
	case job.State == string(ojs.StateActive) && !current:
		return nil, spec.StaleAttempt(id, int64(r.Attempt), int64(job.Attempt))
	case job.State == string(ojs.StateActive):
		return nil, ErrLocked
	}
	return nil, spec.Conflict(id, ojs.JobState(job.State), ojs.StateActive)
}
