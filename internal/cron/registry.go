// Package cron owns recurring jobs: expressions and time zones, the registry, and the ticks of due crons. It must never store
// or cancel a job except through package queue.
//
// A tick is one transaction: its log row, its event, its job and the next time of its cron. So it happens once, whichever
// nodes look at the same time, and a node that stops leaves the cron due. No node owns a cron.
//
// The timer of each node calls Fire when the earliest next_run_at has come (api/domains.go connects them). A cron whose row
// another node has locked is skipped, not waited for. Ticks that were missed are not made up for, apart from the latest one
// of each cron (docs/reference/scheduling.md, Firing).
//
// The files: schedule.go computes times, definition.go reads what clients send, registry.go stores crons, and firing.go fires them, makes
// jobs by hand, and lets jobs of one cron run one after the other.
package cron

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// visibility is the visibility timeout of a cron's job if the template sets none. It is longer than that of other jobs by
// default (docs/reference/scheduling.md, Firing).
const visibility = 10 * time.Minute

// Deps are the parts of a node that the registry uses. Without Schemas nothing is checked against one.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *loop.Timer
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
	Schemas *schema.Store

	Maintenance *queueconfig.Maintenance

	// Limits apply to the jobs of crons, whose templates are decoded at each tick: one that an older setting has accepted may be refused
	// there, and the tick is skipped.
	Limits job.Limits
}

// Store registers and fires crons. Use New. It has no state of crons: what is due is read from the database, when the timer
// of the node says so.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *loop.Timer
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	limits  job.Limits

	// During maintenance no cron fires; a manual run is not stopped by it here.
	maintenance *queueconfig.Maintenance
}

// New returns a registry on the database. Package queue is to call Release when jobs of crons have moved (queue.Hooks).
func New(deps Deps) *Store {
	return &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer,
		limits: deps.Limits, maintenance: deps.Maintenance, schemas: deps.Schemas,
	}
}

// Record is a cron as it is stored; the migration describes the columns. LastRunAt is the scheduled
// time of the latest job, or the time of the latest manual run. RunCount counts jobs, manual ones included. Args, Meta and
// Options are as sent, compact; Meta and Options are nil if empty. All times are of the database.
type Record dbsqlc.Cron

// Cut reports whether a list has left out what the client sent. A cron always has args, so nil can only mean that.
func (r *Record) Cut() bool { return r.Args == nil }

// Run is the outcome of one tick, or of a manual run. State and the two times are those of the job now, so an old run
// changes when its job does. State is "" if retention has removed the job, or if there is none.
type Run = dbsqlc.CronRunListRow

// Ref names a cron. The statement that acts on it compares the tenant, because a name that is free again may be taken by another one.
type Ref struct {
	Tenant string // "": an operator, who reaches the crons of all
	Name   string
}

