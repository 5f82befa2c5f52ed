package store

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// Ack reports success (contract 10 §8).
type Ack struct {
	JobID    [16]byte
	WorkerID string // "": not said, so ownership is not checked
	Attempt  int32  // -1: not said
	Result   []byte // nil: none
}

// Complete moves an active job to completed. A job cancelled while this worker held it is returned with
// ojs.StateCancelled and no error; nothing has changed then.
func (s *Store) Complete(ctx context.Context, ack Ack) (*dbsqlc.Job, error) {
	s.seen(ack.WorkerID)
	return settle(ctx, s, s.complete, ack, claimOf(ack))
}

// CompleteEach is Complete for many, each as if sent alone, in order; errs is nil if none failed.
func (s *Store) CompleteEach(ctx context.Context, acks []Ack) ([]*dbsqlc.Job, []error) {
	holders := make([]holder, len(acks))
	for i, a := range acks {
		s.seen(a.WorkerID)
		holders[i] = claimOf(a)
	}
	return settleEach(ctx, s, s.complete, acks, holders)
}

func claimOf(a Ack) holder {
	return holder{jobID: a.JobID, workerID: a.WorkerID, attempt: a.Attempt}
}

func (s *Store) flushComplete(ctx context.Context, acks []Ack) ([]*dbsqlc.Job, error) {
	n := len(acks)
	p := dbsqlc.JobCompleteParams{
		Ids: make([][16]byte, n), Workers: make([]string, n), Attempts: make([]int32, n),
		Results: make([][]byte, n), EventData: make([][]byte, n), Sources: make([]string, n), Node: s.node,
		Patience:          lockPatience,
		DefaultResultTtlS: s.resultTTL(),
	}
	for i, a := range acks {
		p.Ids[i], p.Workers[i], p.Attempts[i], p.Results[i] = a.JobID, a.WorkerID, a.Attempt, a.Result
		p.EventData[i] = s.resultData(a.Result)
		if a.WorkerID != "" { // else the statement takes the id stored at fetch
			p.Sources[i] = WorkerSource(a.WorkerID)
		}
	}

	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobCompleteRow
	err := s.withPartitions(ctx, func() (err error) {
		rows, err = s.q.JobComplete(ctx, p)
		return err
	})
	if TimedOut(err) && ctx.Err() == nil {
		rows, err = s.completeFree(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	tell(ctx, s, rows, completeChange)
	for i := range rows {
		s.endings.ended(rows[i].ID)
	}
	if len(rows) > 0 {
		s.committedEvents()
	}
	s.settleCrons(ctx, cronsOf(rows, func(r *dbsqlc.JobCompleteRow) pgtype.Text { return r.Cron }))
	jobs := inOrder(n, func(i int) [16]byte { return acks[i].JobID }, rows, func(r *dbsqlc.JobCompleteRow) ([16]byte, *dbsqlc.Job) { return r.ID, (*dbsqlc.Job)(r) })
	for i, job := range jobs {
		if acks[i].WorkerID == "" && job != nil { // else its caller has noted it
			s.seen(job.WorkerID.String)
		}
	}
	return jobs, nil
}

// completeFree completes the jobs that no other transaction holds.
func (s *Store) completeFree(ctx context.Context, p dbsqlc.JobCompleteParams) (rows []dbsqlc.JobCompleteRow, err error) {
	err = s.inPartitionedTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		free, err := q.JobLockFree(ctx, p.Ids)
		if err != nil || len(free) == 0 {
			return err
		}
		part := dbsqlc.JobCompleteParams{Patience: p.Patience, DefaultResultTtlS: p.DefaultResultTtlS, Node: p.Node}
		for i, id := range p.Ids {
			if slices.Contains(free, id) {
				part.Ids, part.Workers, part.Attempts = append(part.Ids, id), append(part.Workers, p.Workers[i]), append(part.Attempts, p.Attempts[i])
				part.Results, part.EventData = append(part.Results, p.Results[i]), append(part.EventData, p.EventData[i])
				part.Sources = append(part.Sources, p.Sources[i])
			}
		}
		rows, err = q.JobComplete(ctx, part)
		return err
	})
	return rows, err
}

// resultTTL is the default as it is stored: seconds, -1 for as long as the job.
func (s *Store) resultTTL() int64 {
	if s.config.ResultTTL == 0 {
		return -1
	}
	return int64(s.config.ResultTTL / time.Second)
}

