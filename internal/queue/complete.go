package queue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Complete moves an active job to completed. A job cancelled while this worker held it is returned with
// ojs.StateCancelled and no error; nothing has changed then.
func (s *Store) Complete(ctx context.Context, ack job.Ack) (*job.Record, error) {
	s.workers.Beat(ack.WorkerID)
	return settle(ctx, s, s.complete, ack, claimOf(ack))
}

// CompleteEach is Complete for many, each as if sent alone, in order; errs is nil if none failed.
func (s *Store) CompleteEach(ctx context.Context, acks []job.Ack) ([]*job.Record, []error) {
	holders := make([]Holder, len(acks))
	for i, a := range acks {
		s.workers.Beat(a.WorkerID)
		holders[i] = claimOf(a)
	}
	return settleEach(ctx, s, s.complete, acks, holders)
}

func claimOf(a job.Ack) Holder {
	return Holder{JobID: a.JobID, WorkerID: a.WorkerID, Attempt: a.Attempt}
}

func (s *Store) flushComplete(ctx context.Context, acks []job.Ack) ([]*job.Record, error) {
	n := len(acks)
	p := dbsqlc.JobCompleteParams{
		Ids: make([][16]byte, n), Workers: make([]string, n), Attempts: make([]int32, n),
		Results: make([][]byte, n), EventData: make([][]byte, n), Sources: make([]string, n), Node: s.commits.Node,
		Patience:          lockPatience,
		DefaultResultTtlS: s.resultTTL(),
	}
	for i, a := range acks {
		p.Ids[i], p.Workers[i], p.Attempts[i], p.Results[i] = a.JobID, a.WorkerID, a.Attempt, a.Result
		p.EventData[i] = s.resultData(a.Result)
		if a.WorkerID != "" { // else the statement takes the id stored at fetch
			p.Sources[i] = eventlog.WorkerSource(a.WorkerID)
		}
	}

	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobCompleteRow
	err := s.db.WithPartitions(ctx, func() (err error) {
		rows, err = s.db.Q.JobComplete(ctx, p)
		return err
	})
	if pg.IsTimeout(err) && ctx.Err() == nil {
		rows, err = s.completeFree(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	eventlog.Emit(ctx, s.commits, rows, completeChange)
	for i := range rows {
		s.endings.ended(rows[i].ID)
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.releaseCrons(ctx, cronsOf(rows, func(r *dbsqlc.JobCompleteRow) pgtype.Text { return r.Cron }))
	jobs := InOrder(n, func(i int) [16]byte { return acks[i].JobID }, rows, func(r *dbsqlc.JobCompleteRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
	for i, job := range jobs {
		if acks[i].WorkerID == "" && job != nil { // else its caller has noted it
			s.workers.Beat(job.WorkerID.String)
		}
	}
	return jobs, nil
}

// completeFree completes the jobs that no other transaction holds.
func (s *Store) completeFree(ctx context.Context, p dbsqlc.JobCompleteParams) (rows []dbsqlc.JobCompleteRow, err error) {
	err = s.db.InPartitionedTx(ctx, func(tx pgx.Tx) error {
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

// resultData is the payload of job.completed beyond its columns; a result that is too large is only mentioned.
func (s *Store) resultData(result []byte) []byte {
	switch {
	case result == nil:
		return nil
	case len(result) > eventlog.MaxPayload-eventlog.PayloadRoom:
		return []byte(`{"result_truncated":true}`)
	}
	data := make([]byte, 0, len(result)+len(`{"result":}`))
	data = append(data, `{"result":`...)
	data = append(data, result...)
	return append(data, '}')
}

// InOrder matches rows to requests by id; a request without a row gets nil.
func InOrder[Row, Out any](n int, id func(i int) [16]byte, rows []Row, out func(*Row) ([16]byte, *Out)) []*Out {
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

// Holder is who claims to hold a job.
type Holder struct {
	JobID    [16]byte
	WorkerID string // "": not said, so ownership is not checked
	Attempt  int32  // job.AnyAttempt: not said
	cancels  bool   // it does not claim to hold it, it wants it cancelled
}

// Owns reports whether a job with that owner is the holder's: one that does not name itself, or whose job has no owner, is
// believed.
func (h Holder) Owns(owner pgtype.Text) bool {
	return h.WorkerID == "" || !owner.Valid || owner.String == h.WorkerID
}

// settled turns a refused ack or nack (job is nil) into the reason.
func (s *Store) settled(ctx context.Context, job *job.Record, h Holder) (*job.Record, error) {
	if job != nil {
		return job, nil
	}
	stored, err := s.Get(ctx, h.JobID)
	if err != nil {
		return nil, err
	}
	return h.Refused(stored)
}

// settledEach is settled for many, with one look for all that were refused.
func (s *Store) settledEach(ctx context.Context, jobs []*job.Record, failed []error, holders []Holder) ([]*job.Record, []error) {
	var missing [][16]byte
	for i, job := range jobs {
		if job == nil && (failed == nil || failed[i] == nil) {
			missing = append(missing, holders[i].JobID)
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
			errs[i] = pg.ClientError(failed[i])
		case job != nil:
		case lookErr != nil:
			errs[i] = lookErr
		default:
			jobs[i], errs[i] = holders[i].Refused(stored[holders[i].JobID])
		}
	}
	return jobs, errs
}

// Refused chooses between 404, the conflicts of docs/reference/jobs.md, Allowed operations, and the one case that is answered well: the job was
// cancelled while this worker held it (A10).
func (h Holder) Refused(job *job.Record) (*job.Record, error) {
	id := ojs.FormatID(h.JobID)
	switch {
	case job == nil:
		return nil, ojs.ErrNotFound("job", id)
	case h.cancels && !ojs.JobState(job.State).Terminal():
		return nil, ErrLocked
	case h.cancels:
		return nil, ojs.ErrConflict(id, ojs.JobState(job.State), LiveStates...)
	}
	owned := h.Owns(job.WorkerID)
	current := h.Attempt < 0 || h.Attempt == job.Attempt
	switch {
	case job.State == string(ojs.StateCancelled) && job.PreviousState.String == string(ojs.StateActive) && owned && current:
		return job, nil
	case job.State == string(ojs.StateActive) && !owned:
		return nil, ojs.ErrNotOwner(id, h.WorkerID, job.WorkerID.String)
	case job.State == string(ojs.StateActive) && !current:
		return nil, ojs.ErrStaleAttempt(id, int64(h.Attempt), int64(job.Attempt))
	case job.State == string(ojs.StateActive):
		return nil, ErrLocked
	}
	return nil, ojs.ErrConflict(id, ojs.JobState(job.State), ojs.StateActive)
}
