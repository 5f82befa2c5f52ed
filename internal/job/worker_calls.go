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
	"github.com/jackc/pgx/v5/pgtype"

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

// readJobID gives the id of the job that the request is about: that of the path, or else job_id. It is parsed after everything else
// has been checked, because what is wrong with a body is reported before a job that does not exist.
func readJobID(o *jsonread.Object, path string) string {
	if path != "" {
		return path
	}
	// Whether it has the form of an id is not checked here: an unknown one is 404.
	text, _ := jsonread.Text(o.Get("job_id"))
	if text == "" {
		o.Refuse("job_id", "the id of a job")
	}
	return text
}

// ReadWorkerID reads the optional worker_id.
func ReadWorkerID(o *jsonread.Object) string {
	return o.Text("worker_id", "a string of at most 255 bytes without U+0000", func(s string) bool {
		return len(s) <= maxWorkerIDBytes && !strings.Contains(s, "\x00")
	})
}

// ReadVisibilityMS reads the optional visibility timeout; 0: not sent.
func ReadVisibilityMS(o *jsonread.Object) int64 {
	n, _ := o.Integer("visibility_timeout_ms", 0, MaxVisibilityMS, "an integer >= 0 of milliseconds, at most 7 days")
	return n
}

// ReadIDs reads an array of job ids, as sent; nil if it is absent or refused.
func ReadIDs(o *jsonread.Object, name string) []string {
	return jsonread.Optional(o, name, "an array of job ids", jsonread.Texts)
}

// readAttempt reads the optional fence: AnyAttempt if it was not sent, and for a number that no job can have one that matches
// no job. Such a fence must not be refused: the answer is the same as for any other run that the job does not have, a conflict.
func readAttempt(o *jsonread.Object) int32 {
	n, sent := o.Integer("attempt", math.MinInt64, math.MaxInt64, "an integer")
	switch {
	case !sent:
		return AnyAttempt
	case n < 0 || n > noAttempt:
		return noAttempt
	}
	return int32(n)
}

// AppendLeaseToken appends the token of the run that a fetch has begun. It is the time of the fetch: no other run of the job has that,
// while a job that was handed back and fetched again has the same attempt, and perhaps the same worker.
func (r *Record) AppendLeaseToken(b []byte) []byte {
	return strconv.AppendInt(b, r.StartedAt.Time.UnixMicro(), 36)
}

// ParseLeaseToken returns the start of the run that a token names. Every text that was not made by AppendLeaseToken is refused.
func ParseLeaseToken(token string) (start pgtype.Timestamptz, ok bool) {
	n, err := strconv.ParseInt(token, 36, 64)
	if err != nil || n <= 0 || strconv.FormatInt(n, 36) != token {
		return start, false
	}
	return pgtype.Timestamptz{Time: time.UnixMicro(n), Valid: true}, true
}

func readLeaseToken(o *jsonread.Object) (start pgtype.Timestamptz) {
	o.Text("lease_token", "the lease_token of the fetch", func(token string) (ok bool) {
		start, ok = ParseLeaseToken(token)
		return ok
	})
	return start
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
	// maxWorkerIDBytes and the next are in docs/reference/jobs.md, Limits.
	maxWorkerIDBytes = 255

	// MaxVisibilityMS is the longest visibility timeout: 7 days.
	MaxVisibilityMS = 604_800_000

	// maxFetch cuts a larger count, which is not refused: it says how much the worker can take, not how much it must get.
	maxFetch  = 1000
	maxQueues = 100 // a claim looks into every queue of its list, and the node remembers a cursor for each
	maxWaitMS = 20_000
)

var fetchNames = []string{"queues", "queue", "count", "max_jobs", "worker_id", "visibility_timeout_ms", "wait_ms", "pool", "strategy",
	"weights"}

// DecodeFetch reads the body of a FETCH. wait_ms above 20 s is cut and not refused, so that clients need not know the limit.
func DecodeFetch(raw []byte) (Fetch, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return Fetch{}, err
	}
	return decodeFetch(v, math.MaxInt64, "an integer >= 0 of milliseconds")
}

