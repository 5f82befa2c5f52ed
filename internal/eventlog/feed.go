package eventlog

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/loop"
)

const (
	feedPage  = 1000                   // events of one read
	feedRetry = 500 * time.Millisecond // after a read that failed

	// readTimeout bounds one statement, because a dead connection may not report an error.
	readTimeout = 15 * time.Second

	// pausePerStream is the pause after a read for each subscriber, up to maxFeedPause: to wake a thousand streams costs
	// more than the read, and a batch of frames hardly more than one frame.
	pausePerStream = 50 * time.Microsecond
	maxFeedPause   = 50 * time.Millisecond
)

// FeedConfig bounds what a feed keeps in memory for all its streams. The zero value of a field means its default.
type FeedConfig struct {
	// MaxEvents and MaxBytes bound the newest events that are kept; a stream that is further behind reads the table.
	// 8 192 and 64 MiB.
	MaxEvents int
	MaxBytes  int

	// MaxReads is how many streams may read the table at once: a thousand that resume together must not take all
	// connections of the pool. 4.
	MaxReads int

	// Events has the limits of retention, which hold for events in memory too. The reader applies them to
	// the table by itself; here they only tell which events in memory need a look at the table first.
	Events config.Events
}

// Feed reads the log once for all streams of this node: one query reads a pass of the relay, whatever the number of
// subscribers. Without subscribers it reads nothing. A stream that is at the end of the log is served from memory. One that is
// further behind, or that resumes from a position of its client, reads the table by itself until it has reached what is in
// memory.
type Feed struct {
	baseservice.BaseService
	startstop.BaseStartStop

	config FeedConfig
	reader *Reader
	wake   chan struct{}
	reads  chan struct{} // one element for each stream that reads the table

	// mu guards the fields below. Only the running goroutine reads the log and appends; streams read and wait.
	mu          sync.Mutex
	subscribers int
	following   bool     // recent holds all that is published behind start
	restarts    int      // how often what was in memory was dropped, because it is not in the log any more
	start       Position // exclusive
	end         Position // how far the log has been read
	recent      []*Item  // never changed in place: readers keep slices of it
	bytes       int
	// A channel and not a condition, because a stream also waits for its context and its keep-alive timer.
	changed chan struct{} // closed when a field above has changed
}

// NewFeed returns a feed; Start it, and Wake it when events were published.
func NewFeed(archetype *baseservice.Archetype, reader *Reader, c FeedConfig) *Feed {
	c.MaxEvents, c.MaxBytes, c.MaxReads = cmp.Or(c.MaxEvents, 8192), cmp.Or(c.MaxBytes, 64<<20), cmp.Or(c.MaxReads, 4)
	return baseservice.Init(archetype, &Feed{
		config: c, reader: reader, wake: make(chan struct{}, 1), reads: make(chan struct{}, c.MaxReads), changed: make(chan struct{}),
	})
}

// Wake reads the log soon, because events were published. It does not block, and costs nothing without subscribers.
func (f *Feed) Wake() {
	loop.Signal(f.wake)
}

// Start follows the log until stopped.
func (f *Feed) Start(ctx context.Context) error {
	loop.Run(ctx, &f.BaseStartStop, f.run)
	return nil
}

// run makes a pause after a read, which collects the events of more passes into one round of frames. A failed read is tried again without a
// wake-up, because the notification that asked for it does not come twice.
func (f *Feed) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		streams, err := f.runOnce(ctx)
		if err != nil && ctx.Err() == nil {
			f.Logger.WarnContext(ctx, f.Name+": cannot read events; trying again", slog.Any("error", err))
			serviceutil.CancellableSleep(ctx, feedRetry)
			f.Wake()
		}
		serviceutil.CancellableSleep(ctx, min(time.Duration(streams)*pausePerStream, maxFeedPause))
	}
}

