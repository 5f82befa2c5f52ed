package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// What workers report about a running job: its progress, and the checkpoint from which a later attempt can continue. A report also extends
// the reservation, like a heartbeat; it never changes the state of a job.

// ProgressDeps are the parts of a node that the store uses.
type ProgressDeps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *loop.Timer
	Workers *Workers
	Jobs    *Store
}

// ProgressStore keeps progress and checkpoints. Use NewProgressStore.
// It keeps nothing in memory but calls that wait for a flush.
type ProgressStore struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *loop.Timer
	workers *Workers
	jobs    *Store

	// Two batchers, because the statements are different. A report and a save of one job at the same time wait for each other's
	// rows at most: the one that finds the row locked is tried again.
	progress   *batch.Batcher[job.ProgressReport, *dbsqlc.JobProgressRow]
	checkpoint *batch.Batcher[job.CheckpointSave, *dbsqlc.JobCheckpointRow]
}

// NewProgressStore returns a store on the database.
func NewProgressStore(deps ProgressDeps) *ProgressStore {
	s := &ProgressStore{db: deps.DB, commits: deps.Commits, timer: deps.Timer, workers: deps.Workers, jobs: deps.Jobs}
	s.progress = batch.New(batch.Config[job.ProgressReport, *dbsqlc.JobProgressRow]{
		Flush: s.flushProgress, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.jobs.flushed("progress"),
		Key:    func(r job.ProgressReport) ([16]byte, bool) { return r.JobID, true },
		Weight: func(r job.ProgressReport) int { return reportWeight(len(r.Data) + len(r.Checkpoint)) },
	})
	s.checkpoint = batch.New(batch.Config[job.CheckpointSave, *dbsqlc.JobCheckpointRow]{
		Flush: s.flushCheckpoint, Split: pg.IsRowError, Retry: pg.IsTransient, Flushed: s.jobs.flushed("checkpoint"),
		Key:    func(save job.CheckpointSave) ([16]byte, bool) { return save.JobID, true },
		Weight: func(save job.CheckpointSave) int { return reportWeight(len(save.Stored)) },
	})
	return s
}

// reportWeight keeps the size of a statement below a few MiB; a single checkpoint may have 1 MiB.
// A flush weighs up to 1 000 (batch.Config.Max), so its checkpoints have 4 MiB together.
func reportWeight(bytes int) int { return 1 + bytes/4096 }

// Progress is the latest reported progress of a job.
type Progress struct {
	JobID [16]byte
	State ojs.JobState
	// 0 to 1; not valid: none was reported in this attempt.
	Progress  pgtype.Float8
	Message   pgtype.Text
	Data      []byte
	UpdatedAt time.Time // of the latest report or change of state
	// Clients get 200 all the same: a late report is no error of a worker.
	Refused bool // nothing was stored, because the job is not active
}

// Report stores a report. If the job is not active it changes nothing, which is not an error.
//
// A report of another worker or attempt is an error, as that of an ack. Progress never goes back: a smaller value keeps the
// larger one. The report also extends the reservation, and may carry a checkpoint. When it returns, all of this is committed.
func (s *ProgressStore) Report(ctx context.Context, r job.ProgressReport) (p Progress, err error) {
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
			run := JobRun{JobID: r.JobID, WorkerID: r.WorkerID, Attempt: r.Attempt}
			_, err := run.Refused(&job.Record{ID: stored.ID, State: stored.State, Attempt: stored.Attempt, WorkerID: stored.WorkerID})
			return err
		}
		p = progressOf(stored)
		p.Refused = true
		return nil
	})
	return p, err
}

// Get reads the progress of a job.
func (s *ProgressStore) Get(ctx context.Context, id [16]byte) (Progress, error) {
	row, err := s.getReport(ctx, id)
	if err != nil {
		return Progress{}, err
	}
	return progressOf(row), nil
}