// DecodeNextFetch reads the fetch that comes with a batch of acks, whose answer it must not delay: it does not wait.
// It is decoded before the acks are applied: a fetch that is wrong refuses the whole call, so nothing has changed then.
func DecodeNextFetch(v jsontext.Value) (Fetch, *ojs.Error) {
	if v[0] != '{' {
		var ps jsonread.Problems
		ps.Add(ojs.ErrInvalidPayload, "fetch", "$.fetch", "an object, the body of a fetch", v)
		return Fetch{}, ps.Err()
	}
	r, err := decodeFetch(v, 0, "absent or 0: acks are answered at once")
	return r, At("$.fetch", err)
}

// decodeFetch needs no list of queues with a pool: those of the pool are taken.
func decodeFetch(v jsontext.Value, longestWait int64, wait string) (Fetch, *ojs.Error) {
	o := jsonread.Open(v, fetchNames...)
	o.RefuseOthers()
	r := Fetch{Pool: o.Text("pool", "the name of a pool", jsonread.IsName)}
	// A list that is sent beside a pool is checked all the same.
	if r.Pool == "" || o.Get("queues") != nil || o.Get("queue") != nil {
		r.Queues = readQueues(&o)
	}
	r.Count = 1
	count := "count"
	if o.Get(count) == nil {
		count = "max_jobs"
	}
	// A number out of the range is moved to its nearer end; one with a fraction is refused.
	if n, given := o.Integer(count, math.MinInt64, math.MaxInt64, "an integer"); given {
		r.Count = int(min(max(n, 1), maxFetch))
	}
	r.WorkerID, r.VisibilityMS = ReadWorkerID(&o), ReadVisibilityMS(&o)
	r.Strategy, r.Weights = ReadStrategy(&o), ReadWeights(&o)
	ms, _ := o.Integer("wait_ms", 0, longestWait, wait)
	r.Wait = time.Duration(min(ms, maxWaitMS)) * time.Millisecond
	return r, o.Err()
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
	ps.Add(ojs.ErrInvalidQueue, "queues", "$.queues", "at most "+strconv.Itoa(maxQueues)+" queue names",
		jsonread.Quote(strconv.Itoa(n)+" names"))
	ps.Hint("Fetch from fewer queues at a time.")
}

// readQueues ends at the first wrong name: one problem is enough to correct it.
func readQueues(o *jsonread.Object) []string {
	list, one := o.Get("queues"), o.Get("queue")
	switch {
	case list == nil && one != nil: // the alias for a single queue
		name, kind, expected := QueueProblem(one)
		if kind != "" {
			o.RefuseValue(kind, "queue", expected, one)
		}
		return []string{name}
	case list == nil || list[0] != '[' || jsonread.Len(list) == 0:
		errNoQueues(o.Problems(), list)
		return nil
	case jsonread.Len(list) > maxQueues:
		errManyQueues(o.Problems(), jsonread.Len(list))
		return nil
	}
	names := make([]string, 0, 4)
	for e := range jsonread.Elements(list) {
		name, kind, expected := QueueProblem(e)
		if kind != "" {
			o.RefuseValue(kind, "queues", expected, e)
			return nil
		}
		names = append(names, name)
	}
	return jsonread.Distinct(names)
}

// Ack reports that a job succeeded (docs/reference/http.md, Ack). It is the request as sent. Whether the job exists, is active
// and belongs to the worker is for the statement to find out, in the same moment in which it completes the job.
type Ack struct {
	JobID [16]byte
	// WorkerID and Attempt fence the ack. With both, an ack that is repeated, or that arrives late, never ends another run of
	// the job. A job that was fetched without a name has no owner, so any name fits it.
	WorkerID string             // "": not sent, so ownership is not checked
	Attempt  int32              // AnyAttempt: not sent
	Start    pgtype.Timestamptz // of the run that its lease token names; not valid: not sent
	Result   []byte             // compact JSON; nil: none
}

var ackNames = []string{"job_id", "result", "worker_id", "attempt", "lease_token"}

// DecodeAck reads the body of an ACK. A body that is refused changes nothing: the job stays active until its reservation ends,
// so that a worker may correct the ack and send it again.
func DecodeAck(raw []byte, lim Limits) (Ack, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return Ack{}, err
	}
	return decodeAck(v, "", lim)
}

