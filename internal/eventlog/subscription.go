package eventlog

import (
	"context"
	"errors"
	"strings"
	"time"
)

// tablePage is what Trim reads at a time; Next's callers choose for themselves.
const tablePage = 1000

// Subscription is one stream's place in the log. It is for one goroutine.
type Subscription struct {
	feed  *Feed
	query Query
	match Matcher

	at      Position // everything up to it has been seen
	given   Position // everything up to it has been returned
	live    bool     // has caught up once
	leaving bool
	stream  *Stream // nil: not counted
	reading bool    // from the table, which the stream has been told

	ready []*Item // what Trim has left
	gap   *Gap    // what Trim came upon
}

// Gap says that retention has removed events before a stream could read them.
type Gap struct {
	Start Position // how far the stream had read
	End   Position // the last one that is gone
}

// Dropped says what Trim has passed over.
type Dropped struct {
	Count          int
	Oldest, Newest Position
}

// Subscribe follows events behind a position; from nil, the newest one, or everything that is kept if the query has a
// Since. The query's After and Limit play no part. Close it.
func (f *Feed) Subscribe(ctx context.Context, query Query, from *Position) (*Subscription, error) {
	match, err := NewMatcher(query)
	if err != nil {
		return nil, err
	}
	s := &Subscription{feed: f, query: query, match: match}
	if from != nil {
		s.at = *from
	} else {
		head, pruned, err := f.bounds(ctx)
		if err != nil {
			return nil, err
		}
		if s.at = head; !query.Since.IsZero() {
			s.at = pruned
		}
	}
	s.given = s.at
	f.join()
	return s, nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	if !s.leaving {
		s.leaving = true
		s.fromTable(false)
		s.feed.leave()
	}
}

// Position is where another subscription goes on without loss or repetition.
func (s *Subscription) Position() Position {
	if len(s.ready) > 0 || s.gap != nil {
		return s.given
	}
	return s.at
}

// Next waits for matching events and returns at most limit of them, oldest first: from memory, or from the table if the
// stream is too far behind. gap is set when some are gone for good. Both are empty if idle came first, or with an error:
// ctx's, or one of reading, after which it may be called again.
func (s *Subscription) Next(ctx context.Context, idle <-chan time.Time, limit int) (items []*Item, gap *Gap, err error) {
	if gap, s.gap = s.gap, nil; gap != nil {
		return nil, gap, nil
	}
	if n := min(limit, len(s.ready)); n > 0 {
		items, s.ready = s.ready[:n], s.ready[n:]
		s.given = items[n-1].Event.Position
		return items, nil, nil
	}
	for {
		items, gap, changed, err := s.step(ctx, limit)
		if err != nil || gap != nil || len(items) > 0 {
			s.given = s.at
			return items, gap, err
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-idle:
			return nil, nil, nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// Trim passes over the oldest events that wait, if more than keep do, for a stream that would rather lose some than be
// late. A stream that has not caught up yet gets all it asked for.
func (s *Subscription) Trim(ctx context.Context, keep int) (*Dropped, error) {
	kept, _, _, ok := s.feed.behind(s.at)
	if !s.live || ok && len(s.ready)+len(kept) <= keep {
		return nil, nil
	}
	var d Dropped
	for {
		items, gap, changed, err := s.step(ctx, tablePage)
		if err != nil && d.Count > 0 {
			break // what is dropped must be told
		}
		if err != nil {
			return nil, err
		}
		if gap != nil {
			s.gap = gap
		}
		s.ready = append(s.ready, items...)
		if over := len(s.ready) - keep; over > 0 {
			if d.Count == 0 {
				d.Oldest = s.ready[0].Event.Position
			}
			d.Count += over
			d.Newest = s.ready[over-1].Event.Position
			s.ready, s.given = s.ready[over:], d.Newest
		}
		if len(items) == 0 && changed != nil {
			break
		}
	}
	if d.Count == 0 {
		return nil, nil
	}
	s.stream.dropped(d.Count)
	return &d, nil
}

// step reads once, without waiting. If changed is set there was nothing more at the time; it is closed when it is worth
// trying again.
func (s *Subscription) step(ctx context.Context, limit int) (items []*Item, gap *Gap, changed <-chan struct{}, err error) {
	kept, end, changed, ok := s.feed.behind(s.at)
	if ok {
		s.live = true
		s.fromTable(false)
		return s.take(kept, end, limit), nil, changed, nil
	}
	s.fromTable(true)
	items, gap, more, err := s.catchUp(ctx, limit)
	if err != nil || gap != nil || more {
		return items, gap, nil, err
	}
	s.live = true
	s.fromTable(false)
	if _, _, _, near := s.feed.behind(s.at); near { // the feed has moved on or begun meanwhile
		return items, nil, nil, nil
	}
	return items, nil, changed, nil
}

func (s *Subscription) take(kept []*Item, end Position, limit int) (items []*Item) {
	for _, item := range kept {
		s.at = item.Event.Position
		if s.match.Match(item.Event) {
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
	done, err := s.feed.takeTurn(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	page, err := s.feed.listAfter(ctx, q, replayTimeout)
	done()
	var expired *ExpiredError
	if errors.As(err, &expired) {
		gap = &Gap{Start: s.at, End: expired.Pruned}
		s.at = expired.Pruned
		return nil, gap, true, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
	s.at = page.End
	for i := range page.Events {
		items = append(items, &Item{Event: &page.Events[i]})
	}
	return items, nil, page.HasMore, nil
}

// Matcher is a Query's filters in Go; ojs.event_matches is the same in SQL.
type Matcher struct {
	query          Query
	types, sources []string
	gapRows        bool
}

// NewMatcher refuses what ListAfter refuses.
func NewMatcher(q Query) (m Matcher, err error) {
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

// Match takes no notice of After and Limit.
func (m *Matcher) Match(e *Event) bool {
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
