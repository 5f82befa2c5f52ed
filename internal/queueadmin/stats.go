package queueadmin

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// The figures that administrators look at: of queues, of the whole deployment, and their history. They come from what the relay keeps
// (counts per queue and state, events and run times per minute), so a read takes the same time with any backlog. No statement here counts
// jobs.

// Statistics reads the figures. Use NewStatistics. It only reads, in short transactions of its own, and may be used by any number of
// goroutines.
type Statistics struct{ db *pg.DB }

// NewStatistics returns a store on the database.
func NewStatistics(db *pg.DB) *Statistics { return &Statistics{db} }

// Counts are jobs per state. A state without jobs may be missing, which reads as 0.
type Counts map[ojs.JobState]int64

// Rates are what happened in 60 s.
type Rates struct {
	Enqueued, Completed, Failed float64       // jobs, and failed attempts
	Ran                         time.Duration // the sum of the run times of completed jobs
}

// Deployment are the figures of all queues, or of one.
type Deployment struct {
	Jobs    Counts
	Rates   Rates // of the last 60 s
	Queues  Totals
	Workers WorkerTotals
}

// Totals are queues per status.
type Totals struct{ Total, Active, Paused int64 }

// WorkerTotals are workers per state.
type WorkerTotals struct{ Total, Running, Quiet, Terminate, Stale int64 }

// Deployment reads the figures in one snapshot, so that the counts are exact. With a queue, jobs and rates are those of the queue; an
// unknown one has none.
func (s *Statistics) Deployment(ctx context.Context, queue string) (Deployment, error) {
	d := Deployment{Jobs: Counts{}}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	err := pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := s.db.Q.WithTx(tx)
		if err := d.readJobs(ctx, q, queue); err != nil {
			return err
		}
		latest, err := q.StatsMinuteGetLatest(ctx, queue)
		if err != nil {
			return err
		}
		d.Rates = Rates{latest.Enqueued, latest.Completed, latest.Failed, time.Duration(latest.DurationMs * float64(time.Millisecond))}
		queues, err := q.QueueGetTotals(ctx)
		if err != nil {
			return err
		}
		d.Queues = Totals(queues)
		workers, err := q.WorkerGetTotals(ctx, "")
		d.Workers = WorkerTotals(workers)
		return err
	})
	return d, pg.ClientError(err)
}

func (d *Deployment) readJobs(ctx context.Context, q *dbsqlc.Queries, queue string) error {
	if queue == "" {
		rows, err := q.StatsCountByState(ctx)
		for _, r := range rows {
			d.Jobs[ojs.JobState(r.State)] = r.Count
		}
		return err
	}
	rows, err := q.QueueCountListByQueue(ctx, queue)
	for _, r := range rows {
		d.Jobs[ojs.JobState(r.State)] = r.Count
	}
	return err
}

// QueueStatistics are the figures of a queue.
type QueueStatistics struct {
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

// StatisticsPage says which queues a list shows, by name. Of After and Offset one is used by a call; both together would skip rows behind
// the cursor.
type StatisticsPage struct {
	After         string // the cursor: names behind it
	Offset, Limit int
}

// QueueStatisticsPage is a page of queues.
type QueueStatisticsPage struct {
	Queues []QueueStatistics
	Total  int64 // up to 10 000
	More   bool
}

// Queues lists queues by name. The list, the total and the counts come from one snapshot. A queue that is created between two
// pages shows up if its name is behind the cursor.
func (s *Statistics) Queues(ctx context.Context, p StatisticsPage) (page QueueStatisticsPage, err error) {
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
			page.Queues = append(page.Queues, QueueStatistics{
				Name: r.Name, Status: r.Status, PausedAt: r.PausedAt.Time, CreatedAt: r.CreatedAt.Time, UpdatedAt: r.UpdatedAt.Time,
			})
		}
		return fill(ctx, q, page.Queues)
	})
	return page, pg.ClientError(err)
}

