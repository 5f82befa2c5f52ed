package queue

import (
	"cmp"
	"context"
	"errors"
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

// enqueued is the outcome of one insert; taken means that the id is in use.
type enqueued struct {
	job       *job.Record
	eventType string
	taken     bool
}

// conn is the pool or a transaction; Begin on the latter is a savepoint.
type conn interface {
	dbsqlc.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// errTaken ends the transaction of an insert whose client-chosen ids turned out to be in use.
var errTaken = errors.New("id is in use")

// Enqueue stores a job (docs/reference/http.md, Enqueue). An id that is in use gives ojs.ErrDuplicate.
func (s *Store) Enqueue(ctx context.Context, job *job.Job) (*job.Record, error) {
	assignID(job)
	b := s.enqueue
	if job.ClientID {
		b = s.named
	}
	span := s.tracer.Enqueue(ctx, job)
	res, err := b.Do(ctx, job)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	stored, err := res.outcome(job)
	if err == nil {
		span.Accepted(stored.ID, stored.State)
	}
	return stored, err
}

func (e enqueued) outcome(job *job.Job) (*job.Record, error) {
	if e.taken {
		return nil, ojs.ErrDuplicateID(ojs.FormatID(job.ID))
	}
	return e.job, nil
}

// EnqueueEach stores the jobs that can be stored; errs (nil if none failed) tells about the others.
func (s *Store) EnqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	b := s.enqueue
	for _, job := range jobs {
		assignID(job)
		if job.ClientID {
			b = s.named
		}
	}
	spans := s.beginEnqueues(ctx, jobs)
	res, failed := b.DoMany(ctx, jobs)
	stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	bad := false
	for i, r := range res {
		if failed != nil && failed[i] != nil {
			errs[i] = pg.ClientError(failed[i])
		} else {
			stored[i], errs[i] = r.outcome(jobs[i])
		}
		bad = bad || errs[i] != nil
	}
	if !bad {
		errs = nil
	}
	endEnqueues(spans, stored)
	return stored, errs
}

// EnqueueAll stores all jobs in one transaction, or none. at is the index of the job that prevented it, or -1.
func (s *Store) EnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	seen := make(map[[16]byte]bool)
	for i, job := range jobs {
		assignID(job)
		if job.ClientID {
			if seen[job.ID] {
				return nil, i, ojs.ErrDuplicateID(ojs.FormatID(job.ID))
			}
			seen[job.ID] = true
		}
	}
	spans := s.beginEnqueues(ctx, jobs)
	res, err := s.insert(ctx, s.db.Pool, jobs, true)
	if err != nil {
		return nil, -1, pg.ClientError(err)
	}
	stored = make([]*job.Record, len(jobs))
	for i, r := range res {
		if stored[i], err = r.outcome(jobs[i]); err != nil {
			return nil, i, err
		}
	}
	endEnqueues(spans, stored)
	s.afterEnqueue(ctx, res)
	return stored, -1, nil
}

// assignID gives a job its id unless the client has chosen one.
func assignID(j *job.Job) {
	if !j.ClientID {
		j.ID = job.NewID()
	}
}

func (s *Store) flushEnqueue(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	res, err := s.insert(ctx, s.db.Pool, jobs, false)
	if err == nil {
		s.afterEnqueue(ctx, res)
	}
	return res, err
}

// insert stores the jobs whose ids are free; all or nothing if atomic, and then a result that is taken means that
// nothing was stored. Without jobs, as in a batch that was refused whole, there is nothing to do.
func (s *Store) insert(ctx context.Context, db pg.Conn, jobs []*job.Job, atomic bool) ([]enqueued, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	if err := s.knowQueues(ctx, db, jobs); err != nil {
		return nil, err
	}
	res := make([]enqueued, len(jobs))
	todo := make([]int, len(jobs))
	clientIDs := false
	for i, job := range jobs {
		todo[i] = i
		clientIDs = clientIDs || job.ClientID
	}
	for tries := 0; ; {
		err := s.tryInsert(ctx, db, insertion{jobs, todo, res, clientIDs, atomic})
		switch {
		case err == nil, errors.Is(err, errTaken) && atomic:
			return res, nil
		case errors.Is(err, errTaken):
			todo = free(todo, res)
		case pg.IsTransient(err) && db == pg.Conn(s.db.Pool) && tries < maxDeadlocks: // batches with the same ids in another order
			tries++
		case pg.IsNoPartition(err) && db == pg.Conn(s.db.Pool): // inside a transaction nothing can follow an error
			if _, err := s.db.Q.PartitionEnsure(ctx); err != nil {
				return nil, err
			}
		default:
			return nil, err
		}
		if len(todo) == 0 {
			return res, nil
		}
	}
}

