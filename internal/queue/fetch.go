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
	"github.com/ojsd/ojsd/ojs"
)

// Fetch claims up to Count jobs in dispatch order. With Wait it parks until a job is available. It claims nothing after ctx
// has ended, because no client would receive the jobs.
//
// A quiet worker gets no jobs, and the answer at once (docs/reference/workers.md, Quiet workers).
func (s *Store) Fetch(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	return s.FetchBy(ctx, f, By{})
}

// By is how a fetch claims that chooses between its queues itself. The zero value claims in dispatch order.
type By struct {
	// Claim claims jobs, through Store.Claim.
	Claim func(ctx context.Context) ([]*job.Record, error)

	// Changed returns a channel that is closed when a claim that found nothing may find something, although no job became available.
	Changed func() <-chan struct{}
}

// FetchBy is Fetch with another way to claim. What parks by it is woken for jobs, but claims itself: no enqueue claims for it.
func (s *Store) FetchBy(ctx context.Context, f job.Fetch, by By) ([]*job.Record, error) {
	s.workers.Fetch(f.WorkerID, f.Queues, f.Count)
	if s.workers.Quiet(f.WorkerID) {
		return nil, nil
	}
	s.timer.SweepDue(ctx)
	if f.Wait > 0 {
		return s.longPoll(ctx, f, by)
	}
	if by.Claim != nil {
		return by.Claim(ctx)
	}
	return s.Claim(ctx, f)
}