// Put registers a cron or replaces the one of that name (docs/reference/scheduling.md, Cron endpoints). The next run stays if
// the schedule does, so that registering at every deploy does not shift it. It is idempotent. The row of the cron is
// locked, so a tick comes before or after it as a whole. Counters, log and creation time stay. After an error nothing is
// changed.
func (s *Store) Put(ctx context.Context, in *Definition) (row *Record, created bool, err error) {
	err = s.inChange(ctx, func(c *cronChange) error {
		for {
			// The tenant is compared under the lock, so nobody can take the name in between.
			old, err := c.q.CronLock(ctx, in.Name, "")
			if err == nil && in.caller != "" && in.caller != old.Tenant {
				return errNameTaken(in.Name)
			}
			if err == nil {
				row, err = c.update(ctx, (*Record)(&old), in)
				return err
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			// nil without an error: the name was taken in between, and the next round finds it.
			if row, err = c.insert(ctx, in); err != nil || row != nil {
				created = row != nil
				return err
			}
		}
	})
	return row, created, err
}

// Change replaces a cron by what change returns. The cron is locked meanwhile against other changes and ticks. change must
// have no effect of its own, because the transaction may be rolled back after it, and should be short, because ticks of the
// cron wait for it.
func (s *Store) Change(ctx context.Context, ref Ref, change func(current *Record) (*Definition, error)) (row *Record, err error) {
	err = s.inChange(ctx, func(c *cronChange) error {
		old, err := c.q.CronLock(ctx, ref.Name, ref.Tenant)
		if err != nil {
			return cronMissing(err, ref.Name)
		}
		in, err := change((*Record)(&old))
		if err != nil {
			return err
		}
		row, err = c.update(ctx, (*Record)(&old), in)
		return err
	})
	return row, err
}

// Delete removes a cron and its history; its jobs stay. It needs no lock before: a tick that has the row ends first, and
// its job stays. A second call gets not found.
func (s *Store) Delete(ctx context.Context, ref Ref) (*Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// One statement deletes the cron and its log.
	rows, err := s.db.Q.CronDelete(ctx, ref.Name, ref.Tenant)
	if err == nil && len(rows) == 0 {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return nil, pg.WriteError(cronMissing(err, ref.Name))
	}
	return (*Record)(&rows[0]), nil
}

// Get returns a cron. It takes no lock; what it returns may be changed a moment later.
func (s *Store) Get(ctx context.Context, ref Ref) (*Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.CronGet(ctx, ref.Name, ref.Tenant)
	if err != nil {
		return nil, pg.ClientError(cronMissing(err, ref.Name))
	}
	return (*Record)(&row), nil
}

// Filter selects a page of crons. Queues are those of the templates; nil is all.
type Filter struct {
	Tenant        string // "": the crons of all
	Enabled       *bool
	Queues        []string
	Offset, Limit int
}

// maxListBytes bounds, with one cron more, what a page shows of args, meta and options, which it shows up to six times.
// Record.Cut tells which ones were cut.
const maxListBytes = 1 << 20

// List lists crons by name, of which those behind maxListBytes are cut; total counts all that match. Total and page come
// from two statements.
func (s *Store) List(ctx context.Context, l Filter) (rows []Record, total int64, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, 0, pg.ClientError(err)
	}
	defer done()
	var enabled pgtype.Bool
	if l.Enabled != nil {
		enabled = pgtype.Bool{Bool: *l.Enabled, Valid: true}
	}
	queues := pg.Strings(l.Queues)
	// The filters must be those of CronList.
	if total, err = s.db.Q.CronCount(ctx, dbsqlc.CronCountParams{Enabled: enabled, Queues: queues, Tenant: l.Tenant}); err != nil {
		return nil, 0, pg.ClientError(err)
	}
	crons, err := s.db.Q.CronList(ctx, dbsqlc.CronListParams{Tenant: l.Tenant, Enabled: enabled, Queues: queues, SkipRows: int64(l.Offset),
		MaxRows: int64(l.Limit), MaxBytes: maxListBytes})
	return sliceutil.Map(crons, func(c dbsqlc.CronListRow) Record { return Record(c) }), total, pg.ClientError(err)
}

// History lists the ticks and manual runs of a cron, newest first. The log is that of the id, so a cron that was deleted
// and registered again begins with an empty one.
func (s *Store) History(ctx context.Context, ref Ref, offset, limit int) (runs []Run, total int64, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, 0, pg.ClientError(err)
	}
	defer done()
	row, err := s.db.Q.CronGet(ctx, ref.Name, ref.Tenant)
	if err != nil {
		return nil, 0, pg.ClientError(cronMissing(err, ref.Name))
	}
	if total, err = s.db.Q.CronRunCount(ctx, row.ID); err != nil {
		return nil, 0, pg.ClientError(err)
	}
	runs, err = s.db.Q.CronRunList(ctx, dbsqlc.CronRunListParams{CronID: row.ID, SkipRows: int64(offset), MaxRows: int64(limit)})
	return runs, total, pg.ClientError(err)
}

