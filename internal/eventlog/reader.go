package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// maxCatchUp bounds read-your-writes (docs/reference/events.md, Publication). A longer wait would make a poll slow while the
// relay cannot publish; it then answers with what is published.
const maxCatchUp = 100 * time.Millisecond

// Reader reads published events. All transports use it: a notification is only a wake-up to read the table.
// It has no state of its own, and any number of goroutines may use it.
type Reader struct {
	db        *pg.DB
	q         *dbsqlc.Queries
	relay     *Relay
	maxLooked int64 // only tests change it
}

// NewReader returns a reader on the database. relay is that of this node, for WaitCaughtUp; nil if the node has none.
func NewReader(db *pg.DB, relay *Relay) *Reader {
	return &Reader{db: db, q: db.Q, relay: relay, maxLooked: pg.MaxLooked}
}

// ListAfter returns events behind a position, oldest first. It fails with a *PatternError or an *ExpiredError.
// Read-your-writes is not part of it: a transport that promises it calls WaitCaughtUp first.
func (r *Reader) ListAfter(ctx context.Context, query Query) (Page, error) {
	ctx, done, err := r.db.Reading(ctx)
	if err != nil {
		return Page{}, fmt.Errorf("list events: %w", err)
	}
	defer done()
	return r.listAfter(ctx, query)
}

// listAfter is ListAfter for the feed, which all streams of the node wait for. It takes no share of the pool (pg.DB.Reading),
// which bounds the reads of clients.
func (r *Reader) listAfter(ctx context.Context, query Query) (Page, error) {
	f, err := query.filters()
	if err != nil {
		return Page{}, err
	}
	p := dbsqlc.EventListAfterParams{
		MaxLooked: r.maxLooked, MaxRows: int32(f.limit + 1), // one more, so that HasMore is exact
		WithInternal: query.Internal, Types: f.types, Sources: f.sources, Queues: f.queues, JobTypes: f.jobTypes,
		JobID: f.jobID, Subject: f.subject, WorkflowID: f.workflowID, Since: f.since, Until: f.until, Tenant: f.tenant,
	}
	rows, err := r.listBehind(ctx, query.After, &p)
	if err != nil {
		return Page{}, err
	}
	log := rows[0] // the same in every row
	page := Page{Events: make([]Event, 0, min(len(rows), f.limit))}
	bytes := 0
	for _, row := range rows {
		if row.Seq == 0 {
			continue // the row that is there when nothing matched
		}
		bytes += len(row.Head) + len(row.Compat) + len(row.Data)
		if n := len(page.Events); n == f.limit || n > 0 && bytes > maxPageBytes {
			page.HasMore = true
			break
		}
		page.Events = append(page.Events, eventOf(dbsqlc.OjsEventShown{
			Seq: row.Seq, Sub: row.Sub, Time: row.Time, Type: row.Type, Internal: row.Internal, JobID: row.JobID, JobType: row.JobType,
			Queue: row.Queue, Attempt: row.Attempt, WorkerID: row.WorkerID, WorkflowID: row.WorkflowID, FromState: row.FromState,
			ToState: row.ToState, DurationMs: row.DurationMs, Head: row.Head, Compat: row.Compat, Data: row.Data, Lane: row.Lane,
		}))
	}
	// With a job or a subject the statement finds its rows by an index and looks at all of them, so it has examined the whole log.
	looked := int64(math.MaxInt64)
	if query.JobID == nil && query.Subject == "" {
		looked = p.AfterPlace>>16 + r.maxLooked
	}
	// The end is how far the query has examined all published events, matching or not, so that the next one need not read them again.
	// Nothing is added behind an event of the number looked if there are later numbers: an event that is committed late gets its place at
	// the end of the log. A position at the end of the log is that of the newest published event, also if it did not match: a reader whose
	// filter matches seldom does not read the same events again.
	head := NewPosition(log.HeadTime.Time, log.HeadSeq, log.HeadSub)
	switch {
	case page.HasMore:
		page.End = page.Events[len(page.Events)-1].Position
	case log.HeadSeq > looked:
		page.End, page.HasMore = NewPosition(log.HeadTime.Time, looked, maxSub), true
	case log.HeadTime.Valid && (query.After == nil || query.After.Before(head)):
		page.End = head
	case query.After != nil:
		page.End = *query.After
	}
	if !page.End.IsZero() {
		page.Cursor = page.End.String()
	}
	return page, nil
}