// runOnce reads all that is new and returns the number of subscribers. The statements run without the lock: streams go on
// reading what is in memory meanwhile.
func (f *Feed) runOnce(ctx context.Context) (streams int, err error) {
	f.mu.Lock()
	streams, following, end := f.subscribers, f.following, f.end
	f.mu.Unlock()
	if streams == 0 {
		return 0, nil
	}
	// The first subscriber has come, or memory was dropped. What is published before this bound is read from the table by the
	// streams that want it.
	if !following {
		if end, _, err = f.bounds(ctx); err != nil {
			return streams, err
		}
		f.follow(end)
	}
	for more := true; more; {
		bounded, cancel := context.WithTimeout(ctx, readTimeout)
		page, err := f.reader.listAfter(bounded, Query{After: &end, Internal: true, Limit: feedPage})
		cancel()
		// The process was suspended for longer than retention keeps events, or a failover has lost the newest ones. The next run begins at
		// the end of the log and wakes the streams, which read the table first.
		if _, ok := errors.AsType[*ExpiredError](err); ok {
			f.mu.Lock()
			f.following, f.recent, f.bytes = false, nil, 0
			f.restarts++
			f.mu.Unlock()
			f.Wake()
			return streams, nil
		}
		if err != nil {
			return streams, err
		}
		end = page.End
		f.add(page.Events, end)
		more = page.HasMore
	}
	return streams, nil
}

func (f *Feed) bounds(ctx context.Context) (head, pruned Position, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return f.reader.bounds(ctx)
}

// follow starts at a position with nothing in memory. It wakes the streams, so that those who read the table in the meantime
// see that memory goes on from here.
//
// If the last subscriber has left since the bounds were read, it does not start: without subscribers nothing advances the feed, and
// the next one would wait until all events of the meantime were read.
func (f *Feed) follow(from Position) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subscribers == 0 {
		return
	}
	f.following, f.start, f.end, f.recent, f.bytes = true, from, from, nil, 0
	f.broadcast()
}

// add keeps the events that were read, unless the last subscriber has closed meanwhile. Old events go first when either bound
// is exceeded; a single event larger than MaxBytes leaves memory empty, and the streams read it from the table.
func (f *Feed) add(events []Event, end Position) {
	items := make([]*Item, len(events))
	size := 0
	for i := range events {
		items[i] = &Item{Event: &events[i]}
		size += items[i].size()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.following {
		return
	}
	f.end = end
	if len(items) == 0 {
		return
	}
	f.recent = append(f.recent, items...)
	f.bytes += size
	cut := 0
	for len(f.recent)-cut > f.config.MaxEvents || f.bytes > f.config.MaxBytes && cut < len(f.recent) {
		f.bytes -= f.recent[cut].size()
		f.start = f.recent[cut].Event.Position
		cut++
	}
	f.recent = f.recent[cut:]
	f.broadcast()
}

// broadcast wakes the subscribers. The caller has locked f.mu.
func (f *Feed) broadcast() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// window is the part of the log that the feed has in memory behind a position.
type window struct {
	complete bool // no event between the position and items is missing
	items    []*Item
	end      Position        // how far the log has been read
	changed  <-chan struct{} // closed when another call returns more
	restarts int             // of the feed: positions that were read before one may have been lost
}

// after returns what is in memory behind a position. The slice has no spare capacity, so that an append to it cannot write into recent.
// An incomplete window has no items: the stream must read the table first.
func (f *Feed) after(at Position) window {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.following || at.Before(f.start) {
		return window{changed: f.changed, restarts: f.restarts}
	}
	from := sort.Search(len(f.recent), func(i int) bool { return at.Before(f.recent[i].Event.Position) })
	return window{complete: true, items: f.recent[from:len(f.recent):len(f.recent)], end: f.end, changed: f.changed, restarts: f.restarts}
}

// aged reports whether some of the events may be outside of the limits of retention by now, because a stream reads slowly.
// It compares the time of the oldest item and the number of items, internal rows included, so it may send a stream to the table a
// little too early. That costs one read.
func (f *Feed) aged(items []*Item) bool {
	return len(items) > 0 && (f.config.Events.RetentionPeriod > 0 &&
		clock.Now().Sub(items[0].Event.Time) >= f.config.Events.RetentionPeriod ||
		f.config.Events.MaxCount > 0 && int64(len(items)) > f.config.Events.MaxCount)
}

// Subscribers is the number of open subscriptions. The relay asks it before each pass: while somebody reads the log, passes
// come sooner (RelayConfig.HasReaders).
func (f *Feed) Subscribers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.subscribers
}

