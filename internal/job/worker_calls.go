package job

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// AnyAttempt stands for an attempt that the client did not send: every attempt matches. It is not 0, which is the attempt of a
// job that was never fetched.
const AnyAttempt = -1

// noAttempt matches the attempt of no job. Attempts are 32-bit counters that begin with 1.
const noAttempt = 1<<31 - 1

// ParseID reads the id of a job. A text that is no id belongs to no job, so the error is not_found. It is therefore checked
// after the fields, where the existence of the job is (docs/reference/http.md, Check order).
func ParseID(text string) ([16]byte, *ojs.Error) {
	id, ok := spec.ParseID(text)
	if !ok {
		return id, spec.NotFound("job", text)
	}
	return id, nil
}

// IDList is a list of job ids as a client sent it. A text that is no id belongs to no job, but answers repeat it.
// Answers go by Texts, statements by IDs.
type IDList struct {
	Texts   []string   // as sent, in order
	IDs     [][16]byte // of the texts that are ids, each once, in order of first appearance
	Invalid []string   // the texts that are no ids
}

// NewIDList parses the ids. Two texts of one id, with and without a prefix, are one id and two texts.
func NewIDList(texts []string) IDList {
	l := IDList{Texts: texts}
	seen := make(map[[16]byte]bool, len(texts))
	for _, text := range texts {
		id, ok := spec.ParseID(text)
		switch {
		case !ok:
			l.Invalid = append(l.Invalid, text)
		case !seen[id]:
			seen[id] = true
			l.IDs = append(l.IDs, id)
		}
	}
	return l
}

// AllDistinct reports whether every text is an id, and each id is listed once.
func (l IDList) AllDistinct() bool { return len(l.IDs) == len(l.Texts) }

// body reads the requests about jobs. It adds to jsonread.Body what is about jobs: ids, attempts and the objects of reports.
type body struct{ jsonread.Body }

// idText gives the id of the job that the request is about: that of the path, or else job_id. It is parsed after everything else
// has been checked, because what is wrong with a body is reported before a job that does not exist.
func (b *body) idText(path string) string {
	if path != "" {
		return path
	}
	return b.JobID()
}

// attempt reads the optional fence: AnyAttempt if it was not sent, and for a number that no job can have one that matches
// no job. Such a fence must not be refused: the answer is the same as for any other run that the job does not have, a conflict.
func (b *body) attempt() int32 {
	n, sent := b.Attempt()
	switch {
	case !sent:
		return AnyAttempt
	case n < 0 || n > noAttempt:
		return noAttempt
	}
	return int32(n)
}

// Fetch asks for jobs (docs/reference/http.md, Fetch).
type Fetch struct {
	Queues   []string // in order of preference, without repetitions
	Count    int      // 1…1000
	WorkerID string
	// Above 0 it beats the job's own length (docs/reference/retries.md, Reservations).
	VisibilityMS int64 // 0: the job's or the server's value
	// The transport may end the wait earlier, when its client hangs up or the node stops.
	Wait     time.Duration // up to 20 s; 0: answer at once
	MaxBytes int           // the answer ends with the job that exceeds it; 0: MaxBytes
	Tenant   string        // whose jobs it takes; "": those of all

	Pool     string           // whose queues it takes; "": that of the worker. Queues may be empty if it is set
	Strategy string           // how it chooses between queues; "": that of the pool, or strict
	Weights  map[string]int64 // by queue, for strategy weighted; 1 for others
}

const (
	// A larger count is not refused but cut: it says how much the worker can take, not how much it must get.
	maxFetch  = 1000
	maxQueues = 100 // a claim looks into every queue of its list, and the node remembers a cursor for each
	maxWaitMS = 20_000
)

var fetchNames = []string{"queues", "queue", "count", "max_jobs", "worker_id", "visibility_timeout_ms", "wait_ms", "pool", "strategy", "weights"}

// DecodeFetch reads the body of a FETCH. wait_ms above 20 s is cut and not refused, so that clients need not know the limit.
func DecodeFetch(raw []byte) (Fetch, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return Fetch{}, err
	}
	r, problems := decodeFetch(v, math.MaxInt64, "an integer >= 0 of milliseconds")
	return r, problems.Err()
}

// DecodeNextFetch reads the fetch that comes with a batch of acks, whose answer it must not delay: it does not wait.
// It is decoded before the acks are applied: a fetch that is wrong refuses the whole call, so nothing has changed then.
func DecodeNextFetch(v jsontext.Value) (Fetch, *ojs.Error) {
	if v[0] != '{' {
		var ps jsonread.Problems
		ps.Add(ojs.ErrInvalidPayload, "fetch", "$.fetch", "an object, the body of a fetch", v)
		return Fetch{}, ps.Err()
	}
	r, problems := decodeFetch(v, 0, "absent or 0: acks are answered at once")
	return r, inMember("fetch", problems.Err())
}