// listBehind returns the rows behind a position, at least one, and sets the place in p where they begin. Only a position that may be
// outside of the limits of retention needs more than one statement. The stored beginning may be out of date by what has expired
// since the maintainer last moved it. The statement says so only if the position is old enough, or far enough from the end, for
// it to matter; nearly all readers are near the end of the log.
func (r *Reader) listBehind(ctx context.Context, after *Position, p *dbsqlc.EventListAfterParams) ([]dbsqlc.EventListAfterRow, error) {
	if after == nil {
		begin, err := r.floor(ctx)
		if err != nil {
			return nil, err
		}
		p.AfterPlace = begin.FloorPlace
		return r.list(ctx, *p)
	}
	p.AfterPlace, p.AfterTime = after.place(), optionalTime(after.Time())
	rows, err := r.list(ctx, *p)
	if err != nil {
		return nil, err
	}
	if rows[0].RewrittenBehind >= 0 {
		return nil, rewritten(rows[0].RewrittenBehind)
	}
	if after.Seq > rows[0].Watermark {
		return nil, ahead(&rows[0])
	}
	begin := dbsqlc.EventFloorRow{FloorPlace: rows[0].FloorPlace, LostPlace: rows[0].LostPlace}
	if rows[0].Inexact {
		if begin, err = r.floor(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case p.AfterPlace < begin.LostPlace:
		return nil, r.expired(ctx, begin.FloorPlace)
	case p.AfterPlace < begin.FloorPlace: // only internal rows are in between
		p.AfterPlace = begin.FloorPlace
		return r.list(ctx, *p)
	}
	return rows, nil
}

// errNoRelay says that the one row is missing from which every statement about the log begins: somebody has deleted it.
var errNoRelay = errors.New("ojs.event_relay is empty")

// list reads one page. There is always a row, for the end of the log, even if no event matches. Pages are read in a snapshot of
// their own each. That is safe, because what is published never changes its place.
func (r *Reader) list(ctx context.Context, p dbsqlc.EventListAfterParams) ([]dbsqlc.EventListAfterRow, error) {
	rows, err := r.q.EventListAfter(ctx, p)
	if err == nil && len(rows) == 0 {
		err = errNoRelay
	}
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return rows, nil
}

// floor finds the exact beginning of the log, by the limits of retention at this moment. EventListAfter reads the stored one, which is
// cheaper, and says if that may be out of date.
func (r *Reader) floor(ctx context.Context) (dbsqlc.EventFloorRow, error) {
	begin, err := r.q.EventFloor(ctx)
	if err != nil {
		return begin, fmt.Errorf("find the beginning of the events: %w", err)
	}
	return begin, nil
}

// expired is the error for a position before the beginning of the log. It names the oldest event, from which the client can go on.
// The statement for the oldest event runs after the one that found the position expired, so the event named may itself expire
// before the client goes on from it.
func (r *Reader) expired(ctx context.Context, floor int64) error {
	oldest, err := r.q.EventGetOldest(ctx)
	if err != nil {
		return fmt.Errorf("find oldest event: %w", err)
	}
	if len(oldest) == 0 {
		return &ExpiredError{Pruned: placeOf(floor, clock.Now())}
	}
	o := oldest[0]
	return &ExpiredError{
		OldestID: NewPosition(o.Time.Time, o.Seq, o.Sub).String(), OldestTime: o.Time.Time.UTC(), Pruned: placeOf(floor, o.Time.Time),
	}
}

// rewritten is the error for a position of an event that a failover has lost. It names the end of what was kept, behind which the client
// can go on: events that came in the place of the lost ones are there, and perhaps some that it has read.
func rewritten(place int64) error {
	kept := placeOf(place, clock.Now())
	return &ExpiredError{OldestID: kept.String(), OldestTime: kept.Time(), Pruned: kept, Rewritten: true}
}

// ahead is the error for a position behind the end of the log: nothing was published there yet. It names the end, behind which the client
// can go on.
func ahead(log *dbsqlc.EventListAfterRow) error {
	end := NewPosition(log.HeadTime.Time, log.HeadSeq, log.HeadSub)
	if !log.HeadTime.Valid { // the log is empty
		end = NewPosition(clock.Now(), log.Watermark, maxSub)
	}
	return &ExpiredError{OldestID: end.String(), OldestTime: end.Time(), Pruned: end, Ahead: true}
}

// ListNewest is the admin listing (docs/reference/events.md, Newest first). total is how many events match of those that were
// looked at, counted up to 1 000 or, if that is further, up to the first behind the page. It ignores Query.After. Pages are numbered by
// offset, so an event that is published between two calls moves the others down: an entry may be shown twice.
func (r *Reader) ListNewest(ctx context.Context, query Query, offset int) (events []Event, total int64, err error) {
	f, err := query.filters()
	if err != nil {
		return nil, 0, err
	}
	ctx, done, err := r.db.Reading(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list newest events: %w", err)
	}
	defer done()
	params := dbsqlc.EventListNewestParams{
		JobID: f.jobID, Subject: f.subject, WithInternal: query.Internal, Types: f.types, Sources: f.sources, Queues: f.queues,
		JobTypes: f.jobTypes, WorkflowID: f.workflowID, Since: f.since, Until: f.until, Tenant: f.tenant, MaxLooked: r.maxLooked,
		MaxTotal: int32(max(maxTotal, offset+f.limit+1)), SkipRows: int32(offset), MaxRows: int32(f.limit),
	}
	rows, err := r.q.EventListNewest(ctx, params)
	if err != nil {
		return nil, 0, fmt.Errorf("list newest events: %w", err)
	}
	for _, row := range rows {
		total = row.Total
		if row.Seq > 0 {
			events = append(events, eventOf(dbsqlc.OjsEventShown{
				Seq: row.Seq, Sub: row.Sub, Time: row.Time, Type: row.Type, Internal: row.Internal, JobID: row.JobID, JobType: row.JobType,
				Queue: row.Queue, Attempt: row.Attempt, WorkerID: row.WorkerID, WorkflowID: row.WorkflowID, FromState: row.FromState,
				ToState: row.ToState, DurationMs: row.DurationMs, Head: row.Head, Compat: row.Compat, Data: row.Data, Lane: row.Lane,
			}))
		}
	}
	return events, total, nil
}

// NewestOfJob returns the newest events of a job that match, oldest first: query.Limit of them, or less if their texts are large.
// It ignores Query.After.
func (r *Reader) NewestOfJob(ctx context.Context, jobID [16]byte, query Query) ([]Event, error) {
	query.JobID = &jobID
	events, _, err := r.ListNewest(ctx, query, 0)
	bytes := 0
	for i, e := range events {
		if bytes += len(e.Head) + len(e.Compat) + len(e.Data); i > 0 && bytes > maxPageBytes {
			events = events[:i]
			break
		}
	}
	slices.Reverse(events)
	return events, err
}

// Get returns the event at a position, and whether it has that id. It does not return internal rows. The time is part of an id: with
// the right place and another time it is not the id of that event.
func (r *Reader) Get(ctx context.Context, position Position, id string) (Event, bool, error) {
	rows, err := r.q.EventGet(ctx, position.Seq, position.Sub)
	if err != nil {
		return Event{}, false, fmt.Errorf("get event: %w", err)
	}
	if len(rows) == 0 {
		return Event{}, false, nil
	}
	e := eventOf(rows[0])
	return e, e.ID() == id, nil
}

// History returns the published events of a job, oldest first, internal rows included: the first 10 000, or less if they are large.
// A caller that needs the rest reads it with ListAfter and JobID (docs/reference/events.md, Event history of a job).
func (r *Reader) History(ctx context.Context, jobID [16]byte) (history []Transition, more bool, err error) {
	ctx, done, err := r.db.Reading(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("list history: %w", err)
	}
	defer done()
	rows, err := r.q.EventListByJob(ctx, dbsqlc.EventListByJobParams{JobID: jobID, MaxRows: maxHistory + 1, MaxBytes: maxPageBytes})
	if err != nil {
		return nil, false, fmt.Errorf("list history: %w", err)
	}
	bytes := 0
	for i, row := range rows {
		e := eventOf(row)
		if bytes += len(e.Data); i == maxHistory || i > 0 && bytes > maxPageBytes {
			return history, true, nil
		}
		history = append(history, Transition{ID: e.ID(), Type: e.Type, From: e.From, To: e.To, Time: e.Time, Data: e.Data})
	}
	return history, false, nil
}

// Head is the position up to which the log is published, where a live stream starts.
func (r *Reader) Head(ctx context.Context) (Position, error) {
	head, _, err := r.bounds(ctx)
	return head, err
}

// bounds are the newest position and the one behind which the kept events begin.
func (r *Reader) bounds(ctx context.Context) (head, pruned Position, err error) {
	row, err := r.q.EventGetHead(ctx)
	if err != nil {
		return Position{}, Position{}, fmt.Errorf("find newest event: %w", err)
	}
	at := row.At.Time
	head = NewPosition(at, row.Watermark, 0)
	if row.HeadSeq > 0 {
		head = NewPosition(at, row.HeadSeq, row.HeadSub)
	}
	return head, placeOf(row.FloorPlace, at), nil
}

// WaitCaughtUp returns when all that this node had committed at the time of the call is published, or after 100 ms: a poll
// returns the events of the client's own writes (docs/reference/events.md, Publication). It costs no query, and no time if
// nothing is pending.
func (r *Reader) WaitCaughtUp(ctx context.Context) {
	if r.relay == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxCatchUp)
	defer cancel()
	r.relay.waitCaughtUp(ctx)
}

