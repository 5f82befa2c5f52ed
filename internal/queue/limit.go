package queue

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// A job with a limit key waits without ready_seq, so no claim finds it, until package limit gives it its place. Statements that may
// make room for such jobs record it in ojs.limit_pending. After their commit package limit looks, before the caller is answered, but
// never inside of a flush that callers share: jobs without a key would wait for it.

// OnLimitedJobs sets what is called after a commit with which jobs of these limit keys have entered available, or have left available
// or active. It may run transactions; callers of the change are answered after it.
// It is optional: without it the follower of package limit finds the rows of ojs.limit_pending a second later.
func (s *Store) OnLimitedJobs(f func(ctx context.Context, keys []string)) { s.onLimitedJobs = f }

// OnLimitedStarts sets what is called after a claim of jobs with limit keys. It must not block.
// A start may set a timer: the follower has to look when it no longer counts.
func (s *Store) OnLimitedStarts(f func()) { s.onLimitedStarts = f }

// FollowLimits lets those jobs of the keys be fetched that may start now, after a commit of another domain that moved jobs of them.
// Callers hold no lock and no transaction. It may run twice for a key at once: admissions lock the partition.
func (s *Store) FollowLimits(ctx context.Context, keys []string) {
	if len(keys) > 0 {
		s.onLimitedJobs(ctx, keys)
	}
}

// follow does what follows from jobs that have left active or ended: their workflows go on, and their limits let others start.
// jobs may have nil elements: requests that have changed nothing.
func (s *Store) follow(ctx context.Context, jobs []*job.Record) {
	s.FollowLimits(ctx, namesOf(jobs, func(j **job.Record) (key pgtype.Text) {
		if *j != nil && (*j).State != string(ojs.StateActive) {
			key = (*j).LimitKey
		}
		return key
	}))
	s.advance(ctx, endedWorkflows(jobs))
}

// followEnqueued does what follows from new jobs, and from those that were cancelled or discarded for them.
// It is called after the commit, by the caller of the insert and not by its flush.
func (s *Store) followEnqueued(ctx context.Context, jobs ...*job.Job) {
	var replaced []*job.Record
	var dropped [][16]byte
	var keys []string
	for _, j := range jobs {
		replaced, dropped = append(replaced, j.Outcome.Replaced...), append(dropped, j.Outcome.Dropped...)
		for _, key := range j.Outcome.DroppedLimits {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		if j.LimitKey != "" && !slices.Contains(keys, j.LimitKey) {
			keys = append(keys, j.LimitKey)
			// A job with a key may wait for it in this queue from now on, so fetches of the queue meet it.
			s.parked.park(j.Queue)
		}
	}
	s.FollowLimits(ctx, keys)
	s.follow(ctx, replaced)
	s.advance(ctx, dropped)
}
