package queue

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

// By is how a fetch claims that chooses between its queues itself. The zero value claims in dispatch order.
type By struct {
	// Claim claims jobs, through Store.Claim.
	// nil: in dispatch order.
	Claim func(ctx context.Context) ([]*job.Record, error)

	// Changed returns a channel that is closed when a claim that found nothing may find something, although no job became available.
	// Package pool uses it for rooms of pools that other claims free. nil: only jobs wake the fetch.
	Changed func() <-chan struct{}

	// Until ends the wait of a waiting fetch when it is closed, for callers that may decide again how to fetch. nil: never.
	Until <-chan struct{}
}

// Fetch claims up to Count jobs, in dispatch order or as by says. With Wait it waits until a job is available; a fetch with a claim of its
// own is woken for jobs, but no enqueue claims for it. It claims nothing after ctx has ended, because no client would receive the jobs.
//
// A quiet worker gets no jobs, and the answer at once (docs/reference/workers.md, Quiet workers).
//
// When it returns jobs, their claim is committed and their leases run: a caller that cannot deliver them has to call HandBack. Two fetches
// never get one job, on any node (SKIP LOCKED). An error means that this call has no jobs; what a lost answer may have claimed is handed
// back by the node.
func (s *Store) Fetch(ctx context.Context, f job.Fetch, by By) ([]*job.Record, error) {
	s.workers.Fetch(f.WorkerID, f.Queues, f.Count)
	if s.workers.Quiet(f.WorkerID) {
		return nil, nil
	}
	// What is due by the knowledge of this node becomes available before the claim. Otherwise a worker that polls would get it a
	// poll later.
	s.timer.SweepDue(ctx)
	if f.Wait > 0 {
		return s.longPoll(ctx, f, by)
	}
	if by.Claim != nil {
		return by.Claim(ctx)
	}
	return s.Claim(ctx, f)
}

// Claim claims jobs at the cursors of the queues. It rescans the queues before if a rescan is due, and after if the claim
// found nothing.
//
// It may send up to two rescans, three claims and one look at limit-blocked jobs; nearly always one claim, and for empty queues nothing.
func (s *Store) Claim(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	if ctx.Err() != nil {
		return nil, nil //nolint:nilerr // the worker has gone, so nothing is claimed for it and nobody reads the answer
	}
	// No fetch is told that there is maintenance (docs/reference/admin.md, Maintenance).
	if s.maintenance.On() {
		return nil, nil
	}
	seen := scopes(f.Queues, f.Tenant)
	// A node that knows nothing of a queue cannot claim from it.
	if due := s.cursors.rescanDue(seen, false); len(due) > 0 {
		if _, err := s.rescan(ctx, due); err != nil {
			return nil, err
		}
	}
	jobs, err := s.claimShared(ctx, f)
	// Slots are left, so jobs that wait for limits are looked at: a policy may drop or schedule those that a fetch finds blocked.
	if err == nil && len(jobs) < f.Count {
		var letStart bool
		if letStart, err = s.handleLimitBlocked(ctx, f.Queues, f.Tenant); err != nil && len(jobs) > 0 {
			s.logger.WarnContext(ctx, "jobs that wait for rate limits were not looked at; the next fetch does it",
				slog.String("category", "error"), slog.Any("error", err))
			err = nil
		} else if letStart && len(jobs) == 0 {
			jobs, err = s.claimShared(ctx, f)
		}
	}
	if err != nil || len(jobs) > 0 {
		return jobs, err
	}
	// Nothing was found at the cursors. They may have passed jobs whose transaction committed late, which only a rescan finds.
	due := s.cursors.rescanDue(seen, true)
	if len(due) == 0 {
		return nil, nil
	}
	if found, err := s.rescan(ctx, due); err != nil || len(found) == 0 {
		return nil, err
	}
	return s.claimShared(ctx, f)
}