// DecodeAckItem is DecodeAck for text that is known to be valid JSON: an element that SplitBatch gave, or what gRPC has written. An error
// is that of this item only; the others of the batch are acknowledged (docs/reference/http.md, Ack and nack batches).
func DecodeAckItem(item jsontext.Value, lim Limits) (Ack, *ojs.Error) {
	v, err := jsonread.CheckObject(item, "ack")
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
	o := jsonread.Open(v, ackNames...)
	o.RefuseOthers()
	r := Ack{WorkerID: ReadWorkerID(&o), Attempt: readAttempt(&o), Start: readLeaseToken(&o)}
	jobID = readJobID(&o, jobID)
	// A result of null is stored as null, no result as none.
	result, sent := o.Sent("result")
	// It is noted with the other problems of the body. Its size is not: 413 is another status, and answers alone.
	if jsonread.Depth(result) > MaxNesting {
		o.Refuse("result", shallow)
	}
	err := o.Err()
	if err != nil {
		return r, err
	}
	// The limit counts the compact text, because that is what the database stores; white space of the client is free.
	if sent {
		r.Result = jsonread.Compact(result)
		if err := lim.checkSize("result", len(r.Result)); err != nil {
			return r, err
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
	WorkerID string             // "": not sent, so ownership is not checked
	Attempt  int32              // AnyAttempt: not sent
	Start    pgtype.Timestamptz // of the run that its lease token names; not valid: not sent
	Requeue  bool               // hand the job back; Error is then empty
	// With Requeue the job is scheduled meanwhile, and no worker gets it, whatever its priority. After a failure it waits for the longer
	// one of this and the backoff of its policy.
	Delay time.Duration // the job is not fetched for that long
	Error WorkerError
}

var nackNames = []string{"job_id", "error", "worker_id", "attempt", "lease_token", "requeue", "delay_ms"}

// DecodeNack reads the body of a NACK. What the error says is never refused, because a refusal would strand the job.
// It would stay active until its reservation ends, and then run again although its handler has already failed for good.
func DecodeNack(raw []byte) (Nack, *ojs.Error) { return DecodeNackFor("", raw) }

// DecodeNackItem is DecodeNack for text that is known to be valid JSON.
func DecodeNackItem(item jsontext.Value) (Nack, *ojs.Error) {
	v, err := jsonread.CheckObject(item, "nack")
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, "")
}

// DecodeNackFor reads the body of POST /jobs/{id}/nack. The id comes from the path, and error may be a text, which is
// what serverless adapters send. An error as a text always asks for a retry, since it has no place for a flag.
func DecodeNackFor(jobID string, raw []byte) (Nack, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return Nack{}, err
	}
	return decodeNack(v, jobID)
}

