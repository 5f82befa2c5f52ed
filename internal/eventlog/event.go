// Package eventlog owns the event log after an event has been written: the relay that publishes it, the LISTEN connection,
// the readers, the feed of the streams, and the partitions of the log with their retention.
//
// It must never change a job: state changes write their events themselves, in their own transaction. Only the relay moves
// the watermark and moves late rows.
//
// Numbers (ojs.events.seq) are drawn when a row is inserted, so commits become visible out of order, and a reader that
// remembers the highest number it has read would lose rows. Therefore readers stop at one watermark: the rows up to it are
// published, complete, and never change their place. See [Relay] for the numbers that are missing.
package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/ojs"
)

// Event is one published row of the log. SQL makes its texts, with the functions that also make notifications, so that all
// transports show the same bytes. Texts are made from the row at each read and not stored, so an event shows the service name
// that is configured now.
type Event struct {
	Position   Position
	Type       string
	Internal   bool // no event of the interface: for state frames and histories only (docs/reference/events.md, Transitions)
	Time       time.Time
	JobID      *[16]byte
	WorkflowID *[16]byte
	JobType    string
	Queue      string
	WorkerID   string
	Attempt    *int32
	Tenant     string // to which belongs what it is about; "": none
	From, To   string // job states, on the one row of a transition that carries them
	DurationMS *int64 // run time, for job.started the time waited in the queue

	Head   string // {"specversion":… up to subject, without the closing brace
	Compat string // the flat members, each with a leading comma
	Data   string // the payload
}

// ID is the public id.
func (e *Event) ID() string { return e.Position.String() }

const (
	// MaxPayload caps the payload of an event, in bytes. Writers reduce what is larger before they write the row
	// (docs/reference/events.md, Size of data). A notification has less room: above 8 000 bytes SQL notifies a short form.
	MaxPayload = 24_576

	// PayloadRoom is the part of MaxPayload that is reserved for the members that come from columns.
	PayloadRoom = 1024
)

// WorkerSource is the source of the events that a worker's call writes, without the service name. The id is escaped as one path
// segment, because clients choose it and it may contain a slash. Everything but unreserved characters is escaped, as in
// ojs.worker_source, which names the worker if the call did not: url.PathEscape leaves : and @, so that one worker had two sources.
func WorkerSource(workerID string) string {
	if workerID == "" {
		return "workers/anonymous"
	}
	b := []byte("workers/")
	for i := range len(workerID) {
		c := workerID[i]
		// What RFC 3986 lets a URI always have as it is.
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02X", c)
		}
	}
	return string(b)
}

const (
	// typeAt is where the type begins in Head. ojs.event_head writes the members in this order with an id of fixed length; a
	// change of either breaks the CloudEvents form.
	typeAt          = len(`{"specversion":"1.0","id":"","type":"`) + idLength
	cloudTypePrefix = "org.openjobspec."
)

// Append appends the event as one JSON object: with the compatibility members, plain, or in CloudEvents form, which has
// none (docs/reference/events.md, Envelope).
func (e *Event) Append(b []byte, withCompat, cloudEvents bool) []byte {
	if cloudEvents {
		b = append(b, e.Head[:typeAt]...)
		b = append(b, cloudTypePrefix...)
		b = append(b, e.Head[typeAt:]...)
		b = append(b, `,"datacontenttype":"application/json"`...)
	} else {
		b = append(b, e.Head...)
		if withCompat {
			b = append(b, e.Compat...)
			b = e.appendProgress(b)
		}
	}
	b = append(b, `,"data":`...)
	b = append(b, e.Data...)
	return append(b, '}')
}

