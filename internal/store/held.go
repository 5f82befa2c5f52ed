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

// Statements that change jobs skip rows that another transaction holds: an application that has called ojs.cancel and
// keeps its transaction open must not make everybody wait who shares a flush with that job. The caller of a skipped job
// asks again by itself, without a connection meanwhile.

// errHeld says that a job is in the state that was asked for, but another transaction holds its row.
var errHeld = errors.New("another transaction holds the job")

const (
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

// settle performs a request about one job until its row is free. refused tells from the stored job (nil: unknown) why a
// request had no effect.
func settle[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *dbsqlc.Job], req Req, about holder) (*dbsqlc.Job, error) {
	for wait := s.patience(); ; {
		job, err := b.Do(ctx, req)
		if err != nil {
			return nil, WireError(err)
		}
		if job, err = s.settled(ctx, job, about); !errors.Is(err, errHeld) {
			return job, err
		}
		if !wait.again(ctx) {
			return nil, heldTooLong(err)
		}
	}
}

// settleEach is settle for many, each as if sent alone, in order; errs is nil if none failed.
func settleEach[Req any](ctx context.Context, s *Store, b *batch.Batcher[Req, *dbsqlc.Job], reqs []Req, about []holder) ([]*dbsqlc.Job, []error) {
	jobs, errs := b.DoMany(ctx, reqs)
	jobs, errs = s.settledEach(ctx, jobs, errs, about)
	for wait := s.patience(); ; {
		var held []int
		for i, err := range errs {
			if errors.Is(err, errHeld) {
				held = append(held, i)
			}
		}
		if held == nil {
			return jobs, errs
		}
		if !wait.again(ctx) {
			for _, i := range held {
				errs[i] = heldTooLong(errs[i])
			}
			return jobs, errs
		}
		again, holders := make([]Req, len(held)), make([]holder, len(held))
		for n, i := range held {
			again[n], holders[n] = reqs[i], about[i]
		}
		moved, failed := b.DoMany(ctx, again)
		moved, failed = s.settledEach(ctx, moved, failed, holders)
		for n, i := range held {
			jobs[i], errs[i] = moved[n], nil
			if failed != nil {
				errs[i] = failed[n]
			}
		}
	}
}

func heldTooLong(err error) error {
	return errors.Join(ojs.ErrTimeout(), fmt.Errorf("%w, perhaps one that called ojs.cancel and was left open", err))
}
