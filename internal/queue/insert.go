package queue

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// enqueued is the outcome of one insert.
//
// The zero value means that nothing was decided yet. insert fills one for each job; a later try of the same insert starts it
// anew.
type enqueued struct {
	// nil: the job was not stored. It is made of the job and the columns that the statement has chosen, not read back.
	job *job.Record
	// What the statement has written: job.enqueued, job.scheduled or, for a pending job, an internal event.
	eventType string
	taken     bool // another job has the id

	// Of a job with a unique policy.
	refused  *ojs.Error    // an equivalent job exists, or the queue does not take the job
	existing *job.Record   // the equivalent job is the answer
	replaced []*job.Record // jobs that were cancelled for this one
	// The row existed, so its events are emitted, but no fetch is woken for it.
	over bool // a later job of the same insert has replaced this one, or taken its place
	// Only with insertion.tryLocks. The caller tries again with later flushes (retryLockedKeys).
	keyLocked bool // another transaction has locked the key: nothing was decided

	// Of a job for a bounded queue.
	full *ojs.Error // there is no room for it
	// All that a queue has dropped are with one job of the insert; see boundedQueue.judged.
	dropped []dbsqlc.JobDiscardWaitingRow // jobs that were discarded for this one and others
}

// outcome is the answer of the caller.
// It sets Deduplicated each time, because an earlier try may have set it.
func (e *enqueued) outcome(j *job.Job) (*job.Record, error) {
	j.Outcome.Deduplicated = false
	switch {
	case e.taken:
		return nil, spec.DuplicateID(spec.FormatID(j.ID))
	case e.refused != nil:
		return nil, e.refused
	case e.full != nil:
		return nil, e.full
	case e.existing != nil:
		j.Outcome.Deduplicated = true
		return e.existing, nil
	}
	return e.job, nil
}

// flushEnqueue stores jobs whose ids were made here, and gives them to waiting fetches in the same transaction.
func (s *Store) flushEnqueue(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	// Before the enqueue claim, because a fetch of a tenant may only get jobs of its lanes. insert does it again, with the same result.
	s.assignLanes(ctx, s.db.Pool, jobs)
	if h := s.claimForWaiting(jobs); h != nil {
		if res, ok, err := s.enqueueAndClaim(ctx, jobs, h); ok {
			return res, err
		}
	}
	return s.flushInsertion(ctx, newInsertion(jobs, false))
}

// flushInsertion emits nothing after an error, also if the insert may have committed: lookUpEnqueues does it when that is known.
func (s *Store) flushInsertion(ctx context.Context, in *insertion) ([]enqueued, error) {
	res, err := s.insert(ctx, s.db.Pool, in)
	if err == nil {
		s.afterEnqueue(ctx, res, nil)
	}
	return res, err
}

// errTaken rolls back an insert because finished jobs have some of its client-chosen ids, or because a job of an atomic insert was
// refused. errGone rolls back one because the job that should have been an answer was deleted meanwhile. errFull rolls back one because
// there is no room for a job with a unique policy, which has prevented or replaced others.
var (
	// errTaken and the other two do not leave this package: insert answers each by another try, or by the outcomes in insertion.res.
	errTaken = errors.New("id is in use")
	errFull  = errors.New("a queue is full")
	errGone  = errors.New("an equivalent job was deleted")
)

const (
	// idLockTimeout is how long a batch waits for an open transaction that has inserted one of its ids. After it the jobs are
	// tried one by one.
	// Statements of this server hold such a row for milliseconds, so a longer wait is for a transaction of an application.
	// Without a bound one of them would stop all enqueues that share the batcher.
	idLockTimeout = "1s"

	// maxDeadlocks bounds the tries of one insert. After each deadlock at least one of the transactions commits.
	maxDeadlocks = 10

	// noResultTTL stands for a job that sets no result TTL; -1 means without limit.
	noResultTTL = -2
)

