package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"sort"
	"sync"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/util/serviceutil"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/service"
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

	// MaxAge and MaxCount are the limits of retention, which hold for events in memory too. 0: none. The reader applies them to
	// the table by itself; here they only tell which events in memory need a look at the table first.
	MaxAge   time.Duration
	MaxCount int64
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
	start       Position // exclusive
	end         Position // how far the log has been read
	recent      []*Item  // never changed in place: readers keep slices of it
	bytes       int
	// A channel and not a condition, because a stream also waits for its context and its keep-alive timer.
	changed chan struct{} // closed when a field above has changed
}

// NewFeed returns a feed; Start it, and Wake it when events were published.
func NewFeed(archetype *baseservice.Archetype, reader *Reader, config FeedConfig) *Feed {
	if config.MaxEvents == 0 {
		config.MaxEvents = 8192
	}
	if config.MaxBytes == 0 {
		config.MaxBytes = 64 << 20
	}
	if config.MaxReads == 0 {
		config.MaxReads = 4
	}
	return baseservice.Init(archetype, &Feed{
		config: config, reader: reader, wake: make(chan struct{}, 1), reads: make(chan struct{}, config.MaxReads), changed: make(chan struct{}),
	})
}

// Wake reads the log soon, because events were published. It does not block, and costs nothing without subscribers.
func (f *Feed) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Start follows the log until stopped.
func (f *Feed) Start(ctx context.Context) error {
	service.Run(ctx, &f.BaseStartStop, f.run)
	return nil
}

// The pause after a read collects the events of more passes into one round of frames. A failed read is tried again without a
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
		page, err := f.listAfter(ctx, Query{After: &end, Internal: true, Limit: feedPage})
		if _, ok := errors.AsType[*ExpiredError](err); ok {
			f.stopFollowing() // the process was suspended for longer than retention keeps events
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

func (f *Feed) listAfter(ctx context.Context, q Query) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return f.reader.listAfter(ctx, q)
}

// acquireRead waits until a stream may read the table. Call release after the read. The feed's own reads do not count: all
// streams wait for them.
func (f *Feed) acquireRead(ctx context.Context) (release func(), err error) {
	select {
	case f.reads <- struct{}{}:
		return func() { <-f.reads }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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

// stopFollowing drops what is in memory. The next read begins at the end of the log, and streams that are behind it read the table.
// It does not wake the streams: the next run does so, when it starts again at the end of the log.
func (f *Feed) stopFollowing() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.following, f.recent, f.bytes = false, nil, 0
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
}

// after returns what is in memory behind a position. The slice has no spare capacity, so that an append to it cannot write into recent.
// An incomplete window has no items: the stream must read the table first.
func (f *Feed) after(at Position) window {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.following || at.Before(f.start) {
		return window{changed: f.changed}
	}
	from := sort.Search(len(f.recent), func(i int) bool { return at.Before(f.recent[i].Event.Position) })
	return window{complete: true, items: f.recent[from:len(f.recent):len(f.recent)], end: f.end, changed: f.changed}
}

// aged reports whether some of the events may be outside of the limits of retention by now, because a stream reads slowly.
// It compares the time of the oldest item and the number of items, gap rows included, so it may send a stream to the table a
// little too early. That costs one read.
func (f *Feed) aged(items []*Item) bool {
	return len(items) > 0 && (f.config.MaxAge > 0 && clock.Now().Sub(items[0].Event.Time) >= f.config.MaxAge ||
		f.config.MaxCount > 0 && int64(len(items)) > f.config.MaxCount)
}

// join wakes the feed for the first subscriber. Later ones need no wake-up: the feed follows the log already, or is about to.
func (f *Feed) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribers++
	if f.subscribers == 1 {
		f.Wake()
	}
}

// leave drops what is in memory with the last subscriber: nothing keeps it up to date any more.
func (f *Feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subscribers--; f.subscribers == 0 {
		f.following, f.recent, f.bytes = false, nil, 0
	}
}

// Subscribers is the number of open subscriptions. The relay asks it before each pass: while somebody reads the log, passes
// come sooner (Relay.SetReaders).
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
