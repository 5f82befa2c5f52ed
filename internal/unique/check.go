package unique

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Check is the look for equivalent jobs of one insert.
// The zero value waits for locks as long as the transaction does.
type Check struct {
	// LockTimeout is how long the transaction waits for a lock from here on, in the notation of Postgres. "": unchanged.
	LockTimeout string

	// Try leaves keys that another transaction has locked alone, instead of waiting for them.
	// Flushes set it, because their other callers must not wait; see package queue, unique.go.
	Try bool
}

// Found is the outcome of a Check.
type Found struct {
	Verdicts []Verdict // of each job
	Locked   []bool    // by Try: whether the key of the job was free. Without that, its verdict means nothing
}

// search is what has to be known about a key.
// One per key, however many jobs of the insert have it.
type search struct {
	key  string
	lock int64
	// It is the union of those of all policies of the key, and period the longest: decide applies each policy by itself.
	states []ojs.JobState
	period time.Duration // 0: without limit
	all    bool          // whether the oldest job that blocks is not enough
}

// searches are those for the keys of jobs with a policy, by their locks.
// They are sorted by lock: two transactions that lock the same keys in another order would deadlock. Jobs without a policy that
// have a key take no part, as they prevent nothing.
func searches(jobs []*job.Job) []*search {
	var list []*search
	byKey := make(map[string]*search)
	for _, j := range jobs {
		u := j.Unique
		if u == nil {
			continue
		}
		s := byKey[j.UniqueKey]
		switch {
		case s == nil:
			s = &search{key: j.UniqueKey, lock: lockOf(j.UniqueKey), states: u.States, period: u.Period}
			byKey[j.UniqueKey], list = s, append(list, s)
		case !slices.Equal(s.states, u.States) || s.period != u.Period:
			s.widen(u)
		}
		// reject and ignore are answered with the oldest job; replace needs every job.
		s.all = s.all || u.OnConflict != "reject" && u.OnConflict != "ignore"
	}
	slices.SortFunc(list, func(a, b *search) int { return cmp.Compare(a.lock, b.lock) })
	return list
}

// widen makes the search one for another policy, too.
// With two policies the oldest job may block only one of them, hence all. A period of 0 is the longest.
func (s *search) widen(u *job.Unique) {
	period := s.period
	s.all, s.states = true, slices.Clone(s.states)
	for _, state := range u.States {
		if !slices.Contains(s.states, state) {
			s.states = append(s.states, state)
		}
	}
	if s.period = max(s.period, u.Period); min(period, u.Period) == 0 {
		s.period = 0
	}
}

// done are the states of the search that only jobs in jobs_done have.
// They are looked for in a statement of its own, and only if the policy names them: that table has a partition per day.
func (s *search) done() (states []ojs.JobState) {
	for _, state := range s.states {
		if state == ojs.StateCompleted || state == ojs.StateCancelled {
			states = append(states, state)
		}
	}
	return states
}

// params are the arguments of UniqueListHolders and UniqueListDone.
// Arrays with one element per key.
type params struct {
	keys, states []string
	periods, max []int64
}

// The states of a key are one text, because PostgreSQL has no arrays of arrays with different lengths.
func (p *params) add(s *search, states []ojs.JobState) {
	words := make([]string, len(states))
	for i, state := range states {
		words[i] = string(state)
	}
	limit := int64(1)
	if s.all {
		limit = 0
	}
	micros := s.period.Microseconds()
	if s.period > 0 {
		// 0 would mean no limit.
		micros = max(1, micros)
	}
	p.keys, p.states, p.periods, p.max = append(p.keys, s.key), append(p.states, strings.Join(words, ",")), append(p.periods, micros), append(p.max, limit)
}

func (p *params) holders() dbsqlc.UniqueListHoldersParams {
	return dbsqlc.UniqueListHoldersParams{Keys: p.keys, StatesLists: p.states, PeriodsUs: p.periods, MaxRows: p.max}
}

// Run locks the keys of the jobs until the end of the transaction, looks for the jobs that hold them, and decides. It is one round
// trip: each statement of a pipeline has a snapshot of its own.
//
// The statements must follow each other: the look has to see what the last holder of a lock has committed. The locks are advisory
// and end with the transaction, also for keys that no job has. After an error the transaction is over.
func (c Check) Run(ctx context.Context, tx pgx.Tx, jobs []*job.Job) (Found, error) {
	l := newLook(jobs)
	if err := pg.Pipeline(ctx, tx, l.steps(ctx, c)...); err != nil {
		return Found{}, err
	}
	found := Found{Verdicts: decide(jobs, l.held(), l.now.Time)}
	if c.Try {
		found.Locked = make([]bool, len(jobs))
		for i, j := range jobs {
			found.Locked[i] = j.Unique == nil || slices.Contains(l.taken, lockOf(j.UniqueKey))
		}
	}
	return found, nil
}