// claimShared claims in a statement with other fetches. If large jobs have used up the bytes of the statement before this fetch had
// one, it takes part in the next: each has at least one job. If the connection broke, it tries once more when the jobs that it
// may have claimed are available again.
// It is tried again only if the jobs of the lost claim are handed back: otherwise the fetch would get others while the first ones
// stand reserved for its worker.
func (s *Store) claimShared(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	b, c := s.fetchers.get(s, f), newClaimant(f)
	for again := false; ; {
		res, err := b.Do(ctx, c)
		s.followWorkflows(ctx, res.workflows)
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
// It is made once per claimShared and does not change; flushes read it without a lock.
type claimant struct {
	queues []string
	// The same for all claimants of a flush, like queues.
	tenant string
	// 1 to 1 000, the weight of the claimant in its flush. So maxClaim bounds the slots of a claim.
	count  int
	worker string
	source string
	// 0: the length of the job, or the default.
	leaseMS int64
	// The most bytes of jobs that the answer may have: job.MaxBytes or less (gRPC messages are smaller).
	bytes int
}

// fetchAnswer is what one fetch gets of a claim.
type fetchAnswer struct {
	jobs []*job.Record
	cut  bool // the claim ended because its jobs are large; there may be more
	// Of jobs that the claim dropped. They follow after the flush, for which the other fetches wait; the first fetch of it sees to that.
	workflows [][16]byte
}

func newClaimant(f job.Fetch) claimant {
	return claimant{queues: f.Queues, tenant: f.Tenant, count: f.Count, worker: f.WorkerID, source: eventlog.WorkerSource(f.WorkerID),
		leaseMS: f.VisibilityMS, bytes: cmp.Or(f.MaxBytes, job.MaxBytes)}
}

// fetchers has one batcher for each list of queues and tenant, because a claim follows one order.
// byQueues is made by New and guarded by mu.
type fetchers struct {
	mu       sync.Mutex
	byQueues map[string]*batch.Batcher[claimant, fetchAnswer]
}

const (
	maxClaim    = 1000   // jobs of one statement
	maxFetchers = 10_000 // remembered lists of queues, which clients choose
)

// get returns the batcher of a list of queues. Lists of the same queues in another order do not share one, because the order is the
// first rule of a claim.
// The key cannot be ambiguous: names of queues and tenants have neither a comma nor a slash.
func (f *fetchers) get(s *Store, of job.Fetch) *batch.Batcher[claimant, fetchAnswer] {
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
		b = batch.New(batch.Config[claimant, fetchAnswer]{
			Flush: s.flushFetch, Retry: pg.IsTransient, Max: maxClaim, Flushed: s.flushed("fetch"),
			Weight: func(c claimant) int { return c.count },
		})
		f.byQueues[key] = b
	}
	return b
}

// flushFetch claims jobs for all claimants, in one statement unless one of their queues has a limit. If lanes share the jobs, and those
// whose turn it was had too few, others follow for the rest.
//
// Each round is a statement, or a transaction with limits, and commits by itself. What the rounds before have claimed is answered even if a
// later one fails: it is reserved. The lost outcome of a later round is found by its number.
func (s *Store) flushFetch(ctx context.Context, claimants []claimant) ([]fetchAnswer, error) {
	w := claimRequest{queues: claimants[0].queues, tenant: claimants[0].tenant, lookahead: minLookahead, weights: s.weights}
	limited, err := s.limitedQueues(ctx, w.queues)
	if err != nil {
		return nil, err
	}
	answers := make([]fetchAnswer, len(claimants))
	// Slots are assigned before the claim, and the rows come in the order of slots: so the jobs are divided in turn, whatever
	// their number.
	owners := assignSlots(claimants, s.workers.Quiet)
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// bytes are those of all rounds together, because one answer has to hold them.
	for bytes, round := int64(0), 0; len(owners) > 0 && round < maxRounds; round++ {
		w.queues, w.slots = s.withoutPaused(w.queues), len(owners)
		reads, last := s.cursors.begin(w)
		if len(reads) == 0 {
			break
		}
		var claims []claim
		if len(limited) > 0 {
			claims, err = s.claimLimited(ctx, claimants, owners, reads, limited, bytes)
		} else {
			c := s.newClaim(claimants, reads, owners, bytes)
			err = s.db.Write(ctx, func(conn *pgxpool.Conn) (err error) {
				c.rows, err = claimJobs(ctx, dbsqlc.New(conn), &c.params)
				return err
			})
			if err != nil {
				s.lost.add(c.params.Claim, err) // it may have committed
			}
			claims = []claim{c}
		}
		if err != nil {
			s.cursors.fail(reads)
			if round == 0 {
				return nil, err
			}
			break // the jobs of the rounds before are answered
		}
		jobs, cut, full := 0, false, []string(nil)
		for i := range claims {
			c := &claims[i]
			answers[0].workflows = append(answers[0].workflows, c.workflows...)
			if c.full {
				full = append(full, c.queue)
			}
			if c.owners == nil { // it was not sent: its cursors must stay where they were
				s.cursors.fail(c.reads)
				continue
			}
			size, ended := s.endClaim(c)
			for n, own := range s.afterClaim(ctx, c) {
				answers[n].jobs, answers[n].cut = append(answers[n].jobs, own...), answers[n].cut || ended
			}
			jobs, bytes, cut = jobs+len(c.rows), bytes+size, cut || ended
		}
		if jobs > 0 {
			s.commits.Committed() // once for all claims: the relay and the timer wake on it
		}
		if !last || cut {
			break
		}
		// The slots that got jobs are the first ones, so the rest stands behind them. Queues whose limit allows no more are left out.
		owners, w.lookahead = owners[jobs:], min(4*w.lookahead, maxLookahead)
		w.queues = slices.DeleteFunc(slices.Clone(w.queues), func(q string) bool { return slices.Contains(full, q) })
	}
	return answers, nil
}

const (
	// minLookahead is how many lanes a statement may read more than it has slots for, in case those whose turn it is have too few jobs;
	// each further statement of a claim four times as many. Few lookahead lanes cost nearly nothing: the statement stops before them if
	// those in front have enough jobs.
	minLookahead = 16
	maxLookahead = 4096

	// maxRounds bounds the statements of one claim. With lookahead lanes they reach more than a node remembers of a queue.
	// From 16, growing to 4 096, they read about 250 000 lane cursors: more than maxLanes.
	maxRounds = 64
)

// withoutPaused leaves out queues that the node knows to be paused.
// The statement looks at the status as well, so what the node does not know yet only costs a read in vain.
func (s *Store) withoutPaused(queues []string) []string {
	if view := s.configured.Latest(); view == nil || view.Plain() {
		return queues
	}
	return slices.DeleteFunc(slices.Clone(queues), s.isPaused)
}

func (s *Store) isPaused(name string) bool {
	q := s.configured.Known(name)
	return q != nil && q.Status == queueconfig.Paused
}

// claimJobs returns the jobs in the order in which the claim found them.
// A data-modifying WITH returns its rows in any order, hence the sort by slot.
func claimJobs(ctx context.Context, q *dbsqlc.Queries, p *dbsqlc.JobFetchParams) ([]job.Record, error) {
	rows, err := q.JobFetch(ctx, *p)
	order := make([]int, len(rows))
	for i := range rows {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(rows[a].Slot, rows[b].Slot) })
	jobs := make([]job.Record, len(rows))
	for i, n := range order {
		jobs[i] = claimedRecord(&rows[n])
	}
	return jobs, err
}

