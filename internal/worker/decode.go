package worker

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Beat is a worker's heartbeat, or its registration (docs/reference/http.md, Heartbeat). Facts and Load are for the
// registry and for events; nothing is decided by them but the pool that a worker names. Jobs lists ids as texts and, where
// they are ids at all, as bytes.
type Beat struct {
	WorkerID     string
	Tenant       string                          // that the call names; "": none
	Register     bool                            // a new start: what the worker reported before does not bind it
	State        string                          // running, quiet, terminate; "": not reported
	ActiveJobs   int                             // the reported number, else the number of ids
	Jobs         job.IDList                      // those the worker holds: union of all members that list them, each text once
	Starts       map[[16]byte]pgtype.Timestamptz // of the runs that lease_tokens names; nil: none
	VisibilityMS int64                           // 0: the duration chosen at fetch
	Hostname     string
	PID          int64
	Queues       []string // nil: not reported
	Concurrency  int      // 0: not reported
	Facts        []byte   // one compact object with the other facts, as StorableText makes them; nil: none
	Load         string   // of Facts the numbers about memory and CPU, as members, each with a leading comma

	jobsOnly bool // the worker has been written, only jobs are left
}

// factNames are stored as they were last reported; any other member is ignored. Their order is that of the stored object.
var factNames = []string{"labels", "started_at", "version", "metadata", "memory_mb", "cpu_percent"}

// maxFactsBytes bounds what is stored about a worker; more is dropped, because a beat must not fail for it. All facts are
// dropped then, not some of them: half an object would mislead.
const maxFactsBytes = 65_536

// DecodeRegistration reads the body of a registration, which extends no job. A registration extends nothing, because the
// process that had the jobs has ended.
func DecodeRegistration(raw []byte) (Beat, *ojs.Error) {
	b, err := DecodeHeartbeat(raw)
	// The reported number and texts of jobs are kept, for the registry.
	b.Register, b.Jobs.IDs = true, nil
	return b, err
}

// DecodeHeartbeat reads the body of a heartbeat. Only the worker, its jobs and the visibility are checked: facts about a worker
// are taken if they fit and dropped if not. A refused heartbeat could make a healthy worker dead, hence the leniency.
func DecodeHeartbeat(raw []byte) (Beat, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "worker_id", "state", "shutdown", "active_jobs", "active_job_ids", "job_id", "visibility_timeout_ms",
		"lease_tokens", "hostname", "pid", "queues", "concurrency")
	if err != nil {
		return Beat{}, err
	}
	r := Beat{WorkerID: job.ReadWorkerID(&o), State: stateOf(&o), VisibilityMS: job.ReadVisibilityMS(&o), Facts: facts(o.Others)}
	if r.WorkerID == "" && o.Err() == nil {
		o.Refuse("worker_id", "the non-empty id of this worker")
	}
	r.Load = load(r.Facts)
	r.readJobs(&o)
	r.readLeaseTokens(&o)
	r.describe(&o)
	return r, o.Err()
}

// stateOf takes an unknown state for one that was not reported, so the stored one stays.
func stateOf(o *jsonread.Object) string {
	if stop, _ := jsonread.Bool(o.Get("shutdown")); stop {
		return "terminate"
	}
	switch text, _ := jsonread.Text(o.Get("state")); text {
	case "running", "quiet", "terminate":
		return text
	case "drain", "draining":
		return "quiet"
	default:
		return ""
	}
}

// readJobs: active_jobs is a number (JS, Go) or the ids (Python); ids come from up to three places. A negative number
// counts as 0.
func (r *Beat) readJobs(o *jsonread.Object) {
	reported := false
	var ids []string
	if v := o.Get("active_jobs"); v != nil && v[0] == '[' {
		ids = job.ReadIDs(o, "active_jobs")
	} else {
		var n int64
		n, reported = o.Integer("active_jobs", math.MinInt32, math.MaxInt32, "an integer or an array of job ids")
		r.ActiveJobs = int(max(n, 0))
	}
	ids = append(ids, job.ReadIDs(o, "active_job_ids")...)
	if o.Get("job_id") != nil {
		ids = append(ids, o.Text("job_id", "a job id", nil))
	}
	r.Jobs = job.NewIDList(jsonread.Distinct(ids))
	if !reported {
		r.ActiveJobs = len(r.Jobs.Texts)
	}
}

