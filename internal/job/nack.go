package job

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Nack reports that a job failed, or hands it back (docs/reference/http.md, Nack).
type Nack struct {
	JobID    [16]byte
	WorkerID string        // "": not sent, so ownership is not checked
	Attempt  int32         // AnyAttempt: not sent
	Requeue  bool          // hand the job back; Error is then empty
	Delay    time.Duration // with Requeue: the job is not fetched for that long
	Error    WorkerError
}

var nackNames = []string{"job_id", "error", "worker_id", "attempt", "requeue", "delay_ms"}

// DecodeNack reads the body of a NACK. What the error says is never refused, because a refusal would strand the job.
func DecodeNack(raw []byte, lim Limits) (Nack, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, "", lim)
}

// DecodeNackItem is DecodeNack for an element that SplitBatch gave.
func DecodeNackItem(item jsontext.Value, lim Limits) (Nack, *ojs.Error) {
	v, err := payload.Object(item, "nack")
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, "", lim)
}

// DecodeNackFor reads the body of POST /jobs/{id}/nack. The id comes from the path, and error may be a text, which is
// what serverless adapters send.
func DecodeNackFor(jobID string, raw []byte, lim Limits) (Nack, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, jobID, lim)
}

func decodeNack(v jsontext.Value, jobID string, lim Limits) (Nack, *ojs.Error) {
	b := body{}
	b.Fields, _ = payload.Read(v, nackNames)
	r := Nack{WorkerID: b.WorkerID(), Attempt: b.attempt(), Requeue: b.Boolean("requeue")}
	id := b.idText(jobID)
	failure := b.Get("error")
	if ms, _ := b.Integer("delay_ms", 0, maxMS, "an integer >= 0 of milliseconds, at most 36500 days"); ms > 0 {
		r.Delay = time.Duration(ms) * time.Millisecond
		if !r.Requeue {
			b.Refuse("delay_ms", "absent or 0 without requeue: the retry policy chooses the delay")
		}
	}
	text, isText := rawjson.Text(failure)
	switch {
	case r.Requeue:
	case isText && jobID != "":
		r.Error = WorkerError{Message: Shorten(text, maxMessageBytes), Retryable: true}
		r.Error.complete("")
	case failure == nil || failure[0] != '{':
		b.Refuse("error", "an object with code and message")
	default:
		r.Error = decodeWorkerError(failure, lim)
	}
	err := b.Problems.Err()
	if err == nil {
		r.JobID, err = ParseID(id)
	}
	return r, err
}

// ErrorDraft is the error of a worker that a transport has read.
type ErrorDraft struct {
	Code, Message string
	Retryable     bool
	Backtrace     string // a frame per line
	Details       []byte // JSON; nil: none
}

// NewNack is DecodeNack for values that a transport has read; failure is nil if it was not sent.
func NewNack(jobID string, failure *ErrorDraft, lim Limits) (Nack, *ojs.Error) {
	r := Nack{Attempt: AnyAttempt}
	var ps payload.Problems
	payload.CheckJobID(jobID, &ps)
	if failure == nil {
		ps.Add(ojs.KindInvalidPayload, "error", "$.error", "an object with code and message", nil)
	} else {
		r.Error = failure.workerError(lim)
	}
	err := ps.Err()
	if err == nil {
		r.JobID, err = ParseID(jobID)
	}
	return r, err
}

func (f *ErrorDraft) workerError(lim Limits) WorkerError {
	e := WorkerError{Code: cutLabel(f.Code), Message: Shorten(f.Message, maxMessageBytes), Retryable: f.Retryable, RetryableSet: true}
	if f.Backtrace != "" {
		e.Backtrace = splitFrames(f.Backtrace)
	}
	e.setDetails(f.Details, lim)
	e.complete("")
	return e
}
