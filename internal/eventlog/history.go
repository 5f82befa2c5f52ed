package eventlog

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// HistoryPage is a piece of a job's history.
type HistoryPage struct {
	Events []Event
	More   bool
	End    Position // with More: where the next page begins
	Total  int64    // of the job, counted up to 10 000
}

// historyTypes are the events that a history lists: changes of state and attempts. See ojs.in_history in SQL.
// Heartbeats and reports of progress are events of a job too, but there may be thousands in a run.
var historyTypes = []string{
	ojs.EventJobEnqueued, ojs.EventJobScheduled, ojs.EventJobStarted, ojs.EventJobCompleted, ojs.EventJobFailed, ojs.EventJobDiscarded,
	ojs.EventJobRetrying, ojs.EventJobCancelled, ojs.EventJobExpired, StateChanged,
}

// JobHistory returns the published events of a job behind a position, gap rows included, oldest first.
// A page that is the whole history is counted itself. For others the total comes from a second statement and may count an event
// that was published in between. It fails as ListAfter does.
func (r *Reader) JobHistory(ctx context.Context, jobID [16]byte, after *Position, limit int) (HistoryPage, error) {
	page, err := r.ListAfter(ctx, Query{After: after, JobID: &jobID, Types: historyTypes, Limit: limit, Internal: true})
	if err != nil {
		return HistoryPage{}, err
	}
	if after == nil && !page.HasMore {
		return HistoryPage{Events: page.Events, Total: int64(len(page.Events))}, nil
	}
	ctx, done, err := r.db.Reading(ctx)
	if err != nil {
		return HistoryPage{}, fmt.Errorf("count history: %w", err)
	}
	defer done()
	total, err := r.q.HistoryCountByJob(ctx, jobID, maxHistory)
	if err != nil {
		return HistoryPage{}, fmt.Errorf("count history: %w", err)
	}
	return HistoryPage{Events: page.Events, More: page.HasMore, End: page.End, Total: total}, nil
}

// HistoryQuery selects entries of the history of all jobs (docs/reference/jobs.md, History). Types and Actors are the
// names that HistoryType and ojs.history_actor return. Any value inside a filter may match; empty filters match everything.
type HistoryQuery struct {
	Before   *Position // exclusive; nil: from the newest
	Types    []string
	Actors   []string
	Queues   []string
	JobTypes []string
	Since    time.Time // inclusive
	Until    time.Time // exclusive
	Tenant   string    // of whose jobs; "": of all
	Limit    int
}

// HistoryNewest returns entries newest first. Total does not depend on Before. A page that looked at its share of the log may be
// short, or empty, although there are more. Such a page sets More and an End from which the next call goes on; the caller must
// not take an empty page for the end.
func (r *Reader) HistoryNewest(ctx context.Context, query HistoryQuery) (HistoryPage, error) {
	ctx, done, err := r.db.Reading(ctx)
	if err != nil {
		return HistoryPage{}, fmt.Errorf("list history: %w", err)
	}
	defer done()
	// Seq and sub are one number in SQL, seq * 65536 + sub, so that one comparison finds the place.
	before := int64(math.MaxInt64)
	if query.Before != nil {
		before = query.Before.Seq<<16 | int64(query.Before.Sub)
	}
	rows, err := r.q.HistoryListNewest(ctx, dbsqlc.HistoryListNewestParams{
		Before: before, MaxLooked: r.maxLooked, MaxRows: int32(query.Limit + 1), MaxTotal: maxTotal,
		Types: nonEmpty(query.Types), Actors: nonEmpty(query.Actors), Queues: nonEmpty(query.Queues), JobTypes: nonEmpty(query.JobTypes),
		Since: optionalTime(query.Since), Until: optionalTime(query.Until), Tenant: pg.Text(query.Tenant),
	})
	if err == nil && len(rows) == 0 {
		err = errNoRelay
	}
	if err != nil {
		return HistoryPage{}, fmt.Errorf("list history: %w", err)
	}
	var page HistoryPage
	bytes := 0
	for _, row := range rows {
		page.Total = row.Total
		if row.Seq == 0 {
			break // the row that is there when nothing matched
		}
		bytes += len(row.Head) + len(row.Compat) + len(row.Data)
		if n := len(page.Events); n == query.Limit || n > 0 && bytes > maxPageBytes {
			page.More, page.End = true, page.Events[n-1].Position
			return page, nil
		}
		page.Events = append(page.Events, eventOf(historyRow(row)))
	}
	// Numbers below Low were not looked at. The clock gives the position a time, which only an id needs; paging compares seq
	// and sub.
	if looked := rows[0]; looked.Low > looked.Oldest {
		page.More, page.End = true, NewPosition(clock.Now(), looked.Low, 0)
	}
	return page, nil
}

func historyRow(r dbsqlc.HistoryListNewestRow) dbsqlc.OjsEventShown {
	return dbsqlc.OjsEventShown{
		Seq: r.Seq, Sub: r.Sub, Time: r.Time, Type: r.Type, Internal: r.Internal, JobID: r.JobID, JobType: r.JobType,
		Queue: r.Queue, Attempt: r.Attempt, WorkerID: r.WorkerID, WorkflowID: r.WorkflowID, FromState: r.FromState,
		ToState: r.ToState, DurationMs: r.DurationMs, Head: r.Head, Compat: r.Compat, Data: r.Data, Lane: r.Lane,
	}
}

// HistoryType is the name of the event in the history. It must stay equal to ojs.history_type in SQL.
func (e *Event) HistoryType() string {
	switch e.Type {
	case ojs.EventJobStarted:
		return "job.attempt_started"
	case ojs.EventJobCompleted:
		return "job.attempt_completed"
	case ojs.EventJobFailed:
		return "job.attempt_failed"
	case ojs.EventJobCancelled, ojs.EventJobDiscarded:
		return e.Type
	}
	if e.From == "" && (e.Type == ojs.EventJobEnqueued || e.Type == ojs.EventJobScheduled || e.Internal && e.To == string(ojs.StatePending)) {
		return "job.created"
	}
	return StateChanged
}