// look is the statements of a check with their results.
// The second half is filled by the steps, which a pipeline calls twice: they only assign.
type look struct {
	locks      []int64
	live, done params
	timed      bool // now is needed

	taken   []int64
	holders []dbsqlc.UniqueListHoldersRow
	ended   []dbsqlc.UniqueListDoneRow
	now     pgtype.Timestamptz
}

// now is read only for jobs that are scheduled for an absolute time: only for these it decides the state.
func newLook(jobs []*job.Job) *look {
	l := &look{timed: slices.ContainsFunc(jobs, func(j *job.Job) bool { return j.ScheduledAt.Set && !j.ScheduledAt.Relative })}
	for _, s := range searches(jobs) {
		l.locks = append(l.locks, s.lock)
		// States of finished jobs do no harm here: ojs.jobs has no such rows, but for discarded ones.
		l.live.add(s, s.states)
		if states := s.done(); states != nil {
			l.done.add(s, states)
		}
	}
	return l
}

// The lock timeout first, then the locks, then the look; the clock last, so that it is read under the locks.
func (l *look) steps(ctx context.Context, c Check) (steps []pg.Step) {
	// It holds to the end of the transaction, also for the rows of jobs and queues that are locked after the keys.
	if c.LockTimeout != "" {
		steps = append(steps, func(db dbsqlc.DBTX) error { return dbsqlc.New(db).SystemLockTimeout(ctx, c.LockTimeout) })
	}
	if c.Try {
		steps = append(steps, func(db dbsqlc.DBTX) (err error) {
			l.taken, err = dbsqlc.New(db).UniqueTryLock(ctx, l.locks)
			return err
		})
	} else {
		steps = append(steps, func(db dbsqlc.DBTX) error { return dbsqlc.New(db).UniqueLock(ctx, l.locks) })
	}
	steps = append(steps, func(db dbsqlc.DBTX) (err error) {
		l.holders, err = dbsqlc.New(db).UniqueListHolders(ctx, l.live.holders())
		return err
	})
	if l.done.keys != nil {
		steps = append(steps, func(db dbsqlc.DBTX) (err error) {
			l.ended, err = dbsqlc.New(db).UniqueListDone(ctx, dbsqlc.UniqueListDoneParams(l.done.holders()))
			return err
		})
	}
	if l.timed {
		steps = append(steps, func(db dbsqlc.DBTX) (err error) {
			l.now, err = dbsqlc.New(db).SystemPing(ctx)
			return err
		})
	}
	return steps
}

// held are the jobs that were found, by their keys.
func (l *look) held() map[string][]Holder {
	held := make(map[string][]Holder, len(l.holders))
	for _, r := range l.holders {
		held[r.Key] = append(held[r.Key], storedHolder(r))
	}
	for _, r := range l.ended {
		held[r.Key] = append(held[r.Key], storedHolder(dbsqlc.UniqueListHoldersRow(r)))
	}
	return held
}

// An id that is stored has no place in the request, hence Stored.
func storedHolder(r dbsqlc.UniqueListHoldersRow) Holder {
	return Holder{
		ID: r.ID, Key: r.Key, State: ojs.JobState(r.State), ScheduledAt: job.When{Set: r.ScheduledAt.Valid, At: r.ScheduledAt.Time}, Item: Stored,
		createdAt: r.CreatedAt.Time, seenAt: r.Now.Time,
	}
}

// Live finds, for each key that a job holds which has not ended, the oldest such job. The caller has locked the keys.
// Package queue asks before a manual retry. Only jobs that have not ended count then, whatever their policies said.
func Live(ctx context.Context, q *dbsqlc.Queries, keys []string) (map[string]Holder, error) {
	var p params
	for _, key := range keys {
		p.add(&search{key: key}, liveStates)
	}
	rows, err := q.UniqueListHolders(ctx, p.holders())
	held := make(map[string]Holder, len(rows))
	for _, r := range rows {
		held[r.Key] = storedHolder(r)
	}
	return held, err
}