// claimedRecord sets the columns that JobFetch leaves out, because they are the same for every job that it claims. ReadySeq is the place
// of the job before the claim, not the number of the claim, which the table has.
// endClaim needs that place to raise the cursors.
func claimedRecord(r *dbsqlc.JobFetchRow) job.Record {
	return job.Record{
		ID: r.ID, Type: r.Type, Queue: r.Queue, State: string(ojs.StateActive), Priority: r.Priority, Attempt: r.Attempt,
		MaxAttempts: r.MaxAttempts, ReadySeq: r.ReadySeq, DueAt: r.DueAt, CreatedAt: r.CreatedAt, EnqueuedAt: r.EnqueuedAt,
		StartedAt: r.StartedAt, ScheduledAt: r.ScheduledAt, ExpiresAt: r.ExpiresAt, TotalDueAt: r.TotalDueAt, WorkerID: r.WorkerID,
		LeaseUntil: r.LeaseUntil, LeaseMs: r.LeaseMs, StallDueAt: r.StallDueAt, VisibilityMs: r.VisibilityMs, TimeoutMs: r.TimeoutMs,
		GraceMs: r.GraceMs, StallMs: r.StallMs, RetryDelayMs: r.RetryDelayMs, ResultTtlS: r.ResultTtlS, ReEnqueuedAt: r.ReEnqueuedAt,
		ReplayCount: r.ReplayCount, TraceID: r.TraceID, Cron: r.Cron, CronSerial: r.CronSerial, WorkflowID: r.WorkflowID,
		UniqueKey: r.UniqueKey, Lane: r.Lane, LimitKey: r.LimitKey, OnLimit: r.OnLimit, Retry: r.Retry, Args: r.Args, Meta: r.Meta,
		Extra: r.Extra, Error: r.Error, Errors: r.Errors, PreviousErrors: r.PreviousErrors, Checkpoint: r.Checkpoint,
		CheckpointSeq: r.CheckpointSeq, CheckpointAt: r.CheckpointAt, Size: r.Size,
	}
}