// errNameTaken refuses to replace a cron of another tenant: names are those of the whole server. It tells that the name
// exists, which a tenant could not see otherwise, but nothing else of it.
func errNameTaken(name string) error {
	err := spec.NewError(ojs.ErrDuplicateJob, "The name "+name+" is taken by a cron of somebody else.",
		map[string]any{"field": "name", "name": name})
	err.Hint = "Choose another name; the names of crons are shared by all tenants."
	return err
}

// cronMissing lets all other errors pass, so that a database that is away is not reported as a missing cron.
func cronMissing(err error, name string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return spec.NotFound("cron", name)
	}
	return err
}

// cronChange is a transaction that registers or changes one cron. It belongs to one try of one transaction.
type cronChange struct {
	store   *Store
	q       *dbsqlc.Queries
	now     time.Time
	next    time.Time // of the next run; zero: none
	gaps    []time.Time
	serial  []string // crons whose next queued job may be released after the commit
	changes []eventlog.Change
}

// inChange runs do in a transaction, and does what follows the commit. All times of the change come from one reading of the clock of the
// database. do must leave what follows the commit in c. If the node stops after the commit and before the timer is set, the
// notification that the transaction carries has other nodes look.
func (s *Store) inChange(ctx context.Context, do func(c *cronChange) error) error {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // the next run is scheduled even if the client hangs up
	defer cancel()
	c := &cronChange{store: s}
	err := s.db.InTx(bounded, func(tx pgx.Tx) error {
		*c = cronChange{store: s, q: dbsqlc.New(tx)}
		row, err := c.q.CronNotify(bounded)
		if err != nil {
			return err
		}
		c.now = row.Now.Time
		return do(c)
	})
	if err != nil {
		return pg.ClientError(err)
	}
	// After the commit only: events that a roll-back takes away must not be logged.
	eventlog.Emit(ctx, s.commits, c.changes, sameChange)
	if !c.next.IsZero() {
		s.timer.Schedule(max(0, c.next.Sub(c.now)))
	}
	s.Release(ctx, c.serial)
	s.commits.Committed()
	return nil
}

