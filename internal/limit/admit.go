package limit

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/queue"
)

const (
	// maxKeys bounds the partitions of one statement. It locks them until its commit. More would let an enqueue of one key
	// wait behind the admission of all others.
	maxKeys = 200

	// maxRounds bounds the statements for a partition with more jobs to move than fit one. The Follower goes on. Callers
	// wait for the flush, so it must end although jobs keep coming.
	maxRounds = 20
)

// Admit lets jobs of the partitions be fetched, as many as may start. Concurrent callers share a transaction, which begins after the
// changes of all of them were committed. It goes on if ctx ends. When it returns nil, what could start then has its place
// and can be fetched. After an error some partitions may have been admitted; a repetition admits the rest, and never too
// many, as each call counts anew. Nodes may call it for the same keys at once: they take turns at the locks of the rows.
func (s *Store) Admit(ctx context.Context, keys []string) error {
	_, errs := s.admitting.DoMany(context.WithoutCancel(ctx), keys)
	return errors.Join(errs...)
}

// follow is called after commits that moved jobs of these partitions. If they cannot be looked at now, the Follower does
// it. It is the hook of queue.Store.OnLimitedJobs. The change that called it is committed, so an error is logged and not
// returned.
func (s *Store) follow(ctx context.Context, keys []string) {
	if err := s.Admit(ctx, keys); err != nil {
		s.logger.WarnContext(ctx, "jobs that wait for a rate limit were not looked at; trying again within seconds",
			slog.String("category", "error"), slog.Any("error", err))
		s.Wake()
	}
}

// flush admits jobs of all the partitions, and again of those that had more than one statement moves. The keys of all
// callers are asked for once each. limit_admit locks their rows in the order of the keys, so that two nodes cannot block
// each other. An error fails the flush, and the batcher halves it if the error may be that of one key.
func (s *Store) flush(ctx context.Context, keys []string) ([]struct{}, error) {
	left := slices.Compact(slices.Sorted(slices.Values(keys)))
	for round := 0; len(left) > 0 && round < maxRounds; round++ {
		rows, err := s.admit(ctx, left)
		if err != nil {
			return nil, err
		}
		// A new array, because the old one may be that of the parameter.
		left = left[:0:0]
		for _, r := range rows {
			if r.More {
				left = append(left, r.Key)
			}
		}
	}
	if len(left) > 0 {
		s.Wake()
	}
	return make([]struct{}, len(keys)), nil
}

// Fetches are woken after the commit, by the places that the statement has returned.
func (s *Store) admit(ctx context.Context, keys []string) (partitions []dbsqlc.LimitAdmitRow, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.LimitAdmitRow
	err = s.db.WithPartitions(ctx, func() (err error) {
		rows, err = s.db.Q.LimitAdmit(ctx, keys, s.commits.Node)
		return err
	})
	if err != nil {
		return nil, err
	}
	var places []queue.Place
	for _, r := range rows {
		if r.Queue != "" {
			places = append(places, queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.ReadySeq})
			continue
		}
		partitions = append(partitions, r)
		// The partition becomes due by time; the Follower sets its timer anew.
		if r.WaitUs >= 0 {
			signal(s.due)
		}
	}
	if len(places) > 0 {
		s.jobs.NotifyAvailable(places)
		s.commits.Committed()
	}
	return partitions, nil
}
