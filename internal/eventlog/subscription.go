package eventlog

import (
	"context"
	"errors"
	"strings"
)

// Subscription is one stream's place in the log. It is for one goroutine.
type Subscription struct {
	feed  *Feed
	query Query
	match matcher

	at      Position // everything up to it has been seen
	oldest  bool     // at is behind retention: go on with the oldest event that is kept
	leaving bool
}

// Gap says that retention has removed events before a stream could read them.
type Gap struct {
	Start Position // how far the stream had read
	End   Position // the next event is behind it
}

// Subscribe follows events behind a position, the newest one if from is nil. The query's After and Limit play no part.
// Close it.
func (f *Feed) Subscribe(ctx context.Context, query Query, from *Position) (*Subscription, error) {
	match, err := newMatcher(query)
	if err != nil {
		return nil, err
	}
	s := &Subscription{feed: f, query: query, match: match}
	switch {
	case from != nil:
		s.at = *from
	case !query.Since.IsZero():
		s.oldest = true
	default:
		if s.at, err = f.reader.Head(ctx); err != nil {
			return nil, err
		}
	}
	f.join()
	return s, nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	if !s.leaving {
		s.leaving = true
		s.feed.leave()
	}
}

// Position is how far the log has been read, whether it matched or not.
func (s *Subscription) Position() Position { return s.at }

// Next waits for matching events and returns at most limit of them, oldest first: from memory, or from the table if the
// stream is too far behind. gap is set when some are gone for good. Both are empty only with an error: ctx's, or one of
// reading.
func (s *Subscription) Next(ctx context.Context, limit int) (items []*Item, gap *Gap, err error) {
	for {
		kept, end, changed, ok := s.feed.behind(s.at)
		ok = ok && !s.oldest
		if !ok {
			var more bool
			items, gap, more, err = s.catchUp(ctx, limit)
			if err != nil || len(items) > 0 || gap != nil {
				return items, gap, err
			}
			if _, _, _, near := s.feed.behind(s.at); more || near {
				continue
			}
		} else if items = s.take(kept, end, limit); len(items) > 0 {
			return items, nil, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

func (s *Subscription) take(kept []*Item, end Position, limit int) (items []*Item) {
	for _, item := range kept {
		s.at = item.Event.Position
		if s.match.event(item.Event) {
			if items = append(items, item); len(items) == limit {
				return items
			}
		}
	}
	if s.at.Before(end) {
		s.at = end
	}
	return items
}

// catchUp reads the table at the stream's own pace.
func (s *Subscription) catchUp(ctx context.Context, limit int) (items []*Item, gap *Gap, more bool, err error) {
	q := s.query
	q.After, q.Limit = &s.at, limit
	if s.oldest {
		q.After = nil
	}
	page, err := s.feed.reader.ListAfter(ctx, q)
	var expired *ExpiredError
	if errors.As(err, &expired) {
		s.oldest = true
		gap = &Gap{Start: s.at}
		if oldest, err := ParsePosition(expired.OldestID); err == nil {
			oldest.Seq--
			gap.End = oldest
		}
		return nil, gap, true, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
	s.oldest = s.oldest && page.Cursor == ""
	if page.Cursor != "" {
		if s.at, err = ParsePosition(page.Cursor); err != nil {
			return nil, nil, false, err
		}
	} else if s.oldest { // an empty log
		s.oldest, s.at = false, Position{}
	}
	for i := range page.Events {
		items = append(items, &Item{Event: &page.Events[i]})
	}
	return items, nil, page.HasMore, nil
}

// matcher is a Query's filters in Go; ojs.event_matches is the same in SQL.
type matcher struct {
	query          Query
	types, sources []string
	gapRows        bool
}

func newMatcher(q Query) (m matcher, err error) {
	m.query = q
	if m.types, err = ParseTypePatterns("types", q.Types); err != nil {
		return m, err
	}
	if m.sources, err = ParseSourcePatterns("sources", q.Sources); err != nil {
		return m, err
	}
	m.query.Queues, m.query.JobTypes = nonEmpty(q.Queues), nonEmpty(q.JobTypes)
	m.gapRows = q.Internal && len(m.types) == 0
	for _, t := range m.types {
		m.gapRows = m.gapRows || q.Internal && t == "job.state_changed"
	}
	return m, nil
}

func (m *matcher) event(e *Event) bool {
	q := &m.query
	switch {
	case e.Internal && !m.gapRows,
		len(m.types) > 0 && !anyPattern(m.types, e.Type),
		len(m.sources) > 0 && !anyPattern(m.sources, e.Source()),
		len(q.Queues) > 0 && !contains(q.Queues, e.Queue),
		len(q.JobTypes) > 0 && !contains(q.JobTypes, e.JobType),
		q.JobID != nil && (e.JobID == nil || *e.JobID != *q.JobID),
		q.WorkflowID != nil && (e.WorkflowID == nil || *e.WorkflowID != *q.WorkflowID),
		!q.Since.IsZero() && e.Time.Before(q.Since),
		!q.Until.IsZero() && !e.Time.Before(q.Until):
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

// contains never takes "" for a value: an event without a queue is in none.
func contains(values []string, value string) bool {
	for _, v := range values {
		if v == value && v != "" {
			return true
		}
	}
	return false
}

// Source is the source as it is shown, ojs://{service}/….
func (e *Event) Source() string {
	_, rest, found := strings.Cut(e.Head, `,"source":"`)
	if !found {
		return ""
	}
	source, _, _ := strings.Cut(rest, `"`) // a URI has no quotes
	return source
}
