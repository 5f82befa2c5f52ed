package queue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"

	"github.com/ojsd/ojsd/ojs"
)

// Enqueue stores a job (docs/reference/http.md, Enqueue). The error of an id that is taken is spec.DuplicateID.
//
// When it returns a job, the job and its event are committed. After spec.OutcomeUnknown it may be stored; a client that chose
// the id can repeat the call safely. A job that a policy has answered with an existing one is no error: Outcome.Deduplicated
// tells. It changes j: ID, UniqueKey, Producer, Lane, inherited timeouts and Outcome.
func (s *Store) Enqueue(ctx context.Context, j *job.Job) (stored *job.Record, err error) {
	// Before the id is assigned and before any lock: a refused job costs no place in a flush. A schema that changes until the
	// insert is not looked at again.
	if _, err := s.checkSchemas(ctx, j); err != nil {
		return nil, err
	}
	assignID(j)
	j.Producer = producerOf(ctx)
	// It may add a trace context to meta, so it comes before the first try, and once.
	span := s.tracer.Enqueue(ctx, j)
	err = s.RetryFull(ctx, j.BlockFor, func() error {
		stored, err = s.tryEnqueue(ctx, j)
		return err
	})
	switch {
	case err != nil:
	case !j.Outcome.Deduplicated:
		span.Accepted(stored.ID, stored.State)
	case stored.Cut(): // it was read together with the answers of others
		if whole, err := s.Get(ctx, stored.ID); err == nil {
			stored = whole
		}
	}
	// Also after an error: a refused job may have dropped others, of which there were too few.
	s.followEnqueued(ctx, j)
	return stored, err
}

// It is one insert, and more of them while the unique key is locked. The error of a full queue leads to another call by
// RetryFull.
func (s *Store) tryEnqueue(ctx context.Context, j *job.Job) (*job.Record, error) {
	enqueuer := s.enqueuer(j)
	res, err := enqueuer.Do(ctx, j)
	if res.busy {
		late := s.retryBusy(ctx, func() bool {
			res, err = enqueuer.Do(ctx, j)
			return res.busy
		})
		err = cmp.Or(err, late)
	}
	if err == nil {
		return res.outcome(j)
	}
	// The answer of the database may be lost although the row is there.
	all, errs := s.lookUpEnqueues(ctx, []*job.Job{j}, []error{err})
	return all[0], errs[0]
}

// enqueuer is the batcher for jobs of one call.
//
// A job that waits in its batcher while the configuration of its queue changes is judged by the new one all the same: insert
// reads it again. Only the claim for waiting fetches (enqueueAndClaim) relies on the choice: its jobs have no bound, no limit and
// no policy.
func (s *Store) enqueuer(jobs ...*job.Job) *batch.Batcher[*job.Job, enqueued] {
	b := s.enqueue
	for _, j := range jobs {
		switch {
		case s.bounded(j.Queue):
			return s.enqueueBounded
		case j.Unique != nil:
			b = s.enqueueUnique
		case (j.ClientID || j.Limit != nil) && b == s.enqueue:
			b = s.enqueueNamed
		}
	}
	return b
}

// enqueueMany is DoMany for jobs of one call.
// Jobs of locked unique keys are tried again together, while those that are done keep their outcome.
func (s *Store) enqueueMany(ctx context.Context, jobs []*job.Job) (res []enqueued, errs []error) {
	enqueuer := s.enqueuer(jobs...)
	res, errs = enqueuer.DoMany(ctx, jobs)
	if !slices.ContainsFunc(res, isBusy) {
		return res, errs
	}
	if errs == nil {
		errs = make([]error, len(jobs))
	}
	late := s.retryBusy(ctx, func() bool {
		var busy []*job.Job
		var at []int
		for i := range res {
			if res[i].busy {
				busy, at = append(busy, jobs[i]), append(at, i)
			}
		}
		more, failed := enqueuer.DoMany(ctx, busy)
		for n, i := range at {
			if res[i] = more[n]; failed != nil {
				errs[i] = failed[n]
			}
		}
		return slices.ContainsFunc(more, isBusy)
	})
	for i := range res {
		if res[i].busy {
			errs[i] = late
		}
	}
	return res, errs
}

