package eventlog

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Event is one published row of the log. SQL makes its texts, with the functions that also make notifications, so that all
// transports show the same bytes.
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
	// MaxPayload caps the payload of an event, in bytes.
	MaxPayload = 24_576

	// PayloadRoom is the part of MaxPayload that is reserved for the members that come from columns.
	PayloadRoom = 1024
)

// WorkerSource is the source of the events that a worker's call writes, without the service name.
func WorkerSource(workerID string) string {
	if workerID == "" {
		return "workers/anonymous"
	}
	return "workers/" + url.PathEscape(workerID)
}

const (
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

// appendProgress appends the two flat members that a notification does not have.
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

// Subject is the subject as clients see it.
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

// Transition is one entry of a job's history.
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