// insert stores the jobs whose ids are free and whose unique policies permit it. If atomic it stores all of them or none; a
// result that is taken or refused then means that none was stored. There may be no jobs: a batch of which every job was refused
// still commits its idempotency key.
//
// It may be called on the pool or on a transaction. On the pool everything is committed when it returns without an error; an
// error of a broken connection is a *pg.Unknown. Several nodes may insert the same ids, keys or queues at once: unique indexes,
// advisory locks and the rows of queues decide. It emits nothing: callers call afterEnqueue after the commit.
//
// The steps before the loop run once. They have to come in this order: acceptByQueue leaves out jobs whose queues must not be created,
// and a limit is stored in the row of a queue.
func (s *Store) insert(ctx context.Context, db pg.Conn, in *insertion) ([]enqueued, error) {
	if len(in.jobs) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	s.assignLanes(ctx, db, in.jobs)
	if err := s.acceptByQueue(ctx, db, in); err != nil {
		return nil, err
	}
	if err := s.createQueues(ctx, db, in.open()); err != nil {
		return nil, err
	}
	if err := s.setQueueLimits(ctx, db, in); err != nil {
		return nil, err
	}
	view, err := s.view(ctx, db)
	if err != nil {
		return nil, err
	}
	in.bounds = s.boundsOf(view, in.jobs)
	pooled := s.isPool(db) // in a caller's transaction no statement can follow an error
	for tries := 0; len(in.todo) > 0; {
		if pooled { // Write marks an error after which the outcome is unknown; the owner of a transaction marks its own
			err = s.db.Write(ctx, func(conn *pgxpool.Conn) error { return s.tryInsert(ctx, conn, in) })
		} else {
			err = s.tryInsert(ctx, db, in)
		}
		switch {
		case err == nil, errors.Is(err, errTaken) && in.atomic:
			return in.res, nil
		case errors.Is(err, errTaken):
			// They leave their room to others.
			in.todo, in.full = append(in.todo, in.full...), nil
			slices.Sort(in.todo)
			in.todo = slices.DeleteFunc(in.todo, func(i int) bool { return in.res[i].taken })
		case errors.Is(err, errFull):
			// They are remembered, because a job that is dropped for its id later may leave room for them.
			in.todo = slices.DeleteFunc(in.todo, func(i int) bool {
				if in.res[i].full != nil {
					in.full = append(in.full, i)
				}
				return in.res[i].full != nil
			})
		case errors.Is(err, errGone) && tries < maxDeadlocks:
			tries++
		case pg.IsTransient(err) && pooled && tries < maxDeadlocks: // a deadlock with a batch of the same ids in another order
			tries++
		// Creation is idempotent, and the next try finds the partition: this case cannot repeat for ever.
		case pg.IsNoPartition(err) && pooled:
			if _, err := s.db.Q.PartitionEnsure(ctx); err != nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
	return in.res, nil
}

// What the configuration of a queue says about new jobs (docs/reference/queues.md, Configuration). It is applied where the insert
// begins, not where the call arrives: a job that waited for its flush while its queue was drained is refused. Jobs of queues without
// configuration cost a look into a map, and none at all if no queue has one.

// acceptByQueue refuses jobs that their queues do not take, and gives the others what they inherit. Refused jobs are no longer to do; of
// an atomic insert, none is.
//
// It runs once per insert and not once per try: a deadlock does not read the configuration again.
func (s *Store) acceptByQueue(ctx context.Context, db pg.Conn, in *insertion) error {
	if s.config.Jobs.StrictQueues {
		if err := s.refuseUnknown(ctx, db, in); err != nil {
			return err
		}
	}
	view, err := s.view(ctx, db)
	if err != nil {
		return err
	}
	// A plain view has no queue with a configuration. Then only refuseUnknown can have refused something.
	if !view.Plain() {
		for _, i := range in.todo {
			if q := view.Queue(in.jobs[i].Queue); q != nil && in.res[i].refused == nil {
				in.res[i].refused = admission(q, in.jobs[i])
			}
		}
	} else if !s.config.Jobs.StrictQueues {
		return nil
	}
	refused := func(i int) bool { return in.res[i].refused != nil }
	if in.atomic && slices.ContainsFunc(in.todo, refused) {
		in.todo = nil
	}
	in.todo = slices.DeleteFunc(in.todo, refused)
	return nil
}

// view is what is known of queues.
// On the pool it is at most a second old (loop.Settled). In the transaction of a caller it is what was read last, because
// a look would need a second connection.
func (s *Store) view(ctx context.Context, db pg.Conn) (*queueconfig.View, error) {
	if !s.isPool(db) {
		return s.configured.InTx(ctx, dbsqlc.New(db))
	}
	return s.configured.View(ctx)
}

// admission is why a queue does not take a job. nil: it takes it, and the job has what it inherits.
// The order of the cases is the order in which a client sees the errors. A producer without a name is not checked: authentication
// is off then.
func admission(q *queueconfig.Queue, j *job.Job) *ojs.Error {
	if !j.Admitted {
		switch {
		case q.Draining():
			return spec.With(spec.QueuePaused(q.Name), "status", queueconfig.Draining)
		case !q.Config.AllowsType(j.Type):
			return spec.JobTypeNotAllowed(q.Name, j.Type)
		case j.Producer != "" && !q.Config.AllowsProducer(j.Producer):
			return spec.ProducerNotAllowed(q.Name)
		}
	}
	inherit(q, j)
	return nil
}

// Inherit gives a job what it inherits of its queue, such as timeouts, as far as this node knows the queue.
// Crons call it before they choose their own default, which is longer than that of the server.
func (s *Store) Inherit(j *job.Job) {
	if q := s.configured.Known(j.Queue); q != nil {
		inherit(q, j)
	}
}

// inherit never replaces what the job sets itself; 0 is not set. It may run twice for a job, as the second time finds the values
// of the first.
func inherit(q *queueconfig.Queue, j *job.Job) {
	if j.TimeoutMS == 0 && q.Config.DefaultTimeoutMS != nil {
		j.TimeoutMS = *q.Config.DefaultTimeoutMS
	}
	if j.VisibilityMS == 0 && q.Config.VisibilityTimeoutMS != nil {
		j.VisibilityMS = *q.Config.VisibilityTimeoutMS
	}
}

// refuseUnknown refuses jobs of queues that nobody has created, with strict queues.
func (s *Store) refuseUnknown(ctx context.Context, db pg.Conn, in *insertion) error {
	// A row that is deleted while the statement runs must not be taken for known for an hour from the end of it.
	now := time.Now() // before the statement
	var unknown []string
	for _, i := range in.todo {
		if j := in.jobs[i]; !j.Admitted && !s.queues.has(j.Queue, now) && !slices.Contains(unknown, j.Queue) {
			unknown = append(unknown, j.Queue)
		}
	}
	if unknown == nil {
		return nil
	}
	// Known queues are not added to s.queues here: createQueues does that, which also moves used_at.
	found, err := dbsqlc.New(db).QueueListKnown(ctx, unknown)
	if err != nil {
		return err
	}
	for _, i := range in.todo {
		if name := in.jobs[i].Queue; slices.Contains(unknown, name) && !slices.Contains(found, name) && !in.jobs[i].Admitted {
			in.res[i].refused = spec.NotFound("queue", name)
		}
	}
	return nil
}

// createQueues creates the queues that this node does not know. In a transaction it uses that connection, and does not
// remember the queues, because the transaction may roll back.
//
// On the pool it commits before the insert. A queue without jobs may stay behind if that fails, which is harmless. Inside of the
// same transaction the row would stay locked until the commit, and producers of a new queue would follow one another.
func (s *Store) createQueues(ctx context.Context, db pg.Conn, jobs []*job.Job) error {
	var unknown []string
	now := time.Now() // before the statement
	for _, j := range jobs {
		if !s.queues.has(j.Queue, now) && !slices.Contains(unknown, j.Queue) {
			unknown = append(unknown, j.Queue)
		}
	}
	if unknown == nil {
		return nil
	}
	slices.Sort(unknown) // in the same order everywhere, or two transactions could deadlock
	if err := dbsqlc.New(db).QueueInsert(ctx, unknown); err != nil {
		return err
	}
	if s.isPool(db) {
		s.queues.add(unknown, now)
	}
	return nil
}

// isPool reports whether db is the pool and not the transaction of a caller.
func (s *Store) isPool(db pg.Conn) bool { return db == pg.Conn(s.db.Pool) }

// tryInsert is one try of an insert: one statement or, if it decides about more than the new rows, a transaction. The cases are ordered by
// what they lock: unique keys include bounds, and bounds include client-chosen ids.
func (s *Store) tryInsert(ctx context.Context, db pg.Conn, in *insertion) error {
	if !in.unique && in.bounds == nil && !in.clientIDs {
		return in.storeAll(ctx, db, s.commits.Node)
	}
	return pg.InTx(ctx, db, func(tx pgx.Tx) error {
		switch {
		case in.unique:
			return s.insertUnique(ctx, tx, in)
		case in.bounds != nil:
			return s.insertBounded(ctx, tx, in)
		}
		// An atomic call shares its statement with nobody, so it may wait for an id as long as the transaction may.
		if !in.atomic {
			if err := dbsqlc.New(tx).SystemLockTimeout(ctx, idLockTimeout); err != nil {
				return err
			}
		}
		return in.storeAll(ctx, tx, s.commits.Node)
	})
}

// insertion is an insert with the outcomes so far.
//
// It belongs to one call of insert and one goroutine.
type insertion struct {
	jobs []*job.Job
	todo []int // indexes of the jobs that the next try stores
	// In the order of jobs, as all of these slices of indexes refer to jobs.
	res       []enqueued
	clientIDs bool // clients have chosen some of the ids
	unique    bool // some jobs have a unique policy
	// All or none. Then todo is whole or empty: a refused job ends the insert.
	atomic bool

	// nil: none, as for nearly all inserts.
	bounds map[string]*queueconfig.Backpressure // of the queues that have a bound
	full   []int                                // indexes of jobs without room, left out until an id is found to be taken

	// Only flushes set it: a call with a transaction of its own waits for the keys.
	tryLocks    bool   // leave jobs out whose unique keys are locked
	lockTimeout string // of the transaction, for jobs with unique policies; "": that of the caller
}

// newInsertion waits for locks as its kind of call does; callers that wait in another way change tryLocks and lockTimeout afterwards.
func newInsertion(jobs []*job.Job, atomic bool) *insertion {
	in := &insertion{jobs: jobs, todo: make([]int, len(jobs)), res: make([]enqueued, len(jobs)), atomic: atomic}
	for i, j := range jobs {
		in.todo[i] = i
		in.clientIDs, in.unique = in.clientIDs || j.ClientID, in.unique || j.Unique != nil
	}
	if in.lockTimeout = idLockTimeout; atomic {
		in.lockTimeout = uniqueLockTimeout
	}
	return in
}

// open are the jobs of the next try.
func (in *insertion) open() []*job.Job {
	if len(in.todo) == len(in.jobs) {
		return in.jobs
	}
	jobs := make([]*job.Job, len(in.todo))
	for n, i := range in.todo {
		jobs[n] = in.jobs[i]
	}
	return jobs
}

// findTaken finds the jobs whose ids are in use, before they take room. storeAll looks again, because another transaction may commit one
// of the ids meanwhile.
// A job that is taken is found here nearly always, so that it neither drops nor replaces another one.
func (in *insertion) findTaken(ctx context.Context, q *dbsqlc.Queries) error {
	var ids [][16]byte
	for _, i := range in.todo {
		if in.jobs[i].ClientID {
			ids = append(ids, in.jobs[i].ID)
		}
	}
	if ids == nil {
		return nil
	}
	taken, err := q.JobListTaken(ctx, ids)
	if err == nil && in.markTaken(taken) {
		err = errTaken
	}
	return err
}

// storeAll stores the jobs of this try. Only ids that clients have chosen can be taken; db is a transaction then. Those of finished jobs
// are read after the insert, in a statement of their own: its new snapshot includes an ack that moved the row of the id to jobs_done while
// the insert ran.
//
// A job whose id is in use is left out if the others do not depend on it. With unique keys and bounds they do: the decision about them has
// counted it.
func (in *insertion) storeAll(ctx context.Context, db pg.Conn, node int32) error {
	if len(in.todo) == 0 {
		return nil
	}
	if !in.clientIDs {
		rows, err := in.statement(ctx, node)(db)
		if err == nil {
			in.fill(rows)
		}
		return err
	}
	q, params := dbsqlc.New(db), in.params(node)
	rows, err := q.JobInsert(ctx, params)
	if err != nil {
		return err
	}
	done, err := q.JobListDoneIDs(ctx, params.Ids)
	if err != nil {
		return err
	}
	refused := in.fill(rows)
	if in.markTaken(done) || refused && (in.atomic || in.unique || in.bounds != nil) {
		return errTaken
	}
	return nil
}

// fill matches rows, which come in the order of the jobs, to jobs. A job without a row has an id that is taken.
// The statement returns the rows in the order of its arrays, as one pass without a sort gives them, and leaves some out. So one
// pass over both is enough.
func (in *insertion) fill(rows []dbsqlc.JobInsertRow) (refused bool) {
	n := 0
	for _, i := range in.todo {
		if n < len(rows) && rows[n].ID == in.jobs[i].ID {
			in.res[i] = enqueued{job: newRecord(in.jobs[i], &rows[n]), eventType: rows[n].EventType}
			n++
		} else {
			in.res[i] = enqueued{taken: true}
			refused = true
		}
	}
	return refused
}

// markTaken marks the jobs whose ids finished jobs have. The insert has stored these jobs and must be rolled back.
// done is short: normally empty, at most the ids of one flush.
func (in *insertion) markTaken(done [][16]byte) bool {
	for _, i := range in.todo {
		if slices.Contains(done, in.jobs[i].ID) {
			in.res[i] = enqueued{taken: true}
		}
	}
	return len(done) > 0
}

// params are the jobs of the next try as columns. All have the source of the first: only crons set one, and a cron inserts in a
// transaction of its own.
//
// A value that is not set is sent as one that no job can have (0, -1, -2 or an empty text), which the statement turns to NULL:
// the generated parameters are arrays of values that cannot be NULL.
func (in *insertion) params(node int32) dbsqlc.JobInsertParams {
	n := len(in.todo)
	p := dbsqlc.JobInsertParams{
		Ids: make([][16]byte, n), Types: make([]string, n), Queues: make([]string, n), Priorities: make([]int16, n),
		MaxAttempts: make([]int64, n), Pending: make([]bool, n), ScheduledAt: make([]pgtype.Timestamptz, n),
		ScheduledInUs: make([]int64, n), ExpiresAt: make([]pgtype.Timestamptz, n), ExpiresInUs: make([]int64, n),
		TimeoutMs: make([]int64, n), VisibilityMs: make([]int64, n), GraceMs: make([]int64, n), TotalMs: make([]int64, n),
		TtlMs: make([]int64, n), StallMs: make([]int64, n), ResultTtlS: make([]int64, n), TraceIds: make([]string, n),
		Retry: make([][]byte, n), Args: make([][]byte, n), Meta: make([][]byte, n), Extra: make([][]byte, n), Sizes: make([]int32, n),
		WorkflowIds: make([][16]byte, n), UniqueKeys: make([]string, n), Lanes: make([]string, n), LimitKeys: make([]string, n),
		LimitPolicies: make([][]byte, n), OnLimits: make([]string, n), OnExhaustions: make([]string, n),
		Source: cmp.Or(in.jobs[in.todo[0]].Source, "api"), Node: node,
	}
	for n, i := range in.todo {
		j := in.jobs[i]
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
		p.Sizes[n], p.WorkflowIds[n], p.UniqueKeys[n] = j.StoredSize(), j.WorkflowID, j.UniqueKey
		p.Lanes[n], p.LimitKeys[n], p.OnLimits[n], p.OnExhaustions[n] = j.Lane, j.LimitKey, j.OnLimit, j.OnExhaustion
		if j.LimitKey != "" {
			p.LimitPolicies[n] = j.Limit.Stored()
		}
	}
	return p
}

// statement is the insert of jobs without client-chosen ids.
//
// It returns a function, because an enqueue claim runs it in a pipeline, where each step is called twice (pg.Pipeline). The arrays are
// built once.
func (in *insertion) statement(ctx context.Context, node int32) func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) {
	switch {
	case !in.plain():
		params := in.params(node)
		return func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) { return dbsqlc.New(db).JobInsert(ctx, params) }
	case in.alike():
		params := in.alikeParams(node)
		return func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) {
			rows, err := dbsqlc.New(db).JobInsertAlike(ctx, params)
			return sliceutil.Map(rows, func(r dbsqlc.JobInsertAlikeRow) dbsqlc.JobInsertRow {
				return plainRow(dbsqlc.JobInsertPlainRow(r))
			}), err
		}
	default:
		params := in.plainParams(node)
		return func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) {
			rows, err := dbsqlc.New(db).JobInsertPlain(ctx, params)
			return sliceutil.Map(rows, plainRow), err
		}
	}
}