// readLeaseTokens reads an object of tokens by job. One of a job that is not listed changes nothing.
func (r *Beat) readLeaseTokens(o *jsonread.Object) {
	v := o.Get("lease_tokens")
	if v == nil {
		return
	}
	const expected = "an object with the lease_token of each job by its id"
	if v[0] != '{' {
		o.Refuse("lease_tokens", expected)
		return
	}
	r.Starts = map[[16]byte]pgtype.Timestamptz{}
	for literal, value := range jsonread.Members(v) {
		id, isID := spec.ParseID(string(jsonread.Name(literal)))
		token, _ := jsonread.Text(value)
		start, ok := job.ParseLeaseToken(token)
		if !isID || !ok {
			o.Refuse("lease_tokens", expected)
			return
		}
		r.Starts[id] = start
	}
}

// describe leaves out values that do not fit, one by one; nil queues mean that none were sent, an empty list that the worker has
// none.
func (r *Beat) describe(o *jsonread.Object) {
	hostname, _ := jsonread.Text(o.Get("hostname"))
	r.Hostname = job.Shorten(strings.ReplaceAll(hostname, "\x00", ""), 255)
	if n, kind := jsonread.Int(o.Get("pid")); kind == jsonread.IsInt {
		r.PID = n
	}
	if n, kind := jsonread.Int(o.Get("concurrency")); kind == jsonread.IsInt && n > 0 && n <= math.MaxInt32 {
		r.Concurrency = int(n)
	}
	if v := o.Get("queues"); v != nil && v[0] == '[' {
		r.Queues = []string{}
		for e := range jsonread.Elements(v) {
			if name, kind, _ := job.QueueProblem(e); kind == "" {
				r.Queues = append(r.Queues, name)
			}
		}
		r.Queues = jsonread.Distinct(r.Queues)
	}
}

// facts are shown as sent, apart from U+0000 and halves of surrogate pairs, because statements read members of them (pools.sql).
func facts(others []jsonread.Member) []byte {
	b := []byte{'{'}
	for _, name := range factNames {
		for _, other := range slices.Backward(others) { // the last of equal names
			if m := other; string(m.Name) == name {
				if !jsonread.IsNull(m.Value) && jsonread.Depth(m.Value) <= job.MaxNesting {
					b = jsonread.AppendMember(b, m.Literal, jsonread.StorableText(m.Value))
				}
				break
			}
		}
	}
	b = append(b, '}')
	if len(b) == 2 || len(b) > maxFactsBytes {
		return nil
	}
	return b
}

// maxNumber bounds the text of a number that goes into an event. JSON permits numbers of any length, and an event is kept
// for days.
const maxNumber = 32

// load copies numbers as texts, so they keep their digits.
func load(facts []byte) string {
	var b []byte
	if facts == nil {
		return ""
	}
	for literal, value := range jsonread.Members(facts) {
		switch string(jsonread.Name(literal)) {
		case "memory_mb", "cpu_percent":
			if value.Kind() == '0' && len(value) <= maxNumber {
				b = append(append(append(append(b, ','), literal...), ':'), value...)
			}
		}
	}
	return string(b)
}

// Leave is the deregistration of a worker. Reason and JobsCompleted go into the event worker.stopped.
type Leave struct {
	Ref
	Reason        string // shutdown, signal or error
	JobsCompleted int64  // -1: not reported
}

// DecodeLeave reads the optional body of a deregistration. Members with other values than expected are ignored: they are no
// reason to keep the worker registered.
func DecodeLeave(worker Ref, raw []byte) (Leave, *ojs.Error) {
	r := Leave{Ref: worker, Reason: "shutdown", JobsCompleted: -1}
	if len(bytes.TrimSpace(raw)) == 0 {
		return r, nil
	}
	o, err := jsonread.OpenBody(raw, "reason", "jobs_completed")
	if err != nil {
		return r, err
	}
	switch text, _ := jsonread.Text(o.Get("reason")); text {
	case "signal", "error":
		r.Reason = text
	}
	if n, kind := jsonread.Int(o.Get("jobs_completed")); kind == jsonread.IsInt && n >= 0 && n < math.MaxInt64 {
		r.JobsCompleted = n
	}
	return r, nil
}

// DecodeDirective reads an operator's directive: running, quiet or terminate.
func DecodeDirective(raw []byte) (string, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "directive")
	if err != nil {
		return "", err
	}
	if o.RefuseOthers(); o.Err() != nil {
		return "", o.Err()
	}
	switch text, _ := jsonread.Text(o.Get("directive")); text {
	case "running", "resume":
		return "running", nil
	case "quiet", "terminate":
		return text, nil
	}
	o.Refuse("directive", "quiet, terminate, running or resume")
	return "", o.Err()
}
