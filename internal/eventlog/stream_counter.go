package eventlog

import "sync/atomic"

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

// A nil stream is one that nobody counts.
func (s *Stream) countDropped(n int) {
	if s != nil {
		s.counter.dropped.Add(int64(n))
	}
}

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
