package job

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Ack reports that a job succeeded (docs/reference/http.md, Ack).
type Ack struct {
	JobID    [16]byte
	WorkerID string // "": not sent, so ownership is not checked
	Attempt  int32  // AnyAttempt: not sent
	Result   []byte // compact JSON; nil: none
}

var ackNames = []string{"job_id", "result", "worker_id", "attempt"}

// DecodeAck reads the body of an ACK.
func DecodeAck(raw []byte, lim Limits) (Ack, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckItem is DecodeAck for an element that SplitBatch gave.
func DecodeAckItem(item jsontext.Value, lim Limits) (Ack, *ojs.Error) {
	v, err := payload.Object(item, "ack")
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckFor reads the optional body of POST /jobs/{id}/ack; the id comes from the path.
func DecodeAckFor(jobID string, raw []byte, lim Limits) (Ack, *ojs.Error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		id, err := ParseID(jobID)
		return Ack{JobID: id, Attempt: AnyAttempt}, err
	}
	v, err := rawjson.Check(raw)
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, jobID, lim)
}

func decodeAck(v jsontext.Value, jobID string, lim Limits) (Ack, *ojs.Error) {
	b := body{}
	b.Fields, _ = payload.Read(v, ackNames)
	r := Ack{WorkerID: b.WorkerID(), Attempt: b.attempt()}
	jobID = b.idText(jobID)
	result := b.Get("result")
	if result == nil {
		result = payload.Find(v, "result") // null is a result, too
	}
	err := finishAck(&r, jobID, result, lim, b.Problems)
	return r, err
}

// NewAck is DecodeAck for values that a transport has read; result is JSON, nil for none.
func NewAck(jobID string, result []byte, lim Limits) (Ack, *ojs.Error) {
	r := Ack{Attempt: AnyAttempt}
	var ps payload.Problems
	payload.CheckJobID(jobID, &ps)
	err := finishAck(&r, jobID, result, lim, ps)
	return r, err
}

// finishAck takes over the result, and last the id: what is wrong with a body is reported before a job that does not exist.
func finishAck(r *Ack, jobID string, result jsontext.Value, lim Limits, ps payload.Problems) *ojs.Error {
	if rawjson.Depth(result) > lim.Depth() {
		ps.Add(ojs.KindInvalidPayload, "result", "$.result", shallow(lim), result)
	}
	err := ps.Err()
	if err != nil {
		return err
	}
	if result != nil {
		r.Result = rawjson.Compact(result)
		if len(r.Result) > lim.Result() {
			return ojs.ErrTooLarge("result", lim.Result(), len(r.Result))
		}
	}
	r.JobID, err = ParseID(jobID)
	return err
}
