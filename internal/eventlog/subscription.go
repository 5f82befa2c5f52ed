package eventlog

import (
	"context"
	"errors"
	"time"
)

// tablePage is how many events Trim reads at a time.
const tablePage = 1000

// Subscription is one stream's position in the log. One goroutine may use it. Its position is in memory only: a client that
// comes back names the last id that it has got.
type Subscription struct {
	feed  *Feed
	query Query
	match Matcher

	// at may be ahead of returned: Trim reads events before the stream asks for them.
	at       Position // everything up to it has been read
	returned Position // everything up to it has been returned
	// unchecked is cleared by the first read of the table, which knows the exact limits.
	unchecked    bool // at came from the client: events in memory may be outside of the limits of retention
	caughtUp     bool // at least once
	closed       bool
	stream       *Stream // nil: not counted
	readingTable bool    // and counted so in stream

	waiting []*Item // read by Trim, not returned yet
	gap     *Gap    // found by Trim, not returned yet
}

// Gap says that retention has removed events before a stream could read them. The stream shows it as system.gap and goes on
// behind End (docs/reference/events.md, System frames).
type Gap struct {
	Start Position // how far the stream had read
	End   Position // the last removed event
}

// Dropped says which events Trim has dropped. Only events that pass the filters count; the others between Oldest and Newest
// were not meant for the stream.
type Dropped struct {
	Count          int
	Oldest, Newest Position
}

// Subscribe follows the events behind from. If from is nil, it starts at the end of the log, or at the oldest kept event if
// the query has a Since. It ignores Query.After and Query.Limit. The caller must Close the subscription.
// The bounds are read before join, so events that are published in between are behind the position and will be returned.
func (f *Feed) Subscribe(ctx context.Context, query Query, from *Position) (*Subscription, error) {
	match, err := NewMatcher(query)
	if err != nil {
		return nil, err
	}
	s := &Subscription{feed: f, query: query, match: match}
	if from != nil {
		s.at, s.unchecked = *from, true
	} else {
		head, pruned, err := f.bounds(ctx)
		if err != nil {
			return nil, err
		}
		if s.at = head; !query.Since.IsZero() {
			s.at = pruned
		}
	}
	s.returned = s.at
	f.join()
	return s, nil
}

// Close ends the subscription. It may be called twice. The last Close of a node lets the feed drop its memory.
func (s *Subscription) Close() {
	if !s.closed {
		s.closed = true
		s.setReadingTable(false)
		s.feed.leave()
	}
}

// Position is where another subscription can go on without loss or repetition. What Trim has read but Next has not returned yet
// is behind it.
func (s *Subscription) Position() Position {
	if len(s.waiting) > 0 || s.gap != nil {
		return s.returned
	}
	return s.at
}

