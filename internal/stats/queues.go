package stats

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Queue are the figures of a queue.
type Queue struct {
	Name      string
	Status    string    // active, paused, draining
	PausedAt  time.Time // zero: not paused
	CreatedAt time.Time
	UpdatedAt time.Time // of its status or configuration
	Jobs      Counts
	Rates     Rates              // of the last 60 s; Enqueued and Ran are not read
	Latency   Durations          // run times of the last 60 minutes
	Config    queueconfig.Config // with the values that it inherits. Only of a single queue
	OldestAt  time.Time          // since when the job has waited that has waited longest; zero: none. Only of a single queue
}

// maxTotal bounds the queues that a list counts.
const maxTotal = 10_000

// Page says which queues a list shows, by name. Of After and Offset one is used by a call; both together would skip rows behind
// the cursor.
type Page struct {
	After         string // the cursor: names behind it
	Offset, Limit int
}

// QueuePage is a page of queues.
type QueuePage struct {
	Queues []Queue
	Total  int64 // up to 10 000
	More   bool
}

// Queues lists queues by name. The list, the total and the counts come from one snapshot. A queue that is created between two
// pages shows up if its name is behind the cursor.
func (s *Store) Queues(ctx context.Context, p Page) (page QueuePage, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := s.db.Q.WithTx(tx)
		rows, err := q.StatsQueueListPage(ctx, dbsqlc.StatsQueueListPageParams{
			// One row more than the page is read, to know whether there is another.
			MaxTotal: maxTotal, After: p.After, SkipRows: int64(p.Offset), MaxRows: int64(p.Limit) + 1,
		})
		if err != nil {
			return err
		}
		if page.More = len(rows) > p.Limit; page.More {
			rows = rows[:p.Limit]
		}
		for _, r := range rows {
			page.Total = r.Total
			page.Queues = append(page.Queues, Queue{
				Name: r.Name, Status: r.Status, PausedAt: r.PausedAt.Time, CreatedAt: r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time,
			})
		}
		return fill(ctx, q, page.Queues)
	})
	return page, pg.ClientError(err)
}

// Queue reads one queue. The error of an unknown one is spec.NotFound. All of it is of one snapshot, the configuration
// included.
func (s *Store) Queue(ctx context.Context, name string) (Queue, error) {
	var one [1]Queue
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err := pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := s.db.Q.WithTx(tx)
		r, err := q.QueueGet(ctx, name)
		// No other error may become a 404.
		if errors.Is(err, pgx.ErrNoRows) {
			return spec.NotFound("queue", name)
		}
		if err != nil {
			return err
		}
		oldest, err := q.StatsQueueOldest(ctx, name)
		if err != nil {
			return err
		}
		config, err := effective(ctx, q, r.Config)
		if err != nil {
			return err
		}
		one[0] = Queue{
			Config: config,
			Name:   r.Name, Status: r.Status, PausedAt: r.PausedAt.Time, CreatedAt: r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time, OldestAt: oldest.Time,
		}
		return fill(ctx, q, one[:])
	})
	return one[0], pg.ClientError(err)
}

// effective is the configuration of a queue over that of all. A field that this release cannot read is as if it were not set.
func effective(ctx context.Context, q *dbsqlc.Queries, own []byte) (queueconfig.Config, error) {
	all, err := q.QueueGet(ctx, queueconfig.Default)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return queueconfig.Config{}, err
	}
	config, _ := queueconfig.Effective(own, all.Config) // the cache of the node logs the error
	return config, nil
}

// fill adds counts and rates.
func fill(ctx context.Context, q *dbsqlc.Queries, queues []Queue) error {
	names, byName := make([]string, len(queues)), make(map[string]*Queue, len(queues))
	for i := range queues {
		queues[i].Jobs = Counts{}
		names[i], byName[queues[i].Name] = queues[i].Name, &queues[i]
	}
	counts, err := q.StatsQueueCountList(ctx, names)
	if err != nil {
		return err
	}
	for _, c := range counts {
		byName[c.Queue].Jobs[ojs.JobState(c.State)] = c.Count
	}
	rates, err := q.StatsQueueRateList(ctx, names)
	for _, r := range rates {
		queue := byName[r.Queue]
		// Rates are of the last 60 s and run times of the last hour, from one statement.
		queue.Rates.Completed, queue.Rates.Failed, queue.Latency = r.Completed, r.Failed, r.Durations
	}
	return err
}
