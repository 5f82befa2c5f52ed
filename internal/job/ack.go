package job

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// AckRequest is the body of POST /workers/ack (contract 10 §8).
type AckRequest struct {
	JobID    string // as sent; see ojs.ParseID
	WorkerID string
	Attempt  *int64
	Result   []byte // compact JSON; nil: none
}

var ackNames = []string{"job_id", "result", "worker_id", "attempt"}

// DecodeAck reads the body of an ACK.
func DecodeAck(raw []byte, lim Limits) (AckRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return AckRequest{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckItem is DecodeAck for an element that SplitBatch gave.
func DecodeAckItem(item jsontext.Value, lim Limits) (AckRequest, *ojs.Error) {
	v, err := payload.Object(item, "ack")
	if err != nil {
		return AckRequest{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckFor reads the optional body of POST /jobs/{id}/ack; the id comes from the path.
func DecodeAckFor(jobID string, raw []byte, lim Limits) (AckRequest, *ojs.Error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return AckRequest{JobID: jobID}, nil
	}
	v, err := rawjson.Check(raw)
	if err != nil {
		return AckRequest{}, err
	}
	return decodeAck(v, jobID, lim)
}

func decodeAck(v jsontext.Value, jobID string, lim Limits) (AckRequest, *ojs.Error) {
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, ackNames)
	r := AckRequest{JobID: jobID, WorkerID: b.WorkerID(), Attempt: b.Attempt()}
	if jobID == "" {
		r.JobID = b.JobID()
	}
	result := b.Get("result")
	if result == nil {
		result = payload.Find(v, "result") // null is a result, too (contract 20 §12.1)
	}
	if rawjson.Depth(result) > lim.Depth() {
		b.Refuse("result", shallow(lim))
	}
	if err := b.Problems.Err(); err != nil || result == nil {
		return r, err
	}
	r.Result = rawjson.Compact(result)
	if len(r.Result) > lim.resultBytes() {
		return r, ojs.ErrTooLarge("result", lim.resultBytes(), len(r.Result))
	}
	return r, nil
}
