package eventlog

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

const (
	defaultLimit = 100
	// maxTotal bounds what is counted beside a page, because a count reads each row that it counts: 10 000 rows took 100 ms, the page 5 ms.
	// maxHistory is how many events of a job are listed and counted.
	maxTotal   = 1000
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

	// Internal adds internal rows, which state frames and histories need. If Types is set, it must contain their exact name,
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
	Rewritten  bool     // a failover of the database has lost the event of the position, and others came in its place
	Ahead      bool     // the position is behind the end of the log: it is of another database, or of a time that a backup does not have
}

func (e *ExpiredError) Error() string {
	if e.Rewritten {
		return fmt.Sprintf("the event of the position was lost in a failover; what was kept ends at %s", e.OldestID)
	}
	if e.Ahead {
		return fmt.Sprintf("the position is behind the end of the log, %s", e.OldestID)
	}
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
		message := "The cursor is older than the oldest event that is kept; start again from the current state."
		switch {
		case expired.Ahead:
			message = "The cursor is beyond the newest event: the database was restored from a backup, or the cursor is of another one; " +
				"start again from the current state, and go on after oldest_id."
		case expired.Rewritten:
			message = "The event of the cursor was lost in a failover of the database; start again from the current state, and go on after oldest_id."
		}
		wire := spec.NewError(ojs.ErrCursorExpired, message,
			map[string]any{"oldest_id": expired.OldestID, "oldest_time": spec.FormatTime(expired.OldestTime)})
		if expired.Ahead || expired.Rewritten {
			wire.Hint = "Read the current state of your jobs, then read the events behind oldest_id."
		}
		return wire
	}
	if bad, ok := errors.AsType[*PatternError](err); ok {
		return spec.InvalidRequest(bad.Parameter, "a pattern such as job.completed or job.*", bad.Pattern, bad.Error())
	}
	return err
}

// maxPatternBytes bounds a pattern of types (docs/reference/events.md, Filters).
const maxPatternBytes = 128

// PatternError says that a filter value is invalid. Every reader answers 400 for it.
type PatternError struct {
	Parameter string // types or sources
	Pattern   string
}

func (e *PatternError) Error() string {
	return fmt.Sprintf("%s contains %q; a pattern is a literal, or a literal prefix followed by one * at its end.", e.Parameter, e.Pattern)
}

// aliases are other names of catalogue types (docs/reference/events.md, Filters). A pattern with * is never an alias.
var aliases = map[string]string{
	"worker.registered":   ojs.EventWorkerStarted,
	"worker.deregistered": ojs.EventWorkerStopped,
	"worker.stale":        ojs.EventWorkerStopped,
	"job.retried":         ojs.EventJobRetrying,
	"job.dead":            ojs.EventJobDiscarded,
}

