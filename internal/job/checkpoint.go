package job

import (
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// CheckpointRequest is the body of a checkpoint (contract 20 §12.2).
type CheckpointRequest struct {
	WorkerID string
	Attempt  *int64
	Stored   []byte // one compact object with state and, if sent, step_index and metadata
	Sequence *int64 // nil: the next
}

var checkpointNames = []string{"worker_id", "attempt", "state", "sequence", "step_index", "metadata"}

// maxSequence is the largest integer that every JSON client can hold.
const maxSequence = 1<<53 - 1

// DecodeCheckpoint reads the body of PUT /jobs/{id}/checkpoint and, with optionalState, of POST /checkpoints/{id}: the
// durable helpers leave out what is undefined, and a refusal would fail their job.
func DecodeCheckpoint(raw []byte, optionalState bool, lim Limits) (CheckpointRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return CheckpointRequest{}, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, checkpointNames)
	r := CheckpointRequest{WorkerID: b.WorkerID(), Attempt: b.Attempt()}
	state := payload.Find(v, "state")
	switch {
	case state == nil && optionalState:
		state = jsontext.Value("null")
	case state == nil:
		b.Refuse("state", "any JSON value")
	case rawjson.Depth(state) > lim.Depth():
		b.Refuse("state", shallow(lim))
	}
	if n, sent := b.Integer("sequence", math.MinInt64, maxSequence, "an integer of at most 9007199254740991"); sent {
		n = max(n, 0)
		r.Sequence = &n
	}
	b.Integer("step_index", math.MinInt64, math.MaxInt64, "an integer")
	metadata := b.object("metadata", lim)
	if err := b.Problems.Err(); err != nil {
		return r, err
	}
	r.Stored, err = encodeCheckpoint(state, b.Get("step_index"), metadata)
	return r, err
}

func encodeCheckpoint(state, stepIndex, metadata jsontext.Value) ([]byte, *ojs.Error) {
	state = rawjson.Compact(state)
	if metadata != nil {
		metadata = rawjson.Compact(metadata)
	}
	if n := len(state) + len(metadata); n > MaxCheckpoint {
		return nil, ojs.ErrTooLarge("checkpoint", MaxCheckpoint, n)
	}
	b := append(append(make([]byte, 0, 64+len(state)+len(metadata)), `{"state":`...), state...)
	if stepIndex != nil {
		n, _ := rawjson.Int(stepIndex)
		b = strconv.AppendInt(append(b, `,"step_index":`...), n, 10)
	}
	if metadata != nil {
		b = append(append(b, `,"metadata":`...), metadata...)
	}
	return append(b, '}'), nil
}

// CheckpointParts gives what encodeCheckpoint has put together; nil for what was not sent.
func CheckpointParts(stored []byte) (state, stepIndex, metadata jsontext.Value) {
	if stored == nil {
		return nil, nil, nil
	}
	v := jsontext.Value(stored)
	return payload.Find(v, "state"), payload.Find(v, "step_index"), payload.Find(v, "metadata")
}

// ResultsRequest is the body of POST /jobs/results.
type ResultsRequest struct {
	IDs []string // as sent, without repetitions; see ojs.ParseID
}

// MaxResults is how many results can be asked for at once.
const MaxResults = 100

// DecodeResults reads the ids of POST /jobs/results.
func DecodeResults(raw []byte) (ResultsRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return ResultsRequest{}, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, []string{"ids"})
	list := b.Get("ids")
	var ids []string
	ok := list != nil && list[0] == '['
	if ok {
		ids, ok = payload.Texts(list)
	}
	if !ok {
		b.Refuse("ids", "an array of job ids")
		return ResultsRequest{}, b.Problems.Err()
	}
	if len(ids) > MaxResults {
		return ResultsRequest{}, ojs.ErrBatchSize(MaxResults, len(ids))
	}
	return ResultsRequest{IDs: payload.Distinct(ids)}, nil
}