// Forms is the number of encodings of an event that streams share. Package httpapi has those below GRPCForms, grpcapi the
// others.
const (
	GRPCForms = 4
	Forms     = 6
)

// Item is an event that many streams share. Streams hold items after the feed has dropped them, so an item must not change,
// except for the texts that Shown adds.
type Item struct {
	Event *Event

	shown [Forms]struct {
		once sync.Once
		text []byte
	}
}

// Shown returns the event in one of the forms, encoded once for all streams. It must not be changed.
func (i *Item) Shown(form int, show func(*Event) []byte) []byte {
	s := &i.shown[form]
	s.once.Do(func() { s.text = show(i.Event) })
	return s.text
}

// size estimates the bytes of an event and one of its forms. Texts of further forms are not counted, so MaxBytes is a bound of
// the order of size, not an exact one.
func (i *Item) size() int {
	return 2*(len(i.Event.Head)+len(i.Event.Compat)+len(i.Event.Data)) + 512
}

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
	unchecked    bool // at came from the client, or the feed has begun anew: events in memory may be outside of the limits of retention
	restarts     int  // of the feed, as this subscription knows it
	caughtUp     bool // at least once
	closed       bool
	stream       *Stream // nil: not counted
	readingTable bool    // and counted so in stream

	waiting []*Item // read by Trim, not returned yet
	missed  *Missed // found by Trim, not returned yet
}

// Missed says that retention has removed events before a stream could read them. The stream shows it as system.gap and goes on
// behind End (docs/reference/events.md, System frames).
type Missed struct {
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
// The bounds are read before it joins, so events that are published in between are behind the position and will be returned.
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
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers++
	if f.subscribers == 1 { // later ones need no wake-up: the feed follows the log already, or is about to
		f.Wake()
	}
	return s, nil
}

// Close ends the subscription. It may be called twice. The last Close of a node lets the feed drop its memory.
func (s *Subscription) Close() {
	if s.closed {
		return
	}
	s.closed = true
	s.setReadingTable(false)
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subscribers--; f.subscribers == 0 { // nothing keeps the memory up to date any more
		f.following, f.recent, f.bytes = false, nil, 0
	}
}

// Position is where another subscription can go on without loss or repetition. What Trim has read but Next has not returned yet
// is behind it.
func (s *Subscription) Position() Position {
	if len(s.waiting) > 0 || s.missed != nil {
		return s.returned
	}
	return s.at
}