// ParseTypePatterns validates type patterns, drops empty ones, and translates aliases. A well-formed pattern that names no type
// of the catalogue is valid here and matches nothing; webhooks refuse it by themselves.
func ParseTypePatterns(parameter string, patterns []string) ([]string, error) {
	parsed := make([]string, 0, len(patterns))
	for _, p := range patterns {
		if p == "" {
			continue
		}
		if !validTypePattern(p) {
			return nil, &PatternError{parameter, p}
		}
		if name, ok := aliases[p]; ok {
			p = name
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}

// ParseSourcePatterns validates source patterns and drops empty ones. Sources contain names that clients chose, so any text is
// a literal; only a * before the end is refused.
func ParseSourcePatterns(parameter string, patterns []string) ([]string, error) {
	parsed := make([]string, 0, len(patterns))
	for _, p := range patterns {
		if p == "" {
			continue
		}
		if star := strings.IndexByte(p, '*'); star >= 0 && star < len(p)-1 {
			return nil, &PatternError{parameter, p}
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}

// validTypePattern accepts dot-separated segments of [a-z0-9_] that start with a letter, optionally ended by *; or *.
func validTypePattern(p string) bool {
	if len(p) > maxPatternBytes {
		return false
	}
	if p == "*" {
		return true
	}
	prefix, wild := strings.CutSuffix(p, "*")
	segments := strings.Split(prefix, ".")
	for i, s := range segments {
		if s == "" {
			return wild && i > 0 && i == len(segments)-1 // job.*
		}
		for n := range len(s) {
			c := s[n]
			letter := c >= 'a' && c <= 'z'
			if !letter && (n == 0 || c != '_' && (c < '0' || c > '9')) {
				return false
			}
		}
	}
	return true
}

// MatchPattern reports whether a valid pattern matches a type or a source. Its result must equal that of LIKE with
// LikePatterns.
func MatchPattern(pattern, value string) bool {
	if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
		return strings.HasPrefix(value, prefix)
	}
	return pattern == value
}

// likeEscaper is for names that contain _ or %, which LIKE takes for wildcards.
var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// LikePatterns turns valid patterns into operands of LIKE ANY. It never returns nil, which would be NULL in SQL.
func LikePatterns(patterns []string) []string {
	likes := make([]string, 0, len(patterns))
	for _, p := range patterns {
		prefix, wild := strings.CutSuffix(p, "*")
		like := likeEscaper.Replace(prefix)
		if wild {
			like += "%"
		}
		likes = append(likes, like)
	}
	return likes
}

// Matcher applies the filters of a Query to events in memory. It must stay equal to ojs.event_matches in SQL.
// Streams use it for events in memory, the table is filtered in SQL; a stream that changes from one to the other must not
// notice. The zero value matches every public event.
type Matcher struct {
	query          Query
	types, sources []string
	internalRows   bool
}

// NewMatcher fails with a *PatternError, as ListAfter does.
func NewMatcher(q Query) (m Matcher, err error) {
	m.query = q
	if m.types, err = ParseTypePatterns("types", q.Types); err != nil {
		return m, err
	}
	if m.sources, err = ParseSourcePatterns("sources", q.Sources); err != nil {
		return m, err
	}
	m.query.Queues, m.query.JobTypes = nonEmpty(q.Queues), nonEmpty(q.JobTypes)
	// Internal rows match only if the caller asked for them. A pattern never matches them, not even *, because they are no type of
	// an event (docs/reference/events.md, Filters).
	m.internalRows = q.Internal && len(m.types) == 0
	for _, t := range m.types {
		m.internalRows = m.internalRows || q.Internal && t == StateChanged
	}
	return m, nil
}

// Match ignores Query.After and Query.Limit.
func (m *Matcher) Match(e *Event) bool {
	q := &m.query
	// The subject comes last: it is the only filter that has to parse the text of the event.
	switch {
	case e.Internal && !m.internalRows,
		len(m.types) > 0 && !anyPattern(m.types, e.Type),
		len(m.sources) > 0 && !anyPattern(m.sources, e.Source()),
		len(q.Queues) > 0 && !contains(q.Queues, e.Queue),
		len(q.JobTypes) > 0 && !contains(q.JobTypes, e.JobType),
		q.JobID != nil && (e.JobID == nil || *e.JobID != *q.JobID),
		q.WorkflowID != nil && (e.WorkflowID == nil || *e.WorkflowID != *q.WorkflowID),
		!q.Since.IsZero() && e.Time.Before(q.Since),
		!q.Until.IsZero() && !e.Time.Before(q.Until),
		q.Tenant != "" && e.Tenant != q.Tenant,
		q.Subject != "" && e.Subject() != q.Subject:
		return false
	}
	return true
}

func anyPattern(patterns []string, value string) bool {
	for _, p := range patterns {
		if MatchPattern(p, value) {
			return true
		}
	}
	return false
}

// contains never matches "": an event without a queue is in no queue.
func contains(values []string, value string) bool {
	for _, v := range values {
		if v == value && v != "" {
			return true
		}
	}
	return false
}
