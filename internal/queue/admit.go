package queue

import (
	"context"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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
	if err := s.admit(ctx, s.db.Pool, in); err != nil {
		return -1, err
	}
	for i := range in.res {
		if in.res[i].refused != nil {
			return i, in.res[i].refused
		}
	}
	return -1, nil
}

// admit refuses jobs that their queues do not take, and gives the others the timeouts that they inherit. Refused jobs are no longer to do;
// of an atomic insert, none is.
//
// It runs once per insert and not once per try: a deadlock does not read the configuration again.
func (s *Store) admit(ctx context.Context, db pg.Conn, in *insertion) error {
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