var liveStates = []ojs.JobState{ojs.StateAvailable, ojs.StateActive, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending}

// Stored is the Item of a Holder that is no job of the request.
const Stored = -1

// Holder is a job with a key.
type Holder struct {
	ID  [16]byte
	Key string
	// judge changes it in memory to cancelled when a job of the request replaces the holder, so that later jobs of the request
	// see it so.
	State       ojs.JobState
	ScheduledAt job.When
	Item        int // index of the job in the request, which has not been inserted yet; or Stored

	// Both are by the clock of the database.
	createdAt, seenAt time.Time // of a stored job: when it was created, and the clock of the statement that found it
}

// Verdict is what is to be done with a job. The zero value stores it.
// It holds only while the locks do, and for a key that was locked; see Found.
type Verdict struct {
	Existing *Holder // not nil: the job is not stored, because of this one
	Ignore   bool    // if it is not stored: that is no error
	// Both stored ones and earlier jobs of the request.
	Replaced []Holder  // to cancel if it is stored
	Takes    *job.When // if it is stored: the time for which it is scheduled instead of its own
}

// Busy reports whether another job prevents that the job is stored.
func (v Verdict) Busy() bool { return v.Existing != nil }

// decide gives the verdicts that the jobs would get one after the other. held has the stored jobs of each key; now is only used for
// jobs that are scheduled for a time.
//
// It is pure: no statement, no clock. A job that is stored joins the holders of its key, so that later ones of the request are
// judged as if it were in the table. The caller must store exactly what the verdicts say, or decide again.
func decide(jobs []*job.Job, held map[string][]Holder, now time.Time) []Verdict {
	verdicts := make([]Verdict, len(jobs))
	// Oldest first: reject and ignore name the first one that blocks. Jobs of the request are appended behind the stored ones.
	for _, holders := range held {
		slices.SortFunc(holders, func(a, b Holder) int {
			return cmp.Or(a.createdAt.Compare(b.createdAt), bytes.Compare(a.ID[:], b.ID[:]))
		})
	}
	for i, j := range jobs {
		if j.UniqueKey == "" {
			continue
		}
		holders := held[j.UniqueKey]
		if j.Unique != nil {
			verdicts[i] = judge(j.Unique, holders)
		}
		if v := verdicts[i]; !v.Busy() {
			own := Holder{ID: j.ID, Key: j.UniqueKey, State: stateOf(j, now), ScheduledAt: j.ScheduledAt, Item: i}
			if v.Takes != nil {
				own.State, own.ScheduledAt = ojs.StateScheduled, *v.Takes
			}
			held[j.UniqueKey] = append(holders, own)
		}
	}
	return verdicts
}

// judge applies a policy, and marks the jobs that are to be replaced as cancelled.
// reject and ignore stop at the oldest job that blocks. replace goes through all of them.
func judge(u *job.Unique, holders []Holder) (v Verdict) {
	oldest := true
	for i := range holders {
		h := &holders[i]
		if !h.blocks(u) {
			continue
		}
		switch u.OnConflict {
		case "reject", "ignore":
			existing := *h
			return Verdict{Existing: &existing, Ignore: u.OnConflict == "ignore"}
		}
		// Only the oldest of them gives its time (docs/reference/unique.md, Conflicts).
		if oldest && u.OnConflict == "replace_except_schedule" && h.State == ojs.StateScheduled {
			at := h.ScheduledAt
			v.Takes = &at
		}
		oldest = false
		if !h.State.Terminal() { // what has ended stays as it is
			v.Replaced = append(v.Replaced, *h)
			h.State = ojs.StateCancelled
		}
	}
	return v
}

// blocks reports whether the job is a duplicate for a policy.
// The states and the period are those of the new job. A job of the request has no age.
func (h *Holder) blocks(u *job.Unique) bool {
	return slices.Contains(u.States, h.State) && (u.Period == 0 || h.Item != Stored || h.seenAt.Before(h.createdAt.Add(u.Period)))
}

// stateOf is the state in which the job will be stored.
// It only matters for policies that do not name all states. A time that is reached between this clock and the insert makes a
// difference of a moment.
func stateOf(j *job.Job, now time.Time) ojs.JobState {
	switch at := j.ScheduledAt; {
	case j.Pending:
		return ojs.StatePending
	case at.Set && at.Relative && at.In > 0, at.Set && !at.Relative && at.At.After(now):
		return ojs.StateScheduled
	}
	return ojs.StateAvailable
}