// HistoryPage is a piece of a job's history.
type HistoryPage struct {
	Events []Event
	More   bool
	End    Position // with More: where the next page begins
	Total  int64    // of the job, counted up to 10 000
}

// jobHistoryTypes are the events that a history lists: changes of state and attempts. See ojs.in_history in SQL.
// Heartbeats and reports of progress are events of a job too, but there may be thousands in a run.
var jobHistoryTypes = []string{
	ojs.EventJobEnqueued, ojs.EventJobScheduled, ojs.EventJobStarted, ojs.EventJobCompleted, ojs.EventJobFailed, ojs.EventJobDiscarded,
	ojs.EventJobRetrying, ojs.EventJobCancelled, ojs.EventJobExpired, StateChanged,
}

// JobHistory returns the published events of a job behind a position, internal rows included, oldest first.
// A page that is the whole history is counted itself. For others the total comes from a second statement and may count an event
// that was published in between. It fails as ListAfter does.
func (r *Reader) JobHistory(ctx context.Context, jobID [16]byte, after *Position, limit int) (HistoryPage, error) {
	page, err := r.ListAfter(ctx, Query{After: after, JobID: &jobID, Types: jobHistoryTypes, Limit: limit, Internal: true})
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
		before = query.Before.place()
	}
	rows, err := r.q.HistoryListNewest(ctx, dbsqlc.HistoryListNewestParams{
		Before: before, MaxLooked: r.maxLooked, MaxRows: int32(query.Limit + 1), MaxTotal: int32(max(maxTotal, query.Limit+1)),
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
		page.Events = append(page.Events, eventOf(dbsqlc.OjsEventShown{
			Seq: row.Seq, Sub: row.Sub, Time: row.Time, Type: row.Type, Internal: row.Internal, JobID: row.JobID, JobType: row.JobType,
			Queue: row.Queue, Attempt: row.Attempt, WorkerID: row.WorkerID, WorkflowID: row.WorkflowID, FromState: row.FromState,
			ToState: row.ToState, DurationMs: row.DurationMs, Head: row.Head, Compat: row.Compat, Data: row.Data, Lane: row.Lane,
		}))
	}
	// Numbers below Low were not looked at. The clock gives the position a time, which only an id needs; paging compares seq
	// and sub.
	if looked := rows[0]; looked.Low > looked.Oldest {
		page.More, page.End = true, NewPosition(clock.Now(), looked.Low, 0)
	}
	return page, nil
}

// Names of events in the history of a job that are no types of public events.
const (
	AttemptStarted   = "job.attempt_started"
	AttemptCompleted = "job.attempt_completed"
	AttemptFailed    = "job.attempt_failed"
	JobCreated       = "job.created"
)

// HistoryTypes are these names. Other events keep their type, or are StateChanged.
var HistoryTypes = []string{AttemptStarted, AttemptCompleted, AttemptFailed, JobCreated}

// HistoryType is the name of the event in the history. It must stay equal to ojs.history_type in SQL.
func (e *Event) HistoryType() string {
	switch e.Type {
	case ojs.EventJobStarted:
		return AttemptStarted
	case ojs.EventJobCompleted:
		return AttemptCompleted
	case ojs.EventJobFailed:
		return AttemptFailed
	case ojs.EventJobCancelled, ojs.EventJobDiscarded:
		return e.Type
	}
	if e.From == "" && (e.Type == ojs.EventJobEnqueued || e.Type == ojs.EventJobScheduled || e.Internal &&
		e.To == string(ojs.StatePending)) {
		return JobCreated
	}
	return StateChanged
}
