package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// PutCron registers a cron or replaces the one of that name (contract 20 §11.3). One whose schedule does not change keeps
// its next run, so that registering at every deploy does not shift it.
func (s *Store) PutCron(ctx context.Context, in *job.Cron) (row *dbsqlc.Cron, created bool, err error) {
	err = s.changeCron(ctx, func(c *cronChange) error {
		for {
			old, err := c.q.CronLock(ctx, in.Name)
			if err == nil {
				row, err = c.update(ctx, &old, in)
				return err
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			if row, err = c.insert(ctx, in); err != nil || row != nil {
				created = row != nil
				return err
			}
		}
	})
	return row, created, err
}

// ChangeCron replaces a cron by what change makes of it, while nobody else changes or fires it.
func (s *Store) ChangeCron(ctx context.Context, name string, change func(current *dbsqlc.Cron) (*job.Cron, error)) (row *dbsqlc.Cron, err error) {
	err = s.changeCron(ctx, func(c *cronChange) error {
		old, err := c.q.CronLock(ctx, name)
		if err != nil {
			return cronMissing(err, name)
		}
		in, err := change(&old)
		if err != nil {
			return err
		}
		row, err = c.update(ctx, &old, in)
		return err
	})
	return row, err
}

// DeleteCron forgets a cron and its history; its jobs stay.
func (s *Store) DeleteCron(ctx context.Context, name string) (*dbsqlc.Cron, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.CronDelete(ctx, name)
	if err == nil && len(rows) == 0 {
		err = pgx.ErrNoRows
	}
	if err != nil {
		return nil, WireError(cronMissing(err, name))
	}
	return (*dbsqlc.Cron)(&rows[0]), nil
}

// Cron returns a cron.
func (s *Store) Cron(ctx context.Context, name string) (*dbsqlc.Cron, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	row, err := s.q.CronGet(ctx, name)
	if err != nil {
		return nil, WireError(cronMissing(err, name))
	}
	return &row, nil
}

// CronList selects a page of crons.
type CronList struct {
	Enabled       *bool
	Queues        []string
	Offset, Limit int
}

// Crons lists crons by name; total counts all that match.
func (s *Store) Crons(ctx context.Context, l CronList) (rows []dbsqlc.Cron, total int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var enabled pgtype.Bool
	if l.Enabled != nil {
		enabled = pgtype.Bool{Bool: *l.Enabled, Valid: true}
	}
	queues := orEmpty(l.Queues)
	if total, err = s.q.CronCount(ctx, enabled, queues); err != nil {
		return nil, 0, WireError(err)
	}
	rows, err = s.q.CronList(ctx, dbsqlc.CronListParams{Enabled: enabled, Queues: queues, SkipRows: int64(l.Offset), MaxRows: int64(l.Limit)})
	return rows, total, WireError(err)
}

// CronHistory lists what became of the ticks and manual runs of a cron, newest first.
func (s *Store) CronHistory(ctx context.Context, name string, offset, limit int) (runs []dbsqlc.CronRunListRow, total int64, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	row, err := s.q.CronGet(ctx, name)
	if err != nil {
		return nil, 0, WireError(cronMissing(err, name))
	}
	if total, err = s.q.CronRunCount(ctx, row.ID); err != nil {
		return nil, 0, WireError(err)
	}
	runs, err = s.q.CronRunList(ctx, dbsqlc.CronRunListParams{CronID: row.ID, SkipRows: int64(offset), MaxRows: int64(limit)})
	return runs, total, WireError(err)
}

func cronMissing(err error, name string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ojs.ErrNotFound("cron", name)
	}
	return err
}

// cronChange is a transaction that registers or changes one cron.
type cronChange struct {
	store *Store
	q     *dbsqlc.Queries
	now   time.Time
	next  time.Time // zero: nothing to wait for
	gaps  []time.Time
	loose []string // crons whose held jobs may go now
	told  []Change
}

func (s *Store) changeCron(ctx context.Context, do func(c *cronChange) error) error {
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	c := &cronChange{store: s}
	err := pgx.BeginFunc(bounded, s.pool, func(tx pgx.Tx) error {
		*c = cronChange{store: s, q: dbsqlc.New(tx)}
		row, err := c.q.CronNow(bounded)
		if err != nil {
			return err
		}
		c.now = row.Now.Time
		return do(c)
	})
	if err != nil {
		return WireError(err)
	}
	tell(ctx, s, c.told, sameChange)
	if !c.next.IsZero() {
		s.armed(max(0, c.next.Sub(c.now)))
	}
	s.settleCrons(ctx, c.loose)
	s.committedEvents()
	return nil
}

