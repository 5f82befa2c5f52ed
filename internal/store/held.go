package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// Statements that change jobs do not wait for rows that another transaction holds, or not for long: an application that
// has called ojs.cancel and keeps its transaction open must not make everybody wait who shares a flush with that job. The
// caller of such a job asks again by itself, without a connection meanwhile.

// errHeld says that a job is in the state that was asked for, but another transaction holds its row.
var errHeld = errors.New("another transaction holds the job")

const (
	// lockPatience is how long an ack waits for rows, as Postgres writes it. Statements of our own hold them for
	// milliseconds.
	lockPatience = "500ms"

	firstPause = 2 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// patience is the wait of one caller for held jobs.
type patience struct {
	until time.Time
	pause time.Duration
}

func (s *Store) patience() patience {
	return patience{until: time.Now().Add(s.config.StatementTimeout), pause: firstPause}
}

// again sleeps, longer each time, and reports whether there is time left for another try.
func (p *patience) again(ctx context.Context) bool {
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

// untilFree calls try again and again while it fails with errHeld.
func (s *Store) untilFree(ctx context.Context, try func() error) error {
	for wait := s.patience(); ; {
		err := try()
		if !errors.Is(err, errHeld) {
			return err
		}
		if !wait.again(ctx) {
			return heldTooLong(err)
		}
	}
}

// settle performs a request about one job, if need be when its row is free.
func settle[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *dbsqlc.Job], req Req, about holder) (*dbsqlc.Job, error) {
	job, err := b.Do(ctx, req)
	if err != nil {
		return nil, WireError(err)
	}
	job, err = s.settled(ctx, job, about)
	if !errors.Is(err, errHeld) {
		return job, err
	}
	jobs, errs := []*dbsqlc.Job{nil}, []error{err}
	settleHeld(ctx, s, b, []Req{req}, []holder{about}, jobs, errs)
	return jobs[0], errs[0]
}

// settleEach is settle for many, each as if sent alone, in order; errs is nil if none failed.
func settleEach[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *dbsqlc.Job], reqs []Req, about []holder) ([]*dbsqlc.Job, []error) {
	jobs, errs := b.DoMany(ctx, reqs)
	jobs, errs = s.settledEach(ctx, jobs, errs, about)
	settleHeld(ctx, s, b, reqs, about, jobs, errs)
	return jobs, errs
}

// settleHeld performs the requests whose error is errHeld when their rows are free, and puts their outcomes into jobs and
// errs. It looks first, because an ack that is tried too early makes its whole flush wait.
func settleHeld[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *dbsqlc.Job], reqs []Req, about []holder, jobs []*dbsqlc.Job, errs []error) {
	for wait := s.patience(); ; {
		held, ids := heldOnes(errs, about)
		if held == nil {
			return
		}
		if !wait.again(ctx) {
			for _, i := range held {
				errs[i] = heldTooLong(errs[i])
			}
			return
		}
		free, err := s.freeOnes(ctx, ids)
		for _, i := range held {
			switch {
			case err != nil:
				jobs[i], errs[i] = nil, WireError(err)
			case free[about[i].jobID]:
				jobs[i], errs[i] = b.Do(ctx, reqs[i])
				if errs[i] = WireError(errs[i]); errs[i] == nil {
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

func heldOnes(errs []error, about []holder) (held []int, ids [][16]byte) {
	for i, err := range errs {
		if errors.Is(err, errHeld) {
			held, ids = append(held, i), append(ids, about[i].jobID)
		}
	}
	return held, ids
}

// freeOnes tells which live jobs nobody holds at the moment.
func (s *Store) freeOnes(ctx context.Context, ids [][16]byte) (map[[16]byte]bool, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobLockFree(ctx, ids)
	free := make(map[[16]byte]bool, len(rows))
	for _, id := range rows {
		free[id] = true
	}
	return free, err
}
