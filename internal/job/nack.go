package job

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Nack reports that a job failed, or hands it back (docs/reference/http.md, Nack). Whether a retry follows is decided from the
// job as it is when the nack is applied, by package retry.
type Nack struct {
	JobID    [16]byte
	WorkerID string // "": not sent, so ownership is not checked
	Attempt  int32  // AnyAttempt: not sent
	Requeue  bool   // hand the job back; Error is then empty
	// The job is scheduled meanwhile, and no worker gets it, whatever its priority.
	Delay time.Duration // with Requeue: the job is not fetched for that long
	Error WorkerError
}

var nackNames = []string{"job_id", "error", "worker_id", "attempt", "requeue", "delay_ms"}

// DecodeNack reads the body of a NACK. What the error says is never refused, because a refusal would strand the job.
// It would stay active until its reservation ends, and then run again although its handler has already failed for good.
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
// what serverless adapters send. An error as a text always asks for a retry, since it has no place for a flag.
func DecodeNackFor(jobID string, raw []byte, lim Limits) (Nack, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, jobID, lim)
}

// A delay without requeue is refused, because the worker would wait for something that does not happen.
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
	// An error beside requeue is ignored (docs/reference/http.md, Nack).
	case r.Requeue:
	// Only on the route with the id in its path: elsewhere an error that is no object is a mistake of the client.
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

// ErrorDraft is the error of a worker that a transport has read. Retryable counts as sent, also if it is false.
type ErrorDraft struct {
	Code, Message string
	Retryable     bool
	Backtrace     string // a frame per line
	Details       []byte // JSON; nil: none
}

// NewNack is DecodeNack for values that a transport has read; failure is nil if it was not sent. gRPC cannot hand a job back,
// so it always reports a failure.
func NewNack(jobID string, failure *ErrorDraft, lim Limits) (Nack, *ojs.Error) {
	r := Nack{Attempt: AnyAttempt}
	var ps payload.Problems
	payload.CheckJobID(jobID, &ps)
	if failure == nil {
		ps.Add(ojs.ErrInvalidPayload, "error", "$.error", "an object with code and message", nil)
	} else {
		r.Error = failure.workerError(lim)
	}
	err := ps.Err()
	if err == nil {
		r.JobID, err = ParseID(jobID)
	}
	return r, err
}

// Nothing in it is refused either: what is too long is cut by the same rules as JSON.
func (f *ErrorDraft) workerError(lim Limits) WorkerError {
	e := WorkerError{Code: cutLabel(f.Code), Message: Shorten(f.Message, maxMessageBytes), Retryable: f.Retryable, RetryableSet: true}
	if f.Backtrace != "" {
		e.Backtrace = splitFrames(f.Backtrace)
	}
	e.setDetails(f.Details, lim)
	e.complete("")
	return e
}
