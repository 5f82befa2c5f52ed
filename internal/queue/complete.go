package queue

import (
	"bytes"
	"context"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Complete moves an active job to completed. A job that was cancelled during this run is returned with
// ojs.StateCancelled and no error; nothing has changed then.
//
// A job that is not active is 409. So is one whose worker or attempt are not those of the ack, if they were sent. Acks that name
// neither are accepted for any run (docs/reference/retries.md, Late acks). When it returns, the commit is done and what follows
// in workflows and limits has been tried.
func (s *Store) Complete(ctx context.Context, ack job.Ack) (*job.Record, error) {
	// The ack itself is a sign of life, even if it is refused.
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

// flushComplete returns the jobs in the order of the acks; nil for one that was not completed. Its caller finds out why (refuse).
//
// It may run on several nodes for the same job: the DELETE of one finds the row, the other one gets no row. A repeated ack
// changes nothing.
func (s *Store) flushComplete(ctx context.Context, acks []job.Ack) ([]*job.Record, error) {
	rows, err := s.completeRows(ctx, acks)
	if err != nil {
		return nil, err
	}
	s.afterComplete(ctx, rows)
	jobs := InOrder(len(acks), func(i int) [16]byte { return acks[i].JobID }, rows, func(r *job.Record) ([16]byte, *job.Record) { return r.ID, r })
	for i, job := range jobs {
		if acks[i].WorkerID == "" && job != nil { // else Complete has recorded the beat
			s.workers.Beat(job.WorkerID.String)
		}
	}
	return jobs, nil
}

// afterComplete does what follows the commit. It wakes the calls of this node that wait for the results; those of other nodes are
// woken when the relay has published the events.
//
// operation.settle calls it too, for an ack whose answer was lost: the flush has emitted nothing then.
func (s *Store) afterComplete(ctx context.Context, rows []job.Record) {
	eventlog.Emit(ctx, s.commits, rows, completeChange)
	for i := range rows {
		s.awaiting.ended(rows[i].ID)
	}
	leftActive(s, rows, func(r *job.Record) string { return r.Queue })
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.releaseCrons(ctx, namesOf(rows, func(r *job.Record) pgtype.Text { return r.Cron }))
}

// completeParams sorts the acks by job, as JobComplete wants them. Most acks of a flush share a few workers and have no
// result, so each worker is sent once, and results only if there are any.
//
// The order of the ids is part of the contract of the statement: width_bucket finds the index of a row by a binary search.
func (s *Store) completeParams(acks []job.Ack) dbsqlc.JobCompleteParams {
	acks = slices.SortedFunc(slices.Values(acks), func(a, b job.Ack) int { return bytes.Compare(a.JobID[:], b.JobID[:]) })
	n := len(acks)
	p := dbsqlc.JobCompleteParams{
		Ids: make([][16]byte, n), Attempts: make([]int32, n), Owners: make([]int32, n), Results: [][]byte{}, EventData: [][]byte{},
		Node: s.commits.Node, EventType: ojs.EventJobCompleted, LockTimeout: lockTimeout, DefaultResultTtlS: resultTTL, MaxSize: job.SizeOfEach(n),
	}
	if slices.ContainsFunc(acks, func(a job.Ack) bool { return a.Result != nil }) {
		p.Results, p.EventData = make([][]byte, n), make([][]byte, n)
	}
	owners := make(map[string]int32, 1)
	for i, a := range acks {
		owner, known := owners[a.WorkerID]
		if !known {
			p.Workers, p.Sources = append(p.Workers, a.WorkerID), append(p.Sources, ackSource(a.WorkerID))
			owner = int32(len(p.Workers)) // arrays in SQL begin at 1
			owners[a.WorkerID] = owner
		}
		p.Ids[i], p.Attempts[i], p.Owners[i] = a.JobID, a.Attempt, owner
		if a.Result != nil {
			p.Results[i], p.EventData[i] = a.Result, resultData(a.Result)
		}
	}
	return p
}

// ackSource is the source of the event of an ack. It is empty if the ack names no worker; the statement then takes the one
// stored at fetch.
func ackSource(worker string) string {
	if worker == "" {
		return ""
	}
	return eventlog.WorkerSource(worker)
}

// completeRows completes the jobs in one statement; those that have reported progress follow, because few have.
//
// The two parts are two transactions. If the second fails after the first has committed, the callers of the second part have no
// row. refuse finds their jobs active and unlocked, and answers ErrLocked, so they are tried again.
func (s *Store) completeRows(ctx context.Context, acks []job.Ack) ([]job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.completeUnreported(ctx, acks)
	if err != nil || len(rows) == len(acks) {
		return rows, err
	}
	// A flush never has a job twice (its key), so ids are enough to tell which acks are left. Those of refused jobs are among
	// them, and JobProgressFlush leaves these out again.
	completed := make(map[[16]byte]bool, len(rows))
	for i := range rows {
		completed[rows[i].ID] = true
	}
	rest := slices.DeleteFunc(slices.Clone(acks), func(a job.Ack) bool { return completed[a.JobID] })
	reported, err := s.completeReported(ctx, rest)
	if err != nil && len(rows) > 0 && !pg.IsUnknown(err) { // unknown: each caller is told what is true, see settle
		s.logger.WarnContext(ctx, "jobs that have reported progress were not completed; their callers try again",
			slog.Int("jobs", len(rest)), slog.Any("error", err))
		return rows, nil
	}
	return append(rows, reported...), err
}

// completeReported completes those of the jobs that have reported progress, with an event for the last report if it had none.
func (s *Store) completeReported(ctx context.Context, acks []job.Ack) ([]job.Record, error) {
	p := dbsqlc.JobProgressFlushParams{Node: s.commits.Node}
	for _, a := range acks {
		p.Ids, p.Workers, p.Attempts = append(p.Ids, a.JobID), append(p.Workers, a.WorkerID), append(p.Attempts, a.Attempt)
	}
	return s.completeSome(ctx, acks, true, func(q *dbsqlc.Queries) ([][16]byte, error) { return q.JobProgressFlush(ctx, p) })
}

// completeSome completes, in one transaction, the jobs that pick chooses.
//
// It may run twice, if a partition of jobs_done is missing. pick locks its rows, so JobComplete waits for none of them.
func (s *Store) completeSome(ctx context.Context, acks []job.Ack, reported bool, pick func(q *dbsqlc.Queries) ([][16]byte, error)) (rows []job.Record, err error) {
	err = s.db.InPartitionedTx(ctx, func(tx pgx.Tx) error {
		rows = nil
		q := dbsqlc.New(tx)
		ids, err := pick(q)
		if err != nil || len(ids) == 0 {
			return err
		}
		p := s.completeParams(slices.DeleteFunc(slices.Clone(acks), func(a job.Ack) bool { return !slices.Contains(ids, a.JobID) }))
		p.Reported = reported
		rows, err = completeJobs(ctx, q, &p)
		return err
	})
	return rows, err
}

// completeUnreported completes the jobs or, if that waited too long for a lock, the unlocked ones.
// The first try locks nothing beforehand, because that would cost every flush a fifth of its throughput. Its lock timeout is set
// by the statement itself and ends with its transaction.
func (s *Store) completeUnreported(ctx context.Context, acks []job.Ack) (rows []job.Record, err error) {
	p := s.completeParams(acks)
	err = s.db.WithPartitions(ctx, func() error {
		return s.db.Write(ctx, func(conn *pgxpool.Conn) (err error) {
			rows, err = completeJobs(ctx, dbsqlc.New(conn), &p)
			return err
		})
	})
	// IsTimeout is true for the lock timeout, and for the time limit of the whole flush, after which ctx has ended.
	if pg.IsTimeout(err) && ctx.Err() == nil {
		return s.completeUnlocked(ctx, acks)
	}
	return rows, err
}

// completeUnlocked completes the jobs that no other transaction has locked.
// Acks of locked jobs have no row afterwards. Their callers wait one by one (operation.retryLocked), so one locked job delays its
// flush by lockTimeout once.
func (s *Store) completeUnlocked(ctx context.Context, acks []job.Ack) ([]job.Record, error) {
	ids := make([][16]byte, len(acks))
	for i, a := range acks {
		ids[i] = a.JobID
	}
	return s.completeSome(ctx, acks, false, func(q *dbsqlc.Queries) ([][16]byte, error) { return q.JobLockUnlocked(ctx, ids) })
}

// resultData is the payload of job.completed beyond its columns. A result that does not fit is replaced by a flag.
func resultData(result []byte) []byte {
	switch {
	case result == nil:
		return nil
	// The event is sent to every subscriber and webhook; whoever wants the result reads it (docs/reference/jobs.md, Results).
	case len(result) > eventlog.MaxPayload-eventlog.PayloadRoom:
		return []byte(`{"result_truncated":true}`)
	}
	data := make([]byte, 0, len(result)+len(`{"result":}`))
	data = append(data, `{"result":`...)
	data = append(data, result...)
	return append(data, '}')
}

// InOrder matches rows to requests by id; a request without a row gets nil.
// Requests with the same id get the same pointer. It is exported for package progress.
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
