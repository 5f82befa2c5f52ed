package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// sdkRawWorkers is the number of raw workers that an SDK worker is compared with. Together they hold as many jobs as it.
const sdkRawWorkers = 10

// runSDK compares one worker of package ojs, whose handler does nothing, with raw workers that have as many jobs in hand and acknowledge and
// fetch in one call. Both run in each round, and take turns in being first.
func runSDK(ctx context.Context, r *runner) error {
	for _, concurrency := range []int{100, 1000} {
		round := 0
		err := r.repeat(ctx, func(ctx context.Context, r *runner) (figure, error) {
			round++
			return r.measureSDK(ctx, concurrency, round%2 == 0)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// The ratio is of two figures of the same round, seconds apart, so a busy machine disturbs both.
func (r *runner) measureSDK(ctx context.Context, concurrency int, sdkFirst bool) (figure, error) {
	var sdk, raw figure
	measures := []func() error{
		func() (err error) { sdk, err = r.drainBySDK(ctx, concurrency); return err },
		func() (err error) {
			raw, err = r.measureDrain(ctx, drainPlan{r.cfg.Jobs, sdkRawWorkers, concurrency / sdkRawWorkers, ackFetch})
			return err
		},
	}
	if !sdkFirst {
		slices.Reverse(measures)
	}
	for _, measure := range measures {
		if err := measure(); err != nil {
			return figure{}, err
		}
	}
	rate, rawRate := sdk.Metrics[0].Value, raw.Metrics[0].Value
	return figure{
		Name: "sdk", Params: []param{{"concurrency", concurrency}},
		Metrics: append([]metric{{"jobs_per_s", rate}, {"raw_jobs_per_s", rawRate}, {"sdk_to_raw_ratio", rate / max(rawRate, 1)}}, sdk.Metrics[1:]...),
		Jobs:    sdk.Jobs, Errors: sdk.Errors + raw.Errors, Problems: append(sdk.Problems, raw.Problems...),
	}, nil
}

// drainBySDK measures from the start of the worker until it has stopped: the last outcomes are reported then.
// The handler that gets the last job stops the worker. Whether all acks arrived is asked of the server afterwards.
func (r *runner) drainBySDK(ctx context.Context, concurrency int) (figure, error) {
	l := r.newLoad("sdk")
	if err := l.preload(ctx, r.cfg.Jobs); err != nil {
		return figure{}, err
	}
	logger := slog.New(slog.DiscardHandler)
	c, err := ojs.NewClient(ojs.Config{URL: r.target.base, Logger: logger})
	if err != nil {
		return figure{}, err
	}
	defer c.Close()
	w := ojs.NewWorker(c, ojs.WorkerConfig{Queues: []string{l.bodies.queue}, Concurrency: concurrency, VisibilityTimeout: visibilityTimeoutMS * time.Millisecond})
	running, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	w.Register(jobType, func(ctx ojs.JobContext) error {
		id, err := parseID([]byte(ctx.Job.ID))
		mu.Lock()
		defer mu.Unlock()
		l.jobs.fetched = append(l.jobs.fetched, id)
		if len(l.jobs.fetched) == r.cfg.Jobs {
			stop()
		}
		return err
	})
	r.pause(ctx)
	before, start := l.server.cpuTime(), time.Now()
	err = w.Start(running)
	took := time.Since(start)
	cpu := l.server.cpuTime().minus(before)
	if err != nil {
		return figure{}, fmt.Errorf("worker: %w", errors.Join(err, ctx.Err()))
	}
	stats, err := ojsadmin.New(c).QueueStats(ctx, l.bodies.queue)
	if err != nil {
		return figure{}, err
	}
	l.jobs.acked = append(l.jobs.acked, l.jobs.fetched...)
	f := l.figure("sdk", nil, append([]metric{{"jobs_per_s", float64(r.cfg.Jobs) / took.Seconds()}}, cpu.perJob(r.cfg.Jobs)...), r.cfg.Jobs)
	if left := stats.Available + stats.Active + stats.Retryable + stats.Discarded; left > 0 {
		f.Problems = append(f.Problems, fmt.Sprintf("%d jobs are not completed", left))
	}
	return f, nil
}
