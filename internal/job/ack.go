package job

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Ack reports that a job succeeded (docs/reference/http.md, Ack). It is the request as sent. Whether the job exists, is active
// and belongs to the worker is for the statement to find out, in the same moment in which it completes the job.
type Ack struct {
	JobID [16]byte
	// WorkerID and Attempt fence the ack. With both, an ack that is repeated, or that arrives late, never ends another run of
	// the job. A job that was fetched without a name has no owner, so any name fits it.
	WorkerID string // "": not sent, so ownership is not checked
	Attempt  int32  // AnyAttempt: not sent
	Result   []byte // compact JSON; nil: none
}

// ackNames are the members that are read. Others are ignored, as in all calls of workers: an SDK of a later release may send
// more.
var ackNames = []string{"job_id", "result", "worker_id", "attempt"}

// DecodeAck reads the body of an ACK. A body that is refused changes nothing: the job stays active until its reservation ends,
// so that a worker may correct the ack and send it again.
func DecodeAck(raw []byte, lim Limits) (Ack, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckItem is DecodeAck for an element that SplitBatch gave. An error is that of this item only; the others of the batch
// are acknowledged (docs/reference/http.md, Ack and nack batches).
func DecodeAckItem(item jsontext.Value, lim Limits) (Ack, *ojs.Error) {
	v, err := payload.Object(item, "ack")
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckFor reads the optional body of POST /jobs/{id}/ack; the id comes from the path. An empty body acknowledges without
// result, worker and attempt.
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
	// Get takes null for absent, so the member is looked for again by its name: a result of null is stored as null, no result
	// as none.
	result := b.Get("result")
	if result == nil {
		result = payload.Find(v, "result") // null is a result, too
	}
	err := finishAck(&r, jobID, result, lim, b.Problems)
	return r, err
}

// NewAck is DecodeAck for values that a transport has read; result is JSON, nil for none. The message of gRPC has neither
// worker nor attempt, so neither is checked.
func NewAck(jobID string, result []byte, lim Limits) (Ack, *ojs.Error) {
	r := Ack{Attempt: AnyAttempt}
	var ps payload.Problems
	payload.CheckJobID(jobID, &ps)
	err := finishAck(&r, jobID, result, lim, ps)
	return r, err
}

// finishAck takes over the result, and last the id: what is wrong with a body is reported before a job that does not exist.
// Called by all four decoders, so that the limits of results are the same on every route.
func finishAck(r *Ack, jobID string, result jsontext.Value, lim Limits, ps payload.Problems) *ojs.Error {
	// It is noted with the other problems of the body. Its size is not: 413 is another status, and answers alone.
	if rawjson.Depth(result) > lim.Depth() {
		ps.Add(ojs.ErrInvalidPayload, "result", "$.result", shallow(lim), result)
	}
	err := ps.Err()
	if err != nil {
		return err
	}
	// The limit counts the compact text, because that is what the database stores; white space of the client is free.
	if result != nil {
		r.Result = rawjson.Compact(result)
		if len(r.Result) > lim.Result() {
			return spec.TooLarge("result", lim.Result(), len(r.Result))
		}
	}
	r.JobID, err = ParseID(jobID)
	return err
}