func isBusy(e enqueued) bool { return e.busy }

// EnqueueEach stores the jobs that can be stored. errs has the errors of the others; it is nil if none failed.
// Each job is stored, or refused, as if it came alone; some may be committed when others fail.
func (s *Store) EnqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	if errs := s.schemas.CheckEach(ctx, s.db.Q, jobs); errs != nil {
		valid, at := without(jobs, errs)
		stored, failed := s.enqueueEach(ctx, valid)
		return spread(errs, at, stored, failed), errs
	}
	return s.enqueueEach(ctx, jobs)
}

// Jobs whose args violate a schema have been left out by EnqueueEach.
func (s *Store) enqueueEach(ctx context.Context, jobs []*job.Job) (stored []*job.Record, errs []error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	// todo shrinks to the jobs that a queue with the policy to block has refused.
	producer, todo := producerOf(ctx), make([]int, len(jobs))
	for i, job := range jobs {
		assignID(job)
		job.Producer = producer
		todo[i] = i
	}
	spans := s.beginEnqueues(ctx, jobs)
	stored, errs = make([]*job.Record, len(jobs)), make([]error, len(jobs))
	// All jobs of a call have the same BlockFor. Only those without room are tried again; its error is one of errs.
	_ = s.retryFull(ctx, jobs[0].BlockFor, func() error {
		s.tryEnqueueEach(ctx, jobs, todo, stored, errs)
		todo = slices.DeleteFunc(todo, func(i int) bool { _, blocks := blockedQueue(errs[i]); return !blocks })
		if len(todo) > 0 {
			return errs[todo[0]]
		}
		return nil
	})
	s.CountRefused(ctx, errs...)
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		errs = nil
	}
	endEnqueues(spans, jobs, stored)
	s.followEnqueued(ctx, jobs...)
	return stored, errs
}

// tryEnqueueEach tries the jobs at these indexes, and sets their outcomes.
func (s *Store) tryEnqueueEach(ctx context.Context, jobs []*job.Job, todo []int, stored []*job.Record, errs []error) {
	part := make([]*job.Job, len(todo))
	for n, i := range todo {
		part[n] = jobs[i]
	}
	res, failed := s.enqueueMany(ctx, part)
	var settled []*job.Record
	if failed != nil {
		settled, failed = s.lookUpEnqueues(ctx, part, failed)
	}
	for n, i := range todo {
		if failed != nil && (failed[n] != nil || settled[n] != nil) {
			stored[i], errs[i] = settled[n], failed[n]
		} else {
			stored[i], errs[i] = res[n].outcome(part[n])
		}
	}
}

// EnqueueAll stores all jobs in one transaction, or none. at is the index of the job that was refused, or -1.
//
// Unlike the others it has a transaction of its own and shares no flush, so one refused job costs nobody else. Two jobs with one
// client-chosen id are refused before anything is sent.
func (s *Store) EnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	if at, err := s.checkSchemas(ctx, jobs...); err != nil {
		return nil, at, err
	}
	ids, producer := make(map[[16]byte]bool), producerOf(ctx)
	for i, job := range jobs {
		assignID(job)
		job.Producer = producer
		if job.ClientID {
			if ids[job.ID] {
				return nil, i, spec.DuplicateID(spec.FormatID(job.ID))
			}
			ids[job.ID] = true
		}
	}
	if len(jobs) == 0 {
		return nil, -1, nil
	}
	spans := s.beginEnqueues(ctx, jobs)
	err = s.RetryFull(ctx, jobs[0].BlockFor, func() error {
		stored, at, err = s.tryEnqueueAll(ctx, jobs)
		return err
	})
	if err != nil {
		return nil, at, err
	}
	endEnqueues(spans, jobs, stored)
	s.followEnqueued(ctx, jobs...)
	return stored, -1, nil
}

