package queue

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// A bounded queue takes a job only while it has room for it (docs/reference/backpressure.md). Whoever enqueues to it locks its row, reads
// the kept counts in a statement with a later snapshot, and judges its jobs one after the other; the lock is held to the commit, so two
// nodes never fill the same place. Jobs of other queues share no transaction with these: they have a batcher of their own.

// boundsOf gives the policies of the queues of jobs that have a bound; nil for nearly all calls.
//
// insert calls it once, so all tries of an insert judge by the same policies. A queue whose jobs are all Unbounded is left out,
// unless it is bounded in bytes: their sizes have to be recorded all the same.
func (s *Store) boundsOf(view *queueconfig.View, jobs []*job.Job) (bounds map[string]*queueconfig.Backpressure) {
	if view.Plain() {
		return nil
	}
	// Batches nearly always have one queue; then this is one look into the map.
	last := ""
	for _, j := range jobs {
		if j.Queue == last {
			continue
		}
		policy := boundOf(view.Queue(j.Queue))
		if j.Unbounded && policy != nil && policy.MaxSizeBytes <= 0 {
			continue // others of its queue may be bounded
		}
		if last = j.Queue; policy != nil {
			if bounds == nil {
				bounds = map[string]*queueconfig.Backpressure{}
			}
			bounds[j.Queue] = policy
		}
	}
	return bounds
}

func boundOf(q *queueconfig.Queue) *queueconfig.Backpressure {
	if q == nil || q.Config.Backpressure == nil || !q.Config.Backpressure.Bounds() {
		return nil
	}
	return q.Config.Backpressure
}

// boundCheck judges the jobs of one try to insert.
//
// It lives as long as the transaction, which holds the rows of the queues. A try that fails is thrown away with it; only in.res
// and job.Job.Outcome survive, and the next try resets them.
type boundCheck struct {
	store  *Store
	q      *dbsqlc.Queries
	in     *insertion
	queues []*boundedQueue // by name
	byName map[string]*boundedQueue
}

// boundedQueue is a queue while its row is locked.
type boundedQueue struct {
	name   string
	policy *queueconfig.Backpressure

	// depth is exact under the lock, which all producers take; ojs.enqueue of SQL takes it at its commit. Jobs that come back
	// after a failure, and later steps of workflows, pass the bound and take no lock.
	depth, bytes int64 // with the jobs that were accepted so far. bytes is an upper limit, exact if that leaves no room
	accepted     []int // indexes of the jobs
	// These are what drop_oldest may push out next, in the order of the request.
	young []int // those of them that are available, as far as this node can tell, and that no later one has pushed out
	// Jobs of this insert. They are stored and then discarded, so that their events and dead letters are those of any other job.
	pushedOut [][16]byte
	dropped   []dbsqlc.JobDiscardWaitingRow
	// The dropped jobs are reported with it, whichever job of the queue they made room for.
	judged  int                     // index of the last job that wanted to enter
	tenants map[string]*tenantDepth // of those whose jobs want to enter; nil: the policy says nothing of tenants
	freed   int64                   // bytes of the jobs that made room
}

func newBoundCheck(s *Store, q *dbsqlc.Queries, in *insertion) *boundCheck {
	b := &boundCheck{store: s, q: q, in: in, byName: map[string]*boundedQueue{}}
	for name, policy := range in.bounds {
		queue := &boundedQueue{name: name, policy: policy}
		b.queues, b.byName[name] = append(b.queues, queue), queue
	}
	// Two transactions that lock the same queues in another order would deadlock.
	slices.SortFunc(b.queues, func(a, b *boundedQueue) int { return strings.Compare(a.name, b.name) })
	return b
}

// lock comes before every lock of a job, and before the counts.
// The counts must be read by a later statement: only its snapshot has what the last holder of the lock committed. Unique keys are
// locked before it (insertUnique).
func (b *boundCheck) lock(ctx context.Context) error {
	names := make([]string, len(b.queues))
	for i, queue := range b.queues {
		names[i] = queue.name
	}
	return b.q.QueueLockBounded(ctx, names)
}