// With a pool the list of queues may be left out: those of the pool are taken.
func decodeFetch(v jsontext.Value, longestWait int64, wait string) (Fetch, jsonread.Problems) {
	b := body{}
	b.Fields, _ = jsonread.Read(v, fetchNames)
	r := Fetch{}
	if v := b.Get("pool"); v != nil {
		if r.Pool, _ = jsonread.Text(v); !jsonread.IsName(r.Pool) {
			b.Refuse("pool", "the name of a pool")
		}
	}
	// A list that is sent beside a pool is checked all the same.
	if r.Pool == "" || b.Get("queues") != nil || b.Get("queue") != nil {
		r.Queues = b.queues()
	}
	r.Count, r.WorkerID, r.VisibilityMS = b.count(), b.WorkerID(), b.VisibilityMS()
	if v := b.Get("strategy"); v != nil {
		r.Strategy = ReadStrategy(v, &b.Problems)
	}
	if v := b.Get("weights"); v != nil {
		r.Weights = ReadWeights(v, &b.Problems)
	}
	ms, _ := b.Integer("wait_ms", 0, longestWait, wait)
	r.Wait = time.Duration(min(ms, maxWaitMS)) * time.Millisecond
	return r, b.Problems
}

// CheckQueues checks a list of queue names, and leaves out repetitions, because a claim looks into each queue of its list. The first one
// counts: the order is the order of preference. The definitions of pools use it; queues does the same for JSON, without a list in between.
func CheckQueues(queues []string, ps *jsonread.Problems) []string {
	if len(queues) == 0 {
		errNoQueues(ps, nil)
		return nil
	}
	if len(queues) > maxQueues {
		errManyQueues(ps, len(queues))
		return nil
	}
	for _, name := range queues {
		if kind, expected := queueProblem(name, true); kind != "" {
			ps.Add(kind, "queues", "$.queues", expected, jsonread.Quote(name))
			return nil
		}
	}
	return jsonread.Distinct(slices.Clone(queues))
}

func errNoQueues(ps *jsonread.Problems, received jsontext.Value) {
	ps.Add(ojs.ErrInvalidQueue, "queues", "$.queues", "a non-empty array of queue names", received)
	ps.Hint("Send queues as an array of names, in the order in which they are to be served, such as [\"mail\"].")
}

func errManyQueues(ps *jsonread.Problems, n int) {
	ps.Add(ojs.ErrInvalidQueue, "queues", "$.queues", "at most "+strconv.Itoa(maxQueues)+" queue names", jsonread.Quote(strconv.Itoa(n)+" names"))
	ps.Hint("Fetch from fewer queues at a time.")
}

// The first wrong name ends the list: one problem is enough to correct it.
func (b *body) queues() []string {
	list := b.Get("queues")
	if list == nil {
		return b.queue()
	}
	if list[0] != '[' || jsonread.Len(list) == 0 {
		errNoQueues(&b.Problems, list)
		return nil
	}
	if n := jsonread.Len(list); n > maxQueues {
		errManyQueues(&b.Problems, n)
		return nil
	}
	names := make([]string, 0, 4)
	for e := range jsonread.Elements(list) {
		name, kind, expected := QueueProblem(e)
		if kind != "" {
			b.Problems.Add(kind, "queues", "$.queues", expected, e)
			return nil
		}
		names = append(names, name)
	}
	return jsonread.Distinct(names)
}

// queue reads the alias for a single queue.
func (b *body) queue() []string {
	v := b.Get("queue")
	if v == nil {
		errNoQueues(&b.Problems, nil)
		return nil
	}
	name, kind, expected := QueueProblem(v)
	if kind != "" {
		b.Problems.Add(kind, "queue", "$.queue", expected, v)
	}
	return []string{name}
}

// A number with a fraction is refused; one out of the range is moved to its nearer end.
func (b *body) count() int {
	field := "count"
	if b.Get(field) == nil {
		field = "max_jobs"
	}
	n, given := b.Integer(field, math.MinInt64, math.MaxInt64, "an integer")
	if !given {
		return 1
	}
	return clampCount(n)
}

func clampCount(n int64) int { return int(min(max(n, 1), maxFetch)) }

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
	v, err := jsonread.Check(raw)
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckItem is DecodeAck for text that is known to be valid JSON: an element that SplitBatch gave, or what gRPC has written. An error is
// that of this item only; the others of the batch are acknowledged (docs/reference/http.md, Ack and nack batches).
func DecodeAckItem(item jsontext.Value, lim Limits) (Ack, *ojs.Error) {
	v, err := jsonread.Object(item, "ack")
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
	v, err := jsonread.Check(raw)
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, jobID, lim)
}

