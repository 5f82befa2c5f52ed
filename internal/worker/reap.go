package worker

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// reapBatch bounds the workers that one call buries.
const reapBatch = 1000

// listenFor is how long a node that has just started, or could not reach the database, listens before it takes silence for
// death: workers that were cut off from every server are alive, and their next heartbeat is seconds away.
const listenFor = 10 * time.Second

// ListenAgain says that no worker may have reached any node until now.
func (s *Store) ListenAgain() {
	now := time.Now()
	s.listeningSince.Store(&now)
}

// listening is how long this node has still to listen.
func (s *Store) listening() time.Duration {
	since := s.listeningSince.Load()
	if since == nil {
		return 0
	}
	return max(0, min(listenFor, s.config.DeadAfter)-time.Since(*since))
}

// deceased is a dead worker whose jobs are to be recovered.
type deceased struct {
	id      string
	diedAt  pgtype.Timestamptz
	silence time.Duration
}

// Reap declares the silent workers dead and gives their jobs back (docs/reference/workers.md, Dead workers); it returns for how many
// workers it did something. Death comes first, in one statement: from then on a worker that comes back is another one, and
// what it held is not extended. If this node goes away in between, another one finds the rest due after 5 s.
func (s *Store) Reap(ctx context.Context) (buried int, err error) {
	ctx, pass := s.tracer.Pass(ctx, "ojs.reaper.check")
	defer func() { pass.End(buried, err) }()
	// A worker that only fetches may be known to this node alone.
	if err := s.writeBeats(ctx); err != nil {
		return 0, err
	}
	dead, err := s.claimDead(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.recoverJobs(ctx, dead); err != nil {
		return len(dead), err
	}
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	pruned, err := s.db.Q.WorkerPrune(bounded, reapBatch)
	return len(dead) + int(pruned), err
}

func (s *Store) claimDead(ctx context.Context) (dead []deceased, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	if s.listening() == 0 {
		if dead, err = s.die(ctx); err != nil {
			return nil, err
		}
	}
	left, err := s.db.Q.WorkerBuryClaim(ctx, reapBatch)
	for _, l := range left {
		dead = append(dead, newDeceased(l.ID, l.DiedAt, l.SeenAt))
	}
	return dead, err
}

func (s *Store) die(ctx context.Context) (dead []deceased, err error) {
	died, err := s.db.Q.WorkerDie(ctx, dbsqlc.WorkerDieParams{DeadAfterMs: s.config.DeadAfter.Milliseconds(), MaxRows: reapBatch, Node: s.commits.Node})
	if err == nil {
		eventlog.Emit(ctx, s.commits, died, dieChange)
	}
	for _, d := range died {
		s.workers.SetQuiet(d.ID, false)
		dead = append(dead, newDeceased(d.ID, d.DiedAt, d.SeenAt))
	}
	if len(died) > 0 {
		s.commits.Committed()
	}
	return dead, err
}

func newDeceased(id string, diedAt, seenAt pgtype.Timestamptz) deceased {
	return deceased{id, diedAt, max(0, diedAt.Time.Sub(seenAt.Time))}
}

// recoverJobs takes away what the dead held. A job whose row somebody holds is left to the next try.
func (s *Store) recoverJobs(ctx context.Context, dead []deceased) error {
	if len(dead) == 0 {
		return nil
	}
	_, held, err := s.loseJobs(ctx, dead)
	if err != nil || held {
		return err
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids, diedAt := idsOf(dead)
	return s.db.Q.WorkerBuried(ctx, ids, diedAt)
}

func idsOf(dead []deceased) (ids []string, diedAt []pgtype.Timestamptz) {
	for _, d := range dead {
		ids, diedAt = append(ids, d.id), append(diedAt, d.diedAt)
	}
	return ids, diedAt
}

// loseJobs fails every job that the dead hold, in batches, by the path of any other failure; attempt and started_at
// guard that it is still the same reservation. It returns how many are available again, and whether some could not be had.
func (s *Store) loseJobs(ctx context.Context, dead []deceased) (requeued int, held bool, err error) {
	silences := make(map[string]time.Duration, len(dead))
	for _, d := range dead {
		silences[d.id] = d.silence
	}
	for {
		rows, err := s.listHeld(ctx, dead)
		if err != nil || len(rows) == 0 {
			return requeued, false, err
		}
		lost := make([]queue.Lost, len(rows))
		for i, r := range rows {
			lost[i] = queue.Lost{
				JobID: r.ID, WorkerID: r.WorkerID, Attempt: r.Attempt, StartedAt: r.StartedAt, Reason: job.WorkerDeath,
				Error: job.ServerError(job.WorkerDeath, s.config.DeadAfter, silences[r.WorkerID]),
			}
		}
		jobs, err := s.jobs.FailLost(ctx, lost)
		if err != nil {
			return requeued, false, err
		}
		failed := 0
		for _, job := range jobs {
			if job == nil {
				continue
			}
			failed++
			if job.State == string(ojs.StateAvailable) {
				requeued++
			}
		}
		if failed == 0 {
			return requeued, true, nil
		}
	}
}

func (s *Store) listHeld(ctx context.Context, dead []deceased) ([]dbsqlc.JobListOfWorkersRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids, diedAt := idsOf(dead)
	return s.db.Q.JobListOfWorkers(ctx, dbsqlc.JobListOfWorkersParams{
		WorkerIds: ids, DiedAt: diedAt, LongestMs: s.jobs.LongestVisibility().Milliseconds(), MaxRows: reapBatch,
	})
}

// Delete removes a dead worker and recovers what it holds. A worker that lives is a conflict.
func (s *Store) Delete(ctx context.Context, id string) (requeued int, err error) {
	requeued, err = s.exhume(ctx, id)
	if errors.Is(err, errAlive) {
		return 0, ojs.ErrWorkerLives(id)
	}
	if err != nil {
		return requeued, err
	}
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	deleted, err := s.db.Q.WorkerDeleteStale(bounded, id)
	if err == nil && deleted == 0 {
		return requeued, ojs.ErrWorkerLives(id) // it has come back meanwhile
	}
	return requeued, pg.ClientError(err)
}

// errAlive says that a worker is not dead, or no longer.
var errAlive = errors.New("the worker is alive")

// exhume recovers what a dead worker holds, whenever it got it.
func (s *Store) exhume(ctx context.Context, id string) (requeued int, err error) {
	dead, err := s.declareDead(ctx, id)
	if err != nil {
		return 0, err
	}
	err = s.jobs.UntilFree(ctx, func() error {
		n, held, err := s.loseJobs(ctx, []deceased{dead})
		requeued += n
		if err == nil && held {
			return queue.ErrLocked
		}
		return pg.ClientError(err)
	})
	return requeued, err
}

func (s *Store) declareDead(ctx context.Context, id string) (deceased, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.WorkerExhume(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := s.Get(ctx, id); err != nil {
			return deceased{}, err
		}
		return deceased{}, errAlive
	}
	if err != nil {
		return deceased{}, pg.ClientError(err)
	}
	return newDeceased(row.ID, row.DiedAt, row.SeenAt), nil
}

// DeadAt is when a worker is dead whose last beat was then.
func (s *Store) DeadAt(lastBeat, now time.Time) time.Time {
	dead := lastBeat.Add(s.config.DeadAfter)
	if soonest := now.Add(s.listening()); soonest.After(dead) {
		return soonest
	}
	return dead
}