// judge decides about the jobs at these indexes, in order. It returns those that can be stored; the others have an error in in.res. Of an
// atomic insert none can be stored if one has. replaces gives the jobs of this insert that one replaces; nil: none replaces any.
//
// It changes nothing but memory, except that measure may drop jobs. An error of the database ends the transaction. Queues without
// a bound are in jobs too: they pass.
func (b *boundCheck) judge(ctx context.Context, jobs []*job.Job, todo []int, replaces func(i int) []int) (accepted []int, err error) {
	for _, queue := range b.queues {
		if err := b.measure(ctx, queue, jobs, todo); err != nil {
			return nil, err
		}
	}
	full := false
	for _, i := range todo {
		queue := b.byName[jobs[i].Queue]
		if queue != nil && replaces != nil {
			for _, old := range replaces(i) {
				queue.leave(jobs, old)
			}
		}
		// An Unbounded job of a bounded queue is shown how full the queue is, but takes no room from the others of this try. It
		// is counted by the next one, which reads the counts again.
		if queue == nil || jobs[i].Unbounded {
			accepted = append(accepted, i)
			if queue != nil {
				b.in.jobs[i].Outcome.Pressure = queue.pressure(nil)
			}
			continue
		}
		queue.judged = i
		// A job may push out others only if the call can do without them: an atomic one stores all or nothing, and a workflow
		// would lose a step.
		if own := queue.share(jobs[i]); own.fits(queue.policy) && queue.take(jobs, i, !b.in.atomic && jobs[i].WorkflowID == [16]byte{}) {
			accepted = append(accepted, i)
			if own != nil {
				own.depth, own.entered = own.depth+1, own.entered+1
			}
			b.in.jobs[i].Outcome.Pressure = queue.pressure(own)
		} else if !full || !b.in.atomic { // an atomic insert shows the first one
			b.in.res[i] = enqueued{full: b.errFull(queue, own)}
			full = true
		}
	}
	if full && b.in.atomic {
		return nil, nil
	}
	return accepted, nil
}

// measure reads how full the queue is and, if its policy is to drop, makes room for the jobs that want to enter.
//
// A job that is too large even for the empty queue is left out of what room is made for: no drop would help it.
func (b *boundCheck) measure(ctx context.Context, queue *boundedQueue, jobs []*job.Job, todo []int) error {
	wanted, n, bytes := false, int64(0), int64(0)
	for _, i := range todo {
		if jobs[i].Queue != queue.name || jobs[i].Unbounded {
			continue
		}
		if wanted = true; !queue.isTooLarge(jobs[i]) {
			n, bytes = n+1, bytes+int64(jobs[i].ClientBytes())
		}
	}
	// Nothing bounded wants to enter. depth stays 0, and is neither shown nor compared.
	if !wanted {
		return nil
	}
	if err := b.measureTenants(ctx, queue, jobs, todo); err != nil || queue.policy.MaxDepth <= 0 && queue.policy.MaxSizeBytes <= 0 {
		return err
	}
	if err := b.countDepth(ctx, queue); err != nil {
		return err
	}
	// The kept number of bytes is only an upper limit, as jobs that leave do not lower it. It is measured only when it leaves no
	// room, which takes 185 ms for 100 000 jobs (docs/reference/backpressure.md, Bytes).
	if most := queue.policy.MaxSizeBytes; most > 0 {
		var err error
		if queue.bytes, err = b.q.QueueSizeGet(ctx, queue.name); err == nil && queue.bytes+bytes > most {
			queue.bytes, err = b.q.QueueSizeMeasure(ctx, queue.name)
		}
		if err != nil {
			return err
		}
	}
	if queue.policy.Strategy != queueconfig.DropOldest || n == 0 {
		return nil
	}
	return b.makeRoom(ctx, queue, n, bytes)
}

// countDepth reads how many jobs wait in the queue.
// The counts are those that the relay keeps, plus the events behind its watermark: exact in this snapshot, and as cheap for a million
// jobs as for ten.
func (b *boundCheck) countDepth(ctx context.Context, queue *boundedQueue) error {
	counts, err := b.q.QueueCountListByQueue(ctx, queue.name)
	if err != nil {
		return err
	}
	queue.depth = 0
	for _, c := range counts {
		if slices.Contains(job.WaitingStates, ojs.JobState(c.State)) {
			queue.depth += c.Count
		}
	}
	return nil
}

// isTooLarge reports whether not even the empty queue has room for the job.
func (queue *boundedQueue) isTooLarge(j *job.Job) bool {
	return queue.policy.MaxSizeBytes > 0 && int64(j.ClientBytes()) > queue.policy.MaxSizeBytes
}

// fits takes 0 for no bound. The bound itself can be reached.
func (queue *boundedQueue) fits(bytes int64) bool {
	p := queue.policy
	return (p.MaxDepth == 0 || queue.depth+1 <= p.MaxDepth) && (p.MaxSizeBytes == 0 || queue.bytes+bytes <= p.MaxSizeBytes)
}

