// Package progress owns what workers report about a running job: its progress, and the checkpoint from which a later attempt
// can continue. A report also extends the reservation, like a heartbeat. The package must never change the state of a job.
package progress

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/worker/cache"
	"github.com/ojsd/ojsd/ojs"
)

// Config holds the settings of the store. It has no defaults: a zero is taken as a zero.
// The settings must be those of package queue, or reports and claims compute different ends of a run.
type Config struct {
	// DefaultTimeout is the execution timeout of a job that sets none.
	DefaultTimeout time.Duration

	// OnFlush is called after each statement that callers share, with the operation, the number of requests and the time it
	// took. It must not block. May be nil.
	OnFlush func(operation string, requests int, took time.Duration)
}

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Workers *cache.Workers
	Jobs    *queue.Store
}

// Store keeps progress and checkpoints. Use New.
// It keeps nothing in memory but calls that wait for a flush.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	workers *cache.Workers
	jobs    *queue.Store
	config  Config

	// Two batchers, because the statements are different. A report and a save of one job at the same time wait for each other's
	// rows at most: the one that finds the row locked is tried again.
	progress   *batch.Batcher[job.ProgressReport, *dbsqlc.JobProgressRow]
	checkpoint *batch.Batcher[job.CheckpointSave, *dbsqlc.JobCheckpointRow]
}

// New returns a store on the database.
func New(deps Deps, config Config) *Store {
	s := &Store{db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, jobs: deps.Jobs, config: config}
	s.progress = batch.New(batch.Config[job.ProgressReport, *dbsqlc.JobProgressRow]{
		Flush: s.flushProgress, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.flushed("progress"),
		Key:    func(r job.ProgressReport) ([16]byte, bool) { return r.JobID, true },
		Weight: func(r job.ProgressReport) int { return weight(len(r.Data) + len(r.Checkpoint)) },
	})
	s.checkpoint = batch.New(batch.Config[job.CheckpointSave, *dbsqlc.JobCheckpointRow]{
		Flush: s.flushCheckpoint, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.flushed("checkpoint"),
		Key:    func(save job.CheckpointSave) ([16]byte, bool) { return save.JobID, true },
		Weight: func(save job.CheckpointSave) int { return weight(len(save.Stored)) },
	})
	return s
}

// flushed is OnFlush for one operation, or nil.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.config.OnFlush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.config.OnFlush(operation, requests, took) }
}

// weight keeps the size of a statement below a few MiB; a single checkpoint may have 1 MiB.
// A flush weighs up to 1 000 (batch.Config.Max), so its checkpoints have 4 MiB together.
func weight(bytes int) int { return 1 + bytes/4096 }

// Progress is the latest reported progress of a job.
type Progress struct {
	JobID [16]byte
	State ojs.JobState
	// 0 to 1; not valid: none was reported in this attempt.
	Progress pgtype.Float8
	Message  pgtype.Text
	Data     []byte
	// In milliseconds for clients: the microseconds of progress_at have a meaning of their own (JobProgress).
	UpdatedAt time.Time // of the latest report or change of state
	// Clients get 200 all the same: a late report is no error of a worker.
	Refused bool // nothing was stored, because the job is not active
}

// Report stores a report. If the job is not active it changes nothing, which is not an error.
//
// A report of another worker or attempt is an error, as that of an ack. Progress never goes back: a smaller value keeps the
// larger one. The report also extends the reservation, and may carry a checkpoint. When it returns, all of this is committed.
func (s *Store) Report(ctx context.Context, r job.ProgressReport) (p Progress, err error) {
	err = s.jobs.RetryLocked(ctx, func() error {
		row, err := s.progress.Do(ctx, r)
		if err != nil {
			return pg.WriteError(err)
		}
		if row != nil {
			p = Progress{
				JobID: row.ID, State: ojs.JobState(row.State), Progress: row.Progress, Message: row.ProgressMessage,
				Data: row.ProgressData, UpdatedAt: row.ProgressAt.Time,
			}
			return nil
		}
		stored, err := s.getReport(ctx, r.JobID)
		if err != nil {
			return err
		}
		// Active, and yet left out: another worker, another attempt, or a lock. The last one is tried again.
		if stored.State == string(ojs.StateActive) {
			return refusedActive(reportedRun(r), stored)
		}
		p = progressOf(stored)
		p.Refused = true
		return nil
	})
	return p, err
}

// It is the run as the client has described it; the statement compares it with the stored one.
func reportedRun(r job.ProgressReport) queue.JobRun {
	return queue.JobRun{JobID: r.JobID, WorkerID: r.WorkerID, Attempt: r.Attempt}
}

// refusedActive chooses the error for an active job that the statement did not change.
// The answer is never nil: Refused has an error for every active job.
func refusedActive(run queue.JobRun, row *dbsqlc.JobReportGetRow) error {
	_, err := run.Refused(&job.Record{ID: row.ID, State: row.State, Attempt: row.Attempt, WorkerID: row.WorkerID})
	return err
}