// claim is one statement JobFetch and what it has claimed.
type claim struct {
	reads  []*cursorRead
	owners []int                 // the claimant of each slot; nil: it was not sent, as its limit allows none or the one before was cut
	params dbsqlc.JobFetchParams // with one worker per claimant
	rows   []job.Record          // in the order of slots

	// Of a claim from a queue with a limit.
	queue     string
	full      bool                           // its limit permits no more
	handled   []dbsqlc.LimitHandleBlockedRow // jobs that its limit did not let start, and that its policy drops or schedules
	workflows [][16]byte                     // of those that were dropped
}

// newClaim prepares a claim. After it the caller must end the reads, by endClaim or by cursors.fail. owners may be fewer than the reads
// have wants for: want in the statement is what counts. bytes are those that the claimants have got already. Reads come in dispatch order,
// which the nested loop of the statement keeps. The number of the claim is a fresh one; claimLimited replaces it.
func (s *Store) newClaim(claimants []claimant, reads []*cursorRead, owners []int, bytes int64) claim {
	params := dbsqlc.JobFetchParams{
		Workers:          make([]string, len(claimants)),
		Sources:          make([]string, len(claimants)),
		LeasesMs:         make([]int64, len(claimants)),
		Queues:           make([]string, len(reads)),
		Lanes:            make([]string, len(reads)),
		Priorities:       make([]int16, len(reads)),
		Lows:             make([]int64, len(reads)),
		Wants:            make([]int32, len(reads)),
		Owners:           make([]int32, len(owners)),
		Want:             int32(len(owners)),
		DefaultLeaseMs:   s.config.Jobs.VisibilityTimeout.Milliseconds(),
		DefaultTimeoutMs: s.config.Jobs.Timeout.Milliseconds(),
		MaxBytes:         job.MaxBytes,
		Claim:            claimNumber(),
		Node:             s.commits.Node,
		EventType:        ojs.EventJobStarted,
	}
	for i, p := range reads {
		ring := p.cursor.tenantRing.priorityRing
		params.Queues[i], params.Lanes[i], params.Priorities[i], params.Lows[i], params.Wants[i] = p.queue(), p.cursor.lane, ring.priority,
			p.low, int32(p.want)
	}
	for i, c := range claimants {
		params.Workers[i], params.Sources[i], params.LeasesMs[i] = c.worker, c.source, c.leaseMS
		// the smallest limit holds for all, and who gets nothing claims again (Store.claimShared)
		params.MaxBytes = min(params.MaxBytes, int64(c.bytes))
	}
	for slot, owner := range owners {
		params.Owners[slot] = int32(owner) + 1 // arrays in SQL begin at 1
	}
	// It stays at 0 or more: a round that exceeds it is cut, and is the last.
	params.MaxBytes -= bytes
	return claim{owners: owners, reads: reads, params: params}
}

