package queue

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// claimJobs returns the jobs in the order in which the claim found them.
// A data-modifying WITH returns its rows in any order, hence the sort by slot.
func claimJobs(ctx context.Context, q *dbsqlc.Queries, p *dbsqlc.JobFetchParams) ([]job.Record, error) {
	rows, err := q.JobFetch(ctx, *p)
	order := make([]int, len(rows))
	for i := range rows {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(rows[a].Slot, rows[b].Slot) })
	jobs := make([]job.Record, len(rows))
	for i, n := range order {
		jobs[i] = claimedRecord(&rows[n])
	}
	return jobs, err
}

// claimedRecord sets the columns that JobFetch leaves out, because they are the same for every job that it claims. ReadySeq is the place
// of the job before the claim, not the number of the claim, which the table has.
// endClaim needs that place to raise the cursors.
func claimedRecord(r *dbsqlc.JobFetchRow) job.Record {
	return job.Record{
		ID: r.ID, Type: r.Type, Queue: r.Queue, State: string(ojs.StateActive), Priority: r.Priority, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts,
		ReadySeq: r.ReadySeq, DueAt: r.DueAt, CreatedAt: r.CreatedAt, EnqueuedAt: r.EnqueuedAt, StartedAt: r.StartedAt, ScheduledAt: r.ScheduledAt,
		ExpiresAt: r.ExpiresAt, TotalDueAt: r.TotalDueAt, WorkerID: r.WorkerID, LeaseUntil: r.LeaseUntil, LeaseMs: r.LeaseMs, StallDueAt: r.StallDueAt,
		VisibilityMs: r.VisibilityMs, TimeoutMs: r.TimeoutMs, GraceMs: r.GraceMs, StallMs: r.StallMs, RetryDelayMs: r.RetryDelayMs, ResultTtlS: r.ResultTtlS,
		ReEnqueuedAt: r.ReEnqueuedAt, ReplayCount: r.ReplayCount, TraceID: r.TraceID, Cron: r.Cron, CronSerial: r.CronSerial, WorkflowID: r.WorkflowID,
		UniqueKey: r.UniqueKey, Lane: r.Lane, LimitKey: r.LimitKey, OnLimit: r.OnLimit, Retry: r.Retry, Args: r.Args, Meta: r.Meta, Extra: r.Extra,
		Error: r.Error, Errors: r.Errors, PreviousErrors: r.PreviousErrors, Checkpoint: r.Checkpoint, CheckpointSeq: r.CheckpointSeq,
		CheckpointAt: r.CheckpointAt, Size: r.Size,
	}
}

// The order of the rows is any; InOrder sorts them by the acks.
func completeJobs(ctx context.Context, q *dbsqlc.Queries, p *dbsqlc.JobCompleteParams) ([]job.Record, error) {
	rows, err := q.JobComplete(ctx, *p)
	jobs := make([]job.Record, len(rows))
	for i := range rows {
		jobs[i] = completedRecord(&rows[i])
	}
	return jobs, err
}

// completedRecord sets the columns that JobComplete leaves out, because they are the same for every completed job.
// A job that has reported progress is shown with 1 at its end, as the statement stores it.
func completedRecord(r *dbsqlc.JobCompleteRow) job.Record {
	if r.Progress.Valid {
		r.Progress.Float64 = 1
	}
	return job.Record{
		ID: r.ID, Type: r.Type, Queue: r.Queue, State: string(ojs.StateCompleted), Priority: r.Priority, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts,
		CreatedAt: r.CreatedAt, EnqueuedAt: r.EnqueuedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, ScheduledAt: r.ScheduledAt, ExpiresAt: r.ExpiresAt,
		WorkerID: r.WorkerID, VisibilityMs: r.VisibilityMs, TimeoutMs: r.TimeoutMs, GraceMs: r.GraceMs, RetryDelayMs: r.RetryDelayMs,
		ResultTtlS: pgtype.Int8{Int64: r.ResultTtlS, Valid: true}, PreviousState: pgtype.Text{String: string(ojs.StateActive), Valid: true},
		ReEnqueuedAt: r.ReEnqueuedAt, ReplayCount: r.ReplayCount, TraceID: r.TraceID, Cron: r.Cron, WorkflowID: r.WorkflowID, UniqueKey: r.UniqueKey,
		Lane: r.Lane, LimitKey: r.LimitKey, Retry: r.Retry, Args: r.Args, Meta: r.Meta, Extra: r.Extra, Errors: r.Errors, PreviousErrors: r.PreviousErrors,
		Progress: r.Progress, ProgressMessage: r.ProgressMessage, ProgressData: r.ProgressData, ProgressAt: r.ProgressAt,
		Checkpoint: r.Checkpoint, CheckpointSeq: r.CheckpointSeq, CheckpointAt: r.CheckpointAt, Result: r.Result, Size: job.SizeColumn(r.Size),
	}
}
