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

// Complete moves an active job to completed. A job that was cancelled during this run is returned with
// ojs.StateCancelled and no error; nothing has changed then.
func (s *Store) Complete(ctx context.Context, ack job.Ack) (*job.Record, error) {
	s.workers.Beat(ack.WorkerID)
	return s.complete.do(ctx, ack)
}

// CompleteEach completes many jobs, each as if its ack were sent alone, in order. errs is nil if none failed.
func (s *Store) CompleteEach(ctx context.Context, acks []job.Ack) (jobs []*job.Record, errs []error) {
	for _, a := range acks {
		s.workers.Beat(a.WorkerID)
	}
	return s.complete.doEach(ctx, acks)
}

func ackedRun(a job.Ack) Run { return Run{JobID: a.JobID, WorkerID: a.WorkerID, Attempt: a.Attempt} }

func (s *Store) flushComplete(ctx context.Context, acks []job.Ack) ([]*job.Record, error) {
	rows, err := s.completeRows(ctx, s.completeParams(acks))
	if err != nil {
		return nil, err
	}
	eventlog.Emit(ctx, s.commits, rows, completeChange)
	for i := range rows {
		s.awaiting.ended(rows[i].ID)
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.releaseCrons(ctx, cronsOf(rows, func(r *dbsqlc.JobCompleteRow) pgtype.Text { return r.Cron }))
	jobs := InOrder(len(acks), func(i int) [16]byte { return acks[i].JobID }, rows, func(r *dbsqlc.JobCompleteRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) })
	for i, job := range jobs {
		if acks[i].WorkerID == "" && job != nil { // else Complete has recorded the beat
			s.workers.Beat(job.WorkerID.String)
		}
	}
	return jobs, nil
}

func (s *Store) completeParams(acks []job.Ack) dbsqlc.JobCompleteParams {
	n := len(acks)
	p := dbsqlc.JobCompleteParams{
		Ids: make([][16]byte, n), Workers: make([]string, n), Attempts: make([]int32, n),
		Results: make([][]byte, n), EventData: make([][]byte, n), Sources: make([]string, n), Node: s.commits.Node, EventType: ojs.EventJobCompleted,
		LockTimeout:       lockTimeout,
		DefaultResultTtlS: s.resultTTL(),
	}
	for i, a := range acks {
		p.Ids[i], p.Workers[i], p.Attempts[i], p.Results[i] = a.JobID, a.WorkerID, a.Attempt, a.Result
		p.EventData[i] = resultData(a.Result)
		if a.WorkerID != "" { // else the statement takes the id stored at fetch
			p.Sources[i] = eventlog.WorkerSource(a.WorkerID)
		}
	}
	return p
}

// completeRows completes the jobs in one statement or, if that waited too long for a lock, the unlocked ones.
func (s *Store) completeRows(ctx context.Context, p dbsqlc.JobCompleteParams) (rows []dbsqlc.JobCompleteRow, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err = s.db.WithPartitions(ctx, func() (err error) {
		rows, err = s.db.Q.JobComplete(ctx, p)
		return err
	})
	if pg.IsTimeout(err) && ctx.Err() == nil {
		return s.completeUnlocked(ctx, p)
	}
	return rows, err
}

// completeUnlocked completes the jobs that no other transaction has locked.
func (s *Store) completeUnlocked(ctx context.Context, p dbsqlc.JobCompleteParams) (rows []dbsqlc.JobCompleteRow, err error) {
	err = s.db.InPartitionedTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		unlocked, err := q.JobLockUnlocked(ctx, p.Ids)
		if err != nil || len(unlocked) == 0 {
			return err
		}
		part := dbsqlc.JobCompleteParams{LockTimeout: p.LockTimeout, DefaultResultTtlS: p.DefaultResultTtlS, Node: p.Node, EventType: p.EventType}
		for i, id := range p.Ids {
			if slices.Contains(unlocked, id) {
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

// resultTTL is the default TTL as it is stored: seconds, or -1 for as long as the job is kept.
func (s *Store) resultTTL() int64 {
	if s.config.ResultTTL == 0 {
		return -1
	}
	return int64(s.config.ResultTTL / time.Second)
}

// resultData is the payload of job.completed beyond its columns. A result that does not fit is replaced by a flag.
func resultData(result []byte) []byte {
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