// endClaim raises the cursors, and returns the bytes of the jobs and whether the claim was cut at them. A claim that was cut is like one
// that got all that it wanted: it has not read beyond its last job. It must come before events and wake-ups: other claims begin at the
// cursors that it sets.
func (s *Store) endClaim(c *claim) (bytes int64, cut bool) {
	bytes, cut = c.weigh()
	open := c.reads
	if view := s.configured.Latest(); view != nil && !view.Plain() {
		// That the claim found nothing in a paused queue says nothing about its jobs, which the first fetch after the pause has to find.
		var paused []*cursorRead
		open = nil
		for _, p := range c.reads {
			if s.isPaused(p.queue()) {
				paused = append(paused, p)
			} else {
				open = append(open, p)
			}
		}
		s.cursors.fail(paused) // and not end: it moves the cursors back to where they were
	}
	tally(open, c.rows)
	s.cursors.end(open, cut || len(c.rows) == len(c.owners))
	return bytes, cut
}

// weigh returns the bytes of the jobs, and whether the claim ended because of them.
func (c *claim) weigh() (bytes int64, cut bool) {
	for i := range c.rows {
		bytes += int64(c.rows[i].Weight())
	}
	return bytes, bytes > c.params.MaxBytes
}

// afterClaim emits the events and returns the jobs of each claimant.
func (s *Store) afterClaim(ctx context.Context, c *claim) [][]*job.Record {
	res := make([][]*job.Record, len(c.params.Workers))
	eventlog.Emit(ctx, s.commits, c.rows, fetchChange)
	limited := false
	for slot := range c.rows {
		j, owner := &c.rows[slot], c.owners[slot]
		res[owner] = append(res[owner], j)
		// Both are by the clock of the database. DueAt of an active job is never NULL.
		s.timer.Schedule(j.DueAt.Time.Sub(j.StartedAt.Time))
		limited = limited || j.LimitKey.Valid
	}
	if limited {
		s.hooks.LimitedStarts()
	}
	return res
}

// assignSlots returns the claimant of each slot: one slot each in turn, until every claimant has as many as it asked for.
// Workers that became quiet since their fetch began get none.
// Each claimant gets one before any gets two, so a fetch of 1 000 does not take everything from the fetches that share its
// statement.
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

// tally counts the claimed jobs of each read. They come in the order of the reads.
// A search that goes on from the last hit finds nearly all at once. A row without a read, which no statement returns, would end
// at where it began.
func tally(reads []*cursorRead, rows []job.Record) {
	at := 0
	for i := range rows {
		r := &rows[i]
		for range reads {
			if p := reads[at]; p.cursor.lane == r.Lane && p.cursor.tenantRing.priorityRing.priority == r.Priority && p.queue() == r.Queue {
				p.got++
				p.last = max(p.last, r.ReadySeq.Int64)
				break
			}
			at = (at + 1) % len(reads)
		}
	}
}

// Idle reports whether a claim would send no statement: nothing is known that the fetch could claim or would handle, and it is too early to
// look again, or the server is in maintenance.
// It sends nothing and takes no part in the order of claims.
func (s *Store) Idle(f job.Fetch) bool {
	return s.maintenance.On() || len(s.limitBlocked.waiting(f.Queues)) == 0 && s.cursors.idle(f)
}

