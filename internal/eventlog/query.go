package eventlog

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

const (
	defaultLimit = 100
	// maxTotal and maxHistory bound what is counted and listed, because a count reads each row that it counts.
	maxTotal   = 10_000
	maxHistory = 10_000

	// maxPageBytes bounds, with one more event, the texts of a page: an event has up to 24 KiB, and a page up to 1 000 events.
	maxPageBytes = 8 << 20
)

// Query selects events (docs/reference/events.md, Polling). An event must match every filter, by any value inside it. The
// zero value selects everything. The limits of the number of values and of Limit are those of the transports; here they are not
// checked.
type Query struct {
	After      *Position // exclusive; nil: from the oldest that is kept
	Types      []string  // patterns and aliases
	Sources    []string  // patterns
	Queues     []string
	JobTypes   []string
	JobID      *[16]byte
	Subject    string // of the envelope; "" for all
	WorkflowID *[16]byte
	Since      time.Time // inclusive
	Until      time.Time // exclusive
	Tenant     string    // of whose jobs, workflows, crons and workers; "": of all
	Limit      int       // 0: 100

	// Internal adds gap rows, which state frames and histories need. If Types is set, it must contain their exact name,
	// StateChanged.
	Internal bool
}

// Page is a piece of the log.
type Page struct {
	Events []Event

	// Cursor is how far the log has been read: a query after it returns every later event and none again. Empty only if
	// the log is empty and Query.After was nil.
	Cursor string
	End    Position // the same as a position

	// HasMore says that the page ended before the log did: because of its limit, its bytes, or the number of events that were looked
	// at. Then End is not the end of the log, and Events may be empty.
	HasMore bool
}

// ExpiredError says that events behind Query.After are outside of the limits of retention: 410 x_cursor_expired.
// It says nothing about what the filters of the query would have matched: events that were outside of them may be the only ones
// lost.
type ExpiredError struct {
	OldestID   string // empty: nothing is kept
	OldestTime time.Time
	Pruned     Position // the last of them; a query after it returns all that is kept
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the position is older than the oldest event that is kept, %s", e.OldestID)
}

// filters are the filters of a Query as the SQL takes them.
type filters struct {
	types, sources, queues, jobTypes []string
	jobID, workflowID                pgtype.UUID
	subject, tenant                  pgtype.Text
	since, until                     pgtype.Timestamptz
	limit                            int
}

func (q *Query) filters() (filters, error) {
	types, err := ParseTypePatterns("types", q.Types)
	if err != nil {
		return filters{}, err
	}
	sources, err := ParseSourcePatterns("sources", q.Sources)
	if err != nil {
		return filters{}, err
	}
	f := filters{
		types: LikePatterns(types), sources: LikePatterns(sources),
		queues: nonEmpty(q.Queues), jobTypes: nonEmpty(q.JobTypes),
		jobID: optionalUUID(q.JobID), workflowID: optionalUUID(q.WorkflowID),
		subject: pgtype.Text{String: q.Subject, Valid: q.Subject != ""}, tenant: pg.Text(q.Tenant),
		since: optionalTime(q.Since), until: optionalTime(q.Until),
		limit: q.Limit,
	}
	if f.limit == 0 {
		f.limit = defaultLimit
	}
	return f, nil
}

// nonEmpty never returns nil, which would be NULL in SQL.
func nonEmpty(values []string) []string {
	kept := make([]string, 0, len(values))
	for _, v := range values {
		if v != "" {
			kept = append(kept, v)
		}
	}
	return kept
}

func optionalUUID(id *[16]byte) pgtype.UUID {
	if id == nil {
		return pgtype.UUID{}
	}
	return pgtype.UUID{Bytes: *id, Valid: true}
}

func optionalTime(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// WireError turns a *PatternError or an *ExpiredError into an *ojs.Error. It returns any other error unchanged.
func WireError(err error) error {
	if expired, ok := errors.AsType[*ExpiredError](err); ok {
		return spec.NewError(ojs.ErrCursorExpired, "The cursor is older than the oldest event that is kept; start again from the current state.",
			map[string]any{"oldest_id": expired.OldestID, "oldest_time": spec.FormatTime(expired.OldestTime)})
	}
	if bad, ok := errors.AsType[*PatternError](err); ok {
		return spec.InvalidRequest(bad.Parameter, "a pattern such as job.completed or job.*", bad.Pattern, bad.Error())
	}
	return err
}
