package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Jobs with a unique policy (docs/reference/unique.md) are checked and stored in one transaction, which holds the locks of their
// keys. Single ones share it like all enqueues. A flush leaves keys alone that another transaction has locked, and keys whose jobs
// it cannot lock to replace them: an application may keep the transaction of its ojs.enqueue or ojs.cancel open for long, and
// other keys must not wait for it. Their jobs are tried again with later flushes, so they hold no connection while they wait.

const (
	// maxLockedKeyTime is how long the jobs of a locked key are tried again; then they are answered 504. The first pause is short, because
	// another node has nearly always ended its flush by then.
	// The reference names it (docs/reference/unique.md, Conflicts).
	maxLockedKeyTime                     = 5 * time.Second
	firstLockedPause, longestLockedPause = 2 * time.Millisecond, 50 * time.Millisecond

	// uniqueLockTimeout is how long an atomic call waits for a lock.
	uniqueLockTimeout = "5s"

	// maxReplaced bounds the jobs of one statement that cancels what was replaced.
	maxReplaced = 1000

	// replacedBy is what clients see as cancelled_by of a job that was replaced.
	replacedBy = "system:unique"
)

// flushUnlockedKeys stores jobs, except those whose unique keys are locked. It serves jobs with a unique policy, and those of bounded
// queues, which may have one or not.
func (s *Store) flushUnlockedKeys(ctx context.Context, jobs []*job.Job) ([]enqueued, error) {
	in := newInsertion(jobs, false)
	in.tryLocks = true
	return s.flushInsertion(ctx, in)
}

// retryLockedKeys calls again, which tries the jobs of locked keys once more and reports whether some are left, until none is or
// maxLockedKeyTime is over.
// It sleeps in the goroutine of the caller, which holds nothing. again is an insert of its own.
func (s *Store) retryLockedKeys(ctx context.Context, again func() (locked bool)) error {
	end := time.Now().Add(s.lockedKeyTime)
	for pause := firstLockedPause; ; pause = min(2*pause, longestLockedPause) {
		serviceutil.CancellableSleep(ctx, pause)
		if !again() {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return errors.Join(spec.Timeout(), errors.New("another transaction keeps the unique key locked"))
		}
	}
}

// insertUnique is the insert of jobs of which some have a unique policy. After errTaken the transaction is rolled back, and the rest
// is decided again: a job that was refused for its id replaces and prevents nothing.
//
// All locks are taken in one order on every node, or transactions would deadlock: keys (ascending), rows of queues (by name),
// rows of jobs. It writes outcomes into in.res also if it fails; the next try begins with resetting them.
func (s *Store) insertUnique(ctx context.Context, tx pgx.Tx, in *insertion) error {
	jobs := in.open()
	// Keys first. Whoever has them is the only one who stores jobs with these keys until its commit.
	found, err := uniqueCheck{Try: in.tryLocks, LockTimeout: in.lockTimeout}.Run(ctx, tx, jobs)
	if err != nil {
		return err
	}
	u := &uniqueInsert{store: s, tx: tx, q: dbsqlc.New(tx), in: in, part: *in, verdicts: found.Verdicts}
	// A clone, because a job that takes the time of another one is replaced by a copy in it: the next try must start from what
	// the client has sent.
	u.part.jobs, u.part.todo = slices.Clone(in.jobs), nil
	if in.bounds != nil {
		u.bounds = newBoundCheck(s, u.q, in)
		if err := u.bounds.lock(ctx); err != nil {
			return err
		}
	}
	if in.tryLocks {
		if err := u.tryReplaced(ctx, jobs, &found); err != nil {
			return err
		}
	}
	refused := false
	for n, i := range in.todo {
		in.res[i], in.jobs[i].Outcome = enqueued{}, job.Outcome{}
		switch v := found.Verdicts[n]; {
		case found.Free != nil && !found.Free[n]:
			in.res[i].keyLocked = true
		case v.Prevented():
			refused = refused || !v.Ignore
		default:
			u.part.todo = append(u.part.todo, i)
			if v.Takes != nil {
				u.part.jobs[i] = scheduledFor(in.jobs[i], *v.Takes)
			}
		}
	}
	if refused && in.atomic {
		u.refuse()
		return errTaken
	}
	// The order matters. What answers others is read before it is replaced. Stored jobs leave before the new ones are judged for
	// room and stored. New ones that replace each other are stored first, so that each has its events.
	for _, step := range []func(context.Context) error{u.readExisting, u.replaceStored, u.judgeRoom, u.insert, u.replaceInserted,
		u.answerIgnored} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	u.refuse()
	s.logDuplicates(ctx, in)
	return nil
}

