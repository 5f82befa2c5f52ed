package job

import (
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// NextSequence stands for a sequence that the client did not send: the server numbers the checkpoint. It is no number of a
// checkpoint: these begin with 1, and lower ones that clients send count as 0.
const NextSequence = -1

// CheckpointSave is a checkpoint to be stored (docs/reference/jobs.md, Checkpoints). It counts as a heartbeat.
// The sequence orders the writes of one job: a save that arrives late, after a newer one, must not replace it. The statement
// compares.
type CheckpointSave struct {
	JobID    [16]byte
	WorkerID string // "": not sent, so ownership is not checked
	Attempt  int32  // AnyAttempt: not sent
	Stored   []byte // one compact object with state and, if sent, step_index and metadata
	Sequence int64  // must be above the stored one; NextSequence: one more
}

var checkpointNames = []string{"worker_id", "attempt", "state", "sequence", "step_index", "metadata"}

// maxSequence is the largest integer that every JSON client can hold. Above 2⁵³−1 a client that reads numbers as doubles would
// compare two sequences as equal.
const maxSequence = 1<<53 - 1

// DecodeCheckpoint reads the body of PUT /jobs/{id}/checkpoint and, with optionalState, of POST /checkpoints/{id}: the
// durable helpers leave out what is undefined, and a refusal would fail their job. Package progress stores it. A job that has
// ended is refused there, with 409 (docs/reference/jobs.md, Checkpoints).
func DecodeCheckpoint(jobID string, raw []byte, optionalState bool, lim Limits) (CheckpointSave, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return CheckpointSave{}, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, checkpointNames)
	r := CheckpointSave{WorkerID: b.WorkerID(), Attempt: b.attempt(), Sequence: NextSequence}
	// Not Get: a state of null is a state.
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
		// Sequences begin with 1, so every number below it counts as 0 (docs/reference/jobs.md, Checkpoints).
		r.Sequence = max(n, 0)
	}
	// The number is only checked here; encodeCheckpoint writes it from the body.
	b.Integer("step_index", math.MinInt64, math.MaxInt64, "an integer")
	metadata := b.object("metadata", lim)
	if err := b.Problems.Err(); err != nil {
		return r, err
	}
	if r.Stored, err = encodeCheckpoint(state, b.Get("step_index"), metadata); err == nil {
		r.JobID, err = ParseID(jobID)
	}
	return r, err
}

// The bound is of state and metadata together, without the names that the server adds. The text is what answers show, so
// nothing is encoded again when a checkpoint is read.
func encodeCheckpoint(state, stepIndex, metadata jsontext.Value) ([]byte, *ojs.Error) {
	state = rawjson.Compact(state)
	if metadata != nil {
		metadata = rawjson.Compact(metadata)
	}
	if n := len(state) + len(metadata); n > MaxCheckpoint {
		return nil, spec.TooLarge("checkpoint", MaxCheckpoint, n)
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

// CheckpointParts gives what encodeCheckpoint has put together; nil for what was not sent. The values point into stored.
func CheckpointParts(stored []byte) (state, stepIndex, metadata jsontext.Value) {
	if stored == nil {
		return nil, nil, nil
	}
	v := jsontext.Value(stored)
	return payload.Find(v, "state"), payload.Find(v, "step_index"), payload.Find(v, "metadata")
}
