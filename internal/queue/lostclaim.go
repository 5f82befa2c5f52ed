package queue

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

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
// Of 63 random bits, so two claims of any two nodes hardly ever have the same. A claim of several runs has one number.
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

func (l *lostClaims) all() []lostClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]lostClaim(nil), l.list...)
}

func (l *lostClaims) remove(over map[int64]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.list[:0]
	for _, c := range l.list {
		if !over[c.number] {
			kept = append(kept, c)
		}
	}
	clear(l.list[len(kept):])
	l.list = kept
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
	claims := s.lost.all()
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
	s.lost.remove(over)
	return nil
}

// handBackClaimed requeues the jobs of the claims, in pages, as their workers would if they knew of them.
//
// The jobs of a claim are at most 1 000, those of many claims may be more. Workflows are not touched by a requeue, and what
// follows in limits is left to their follower.
func (s *Store) handBackClaimed(ctx context.Context, numbers []int64) error {
	for {
		rows, err := s.db.Q.JobListByClaim(ctx, dbsqlc.JobListByClaimParams{Claims: numbers, LongestMs: s.LongestVisibility().Milliseconds(), MaxRows: lostClaimRows})
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