// appendProgress appends the two flat members that a notification does not have. They are not in Compat, because SQL makes that
// text for notifications too. A payload that cannot be read leaves them out: the event itself is still shown.
func (e *Event) appendProgress(b []byte) []byte {
	if e.Type != ojs.EventJobProgress {
		return b
	}
	var data struct {
		Percent json.Number     `json:"progress_percent"`
		Message json.RawMessage `json:"progress_message"`
	}
	if err := json.Unmarshal([]byte(e.Data), &data); err != nil {
		return b
	}
	if percent, err := data.Percent.Float64(); err == nil {
		b = append(b, `,"progress":`...)
		b = strconv.AppendInt(b, int64(percent), 10) // 0–100; the conversion rounds down
	}
	if len(data.Message) > 0 && !bytes.Equal(data.Message, []byte("null")) {
		b = append(b, `,"message":`...)
		b = append(b, data.Message...)
	}
	return b
}

// Subject is the subject as clients see it. It is read from the text, because the view that readers use has no such column.
// Only filters by subject need it.
func (e *Event) Subject() (subject string) {
	for literal, value := range jsonread.Members([]byte(e.Head + "}")) {
		if string(jsonread.Name(literal)) == "subject" {
			subject, _ = jsonread.Text(value)
		}
	}
	return subject
}

// Source is the source as clients see it, ojs://{service}/….
func (e *Event) Source() string {
	_, rest, found := strings.Cut(e.Head, `,"source":"`)
	if !found {
		return ""
	}
	source, _, _ := strings.Cut(rest, `"`) // a URI has no quotes
	return source
}

// Transition is one entry of a job's history. From and To are empty on entries that change no state. Data is the payload as
// JSON text.
type Transition struct {
	ID       string
	Type     string
	From, To string
	Time     time.Time
	Data     string
}

func eventOf(r dbsqlc.OjsEventShown) Event {
	e := Event{
		Position: NewPosition(r.Time.Time, r.Seq, r.Sub),
		Type:     r.Type, Internal: r.Internal, Time: r.Time.Time.UTC(),
		JobType: r.JobType.String, Queue: r.Queue.String, WorkerID: r.WorkerID.String,
		From: r.FromState.String, To: r.ToState.String,
		Head: r.Head, Compat: r.Compat, Data: r.Data, Tenant: job.TenantOf(r.Lane),
	}
	if r.JobID.Valid {
		e.JobID = &r.JobID.Bytes
	}
	if r.WorkflowID.Valid {
		e.WorkflowID = &r.WorkflowID.Bytes
	}
	if r.Attempt.Valid {
		e.Attempt = &r.Attempt.Int32
	}
	if r.DurationMs.Valid {
		e.DurationMS = &r.DurationMs.Int64
	}
	return e
}

// ErrNotPosition is returned by ParsePosition for a text that is not an event id.
var ErrNotPosition = errors.New("not an event id")

const (
	idPrefix = "evt_"
	idLength = len(idPrefix) + 36
	// maxSub is the last place behind a number. When it is taken, the relay moves to the next number (publication.publishLate).
	maxSub = 1<<16 - 1
)

// Position is the place of an event in the log, with the event's time, as its id encodes it: a UUIDv7 of the time whose
// low 62 bits are seq (46) and sub (16). The zero value is before everything. Order is that of Seq and Sub alone. Two positions
// of one place may differ in their time: those that are made for the end of a page or of the log have the time of a neighbour
// or of now, and compare as equal through Before, not through ==.
type Position struct {
	Seq int64 // number of the row
	Sub int32 // > 0: committed late and placed behind the row (Seq, 0)

	stamp uint64 // the upper half of the UUID: 48 bits ms, version, 12 bits fraction of a ms
}

// NewPosition is the position of the event with that time, number and sub-number. Its String equals ojs.event_id in SQL.
func NewPosition(t time.Time, seq int64, sub int32) Position {
	us := t.UnixMicro()
	return Position{Seq: seq, Sub: sub, stamp: uint64(us/1000)<<16 | 0x7000 | uint64(us%1000*4096/1000)}
}

