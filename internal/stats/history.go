package stats

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

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
func (s *Store) History(ctx context.Context, h HistoryQuery) ([]Point, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	now, err := s.db.Now(ctx)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	since, until := h.span(now)
	// The number of points is bounded by what is kept: 1 440 of a minute, 720 of an hour.
	points := emptyPoints(since, until, h.Period)
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
func (h HistoryQuery) read(ctx context.Context, q *dbsqlc.Queries, since, until pgtype.Timestamptz, add func(pgtype.Timestamptz, dbsqlc.StatsHourListRow)) error {
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

// Points begin at multiples of the period since the zero time of Go, which is midnight UTC for days.
func emptyPoints(since, until time.Time, period time.Duration) []Point {
	points := []Point{}
	for at := since.UTC().Truncate(period); at.Before(until); at = at.Add(period) {
		points = append(points, Point{At: at})
	}
	return points
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