func free(todo []int, res []enqueued) []int {
	var left []int
	for _, i := range todo {
		if !res[i].taken {
			left = append(left, i)
		}
	}
	return left
}

// tryInsert is one statement and, only if clients chose ids, a transaction around it: finished jobs hold their ids too,
// and are looked for in a statement of its own after the insert (a new snapshot), or the check would lose to an ack that
// moves the row meanwhile.
func (s *Store) tryInsert(ctx context.Context, db pg.Conn, in insertion) error {
	params := s.insertParams(in.jobs, in.todo)
	if !in.clientIDs {
		rows, err := dbsqlc.New(db).JobInsert(ctx, params)
		if err != nil {
			return err
		}
		in.fill(rows)
		return nil
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if !in.atomic {
			if err := q.SystemLockTimeout(ctx, idPatience); err != nil {
				return err
			}
		}
		rows, err := q.JobInsert(ctx, params)
		if err != nil {
			return err
		}
		done, err := q.JobListDoneIDs(ctx, params.Ids)
		if err != nil {
			return err
		}
		refused := in.fill(rows)
		if in.markTaken(done) || refused && in.atomic {
			return errTaken
		}
		return nil
	})
}

// idPatience is how long a batch waits for transactions that have inserted one of its ids and are still open; then the
// jobs are tried one by one.
const idPatience = "1s"

// maxDeadlocks bounds the tries of one insert. Each deadlock leaves at least one of those who fought with its rows.
const maxDeadlocks = 10

// insertion is one try: the jobs at todo, and where their outcomes go.
type insertion struct {
	jobs      []*job.Job
	todo      []int
	res       []enqueued
	clientIDs bool
	atomic    bool
}

// fill matches rows to jobs; what has no row was refused for its id.
func (in insertion) fill(rows []dbsqlc.JobInsertRow) (refused bool) {
	n := 0 // rows come in order
	for _, i := range in.todo {
		if n < len(rows) && rows[n].ID == in.jobs[i].ID {
			in.res[i] = enqueued{job: newJob(in.jobs[i], &rows[n]), eventType: rows[n].EventType}
			n++
		} else {
			in.res[i] = enqueued{taken: true}
			refused = true
		}
	}
	return refused
}

// markTaken marks the jobs whose ids finished jobs hold. Theirs are in the insert, which therefore has to be undone.
func (in insertion) markTaken(done [][16]byte) bool {
	for _, i := range in.todo {
		if slices.Contains(done, in.jobs[i].ID) {
			in.res[i] = enqueued{taken: true}
		}
	}
	return len(done) > 0
}

// newJob is the stored row as the statement wrote it, without reading it back.
func newJob(j *job.Job, r *dbsqlc.JobInsertRow) *job.Record {
	job := &job.Record{
		ID: r.ID, Type: j.Type, Queue: j.Queue, State: r.State, Priority: j.Priority, MaxAttempts: j.MaxAttempts,
		ReadySeq: r.ReadySeq, DueAt: r.DueAt, CreatedAt: r.CreatedAt, ScheduledAt: r.ScheduledAt, ExpiresAt: r.ExpiresAt,
		TraceID: pg.Text(j.TraceID), Args: j.Args, Meta: j.Meta, Extra: r.Extra,
	}
	if job.Extra == nil {
		job.Extra = j.Extra
	}
	if r.State == string(ojs.StateAvailable) {
		job.EnqueuedAt = r.CreatedAt
	}
	return job
}