// placeOf is the position with a place, as SQL writes one. Its time is not that of an event.
func placeOf(place int64, t time.Time) Position {
	return NewPosition(t, place>>16, int32(place&maxSub))
}

// place is the position as SQL writes one. Seq has 46 bits in an id, so the shift cannot overflow.
func (p Position) place() int64 { return p.Seq<<16 | int64(p.Sub) }

// ParsePosition reads an event id. Any well-formed id is a position, whether an event has it or not
// (docs/reference/events.md, Event errors). It checks the form only; no statement is needed to refuse a malformed cursor.
func ParsePosition(id string) (Position, error) {
	if len(id) != idLength || id[:len(idPrefix)] != idPrefix {
		return Position{}, ErrNotPosition
	}
	var digits [32]byte
	n := 0
	for i := range 36 {
		c := id[len(idPrefix)+i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return Position{}, ErrNotPosition
			}
			continue
		}
		if c >= 'A' && c <= 'F' {
			return Position{}, ErrNotPosition // ids are compared as text
		}
		digits[n] = c
		n++
	}
	var uuid [16]byte
	if _, err := hex.Decode(uuid[:], digits[:]); err != nil || uuid[6]>>4 != 7 || uuid[8]>>6 != 2 {
		return Position{}, ErrNotPosition
	}
	low := binary.BigEndian.Uint64(uuid[8:]) & (1<<62 - 1)
	return Position{Seq: int64(low >> 16), Sub: int32(low & maxSub), stamp: binary.BigEndian.Uint64(uuid[:8])}, nil
}

// String is the public id.
func (p Position) String() string {
	return string(p.Append(make([]byte, 0, idLength)))
}

// Append appends the public id to b.
func (p Position) Append(b []byte) []byte {
	var uuid [16]byte
	binary.BigEndian.PutUint64(uuid[:8], p.stamp)
	binary.BigEndian.PutUint64(uuid[8:], 1<<63|uint64(p.Seq)<<16|uint64(p.Sub))
	b = append(b, idPrefix...)
	start := 0
	for _, end := range [...]int{4, 6, 8, 10, 16} {
		if start > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, uuid[start:end])
		start = end
	}
	return b
}

// Time is the event's time. It is exact to the microsecond for ids that NewPosition made. EventListAfter compares it with the
// limit of the age, to tell cheaply whether a cursor may have expired.
func (p Position) Time() time.Time {
	fraction := int64(p.stamp & 0xfff)
	return time.UnixMilli(int64(p.stamp >> 16)).Add(time.Duration((fraction*1000+4095)/4096) * time.Microsecond).UTC()
}

// Before reports whether p is published before q.
func (p Position) Before(q Position) bool {
	return p.Seq < q.Seq || p.Seq == q.Seq && p.Sub < q.Sub
}

// IsZero reports whether p is the beginning of the log, before every event.
func (p Position) IsZero() bool { return p == Position{} }

// Change is one event row that this node has committed, for metrics, traces and logs. Rows written from SQL (ojs.enqueue,
// ojs.cancel) are never among them. A change is emitted at most once, after its commit. If the node stops between the two, its
// log line, span and count are missing; the event row itself is not lost.
type Change struct {
	Type string // of the event: ojs.EventJobCompleted, …; StateChanged for an internal row

	Subject  string   // worker id or cron name; "": the subject is the job
	JobID    [16]byte // zero for events of workers and crons
	JobType  string
	Queue    string
	Attempt  int32
	WorkerID string // the worker that runs or ran the job

	// A transition with two public events (job.failed and job.retrying, say) carries its states on one of them only
	// (docs/reference/events.md, Transitions).
	From, To string    // states; "": the row has none
	At       time.Time // by the database's clock; zero for crons

	// Took is how long the attempt ran (job.completed, job.failed) or the job waited (job.started); see Milliseconds.
	Took  time.Duration
	Timed bool // Took is known

	// Started is when an attempt began that ended without success or failure (requeue). Such an attempt has no Took.
	Started time.Time

	// Reason says why the server made the change by itself: visibility_timeout, worker_death, timeout, stalled, total_timeout,
	// expired, enqueue_ttl_expired. Changes of type StateChanged always have one; theirs may also be requeue, retry, moved, deleted, purged
	// or retention.
	Reason string

	// Error is the worker's error, for job.failed and the events that follow from it. It must not be modified.
	Error *job.WorkerError

	// Job is the whole job as it is after the change, or nil where the statement does not return it (heartbeat, progress,
	// promotion, bulk retry, removal). It must not be modified.
	Job *job.Record
}