// Next waits for matching events and returns at most limit of them, oldest first: from memory, or from the table if the
// stream is too far behind. gap is set if retention has removed some. Both are empty if idle fires first, or with an error:
// that of ctx, or one of reading, after which Next may be called again. The gap that Trim found comes first, then the events
// that Trim has read.
func (s *Subscription) Next(ctx context.Context, idle <-chan time.Time, limit int) (items []*Item, gap *Gap, err error) {
	if gap, s.gap = s.gap, nil; gap != nil {
		return nil, gap, nil
	}
	if n := min(limit, len(s.waiting)); n > 0 {
		items, s.waiting = s.waiting[:n], s.waiting[n:]
		s.returned = items[n-1].Event.Position
		return items, nil, nil
	}
	for {
		read, err := s.step(ctx, limit)
		if err != nil || read.gap != nil || len(read.items) > 0 {
			s.returned = s.at
			return read.items, read.gap, err
		}
		// The step has moved the position without finding a match; there may be more at once.
		if read.changed == nil {
			continue
		}
		select {
		case <-read.changed:
		case <-idle:
			return nil, nil, nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// Trim drops the oldest waiting events if more than keep wait, for a stream that would rather lose events than be late. A
// stream that has not caught up yet gets all it asked for. It reads all that is there, so that what it keeps are the newest,
// and so that the client learns how much it has lost. If reading fails after something was dropped, it reports the drop and no
// error; the next read fails again.
func (s *Subscription) Trim(ctx context.Context, keep int) (*Dropped, error) {
	recent := s.feed.after(s.at)
	if !s.caughtUp || recent.complete && len(s.waiting)+len(recent.items) <= keep {
		return nil, nil
	}
	var d Dropped
	for {
		read, err := s.step(ctx, tablePage)
		if err != nil && d.Count > 0 {
			break // the client must learn what was dropped
		}
		if err != nil {
			return nil, err
		}
		if read.gap != nil {
			s.gap = read.gap
		}
		s.waiting = append(s.waiting, read.items...)
		s.dropOver(keep, &d)
		if len(read.items) == 0 && read.changed != nil {
			break
		}
	}
	if d.Count == 0 {
		return nil, nil
	}
	s.stream.countDropped(d.Count)
	return &d, nil
}

// dropOver drops all waiting events but the newest keep.
func (s *Subscription) dropOver(keep int, d *Dropped) {
	over := len(s.waiting) - keep
	if over <= 0 {
		return
	}
	if d.Count == 0 {
		d.Oldest = s.waiting[0].Event.Position
	}
	d.Count += over
	d.Newest = s.waiting[over-1].Event.Position
	s.waiting, s.returned = s.waiting[over:], d.Newest
}

// batch is what one step read.
type batch struct {
	items   []*Item
	gap     *Gap
	changed <-chan struct{} // set if there was nothing more at the time; closed when another step may return more
}

// step reads once, without waiting. The window is taken before the table is read. Otherwise the feed could begin after the read
// and before the look, and the stream would wait for a change that has already happened.
func (s *Subscription) step(ctx context.Context, limit int) (batch, error) {
	recent := s.feed.after(s.at)
	if recent.complete && !s.unchecked && !s.feed.aged(recent.items) {
		s.caughtUp = true
		s.setReadingTable(false)
		return batch{items: s.takeRecent(recent, limit), changed: recent.changed}, nil
	}
	s.setReadingTable(true)
	read, more, err := s.readTable(ctx, limit)
	if err != nil {
		return read, err
	}
	s.unchecked = false
	if more {
		return read, nil
	}
	s.caughtUp = true
	s.setReadingTable(false)
	if !s.feed.after(s.at).complete {
		read.changed = recent.changed // else the feed has begun or gone on meanwhile, and the next step reads it
	}
	return read, nil
}

// takeRecent moves the position over the feed's events and returns the matching ones. If nothing matched, it goes to the end of
// the window, so that the same events are not looked at again.
func (s *Subscription) takeRecent(recent window, limit int) (items []*Item) {
	for _, item := range recent.items {
		s.at = item.Event.Position
		if s.match.Match(item.Event) {
			if items = append(items, item); len(items) == limit {
				return items
			}
		}
	}
	if s.at.Before(recent.end) {
		s.at = recent.end
	}
	return items
}

// readTable reads one page of the table, for a stream that is too far behind for memory. A position outside of the limits of
// retention becomes a gap, and the stream goes on behind what was lost.
func (s *Subscription) readTable(ctx context.Context, limit int) (read batch, more bool, err error) {
	q := s.query
	q.After, q.Limit = &s.at, limit
	release, err := s.feed.acquireRead(ctx)
	if err != nil {
		return batch{}, false, err
	}
	page, err := s.feed.reader.ListAfter(ctx, q)
	release()
	if expired, ok := errors.AsType[*ExpiredError](err); ok {
		gap := &Gap{Start: s.at, End: expired.Pruned}
		s.at = expired.Pruned
		return batch{gap: gap}, true, nil
	}
	if err != nil {
		return batch{}, false, err
	}
	s.at = page.End
	for i := range page.Events {
		read.items = append(read.items, &Item{Event: &page.Events[i]})
	}
	return read, page.HasMore, nil
}