// It emits the events itself, since no flush does. An error for one job is returned with its index, and nothing was stored.
func (s *Store) tryEnqueueAll(ctx context.Context, jobs []*job.Job) (stored []*job.Record, at int, err error) {
	res, err := s.insert(ctx, s.db.Pool, newInsertion(jobs, true))
	if err != nil {
		stored, err = s.lookUpEnqueueAll(ctx, jobs, err)
		return stored, -1, err
	}
	stored = make([]*job.Record, len(jobs))
	// One refused job means that insert has rolled everything back.
	for i := range res {
		if stored[i], err = res[i].outcome(jobs[i]); err != nil {
			return nil, i, err
		}
	}
	s.afterEnqueue(ctx, res, nil)
	return stored, -1, nil
}

// assignID gives a job its id unless the client has chosen one, and its unique key if it has a policy.
// Each call makes a new id, unless the client has chosen one: a transaction that is tried again inserts other ids. The key stays
// as it is.
func assignID(j *job.Job) {
	if !j.ClientID {
		j.ID = job.NewID()
	}
	AssignUniqueKeys(j)
}

// flushEnqueue stores jobs whose ids were made here, and gives them to waiting fetches in the same transaction.
func (s *Store) flushEnqueue(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	// Before handoff, because a fetch of a tenant may only get jobs of its lanes. insert does it again, with the same result.
	s.assignLanes(ctx, s.db.Pool, jobs)
	if h := s.claimForWaiting(jobs); h != nil {
		if res, ok, err := s.enqueueAndClaim(ctx, jobs, h); ok {
			return res, err
		}
	}
	return s.flushEnqueueNamed(ctx, jobs)
}

// flushEnqueueNamed stores jobs some of whose ids clients have chosen.
func (s *Store) flushEnqueueNamed(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	return s.flushInsertion(ctx, newInsertion(jobs, false))
}

// Nothing is emitted after an error, also if the insert may have committed: lookUpEnqueues does it when that is known.
func (s *Store) flushInsertion(ctx context.Context, in *insertion) ([]enqueued, error) {
	res, err := s.insert(ctx, s.db.Pool, in)
	if err == nil {
		s.afterEnqueue(ctx, res, nil)
	}
	return res, err
}

// afterEnqueue emits the events of stored jobs and wakes fetches for those that are available and not claimed.
//
// claimed are jobs that a handoff has claimed in the same transaction: waking a fetch for them would make it claim in vain.
func (s *Store) afterEnqueue(ctx context.Context, res []enqueued, claimed map[[16]byte]bool) {
	a := afterCommit{places: make([]Place, 0, len(res))}
	for i := range res {
		r := &res[i]
		if r.job != nil && !claimed[r.job.ID] && !r.over {
			a.add(r.job.Queue, r.job.Lane, r.job.Priority, r.job.ReadySeq, pgtype.Text{})
			a.due(r.job.DueAt, r.job.CreatedAt)
		}
		for _, old := range r.replaced {
			s.awaiting.ended(old.ID)
			a.add("", "", 0, pgtype.Int8{}, old.Cron)
		}
		for _, old := range r.dropped {
			s.awaiting.ended(old.ID)
			a.add("", "", 0, pgtype.Int8{}, old.Cron)
		}
	}
	// Events before fetches: the log line of an enqueue stands before that of its start.
	eventlog.Emit(ctx, s.commits, res, insertChange)
	s.notify(ctx, a)
	s.commits.Committed()
}

// What the configuration of a queue says about new jobs (docs/reference/queues.md, Configuration). It is applied where the insert
// begins, not where the call arrives: a job that waited for its flush while its queue was drained is refused. Jobs of queues without
// configuration cost a look into a map, and none at all if no queue has one.

// producerKey is the key of the principal in a context.
// The API layers set it after authentication; the store copies it into job.Job.Producer, because a flush runs in the context of
// one of its callers.
type producerKey struct{}

