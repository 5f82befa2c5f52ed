package unique

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

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