func decodeAck(v jsontext.Value, jobID string, lim Limits) (Ack, *ojs.Error) {
	b := body{}
	b.Fields, _ = jsonread.Read(v, ackNames)
	r := Ack{WorkerID: b.WorkerID(), Attempt: b.attempt()}
	jobID = b.idText(jobID)
	// Get takes null for absent, so the member is looked for again by its name: a result of null is stored as null, no result
	// as none.
	result := b.Get("result")
	if result == nil {
		result = jsonread.Find(v, "result") // null is a result, too
	}
	// It is noted with the other problems of the body. Its size is not: 413 is another status, and answers alone.
	if jsonread.Depth(result) > lim.Depth() {
		b.Refuse("result", shallow(lim))
	}
	err := b.Problems.Err()
	if err != nil {
		return r, err
	}
	// The limit counts the compact text, because that is what the database stores; white space of the client is free.
	if result != nil {
		r.Result = jsonread.Compact(result)
		if len(r.Result) > lim.Result() {
			return r, spec.TooLarge("result", lim.Result(), len(r.Result))
		}
	}
	// Last: what is wrong with a body is reported before a job that does not exist.
	r.JobID, err = ParseID(jobID)
	return r, err
}

// Nack reports that a job failed, or hands it back (docs/reference/http.md, Nack). Whether a retry follows is decided from the
// job as it is when the nack is applied, by DecideFailure.
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
	v, err := jsonread.Check(raw)
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, "", lim)
}

// DecodeNackItem is DecodeNack for text that is known to be valid JSON.
func DecodeNackItem(item jsontext.Value, lim Limits) (Nack, *ojs.Error) {
	v, err := jsonread.Object(item, "nack")
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, "", lim)
}

// DecodeNackFor reads the body of POST /jobs/{id}/nack. The id comes from the path, and error may be a text, which is
// what serverless adapters send. An error as a text always asks for a retry, since it has no place for a flag.
func DecodeNackFor(jobID string, raw []byte, lim Limits) (Nack, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, jobID, lim)
}

// A delay without requeue is refused, because the worker would wait for something that does not happen.
func decodeNack(v jsontext.Value, jobID string, lim Limits) (Nack, *ojs.Error) {
	b := body{}
	b.Fields, _ = jsonread.Read(v, nackNames)
	r := Nack{WorkerID: b.WorkerID(), Attempt: b.attempt(), Requeue: b.Boolean("requeue")}
	id := b.idText(jobID)
	failure := b.Get("error")
	if ms, _ := b.Integer("delay_ms", 0, maxMS, "an integer >= 0 of milliseconds, at most 36500 days"); ms > 0 {
		r.Delay = time.Duration(ms) * time.Millisecond
		if !r.Requeue {
			b.Refuse("delay_ms", "absent or 0 without requeue: the retry policy chooses the delay")
		}
	}
	text, isText := jsonread.Text(failure)
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
	v, err := jsonread.Check(raw)
	if err != nil {
		return ProgressReport{}, err
	}
	b := body{}
	b.Fields, _ = jsonread.Read(v, progressNames)
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
		r.Data = jsonread.Compact(data)
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
	case jsonread.Depth(v) > lim.Depth():
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
	text, ok := jsonread.Text(v)
	if !ok {
		b.Refuse("message", "a string")
		return nil
	}
	text = Shorten(strings.ReplaceAll(text, "\x00", ""), maxMessageBytes)
	return &text
}

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
	v, err := jsonread.Check(raw)
	if err != nil {
		return CheckpointSave{}, err
	}
	b := body{}
	b.Fields, _ = jsonread.Read(v, checkpointNames)
	r := CheckpointSave{WorkerID: b.WorkerID(), Attempt: b.attempt(), Sequence: NextSequence}
	// Not Get: a state of null is a state.
	state := jsonread.Find(v, "state")
	switch {
	case state == nil && optionalState:
		state = jsontext.Value("null")
	case state == nil:
		b.Refuse("state", "any JSON value")
	case jsonread.Depth(state) > lim.Depth():
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
	state = jsonread.Compact(state)
	if metadata != nil {
		metadata = jsonread.Compact(metadata)
	}
	if n := len(state) + len(metadata); n > MaxCheckpoint {
		return nil, spec.TooLarge("checkpoint", MaxCheckpoint, n)
	}
	b := append(append(make([]byte, 0, 64+len(state)+len(metadata)), `{"state":`...), state...)
	if stepIndex != nil {
		n, _ := jsonread.Int(stepIndex)
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
	return jsonread.Find(v, "state"), jsonread.Find(v, "step_index"), jsonread.Find(v, "metadata")
}
