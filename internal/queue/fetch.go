package queue

import (
	"cmp"
	"context"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

// Fetch claims up to Count jobs in dispatch order. With Wait it parks until a job is available. It claims nothing after ctx
// has ended, because no client would receive the jobs.
//
// A quiet worker gets no jobs, and the answer at once (docs/reference/workers.md, Quiet workers).
func (s *Store) Fetch(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	s.workers.Fetch(f.WorkerID, f.Queues, f.Count)
	if s.workers.Quiet(f.WorkerID) {
		return nil, nil
	}
	s.timer.SweepDue(ctx)
	if f.Wait <= 0 {
		return s.claim(ctx, f)
	}
	return s.longPoll(ctx, f)
}

// claim claims jobs at the cursors of the queues. It surveys the queues before if a survey is due, and after if the claim
// found nothing.
func (s *Store) claim(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	if ctx.Err() != nil {
		return nil, nil //nolint:nilerr // the worker has gone, so nothing is claimed for it and nobody reads the answer
	}
	if due := s.cursors.surveyDue(f.Queues, false); len(due) > 0 {
		if _, err := s.survey(ctx, due); err != nil {
			return nil, err
		}
	}
	jobs, err := s.share(ctx, f)
	if err != nil || len(jobs) > 0 {
		return jobs, err
	}
	due := s.cursors.surveyDue(f.Queues, true)
	if len(due) == 0 {
		return nil, nil
	}
	if found, err := s.survey(ctx, due); err != nil || len(found) == 0 {
		return nil, err
	}
	return s.share(ctx, f)
}

// share claims in a statement with other fetches. If large jobs have used up the bytes of the statement before this fetch had
// one, it takes part in the next: each has at least one job. If the connection broke, it tries once more when the jobs that it
// may have claimed are available again.
func (s *Store) share(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	b, c := s.fetchers.get(s, f.Queues), newClaimant(f)
	for again := false; ; {
		res, err := b.Do(ctx, c)
		if pg.IsUnknown(err) && !again && s.handBackLost(ctx) == nil {
			again = true
			continue
		}
		if err != nil || len(res.jobs) > 0 || !res.cut || ctx.Err() != nil || s.workers.Quiet(f.WorkerID) {
			return res.jobs, pg.ClientError(err)
		}
	}
}

// survey reads the first available job per priority of the queues, without the lower bound of the cursors.
func (s *Store) survey(ctx context.Context, queues []string) ([]Place, error) {
	if len(queues) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // a worker that hangs up must not cost a connection
	defer cancel()
	survey := s.cursors.beginSurvey(queues)
	rows, err := s.db.Q.JobFetchSurvey(ctx, queues)
	if err != nil {
		s.cursors.failSurvey(survey)
		return nil, pg.ClientError(err)
	}
	found := make([]Place, len(rows))
	for i, r := range rows {
		found[i] = Place{r.Queue, r.Lane, r.Priority, r.ReadySeq}
	}
	s.cursors.endSurvey(survey, found)
	return found, nil
}

// claimant is one fetch in a claim that several fetches share.
type claimant struct {
	queues  []string
	count   int
	worker  string
	source  string
	leaseMS int64
	bytes   int
}

// share is what one fetch gets of a claim.
type share struct {
	jobs []*job.Record
	cut  bool // the claim ended because its jobs are large; there may be more
}

func newClaimant(f job.Fetch) claimant {
	return claimant{queues: f.Queues, count: f.Count, worker: f.WorkerID, source: eventlog.WorkerSource(f.WorkerID), leaseMS: f.VisibilityMS, bytes: cmp.Or(f.MaxBytes, job.MaxBytes)}
}

// fetchers has one batcher for each list of queues, because a claim follows one order.
type fetchers struct {
	mu       sync.Mutex
	byQueues map[string]*batch.Batcher[claimant, share]
}

const (
	maxClaim    = 1000   // jobs of one statement
	maxFetchers = 10_000 // remembered lists of queues, which clients choose
)

// get returns the batcher of a list of queues. Lists of the same queues in another order do not share one, because the order is the
// first rule of a claim.
func (f *fetchers) get(s *Store, queues []string) *batch.Batcher[claimant, share] {
	key := strings.Join(queues, ",")
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.byQueues[key]
	if b == nil {
		if len(f.byQueues) >= maxFetchers {
			clear(f.byQueues) // safe: fetches in flight keep their batcher, and two batchers may claim from the same queues
		}
		b = batch.New(batch.Config[claimant, share]{
			Flush: s.flushFetch, Retry: pg.IsTransient, Max: maxClaim, Flushed: s.flushed("fetch"),
			Weight: func(c claimant) int { return c.count },
		})
		f.byQueues[key] = b
	}
	return b
}

// flushFetch claims jobs for all claimants, in one statement unless one of their queues has a limit.
func (s *Store) flushFetch(ctx context.Context, claimants []claimant) ([]share, error) {
	if limited, err := s.limitedQueues(ctx, claimants[0].queues); err != nil || len(limited) > 0 {
		if err != nil {
			return nil, err
		}
		return s.flushLimited(ctx, claimants, limited)
	}
	c, ok := s.beginClaim(claimants, s.cursors.begin(claimants[0].queues))
	if !ok {
		return make([]share, len(claimants)), nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobFetchRow
	err := s.db.Write(ctx, func(conn *pgxpool.Conn) (err error) {
		rows, err = dbsqlc.New(conn).JobFetch(ctx, c.params)
		return err
	})
	if err != nil {
		s.cursors.fail(c.probes)
		s.lost.add(c.params.Claim, err)
		return nil, err
	}
	cut := s.endClaim(c, rows)
	shares := make([]share, len(claimants))
	for i, jobs := range s.afterClaim(ctx, c, rows) {
		shares[i] = share{jobs, cut}
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	return shares, nil
}

// claim is one statement JobFetch.
type claim struct {
	owners []int // the claimant of each slot
	probes []*probe
	params dbsqlc.JobFetchParams // with one worker per claimant
}

// beginClaim returns false if nothing can be claimed, and has then ended the probes. It assigns slots in turn, so that few
// jobs are spread over many claimants; the jobs of each claimant stay in dispatch order.
func (s *Store) beginClaim(claimants []claimant, probes []*probe) (claim, bool) {
	owners := assignSlots(claimants, s.workers.Quiet)
	if len(owners) == 0 || len(probes) == 0 {
		s.cursors.fail(probes)
		return claim{}, false
	}
	return s.newClaim(claimants, probes, owners), true
}

func (s *Store) newClaim(claimants []claimant, probes []*probe, owners []int) claim {
	c := claim{owners: owners, probes: probes, params: s.fetchParams(probes, claimants)}
	c.params.Owners = make([]int32, len(c.owners))
	for slot, owner := range c.owners {
		c.params.Owners[slot] = int32(owner) + 1 // arrays in SQL begin at 1
	}
	c.params.Want = int32(len(c.owners))
	for i := range c.params.Wants {
		c.params.Wants[i] = c.params.Want
	}
	return c
}

// endClaim raises the cursors, and reports whether the claim was cut at its bytes. A claim that was cut is like one that got
// all that it wanted: it has not read beyond its last job.
func (s *Store) endClaim(c claim, rows []dbsqlc.JobFetchRow) (cut bool) {
	cut = c.cut(rows)
	open := s.openProbes(c.probes)
	s.cursors.end(open, lastClaimed(open, rows), cut || len(rows) == len(c.owners))
	return cut
}

// cut reports whether the claim ended because its jobs are large.
func (c claim) cut(rows []dbsqlc.JobFetchRow) bool {
	bytes := int64(0)
	for i := range rows {
		bytes += int64((*job.Record)(&rows[i]).Weight())
	}
	return bytes > c.params.MaxBytes
}

// openProbes leaves out, and ends, those of queues that are paused: that the claim found nothing there says nothing about their jobs, which
// the first fetch after the pause has to find.
func (s *Store) openProbes(probes []*probe) []*probe {
	if view := s.configured.Latest(); view == nil || view.Plain() {
		return probes
	}
	var open, paused []*probe
	for _, p := range probes {
		if q := s.configured.Known(p.queue); q != nil && q.Status == queueconfig.Paused {
			paused = append(paused, p)
		} else {
			open = append(open, p)
		}
	}
	s.cursors.fail(paused)
	return open
}

// afterClaim emits the events and returns the jobs of each claimant.
func (s *Store) afterClaim(ctx context.Context, c claim, rows []dbsqlc.JobFetchRow) [][]*job.Record {
	res := make([][]*job.Record, len(c.params.Workers))
	eventlog.Emit(ctx, s.commits, rows, fetchChange)
	limited := false
	for slot := range rows {
		job, owner := (*job.Record)(&rows[slot]), c.owners[slot]
		res[owner] = append(res[owner], job)
		s.timer.Schedule(job.DueAt.Time.Sub(job.StartedAt.Time))
		limited = limited || job.LimitKey.Valid
	}
	if limited {
		s.onLimitedStarts()
	}
	return res
}

func (s *Store) fetchParams(probes []*probe, claimants []claimant) dbsqlc.JobFetchParams {
	params := dbsqlc.JobFetchParams{
		Workers:          make([]string, len(claimants)),
		Sources:          make([]string, len(claimants)),
		LeasesMs:         make([]int64, len(claimants)),
		Queues:           make([]string, len(probes)),
		Lanes:            make([]string, len(probes)),
		Priorities:       make([]int16, len(probes)),
		Lows:             make([]int64, len(probes)),
		Wants:            make([]int32, len(probes)),
		DefaultLeaseMs:   s.config.DefaultVisibility.Milliseconds(),
		DefaultTimeoutMs: s.config.DefaultTimeout.Milliseconds(),
		MaxBytes:         job.MaxBytes,
		Claim:            claimNumber(),
		Node:             s.commits.Node,
		EventType:        ojs.EventJobStarted,
	}
	for i, p := range probes {
		params.Queues[i], params.Lanes[i], params.Priorities[i], params.Lows[i] = p.queue, p.level.lane, p.level.priority, p.low
	}
	for i, c := range claimants {
		params.Workers[i], params.Sources[i], params.LeasesMs[i] = c.worker, c.source, c.leaseMS
		// the smallest limit holds for all, and who gets nothing claims again (Store.share)
		params.MaxBytes = min(params.MaxBytes, int64(c.bytes))
	}
	return params
}

// assignSlots returns the claimant of each slot: one slot each in turn, until every claimant has as many as it asked for.
// Workers that became quiet since their fetch began get none.
func assignSlots(claimants []claimant, quiet func(worker string) bool) []int {
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

// lastClaimed is the highest claimed ready_seq per probe.
func lastClaimed(probes []*probe, rows []dbsqlc.JobFetchRow) map[*probe]int64 {
	last := make(map[*probe]int64, 1)
	for _, r := range rows {
		for _, p := range probes {
			if p.level.priority == r.Priority && p.queue == r.Queue && p.level.lane == r.Lane {
				last[p] = max(last[p], r.ReadySeq.Int64)
				break
			}
		}
	}
	return last
}
