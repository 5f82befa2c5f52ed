package eventlog

// Matcher applies the filters of a Query to events in memory. It must stay equal to ojs.event_matches in SQL.
// Streams use it for events in memory, the table is filtered in SQL; a stream that changes from one to the other must not
// notice. The zero value matches every public event.
type Matcher struct {
	query          Query
	types, sources []string
	gapRows        bool
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
	// Gap rows match only if the caller asked for them. A pattern never matches them, not even *, because they are no type of
	// an event (docs/reference/events.md, Filters).
	m.gapRows = q.Internal && len(m.types) == 0
	for _, t := range m.types {
		m.gapRows = m.gapRows || q.Internal && t == StateChanged
	}
	return m, nil
}

// Match ignores Query.After and Query.Limit.
func (m *Matcher) Match(e *Event) bool {
	q := &m.query
	// The subject comes last: it is the only filter that has to parse the text of the event.
	switch {
	case e.Internal && !m.gapRows,
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