// getReport reads no args, which may be large.
func (s *ProgressStore) getReport(ctx context.Context, id [16]byte) (*dbsqlc.JobReportGetRow, error) {
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

// progressOf has the last report of the current or latest attempt, also after the end of the job, and the latest time that the row shows.
// The time of a failure is not stored; it is the end of the backoff less its delay.
func progressOf(row *dbsqlc.JobReportGetRow) Progress {
	p := Progress{JobID: row.ID, State: ojs.JobState(row.State), Progress: row.Progress, Message: row.ProgressMessage,
		Data: row.ProgressData}
	times := []pgtype.Timestamptz{row.CreatedAt, row.StartedAt, row.FinishedAt, row.EnqueuedAt, row.ProgressAt}
	if row.State == string(ojs.StateRetryable) && row.NextAttemptAt.Valid {
		failed := row.NextAttemptAt.Time.Add(-time.Duration(row.RetryDelayMs.Int64) * time.Millisecond)
		times = append(times, pgtype.Timestamptz{Time: failed, Valid: true})
	}
	for _, t := range times {
		if t.Valid && t.Time.After(p.UpdatedAt) {
			p.UpdatedAt = t.Time
		}
	}
	return p
}

// flushProgress records beats of the stored worker, because a report need not name it. Rows that another transaction has locked are left
// out, so a locked job delays nobody.
func (s *ProgressStore) flushProgress(ctx context.Context, reports []job.ProgressReport) ([]*dbsqlc.JobProgressRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobProgress(ctx, s.progressParams(reports))
	if err != nil {
		return nil, err
	}
	// The statement was a transaction of its own, so its events are committed here.
	eventlog.Emit(ctx, s.commits, rows, progressEvent)
	for _, row := range rows {
		s.timer.Schedule(row.DueAt.Time.Sub(row.Now.Time))
		s.workers.Beat(row.WorkerID.String)
	}
	// The relay is woken also if no report had an event, which costs it a pass that finds nothing.
	if len(rows) > 0 {
		s.commits.Committed()
	}
	return InOrder(len(reports), func(i int) [16]byte { return reports[i].JobID }, rows,
		func(r *dbsqlc.JobProgressRow) ([16]byte, *dbsqlc.JobProgressRow) { return r.ID, r }), nil
}

// progressParams sends values of their own for attributes that were not sent, as the arrays cannot have NULL: -1 for progress, has_message
// false for the message.
func (s *ProgressStore) progressParams(reports []job.ProgressReport) dbsqlc.JobProgressParams {
	p := dbsqlc.JobProgressParams{DefaultTimeoutMs: s.jobs.config.Jobs.Timeout.Milliseconds(), Node: s.commits.Node,
		EventType: ojs.EventJobProgress}
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

// progressEvent has one event per job and second at most, those that the statement has written (docs/reference/jobs.md, Progress).
func progressEvent(changes []eventlog.Change, r *dbsqlc.JobProgressRow) []eventlog.Change {
	if !r.Emitted {
		return changes
	}
	return append(changes, eventlog.Change{
		Type: ojs.EventJobProgress, JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt,
		WorkerID: r.WorkerID.String, At: r.Now.Time,
	})
}

// Checkpoint is what a job needs to continue where an earlier attempt stopped. It can be read until the job is
// pruned; a manual retry starts without it.
type Checkpoint struct {
	JobID  [16]byte
	Stored []byte // JSON object with state, step_index and metadata; nil: there is none
	// It begins at 1 and grows with each save; 0: there is none. Clients use it to refuse a save that was overtaken.
	Sequence int64
	SavedAt  time.Time
}

// SaveCheckpoint replaces the checkpoint of a job that has not ended.
//
// When it returns, the checkpoint is committed. For an active job the save also extends the reservation. It is not an event. A
// repeated save with the same sequence is a conflict, one without sequence is stored again under the next number.
func (s *ProgressStore) SaveCheckpoint(ctx context.Context, save job.CheckpointSave) (saved Checkpoint, err error) {
	err = s.jobs.RetryLocked(ctx, func() error {
		row, err := s.checkpoint.Do(ctx, save)
		if err != nil {
			return pg.WriteError(err)
		}
		if row != nil {
			saved = Checkpoint{JobID: row.ID, Stored: row.Checkpoint, Sequence: row.CheckpointSeq.Int64, SavedAt: row.CheckpointAt.Time}
			return nil
		}
		// No row: the statement has left the job out. This read is later, and may find a state that would have been accepted;
		// then the save is tried again as if the job were locked.
		stored, err := s.getReport(ctx, save.JobID)
		if err != nil {
			return err
		}
		return refusedSave(save, stored)
	})
	return saved, err
}

// refusedSave chooses the error for a job that the statement did not change. A job that no condition excludes is locked.
// The cases are the conditions of JobCheckpoint, in the order in which clients see them (docs/reference/jobs.md, Checkpoints).
func refusedSave(save job.CheckpointSave, row *dbsqlc.JobReportGetRow) error {
	id, state := spec.FormatID(save.JobID), ojs.JobState(row.State)
	switch {
	case state.Terminal():
		return spec.Conflict(id, state, job.LiveStates...)
	case !JobRun{WorkerID: save.WorkerID}.Owns(row.WorkerID):
		return spec.NotOwner(id, save.WorkerID, row.WorkerID.String)
	case save.Attempt >= 0 && save.Attempt != row.Attempt:
		return spec.StaleAttempt(id, int64(save.Attempt), int64(row.Attempt))
	case save.Sequence >= 0 && save.Sequence <= row.CheckpointSeq.Int64:
		e := spec.NewError(ojs.ErrInvalidStateTransition,
			fmt.Sprintf("sequence %d of the checkpoint of job %s must be greater than the stored %d.", save.Sequence, id,
				row.CheckpointSeq.Int64),
			map[string]any{"job_id": id, "current_state": state, "field": "sequence", "sequence": save.Sequence,
				"current_sequence": row.CheckpointSeq.Int64})
		e.Hint = "A later checkpoint is stored already: drop this one, or send a greater sequence, or none for the next number."
		return e
	}
	return ErrLocked
}

// flushCheckpoint never has two saves of one job (its key), so sequences are compared one after the other. Nothing is emitted,
// because a checkpoint has no event.
func (s *ProgressStore) flushCheckpoint(ctx context.Context, saves []job.CheckpointSave) ([]*dbsqlc.JobCheckpointRow, error) {
	// The default timeout is sent because due_at is computed anew: the least of all ends of the run.
	p := dbsqlc.JobCheckpointParams{DefaultTimeoutMs: s.jobs.config.Jobs.Timeout.Milliseconds()}
	for _, save := range saves {
		p.Ids = append(p.Ids, save.JobID)
		p.Workers = append(p.Workers, save.WorkerID)
		p.Attempts = append(p.Attempts, save.Attempt)
		p.Checkpoints = append(p.Checkpoints, save.Stored)
		p.Sequences = append(p.Sequences, save.Sequence)
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobCheckpoint(ctx, p)
	if err != nil {
		return nil, err
	}
	// Only an active job has a worker, and a reservation to extend.
	for _, row := range rows {
		if row.State == string(ojs.StateActive) {
			// The extension has moved due_at. A run at the old time finds nothing due.
			s.timer.Schedule(row.DueAt.Time.Sub(row.Now.Time))
			s.workers.Beat(row.WorkerID.String)
		}
	}
	return InOrder(len(saves), func(i int) [16]byte { return saves[i].JobID }, rows,
		func(r *dbsqlc.JobCheckpointRow) ([16]byte, *dbsqlc.JobCheckpointRow) { return r.ID, r }), nil
}

// Checkpoint reads the checkpoint of a job; Stored is nil if there is none.
// It works for finished jobs too, as long as they are kept.
func (s *ProgressStore) Checkpoint(ctx context.Context, id [16]byte) (Checkpoint, error) {
	row, err := s.getReport(ctx, id)
	if err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{JobID: id, Stored: row.Checkpoint, Sequence: row.CheckpointSeq.Int64, SavedAt: row.CheckpointAt.Time}, nil
}

// DeleteCheckpoint deletes the checkpoint of a job, if there is one.
// It is idempotent: a job without checkpoint is a success, an unknown one 404. Finished jobs lose theirs too.
func (s *ProgressStore) DeleteCheckpoint(ctx context.Context, id [16]byte) error {
	return s.jobs.RetryLocked(ctx, func() error {
		bounded, cancel := s.db.Bounded(ctx)
		defer cancel()
		// It returns an unlocked job also if it had no checkpoint, and a finished one only if it had.
		cleared, err := s.db.Q.JobCheckpointDelete(bounded, [][16]byte{id})
		if err != nil || len(cleared) > 0 {
			return pg.WriteError(err)
		}
		row, err := s.getReport(ctx, id)
		// A job that is there and has a checkpoint still must have been locked.
		if err != nil || row.CheckpointSeq.Int64 == 0 {
			return err
		}
		return ErrLocked
	})
}
