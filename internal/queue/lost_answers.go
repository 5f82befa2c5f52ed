package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// When a connection breaks after a write was sent, the write may have committed. Callers are told what is true: the node ends
// the old session, so that nothing can commit later, and reads the events that it has written about the jobs. Every change
// commits with its event, so they tell even of a job that has been fetched, completed or deleted since.

// clockSlack is how much the clock of the database may have been set back meanwhile, for example by a failover.
// It widens the time in which an event counts as one of the write. Too wide is harmless as a rule: did compares run and state
// as well.
const clockSlack = 5 * time.Second

// unsettled is a write about a job whose outcome did not arrive.
type unsettled struct {
	id [16]byte
	// All requests of a flush share one, so its session is ended once.
	unknown *pg.Unknown
}

// settled is what the node has changed about the job since it sent the write.
type settled struct {
	changes []dbsqlc.EventListOwnByJobRow
	// Behind a pooler it is always false: an absent event proves nothing there.
	ended bool // the session: what did not happen will not happen
}

// outcome is what became of a write whose answer did not arrive.
// The zero value means not done and no error: the request had none.
type outcome struct {
	done   bool
	change dbsqlc.EventListOwnByJobRow // if done
	err    error                       // if not done, for the client
}

// lookUpLost finds out what became of writes that failed with errs. ids are their jobs; did reports whether a change of job i is
// the one that was asked for.
//
// Errors of another kind go to the client as they are (pg.ClientError). A write whose event is there is done; one without event
// is not done if its session has ended, and else stays unknown, which is 504. It changes nothing in the database but the end of
// the session.
func (s *Store) lookUpLost(ctx context.Context, ids [][16]byte, errs []error,
	did func(i int, c dbsqlc.EventListOwnByJobRow) bool) []outcome {
	res := make([]outcome, len(ids))
	var reqs []unsettled
	var at []int
	for i, err := range errs {
		if u, ok := errors.AsType[*pg.Unknown](err); ok {
			reqs, at = append(reqs, unsettled{ids[i], u}), append(at, i)
		}
		res[i].err = pg.ClientError(err)
	}
	if reqs == nil {
		return res
	}
	found, failed := s.lookUps.DoMany(ctx, reqs)
	for n, i := range at {
		for _, c := range found[n].changes {
			if did(i, c) {
				res[i] = outcome{done: true, change: c}
			}
		}
		switch {
		case res[i].done:
		case failed != nil && failed[n] != nil:
			res[i].err = errors.Join(res[i].err, failed[n])
		// The client is told that nothing was done, so it may repeat the call.
		case found[n].ended:
			res[i].err = pg.NotDone(errs[i])
		}
	}
	return res
}

