package job

import (
	"math"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// HeartbeatRequest is the body of POST /workers/heartbeat (contract 20 §6.1), and of registration.
type HeartbeatRequest struct {
	WorkerID     string
	State        string   // running, quiet, terminate; "" if nothing of the kind was reported
	ActiveJobs   int      // the reported number, else the number of ids
	JobIDs       []string // union of all places, as sent, without repetitions; see ojs.ParseID
	VisibilityMS int64    // 0: the duration chosen at fetch
	Hostname     string
	PID          int64
	Queues       []string // nil: not reported
	Concurrency  int      // 0: not reported
	Facts        []byte   // one compact object with the other facts, without U+0000; nil: none
	Load         string   // of Facts what is a number about memory and CPU: members, each with a leading comma
}

var heartbeatNames = []string{
	"worker_id", "state", "shutdown", "active_jobs", "active_job_ids", "job_id", "visibility_timeout_ms",
	"hostname", "pid", "queues", "concurrency",
}

// factNames are stored as they were last reported; any other member is ignored.
var factNames = []string{"labels", "started_at", "version", "metadata", "memory_mb", "cpu_percent"}

// maxFactsBytes bounds what is stored about a worker; more is dropped, because a beat must not fail for it.
const maxFactsBytes = 65_536

// DecodeHeartbeat reads the body of a BEAT. Only the worker, its jobs and the visibility are checked: facts about a worker
// are taken if they fit and dropped if not.
func DecodeHeartbeat(raw []byte) (HeartbeatRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return HeartbeatRequest{}, err
	}
	b := body{}
	var others []member
	b.fields, others = readFields(v, heartbeatNames)
	r := HeartbeatRequest{WorkerID: b.workerID(), State: b.workerState(), VisibilityMS: b.visibility(), Facts: facts(others)}
	if r.WorkerID == "" && len(b.problems) == 0 {
		b.refuse("worker_id", "the non-empty id of this worker")
	}
	r.Load = load(r.Facts)
	b.activeJobs(&r)
	b.describe(&r)
	return r, b.problems.err()
}

func (b *body) workerState() string {
	if stop, _ := rawjson.Bool(b.get("shutdown")); stop {
		return "terminate"
	}
	switch text, _ := rawjson.Text(b.get("state")); text {
	case "running", "quiet", "terminate":
		return text
	case "drain", "draining":
		return "quiet"
	default:
		return ""
	}
}

// activeJobs: active_jobs is a number (JS, Go) or the ids (Python); ids come from up to three places.
func (b *body) activeJobs(r *HeartbeatRequest) {
	reported := false
	switch v := b.get("active_jobs"); {
	case v == nil:
	case v[0] == '[':
		r.JobIDs = b.idList("active_jobs")
	default:
		var n int64
		n, reported = b.integer("active_jobs", math.MinInt32, math.MaxInt32, "an integer or an array of job ids")
		r.ActiveJobs = int(max(n, 0))
	}
	if b.get("active_job_ids") != nil {
		r.JobIDs = append(r.JobIDs, b.idList("active_job_ids")...)
	}
	if v := b.get("job_id"); v != nil {
		if id, ok := rawjson.Text(v); ok {
			r.JobIDs = append(r.JobIDs, id)
		} else {
			b.refuse("job_id", "a job id")
		}
	}
	r.JobIDs = distinct(r.JobIDs)
	if !reported {
		r.ActiveJobs = len(r.JobIDs)
	}
}

func (b *body) idList(field string) []string {
	v := b.get(field)
	if v[0] == '[' {
		if ids, ok := texts(v); ok {
			return ids
		}
	}
	b.refuse(field, "an array of job ids")
	return nil
}

// texts reads an array of strings.
func texts(array jsontext.Value) ([]string, bool) {
	list := []string{}
	for e := range rawjson.Elements(array) {
		text, ok := rawjson.Text(e)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, true
}

func (b *body) describe(r *HeartbeatRequest) {
	hostname, _ := rawjson.Text(b.get("hostname"))
	r.Hostname = Shorten(strings.ReplaceAll(hostname, "\x00", ""), 255)
	if n, kind := rawjson.Int(b.get("pid")); kind == rawjson.IsInt {
		r.PID = n
	}
	if n, kind := rawjson.Int(b.get("concurrency")); kind == rawjson.IsInt && n > 0 && n <= math.MaxInt32 {
		r.Concurrency = int(n)
	}
	if v := b.get("queues"); v != nil && v[0] == '[' {
		r.Queues = []string{}
		for e := range rawjson.Elements(v) {
			if name, kind, _ := queueProblem(e); kind == "" {
				r.Queues = append(r.Queues, name)
			}
		}
		r.Queues = distinct(r.Queues)
	}
}

func facts(others []member) []byte {
	b := []byte{'{'}
	for _, name := range factNames {
		for i := len(others) - 1; i >= 0; i-- { // the last of equal names
			if m := others[i]; string(m.name) == name {
				if !rawjson.IsNull(m.value) && rawjson.Depth(m.value) <= (Limits{}).depth() {
					b = appendMember(b, m.literal, rawjson.DropNUL(m.value))
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

// maxNumber bounds the text of a number that goes into an event.
const maxNumber = 32

func load(facts []byte) string {
	var b []byte
	if facts == nil {
		return ""
	}
	for literal, value := range rawjson.Members(facts) {
		switch string(rawjson.Name(literal)) {
		case "memory_mb", "cpu_percent":
			if value.Kind() == '0' && len(value) <= maxNumber {
				b = append(append(append(append(b, ','), literal...), ':'), value...)
			}
		}
	}
	return string(b)
}
