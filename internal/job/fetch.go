package job

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

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
	v, err := rawjson.Check(raw)
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
		var ps payload.Problems
		ps.Add(ojs.ErrInvalidPayload, "fetch", "$.fetch", "an object, the body of a fetch", v)
		return Fetch{}, ps.Err()
	}
	r, problems := decodeFetch(v, 0, "absent or 0: acks are answered at once")
	return r, inMember("fetch", problems.Err())
}

// With a pool the list of queues may be left out: those of the pool are taken.
func decodeFetch(v jsontext.Value, longestWait int64, wait string) (Fetch, payload.Problems) {
	b := body{}
	b.Fields, _ = payload.Read(v, fetchNames)
	r := Fetch{}
	if v := b.Get("pool"); v != nil {
		if r.Pool, _ = rawjson.Text(v); !payload.IsName(r.Pool) {
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

// NewFetch is DecodeFetch for values that a transport has read. Empty and zero values were not sent. The transport sets
// MaxBytes and Tenant afterwards. Such a fetch does not wait.
func NewFetch(queues []string, count int64, workerID string) (Fetch, *ojs.Error) {
	var ps payload.Problems
	f := Fetch{Queues: CheckQueues(queues, &ps), Count: 1, WorkerID: payload.CheckWorkerID(workerID, &ps)}
	if count != 0 {
		f.Count = clampCount(count)
	}
	return f, ps.Err()
}

// CheckQueues checks a list of queue names, and leaves out repetitions. Repetitions are left out, because a claim looks into
// each queue of its list. The first one counts: the order is the order of preference. gRPC and the definitions of pools use it;
// queues does the same for JSON, without a list in between.
func CheckQueues(queues []string, ps *payload.Problems) []string {
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
			ps.Add(kind, "queues", "$.queues", expected, payload.Quote(name))
			return nil
		}
	}
	return payload.Distinct(slices.Clone(queues))
}

func errNoQueues(ps *payload.Problems, received jsontext.Value) {
	ps.Add(ojs.ErrInvalidQueue, "queues", "$.queues", "a non-empty array of queue names", received)
	ps.Hint("Send queues as an array of names, in the order in which they are to be served, such as [\"mail\"].")
}

func errManyQueues(ps *payload.Problems, n int) {
	ps.Add(ojs.ErrInvalidQueue, "queues", "$.queues", "at most "+strconv.Itoa(maxQueues)+" queue names", payload.Quote(strconv.Itoa(n)+" names"))
	ps.Hint("Fetch from fewer queues at a time.")
}

// The first wrong name ends the list: one problem is enough to correct it.
func (b *body) queues() []string {
	list := b.Get("queues")
	if list == nil {
		return b.queue()
	}
	if list[0] != '[' || rawjson.Len(list) == 0 {
		errNoQueues(&b.Problems, list)
		return nil
	}
	if n := rawjson.Len(list); n > maxQueues {
		errManyQueues(&b.Problems, n)
		return nil
	}
	names := make([]string, 0, 4)
	for e := range rawjson.Elements(list) {
		name, kind, expected := QueueProblem(e)
		if kind != "" {
			b.Problems.Add(kind, "queues", "$.queues", expected, e)
			return nil
		}
		names = append(names, name)
	}
	return payload.Distinct(names)
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