// insert returns nil if the name is taken: another transaction has registered it since CronLock found none. Put then
// updates that one. The schema is checked on the connection of the transaction.
func (c *cronChange) insert(ctx context.Context, in *Definition) (*Record, error) {
	id := job.NewID()
	if err := c.checkSchema(ctx, in); err != nil {
		return nil, err
	}
	next, err := c.schedule(in)
	if err != nil {
		return nil, err
	}
	rows, err := c.q.CronInsert(ctx, dbsqlc.CronInsertParams{
		Name: in.Name, ID: id, Expression: in.Expression, Timezone: in.Timezone, Type: in.Type, Queue: in.Queue, Args: in.Args,
		Meta: in.Meta, Options: in.Options, TraceID: pg.Text(in.TraceID), OverlapPolicy: in.Overlap, Enabled: in.Enabled,
		Description: description(in), NextRunAt: next, Now: pg.Timestamp(c.now), Tenant: in.Tenant,
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return (*Record)(&rows[0]), c.recordGaps(ctx, (*Record)(&rows[0]))
}

// update keeps the next run, unless the schedule changes or the cron is switched on or off. A paused cron has no next run,
// so it is not due; a resumed one begins with the next time after now, and ticks during the pause are not made up for.
func (c *cronChange) update(ctx context.Context, old *Record, in *Definition) (*Record, error) {
	if in.Enabled { // a cron whose jobs a new schema refuses can be paused
		if err := c.checkSchema(ctx, in); err != nil {
			return nil, err
		}
	}
	// An unchanged schedule keeps it, so a deployment that registers all crons again shifts no @every.
	next := old.NextRunAt
	rescheduled := old.Expression != in.Expression || old.Timezone != in.Timezone
	changed := rescheduled || old.Enabled != in.Enabled
	switch {
	case !rescheduled && !in.Enabled: // a cron without a next run can be paused, too
		next = pgtype.Timestamptz{}
	case changed:
		var err error
		if next, err = c.schedule(in); err != nil {
			return nil, err
		}
	}
	// last_run_at, run_count and created_at stay (docs/reference/scheduling.md, Cron endpoints).
	row, err := c.q.CronUpdate(ctx, dbsqlc.CronUpdateParams{
		Name: in.Name, Expression: in.Expression, Timezone: in.Timezone, Type: in.Type, Queue: in.Queue, Args: in.Args, Meta: in.Meta,
		Options: in.Options, TraceID: pg.Text(in.TraceID), OverlapPolicy: in.Overlap, Enabled: in.Enabled, Description: description(in),
		NextRunAt: next, Now: pg.Timestamp(c.now), Tenant: in.Tenant,
	})
	if err != nil {
		return nil, err
	}
	// The unfinished jobs are queued one behind the other, or jobs from before would run beside the first serial one. The lock is that
	// of releases, so none of them sees half of it. The jobs are released one by one after the commit.
	if in.Overlap == OverlapEnqueue && old.OverlapPolicy != in.Overlap {
		c.serial = []string{in.Name}
		if err := c.q.CronLockSerial(ctx, c.serial); err != nil {
			return nil, err
		}
		if err := c.q.CronQueueJobs(ctx, in.Name, [16]byte{}); err != nil {
			return nil, err
		}
	}
	if changed {
		return (*Record)(&row), c.recordGaps(ctx, (*Record)(&row))
	}
	return (*Record)(&row), nil
}

// checkSchema refuses a cron whose jobs would violate a schema. A missing template cannot occur: the decoder has checked
// it.
func (c *cronChange) checkSchema(ctx context.Context, in *Definition) error {
	j, wire := in.Template(c.store.limits)
	if wire != nil {
		return wire
	}
	_, err := c.store.schemas.Check(ctx, c.q, j)
	return err
}

// schedule computes the next run of a cron, and the local times before it that clocks skip. It is refused if nothing fires
// within Reach, which is less than how far Next searches.
func (c *cronChange) schedule(in *Definition) (next pgtype.Timestamptz, err error) {
	c.gaps = nil
	schedule, err := Parse(in.Expression, in.Timezone)
	if err != nil {
		return next, err // not a request error: the decoder has parsed the expression
	}
	// The clock of the database, read in this transaction.
	at, ok := schedule.Next(c.now)
	if !ok || at.Sub(c.now) > Reach {
		return next, ErrNever(in.Expression)
	}
	if in.Enabled {
		c.next, c.gaps = at, schedule.Skipped(c.now, at)
		next = pg.Timestamp(at)
	}
	return next, nil
}

// recordGaps may be called without gaps.
func (c *cronChange) recordGaps(ctx context.Context, row *Record) (err error) {
	var p dbsqlc.CronRunInsertGapParams
	addGaps(&p, row, c.gaps)
	c.changes, err = c.store.insertGaps(ctx, c.q, p, c.changes)
	return err
}

// description takes "" for one, and nil for none.
func description(in *Definition) pgtype.Text {
	if in.Description == nil {
		return pgtype.Text{}
	}
	return pgtype.Text{String: *in.Description, Valid: true}
}

// DefinitionOf is a stored cron in the form of a request. The slices are those of the row.
func DefinitionOf(row *Record) Definition {
	c := Definition{
		Name: row.Name, Expression: row.Expression, Timezone: row.Timezone, Overlap: row.OverlapPolicy, Enabled: row.Enabled,
		Type: row.Type, Args: row.Args, Meta: row.Meta, Options: row.Options, Queue: row.Queue,
		TraceID: row.TraceID.String, Tenant: row.Tenant,
	}
	if row.Description.Valid {
		c.Description = &row.Description.String
	}
	return c
}