// plainRow is what JobInsert would return of a plain job, which is available.
func plainRow(r dbsqlc.JobInsertPlainRow) dbsqlc.JobInsertRow {
	return dbsqlc.JobInsertRow{ID: r.ID, State: string(ojs.StateAvailable), ReadySeq: r.ReadySeq, CreatedAt: r.CreatedAt,
		EventType: ojs.EventJobEnqueued}
}

// plain reports whether JobInsertPlain can store the jobs.
// A new attribute of jobs that has a column of its own belongs here, too: plainParams and alikeParams do not send it.
func (in *insertion) plain() bool {
	for _, i := range in.todo {
		j := in.jobs[i]
		if j.ClientID || j.WorkflowID != [16]byte{} || j.UniqueKey != "" || j.Lane != "" || j.LimitKey != "" || j.OnExhaustion != "" ||
			j.Pending || j.ScheduledAt.Set || j.ExpiresAt.Set || j.ResultTTL != nil ||
			j.GraceMS|j.TotalTimeoutMS|j.EnqueueTTLMS|j.HeartbeatTimeoutMS != 0 {
			return false
		}
	}
	return true
}

func (in *insertion) plainParams(node int32) dbsqlc.JobInsertPlainParams {
	n := len(in.todo)
	p := dbsqlc.JobInsertPlainParams{
		Ids: make([][16]byte, n), Types: make([]string, n), Queues: make([]string, n), Priorities: make([]int16, n),
		MaxAttempts: make([]int64, n), TimeoutMs: make([]int64, n), VisibilityMs: make([]int64, n), TraceIds: make([]string, n),
		Retry: make([][]byte, n), Args: make([][]byte, n), Meta: make([][]byte, n), Extra: make([][]byte, n),
		Sizes: make([]int32, n), EventType: ojs.EventJobEnqueued, Source: cmp.Or(in.jobs[in.todo[0]].Source, "api"), Node: node,
	}
	for n, i := range in.todo {
		j := in.jobs[i]
		p.Ids[n], p.Types[n], p.Queues[n], p.Priorities[n], p.MaxAttempts[n] = j.ID, j.Type, j.Queue, j.Priority, j.MaxAttempts
		p.TimeoutMs[n], p.VisibilityMs[n], p.TraceIds[n] = j.TimeoutMS, j.VisibilityMS, j.TraceID
		p.Retry[n], p.Args[n], p.Meta[n], p.Extra[n] = j.Retry, j.Args, j.Meta, j.Extra
		p.Sizes[n] = j.StoredSize()
	}
	return p
}

