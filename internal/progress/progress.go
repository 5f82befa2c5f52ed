package progress

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

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
func reportedRun(r job.ProgressReport) queue.Run {
	return queue.Run{JobID: r.JobID, WorkerID: r.WorkerID, Attempt: r.Attempt}
}

// refusedActive chooses the error for an active job that the statement did not change.
// The answer is never nil: Refused has an error for every active job.
func refusedActive(run queue.Run, row *dbsqlc.JobReportGetRow) error {
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
