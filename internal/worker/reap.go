package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// readPause is the least time between two reads, so that a change of many workers, as in a deployment, is read once. Nodes
	// must follow a change within a second. A failed read is repeated after errorPause, as no further notification may
	// come.
	readPause = 100 * time.Millisecond

	errorPause = time.Second
)

// Liveness keeps the worker cache and the registry in step: fetches and acks count as beats, which it writes, and it reads
// which workers are quiet. If there is nothing to do it sends no query. It has one goroutine. read has room for one
// signal; more would lead to the same statement. The quiet workers that the node knows may be stale by the time of
// a notification and readPause; without notifications the fetch of a quiet worker may get jobs.
type Liveness struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
	read  chan struct{}
}

// NewLiveness returns the service. The caller connects ReadQuiet.
func NewLiveness(archetype *baseservice.Archetype, s *Store) *Liveness {
	return baseservice.Init(archetype, &Liveness{store: s, read: make(chan struct{}, 1)})
}

// ReadQuiet requests a read, because the quiet state of some worker may have changed. It does not block.
func (l *Liveness) ReadQuiet() {
	loop.Signal(l.read)
}

// Start runs the loop until stopped.
func (l *Liveness) Start(ctx context.Context) error {
	loop.Run(ctx, &l.BaseStartStop, l.loop)
	return nil
}

// loop has two timers. A nil channel means that there is nothing to read, or to write. A signal only arms a timer, so that
// a burst of signals makes one statement. Beats that are collected at the stop are not written.
func (l *Liveness) loop(ctx context.Context) {
	var readAt, writeAt <-chan time.Time
	var readLast time.Time
	// Beats are written well within the silence after which a worker is dead. A worker that only fetches therefore looks silent for up to
	// this much longer than it is.
	writePause := min(5*time.Second, l.store.config.Workers.DeadAfter/4)
	for {
		select {
		case <-ctx.Done():
			return
		// A signal while a read is planned changes nothing: that read comes later than the change.
		case <-l.read:
			if readAt == nil {
				// The first change after a quiet time is read at once.
				readAt = time.After(readPause - min(readPause, time.Since(readLast)))
			}
		case <-readAt:
			readAt, readLast = nil, time.Now()
			if err := l.store.readQuiet(ctx); err != nil && ctx.Err() == nil {
				l.Logger.WarnContext(ctx, "quiet workers were not read; the read is repeated in a second", slog.Any("error", err))
				readAt = time.After(errorPause)
			}
		// The first beat after a write starts the timer, so a beat waits for one interval at most.
		case <-l.store.workers.Beaten():
			if writeAt == nil {
				writeAt = time.After(writePause)
			}
		case <-writeAt:
			writeAt = nil
			if err := l.store.writeBeats(ctx); err != nil && ctx.Err() == nil {
				l.Logger.WarnContext(ctx, "beats of workers were not written; they are written with the next ones", slog.Any("error", err))
			}
		}
	}
}

// Reaping has two steps. WorkerExpire declares a silent worker dead; from then on the jobs that it had fetched are not extended,
// even if the worker comes back. Then the jobs are failed as lost. If the node stops between the steps, another one
// finishes the second step when reap_at, 5 s later, has passed.

// reapBatch bounds the workers, and the jobs, of one statement. It bounds row locks and the size of a flush; a reap goes on
// in the next pass.
const reapBatch = 1000

// DeadAt is when a worker with this last beat is dead, if there is no outage meanwhile. It tells when to look. Whether a worker is dead is
// decided in SQL (WorkerExpire).
func (s *Store) DeadAt(lastBeat time.Time) time.Time { return lastBeat.Add(s.config.Workers.DeadAfter) }

// DeadAfter is the silence after which a worker is dead.
func (s *Store) DeadAfter() time.Duration { return s.config.Workers.DeadAfter }