// when is an absolute time, or microseconds from the database's now; inUS is -1 if the time is not relative.
// Relative times are added by the database, so that they do not depend on the clock of this machine.
func when(w job.When) (at pgtype.Timestamptz, inUS int64) {
	switch {
	case w.Set && w.Relative:
		return at, w.In.Microseconds()
	case w.Set:
		return pgtype.Timestamptz{Time: w.At, Valid: true}, -1
	}
	return at, -1
}

// newRecord is the stored row, made from the job and the columns that the statement has chosen.
// What the statement does not return has the value that was sent.
func newRecord(j *job.Job, r *dbsqlc.JobInsertRow) *job.Record {
	stored := &job.Record{
		ID: r.ID, Type: j.Type, Queue: j.Queue, State: r.State, Priority: j.Priority, MaxAttempts: j.MaxAttempts, ReadySeq: r.ReadySeq,
		DueAt: r.DueAt, CreatedAt: r.CreatedAt, ScheduledAt: r.ScheduledAt, ExpiresAt: r.ExpiresAt, TraceID: pg.Text(j.TraceID),
		WorkflowID: pgtype.UUID{Bytes: j.WorkflowID, Valid: j.WorkflowID != [16]byte{}}, UniqueKey: pg.Text(j.UniqueKey), Lane: j.Lane,
		LimitKey: pg.Text(j.LimitKey), OnLimit: pg.Text(j.OnLimit), Args: j.Args, Meta: j.Meta, Extra: r.Extra,
	}
	if stored.Extra == nil {
		stored.Extra = j.Extra
	}
	if r.State == string(ojs.StateAvailable) {
		stored.EnqueuedAt = r.CreatedAt
	}
	return stored
}

