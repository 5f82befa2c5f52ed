package progress

import (
	"context"
	"fmt"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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
func (s *Store) SaveCheckpoint(ctx context.Context, save job.CheckpointSave) (saved Checkpoint, err error) {
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
		return spec.Conflict(id, state, queue.LiveStates...)
	case !queue.JobRun{WorkerID: save.WorkerID}.Owns(row.WorkerID):
		return spec.NotOwner(id, save.WorkerID, row.WorkerID.String)
	case save.Attempt >= 0 && save.Attempt != row.Attempt:
		return spec.StaleAttempt(id, int64(save.Attempt), int64(row.Attempt))
	case save.Sequence >= 0 && save.Sequence <= row.CheckpointSeq.Int64:
		e := spec.NewError(ojs.ErrInvalidStateTransition,
			fmt.Sprintf("sequence %d of the checkpoint of job %s must be greater than the stored %d.", save.Sequence, id, row.CheckpointSeq.Int64),
			map[string]any{"job_id": id, "current_state": state, "field": "sequence", "sequence": save.Sequence, "current_sequence": row.CheckpointSeq.Int64})
		e.Hint = "A later checkpoint is stored already: drop this one, or send a greater sequence, or none for the next number."
		return e
	}
	return queue.ErrLocked
}

// Two saves of one job never share a statement (its key), so sequences are compared one after the other. Nothing is emitted,
// because a checkpoint has no event.
func (s *Store) flushCheckpoint(ctx context.Context, saves []job.CheckpointSave) ([]*dbsqlc.JobCheckpointRow, error) {
	// The default timeout is sent because due_at is computed anew: the least of all ends of the run.
	p := dbsqlc.JobCheckpointParams{DefaultTimeoutMs: s.config.DefaultTimeout.Milliseconds()}
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
	return queue.InOrder(len(saves), func(i int) [16]byte { return saves[i].JobID }, rows, func(r *dbsqlc.JobCheckpointRow) ([16]byte, *dbsqlc.JobCheckpointRow) { return r.ID, r }), nil
}

// Checkpoint reads the checkpoint of a job; Stored is nil if there is none.
// It works for finished jobs too, as long as they are kept.
func (s *Store) Checkpoint(ctx context.Context, id [16]byte) (Checkpoint, error) {
	row, err := s.getReport(ctx, id)
	if err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{JobID: id, Stored: row.Checkpoint, Sequence: row.CheckpointSeq.Int64, SavedAt: row.CheckpointAt.Time}, nil
}

// DeleteCheckpoint deletes the checkpoint of a job, if there is one.
// It is idempotent: a job without checkpoint is a success, an unknown one 404. Finished jobs lose theirs too.
func (s *Store) DeleteCheckpoint(ctx context.Context, id [16]byte) error {
	return s.jobs.RetryLocked(ctx, func() error {
		cleared, err := s.clearCheckpoint(ctx, id)
		if err != nil || cleared {
			return err
		}
		row, err := s.getReport(ctx, id)
		// A job that is there and has a checkpoint still must have been locked.
		if err != nil || row.CheckpointSeq.Int64 == 0 {
			return err
		}
		return queue.ErrLocked
	})
}

// The statement returns an unlocked job also if it had no checkpoint, and a finished one only if it had.
func (s *Store) clearCheckpoint(ctx context.Context, id [16]byte) (cleared bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids, err := s.db.Q.JobCheckpointDelete(ctx, [][16]byte{id})
	return len(ids) > 0, pg.WriteError(err)
}