// StateChanged is the type of internal rows about changes of a job's state that have no public event.
const StateChanged = "job.state_changed"

// PriorityChanged is the type of internal rows about a job that has got another priority. Its state stays the same.
// They carry ready_seq, so that the relay tells other nodes to look for the job again.
const PriorityChanged = "priority.changed"

// Admitted is the type of internal rows about a job that its rate limit lets start. They carry ready_seq, too.
const Admitted = "job.admitted"

// InternalTypes are the types of rows that are no public events.
var InternalTypes = []string{StateChanged, PriorityChanged, Admitted}

// Milliseconds is Took as the event row has it, to the last bit: it computes as PostgreSQL does for
// (date_part('epoch', b - a) * 1000)::bigint.
func (c Change) Milliseconds() int64 {
	const day = 24 * time.Hour
	days := c.Took / day
	seconds := float64((c.Took-days*day).Microseconds())/1e6 + float64(days)*86400
	return int64(math.RoundToEven(seconds * 1000))
}

// CommitsConfig says who is told of the commits of a process. The zero value tells nobody.
type CommitsConfig struct {
	// Node is the number of the process. 0: NewNode draws one.
	Node int32

	// Events says which event jobs write that become available again.
	Events config.Events

	// Changes get the events of each commit in their order, one after the other. They run on the goroutine that committed, before any
	// caller gets its answer, so they must not block. ctx belongs to the flush, which may serve many callers.
	Changes []func(ctx context.Context, changes []Change)

	// Committed are called after each commit that wrote events, behind Changes. They must not block. They get no events, only the fact;
	// the loops behind them read the database.
	Committed []func()
}

// Commits is the bus of what this node has committed. The domains emit the event rows of each commit to it, for logs, traces
// and metrics, and for the loops that must run sooner after a commit.
type Commits struct {
	// Node marks the event rows of this process, so that it does not wake its own fetchers twice (NewNode). Rows written by applications in
	// SQL have no node. A node also finds by this number what it has written, when a connection broke before the answer to a write
	// (EventListOwnByJob).
	Node int32

	// RequeueEvent is the type of the event for jobs that become available again: StateChanged, or the public job.enqueued.
	// (docs/reference/events.md, Transitions)
	RequeueEvent string

	changes   []func(ctx context.Context, changes []Change)
	committed []func()
}

// NewNode draws the number of a process, from 1 to 2³¹−1: a node that restarts counts as another one.
func NewNode() int32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(1, int32(binary.BigEndian.Uint32(b[:])&0x7fffffff))
}

// NewCommits returns a bus for one process.
func NewCommits(c CommitsConfig) *Commits {
	commits := &Commits{Node: cmp.Or(c.Node, NewNode()), RequeueEvent: StateChanged, changes: c.Changes, committed: c.Committed}
	if c.Events.EnqueuedOnRequeue {
		commits.RequeueEvent = ojs.EventJobEnqueued
	}
	return commits
}

// Committed calls the functions of CommitsConfig.Committed; a domain calls it after a commit that wrote events. It comes after Emit and
// after the commit, never before it: the relay is among those that it wakes, and a pass that starts before the commit is visible
// would publish nothing and not be repeated until the next wake-up or poll.
func (c *Commits) Committed() {
	for _, f := range c.committed {
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
