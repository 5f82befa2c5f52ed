package eventlog

import (
	"context"
	"crypto/rand"
	"encoding/binary"
)

// Commits is the bus of what this node has committed. The domains emit the event rows of each commit to it. Logs, traces
// and metrics, and the loops that must run sooner after a commit, subscribe before the node starts.
type Commits struct {
	// Node marks the event rows of this process, so that it does not wake its own fetchers twice. Drawn at random when the
	// process starts, from 1 to 2³¹−1: a node that restarts counts as another one. Rows written by applications in SQL have no
	// node. A node also finds by this number what it has written, when a connection broke before the answer to a write
	// (EventListOwnByJob).
	Node int32

	// RequeueEvent is the type of the event for jobs that become available again: StateChanged, or the public job.enqueued.
	// It is chosen once, in package app, before the node starts (docs/reference/events.md, Transitions).
	RequeueEvent string

	// Both lists are filled before the node starts and only read afterwards, so no lock guards them.
	changes []func(ctx context.Context, changes []Change)
	wake    []func()
}

// NewCommits returns a bus for one process.
func NewCommits() *Commits {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return &Commits{RequeueEvent: StateChanged, Node: max(1, int32(binary.BigEndian.Uint32(b[:])&0x7fffffff))}
}

// OnChanges adds a subscriber. It gets the events of each commit in their order. It runs on the goroutine that committed,
// before any caller gets its answer, so it must not block. ctx belongs to the flush, which may serve many callers.
func (c *Commits) OnChanges(f func(ctx context.Context, changes []Change)) {
	c.changes = append(c.changes, f)
}

// OnCommit adds a function that is called after each commit that wrote events. It must not block. It gets no events, only the
// fact; the loops behind it read the database.
func (c *Commits) OnCommit(f func()) { c.wake = append(c.wake, f) }

// Committed calls the functions of OnCommit; a domain calls it after a commit that wrote events. It comes after Emit and after
// the commit, never before it: the relay is among those that it wakes, and a pass that starts before the commit is visible
// would publish nothing and not be repeated until the next wake-up or poll.
func (c *Commits) Committed() {
	for _, f := range c.wake {
		f()
	}
}

// Emit passes the changes that of appends for each row to the subscribers. Without subscribers it makes none.
// Rows are those that a statement returned; call it after their commit, because a subscriber counts and logs what it gets.
func Emit[Row any](ctx context.Context, c *Commits, rows []Row, of func(changes []Change, row *Row) []Change) {
	if len(rows) == 0 || len(c.changes) == 0 {
		return
	}
	changes := make([]Change, 0, len(rows))
	for i := range rows {
		changes = of(changes, &rows[i])
	}
	if len(changes) == 0 {
		return
	}
	for _, f := range c.changes {
		f(ctx, changes)
	}
}

// Emitting reports whether changes have a subscriber. Callers ask before they compute what only subscribers need.
func (c *Commits) Emitting() bool { return len(c.changes) > 0 }