// enqueueClaim is a claim for waiting fetches in the transaction of an enqueue: the insert and JobFetch in one round trip and one
// commit. The claim is the same as every other, so order, pauses and quiet workers need no rule of their own; it may also find
// older jobs, or none.
//
// Without it an enqueue would wake a fetch, which sends a claim of its own: one more transaction, and one more commit, for each
// job. An enqueue that is due is fetched after 3.0 ms instead of 10.5 ms at 400 jobs a second (docs/benchmarks.md, where other
// changes of that time are in the number).
type enqueueClaim struct {
	// Each has taken set, and gets exactly one answer by hand.
	waiters []*waiter
	claim   claim
}

// claimForWaiting takes waiting fetches that wait for the queues of the jobs; nil if there are none.
// From here on an answer is owed to each waiter, on every path.
func (s *Store) claimForWaiting(jobs []*job.Job) *enqueueClaim {
	if s.maintenance.On() {
		return nil
	}
	waiters := s.cursors.take(jobs, s.isLimited)
	if len(waiters) == 0 {
		return nil
	}
	claimants := make([]claimant, len(waiters))
	for i, w := range waiters {
		claimants[i] = newClaimant(w.fetch)
	}
	owners := assignSlots(claimants, s.workers.Quiet)
	var reads []*cursorRead
	if len(owners) > 0 {
		reads = s.cursors.beginWith(jobs, claimRequest{s.withoutPaused(claimants[0].queues), claimants[0].tenant, len(owners), minLookahead,
			s.weights})
	}
	if len(reads) == 0 {
		hand(waiters, nil)
		return nil
	}
	return &enqueueClaim{waiters, s.newClaim(claimants, reads, owners, 0)}
}

// enqueueAndClaim stores the jobs and claims for the waiters. It reports false, with nothing changed, if the plain insert
// should be tried, which knows what to do about an error of the statements.
//
// The error of an enqueue is that of the whole transaction, so a claim that fails makes the insert fail, too. If PostgreSQL has
// refused one of the statements, nothing is committed and the insert is tried alone.
func (s *Store) enqueueAndClaim(ctx context.Context, jobs []*job.Job, h *enqueueClaim) (res []enqueued, ok bool, err error) {
	in := newInsertion(jobs, false)
	if err := s.acceptByQueue(ctx, s.db.Pool, in); err != nil || len(in.todo) == 0 {
		s.cursors.fail(h.claim.reads)
		hand(h.waiters, nil)
		return in.res, true, err
	}
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	// Both statements in one round trip. They are one transaction, so the claim reads the jobs of the insert, and no other node can claim
	// them in between. A missing partition of the events is an error of PostgreSQL, after which the plain insert creates it.
	var inserted []dbsqlc.JobInsertRow
	if err = s.createQueues(bounded, s.db.Pool, in.open()); err == nil {
		insert, started := in.statement(bounded, s.commits.Node), time.Now()
		err = s.db.Write(bounded, func(conn *pgxpool.Conn) error {
			return pg.Pipeline(bounded, conn,
				func(db dbsqlc.DBTX) (err error) {
					inserted, err = insert(db)
					return err
				},
				func(db dbsqlc.DBTX) (err error) {
					h.claim.rows, err = claimJobs(bounded, dbsqlc.New(db), &h.claim.params)
					return err
				})
		})
		// The batcher counts the insert; the claim would be missing from the metrics of fetches.
		if flushed := s.flushed("fetch"); flushed != nil && err == nil {
			flushed(len(h.waiters), time.Since(started))
		}
	}
	if err != nil {
		s.cursors.fail(h.claim.reads)
		if s.lost.add(h.claim.params.Claim, err); pg.IsUnknown(err) {
			_ = s.handBackLost(ctx) // the poller tries again
		}
		hand(h.waiters, nil) // they claim for themselves again
		if _, refused := errors.AsType[*pgconn.PgError](err); refused &&
			!pg.IsUnknown(err) { // else a second insert might find the ids taken
			return nil, false, nil
		}
		return nil, true, err
	}
	// The ids were made here, so none can be taken.
	in.fill(inserted)
	// The cursors rise before afterEnqueue lowers them to the jobs that were not claimed.
	s.endClaim(&h.claim)
	ids := make(map[[16]byte]bool, len(h.claim.rows))
	for i := range h.claim.rows {
		ids[h.claim.rows[i].ID] = true
	}
	s.afterEnqueue(ctx, in.res, ids)
	hand(h.waiters, s.afterClaim(ctx, &h.claim))
	return in.res, true, nil
}