// uniqueInsert is one try to insert jobs with verdicts.
type uniqueInsert struct {
	store *Store
	tx    pgx.Tx
	q     *dbsqlc.Queries // on tx
	in    *insertion
	// It shares res with in.
	part     insertion                // the jobs to store
	bounds   *boundCheck              // nil: no queue has a bound
	verdicts []uniqueVerdict          // of in.todo
	existing map[[16]byte]*job.Record // the answers for jobs that are not stored
	replaced map[int][]*job.Record    // by the index of the job for which they were cancelled
	over     map[[16]byte]*job.Record // the same, by id
}

// tryReplaced locks the stored jobs that are to be replaced. The keys of those that another transaction has locked, or moved since
// they were found, count as locked.
// Without it the cancel of a job that an application has locked would stop the whole flush.
func (u *uniqueInsert) tryReplaced(ctx context.Context, jobs []*job.Job, found *uniqueFound) error {
	var ids [][16]byte
	for n, v := range found.Verdicts {
		for _, h := range v.Replaced {
			if found.Free[n] && h.Item == storedJob {
				ids = append(ids, h.ID)
			}
		}
	}
	if ids == nil {
		return nil
	}
	rows, err := u.q.JobLockUnlocked(ctx, ids)
	if err != nil || len(rows) == len(ids) {
		return err
	}
	unlocked := make(map[[16]byte]bool, len(rows))
	for _, id := range rows {
		unlocked[id] = true
	}
	// A key counts as a whole: another job of the flush with that key was decided with the same holders.
	lockedKeys := map[string]bool{}
	for n, v := range found.Verdicts {
		for _, h := range v.Replaced {
			lockedKeys[jobs[n].UniqueKey] = lockedKeys[jobs[n].UniqueKey] || h.Item == storedJob && !unlocked[h.ID]
		}
	}
	for n, j := range jobs {
		found.Free[n] = found.Free[n] && !lockedKeys[j.UniqueKey]
	}
	return nil
}

// insert stores the jobs. An id that is taken rolls everything back.
func (u *uniqueInsert) insert(ctx context.Context) error {
	if len(u.part.todo) == 0 {
		return nil
	}
	if err := u.part.storeAll(ctx, u.tx, u.store.commits.Node); err != nil {
		return err
	}
	// storeAll has set the outcomes anew.
	for i, replaced := range u.replaced {
		u.in.res[i].replaced = replaced
	}
	if u.bounds != nil {
		return u.bounds.finish(ctx, u.part.jobs)
	}
	return nil
}

// judgeRoom leaves out the jobs for which bounded queues have no room. One with a policy may have replaced or prevented others, so that all
// is decided again without it.
//
// errTaken and errFull roll back, so that what was cancelled for a job without room is as before
// (docs/reference/backpressure.md, At the bound).
func (u *uniqueInsert) judgeRoom(ctx context.Context) error {
	if u.bounds == nil {
		return nil
	}
	at := make(map[int]int, len(u.in.todo))
	for n, i := range u.in.todo {
		at[i] = n
	}
	// Only jobs of this insert: stored ones that were replaced are not in the counts any more.
	replaces := func(i int) (items []int) {
		for _, h := range u.verdicts[at[i]].Replaced {
			if h.Item != storedJob {
				items = append(items, u.in.todo[h.Item])
			}
		}
		return items
	}
	accepted, err := u.bounds.judge(ctx, u.part.jobs, u.part.todo, replaces)
	if err != nil {
		return err
	}
	if u.in.atomic && len(accepted) < len(u.part.todo) {
		return errTaken
	}
	for _, i := range u.part.todo {
		if u.in.res[i].full != nil && u.in.jobs[i].Unique != nil {
			return errFull
		}
	}
	u.part.todo = accepted
	return nil
}

