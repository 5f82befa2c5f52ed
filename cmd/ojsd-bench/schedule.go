package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// scheduleSpread is the time over which the many scheduled jobs become due. It is longer than the measurement, so that most
	// of the jobs stay scheduled while others run.
	scheduleSpread = time.Hour

	// The burst becomes due burstMargin after it has been enqueued, if that goes at fillRate jobs a second. If it is
	// slower, it is tried again with twice the margin, burstTries times in all.
	burstMargin = 2 * time.Second
	fillRate    = 2000
	burstTries  = 4
)

// runSchedule enqueues many jobs that become due over the next hour, and measures the fetch latency of another queue
// meanwhile. Then it has many jobs become due at the same moment, and measures how late they are available.
func runSchedule(ctx context.Context, r *runner) error {
	futures := map[*runner]*load{}
	defer func() {
		for r, future := range futures {
			r.db.cancelAll(context.WithoutCancel(ctx), future.bodies.queue)
		}
	}()
	err := r.onSides(func(r *runner) error {
		futures[r] = r.newLoad("future")
		return r.fillFuture(ctx, futures[r])
	})
	if err != nil {
		return err
	}
	err = r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) {
		f, err := measureFetchLatency(ctx, r)
		f.Name, f.Params = "schedule.latency", append([]param{{"scheduled", r.cfg.Scheduled}}, f.Params...)
		return f, err
	})
	if err != nil {
		return err
	}
	return r.repeat(ctx, measureBurst)
}

func (r *runner) fillFuture(ctx context.Context, future *load) error {
	start := time.Now()
	if err := r.db.schedule(ctx, future.bodies, schedule{r.cfg.Scheduled, start, scheduleSpread}, nil); err != nil {
		return err
	}
	r.out.printf("%s: %s jobs scheduled over %s, filled in %.1f s by ojs.enqueue()", future.bodies.queue,
		numberText(float64(r.cfg.Scheduled)), scheduleSpread, time.Since(start).Seconds())
	if err := r.db.waitPublished(ctx); err != nil {
		return err
	}
	r.pause(ctx)
	return nil
}

// measureBurst has many jobs become due at once while another queue is in use. The other queue runs for --duration around the
// due time, so its latency shows what the burst does to others.
func measureBurst(ctx context.Context, r *runner) (figure, error) {
	burst, due, err := r.enqueueBurst(ctx)
	if err != nil {
		return figure{}, err
	}
	if err := r.db.waitPublished(ctx); err != nil {
		return figure{}, err
	}
	sleep(ctx, time.Until(due.Add(-burstMargin/2)))
	other, t := r.newLoad("latency"), newTimeline()
	if err := other.runAtRate(ctx, t); err != nil {
		return figure{}, err
	}
	late, err := r.db.lateness(ctx, burst.bodies.queue, r.cfg.stallTimeout)
	if err != nil {
		return figure{}, err
	}
	var problems []string
	for _, l := range []*load{burst, other} {
		if err := l.emptyQueue(ctx); err != nil {
			return figure{}, err
		}
		problems = append(problems, l.problems()...)
	}
	metrics := append([]metric{{"last_available_ms", late.last}, {"median_available_ms", late.median}},
		latencies("fetch_", elapsed(t.due, t.fetched), 50, 99, 100)...)
	params := append([]param{{"burst", r.cfg.Burst}, {"scheduled", r.cfg.Scheduled}}, r.latencyParams()...)
	return figure{Name: "schedule.burst", Params: params, Metrics: metrics, Jobs: r.cfg.Burst, Problems: problems}, nil
}

// enqueueBurst enqueues --burst jobs for one moment, which is still to come when it returns. Jobs of a burst that came too late
// are cancelled, because a part of them would have been due during the filling.
func (r *runner) enqueueBurst(ctx context.Context) (*load, time.Time, error) {
	margin := burstMargin
	for range burstTries {
		burst := r.newLoad("burst")
		due := time.Now().Add(time.Duration(r.cfg.Burst)*time.Second/fillRate + margin)
		if err := r.db.schedule(ctx, burst.bodies, schedule{r.cfg.Burst, due, 0}, &burst.jobs); err != nil {
			return nil, due, err
		}
		if time.Now().Before(due) {
			return burst, due, nil
		}
		r.db.cancelAll(ctx, burst.bodies.queue)
		margin *= 2
	}
	return nil, time.Time{}, fmt.Errorf("enqueuing the %d jobs of the burst took too long; give a smaller --burst", r.cfg.Burst)
}

// schedule is n jobs, due at even distances over the time that begins with first.
type schedule struct {
	n     int
	first time.Time
	over  time.Duration
}

// scheduleChunk is how many jobs one transaction of schedule makes.
const scheduleChunk = 5000

// schedule enqueues jobs for later and appends them to jobs.enqueued, unless jobs is nil.
func (d *database) schedule(ctx context.Context, b bodies, s schedule, jobs *jobLists) error {
	for done := 0; done < s.n; done += scheduleChunk {
		rows, err := d.conn.Query(ctx, `SELECT ojs.enqueue($1, $2::json, $3, ('{"scheduled_at":"'
				|| to_char($4::timestamptz AT TIME ZONE 'UTC' + i * $5::float8 * interval '1 s', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"}')::json)
			FROM generate_series($6::int, $7::int) i`,
			jobType, b.args, b.queue, s.first, s.over.Seconds()/float64(s.n), done, min(done+scheduleChunk, s.n)-1)
		if err != nil {
			return fmt.Errorf("schedule by SQL: %w", err)
		}
		ids, err := collectIDs(rows)
		if err != nil {
			return fmt.Errorf("schedule by SQL: %w", err)
		}
		if jobs != nil {
			jobs.enqueued = append(jobs.enqueued, ids...)
		}
	}
	return nil
}

// lateness is how long after their due time the jobs of a queue became available, by the database's clock.
type lateness struct{ last, median float64 }

var errNotAvailable = errors.New("scheduled jobs are not available yet")

// lateness waits, up to limit, until all jobs of the queue are available.
func (d *database) lateness(ctx context.Context, queue string, limit time.Duration) (lateness, error) {
	for end := time.Now().Add(limit); ; sleep(ctx, 100*time.Millisecond) {
		late, err := d.readLateness(ctx, queue)
		if err == nil || !errors.Is(err, errNotAvailable) || time.Now().After(end) {
			return late, err
		}
	}
}

func (d *database) readLateness(ctx context.Context, queue string) (late lateness, err error) {
	var waiting int
	err = d.conn.QueryRow(ctx, `SELECT COALESCE(max(ms), 0), COALESCE(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), 0), count(*) - count(ms)
		FROM (SELECT date_part('epoch', enqueued_at - scheduled_at) * 1000 AS ms FROM ojs.job WHERE queue = $1) j`, queue).
		Scan(&late.last, &late.median, &waiting)
	if err != nil {
		return late, fmt.Errorf("read lateness: %w", err)
	}
	if waiting > 0 {
		return late, fmt.Errorf("%w: %d of queue %s", errNotAvailable, waiting, queue)
	}
	return late, nil
}

// cancelAll cancels the jobs of a queue that would become due after the scenario. Its errors are ignored: jobs that
// remain use space, and nothing else.
func (d *database) cancelAll(ctx context.Context, queue string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	_, _ = d.conn.Exec(ctx, `SELECT count(ojs.cancel(id)) FROM ojs.job WHERE queue = $1 AND state IN ('scheduled', 'available')`, queue)
}