func (s *Store) afterEnqueue(ctx context.Context, res []enqueued) {
	places := make([]Place, 0, len(res))
	soonest := time.Duration(-1)
	for _, r := range res {
		if r.job == nil {
			continue
		}
		if r.job.ReadySeq.Valid {
			places = append(places, Place{r.job.Queue, r.job.Priority, r.job.ReadySeq.Int64})
		}
		if r.job.DueAt.Valid {
			if in := max(0, r.job.DueAt.Time.Sub(r.job.CreatedAt.Time)); soonest < 0 || in < soonest {
				soonest = in
			}
		}
	}
	eventlog.Emit(ctx, s.commits, res, insertChange)
	s.BecameAvailable(places)
	if soonest >= 0 {
		s.timer.Schedule(soonest)
	}
	s.commits.Committed()
}

func (s *Store) insertParams(jobs []*job.Job, todo []int) dbsqlc.JobInsertParams {
	n := len(todo)
	p := dbsqlc.JobInsertParams{
		Ids: make([][16]byte, n), Types: make([]string, n), Queues: make([]string, n), Priorities: make([]int16, n),
		MaxAttempts: make([]int64, n), Pending: make([]bool, n),
		ScheduledAt: make([]pgtype.Timestamptz, n), ScheduledInUs: make([]int64, n),
		ExpiresAt: make([]pgtype.Timestamptz, n), ExpiresInUs: make([]int64, n),
		TimeoutMs: make([]int64, n), VisibilityMs: make([]int64, n), GraceMs: make([]int64, n),
		TotalMs: make([]int64, n), TtlMs: make([]int64, n), StallMs: make([]int64, n), ResultTtlS: make([]int64, n),
		TraceIds: make([]string, n), Retry: make([][]byte, n), Args: make([][]byte, n), Meta: make([][]byte, n), Extra: make([][]byte, n),
		Source: cmp.Or(jobs[todo[0]].Source, "api"), Node: s.commits.Node,
	}
	for n, i := range todo {
		j := jobs[i]
		p.Ids[n], p.Types[n], p.Queues[n], p.Priorities[n] = j.ID, j.Type, j.Queue, j.Priority
		p.MaxAttempts[n], p.Pending[n] = j.MaxAttempts, j.Pending
		p.ScheduledAt[n], p.ScheduledInUs[n] = when(j.ScheduledAt)
		p.ExpiresAt[n], p.ExpiresInUs[n] = when(j.ExpiresAt)
		p.TimeoutMs[n], p.VisibilityMs[n], p.GraceMs[n] = j.TimeoutMS, j.VisibilityMS, j.GraceMS
		p.TotalMs[n], p.TtlMs[n], p.StallMs[n], p.ResultTtlS[n] = j.TotalTimeoutMS, j.EnqueueTTLMS, j.HeartbeatTimeoutMS, noResultTTL
		if j.ResultTTL != nil {
			p.ResultTtlS[n] = *j.ResultTTL
		}
		p.TraceIds[n], p.Retry[n], p.Args[n], p.Meta[n], p.Extra[n] = j.TraceID, j.Retry, j.Args, j.Meta, j.Extra
	}
	return p
}

// noResultTTL stands for a job that sets none: -1 means for ever.
const noResultTTL = -2

// when gives an absolute time, or microseconds from the database's now; -1 if it is not relative.
func when(w job.When) (at pgtype.Timestamptz, inUS int64) {
	switch {
	case w.Set && w.Relative:
		return at, w.In.Microseconds()
	case w.Set:
		return pgtype.Timestamptz{Time: w.At, Valid: true}, -1
	}
	return at, -1
}

// knowQueues creates queues that this node has not seen; known ones cost nothing. In a transaction it takes its
// connection, not a second one, and a queue is known only when somebody has created it outside.
func (s *Store) knowQueues(ctx context.Context, db pg.Conn, jobs []*job.Job) error {
	var unknown []string
	for _, job := range jobs {
		if _, known := s.queues.Load(job.Queue); !known && !slices.Contains(unknown, job.Queue) {
			unknown = append(unknown, job.Queue)
		}
	}
	if unknown == nil {
		return nil
	}
	slices.Sort(unknown) // one order for all, or two transactions could wait for each other
	if err := dbsqlc.New(db).QueueInsert(ctx, unknown); err != nil {
		return err
	}
	if db == pg.Conn(s.db.Pool) {
		for _, name := range unknown {
			s.queues.Store(name, struct{}{})
		}
	}
	return nil
}