// eventRoom is kept for the members of a payload that come from columns.
const eventRoom = 1024

// resultData is the payload of job.completed beyond its columns; a result that is too large is only mentioned.
func (s *Store) resultData(result []byte) []byte {
	switch {
	case result == nil:
		return nil
	case len(result) > maxEventDataBytes-eventRoom:
		return []byte(`{"result_truncated":true}`)
	}
	data := make([]byte, 0, len(result)+len(`{"result":}`))
	data = append(data, `{"result":`...)
	data = append(data, result...)
	return append(data, '}')
}

// inOrder matches rows to requests by id; a request without a row gets nil.
func inOrder[Row, Out any](n int, id func(i int) [16]byte, rows []Row, out func(*Row) ([16]byte, *Out)) []*Out {
	res := make([]*Out, n)
	if n == 1 && len(rows) == 1 {
		_, res[0] = out(&rows[0])
		return res
	}
	byID := make(map[[16]byte]*Out, len(rows))
	for i := range rows {
		id, o := out(&rows[i])
		byID[id] = o
	}
	for i := range res {
		res[i] = byID[id(i)]
	}
	return res
}

// holder is who claims to hold a job.
type holder struct {
	jobID    [16]byte
	workerID string
	attempt  int32
	cancels  bool // it does not claim to hold it, it wants it cancelled
}

// owns reports whether a job with that owner is the holder's: one that does not name itself, or whose job has no owner, is
// believed.
func (h holder) owns(owner pgtype.Text) bool {
	return h.workerID == "" || !owner.Valid || owner.String == h.workerID
}

// settled turns a refused ack or nack (job is nil) into the reason.
func (s *Store) settled(ctx context.Context, job *dbsqlc.Job, h holder) (*dbsqlc.Job, error) {
	if job != nil {
		return job, nil
	}
	stored, err := s.Get(ctx, h.jobID)
	if err != nil {
		return nil, err
	}
	return h.refused(stored)
}

// settledEach is settled for many, with one look for all that were refused.
func (s *Store) settledEach(ctx context.Context, jobs []*dbsqlc.Job, failed []error, holders []holder) ([]*dbsqlc.Job, []error) {
	var missing [][16]byte
	for i, job := range jobs {
		if job == nil && (failed == nil || failed[i] == nil) {
			missing = append(missing, holders[i].jobID)
		}
	}
	if missing == nil && failed == nil {
		return jobs, nil
	}
	errs := make([]error, len(jobs))
	stored, lookErr := s.getEach(ctx, missing)
	for i, job := range jobs {
		switch {
		case failed != nil && failed[i] != nil:
			errs[i] = WireError(failed[i])
		case job != nil:
		case lookErr != nil:
			errs[i] = lookErr
		default:
			jobs[i], errs[i] = holders[i].refused(stored[holders[i].jobID])
		}
	}
	return jobs, errs
}

// refused chooses between 404, the conflicts of contract 10 §4.3, and the one case that is answered well: the job was
// cancelled while this worker held it (A10).
func (h holder) refused(job *dbsqlc.Job) (*dbsqlc.Job, error) {
	id := ojs.FormatID(h.jobID)
	switch {
	case job == nil:
		return nil, ojs.ErrNotFound("job", id)
	case h.cancels && !ojs.JobState(job.State).Terminal():
		return nil, errHeld
	case h.cancels:
		return nil, ojs.ErrConflict(id, ojs.JobState(job.State), liveStates...)
	}
	owned := h.owns(job.WorkerID)
	current := h.attempt < 0 || h.attempt == job.Attempt
	switch {
	case job.State == string(ojs.StateCancelled) && job.PreviousState.String == string(ojs.StateActive) && owned && current:
		return job, nil
	case job.State == string(ojs.StateActive) && !owned:
		return nil, ojs.ErrNotOwner(id, h.workerID, job.WorkerID.String)
	case job.State == string(ojs.StateActive) && !current:
		return nil, ojs.ErrStaleAttempt(id, int64(h.attempt), int64(job.Attempt))
	case job.State == string(ojs.StateActive):
		return nil, errHeld
	}
	return nil, ojs.ErrConflict(id, ojs.JobState(job.State), ojs.StateActive)
}
