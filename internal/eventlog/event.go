package eventlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Event is one published row of the log. SQL makes its texts, with the functions that also make notifications, so that all
// transports show the same bytes. Texts are made from the row at each read and not stored, so an event shows the service name
// that is configured now.
type Event struct {
	Position   Position
	Type       string
	Internal   bool // a gap row: for state frames and histories only (docs/reference/events.md, Transitions)
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
		if c := workerID[i]; unreserved(c) {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02X", c)
		}
	}
	return string(b)
}

// unreserved reports whether RFC 3986 lets a character of a URI always stand as it is.
func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
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
	for literal, value := range rawjson.Members([]byte(e.Head + "}")) {
		if string(rawjson.Name(literal)) == "subject" {
			subject, _ = rawjson.Text(value)
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
