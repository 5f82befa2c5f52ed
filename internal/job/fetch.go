package job

import (
	"math"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// FetchRequest is the body of POST /workers/fetch (contract 10 §7).
type FetchRequest struct {
	Queues       []string // in order of preference, without repetitions
	Count        int      // 1…1000
	WorkerID     string
	VisibilityMS int64 // 0: the job's or the server's value
	WaitMS       int   // 0…20 000
}

const (
	maxFetch  = 1000
	maxWaitMS = 20_000
)

var fetchNames = []string{"queues", "queue", "count", "max_jobs", "worker_id", "visibility_timeout_ms", "wait_ms"}

// DecodeFetch reads the body of a FETCH.
func DecodeFetch(raw []byte) (FetchRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return FetchRequest{}, err
	}
	b := body{}
	b.fields, _ = readFields(v, fetchNames)
	r := FetchRequest{Queues: b.queues(), Count: b.count(), WorkerID: b.workerID(), VisibilityMS: b.visibility()}
	wait, _ := b.integer("wait_ms", 0, math.MaxInt64, "an integer >= 0 of milliseconds")
	r.WaitMS = int(min(wait, maxWaitMS))
	return r, b.problems.err()
}

func (b *body) queues() []string {
	list := b.get("queues")
	if list == nil {
		return b.queue()
	}
	if list[0] != '[' || rawjson.Len(list) == 0 {
		b.problems.add(ojs.KindInvalidQueue, "queues", "$.queues", "a non-empty array of queue names", list)
		return nil
	}
	names := make([]string, 0, 4)
	for e := range rawjson.Elements(list) {
		name, kind, expected := queueProblem(e)
		if kind != "" {
			b.problems.add(kind, "queues", "$.queues", expected, e)
			return nil
		}
		names = append(names, name)
	}
	return distinct(names)
}

// queue reads the alias for a single queue.
func (b *body) queue() []string {
	v := b.get("queue")
	if v == nil {
		b.problems.add(ojs.KindInvalidQueue, "queues", "$.queues", "a non-empty array of queue names", nil)
		return nil
	}
	name, kind, expected := queueProblem(v)
	if kind != "" {
		b.problems.add(kind, "queue", "$.queue", expected, v)
	}
	return []string{name}
}

func (b *body) count() int {
	field := "count"
	if b.get(field) == nil {
		field = "max_jobs"
	}
	n, given := b.integer(field, math.MinInt64, math.MaxInt64, "an integer")
	if !given {
		return 1
	}
	return int(min(max(n, 1), maxFetch))
}

// distinct keeps the first of equal names, in place.
func distinct(names []string) []string {
	if len(names) < 2 {
		return names
	}
	seen := make(map[string]bool, len(names))
	kept := names[:0]
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			kept = append(kept, n)
		}
	}
	return kept
}

// object returns item if it is a JSON object, for the elements of a batch.
func object(item jsontext.Value, what string) (jsontext.Value, *ojs.Error) {
	if item[0] != '{' {
		return nil, ojs.ErrInvalidPayload(what, "a JSON object", rawjson.Show(item), "'"+what+"' must be a JSON object, got "+rawjson.Describe(item)+".")
	}
	return item, nil
}