// Get reads the progress of a job.
func (s *Store) Get(ctx context.Context, id [16]byte) (Progress, error) {
	row, err := s.getReport(ctx, id)
	if err != nil {
		return Progress{}, err
	}
	return progressOf(row), nil
}

// It reads no args, which may be large.
func (s *Store) getReport(ctx context.Context, id [16]byte) (*dbsqlc.JobReportGetRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobReportGet(ctx, id)
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if len(rows) == 0 {
		return nil, spec.NotFound("job", spec.FormatID(id))
	}
	return &rows[0], nil
}

// It shows the last report of the current or latest attempt, also after the end of the job.
func progressOf(row *dbsqlc.JobReportGetRow) Progress {
	return Progress{
		JobID: row.ID, State: ojs.JobState(row.State), Progress: row.Progress, Message: row.ProgressMessage, Data: row.ProgressData,
		UpdatedAt: lastChange(row),
	}
}

// lastChange is the latest time that the row shows. The time of a failure is not stored; it is the end of the backoff less
// its delay.
func lastChange(row *dbsqlc.JobReportGetRow) (latest time.Time) {
	times := []pgtype.Timestamptz{row.CreatedAt, row.StartedAt, row.FinishedAt, row.EnqueuedAt, row.ProgressAt}
	if row.State == string(ojs.StateRetryable) && row.NextAttemptAt.Valid {
		failed := row.NextAttemptAt.Time.Add(-time.Duration(row.RetryDelayMs.Int64) * time.Millisecond)
		times = append(times, pgtype.Timestamptz{Time: failed, Valid: true})
	}
	for _, t := range times {
		if t.Valid && t.Time.After(latest) {
			latest = t.Time
		}
	}
	return latest
}

// Beats are those of the stored worker, because a report need not name it. Rows that another transaction has locked are left out,
// so a locked job delays nobody.
func (s *Store) flushProgress(ctx context.Context, reports []job.ProgressReport) ([]*dbsqlc.JobProgressRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobProgress(ctx, s.progressParams(reports))
	if err != nil {
		return nil, err
	}
	// The statement was a transaction of its own, so its events are committed here.
	eventlog.Emit(ctx, s.commits, rows, progressChange)
	for _, row := range rows {
		s.timer.Schedule(row.DueAt.Time.Sub(row.Now.Time))
		s.workers.Beat(row.WorkerID.String)
	}
	// The relay is woken also if no report had an event, which costs it a pass that finds nothing.
	if len(rows) > 0 {
		s.commits.Committed()
	}
	return queue.InOrder(len(reports), func(i int) [16]byte { return reports[i].JobID }, rows, func(r *dbsqlc.JobProgressRow) ([16]byte, *dbsqlc.JobProgressRow) { return r.ID, r }), nil
}

// Attributes that were not sent need values of their own, as the arrays cannot have NULL: -1 for progress, has_message false for
// the message.
func (s *Store) progressParams(reports []job.ProgressReport) dbsqlc.JobProgressParams {
	p := dbsqlc.JobProgressParams{DefaultTimeoutMs: s.config.DefaultTimeout.Milliseconds(), Node: s.commits.Node, EventType: ojs.EventJobProgress}
	for _, r := range reports {
		progress, source := -1.0, ""
		if r.Progress != nil {
			progress = *r.Progress
		}
		if r.WorkerID != "" { // else the statement takes the id stored at fetch
			source = eventlog.WorkerSource(r.WorkerID)
		}
		message := ""
		if r.Message != nil {
			message = *r.Message
		}
		p.Ids = append(p.Ids, r.JobID)
		p.Workers = append(p.Workers, r.WorkerID)
		p.Attempts = append(p.Attempts, r.Attempt)
		p.Progress = append(p.Progress, progress)
		p.HasMessage = append(p.HasMessage, r.Message != nil)
		p.Messages = append(p.Messages, message)
		p.Data = append(p.Data, r.Data)
		p.Checkpoints = append(p.Checkpoints, r.Checkpoint)
		p.EventData = append(p.EventData, progressData(r.Message))
		p.Sources = append(p.Sources, source)
	}
	return p
}

// progressData is the message as a JSON member of an event, cut so that it fits (docs/reference/events.md, Size of data).
// Escapes may make the quoted text longer than the message, hence the loop.
func progressData(message *string) string {
	if message == nil || *message == "" {
		return ""
	}
	text := job.Shorten(*message, 2048)
	for {
		b, _ := jsontext.AppendQuote([]byte(`,"progress_message":`), text) // fails only for invalid UTF-8, which decoding refuses
		if len(b) <= eventlog.MaxPayload-eventlog.PayloadRoom {
			return string(b)
		}
		text = job.Shorten(text, len(text)/2)
	}
}

// The statement writes at most one event per job and second, and emits only those (docs/reference/jobs.md, Progress).
func progressChange(changes []eventlog.Change, r *dbsqlc.JobProgressRow) []eventlog.Change {
	if !r.Emitted {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: ojs.EventJobProgress, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID.String, At: r.Now.Time,
	})
}
