package job

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// ProgressReport is what a worker reports about the job it runs (docs/reference/jobs.md, Progress). It counts as a heartbeat.
// What was not sent stays as it is stored.
type ProgressReport struct {
	JobID    [16]byte
	WorkerID string // "": not sent, so ownership is not checked
	Attempt  int32  // AnyAttempt: not sent
	// A number below the stored one is ignored by the statement, while message and data are stored (docs/reference/jobs.md,
	// Progress).
	Progress   *float64 // 0 to 1; nil: not sent
	Message    *string  // without U+0000; nil: not sent
	Data       []byte   // compact object; nil: not sent
	Checkpoint []byte   // as CheckpointSave.Stored; nil: not sent
}

// Limits of a report, compact.
const (
	// MaxProgressData and MaxCheckpoint bound what is kept in the row of the job.
	MaxProgressData = 65_536
	MaxCheckpoint   = 1_048_576
)

var progressNames = []string{"job_id", "worker_id", "attempt", "progress", "percentage", "message", "data", "checkpoint"}

// DecodeProgressFor reads the body of PUT /jobs/{id}/progress, whose number is a share from 0 to 1.
func DecodeProgressFor(jobID string, raw []byte, lim Limits) (ProgressReport, *ojs.Error) {
	return decodeProgress(jobID, raw, "progress", lim)
}

// DecodeProgress reads the body of POST /workers/progress, whose number is a percentage.
func DecodeProgress(raw []byte, lim Limits) (ProgressReport, *ojs.Error) {
	return decodeProgress("", raw, "percentage", lim)
}

// A report that says nothing (neither number nor data) is refused: a heartbeat is the call for that.
func decodeProgress(jobID string, raw []byte, number string, lim Limits) (ProgressReport, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return ProgressReport{}, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, progressNames)
	r := ProgressReport{WorkerID: b.WorkerID(), Attempt: b.attempt(), Message: b.message()}
	jobID = b.idText(jobID)
	// The two routes differ in the scale and in the name of the number; what is stored is a share.
	scale := 1.0
	if number == "percentage" {
		scale = 100
	}
	r.Progress = b.share(number, scale)
	data := b.object("data", lim)
	// It is stored as the state of a checkpoint, without index and metadata.
	checkpoint := b.object("checkpoint", lim)
	if b.Get(number) == nil && b.Get("data") == nil {
		b.Refuse(number, fmt.Sprintf("a number from 0 to %g, unless data is sent", scale))
	}
	if err := b.Problems.Err(); err != nil {
		return r, err
	}
	if data != nil {
		r.Data = rawjson.Compact(data)
	}
	if checkpoint != nil {
		r.Checkpoint, err = encodeCheckpoint(checkpoint, nil, nil)
	}
	if len(r.Data) > MaxProgressData {
		err = spec.TooLarge("data", MaxProgressData, len(r.Data))
	}
	if err == nil {
		r.JobID, err = ParseID(jobID)
	}
	return r, err
}

// share reads a number and clamps it: beyond float64 is beyond the range, too. A number outside of the range counts as its
// nearer end and is not refused.
func (b *body) share(field string, scale float64) *float64 {
	v := b.Get(field)
	if v == nil {
		return nil
	}
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		b.Refuse(field, fmt.Sprintf("a number from 0 to %g", scale))
		return nil
	}
	n, _ := strconv.ParseFloat(string(v), 64) // it is a JSON number, so the only error is that it became infinite
	switch n /= scale; {
	case n >= 1:
		n = 1
	case n <= 0:
		n = 0 // not -0
	}
	return &n
}

// object reads an optional object.
func (b *body) object(field string, lim Limits) jsontext.Value {
	v := b.Get(field)
	switch {
	case v == nil:
	case v[0] != '{':
		b.Refuse(field, "an object")
	case rawjson.Depth(v) > lim.Depth():
		b.Refuse(field, shallow(lim))
	}
	return v
}

// message reads the optional text for people, cut silently like that of an error. U+0000 goes, because a text column cannot
// hold it.
func (b *body) message() *string {
	v := b.Get("message")
	if v == nil {
		return nil
	}
	text, ok := rawjson.Text(v)
	if !ok {
		b.Refuse("message", "a string")
		return nil
	}
	text = Shorten(strings.ReplaceAll(text, "\x00", ""), maxMessageBytes)
	return &text
}