// alike reports whether JobInsertAlike can store the jobs, which are plain: they differ in nothing but id and args.
func (in *insertion) alike() bool {
	first := in.jobs[in.todo[0]]
	for _, i := range in.todo[1:] {
		j := in.jobs[i]
		if j.Type != first.Type || j.Queue != first.Queue || j.Priority != first.Priority || j.MaxAttempts != first.MaxAttempts ||
			j.TimeoutMS != first.TimeoutMS || j.VisibilityMS != first.VisibilityMS || j.TraceID != first.TraceID ||
			j.Source != first.Source ||
			!bytes.Equal(j.Retry, first.Retry) || !bytes.Equal(j.Meta, first.Meta) || !bytes.Equal(j.Extra, first.Extra) ||
			j.StoredSize() != first.StoredSize() {
			return false
		}
	}
	return true
}

func (in *insertion) alikeParams(node int32) dbsqlc.JobInsertAlikeParams {
	n, j := len(in.todo), in.jobs[in.todo[0]]
	p := dbsqlc.JobInsertAlikeParams{
		Ids: make([][16]byte, n), Args: make([][]byte, n), Type: j.Type, Queue: j.Queue, Priority: j.Priority, MaxAttempts: j.MaxAttempts,
		TimeoutMs:    pgtype.Int8{Int64: j.TimeoutMS, Valid: j.TimeoutMS != 0},
		VisibilityMs: pgtype.Int8{Int64: j.VisibilityMS, Valid: j.VisibilityMS != 0}, TraceID: pg.Text(j.TraceID), Retry: j.Retry,
		Meta: j.Meta, Extra: j.Extra, Size: pgtype.Int4{Int32: j.StoredSize(), Valid: j.StoredSize() != 0}, EventType: ojs.EventJobEnqueued,
		Source: cmp.Or(j.Source, "api"), Node: node,
	}
	for n, i := range in.todo {
		p.Ids[n], p.Args[n] = in.jobs[i].ID, in.jobs[i].Args
	}
	return p
}

// afterEnqueue emits the events of stored jobs and wakes fetches for those that are available and not claimed.
//
// claimed are jobs that an enqueue claim has taken in the same transaction: waking a fetch for them would make it claim in vain.
func (s *Store) afterEnqueue(ctx context.Context, res []enqueued, claimed map[[16]byte]bool) {
	a := afterCommit{places: make([]Place, 0, len(res))}
	for i := range res {
		r := &res[i]
		if r.job != nil && !claimed[r.job.ID] && !r.over {
			j := r.job
			a.add(jobChange{
				id: j.ID, queue: j.Queue, lane: j.Lane, priority: j.Priority, state: ojs.JobState(j.State), readySeq: j.ReadySeq,
				dueAt: j.DueAt, now: j.CreatedAt,
			})
		}
		for _, old := range r.replaced {
			a.add(recordChange(old))
		}
		for _, old := range r.dropped {
			a.add(jobChange{id: old.ID, queue: old.Queue, state: ojs.StateDiscarded, cron: old.Cron})
		}
	}
	a.some = true // a claimed job was stored, too
	// Events before fetches: the log line of an enqueue stands before that of its start.
	eventlog.Emit(ctx, s.commits, res, insertChange)
	s.notify(ctx, a)
}