func (c *cronChange) insert(ctx context.Context, in *job.Cron) (*dbsqlc.Cron, error) {
	id := NewID()
	next, err := c.schedule(in)
	if err != nil {
		return nil, err
	}
	rows, err := c.q.CronInsert(ctx, dbsqlc.CronInsertParams{
		Name: in.Name, ID: id, Expression: in.Expression, Timezone: in.Timezone, Type: in.Type, Queue: in.Queue, Args: in.Args, Meta: in.Meta,
		Options: in.Options, TraceID: optionalText(in.TraceID), OverlapPolicy: in.Overlap, Enabled: in.Enabled, Description: description(in),
		NextRunAt: next, Now: timestamp(c.now),
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], c.tellGaps(ctx, &rows[0])
}

func (c *cronChange) update(ctx context.Context, old *dbsqlc.Cron, in *job.Cron) (*dbsqlc.Cron, error) {
	next := old.NextRunAt
	rescheduled := old.Expression != in.Expression || old.Timezone != in.Timezone
	changed := rescheduled || old.Enabled != in.Enabled
	switch {
	case !rescheduled && !in.Enabled: // even one that will never fire again can be paused
		next = pgtype.Timestamptz{}
	case changed:
		var err error
		if next, err = c.schedule(in); err != nil {
			return nil, err
		}
	}
	row, err := c.q.CronUpdate(ctx, dbsqlc.CronUpdateParams{
		Name: in.Name, Expression: in.Expression, Timezone: in.Timezone, Type: in.Type, Queue: in.Queue, Args: in.Args, Meta: in.Meta,
		Options: in.Options, TraceID: optionalText(in.TraceID), OverlapPolicy: in.Overlap, Enabled: in.Enabled, Description: description(in),
		NextRunAt: next, Now: timestamp(c.now),
	})
	if err != nil {
		return nil, err
	}
	if in.Overlap == job.OverlapEnqueue && old.OverlapPolicy != in.Overlap {
		if err := c.serialize(ctx, in.Name); err != nil {
			return nil, err
		}
	}
	if changed {
		return &row, c.tellGaps(ctx, &row)
	}
	return &row, nil
}

// schedule finds the next run of a cron from now on, and what it steps over.
func (c *cronChange) schedule(in *job.Cron) (next pgtype.Timestamptz, err error) {
	c.gaps = nil
	schedule, err := cron.Parse(in.Expression, in.Timezone)
	if err != nil {
		return next, err // the request was checked
	}
	at, ok := schedule.Next(c.now)
	if !ok || at.Sub(c.now) > cron.Reach {
		return next, job.ErrCronNever(in.Expression)
	}
	if in.Enabled {
		c.next, c.gaps = at, schedule.Skipped(c.now, at)
		next = timestamp(at)
	}
	return next, nil
}

func (c *cronChange) tellGaps(ctx context.Context, row *dbsqlc.Cron) error {
	var p dbsqlc.CronGapParams
	addGaps(&p, row, c.gaps)
	if len(p.Ids) == 0 {
		return nil
	}
	p.Node, p.Instance = c.store.node, c.store.instance
	rows, err := c.q.CronGap(ctx, p)
	c.told = append(c.told, gapChanges(rows)...)
	return err
}

// serialize makes what a cron has already started wait for each other, because its policy has become enqueue.
func (c *cronChange) serialize(ctx context.Context, name string) error {
	c.loose = []string{name}
	if err := c.q.CronQueueUp(ctx, c.loose); err != nil {
		return err
	}
	return c.q.CronHold(ctx, name, [16]byte{})
}

func timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

func optionalText(text string) pgtype.Text { return pgtype.Text{String: text, Valid: text != ""} }

func description(in *job.Cron) pgtype.Text {
	if in.Description == nil {
		return pgtype.Text{}
	}
	return pgtype.Text{String: *in.Description, Valid: true}
}

// CronOf is a stored cron as a request would have given it.
func CronOf(row *dbsqlc.Cron) job.Cron {
	c := job.Cron{
		Name: row.Name, Expression: row.Expression, Timezone: row.Timezone, Overlap: row.OverlapPolicy, Enabled: row.Enabled,
		Type: row.Type, Args: row.Args, Meta: row.Meta, Options: row.Options, Queue: row.Queue, TraceID: row.TraceID.String,
	}
	if row.Description.Valid {
		c.Description = &row.Description.String
	}
	return c
}