// take reports whether there is room for job i, and takes it in. With the policy to drop, it may push out older jobs of the same insert:
// it would have found them in the queue if they had come alone.
//
// mayPush is false for jobs that must not push out others of their call. Stored jobs were dropped before, by makeRoom.
func (queue *boundedQueue) take(jobs []*job.Job, i int, mayPush bool) bool {
	bytes := int64(jobs[i].ClientBytes())
	if !queue.fits(bytes) {
		if queue.policy.Strategy != queueconfig.DropOldest || !mayPush || queue.isTooLarge(jobs[i]) {
			return false
		}
		// All of this happens to a copy: if even all young jobs are too few, none is pushed out.
		then, n := *queue, 0
		for ; n < len(queue.young) && !then.fits(bytes); n++ {
			then.depth, then.bytes = then.depth-1, then.bytes-int64(jobs[queue.young[n]].ClientBytes())
		}
		if !then.fits(bytes) {
			return false
		}
		for _, old := range queue.young[:n] {
			then.pushedOut = append(then.pushedOut, jobs[old].ID)
			queue.share(jobs[old]).leave()
		}
		*queue, queue.young = then, queue.young[n:]
	}
	queue.depth, queue.bytes, queue.accepted = queue.depth+1, queue.bytes+bytes, append(queue.accepted, i)
	// A job that is scheduled for the past is not pushed out, which refuses a job at worst.
	if jobs[i].AvailableAtOnce() {
		queue.young = append(queue.young, i)
	}
	return true
}

// leave gives back the room of a job of this insert that another one replaces.
// It does not touch accepted: finish marks the job as replaced.
func (queue *boundedQueue) leave(jobs []*job.Job, old int) {
	if slices.Contains(queue.accepted, old) {
		queue.depth, queue.bytes = queue.depth-1, queue.bytes-int64(jobs[old].ClientBytes())
		queue.young = slices.DeleteFunc(queue.young, func(i int) bool { return i == old })
		queue.share(jobs[old]).leave()
	}
}

// pressure is how full the queue is, or the part of it that a tenant has, if that is worth a warning.
//
// nil is no warning. own is the share of the tenant of the job, or nil. The fuller of the two is shown
// (docs/reference/backpressure.md, Headers).
func (queue *boundedQueue) pressure(own *tenantDepth) *job.Pressure {
	p := queue.policy
	share := 0.0
	if p.MaxDepth > 0 {
		share = float64(queue.depth) / float64(p.MaxDepth)
	}
	if p.MaxSizeBytes > 0 {
		share = max(share, float64(queue.bytes)/float64(p.MaxSizeBytes))
	}
	if own != nil {
		// More than 1 is possible: jobs that come back pass the bound.
		if s := float64(own.depth) / float64(p.MaxTenantDepth); s > share && s >= p.WarningThreshold {
			return &job.Pressure{Depth: own.depth, MaxDepth: p.MaxTenantDepth, Share: min(1, s)}
		}
	}
	if share < p.WarningThreshold {
		return nil
	}
	return &job.Pressure{Depth: queue.depth, MaxDepth: p.MaxDepth, Share: min(1, share)}
}

// errFull has the numbers at the moment of the refusal. own is the share of the tenant, or nil.
func (b *boundCheck) errFull(queue *boundedQueue, own *tenantDepth) *ojs.Error {
	retryAfter := int(math.Ceil(b.store.config.Queues.FullRetryAfter.Seconds()))
	if !own.fits(queue.policy) {
		full := spec.FullQueue{Queue: queue.name, Tenant: own.tenant, Strategy: queue.policy.Strategy, Depth: own.depth,
			Bound: queue.policy.MaxTenantDepth, RetryAfter: retryAfter}
		if b.in.atomic {
			full.Depth += own.dropped - own.entered
		}
		return spec.QueueFull(full)
	}
	depth, bytes := queue.depth, queue.bytes
	if b.in.atomic { // nothing is stored and nothing dropped: the queue stays as it was before the first of the jobs
		depth += int64(len(queue.dropped) - len(queue.accepted))
		bytes += queue.freed
		for _, i := range queue.accepted {
			bytes -= int64(b.in.jobs[i].ClientBytes())
		}
	}
	p := queue.policy
	return spec.QueueFull(spec.FullQueue{
		Queue: queue.name, Strategy: p.Strategy, Depth: depth, Bound: p.MaxDepth, Bytes: bytes, MaxBytes: p.MaxSizeBytes,
		RetryAfter: retryAfter,
	})
}

// finish writes what follows from jobs that were stored: their sizes, and the end of those that later ones have pushed out.
// It runs in the transaction of the insert, after the rows exist.
func (b *boundCheck) finish(ctx context.Context, jobs []*job.Job) error {
	for _, queue := range b.queues {
		// Jobs that are stored while a queue has no bound in bytes are never counted in its bytes.
		if queue.policy.MaxSizeBytes > 0 {
			p := dbsqlc.QueueSizeAddParams{Queue: queue.name}
			for i, r := range b.in.res {
				if r.job != nil && jobs[i].Queue == queue.name {
					bytes := jobs[i].ClientBytes()
					p.Ids, p.Bytes, p.Sum = append(p.Ids, r.job.ID), append(p.Bytes, int32(bytes)),
						p.Sum+int64(bytes) //nolint:gosec // a request is smaller
				}
			}
			if p.Ids != nil {
				if err := b.q.QueueSizeAdd(ctx, p); err != nil {
					return err
				}
			}
		}
		if _, err := b.discard(ctx, queue, queue.pushedOut); err != nil {
			return err
		}
		// A job that was pushed out is answered as stored, which it was, but no fetch is woken for it.
		for _, i := range queue.accepted {
			if slices.Contains(queue.pushedOut, jobs[i].ID) {
				b.in.res[i].over = true
			}
		}
		if len(queue.dropped) > 0 {
			b.in.res[queue.judged].dropped = queue.dropped // the job itself may have been refused: there were too few to drop
			outcome := &b.in.jobs[queue.judged].Outcome
			outcome.Dropped, outcome.DroppedLimits = nil, nil
			for _, r := range queue.dropped {
				addValid(&outcome.Dropped, r.WorkflowID.Bytes, r.WorkflowID.Valid)
				addValid(&outcome.DroppedLimits, r.LimitKey.String, r.LimitKey.Valid)
			}
		}
	}
	return nil
}

// insertBounded is the insert of jobs without unique policies of which some go to bounded queues.
//
// errTaken means that the caller has to roll back and to try without the jobs whose ids are taken. Order: lock timeout, rows of
// the queues, ids, counts, insert.
func (s *Store) insertBounded(ctx context.Context, tx pgx.Tx, in *insertion) error {
	q := dbsqlc.New(tx)
	if in.lockTimeout != "" {
		if err := q.SystemLockTimeout(ctx, in.lockTimeout); err != nil {
			return err
		}
	}
	b := newBoundCheck(s, q, in)
	if err := b.lock(ctx); err != nil {
		return err
	}
	// Before judge: a job whose id is taken must neither take room nor drop others.
	if err := in.findTaken(ctx, q); err != nil {
		return err
	}
	// The outcomes of an earlier try, whose transaction was rolled back.
	for _, i := range in.todo {
		in.res[i], in.jobs[i].Outcome = enqueued{}, job.Outcome{}
	}
	// part shares res with in, and has a todo of its own: jobs without room stay in in.todo, because another try may have room
	// for them.
	part := *in
	var err error
	if part.todo, err = b.judge(ctx, in.jobs, in.todo, nil); err != nil {
		return err
	}
	if in.atomic && len(part.todo) < len(in.todo) {
		return errTaken
	}
	if err := part.storeAll(ctx, tx, s.commits.Node); err != nil {
		return err
	}
	return b.finish(ctx, in.jobs)
}

// CountRefused counts the jobs that full queues have refused, by the errors of their enqueues, and logs each queue once in a while.
// Other errors, and nil, are left out.
//
// It comes when the outcome of a call is known, once for each call: an insert may be tried several times, after a deadlock or to
// wait for room. Callers of InsertTx call it themselves; for all other calls the store does.
func (s *Store) CountRefused(ctx context.Context, errs ...error) {
	for _, err := range errs {
		full := fullError(err)
		if full == nil {
			continue
		}
		queue := fullQueue(full)
		if s.observe.Full != nil {
			s.observe.Full(queue)
		}
		if s.fullLogged.due(queue, time.Now()) {
			s.logger.WarnContext(ctx, "a full queue refuses jobs", slog.String("category", "queue"), slog.Any("error", full),
				slog.Group("ojs", slog.String("queue", queue), slog.Any("depth", full.Details["depth"])))
		}
	}
}

// fullError is the error of a full queue in err; nil: there is none.
func fullError(err error) *ojs.Error {
	if wire, ok := errors.AsType[*ojs.Error](err); ok && wire.Type == string(ojs.ErrQueueFull) {
		return wire
	}
	return nil
}

// fullQueue takes the name from the details: the error may come from a flush that calls share, or from another domain.
func fullQueue(full *ojs.Error) string {
	name, _ := full.Details["queue"].(string)
	return name
}

// fullLogs are the times at which full queues were logged.
// The zero value is ready. It forgets all times when it has maxPriorityStats queues, a bound that it shares with other memory of
// names that clients choose; then a queue may be logged early.
type fullLogs struct {
	mu sync.Mutex
	at map[string]time.Time
}

// fullLogPause is the least time between two lines about one queue.
// A full queue refuses each call of each producer: without the pause the log would have a line per request.
const fullLogPause = 10 * time.Second

func (l *fullLogs) due(queue string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.at[queue]) < fullLogPause {
		return false
	}
	if l.at == nil || len(l.at) >= maxPriorityStats {
		l.at = map[string]time.Time{}
	}
	l.at[queue] = now
	return true
}

const (
	// maxDropped bounds the jobs of one statement that drops, and maxDropLevels the lanes and priorities that it looks at.
	// A queue with more levels than that keeps jobs that are older than those that are dropped: the levels at the end of the
	// order are not read.
	maxDropped    = 1000
	maxDropLevels = 10_000
)

// makeRoom drops the oldest available jobs of the queue for n new ones with so many bytes, as far as there are any.
//
// It runs under the lock of the queue, in the transaction of the insert, so a rollback brings the jobs back. It may drop more
// than the insert needs in the end: judge may refuse a job for another reason.
func (b *boundCheck) makeRoom(ctx context.Context, queue *boundedQueue, n, bytes int64) error {
	// Each page begins behind the last one, and so the loop ends even if none of its jobs can be discarded, because workers claim
	// them.
	after := int64(0)
	for {
		// By how much the new jobs would exceed the bounds. More than a bound do not fit even into an empty queue.
		jobs, size := int64(0), int64(0)
		if p := queue.policy; p.MaxDepth > 0 {
			jobs = queue.depth + min(n, p.MaxDepth) - p.MaxDepth
		}
		if p := queue.policy; p.MaxSizeBytes > 0 {
			size = queue.bytes + min(bytes, p.MaxSizeBytes) - p.MaxSizeBytes
		}
		if jobs <= 0 && size <= 0 {
			return nil
		}
		// At least 100 are read, although fewer may be needed: some are locked or are claimed meanwhile.
		oldest, err := b.q.JobListOldest(ctx, dbsqlc.JobListOldestParams{Queue: queue.name, MaxLevels: maxDropLevels, AfterSeq: after,
			MaxRows: min(maxDropped, max(jobs, 100))})
		if err != nil {
			return err
		}
		if len(oldest) == 0 { // workers may have fetched jobs since they were counted, which makes room, too
			counted := queue.depth
			if err = b.countDepth(ctx, queue); err == nil && queue.depth < counted && size > 0 {
				queue.bytes, err = b.q.QueueSizeMeasure(ctx, queue.name)
			}
			return err
		}
		var ids [][16]byte
		byID := make(map[[16]byte]int64, len(oldest))
		for _, j := range oldest {
			if jobs <= 0 && size <= 0 {
				break
			}
			ids, byID[j.ID], after = append(ids, j.ID), j.Bytes, j.Seq
			jobs, size = jobs-1, size-j.Bytes
		}
		rows, err := b.discard(ctx, queue, ids) // some may have been fetched or locked meanwhile
		if err != nil {
			return err
		}
		for _, r := range rows {
			queue.depth, queue.bytes = queue.depth-1, max(0, queue.bytes-byID[r.ID])
			queue.freed += byID[r.ID]
			if own := queue.tenants[job.TenantOf(r.Lane)]; own != nil {
				own.depth, own.dropped = own.depth-1, own.dropped+1
			}
		}
	}
}

// discard ends available jobs of the queue.
// What is locked is skipped, not waited for, so the ids need no order: this transaction has the row of the queue, and every producer of it
// waits behind.
func (b *boundCheck) discard(ctx context.Context, queue *boundedQueue, ids [][16]byte) (all []dbsqlc.JobDiscardWaitingRow, err error) {
	for part := range slices.Chunk(ids, maxDropped) {
		rows, err := b.q.JobDiscardWaiting(ctx, dbsqlc.JobDiscardWaitingParams{
			Ids: part, States: []string{string(ojs.StateAvailable)}, Code: job.Overflow,
			Message: job.ServerError(job.Overflow, 0, 0).Message, EventType: ojs.EventJobDiscarded,
			Source: "api", Node: b.store.commits.Node,
		})
		if err != nil {
			return nil, err
		}
		all, queue.dropped = append(all, rows...), append(queue.dropped, rows...)
	}
	return all, nil
}

// tenantDepth is the part of a bounded queue that a tenant has, while the row of the queue is locked. nil: the tenant has no bound.
//
// The zero bound never makes one: measureTenants returns early then, and all methods accept nil.
type tenantDepth struct {
	tenant  string
	depth   int64 // with the jobs that were accepted so far
	entered int64 // these
	dropped int64 // jobs that made room
}

// share is the part of the queue that the tenant of a job has.
func (queue *boundedQueue) share(j *job.Job) *tenantDepth { return queue.tenants[job.TenantOf(j.Lane)] }

// fits reports whether there is room for one more job of the tenant.
func (t *tenantDepth) fits(p *queueconfig.Backpressure) bool {
	return t == nil || t.depth < p.MaxTenantDepth
}

// leave gives back the room of a job of this insert.
func (t *tenantDepth) leave() {
	if t != nil {
		t.depth, t.entered = t.depth-1, t.entered-1
	}
}

// measureTenants reads how many jobs wait of the tenants whose jobs want to enter and, if the policy is to drop, makes room for these. It
// comes before the queue is measured, which then has what was dropped here.
// It sends a statement per tenant of the call, which is one unless several tenants share a flush.
func (b *boundCheck) measureTenants(ctx context.Context, queue *boundedQueue, jobs []*job.Job, todo []int) error {
	if queue.policy.MaxTenantDepth <= 0 {
		return nil
	}
	more := map[string]int64{}
	for _, i := range todo {
		if tenant := job.TenantOf(jobs[i].Lane); tenant != "" && jobs[i].Queue == queue.name && !jobs[i].Unbounded {
			room := int64(1)
			if queue.isTooLarge(jobs[i]) {
				room = 0 // no drop would help the job
			}
			more[tenant] += room
		}
	}
	queue.tenants = make(map[string]*tenantDepth, len(more))
	for tenant, n := range more {
		own := &tenantDepth{tenant: tenant}
		queue.tenants[tenant] = own
		if err := b.countTenant(ctx, queue, own); err != nil {
			return err
		}
		if queue.policy.Strategy == queueconfig.DropOldest && n > 0 {
			if err := b.makeTenantRoom(ctx, queue, own, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// countTenant reads how many jobs of the tenant wait in the queue, as exact as countDepth: the lock of the queue covers its tenants.
func (b *boundCheck) countTenant(ctx context.Context, queue *boundedQueue, own *tenantDepth) error {
	counts, err := b.q.TenantCountList(ctx, own.tenant, queue.name)
	if err != nil {
		return err
	}
	own.depth = 0
	for _, c := range counts {
		if slices.Contains(job.WaitingStates, ojs.JobState(c.State)) {
			own.depth += c.Count
		}
	}
	return nil
}

// makeTenantRoom drops the oldest available jobs of a tenant in the queue for n new ones, as far as there are any.
// Unlike makeRoom it leaves the bytes of the queue alone: measure reads them afterwards.
func (b *boundCheck) makeTenantRoom(ctx context.Context, queue *boundedQueue, own *tenantDepth, n int64) error {
	bound, after := queue.policy.MaxTenantDepth, int64(0)
	for {
		excess := own.depth + min(n, bound) - bound
		if excess <= 0 {
			return nil
		}
		oldest, err := b.q.JobListOldestByTenant(ctx, dbsqlc.JobListOldestByTenantParams{
			Queue: queue.name, Tenant: own.tenant, MaxLevels: maxDropLevels, AfterSeq: after, MaxRows: min(maxDropped, excess),
		})
		if err != nil {
			return err
		}
		if len(oldest) == 0 {
			return b.countTenant(ctx, queue, own) // as in makeRoom
		}
		ids := make([][16]byte, len(oldest))
		for i, j := range oldest {
			ids[i], after = j.ID, j.Seq
		}
		rows, err := b.discard(ctx, queue, ids) // some may have been fetched or locked meanwhile
		if err != nil {
			return err
		}
		own.depth, own.dropped = own.depth-int64(len(rows)), own.dropped+int64(len(rows))
	}
}
