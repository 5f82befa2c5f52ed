package queueadmin

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// Detail is a queue as it is stored. Config is the stored object, which Own and Config show in the form for clients.
type Detail struct {
	Name                 string
	Status               string
	PausedAt             time.Time // zero: not paused
	Config               []byte    // its own configuration; nil: none
	CreatedAt, UpdatedAt time.Time
	Deleting             bool
}

// A zero time stands for NULL.
func newDetail(r dbsqlc.Queue) *Detail {
	return &Detail{
		Name: r.Name, Status: r.Status, PausedAt: r.PausedAt.Time, Config: r.Config, CreatedAt: r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time,
		Deleting: r.Deletion != nil,
	}
}

// Get reads a queue. It reads the row and not the cache, so it shows a change at once.
func (s *Store) Get(ctx context.Context, name string) (*Detail, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.QueueGet(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, notFound(name)
	}
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return newDetail(row), nil
}

// Figures are the counts of a queue, and what happened in it since midnight. The day begins at midnight UTC. The counts of
// today lag behind by the time of a publication, those of Stats do not.
type Figures struct {
	queue.Stats
	CompletedToday, FailedToday int64
}

// Figures reads the figures of a queue.
func (s *Store) Figures(ctx context.Context, name string) (Figures, error) {
	// An unknown queue has zeros; callers ask Get before.
	stats, err := s.jobs.QueueStats(ctx, name)
	if err != nil {
		return Figures{}, err
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	today, err := s.db.Q.QueueGetToday(ctx, name)
	return Figures{stats, today.Completed, today.Failed}, pg.ClientError(err)
}

// maxTotal bounds the number of queues that is counted. docs/reference/queues.md, Endpoints.
const maxTotal = 10_000

// List is a page of queues by name.
type List struct {
	Queues []dbsqlc.QueueListPageRow
	Total  int64 // up to 10 000
	More   bool
}

// List reads the queues behind a name. The statement returns at least one row, for the total. Default is left out: it is no
// queue.
func (s *Store) List(ctx context.Context, after string, offset, limit int) (List, error) {
	ctx, cancel, err := s.db.Reading(ctx)
	if err != nil {
		return List{}, pg.ClientError(err)
	}
	defer cancel()
	rows, err := s.db.Q.QueueListPage(ctx, dbsqlc.QueueListPageParams{After: after, SkipRows: int32(offset), MaxRows: int32(limit) + 1, MaxTotal: maxTotal})
	if err != nil {
		return List{}, pg.ClientError(err)
	}
	list := List{Queues: rows, Total: rows[0].Total, More: len(rows) > limit}
	if list.More {
		list.Queues = rows[:limit]
	}
	// The row of an empty page.
	if rows[0].Name == "" {
		list.Queues = nil
	}
	return list, nil
}

// Config is the configuration of a queue as answers show it. A field that this release cannot read is left out and logged.
func (s *Store) Config(ctx context.Context, own []byte) ([]byte, error) {
	view, err := s.queues.View(ctx)
	if err != nil {
		return nil, err
	}
	effective, err := queueconfig.Effective(own, view.Inherited())
	if err != nil {
		s.logger.ErrorContext(ctx, "configuration of a queue cannot be read whole", slog.Any("error", err))
	}
	r, kept := effective.Retention, s.config.Retention
	return queueconfig.Show(own, keptFor(r.Completed, kept.Completed), keptFor(r.Discarded, kept.Discarded), keptFor(r.Cancelled, kept.Cancelled)), nil
}

// Own is the configuration that was set for the queue, without what it inherits.
func (d *Detail) Own() []byte { return queueconfig.Show(d.Config, "", "", "") }

// Whole days are shown as such, because operators set them so.
func keptFor(set *queueconfig.Duration, standard time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case set != nil:
		return set.Text
	case standard == 0:
		return ""
	case standard%day == 0:
		return "P" + strconv.Itoa(int(standard/day)) + "D"
	}
	return duration.Format(standard)
}
