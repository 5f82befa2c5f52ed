package queue

import (
	"bytes"
	"cmp"
	"context"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// params are the jobs of the next try as columns. All have the source of the first: only crons set one, and a cron inserts in a
// transaction of its own.
//
// A value that is not set is sent as one that no job can have (0, -1, -2 or an empty text), which the statement turns to NULL:
// the generated parameters are arrays of values that cannot be NULL.
func (in *insertion) params(node int32) dbsqlc.JobInsertParams {
	n := len(in.todo)
	p := dbsqlc.JobInsertParams{
		Ids: make([][16]byte, n), Types: make([]string, n), Queues: make([]string, n), Priorities: make([]int16, n),
		MaxAttempts: make([]int64, n), Pending: make([]bool, n),
		ScheduledAt: make([]pgtype.Timestamptz, n), ScheduledInUs: make([]int64, n),
		ExpiresAt: make([]pgtype.Timestamptz, n), ExpiresInUs: make([]int64, n),
		TimeoutMs: make([]int64, n), VisibilityMs: make([]int64, n), GraceMs: make([]int64, n),
		TotalMs: make([]int64, n), TtlMs: make([]int64, n), StallMs: make([]int64, n), ResultTtlS: make([]int64, n),
		TraceIds: make([]string, n), Retry: make([][]byte, n), Args: make([][]byte, n), Meta: make([][]byte, n), Extra: make([][]byte, n),
		Sizes: make([]int32, n), WorkflowIds: make([][16]byte, n), UniqueKeys: make([]string, n),
		Lanes: make([]string, n), LimitKeys: make([]string, n), LimitPolicies: make([][]byte, n), OnLimits: make([]string, n),
		Source: cmp.Or(in.jobs[in.todo[0]].Source, "api"), Node: node,
	}
	for n, i := range in.todo {
		j := in.jobs[i]
		p.Ids[n], p.Types[n], p.Queues[n], p.Priorities[n] = j.ID, j.Type, j.Queue, j.Priority
		p.MaxAttempts[n], p.Pending[n] = j.MaxAttempts, j.Pending
		p.ScheduledAt[n], p.ScheduledInUs[n] = when(j.ScheduledAt)
		p.ExpiresAt[n], p.ExpiresInUs[n] = when(j.ExpiresAt)
		p.TimeoutMs[n], p.VisibilityMs[n], p.GraceMs[n] = j.TimeoutMS, j.VisibilityMS, j.GraceMS
		p.TotalMs[n], p.TtlMs[n], p.StallMs[n], p.ResultTtlS[n] = j.TotalTimeoutMS, j.EnqueueTTLMS, j.HeartbeatTimeoutMS, noResultTTL
		if j.ResultTTL != nil {
			p.ResultTtlS[n] = *j.ResultTTL
		}
		p.TraceIds[n], p.Retry[n], p.Args[n], p.Meta[n], p.Extra[n] = j.TraceID, j.Retry, j.Args, j.Meta, j.Extra
		p.Sizes[n], p.WorkflowIds[n], p.UniqueKeys[n] = j.StoredSize(), j.WorkflowID, j.UniqueKey
		p.Lanes[n], p.LimitKeys[n], p.OnLimits[n] = j.Lane, j.LimitKey, j.OnLimit
		if j.LimitKey != "" {
			p.LimitPolicies[n] = j.Limit.Stored()
		}
	}
	return p
}

// statement is the insert of jobs without client-chosen ids.
//
// It returns a function, because a handoff runs it in a pipeline, where each step is called twice (pg.Pipeline). The arrays are
// built once.
func (in *insertion) statement(ctx context.Context, node int32) func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) {
	switch {
	case !in.plain():
		params := in.params(node)
		return func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) { return dbsqlc.New(db).JobInsert(ctx, params) }
	case in.alike():
		params := in.alikeParams(node)
		return func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) {
			rows, err := dbsqlc.New(db).JobInsertAlike(ctx, params)
			return sliceutil.Map(rows, func(r dbsqlc.JobInsertAlikeRow) dbsqlc.JobInsertRow { return availableRow(dbsqlc.JobInsertPlainRow(r)) }), err
		}
	default:
		params := in.plainParams(node)
		return func(db dbsqlc.DBTX) ([]dbsqlc.JobInsertRow, error) {
			rows, err := dbsqlc.New(db).JobInsertPlain(ctx, params)
			return sliceutil.Map(rows, availableRow), err
		}
	}
}

// availableRow is what JobInsert returns of a plain job.
func availableRow(r dbsqlc.JobInsertPlainRow) dbsqlc.JobInsertRow {
	return dbsqlc.JobInsertRow{ID: r.ID, State: string(ojs.StateAvailable), ReadySeq: r.ReadySeq, CreatedAt: r.CreatedAt, EventType: ojs.EventJobEnqueued}
}

// plain reports whether JobInsertPlain can store the jobs.
// A new attribute of jobs that has a column of its own belongs here, too: plainParams and alikeParams do not send it.
func (in *insertion) plain() bool {
	for _, i := range in.todo {
		j := in.jobs[i]
		if j.ClientID || j.WorkflowID != [16]byte{} || j.UniqueKey != "" || j.Lane != "" || j.LimitKey != "" || j.Pending || j.ScheduledAt.Set || j.ExpiresAt.Set || j.ResultTTL != nil ||
			j.GraceMS|j.TotalTimeoutMS|j.EnqueueTTLMS|j.HeartbeatTimeoutMS != 0 {
			return false
		}
	}
	return true
}

