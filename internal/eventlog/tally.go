package eventlog

import "sync/atomic"

// Tally counts the streams of one transport of this node, for metrics. Its zero value is ready.
type Tally struct {
	open, catchingUp, lost atomic.Int64
}

// Open counts a connection in. Close must be called when it has ended.
func (t *Tally) Open() *Stream {
	t.open.Add(1)
	return &Stream{tally: t}
}

// Connections is the number of open ones.
func (t *Tally) Connections() int64 { return t.open.Load() }

// CatchingUp is how many of them read from the table, because they are too far behind for memory.
func (t *Tally) CatchingUp() int64 { return t.catchingUp.Load() }

// Dropped is how many events connections have passed over because they were too slow.
func (t *Tally) Dropped() int64 { return t.lost.Load() }

// Stream is one connection, which may have several subscriptions.
type Stream struct {
	tally   *Tally
	reading atomic.Int32 // subscriptions that read from the table
}

// Close counts the connection out, after its subscriptions.
func (s *Stream) Close() { s.tally.open.Add(-1) }

func (s *Stream) dropped(n int) {
	if s != nil {
		s.tally.lost.Add(int64(n))
	}
}

// CountIn has the subscription counted with its connection. Call it before Next.
func (s *Subscription) CountIn(stream *Stream) { s.stream = stream }

// fromTable notes whether the subscription reads from the table.
func (s *Subscription) fromTable(now bool) {
	if s.stream == nil || s.reading == now {
		return
	}
	s.reading = now
	switch {
	case now && s.stream.reading.Add(1) == 1:
		s.stream.tally.catchingUp.Add(1)
	case !now && s.stream.reading.Add(-1) == 0:
		s.stream.tally.catchingUp.Add(-1)
	}
}