// deadWorker is an expired worker whose jobs must be failed. deadAt is the version of the death: an entry with a later one
// was revived and has died again, and is left to whoever found that. silence goes into the error of the jobs.
type deadWorker struct {
	id      string
	deadAt  pgtype.Timestamptz
	silence time.Duration
}

func newDeadWorker(id string, deadAt, lastSeenAt pgtype.Timestamptz) deadWorker {
	return deadWorker{id, deadAt, max(0, deadAt.Time.Sub(lastSeenAt.Time))}
}

func idsOf(dead []deadWorker) (ids []string, deadAt []pgtype.Timestamptz) {
	for _, d := range dead {
		ids, deadAt = append(ids, d.id), append(deadAt, d.deadAt)
	}
	return ids, deadAt
}

// Reap expires silent workers, fails the jobs of dead ones and deletes old entries (docs/reference/workers.md, Dead
// workers). It returns how many workers it changed.
func (s *Store) Reap(ctx context.Context) (reaped int, err error) {
	ctx, pass := s.tracer.Pass(ctx, "ojs.reaper.check")
	defer func() { pass.End(reaped, err) }()
	// First: beats that only this node has collected may show that a worker is alive.
	if err := s.writeBeats(ctx); err != nil {
		return 0, err
	}
	dead, err := s.claimDead(ctx)
	if err != nil {
		return 0, err
	}
	// The workers are dead already; another pass goes on after reap_at.
	if err := s.recoverJobs(ctx, dead); err != nil {
		return len(dead), err
	}
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	pruned, err := s.db.Q.WorkerPrune(bounded, reapBatch)
	return len(dead) + int(pruned), err
}