// offer lets an enqueue claim for the waiter.
// The channel wake may hold a signal from before: offered is false then, and the waiter claims for itself.
func (c *cursors) offer(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.waiting, w.taken = true, false
}

// withdraw takes the offer back. It reports whether an enqueue has taken the waiter: then an answer is in w.handed, or follows.
// From here on the waiter counts as not taken: commits must wake it again, as its next claim may not see their jobs.
func (c *cursors) withdraw(w *waiter) (taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken, w.waiting, w.taken = w.taken, false, false
	return taken
}

// offered reports whether an enqueue may take the waiter. The caller has locked cursors.mu.
func (w *waiter) offered() bool { return w.waiting && !w.taken && len(w.wake) == 0 }

// take takes waiters for the jobs that are available at once, at most one per job. All have the same list of queues and tenant, because
// a claim follows one order. Fetches from limited queues are left out: they claim under the locks of the limits.
//
// A tenant's own fetches come before those that take all lanes. A fetch may get more jobs than the one that it was taken for, up
// to its count, if they are there.
func (c *cursors) take(jobs []*job.Job, limited func(queues []string) bool) (taken []*waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Before the node has seen a number, beginWith has no lower bound and the claim would walk all dead index entries.
	if len(c.waiters) == 0 || c.newest == 0 {
		return nil
	}
	for _, j := range jobs {
		if !j.AvailableAtOnce() {
			continue
		}
		tenant := job.TenantOf(j.Lane)
		w := c.offeredFor(scope{j.Queue, tenant}, taken, limited)
		if w == nil && tenant != "" {
			w = c.offeredFor(scope{j.Queue, ""}, taken, limited)
		}
		if w != nil {
			w.taken = true
			taken = append(taken, w)
		}
	}
	return taken
}

// offeredFor is a waiter that an enqueue may take together with the others; nil if there is none.
// The caller has locked c.mu.
func (c *cursors) offeredFor(of scope, others []*waiter, limited func(queues []string) bool) *waiter {
	for _, w := range c.waiters[of] {
		if w.offered() && (others == nil || slices.Equal(w.fetch.Queues, others[0].fetch.Queues) &&
			w.fetch.Tenant == others[0].fetch.Tenant) &&
			!limited(w.fetch.Queues) {
			return w
		}
	}
	return nil
}

// hand answers taken waiters; jobs is nil if there are none for any. A waiter reads one answer per offer, so it never blocks.
// The channel has capacity 1, and a waiter is taken again only after it has read the answer.
func hand(waiters []*waiter, jobs [][]*job.Record) {
	for i, w := range waiters {
		if jobs == nil {
			w.handed <- nil
		} else {
			w.handed <- jobs[i]
		}
	}
}

// beginWith is begin for a claim that follows the insert of jobs in the same transaction. Numbers are drawn in order, so theirs will be
// above all that this node has seen.
//
// Only this claim may look for the jobs: to others the lane cursors are without jobs until the commit. Otherwise each fetch that comes
// meanwhile would send a claim in vain: with 32 waiting fetches a claim had 6.0 jobs instead of 9.5.
func (c *cursors) beginWith(jobs []*job.Job, w claimRequest) []*cursorRead {
	c.mu.Lock()
	defer c.mu.Unlock()
	var expected []*laneCursor
	for _, j := range jobs {
		q := c.queues[j.Queue]
		if q == nil || !j.AvailableAtOnce() {
			continue
		}
		if l := q.cursor(j.Lane, j.Priority); l != nil && l.low == noJobs {
			l.set(c.newest + 1)
			expected = append(expected, l)
		}
	}
	reads, _ := c.beginLocked(w)
	for _, l := range expected {
		l.set(noJobs)
	}
	return reads
}