func decodeNack(v jsontext.Value, jobID string) (Nack, *ojs.Error) {
	o := jsonread.Open(v, nackNames...)
	o.RefuseOthers()
	r := Nack{WorkerID: ReadWorkerID(&o), Attempt: readAttempt(&o), Start: readLeaseToken(&o), Requeue: o.Boolean("requeue")}
	id := readJobID(&o, jobID)
	failure := o.Get("error")
	delay, _ := o.Integer("delay_ms", 0, maxMS, "an integer >= 0 of milliseconds, at most 36500 days")
	r.Delay = time.Duration(delay) * time.Millisecond
	text, isText := jsonread.Text(failure)
	switch {
	// An error beside requeue is ignored (docs/reference/http.md, Nack).
	case r.Requeue:
	// Only on the route with the id in its path: elsewhere an error that is no object is a mistake of the client.
	case isText && jobID != "":
		r.Error = WorkerError{Message: Shorten(text, maxMessageBytes), Retryable: true}
		r.Error.complete("")
	case failure == nil || failure[0] != '{':
		o.Refuse("error", "an object with code and message")
	default:
		r.Error = decodeWorkerError(failure)
	}
	err := o.Err()
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
func DecodeProgressFor(jobID string, raw []byte) (ProgressReport, *ojs.Error) {
	return decodeProgress(jobID, raw, "progress")
}

// DecodeProgress reads the body of POST /workers/progress, whose number is a percentage.
func DecodeProgress(raw []byte) (ProgressReport, *ojs.Error) {
	return decodeProgress("", raw, "percentage")
}

// decodeProgress refuses a report that says nothing (neither number nor data): a heartbeat is the call for that.
func decodeProgress(jobID string, raw []byte, number string) (ProgressReport, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, progressNames...)
	if err != nil {
		return ProgressReport{}, err
	}
	o.RefuseOthers()
	r := ProgressReport{WorkerID: ReadWorkerID(&o), Attempt: readAttempt(&o)}
	// A text for people, cut silently like that of an error. U+0000 goes, because a text column cannot hold it.
	r.Message = jsonread.OptionalText(&o, "message", "a string", func(text string) (*string, bool) {
		text = Shorten(strings.ReplaceAll(text, "\x00", ""), maxMessageBytes)
		return &text, true
	})
	jobID = readJobID(&o, jobID)
	// The two routes differ in the scale and in the name of the number; what is stored is a share.
	scale := 1.0
	if number == "percentage" {
		scale = 100
	}
	r.Progress = readShare(&o, number, scale)
	data := readObject(&o, "data")
	// It is stored as the state of a checkpoint, without index and metadata.
	checkpoint := readObject(&o, "checkpoint")
	if o.Get(number) == nil && o.Get("data") == nil {
		o.Refuse(number, fmt.Sprintf("a number from 0 to %g, unless data is sent", scale))
	}
	if err := o.Err(); err != nil {
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

// readShare reads a number and clamps it: beyond float64 is beyond the range, too. A number outside of the range counts as its
// nearer end and is not refused.
func readShare(o *jsonread.Object, name string, scale float64) *float64 {
	v := o.Get(name)
	if v == nil {
		return nil
	}
	if c := v[0]; c != '-' && (c < '0' || c > '9') {
		o.Refuse(name, fmt.Sprintf("a number from 0 to %g", scale))
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

// readObject reads an optional object that is kept as it is.
func readObject(o *jsonread.Object, name string) jsontext.Value {
	v := o.Get(name)
	switch {
	case v == nil:
	case v[0] != '{':
		o.Refuse(name, "an object")
	case jsonread.Depth(v) > MaxNesting:
		o.Refuse(name, shallow)
	}
	return v
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

// maxSequence is the largest integer that every JSON client can hold. Above 2⁵³−1 a client that reads numbers as doubles would
// compare two sequences as equal.
const maxSequence = 1<<53 - 1

// DecodeCheckpoint reads the body of PUT /jobs/{id}/checkpoint and, with optionalState, of POST /checkpoints/{id}: the
// durable helpers leave out what is undefined, and a refusal would fail their job. Package progress stores it. A job that has
// ended is refused there, with 409 (docs/reference/jobs.md, Checkpoints).
func DecodeCheckpoint(jobID string, raw []byte, optionalState bool) (CheckpointSave, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "worker_id", "attempt", "state", "sequence", "step_index", "metadata")
	if err != nil {
		return CheckpointSave{}, err
	}
	o.RefuseOthers()
	r := CheckpointSave{WorkerID: ReadWorkerID(&o), Attempt: readAttempt(&o), Sequence: NextSequence}
	state, sent := o.Sent("state") // null is a state
	switch {
	case !sent && optionalState:
		state = jsontext.Value("null")
	case !sent:
		o.Refuse("state", "any JSON value")
	case jsonread.Depth(state) > MaxNesting:
		o.Refuse("state", shallow)
	}
	if n, sent := o.Integer("sequence", math.MinInt64, maxSequence, "an integer of at most 9007199254740991"); sent {
		// Sequences begin with 1, so every number below it counts as 0 (docs/reference/jobs.md, Checkpoints).
		r.Sequence = max(n, 0)
	}
	// The number is only checked here; encodeCheckpoint writes it from the body.
	o.Integer("step_index", math.MinInt64, math.MaxInt64, "an integer")
	metadata := readObject(&o, "metadata")
	if err := o.Err(); err != nil {
		return r, err
	}
	if r.Stored, err = encodeCheckpoint(state, o.Get("step_index"), metadata); err == nil {
		r.JobID, err = ParseID(jobID)
	}
	return r, err
}

// encodeCheckpoint bounds state and metadata together, without the names that the server adds. The text is what answers show, so
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
