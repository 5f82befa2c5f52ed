package bench

import (
	"context"
	"fmt"
	"time"
)

const (
	// scheduleSpread is the time over which the many scheduled jobs become due.
	scheduleSpread = time.Hour

	// burstMargin is kept between the end of filling and the due time of the burst; fillRate is a slow guess of how many
	// jobs a second can be filled.
	burstMargin = 2 * time.Second
	fillRate    = 2000
)

// runSchedule measures what many scheduled jobs cost: the fetch latency of another queue while they wait and trickle in,
// and while many become due in the same moment, and how late those are.
func runSchedule(ctx context.Context, r *runner) error {
	future := r.newLoad("future")
	start := time.Now()
	if err := r.db.schedule(ctx, future.bodies.queue, jobArgs(r.cfg.ArgsBytes), schedule{r.cfg.Scheduled, start, scheduleSpread}, nil); err != nil {
		return err
	}
	defer r.db.cancelAll(context.WithoutCancel(ctx), future.bodies.queue)
	r.out.say("%s: %s jobs scheduled over %s, filled in %.1f s by ojs.enqueue()", future.bodies.queue,
		humanNumber(float64(r.cfg.Scheduled)), scheduleSpread, time.Since(start).Seconds())
	if err := r.db.waitPublished(ctx); err != nil {
		return err
	}
	r.pause(ctx)
	err := r.repeat(ctx, func(ctx context.Context) (Figure, error) {
		f, err := r.measureFetchLatency(ctx)
		f.Name, f.Params = "schedule.latency", append([]Param{{"scheduled", r.cfg.Scheduled}}, f.Params...)
		return f, err
	})
	if err != nil {
		return err
	}
	return r.repeat(ctx, r.measureBurst)
}

// measureBurst has many jobs due at once while another queue is in use.
func (r *runner) measureBurst(ctx context.Context) (Figure, error) {
	burst, other, t := r.newLoad("burst"), r.newLoad("latency"), newTimeline()
	due := time.Now().Add(time.Duration(r.cfg.Burst)*time.Second/fillRate + burstMargin)
	err := r.db.schedule(ctx, burst.bodies.queue, jobArgs(r.cfg.ArgsBytes), schedule{r.cfg.Burst, due, 0}, &burst.ledger)
	if err != nil {
		return Figure{}, err
	}
	if time.Now().After(due) {
		return Figure{}, fmt.Errorf("filling %d jobs took too long; measure a smaller burst", r.cfg.Burst)
	}
	if err := r.db.waitPublished(ctx); err != nil {
		return Figure{}, err
	}
	sleep(ctx, time.Until(due.Add(-burstMargin/2)))
	if err := other.paced(ctx, t); err != nil {
		return Figure{}, err
	}
	late, err := r.db.lateness(ctx, burst.bodies.queue)
	if err != nil {
		return Figure{}, err
	}
	var problems []string
	for _, l := range []*load{burst, other} {
		if err := l.settle(ctx); err != nil {
			return Figure{}, err
		}
		problems = append(problems, l.problems()...)
	}
	metrics := append([]Metric{{"last_available_ms", late.last}, {"median_available_ms", late.median}},
		latencies("fetch_", between(t.due, t.fetched), 50, 99, 100)...)
	params := append([]Param{{"burst", r.cfg.Burst}, {"scheduled", r.cfg.Scheduled}}, r.latencyParams()...)
	return Figure{Name: "schedule.burst", Params: params, Metrics: metrics, Jobs: r.cfg.Burst, Problems: problems}, nil
}

// schedule is n jobs, the first due at first, the others evenly over the time that follows.
type schedule struct {
	n     int
	first time.Time
	over  time.Duration
}

// scheduleChunk is how many jobs one transaction of schedule makes.
const scheduleChunk = 5000

// schedule fills a queue with jobs for later and notes them in the ledger, if there is one.
func (d *database) schedule(ctx context.Context, queue, args string, s schedule, l *ledger) error {
	for done := 0; done < s.n; done += scheduleChunk {
		rows, err := d.conn.Query(ctx, `SELECT ojs.enqueue($1, $2::json, $3, ('{"notify":false,"scheduled_at":"'
				|| to_char($4::timestamptz AT TIME ZONE 'UTC' + i * $5::float8 * interval '1 s', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"}')::json)
			FROM generate_series($6::int, $7::int) i`,
			jobType, args, queue, s.first, s.over.Seconds()/float64(s.n), done, min(done+scheduleChunk, s.n)-1)
		if err != nil {
			return fmt.Errorf("schedule by SQL: %w", err)
		}
		for rows.Next() {
			var id [16]byte
			if err := rows.Scan(&id); err != nil {
				return fmt.Errorf("schedule by SQL: %w", err)
			}
			if l != nil {
				l.enqueued = append(l.enqueued, jobID(id))
			}
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("schedule by SQL: %w", err)
		}
	}
	return nil
}

// lateness is how long after their due time the jobs of a queue became available, by the database's clock.
type lateness struct{ last, median float64 }

func (d *database) lateness(ctx context.Context, queue string) (late lateness, err error) {
	var waiting int
	err = d.conn.QueryRow(ctx, `SELECT COALESCE(max(ms), 0), COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), 0), count(*) - count(ms)
		FROM (SELECT date_part('epoch', enqueued_at - scheduled_at) * 1000 AS ms FROM ojs.job WHERE queue = $1) j`, queue).
		Scan(&late.last, &late.median, &waiting)
	if err == nil && waiting > 0 {
		err = fmt.Errorf("%d jobs are still not available", waiting)
	}
	if err != nil {
		return late, fmt.Errorf("read lateness: %w", err)
	}
	return late, nil
}

// cancelAll removes what a scenario has scheduled for a time after its end.
func (d *database) cancelAll(ctx context.Context, queue string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	_, _ = d.conn.Exec(ctx, `SELECT count(ojs.cancel(id)) FROM ojs.job WHERE queue = $1 AND state IN ('scheduled', 'available')`, queue)
}
