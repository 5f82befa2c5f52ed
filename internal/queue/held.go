package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Statements that change jobs do not wait for rows that another transaction holds, or not for long: an application that
// has called ojs.cancel and keeps its transaction open must not make everybody wait who shares a flush with that job. The
// caller of such a job asks again by itself, without a connection meanwhile.

// ErrLocked says that a job is in the state that was asked for, but another transaction holds its row.
var ErrLocked = errors.New("another transaction holds the job")

const (
	// lockTimeout is how long an ack waits for rows, as Postgres writes it. Statements of our own hold them for
	// milliseconds.
	lockTimeout = "500ms"

	firstPause = 2 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// Patience is the wait of one caller for held jobs.
type Patience struct {
	until time.Time
	pause time.Duration
}

func (s *Store) Patience() Patience {
	return Patience{until: time.Now().Add(s.db.StatementTimeout), pause: firstPause}
}

// Again sleeps, longer each time, and reports whether there is time left for another try.
func (p *Patience) Again(ctx context.Context) bool {
	if time.Now().Add(p.pause).After(p.until) {
		return false
	}
	timer := time.NewTimer(p.pause)
	defer timer.Stop()
	p.pause = min(2*p.pause, maxPause)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// UntilFree calls try again and again while it fails with ErrLocked.
func (s *Store) UntilFree(ctx context.Context, try func() error) error {
	for wait := s.Patience(); ; {
		err := try()
		if !errors.Is(err, ErrLocked) {
			return err
		}
		if !wait.Again(ctx) {
			return heldTooLong(err)
		}
	}
}

// settle performs a request about one job, if need be when its row is free.
func settle[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *job.Record], req Req, about Holder) (*job.Record, error) {
	stored, err := b.Do(ctx, req)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	stored, err = s.settled(ctx, stored, about)
	if !errors.Is(err, ErrLocked) {
		return stored, err
	}
	jobs, errs := []*job.Record{nil}, []error{err}
	settleHeld(ctx, s, b, []Req{req}, []Holder{about}, jobs, errs)
	return jobs[0], errs[0]
}

// settleEach is settle for many, each as if sent alone, in order; errs is nil if none failed.
func settleEach[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *job.Record], reqs []Req, about []Holder) ([]*job.Record, []error) {
	jobs, errs := b.DoMany(ctx, reqs)
	jobs, errs = s.settledEach(ctx, jobs, errs, about)
	settleHeld(ctx, s, b, reqs, about, jobs, errs)
	return jobs, errs
}

// settleHeld performs the requests whose error is ErrLocked when their rows are free, and puts their outcomes into jobs and
// errs. It looks first, because an ack that is tried too early makes its whole flush wait.
func settleHeld[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *job.Record], reqs []Req, about []Holder, jobs []*job.Record, errs []error) {
	for wait := s.Patience(); ; {
		held, ids := heldOnes(errs, about)
		if held == nil {
			return
		}
		if !wait.Again(ctx) {
			for _, i := range held {
				errs[i] = heldTooLong(errs[i])
			}
			return
		}
		free, err := s.freeOnes(ctx, ids)
		for _, i := range held {
			switch {
			case err != nil:
				jobs[i], errs[i] = nil, pg.ClientError(err)
			case free[about[i].JobID]:
				jobs[i], errs[i] = b.Do(ctx, reqs[i])
				if errs[i] = pg.ClientError(errs[i]); errs[i] == nil {
					jobs[i], errs[i] = s.settled(ctx, jobs[i], about[i])
				}
			default: // held, or gone meanwhile
				jobs[i], errs[i] = s.settled(ctx, nil, about[i])
			}
		}
	}
}

func heldTooLong(err error) error {
	return errors.Join(ojs.ErrTimeout(), fmt.Errorf("%w, perhaps one that called ojs.cancel and was left open", err))
}

func heldOnes(errs []error, about []Holder) (held []int, ids [][16]byte) {
	for i, err := range errs {
		if errors.Is(err, ErrLocked) {
			held, ids = append(held, i), append(ids, about[i].JobID)
		}
	}
	return held, ids
}

// freeOnes tells which live jobs nobody holds at the moment.
func (s *Store) freeOnes(ctx context.Context, ids [][16]byte) (map[[16]byte]bool, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobLockUnlocked(ctx, ids)
	free := make(map[[16]byte]bool, len(rows))
	for _, id := range rows {
		free[id] = true
	}
	return free, err
}
