package queue

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// claimant is one fetch in a claim that several share.
type claimant struct {
	queues  []string
	count   int
	worker  string
	source  string
	leaseMS int64
}

// fetchers has one batcher for each list of queues, because a claim follows one order.
type fetchers struct {
	mu       sync.Mutex
	byQueues map[string]*batch.Batcher[claimant, []*job.Record]
}

// maxClaim bounds a statement; maxFetchers what is remembered of client-chosen queue lists.
const (
	maxClaim    = 1000
	maxFetchers = 10_000
)

func (f *fetchers) get(s *Store, queues []string) *batch.Batcher[claimant, []*job.Record] {
	key := strings.Join(queues, ",")
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.byQueues[key]
	if b == nil {
		if len(f.byQueues) >= maxFetchers {
			clear(f.byQueues) // batchers in use stay with their callers; claims of two batchers are safe
		}
		b = batch.New(batch.Config[claimant, []*job.Record]{
			Flush: s.flushFetch, Retry: pg.IsTransient, Max: maxClaim, Flushed: s.flushed("fetch"),
			Weight: func(c claimant) int { return c.count },
		})
		f.byQueues[key] = b
	}
	return b
}

// Fetch claims up to Count jobs, highest in dispatch order first. With Wait it parks until there is one. A caller that
// is gone (ctx) claims nothing more.
//
// A worker that shall be quiet gets nothing, at once (docs/reference/workers.md, Quiet workers).
func (s *Store) Fetch(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	s.workers.Fetch(f.WorkerID, f.Queues, f.Count)
	if s.workers.Quiet(f.WorkerID) {
		return nil, nil
	}
	s.timer.CatchUp(ctx)
	if f.Wait <= 0 {
		return s.claim(ctx, f)
	}

	w := s.ready.park(f.Queues)
	defer s.ready.leave(w)
	defer s.workers.Beat(f.WorkerID) // it has been there all the time
	timeout := time.NewTimer(f.Wait)
	defer timeout.Stop()
	for {
		jobs, err := s.claim(ctx, f)
		if err != nil || len(jobs) > 0 || !s.woken(ctx, f.WorkerID, w, timeout.C) {
			return jobs, err
		}
	}
}

// woken waits until there may be a job for the waiter; false if it shall not look again.
func (s *Store) woken(ctx context.Context, worker string, w *waiter, timeout <-chan time.Time) bool {
	for {
		changed := s.workers.QuietChanged(worker)
		if s.workers.Quiet(worker) {
			return false
		}
		select {
		case <-changed:
		case <-w.wake:
			return true
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		case <-s.draining:
			return false
		}
	}
}

// claim looks where jobs are known to be, and surveys the queues when that is due or finds nothing.
func (s *Store) claim(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	if due := s.ready.surveyDue(f.Queues, false); len(due) > 0 {
		if _, err := s.survey(ctx, due); err != nil {
			return nil, err
		}
	}
	b := s.fetchers.get(s, f.Queues)
	c := claimant{queues: f.Queues, count: f.Count, worker: f.WorkerID, source: eventlog.WorkerSource(f.WorkerID), leaseMS: f.VisibilityMS}
	jobs, err := b.Do(ctx, c)
	if err != nil || len(jobs) > 0 {
		return jobs, pg.ClientError(err)
	}
	due := s.ready.surveyDue(f.Queues, true)
	if len(due) == 0 {
		return nil, nil
	}
	if found, err := s.survey(ctx, due); err != nil || len(found) == 0 {
		return nil, err
	}
	jobs, err = b.Do(ctx, c)
	return jobs, pg.ClientError(err)
}

// survey reads where the queues' available jobs are.
func (s *Store) survey(ctx context.Context, queues []string) ([]Place, error) {
	if len(queues) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	probes := s.ready.surveyBegin(queues)
	start := time.Now()
	rows, err := s.db.Q.JobFetchSurvey(ctx, queues)
	found := make([]Place, len(rows))
	for i, r := range rows {
		found[i] = Place{r.Queue, r.Priority, r.ReadySeq}
	}
	s.ready.surveyEnd(queues, probes, found, time.Since(start), err != nil)
	return found, pg.ClientError(err)
}

// flushFetch shares one claim among the callers. Slots are dealt in turn, so that few jobs are spread over many
// callers; each caller's jobs stay in dispatch order.
func (s *Store) flushFetch(ctx context.Context, claimants []claimant) ([][]*job.Record, error) {
	res := make([][]*job.Record, len(claimants))
	owners := deal(claimants, s.workers.Quiet)
	if len(owners) == 0 {
		return res, nil
	}
	probes := s.ready.begin(claimants[0].queues)
	if len(probes) == 0 {
		return res, nil
	}
	params := s.fetchParams(probes, claimants)
	for _, owner := range owners {
		c := claimants[owner]
		params.Workers = append(params.Workers, c.worker)
		params.Sources = append(params.Sources, c.source)
		params.LeasesMs = append(params.LeasesMs, c.leaseMS)
	}
	params.Want = int32(len(owners))

	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobFetch(ctx, params)
	if err != nil {
		s.ready.end(probes, nil, false, true)
		return nil, err
	}
	s.ready.end(probes, lastClaimed(probes, rows), len(rows) == len(owners), false)

	eventlog.Emit(ctx, s.commits, rows, fetchChange)
	for slot := range rows {
		job, owner := (*job.Record)(&rows[slot]), owners[slot]
		res[owner] = append(res[owner], job)
		s.timer.Schedule(job.DueAt.Time.Sub(job.StartedAt.Time))
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	return res, nil
}

func (s *Store) fetchParams(probes []*probe, claimants []claimant) dbsqlc.JobFetchParams {
	params := dbsqlc.JobFetchParams{
		Queues:           make([]string, len(probes)),
		Priorities:       make([]int16, len(probes)),
		Lows:             make([]int64, len(probes)),
		DefaultLeaseMs:   s.config.DefaultVisibility.Milliseconds(),
		DefaultTimeoutMs: s.config.DefaultTimeout.Milliseconds(),
		Node:             s.commits.Node,
	}
	for i, p := range probes {
		params.Queues[i], params.Priorities[i], params.Lows[i] = p.queue, p.priority, p.low
	}
	return params
}

// deal gives the caller of each slot: one each in turn until everybody has as many as asked for. Callers that have become
// quiet since they came get none.
func deal(claimants []claimant, quiet func(worker string) bool) []int {
	total, counts := 0, make([]int, len(claimants))
	for i, c := range claimants {
		if !quiet(c.worker) {
			counts[i] = c.count
			total += c.count
		}
	}
	owners := make([]int, 0, total)
	for round := 0; len(owners) < total; round++ {
		for i, count := range counts {
			if round < count {
				owners = append(owners, i)
			}
		}
	}
	return owners
}

// lastClaimed is the highest ready_seq of the rows per probe.
func lastClaimed(probes []*probe, rows []dbsqlc.JobFetchRow) map[*probe]int64 {
	last := make(map[*probe]int64, 1)
	for _, r := range rows {
		for _, p := range probes {
			if p.priority == r.Priority && p.queue == r.Queue {
				last[p] = max(last[p], r.ReadySeq.Int64)
				break
			}
		}
	}
	return last
}

// Drain makes parked fetches return, and every later one answer at once.
func (s *Store) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }
