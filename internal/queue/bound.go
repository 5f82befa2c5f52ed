package queue

import (
	"context"
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
	"github.com/ojsd/ojsd/ojs"
)

// A bounded queue takes a job only while it has room for it (docs/reference/backpressure.md). Whoever enqueues to it locks its row, reads
// the kept counts in a statement with a later snapshot, and judges its jobs one after the other; the lock is held to the commit, so two
// nodes never fill the same place. Jobs of other queues share no transaction with these: they have a batcher of their own.

// waitingStates are those of the jobs that take up room in their queue.
var waitingStates = []ojs.JobState{ojs.StateAvailable, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending}

// boundsOf gives the policies of the queues of jobs that have a bound; nil for nearly all calls.
func (s *Store) boundsOf(view *queueconfig.View, jobs []*job.Job) (bounds map[string]*queueconfig.Backpressure) {
	if view.Plain() {
		return nil
	}
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
	if q == nil || q.Config.Backpressure == nil || q.Config.Backpressure.MaxDepth <= 0 && q.Config.Backpressure.MaxSizeBytes <= 0 {
		return nil
	}
	return q.Config.Backpressure
}

// bounded reports whether this node knows a bound of the queue.
func (s *Store) bounded(queue string) bool { return boundOf(s.configured.Known(queue)) != nil }

// boundCheck judges the jobs of one try to insert.
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

	depth, bytes int64 // with the jobs that were accepted so far. bytes is an upper limit, exact if that leaves no room
	accepted     []int // indexes of the jobs
	young        []int // those of them that are available, as far as this node can tell, and that no later one has pushed out
	pushedOut    [][16]byte
	dropped      []dbsqlc.JobDiscardWaitingRow
	freed        int64 // bytes of the jobs that made room
}

func newBoundCheck(s *Store, q *dbsqlc.Queries, in *insertion) *boundCheck {
	b := &boundCheck{store: s, q: q, in: in, byName: map[string]*boundedQueue{}}
	for name, policy := range in.bounds {
		queue := &boundedQueue{name: name, policy: policy}
		b.queues, b.byName[name] = append(b.queues, queue), queue
	}
	slices.SortFunc(b.queues, func(a, b *boundedQueue) int { return strings.Compare(a.name, b.name) })
	return b
}

// lock comes before every lock of a job, and before the counts.
func (b *boundCheck) lock(ctx context.Context) error {
	names := make([]string, len(b.queues))
	for i, queue := range b.queues {
		names[i] = queue.name
	}
	return b.q.QueueLockBounded(ctx, names)
}

// judge decides about the jobs at these indexes, in order. It returns those that can be stored; the others have an error in in.res. Of an
// atomic insert none can be stored if one has. replaces gives the jobs of this insert that one replaces; nil: none replaces any.
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
		if queue == nil || jobs[i].Unbounded || queue.take(jobs, i, !b.in.atomic && jobs[i].WorkflowID == [16]byte{}) {
			accepted = append(accepted, i)
			if queue != nil {
				b.in.jobs[i].Outcome.Pressure = queue.pressure()
			}
		} else if !full || !b.in.atomic { // an atomic insert shows the first one
			b.in.res[i] = enqueued{full: b.errFull(queue)}
			full = true
			if queue.policy.Strategy != queueconfig.Block { // see RetryFull
				b.store.refused(ctx, queue)
			}
		}
	}
	if full && b.in.atomic {
		return nil, nil
	}
	return accepted, nil
}

// measure reads how full the queue is and, if its policy is to drop, makes room for the jobs that want to enter.
func (b *boundCheck) measure(ctx context.Context, queue *boundedQueue, jobs []*job.Job, todo []int) error {
	n, bytes := int64(0), int64(0)
	for _, i := range todo {
		if jobs[i].Queue == queue.name && !jobs[i].Unbounded && !queue.isTooLarge(jobs[i]) {
			n, bytes = n+1, bytes+int64(jobs[i].ClientBytes())
		}
	}
	if n == 0 {
		return nil
	}
	counts, err := b.q.QueueCountListByQueue(ctx, queue.name)
	if err != nil {
		return err
	}
	for _, c := range counts {
		if slices.Contains(waitingStates, ojs.JobState(c.State)) {
			queue.depth += c.Count
		}
	}
	if most := queue.policy.MaxSizeBytes; most > 0 {
		if queue.bytes, err = b.q.QueueSizeGet(ctx, queue.name); err == nil && queue.bytes+bytes > most {
			queue.bytes, err = b.q.QueueSizeMeasure(ctx, queue.name)
		}
		if err != nil {
			return err
		}
	}
	if queue.policy.Strategy != queueconfig.DropOldest {
		return nil
	}
	return b.makeRoom(ctx, queue, n, bytes)
}

// isTooLarge reports whether not even the empty queue has room for the job.
func (queue *boundedQueue) isTooLarge(j *job.Job) bool {
	return queue.policy.MaxSizeBytes > 0 && int64(j.ClientBytes()) > queue.policy.MaxSizeBytes
}

func (queue *boundedQueue) fits(bytes int64) bool {
	p := queue.policy
	return (p.MaxDepth == 0 || queue.depth+1 <= p.MaxDepth) && (p.MaxSizeBytes == 0 || queue.bytes+bytes <= p.MaxSizeBytes)
}

// take reports whether there is room for job i, and takes it in. With the policy to drop, it may push out older jobs of the same insert:
// it would have found them in the queue if they had come alone.
func (queue *boundedQueue) take(jobs []*job.Job, i int, mayPush bool) bool {
	bytes := int64(jobs[i].ClientBytes())
	if !queue.fits(bytes) {
		if queue.policy.Strategy != queueconfig.DropOldest || !mayPush || queue.isTooLarge(jobs[i]) {
			return false
		}
		then, n := *queue, 0
		for ; n < len(queue.young) && !then.fits(bytes); n++ {
			then.depth, then.bytes = then.depth-1, then.bytes-int64(jobs[queue.young[n]].ClientBytes())
		}
		if !then.fits(bytes) {
			return false
		}
		for _, old := range queue.young[:n] {
			then.pushedOut = append(then.pushedOut, jobs[old].ID)
		}
		*queue, queue.young = then, queue.young[n:]
	}
	queue.depth, queue.bytes, queue.accepted = queue.depth+1, queue.bytes+bytes, append(queue.accepted, i)
	if !jobs[i].Pending && !jobs[i].ScheduledAt.Set {
		queue.young = append(queue.young, i)
	}
	return true
}

// leave gives back the room of a job of this insert that another one replaces.
func (queue *boundedQueue) leave(jobs []*job.Job, old int) {
	if slices.Contains(queue.accepted, old) {
		queue.depth, queue.bytes = queue.depth-1, queue.bytes-int64(jobs[old].ClientBytes())
		queue.young = slices.DeleteFunc(queue.young, func(i int) bool { return i == old })
	}
}

// pressure is how full the queue is, if that is worth a warning.
func (queue *boundedQueue) pressure() *job.Pressure {
	p := queue.policy
	share := 0.0
	if p.MaxDepth > 0 {
		share = float64(queue.depth) / float64(p.MaxDepth)
	}
	if p.MaxSizeBytes > 0 {
		share = max(share, float64(queue.bytes)/float64(p.MaxSizeBytes))
	}
	if share < p.WarningThreshold {
		return nil
	}
	return &job.Pressure{Depth: queue.depth, MaxDepth: p.MaxDepth, Share: min(1, share)}
}

func (b *boundCheck) errFull(queue *boundedQueue) *ojs.Error {
	depth, bytes := queue.depth, queue.bytes
	if b.in.atomic { // nothing is stored and nothing dropped: the queue stays as it was before the first of the jobs
		depth += int64(len(queue.dropped) - len(queue.accepted))
		bytes += queue.freed
		for _, i := range queue.accepted {
			bytes -= int64(b.in.jobs[i].ClientBytes())
		}
	}
	p := queue.policy
	return ojs.ErrQueueFull(ojs.QueueFull{
		Queue: queue.name, Strategy: p.Strategy, Depth: depth, Bound: p.MaxDepth, Bytes: bytes, MaxBytes: p.MaxSizeBytes,
		RetryAfter: int(math.Ceil(b.store.config.FullRetryAfter.Seconds())),
	})
}

// finish writes what follows from jobs that were stored: their sizes, and the end of those that later ones have pushed out.
func (b *boundCheck) finish(ctx context.Context, jobs []*job.Job) error {
	for _, queue := range b.queues {
		if err := b.recordSizes(ctx, queue, jobs); err != nil {
			return err
		}
		if _, err := b.discard(ctx, queue, queue.pushedOut); err != nil {
			return err
		}
		for _, i := range queue.accepted {
			if slices.Contains(queue.pushedOut, jobs[i].ID) {
				b.in.res[i].over = true
			}
		}
		if len(queue.dropped) > 0 {
			last := queue.accepted[len(queue.accepted)-1]
			b.in.res[last].dropped = queue.dropped
			outcome := &b.in.jobs[last].Outcome
			outcome.Dropped = workflowsOf(queue.dropped, droppedWorkflow)
			outcome.DroppedLimits = namesOf(queue.dropped, droppedLimit)
		}
	}
	return nil
}

// recordSizes is for queues that are bounded in bytes.
func (b *boundCheck) recordSizes(ctx context.Context, queue *boundedQueue, jobs []*job.Job) error {
	if queue.policy.MaxSizeBytes <= 0 {
		return nil
	}
	p := dbsqlc.QueueSizeAddParams{Queue: queue.name}
	for i, r := range b.in.res {
		if r.job != nil && jobs[i].Queue == queue.name {
			bytes := jobs[i].ClientBytes()
			p.Ids, p.Bytes, p.Sum = append(p.Ids, r.job.ID), append(p.Bytes, int32(bytes)), p.Sum+int64(bytes) //nolint:gosec // a request is smaller
		}
	}
	if p.Ids == nil {
		return nil
	}
	return b.q.QueueSizeAdd(ctx, p)
}

// insertBounded is the insert of jobs without unique policies of which some go to bounded queues.
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
	if err := in.findTaken(ctx, q); err != nil {
		return err
	}
	for _, i := range in.todo {
		in.res[i], in.jobs[i].Outcome = enqueued{}, job.Outcome{}
	}
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

// refused counts a job that a full queue has refused, and logs it once in a while.
func (s *Store) refused(ctx context.Context, queue *boundedQueue) {
	if s.config.OnFull != nil {
		s.config.OnFull(queue.name, 1)
	}
	if s.fullLogged.due(queue.name, time.Now()) {
		s.logger.WarnContext(ctx, "a full queue refuses jobs", slog.String("category", "queue"), slog.Group("ojs", slog.String("queue", queue.name),
			slog.Int64("depth", queue.depth), slog.Int64("bound", queue.policy.MaxDepth), slog.Int64("max_size_bytes", queue.policy.MaxSizeBytes)))
	}
}

// fullLogs are the times at which full queues were logged.
type fullLogs struct {
	mu sync.Mutex
	at map[string]time.Time
}

// fullLogPause is the least time between two lines about one queue.
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