// WithProducer returns the context of calls that a principal makes; "": nobody has authenticated.
func WithProducer(ctx context.Context, principal string) context.Context {
	if principal == "" {
		return ctx
	}
	return context.WithValue(ctx, producerKey{}, principal)
}

func producerOf(ctx context.Context) string {
	principal, _ := ctx.Value(producerKey{}).(string)
	return principal
}

// Admit checks jobs that are going to be stored later, as steps of a workflow, and gives each what it inherits of its queue. at is the index
// of the first that is refused.
//
// Nothing is stored. Package workflow marks the jobs of later steps as admitted then, and their later insert does not check type,
// producer and draining again: a queue that drains must not end a workflow that it has accepted.
func (s *Store) Admit(ctx context.Context, jobs []*job.Job) (at int, err error) {
	for _, j := range jobs {
		j.Producer = producerOf(ctx)
	}
	in := newInsertion(jobs, true)
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	if err := s.acceptByQueue(ctx, s.db.Pool, in); err != nil {
		return -1, err
	}
	for i := range in.res {
		if in.res[i].refused != nil {
			return i, in.res[i].refused
		}
	}
	return -1, nil
}

// acceptByQueue refuses jobs that their queues do not take, and gives the others the timeouts that they inherit. Refused jobs are no longer to do;
// of an atomic insert, none is.
//
// It runs once per insert and not once per try: a deadlock does not read the configuration again.
func (s *Store) acceptByQueue(ctx context.Context, db pg.Conn, in *insertion) error {
	if s.config.StrictQueues {
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
	} else if !s.config.StrictQueues {
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
// On the pool it is at most a second old (queueconfig.Settled). In the transaction of a caller it is what was read last, because
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

// Inherit gives a job the timeouts that it has of its queue, as far as this node knows the queue.
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

// maxFairKey bounds the bytes of a fairness key in a lane. A longer one is replaced by its hash.
// The lane is part of the key of index jobs_fetch, which has a limit of about 2.7 kB for an entry, and of every event of the job.
const maxFairKey = 128

// maxMetas bounds the metas that are read at once, of at most 64 KiB each.
// They are read in the deletion of a queue that moves its jobs: 6.25 MiB at most.
const maxMetas = 100

// assignLanes puts jobs of fair queues into the lane of their fairness key, within that of their tenant. What the node does not know
// yet of a queue does no harm: the jobs wait with those without a key.
//
// It may run twice for a job, and keeps the tenant, which is the first part of the lane. A change of the configuration leaves
// stored jobs in their lanes.
func (s *Store) assignLanes(ctx context.Context, db pg.Conn, jobs []*job.Job) {
	if s.isPool(db) {
		_, _ = s.configured.View(ctx) // the first call reads the configurations; the insert itself tells whether the database answers
	}
	for _, j := range jobs {
		if s.isFair(j.Queue) {
			j.Lane = job.Lane(job.TenantOf(j.Lane), s.fairKeyIn(j.Queue, j.Meta))
		}
	}
}

// isFair reports whether a queue has lanes of fairness keys, as far as this node knows.
func (s *Store) isFair(queue string) bool {
	q := s.configured.Known(queue)
	return q != nil && q.Config.Fairness != nil
}

// fairKeyIn is the fairness key that a job with this meta has in a queue; "": none.
func (s *Store) fairKeyIn(queue string, meta []byte) string {
	if q := s.configured.Known(queue); q != nil && q.Config.Fairness != nil {
		return fairKey(q.Config.Fairness, meta)
	}
	return ""
}

// fairKeys are those of stored jobs in a queue, in their order; nil if the queue is not fair.
// A job that has gone meanwhile has the key ""; the statement that moves jobs does not find it either.
func (s *Store) fairKeys(ctx context.Context, queue string, ids [][16]byte) ([]string, error) {
	if !s.isFair(queue) {
		return nil, nil
	}
	keys := make([]string, 0, len(ids))
	for part := range slices.Chunk(ids, maxMetas) {
		rows, err := s.db.Q.JobListMeta(ctx, part)
		if err != nil {
			return nil, err
		}
		found := make(map[[16]byte]string, len(rows))
		for _, r := range rows {
			found[r.ID] = s.fairKeyIn(queue, r.Meta)
		}
		for _, id := range part {
			keys = append(keys, found[id])
		}
	}
	return keys, nil
}

// fairKey is the value of the fairness key in the meta of a job; "": it has none, or the queue is fair between tenants only. The
// function ojs.job_lane is the same in SQL.
// Objects and arrays are no keys. Numbers and booleans are taken as they are written, so 1 and 1.0 are two keys.
func fairKey(f *queueconfig.Fairness, meta []byte) string {
	name, ok := strings.CutPrefix(f.FairKey, "meta.")
	if !ok || len(meta) == 0 {
		return ""
	}
	v := jsonread.Present(jsonread.Find(meta, name))
	if v == nil || v[0] == '{' || v[0] == '[' {
		return ""
	}
	key, isText := jsonread.Text(v)
	if !isText {
		key = string(v)
	}
	// NUL cannot be stored in a text of PostgreSQL.
	if len(key) > maxFairKey || strings.ContainsRune(key, 0) {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	return key
}

// weights are those of the lanes of a queue.
// A claim asks for them each time it begins.
func (s *Store) weights(queue string) weights {
	q := s.configured.Known(queue)
	if q == nil || q.Config.Fairness == nil {
		return weights{}
	}
	f := q.Config.Fairness
	return weights{ofTenants: f.FairKey == "tenant", of: f.Weights}
}

// checkSchemas refuses jobs whose args violate a schema; at is the index of the first one.
// It runs outside of flushes and transactions, because a check may take long (schema/compile.go bounds it).
func (s *Store) checkSchemas(ctx context.Context, jobs ...*job.Job) (at int, err error) {
	at, err = s.schemas.Check(ctx, s.db.Q, jobs...)
	return at, pg.ClientError(err)
}

// without are the jobs that have no error, and their indexes.
func without(jobs []*job.Job, errs []error) (valid []*job.Job, at []int) {
	for i, j := range jobs {
		if errs[i] == nil {
			valid, at = append(valid, j), append(at, i)
		}
	}
	return valid, at
}

// spread puts the outcomes of the jobs at some indexes among the errors of the others.
func spread(errs []error, at []int, stored []*job.Record, failed []error) []*job.Record {
	all := make([]*job.Record, len(errs))
	for n, i := range at {
		all[i] = stored[n]
		if failed != nil {
			errs[i] = failed[n]
		}
	}
	return all
}

// beginEnqueues starts the spans of jobs that will be stored; nil if none are recorded.
// Most nodes record none, hence the slice that is made late.
func (s *Store) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, job := range jobs {
		span := s.tracer.Enqueue(ctx, job)
		if !span.Begun() {
			continue
		}
		if spans == nil {
			spans = make([]tracing.Enqueue, len(jobs))
		}
		spans[i] = span
	}
	return spans
}

// beginEnqueues does the same in a transaction. When the transaction is tried again, it returns the spans of the first try.
// Otherwise a deadlock would leave spans that nobody ends.
func (t *Tx) beginEnqueues(ctx context.Context, jobs []*job.Job) []tracing.Enqueue {
	var spans []tracing.Enqueue
	for i, j := range jobs {
		span, begun := t.spans[j]
		if !begun {
			if span = t.store.tracer.Enqueue(ctx, j); !span.Begun() {
				continue
			}
			if t.spans == nil {
				t.spans = map[*job.Job]tracing.Enqueue{}
			}
			t.spans[j] = span
		}
		if spans == nil {
			spans = make([]tracing.Enqueue, len(jobs))
		}
		spans[i] = span
	}
	return spans
}

// endEnqueues ends the spans of the jobs that were stored.
func endEnqueues(spans []tracing.Enqueue, jobs []*job.Job, stored []*job.Record) {
	for i, span := range spans {
		if stored[i] != nil && !jobs[i].Outcome.Deduplicated {
			span.Accepted(stored[i].ID, stored[i].State)
		}
	}
}
