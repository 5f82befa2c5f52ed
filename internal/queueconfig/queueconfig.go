// Package queueconfig owns what is configured for a queue: the fields that clients send, their effective values, and the cache that every
// enqueue of a node reads; and the maintenance switch (maintenance.go). It must never cost a queue without configuration a statement, a
// lock or a count.
//
// A queue is plain if it is active and has no configuration, neither its own nor that of Default. Nearly all queues are,
// and none of them is in the cache. Everything in a View is read-only and shared by all requests of the node.
//
// What holds for a queue is computed once per change and node, not per job: queueconfig.go decodes
// the rows, cache.go reads them and answers look-ups without a lock. patch.go merges what clients send into what is stored;
// the transaction around it belongs to package queueadmin.
//
// How old a view may be is part of the contract with clients: a change holds on every node within loop.Settled
// (docs/reference/queues.md, Configuration).
package queueconfig

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
)

// Default is the name under which the values are kept that queues inherit. No queue can have it. It is a row of ojs.queues
// like others, and lists leave it out.
const Default = "_default"

// Values of Queue.Status.
const (
	// Active and Draining queues can be fetched from, Active and Paused ones take new jobs (docs/reference/queues.md, Status).
	Active   = "active"
	Paused   = "paused"
	Draining = "draining"
)

// Values of Backpressure.Strategy.
const (
	// Reject, Block and DropOldest have their meaning from docs/reference/backpressure.md, At the bound.
	Reject     = "reject"
	Block      = "block"
	DropOldest = "drop_oldest"
)

// Config is the configuration of a queue. nil: not set. Pointers tell "not set" from 0, which means something else in most
// fields: a concurrency of 0 stops dispatch. It is read-only once it is in a View. Times are in ms, at least 1.
type Config struct {
	Concurrency         *int64           // most active jobs of the queue; 0: none may start
	RateLimit           *job.LimitPolicy // without key
	Backpressure        *Backpressure
	VisibilityTimeoutMS *int64
	DefaultTimeoutMS    *int64
	DefaultRetry        []byte // merged policy as job.RetryPolicy.Encode gives it
	Retention           Retention
	AllowedJobTypes     []string // exact, or a prefix and *
	Producers           []string // the same, of principals
	Fairness            *Fairness

	retry *job.RetryPolicy // DefaultRetry
	raw   []byte
}

// JSON is the configuration as it is stored and echoed, an object. It must not be changed.
func (c *Config) JSON() []byte {
	if c.raw == nil {
		return []byte(`{}`)
	}
	return c.raw
}

// Backpressure is the bound of a queue (docs/reference/queues.md, Configuration). Counts are of available, scheduled,
// retryable and pending jobs. WarningThreshold is above 0, at most 1.
type Backpressure struct {
	MaxDepth         int64   // 0: unbounded
	MaxSizeBytes     int64   // 0: unbounded
	MaxTenantDepth   int64   // of the jobs of each tenant; 0: unbounded
	Strategy         string  // Reject, Block or DropOldest
	WarningThreshold float64 // fraction of the bound
}

// Bounds reports whether the queue is bounded at all. A strategy alone bounds nothing.
func (b *Backpressure) Bounds() bool {
	return b.MaxDepth > 0 || b.MaxSizeBytes > 0 || b.MaxTenantDepth > 0
}

// Retention is how long finished jobs are kept. nil: as long as the server keeps them by default. Each is above zero.
type Retention struct {
	Completed, Discarded, Cancelled *Duration
}

// Duration is a duration with the text that the client sent. Answers show the text, so that P7D does not come back as
// PT168H.
type Duration struct {
	time.Duration
	Text string
}

// Fairness says how jobs of a queue take turns. See docs/reference/fairness.md, Fair queues.
type Fairness struct {
	FairKey string           // tenant, or meta. and the name of a member
	Weights map[string]int64 // of values of the key; 1 for others
}

// Queue is a queue with its effective values: its own over those of Default. It is read-only and may be kept; a change
// makes another one. PausedAt is by the clock of the database.
type Queue struct {
	Name     string
	Status   string
	PausedAt time.Time // zero: not paused
	Deleting bool      // the queue goes as soon as its active jobs have ended
	Config   Config

	// Discarded is the retention of discarded jobs that was set for the queue itself: only that holds for dead letters, too. nil: none.
	Discarded *Duration

	own []byte
}

// Draining reports whether the queue takes no new jobs. A deletion counts from the moment it was begun, also in a paused
// queue.
func (q *Queue) Draining() bool { return q.Status == Draining || q.Deleting }

// Own is the configuration that was set for the queue itself, an object. It must not be changed.
func (q *Queue) Own() []byte {
	if q.own == nil {
		return []byte(`{}`)
	}
	return q.own
}

// Retry is the policy that jobs inherit which set none, or only a part; false: the default one of the server. The policy is
// a copy.
func (c *Config) Retry() (job.RetryPolicy, bool) {
	if c.retry == nil {
		return job.RetryPolicy{}, false
	}
	return *c.retry, true
}

// AllowsType reports whether jobs of the type may be enqueued.
func (c *Config) AllowsType(jobType string) bool { return allows(c.AllowedJobTypes, jobType) }