// Queue reads one queue. The error of an unknown one is spec.NotFound. All of it is of one snapshot, the configuration
// included.
func (s *Statistics) Queue(ctx context.Context, name string) (QueueStatistics, error) {
	var one [1]QueueStatistics
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
		all, err := q.QueueGet(ctx, queueconfig.Default)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		// A field that this release cannot read is as if it were not set; the cache of the node logs the error.
		config, _ := queueconfig.Effective(r.Config, all.Config)
		one[0] = QueueStatistics{
			Config: config,
			Name:   r.Name, Status: r.Status, PausedAt: r.PausedAt.Time, CreatedAt: r.CreatedAt.Time,
			UpdatedAt: r.UpdatedAt.Time, OldestAt: oldest.Time,
		}
		return fill(ctx, q, one[:])
	})
	return one[0], pg.ClientError(err)
}

// fill adds counts and rates.
func fill(ctx context.Context, q *dbsqlc.Queries, queues []QueueStatistics) error {
	names, byName := make([]string, len(queues)), make(map[string]*QueueStatistics, len(queues))
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

// TypeStatistics are figures of a type of jobs. Ran and Waited are the 50th, 95th and 99th percentile in ms; empty: nothing happened.
type TypeStatistics struct {
	Type              string
	Completed, Failed int64 // attempts
	Ran, Waited       []int64
}

const (
	// maxTypeEvents bounds the events from which Types reads, and with them its time: 50 ms.
	maxTypeEvents = 10_000
	maxTypes      = 1000
)

// Types reads the figures of each type from the newest events, the slowest first, and the time of the oldest of them; zero: there are none.
func (s *Statistics) Types(ctx context.Context, queue string) (types []TypeStatistics, since time.Time, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return nil, since, pg.ClientError(err)
	}
	defer done()
	queues := []string{}
	if queue != "" {
		queues = append(queues, queue)
	}
	rows, err := s.db.Q.StatsTypeList(ctx, dbsqlc.StatsTypeListParams{
		MaxLooked: pg.MaxLooked, MaxEvents: maxTypeEvents, Queues: queues, MaxRows: maxTypes,
	})
	for _, r := range rows {
		types, since = append(types, TypeStatistics{r.Type, r.Completed, r.Failed, r.Ran, r.Waited}), r.Since.Time
	}
	return types, since, pg.ClientError(err)
}

const (
	// minutesKept and hoursKept are how long the figures per minute, and the sums of their hours, are kept.
	minutesKept = 24 * time.Hour
	hoursKept   = 30 * 24 * time.Hour
)

// Periods are the lengths of the points of a history, by name.
var Periods = map[string]time.Duration{"1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour}

// HistoryQuery says which history to read. Period is one of Periods; the transport has checked it.
type HistoryQuery struct {
	Queue        string // "": all
	Period       time.Duration
	Since, Until job.When // not set: the last hour
}

// Point is what happened in one period.
type Point struct {
	At                                                time.Time // its begin, UTC
	Enqueued, Completed, Failed, Discarded, Cancelled int64
	DurationMS                                        int64 // the sum of the run times of completed jobs
	Durations                                         Durations
}

// History returns a point for each period that the range touches, empty ones included. Points of less than an hour reach back for
// a day, others for 30 days: it begins later if Since is before. Figures count published events, so the latest events may be
// missing.
func (s *Statistics) History(ctx context.Context, h HistoryQuery) ([]Point, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	now, err := s.db.Now(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	since, until := h.span(now)
	// They begin at multiples of the period since the zero time of Go, which is midnight UTC for days. Their number is bounded by what is
	// kept: 1 440 of a minute, 720 of an hour.
	points := []Point{}
	for at := since.UTC().Truncate(h.Period); at.Before(until); at = at.Add(h.Period) {
		points = append(points, Point{At: at})
	}
	if len(points) == 0 {
		return points, nil
	}
	add := func(at pgtype.Timestamptz, r dbsqlc.StatsHourListRow) {
		if i := int(at.Time.Sub(points[0].At) / h.Period); i < len(points) {
			points[i].add(r)
		}
	}
	// A minute that is pruned between two snapshots would count twice.
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		return h.read(ctx, s.db.Q.WithTx(tx), pg.Timestamp(points[0].At), pg.Timestamp(until), add)
	})
	return points, pg.ClientError(err)
}