// claimDead expires silent workers. It returns them and the dead workers that another node has not finished. Any number of
// nodes may call it. WorkerExpire changes a row once, and WorkerReapClaim moves reap_at by five seconds, so that two nodes work
// on one dead worker only if the first takes longer than that; the guards of FailLost make that harmless. WorkerExpire is one
// statement: a worker is dead with its event, or neither. After that a heartbeat revives it without its old jobs.
func (s *Store) claimDead(ctx context.Context) (dead []deadWorker, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerExpire(ctx, dbsqlc.WorkerExpireParams{
		ExpireAfterMs: s.config.Workers.DeadAfter.Milliseconds(), MaxRows: reapBatch,
		Node: s.commits.Node, EventType: ojs.EventWorkerStopped,
	})
	if err != nil {
		return nil, err
	}
	eventlog.Emit(ctx, s.commits, rows, expireChange)
	for _, r := range rows {
		// A revived worker starts anew, so it is not quiet any more. Other nodes are notified by the statement if the worker was quiet.
		s.workers.SetQuiet(r.ID, false)
		dead = append(dead, newDeadWorker(r.ID, r.DeadAt, r.LastSeenAt))
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	// Those that this node has just declared dead have a later reap_at and are not among them.
	unfinished, err := s.db.Q.WorkerReapClaim(ctx, reapBatch)
	for _, w := range unfinished {
		dead = append(dead, newDeadWorker(w.ID, w.DeadAt, w.LastSeenAt))
	}
	return dead, err
}

// recoverJobs fails the jobs of dead workers and marks the workers as done. If a row is locked it leaves them to the next
// try. Failing the jobs and marking the workers are separate commits. After a crash between them the next try finds no jobs
// and only marks.
func (s *Store) recoverJobs(ctx context.Context, dead []deadWorker) error {
	if len(dead) == 0 {
		return nil
	}
	_, err := s.loseJobs(ctx, dead)
	if errors.Is(err, queue.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids, deadAt := idsOf(dead)
	// The time of death guards a worker that has died again meanwhile.
	return s.db.Q.WorkerReapDone(ctx, ids, deadAt)
}

// loseJobs fails every job that is reserved for the dead workers, in batches, and returns how many of them became available
// again. The error is queue.ErrLocked if other transactions have locked some. Attempt and started_at guard that a job is still
// in the same run. kept counts rows that could not be changed and would come first again; the list skips them, so the loop
// ends. A batch that was committed stays after an error.
func (s *Store) loseJobs(ctx context.Context, dead []deadWorker) (requeued int, err error) {
	silences := make(map[string]time.Duration, len(dead))
	for _, d := range dead {
		silences[d.id] = d.silence
	}
	ids, deadAt := idsOf(dead)
	// Each round lists what is left, so jobs that others have ended meanwhile are not touched. Only jobs that were fetched before the death
	// count: a worker that has come back keeps those that it fetched since.
	for kept := 0; ; {
		bounded, cancel := s.db.Bounded(ctx)
		rows, err := s.db.Q.JobListByDeadWorkers(bounded, dbsqlc.JobListByDeadWorkersParams{
			WorkerIds: ids, DeadAt: deadAt, LongestMs: s.jobs.LongestVisibility().Milliseconds(), SkipRows: int32(kept), MaxRows: reapBatch,
		})
		cancel()
		if err != nil {
			return requeued, err
		}
		if len(rows) == 0 {
			if kept > 0 { // locked, or acked meanwhile, which the next try finds out
				err = queue.ErrLocked
			}
			return requeued, err
		}
		lost := make([]queue.Lost, len(rows))
		for i, r := range rows {
			lost[i] = queue.Lost{
				JobID: r.ID, WorkerID: r.WorkerID, Attempt: r.Attempt, StartedAt: r.StartedAt, Reason: job.WorkerDeath,
				Error: job.ServerError(job.WorkerDeath, s.config.Workers.DeadAfter, silences[r.WorkerID]),
			}
		}
		jobs, err := s.jobs.FailLost(ctx, lost)
		if err != nil {
			return requeued, err
		}
		for _, j := range jobs {
			switch {
			case j == nil:
				kept++
			case j.State == string(ojs.StateAvailable):
				requeued++
			}
		}
	}
}

// Delete removes a dead worker and fails the jobs that are reserved for it. A worker that is alive is a conflict. The jobs
// go first: after an error the entry is still there, and the call can be repeated. It waits for locked jobs as long as
// package queue does.
func (s *Store) Delete(ctx context.Context, ref Ref) (requeued int, err error) {
	requeued, err = s.reapOne(ctx, ref)
	if errors.Is(err, errAlive) {
		return 0, spec.WorkerLives(ref.ID)
	}
	if err != nil {
		return requeued, err
	}
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	deleted, err := s.db.Q.WorkerDeleteStale(bounded, ref.ID, ref.Tenant)
	if err == nil && deleted == 0 {
		return requeued, spec.WorkerLives(ref.ID) // it has come back meanwhile
	}
	return requeued, pg.WriteError(err)
}

// errAlive means that a worker is not dead. It stays inside of the package.
var errAlive = errors.New("the worker is alive")

// reapOne fails all jobs that are reserved for a dead worker, also those that it fetched after it was declared dead. The
// new time of death covers them.
func (s *Store) reapOne(ctx context.Context, ref Ref) (requeued int, err error) {
	// If this node stops after this statement, another one finishes after five seconds.
	bounded, cancel := s.db.Bounded(ctx)
	row, err := s.db.Q.WorkerReapAgain(bounded, ref.ID, ref.Tenant)
	cancel()
	// No row means unknown or alive, which a second look tells apart.
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := s.Get(ctx, ref); err != nil {
			return 0, err
		}
		return 0, errAlive
	}
	if err != nil {
		return 0, pg.WriteError(err)
	}
	dead := newDeadWorker(row.ID, row.DeadAt, row.LastSeenAt)
	err = s.jobs.RetryLocked(ctx, func() error {
		n, err := s.loseJobs(ctx, []deadWorker{dead})
		requeued += n
		if errors.Is(err, queue.ErrLocked) {
			return err
		}
		return pg.ClientError(err)
	})
	return requeued, err
}