// Claim claims jobs at the cursors of the queues. It surveys the queues before if a survey is due, and after if the claim
// found nothing.
func (s *Store) Claim(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	if ctx.Err() != nil {
		return nil, nil //nolint:nilerr // the worker has gone, so nothing is claimed for it and nobody reads the answer
	}
	seen := scopes(f.Queues, f.Tenant)
	if due := s.cursors.surveyDue(seen, false); len(due) > 0 {
		if _, err := s.survey(ctx, due); err != nil {
			return nil, err
		}
	}
	jobs, err := s.share(ctx, f)
	if err != nil || len(jobs) > 0 {
		return jobs, err
	}
	due := s.cursors.surveyDue(seen, true)
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
	b, c := s.fetchers.get(s, f), newClaimant(f)
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

// claimant is one fetch in a claim that several fetches share.
type claimant struct {
	queues  []string
	tenant  string
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
	return claimant{queues: f.Queues, tenant: f.Tenant, count: f.Count, worker: f.WorkerID, source: eventlog.WorkerSource(f.WorkerID), leaseMS: f.VisibilityMS, bytes: cmp.Or(f.MaxBytes, job.MaxBytes)}
}

// fetchers has one batcher for each list of queues and tenant, because a claim follows one order.
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
func (f *fetchers) get(s *Store, of job.Fetch) *batch.Batcher[claimant, share] {
	key := strings.Join(of.Queues, ",")
	if of.Tenant != "" {
		key += "/" + of.Tenant
	}
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

// flushFetch claims jobs for all claimants in one statement. Only if lanes or priorities share the jobs, and those whose turn it was had
// too few, others follow for the rest.
func (s *Store) flushFetch(ctx context.Context, claimants []claimant) ([]share, error) {
	shares := make([]share, len(claimants))
	owners := assignSlots(claimants, s.workers.Quiet)
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	bytes := int64(0) // of the jobs claimed so far
	for spare := minSpare; ; spare = min(4*spare, maxSpare) {
		c, ok := s.beginClaim(claimants, owners, spare)
		if !ok {
			return shares, nil
		}
		c.params.MaxBytes -= bytes
		rows, err := s.sendClaim(ctx, c)
		if err != nil && bytes == 0 {
			return nil, err
		}
		if err != nil { // the jobs of the statements before are answered
			return shares, nil
		}
		claimed, cut := s.endClaim(c, rows)
		bytes += claimed
		for i, jobs := range s.afterClaim(ctx, c, rows) {
			shares[i].jobs, shares[i].cut = append(shares[i].jobs, jobs...), cut
		}
		if len(rows) > 0 {
			s.commits.Committed()
		}
		owners = owners[len(rows):]
		if !c.last || cut || len(owners) == 0 {
			return shares, nil
		}
	}
}

// sendClaim runs the statement.
func (s *Store) sendClaim(ctx context.Context, c claim) (rows []dbsqlc.JobFetchRow, err error) {
	err = s.db.Write(ctx, func(conn *pgxpool.Conn) (err error) {
		rows, err = dbsqlc.New(conn).JobFetch(ctx, c.params)
		return err
	})
	if err != nil {
		s.cursors.fail(c.probes)
		s.lost.add(c.params.Claim, err)
	}
	return rows, err
}

// A statement may read some lanes more than it has slots for, in case those whose turn it is have too few jobs; each further
// statement of a claim four times as many.
const (
	minSpare = 16
	maxSpare = 4096
)

// claim is one statement JobFetch.
type claim struct {
	owners []int // the claimant of each slot
	probes []*probe
	last   bool                  // there is more to claim from than the statement reads
	params dbsqlc.JobFetchParams // with one worker per claimant
}

// beginClaim returns false if nothing can be claimed, and has then ended the probes.
func (s *Store) beginClaim(claimants []claimant, owners []int, spare int) (claim, bool) {
	c := claim{owners: owners}
	if len(owners) == 0 {
		return c, false
	}
	c.probes, c.last = s.cursors.begin(want{claimants[0].queues, claimants[0].tenant, len(owners), spare, s.weights})
	if len(c.probes) == 0 {
		return c, false
	}
	c.params = s.fetchParams(c.probes, claimants)
	c.params.Owners = make([]int32, len(owners))
	for slot, owner := range owners {
		c.params.Owners[slot] = int32(owner) + 1 // arrays in SQL begin at 1
	}
	c.params.Want = int32(len(owners))
	return c, true
}

// endClaim raises the cursors, and returns the bytes of the jobs and whether the claim was cut at them. A claim that was cut is like one that got
// all that it wanted: it has not read beyond its last job.
func (s *Store) endClaim(c claim, rows []dbsqlc.JobFetchRow) (bytes int64, cut bool) {
	for i := range rows {
		bytes += int64((*job.Record)(&rows[i]).Weight())
	}
	cut = bytes > c.params.MaxBytes
	tally(c.probes, rows)
	s.cursors.end(c.probes, cut || len(rows) == len(c.owners))
	return bytes, cut
}

// afterClaim emits the events and returns the jobs of each claimant.
func (s *Store) afterClaim(ctx context.Context, c claim, rows []dbsqlc.JobFetchRow) [][]*job.Record {
	res := make([][]*job.Record, len(c.params.Workers))
	eventlog.Emit(ctx, s.commits, rows, fetchChange)
	for slot := range rows {
		job, owner := (*job.Record)(&rows[slot]), c.owners[slot]
		res[owner] = append(res[owner], job)
		s.timer.Schedule(job.DueAt.Time.Sub(job.StartedAt.Time))
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
		rank := p.level.party.rank
		params.Queues[i], params.Lanes[i], params.Priorities[i], params.Lows[i], params.Wants[i] = rank.queue.name, p.level.lane, rank.priority, p.low, int32(p.want)
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

// tally counts the claimed jobs of each probe. They come in the order of the probes.
func tally(probes []*probe, rows []dbsqlc.JobFetchRow) {
	at := 0
	for i := range rows {
		r := &rows[i]
		for range probes {
			if p := probes[at]; p.level.lane == r.Lane && p.level.party.rank.priority == r.Priority && p.level.party.rank.queue.name == r.Queue {
				p.got++
				p.last = max(p.last, r.ReadySeq.Int64)
				break
			}
			at = (at + 1) % len(probes)
		}
	}
}

// Idle reports whether nothing is known that the fetch could claim, and it is too early to look again.
func (s *Store) Idle(f job.Fetch) bool { return s.cursors.idle(f) }
