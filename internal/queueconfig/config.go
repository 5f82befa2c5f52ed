package queueconfig

import (
	"strings"
	"time"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
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
	DefaultRetry        []byte // merged policy as retry.Policy.Encode gives it
	Retention           Retention
	AllowedJobTypes     []string // exact, or a prefix and *
	Producers           []string // the same, of principals
	Fairness            *Fairness

	retry *retry.Policy // DefaultRetry
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
func (c *Config) Retry() (retry.Policy, bool) {
	if c.retry == nil {
		return retry.Policy{}, false
	}
	return *c.retry, true
}

// AllowsType reports whether jobs of the type may be enqueued.
func (c *Config) AllowsType(jobType string) bool { return allows(c.AllowedJobTypes, jobType) }

// AllowsProducer reports whether the principal may enqueue.
func (c *Config) AllowsProducer(principal string) bool { return allows(c.Producers, principal) }

// nil allows all; an empty list does not occur.
func allows(patterns []string, name string) bool {
	for _, p := range patterns {
		prefix, wild := strings.CutSuffix(p, "*")
		if p == name || wild && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return patterns == nil
}