// AllowsProducer reports whether the principal may enqueue.
func (c *Config) AllowsProducer(principal string) bool { return allows(c.Producers, principal) }

// allows permits all by nil; an empty list does not occur.
func allows(patterns []string, name string) bool {
	for _, p := range patterns {
		prefix, wild := strings.CutSuffix(p, "*")
		if p == name || wild && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return patterns == nil
}

// field is a setting of a queue. The order is that of the stored object. It may be changed, as long as the fields of a group follow each
// other: what is stored is read by name.
type field int

const (
	concurrency field = iota
	rateLimit
	maxDepth
	maxSizeBytes
	maxTenantDepth
	strategy
	warningThreshold
	visibilityTimeout
	defaultTimeout
	defaultRetry
	keepCompleted
	keepDiscarded
	keepCancelled
	deadLetterQueue
	deadLetterMaxSize
	allowedJobTypes
	producers
	fairness
	fieldCount
)

// fieldSpec is the place of a field in the stored object.
type fieldSpec struct{ group, name string }

// specs is in the order of the fields and of the stored object: the fields of a group follow each other.
var specs = [fieldCount]fieldSpec{
	concurrency: {"", "concurrency"}, rateLimit: {"", "rate_limit"},
	maxDepth: {"backpressure", "max_depth"}, maxSizeBytes: {"backpressure", "max_size_bytes"},
	maxTenantDepth: {"backpressure", "max_depth_per_tenant"}, strategy: {"backpressure", "strategy"},
	warningThreshold: {"backpressure", "warning_threshold"}, visibilityTimeout: {"", "visibility_timeout"},
	defaultTimeout: {"", "default_timeout"}, defaultRetry: {"", "default_retry"},
	keepCompleted: {"retention", "completed"}, keepDiscarded: {"retention", "discarded"}, keepCancelled: {"retention", "cancelled"},
	deadLetterQueue: {"", "dead_letter_queue"}, deadLetterMaxSize: {"", "dead_letter_max_size"},
	allowedJobTypes: {"", "allowed_job_types"}, producers: {"", "producers"}, fairness: {"", "fairness"},
}

// aliases are other names of fields, at the top level. Clients of other servers send them; answers show them, too
// (docs/reference/queues.md, Configuration).
var aliases = map[string]field{
	"max_size": maxDepth, "max_size_bytes": maxSizeBytes, "overflow_policy": strategy, "dead_letter_ttl": keepDiscarded,
}

// path is the field as clients know it. It stands in errors, so that a client finds the member that is meant.
func (f field) path() string {
	if specs[f].group == "" {
		return specs[f].name
	}
	return specs[f].group + "." + specs[f].name
}

const (
	// maxCount bounds counts, maxPatterns and maxTextLen what each enqueue compares; maxWeights is a cost of each turn.
	maxCount    = 1_000_000_000
	maxPatterns = 1000
	maxTextLen  = 255
	maxWeights  = 1000
	maxWeight   = 1000
	maxLevels   = 32
)

// set reads the value of a field, which is not null. It returns what was expected, for the message of a refusal; "": c has the value.
func (c *Config) set(f field, v jsontext.Value) (expected string) {
	switch f {
	case concurrency:
		c.Concurrency, expected = count(v, 0, maxCount)
	case rateLimit:
		// The first problem is shown here; addInPolicy names all of them.
		var problems jsonread.Problems
		c.RateLimit = job.ParseQueueLimit(v, "rate_limit", "$.rate_limit", &problems)
		if err := problems.Err(); err != nil {
			return "a rate-limit policy: " + strings.TrimSuffix(err.Message, ".")
		}
	case maxDepth, maxTenantDepth, maxSizeBytes:
		most := int64(maxCount)
		if f == maxSizeBytes {
			most = 1 << 50 // 1 PiB
		}
		n, expected := count(v, 0, most)
		if expected != "" {
			return expected
		}
		switch b := c.backpressure(); f {
		case maxDepth:
			b.MaxDepth = *n
		case maxTenantDepth:
			b.MaxTenantDepth = *n
		default:
			b.MaxSizeBytes = *n
		}
	case strategy:
		text, _ := jsonread.Text(v)
		if text != Reject && text != Block && text != DropOldest {
			return "reject, block or drop_oldest"
		}
		c.backpressure().Strategy = text
	case warningThreshold:
		// v is a JSON value, so a text is refused by its quotes.
		threshold, err := strconv.ParseFloat(string(v), 64)
		if err != nil || threshold <= 0 || threshold > 1 {
			return "a number above 0, at most 1"
		}
		c.backpressure().WarningThreshold = threshold
	case visibilityTimeout:
		// The bound is that of a job's own visibility timeout.
		c.VisibilityTimeoutMS, expected = seconds(v, job.MaxVisibilityMS,
			"an integer of seconds above 0, or a duration such as PT30S, at most 7 days")
	case defaultTimeout:
		c.DefaultTimeoutMS, expected = seconds(v, jsonread.MaxDuration.Milliseconds(),
			"an integer of seconds above 0, or a duration such as PT5M, at most 36500 days")
	case defaultRetry:
		if v[0] != '{' {
			return "a retry policy, an object"
		}
		// The policy is merged with the default one of the server when it is set, so a later default does not change it.
		p, err := job.ParseRetry(v, job.DefaultRetry())
		if err != nil {
			return "a retry policy: " + strings.TrimSuffix(err.Message, ".")
		}
		c.retry, c.DefaultRetry = &p, p.Encode()
	case keepCompleted:
		c.Retention.Completed, expected = keep(v)
	case keepDiscarded:
		c.Retention.Discarded, expected = keep(v)
	case keepCancelled:
		c.Retention.Cancelled, expected = keep(v)
	// The dead letter is a state, not a queue: these two are stored and shown, and nothing else. They are checked, so that a later
	// release could use what is stored.
	case deadLetterQueue:
		if text, _ := jsonread.Text(v); !jsonread.IsName(text) || len(text) > maxTextLen {
			return "a name of at most 255 bytes"
		}
	case deadLetterMaxSize:
		_, expected = count(v, 0, maxCount)
	case allowedJobTypes:
		c.AllowedJobTypes, expected = patterns(v)
	case producers:
		c.Producers, expected = patterns(v)
	case fairness:
		c.Fairness, expected = readFairness(v)
	}
	return expected
}

// count reads an integer from least on. The pointer is nil if there is a problem.
func count(v jsontext.Value, least, most int64) (*int64, string) {
	// 5.0 and 50e-1 are integers, too.
	n, kind := jsonread.Int(v)
	if kind != jsonread.IsInt || n < least || n > most {
		return nil, "an integer from " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10)
	}
	return &n, ""
}