// flushLookUps answers many callers with one look, as soon as the database can be reached.
//
// It tries again while the database is away, because it is away in most cases: the connection has just broken. Callers that come
// meanwhile form the next flush.
func (s *Store) flushLookUps(ctx context.Context, reqs []unsettled) (res []settled, err error) {
	ended, ids := map[*pg.Unknown]bool{}, make([][16]byte, len(reqs))
	var rows []dbsqlc.EventListOwnByJobRow
	err = s.db.WhileAway(ctx, func(ctx context.Context) (err error) {
		// The sessions of the writes end before what the node has written is read: an absent event proves something only if none can
		// follow.
		clear(ended)
		for i, r := range reqs {
			ids[i] = r.id
			if _, known := ended[r.unknown]; known {
				continue
			}
			err := s.db.EndSession(ctx, r.unknown)
			if err != nil && pg.IsUnavailable(err) {
				return err
			}
			ended[r.unknown] = err == nil
		}
		if rows, err = s.db.Q.EventListOwnByJob(ctx, ids, s.commits.Node); err != nil {
			return fmt.Errorf("look up outcomes: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Of several writes about one job, its events go to all of them; did of lookUpLost chooses.
	byJob := make(map[[16]byte][]dbsqlc.EventListOwnByJobRow, len(rows))
	for _, r := range rows {
		byJob[r.JobID] = append(byJob[r.JobID], r)
	}
	res = make([]settled, len(reqs))
	for i, r := range reqs {
		res[i].ended = ended[r.unknown]
		for _, c := range byJob[r.id] {
			// The age of the write is measured by this machine, both times are of the database: only the difference of two of its
			// readings counts.
			if !c.Time.Time.Before(c.Now.Time.Add(-r.unknown.Age() - clockSlack)) {
				res[i].changes = append(res[i].changes, c)
			}
		}
	}
	return res, nil
}

// wasStored reports whether a change is the insert of the job.
func wasStored(c dbsqlc.EventListOwnByJobRow) bool { return c.FromState == "" && c.ToState != "" }

// ended reports whether a change ends the run of a worker. The event of a job that goes back to its queue has the attempt
// before, which the next run has again.
// JobFail writes the event of a job that goes back with its attempt already reduced.
func (r JobRun) ended(c dbsqlc.EventListOwnByJobRow) bool {
	attempt := c.Attempt
	if wentBack(c) {
		attempt++
	}
	return c.FromState == string(ojs.StateActive) && (r.Attempt < 0 || r.Attempt == attempt) &&
		(r.WorkerID == "" || c.WorkerID == "" || r.WorkerID == c.WorkerID)
}

// wentBack reports whether a change of an active job is that of one that was handed back.
func wentBack(c dbsqlc.EventListOwnByJobRow) bool {
	return c.ToState == string(ojs.StateAvailable) || c.ToState == string(ojs.StateScheduled)
}

// lookUpEnqueues replaces the errors of inserts whose outcome did not arrive. It returns the jobs that were stored; some may be
// in a later state by now.
//
// It does what the lost flush would have done after its commit. Events are emitted as they were then, with the state of then;
// fetches are woken only if the job is available still.
func (s *Store) lookUpEnqueues(ctx context.Context, jobs []*job.Job, errs []error) ([]*job.Record, []error) {
	ids := make([][16]byte, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	outcomes := s.lookUpLost(ctx, ids, errs, func(_ int, c dbsqlc.EventListOwnByJobRow) bool { return wasStored(c) })
	var found [][16]byte
	for i, o := range outcomes {
		if o.done {
			found = append(found, ids[i])
		}
	}
	read, err := s.getEach(context.WithoutCancel(ctx), found)
	stored, shown, inserted := make([]*job.Record, len(jobs)), make([]error, len(jobs)), make([]enqueued, 0, len(found))
	for i, o := range outcomes {
		switch {
		case !o.done:
			shown[i] = o.err
		// The job is stored, but cannot be shown: unknown is the honest answer.
		case err != nil:
			shown[i] = pg.ClientError(errs[i])
		default:
			stored[i] = read[ids[i]]
			if stored[i] == nil { // deleted since
				stored[i] = newRecord(jobs[i], &dbsqlc.JobInsertRow{ID: ids[i], State: o.change.ToState, CreatedAt: o.change.Time})
			}
			then := *stored[i]
			then.State = o.change.ToState
			if stored[i].State != string(ojs.StateAvailable) {
				then.ReadySeq = pgtype.Int8{}
			}
			inserted = append(inserted, enqueued{job: &then, eventType: o.change.Type, replaced: jobs[i].Outcome.Replaced})
		}
	}
	if len(inserted) > 0 {
		s.afterEnqueue(ctx, inserted, nil)
	}
	return stored, shown
}

// lookUpEnqueueAll is lookUpEnqueues for jobs of one transaction.
// They were one transaction, so either all have their events or none has.
func (s *Store) lookUpEnqueueAll(ctx context.Context, jobs []*job.Job, err error) ([]*job.Record, error) {
	errs := make([]error, len(jobs))
	for i := range errs {
		errs[i] = err
	}
	stored, shown := s.lookUpEnqueues(ctx, jobs, errs)
	for _, err := range shown {
		if err != nil {
			return nil, err
		}
	}
	return stored, nil
}

// A claim whose answer did not arrive may have committed: then its jobs are reserved for workers that do not know of them. The
// node hands such jobs back, without counting the attempt, as soon as it can reach the database. It finds them by the number
// of the claim, which stands in ready_seq of a job from its claim to its next change of state. So it cannot take a job away
// from a worker that has got it.

const (
	// lostClaimTimeout bounds one look for lost claims: a fetch may wait for it.
	// It has to allow for the end of a session, for which PostgreSQL waits up to 2 s (pg.DB.EndSession).
	lostClaimTimeout = 3 * time.Second

	// lostClaimKeep is how long a lost claim is looked for whose session perhaps runs on, because it is hidden by a pooler. It is
	// longer than any statement.
	lostClaimKeep = time.Minute

	lostClaimRows = 1000
)

// claimNumber returns a number for a claim. It is negative, so it is never a place in the fetch order.
// Of 63 random bits, so two claims of any two nodes hardly ever have the same. The parts of a claim have one number.
func claimNumber() int64 { return -rand.Int64() }

// lostClaim is a claim whose outcome did not arrive.
type lostClaim struct {
	number  int64
	unknown *pg.Unknown
}

// lostClaims are the claims of this node that may have committed without an answer.
// Nothing of it is stored: if the node stops, the leases of the jobs end by themselves.
type lostClaims struct {
	looking sync.Mutex // held by the caller that looks for them
	failed  error      // of the latest look; guarded by looking
	ended   time.Time  // the latest look; guarded by looking

	mu sync.Mutex
	// Guarded by mu.
	list []lostClaim
}

// add records a claim that has failed, unless it certainly had no effect.
// A claim that was refused by PostgreSQL, or never sent, has no effect and is not recorded.
func (l *lostClaims) add(number int64, err error) {
	unknown, ok := errors.AsType[*pg.Unknown](err)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, lostClaim{number, unknown})
}

// handBackLost hands the jobs of lost claims back. After an error it should be called again. Callers that come while another one
// looks get its error: many fetches may have lost their claims at the same time, and each try may take seconds.
//
// It may run beside claims and acks: a job is handed back only while it stands under the number of the claim, and JobFail
// compares the run again.
func (s *Store) handBackLost(ctx context.Context) error {
	// Before the lock: the look of another caller counts only if it ended after this one had come.
	began := time.Now()
	s.lost.looking.Lock()
	defer s.lost.looking.Unlock()
	if s.lost.failed != nil && s.lost.ended.After(began) {
		return s.lost.failed
	}
	s.lost.failed = s.lookForLost(ctx)
	s.lost.ended = time.Now()
	return s.lost.failed
}

// lookForLost ends the session of each claim first, because the claim may commit as long as it runs. What is reserved under its number
// then is all that there will be, and the claim is forgotten. One behind a pooler is looked for again until lostClaimKeep is over.
// The claims that are added meanwhile stay for the next look.
func (s *Store) lookForLost(ctx context.Context) error {
	s.lost.mu.Lock()
	claims := slices.Clone(s.lost.list)
	s.lost.mu.Unlock()
	if len(claims) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lostClaimTimeout)
	defer cancel()
	over, numbers := make(map[int64]bool, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		numbers[i] = c.number
		err := s.db.EndSession(ctx, c.unknown)
		// Any other error means that the session is not known to have ended. Its jobs are handed back all the same, and looked
		// for again.
		if err != nil && pg.IsUnavailable(err) {
			return err
		}
		over[c.number] = err == nil || c.unknown.Age() > lostClaimKeep
	}
	if err := s.handBackClaimed(ctx, numbers); err != nil {
		return err
	}
	s.lost.mu.Lock()
	defer s.lost.mu.Unlock()
	s.lost.list = slices.DeleteFunc(s.lost.list, func(c lostClaim) bool { return over[c.number] })
	return nil
}

// handBackClaimed requeues the jobs of the claims, in pages, as their workers would if they knew of them.
//
// The jobs of a claim are at most 1 000, those of many claims may be more. Workflows are not touched by a requeue, and what
// follows in limits is left to their follower.
func (s *Store) handBackClaimed(ctx context.Context, numbers []int64) error {
	for {
		rows, err := s.db.Q.JobListByClaim(ctx, dbsqlc.JobListByClaimParams{Claims: numbers,
			LongestMs: s.LongestVisibility().Milliseconds(), MaxRows: lostClaimRows})
		if err != nil || len(rows) == 0 {
			return err
		}
		nacks := make([]nack, len(rows))
		for i, r := range rows {
			nacks[i] = nackOf(job.Nack{JobID: r.ID, WorkerID: r.WorkerID.String, Attempt: r.Attempt, Requeue: true})
			nacks[i].startedAt = r.StartedAt
		}
		jobs, err := s.flushFail(ctx, nacks)
		if err != nil {
			return err
		}
		if slices.Contains(jobs, nil) {
			return ErrLocked // or changed since the look
		}
		s.logger.WarnContext(ctx, "the connection to the database broke during a claim; its jobs were handed back, without counting the attempt",
			slog.String("category", "worker"), slog.Int("jobs", len(rows)))
		if len(rows) < lostClaimRows {
			return nil
		}
	}
}