// read calls add for each stored hour, for points of an hour and more, and for each stored minute. Hours and minutes never
// overlap: a minute is moved into the sum of its hour in one statement, and both are read in one snapshot.
func (h HistoryQuery) read(ctx context.Context, q *dbsqlc.Queries, since, until pgtype.Timestamptz,
	add func(pgtype.Timestamptz, dbsqlc.StatsHourListRow)) error {
	if h.Period >= time.Hour {
		hours, err := q.StatsHourList(ctx, dbsqlc.StatsHourListParams{Queue: h.Queue, Since: since, Until: until})
		if err != nil {
			return err
		}
		for _, r := range hours {
			add(r.Hour, r)
		}
	}
	minutes, err := q.StatsMinuteList(ctx, dbsqlc.StatsMinuteListParams{Queue: h.Queue, Since: since, Until: until})
	for _, r := range minutes {
		add(r.Minute, dbsqlc.StatsHourListRow{
			Enqueued: r.Enqueued, Completed: r.Completed, Failed: r.Failed, Discarded: r.Discarded, Cancelled: r.Cancelled,
			DurationMs: r.DurationMs, Durations: r.Durations,
		})
	}
	return err
}

// span is the range that can be read. A range that ends before it begins gives no points and no error.
func (h HistoryQuery) span(now time.Time) (since, until time.Time) {
	at := func(w job.When, otherwise time.Time) time.Time {
		switch {
		case !w.Set:
			return otherwise
		case w.Relative:
			return now.Add(-w.In)
		}
		return w.At
	}
	kept := minutesKept
	if h.Period >= time.Hour {
		kept = hoursKept
	}
	since, until = at(h.Since, now.Add(-time.Hour)), at(h.Until, now)
	if oldest := now.Add(-kept); since.Before(oldest) {
		since = oldest
	}
	if until.After(now) {
		until = now
	}
	return since, until
}

func (p *Point) add(r dbsqlc.StatsHourListRow) {
	p.Enqueued += r.Enqueued
	p.Completed += r.Completed
	p.Failed += r.Failed
	p.Discarded += r.Discarded
	p.Cancelled += r.Cancelled
	p.DurationMS += r.DurationMs
	p.Durations = p.Durations.add(r.Durations)
}

// Durations counts run times by range: the numbers of ojs.duration_bucket, which begin at 1, less 1. Empty: none.
// It has 18 numbers, one more than bounds. Rows that were written before the first completed job of their period have none.
type Durations []int64

// bounds are the ends of the ranges in ms, as in ojs.duration_bucket. The last range has none, and counts as long as its begin.
var bounds = [...]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 1_800_000}

// Percentile estimates, in ms, the run time that a share of the jobs does not exceed. It takes the jobs of a range as spread evenly over
// it, so the error is at most the length of the range. 0 without jobs. share is from 0 to 1. Above 30 minutes the answer is 30
// minutes, because the last range has no end.
func (d Durations) Percentile(share float64) float64 {
	total := int64(0)
	for _, n := range d {
		total += n
	}
	rank := share * float64(total)
	low := 0.0
	for i, n := range d {
		// The last range has no end between which and its begin a value could be estimated.
		if i >= len(bounds) {
			break
		}
		if rank <= float64(n) && n > 0 {
			return low + (bounds[i]-low)*rank/float64(n)
		}
		rank -= float64(n)
		low = bounds[i]
	}
	if total == 0 {
		return 0
	}
	return low
}

// add may change d in place; other is never changed.
func (d Durations) add(other []int64) Durations {
	if len(d) < len(other) {
		d = append(d, make([]int64, len(other)-len(d))...)
	}
	for i, n := range other {
		d[i] += n
	}
	return d
}