// Next waits for matching events and returns at most limit of them, oldest first: from memory, or from the table if the
// stream is too far behind. missed is set if retention has removed some. Both are empty if idle fires first, or with an error:
// that of ctx, or one of reading, after which Next may be called again. What Trim found missed comes first, then the events
// that Trim has read.
func (s *Subscription) Next(ctx context.Context, idle <-chan time.Time, limit int) (items []*Item, missed *Missed, err error) {
	if missed, s.missed = s.missed, nil; missed != nil {
		return nil, missed, nil
	}
	if n := min(limit, len(s.waiting)); n > 0 {
		items, s.waiting = s.waiting[:n], s.waiting[n:]
		s.returned = items[n-1].Event.Position
		return items, nil, nil
	}
	for {
		read, err := s.step(ctx, limit)
		if err != nil || read.missed != nil || len(read.items) > 0 {
			s.returned = s.at
			return read.items, read.missed, err
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
		if read.missed != nil {
			s.missed = read.missed
		}
		s.waiting = append(s.waiting, read.items...)
		if over := len(s.waiting) - keep; over > 0 {
			if d.Count == 0 {
				d.Oldest = s.waiting[0].Event.Position
			}
			d.Count += over
			d.Newest = s.waiting[over-1].Event.Position
			s.waiting, s.returned = s.waiting[over:], d.Newest
		}
		if len(read.items) == 0 && read.changed != nil {
			break
		}
	}
	if d.Count == 0 {
		return nil, nil
	}
	if s.stream != nil {
		s.stream.counter.dropped.Add(int64(d.Count))
	}
	return &d, nil
}

// batch is what one step read.
type batch struct {
	items   []*Item
	missed  *Missed
	changed <-chan struct{} // set if there was nothing more at the time; closed when another step may return more
}

// step reads once, without waiting. The window is taken before the table is read. Otherwise the feed could begin after the read
// and before the look, and the stream would wait for a change that has already happened.
func (s *Subscription) step(ctx context.Context, limit int) (batch, error) {
	recent := s.feed.after(s.at)
	if recent.restarts != s.restarts {
		s.restarts, s.unchecked = recent.restarts, true
	}
	if recent.complete && !s.unchecked && !s.feed.aged(recent.items) {
		s.caughtUp = true
		s.setReadingTable(false)
		read := batch{changed: recent.changed}
		for _, item := range recent.items {
			s.at = item.Event.Position
			if !s.match.Match(item.Event) {
				continue
			}
			if read.items = append(read.items, item); len(read.items) == limit {
				return read, nil
			}
		}
		// To the end of the window, so that events that did not match are not looked at again.
		if s.at.Before(recent.end) {
			s.at = recent.end
		}
		return read, nil
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

// readTable reads one page of the table, for a stream that is too far behind for memory. A position outside of the limits of
// retention is returned as missed, and the stream goes on behind what was lost.
func (s *Subscription) readTable(ctx context.Context, limit int) (read batch, more bool, err error) {
	q := s.query
	q.After, q.Limit = &s.at, limit
	// So many streams of the node may read at once. The feed's own reads do not count: all streams wait for them.
	select {
	case s.feed.reads <- struct{}{}:
	case <-ctx.Done():
		return batch{}, false, ctx.Err()
	}
	page, err := s.feed.reader.ListAfter(ctx, q)
	<-s.feed.reads
	if expired, ok := errors.AsType[*ExpiredError](err); ok {
		missed := &Missed{Start: s.at, End: expired.Pruned}
		s.at = expired.Pruned
		return batch{missed: missed}, true, nil
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

// StreamCounter counts the streams of one transport of this node, for metrics. Its zero value is ready.
// The transports count connections, subscriptions count what they read and drop. The numbers are read without a lock, so they
// may be of slightly different moments.
type StreamCounter struct {
	open, catchingUp, dropped atomic.Int64
}

// Open counts a connection. Close must be called when it has ended.
func (c *StreamCounter) Open() *Stream {
	c.open.Add(1)
	return &Stream{counter: c}
}

// Connections is the number of open connections.
func (c *StreamCounter) Connections() int64 { return c.open.Load() }

// CatchingUp is how many connections read from the table, because they are too far behind for memory.
func (c *StreamCounter) CatchingUp() int64 { return c.catchingUp.Load() }

// Dropped is how many events were dropped because connections were too slow.
func (c *StreamCounter) Dropped() int64 { return c.dropped.Load() }

// Stream is one connection, which may have several subscriptions.
type Stream struct {
	counter *StreamCounter
	reading atomic.Int32 // subscriptions that read from the table
}

// Close ends the count of the connection. Close its subscriptions first.
func (s *Stream) Close() { s.counter.open.Add(-1) }

// CountIn counts the subscription as part of a connection. Call it before Next.
func (s *Subscription) CountIn(stream *Stream) { s.stream = stream }

// setReadingTable counts a connection as catching up while at least one of its subscriptions reads from the table.
// It is called on every step, so that it must cost nothing when nothing changes.
func (s *Subscription) setReadingTable(now bool) {
	if s.stream == nil || s.readingTable == now {
		return
	}
	s.readingTable = now
	switch {
	case now && s.stream.reading.Add(1) == 1:
		s.stream.counter.catchingUp.Add(1)
	case !now && s.stream.reading.Add(-1) == 0:
		s.stream.counter.catchingUp.Add(-1)
	}
}
