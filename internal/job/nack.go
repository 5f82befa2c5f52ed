package job

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// NackRequest is the body of POST /workers/nack (contract 10 §9).
type NackRequest struct {
	JobID    string // as sent; see ojs.ParseID
	WorkerID string
	Attempt  *int64
	Requeue  bool // hand the job back; Error is then empty
	Error    WorkerError
}

var nackNames = []string{"job_id", "error", "worker_id", "attempt", "requeue"}

// DecodeNack reads the body of a NACK. What the error says is never refused, because a refusal would strand the job.
func DecodeNack(raw []byte, lim Limits) (NackRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return NackRequest{}, err
	}
	return decodeNack(v, "", lim)
}

// DecodeNackItem is DecodeNack for an element that SplitBatch gave.
func DecodeNackItem(item jsontext.Value, lim Limits) (NackRequest, *ojs.Error) {
	v, err := payload.Object(item, "nack")
	if err != nil {
		return NackRequest{}, err
	}
	return decodeNack(v, "", lim)
}

// DecodeNackFor reads the body of POST /jobs/{id}/nack. The id comes from the path, and error may be a text, which is
// what serverless adapters send (contract 20 §3.2).
func DecodeNackFor(jobID string, raw []byte, lim Limits) (NackRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return NackRequest{}, err
	}
	return decodeNack(v, jobID, lim)
}

func decodeNack(v jsontext.Value, jobID string, lim Limits) (NackRequest, *ojs.Error) {
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, nackNames)
	r := NackRequest{JobID: jobID, WorkerID: b.WorkerID(), Attempt: b.Attempt(), Requeue: b.Boolean("requeue")}
	if jobID == "" {
		r.JobID = b.JobID()
	}
	failure := b.Get("error")
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
	return r, b.Problems.Err()
}