func (in *insertion) plainParams(node int32) dbsqlc.JobInsertPlainParams {
	n := len(in.todo)
	p := dbsqlc.JobInsertPlainParams{
		Ids: make([][16]byte, n), Types: make([]string, n), Queues: make([]string, n), Priorities: make([]int16, n),
		MaxAttempts: make([]int64, n), TimeoutMs: make([]int64, n), VisibilityMs: make([]int64, n), TraceIds: make([]string, n),
		Retry: make([][]byte, n), Args: make([][]byte, n), Meta: make([][]byte, n), Extra: make([][]byte, n),
		Sizes: make([]int32, n), EventType: ojs.EventJobEnqueued, Source: cmp.Or(in.jobs[in.todo[0]].Source, "api"), Node: node,
	}
	for n, i := range in.todo {
		j := in.jobs[i]
		p.Ids[n], p.Types[n], p.Queues[n], p.Priorities[n], p.MaxAttempts[n] = j.ID, j.Type, j.Queue, j.Priority, j.MaxAttempts
		p.TimeoutMs[n], p.VisibilityMs[n], p.TraceIds[n] = j.TimeoutMS, j.VisibilityMS, j.TraceID
		p.Retry[n], p.Args[n], p.Meta[n], p.Extra[n] = j.Retry, j.Args, j.Meta, j.Extra
		p.Sizes[n] = j.StoredSize()
	}
	return p
}

// when is an absolute time, or microseconds from the database's now; inUS is -1 if the time is not relative.
// Relative times are added by the database, so that they do not depend on the clock of this machine.
func when(w job.When) (at pgtype.Timestamptz, inUS int64) {
	switch {
	case w.Set && w.Relative:
		return at, w.In.Microseconds()
	case w.Set:
		return pgtype.Timestamptz{Time: w.At, Valid: true}, -1
	}
	return at, -1
}

// newRecord is the stored row, made from the job and the columns that the statement has chosen.
// What the statement does not return has the value that was sent.
func newRecord(j *job.Job, r *dbsqlc.JobInsertRow) *job.Record {
	job := &job.Record{
		ID: r.ID, Type: j.Type, Queue: j.Queue, State: r.State, Priority: j.Priority, MaxAttempts: j.MaxAttempts,
		ReadySeq: r.ReadySeq, DueAt: r.DueAt, CreatedAt: r.CreatedAt, ScheduledAt: r.ScheduledAt, ExpiresAt: r.ExpiresAt,
		TraceID: pg.Text(j.TraceID), WorkflowID: pgtype.UUID{Bytes: j.WorkflowID, Valid: j.WorkflowID != [16]byte{}}, UniqueKey: pg.Text(j.UniqueKey), Lane: j.Lane, LimitKey: pg.Text(j.LimitKey),
		OnLimit: pg.Text(j.OnLimit), Args: j.Args, Meta: j.Meta, Extra: r.Extra,
	}
	if job.Extra == nil {
		job.Extra = j.Extra
	}
	if r.State == string(ojs.StateAvailable) {
		job.EnqueuedAt = r.CreatedAt
	}
	return job
}

// alike reports whether JobInsertAlike can store the jobs, which are plain: they differ in nothing but id and args.
func (in *insertion) alike() bool {
	first := in.jobs[in.todo[0]]
	for _, i := range in.todo[1:] {
		j := in.jobs[i]
		if j.Type != first.Type || j.Queue != first.Queue || j.Priority != first.Priority || j.MaxAttempts != first.MaxAttempts ||
			j.TimeoutMS != first.TimeoutMS || j.VisibilityMS != first.VisibilityMS || j.TraceID != first.TraceID || j.Source != first.Source ||
			!bytes.Equal(j.Retry, first.Retry) || !bytes.Equal(j.Meta, first.Meta) || !bytes.Equal(j.Extra, first.Extra) || j.StoredSize() != first.StoredSize() {
			return false
		}
	}
	return true
}

func (in *insertion) alikeParams(node int32) dbsqlc.JobInsertAlikeParams {
	n, j := len(in.todo), in.jobs[in.todo[0]]
	p := dbsqlc.JobInsertAlikeParams{
		Ids: make([][16]byte, n), Args: make([][]byte, n), Type: j.Type, Queue: j.Queue, Priority: j.Priority, MaxAttempts: j.MaxAttempts,
		TimeoutMs: pgtype.Int8{Int64: j.TimeoutMS, Valid: j.TimeoutMS != 0}, VisibilityMs: pgtype.Int8{Int64: j.VisibilityMS, Valid: j.VisibilityMS != 0},
		TraceID: pg.Text(j.TraceID), Retry: j.Retry, Meta: j.Meta, Extra: j.Extra,
		Size: pgtype.Int4{Int32: j.StoredSize(), Valid: j.StoredSize() != 0}, EventType: ojs.EventJobEnqueued, Source: cmp.Or(j.Source, "api"), Node: node,
	}
	for n, i := range in.todo {
		p.Ids[n], p.Args[n] = in.jobs[i].ID, in.jobs[i].Args
	}
	return p
}