// replaceStored cancels the stored jobs that new ones replace.
func (u *uniqueInsert) replaceStored(ctx context.Context) error { return u.replace(ctx, true) }

// replaceInserted cancels the jobs of this insert that later ones of it replace. They are stored first, because both have happened.
func (u *uniqueInsert) replaceInserted(ctx context.Context) error { return u.replace(ctx, false) }

// replacement is a set of jobs that are cancelled by one statement, because policies with the same states want it.
type replacement struct {
	states  []ojs.JobState
	cancels []cancellation
}

// replace groups cancels by the states of the policy, nearly always one group, because the statement takes one list of states.
func (u *uniqueInsert) replace(ctx context.Context, stored bool) error {
	var sets []*replacement
	winners := map[[16]byte]int{} // the index of the job that replaces one
	for n, i := range u.in.todo {
		for _, h := range u.verdicts[n].Replaced {
			if u.in.res[i].keyLocked || (h.Item == storedJob) != stored {
				continue
			}
			winners[h.ID] = i
			// A job that has left these states since it was found is no duplicate any more; one that workers have taken, above all, goes on
			// if the policy does not name active.
			live := slices.DeleteFunc(slices.Clone(u.in.jobs[i].Unique.States), ojs.JobState.Terminal)
			at := slices.IndexFunc(sets, func(set *replacement) bool { return slices.Equal(set.states, live) })
			if at < 0 {
				at, sets = len(sets), append(sets, &replacement{states: live})
			}
			data := Cancel{By: replacedBy, Reason: "replaced by " + spec.FormatID(u.in.jobs[i].ID)}.eventData()
			sets[at].cancels = append(sets[at].cancels, cancellation{h.ID, data})
		}
	}
	for _, set := range sets {
		for cancels := range slices.Chunk(set.cancels, maxReplaced) {
			rows, err := u.store.cancelRows(ctx, u.q, cancels, set.states)
			if err != nil {
				return err
			}
			for k := range rows {
				u.cancelled(winners[rows[k].ID], (*job.Record)(&rows[k]))
			}
		}
	}
	return nil
}

// cancelled records that job i has replaced another one.
func (u *uniqueInsert) cancelled(i int, old *job.Record) {
	if u.replaced == nil {
		u.replaced, u.over = map[int][]*job.Record{}, map[[16]byte]*job.Record{}
	}
	u.replaced[i], u.over[old.ID] = append(u.replaced[i], old), old
	u.in.res[i].replaced, u.in.jobs[i].Outcome.Replaced = u.replaced[i], u.replaced[i]
	// One that was stored by this insert: its events are emitted, but no fetch is woken for it.
	for n := range u.in.res {
		if stored := u.in.res[n].job; stored != nil && stored.ID == old.ID {
			u.in.res[n].over = true
		}
	}
}

// readExisting reads the jobs that are the answer for others, before any is replaced. One that was deleted since it was found makes
// the check run again.
func (u *uniqueInsert) readExisting(ctx context.Context) error {
	var ids [][16]byte
	u.each(func(_ int, v uniqueVerdict) {
		if v.Ignore && v.Existing.Item == storedJob && !slices.Contains(ids, v.Existing.ID) {
			ids = append(ids, v.Existing.ID)
		}
	})
	if ids == nil {
		return nil
	}
	// The look into ojs.jobs alone takes a tenth of the time of JobListByID; the rest is read by that.
	live, err := u.q.UniqueListExisting(ctx, ids, job.MaxWholeSize(len(ids)))
	if err != nil {
		return err
	}
	u.existing = make(map[[16]byte]*job.Record, len(ids))
	for i := range live {
		u.existing[live[i].ID] = (*job.Record)(&live[i])
	}
	if len(live) == len(ids) {
		return nil
	}
	ids = slices.DeleteFunc(ids, func(id [16]byte) bool { return u.existing[id] != nil })
	rows, err := u.q.JobListByID(ctx, job.MaxWholeSize(len(ids)), ids)
	if err != nil {
		return err
	}
	if len(rows) < len(ids) {
		return errGone
	}
	for i := range rows {
		u.existing[rows[i].ID] = (*job.Record)(&rows[i])
	}
	return nil
}