// backpressure makes the object with the first field of the group, with the built-in values of the others.
func (c *Config) backpressure() *Backpressure {
	if c.Backpressure == nil {
		c.Backpressure = &Backpressure{Strategy: Reject, WarningThreshold: 0.8}
	}
	return c.Backpressure
}

// seconds reads an integer of seconds, or a duration. A duration is rounded to milliseconds, so one below half a millisecond is refused
// like 0.
func seconds(v jsontext.Value, maxMS int64, expected string) (*int64, string) {
	var ms int64
	if text, ok := jsonread.Text(v); ok {
		d, err := jsonread.ParseDuration(text)
		if err != nil {
			return nil, expected
		}
		ms = d.Milliseconds()
	} else {
		n, kind := jsonread.Int(v)
		if kind != jsonread.IsInt || n > maxMS/1000 {
			return nil, expected
		}
		ms = n * 1000
	}
	// Negative numbers come here, too.
	if ms <= 0 || ms > maxMS {
		return nil, expected
	}
	return &ms, ""
}

// keep refuses zero, which would remove jobs before anybody could read them.
func keep(v jsontext.Value) (*Duration, string) {
	text, _ := jsonread.Text(v)
	d, err := jsonread.ParseDuration(text)
	if err != nil || d <= 0 {
		return nil, "a duration above zero such as P7D or 24h, at most 36500 days"
	}
	return &Duration{d, text}, ""
}

// patterns reads names, each exact or a prefix and *. An empty array is refused: it would allow nothing, and null is how to
// allow all. A star is allowed at the end only, so a comparison is one of prefixes.
func patterns(v jsontext.Value) ([]string, string) {
	list, ok := jsonread.Texts(v)
	ok = ok && len(list) > 0 && len(list) <= maxPatterns
	for _, p := range list {
		ok = ok && jsonread.IsName(p) && len(p) <= maxTextLen && !strings.Contains(p[:len(p)-1], "*")
	}
	if !ok {
		return nil, "an array of 1 to 1000 names of at most 255 bytes, each exact or a prefix followed by *; null allows all"
	}
	return list, ""
}

// readFairness has one expected sentence for all mistakes: the value is small.
func readFairness(v jsontext.Value) (*Fairness, string) {
	const expected = `an object such as {"key":"meta.customer","weights":{"acme":3}}: key is tenant, or meta. and a name of at most 255 bytes; weights are 1 to 1000, at most 1000 of them`
	if v[0] != '{' {
		return nil, expected
	}
	o := jsonread.Open(v, "key", "weights")
	f := &Fairness{Weights: map[string]int64{}}
	f.FairKey, _ = jsonread.Text(o.Get("key"))
	name, isMeta := strings.CutPrefix(f.FairKey, "meta.")
	if f.FairKey != "tenant" && (!isMeta || !jsonread.IsName(name)) || len(f.FairKey) > maxTextLen {
		return nil, expected
	}
	weights := o.Get("weights")
	if weights == nil {
		return f, ""
	}
	if weights[0] != '{' {
		return nil, expected
	}
	for literal, value := range jsonread.Members(weights) {
		// A weight of 0 would let a key wait for ever.
		n, problem := count(value, 1, maxWeight)
		key := string(jsonread.Name(literal))
		if problem != "" || !jsonread.IsName(key) || len(f.Weights) == maxWeights {
			return nil, expected
		}
		f.Weights[key] = *n
	}
	return f, ""
}