// answerIgnored answers with the existing jobs as they were when the job came: one that an earlier job of this insert has replaced
// is cancelled.
// It runs last, because the answer may be a job that this insert has stored or cancelled.
func (u *uniqueInsert) answerIgnored(context.Context) error {
	u.each(func(i int, v uniqueVerdict) {
		existing := &u.in.res[i].existing
		switch {
		case !v.Ignore:
		case v.Existing.State == ojs.StateCancelled && u.over[v.Existing.ID] != nil:
			*existing = u.over[v.Existing.ID]
		case v.Existing.Item != storedJob:
			*existing = u.in.res[u.in.todo[v.Existing.Item]].job
		default:
			*existing = u.existing[v.Existing.ID]
		}
	})
	return nil
}

// refuse answers for the jobs that another one prevents from being stored.
// Inside of one atomic request the other job was never stored, so its id would mean nothing to the client: the error names the
// request instead.
func (u *uniqueInsert) refuse() {
	u.each(func(i int, v uniqueVerdict) {
		if v.Ignore {
			return
		}
		state := v.Existing.State
		if v.Existing.Item != storedJob && u.in.atomic {
			u.in.res[i].refused = spec.DuplicateInRequest(u.in.jobs[i].UniqueKey)
			return
		}
		if at := v.Existing.Item; at != storedJob && state != ojs.StateCancelled {
			if stored := u.in.res[u.in.todo[at]].job; stored != nil {
				state = ojs.JobState(stored.State)
			}
		}
		u.in.res[i].refused = spec.Duplicate(spec.FormatID(v.Existing.ID), state, u.in.jobs[i].UniqueKey)
	})
}

// each visits the jobs that are not stored because of another one.
func (u *uniqueInsert) each(visit func(i int, v uniqueVerdict)) {
	for n, i := range u.in.todo {
		if v := u.verdicts[n]; v.Prevented() && !u.in.res[i].keyLocked {
			visit(i, v)
		}
	}
}

// scheduledFor is a copy of the job for another time.
// A relative time has no text yet; the database adds it (JobInsert).
func scheduledFor(j *job.Job, at job.When) *job.Job {
	changed, echo := *j, ""
	if !at.Relative {
		echo = spec.FormatTime(at.At)
	}
	changed.Pending, changed.ScheduledAt, changed.Extra = false, at, job.ScheduledFor(j.Extra, echo)
	return &changed
}

// logDuplicates writes the keys of duplicates, which may be made of what clients keep to themselves, at debug level only.
func (s *Store) logDuplicates(ctx context.Context, in *insertion) {
	if !s.logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for _, i := range in.todo {
		j, r := in.jobs[i], in.res[i]
		if r.refused == nil && r.existing == nil && r.replaced == nil {
			continue
		}
		s.logger.DebugContext(ctx, "an equivalent job exists", slog.String("category", "lifecycle"), slog.Group("ojs",
			slog.String("job_type", j.Type), slog.String("queue", j.Queue), slog.String("unique_key", j.UniqueKey),
			slog.String("on_conflict", j.Unique.OnConflict)))
	}
}

// Deduplicated reports whether all the jobs were answered with equivalent ones, so that the call has stored nothing.
// The status of a batch depends on it (docs/reference/http.md, Batch).
func Deduplicated(jobs []*job.Job) bool {
	return !slices.ContainsFunc(jobs, func(j *job.Job) bool { return !j.Outcome.Deduplicated })
}
