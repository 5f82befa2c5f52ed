package job

import "time"

// Job is a validated new job, ready for the store. It owns its bytes: the request body may be reused. Decoders fill what the
// client says. The domains set the fields from Producer on, Lane, WorkflowID and ID before the insert, and the store sets
// Outcome. One goroutine at a time owns a Job: it goes from the decoder to the flush and back to the caller.
type Job struct {
	ID       [16]byte // zero unless ClientID
	ClientID bool     // the id was chosen by the client; otherwise the store makes one

	Type     string
	Queue    string
	Priority int16
	// It may be 0, which means one attempt like 1.
	MaxAttempts int64
	Retry       []byte // merged policy as retry.Policy.Encode gives it; nil: the default policy (MaxAttempts may still differ)

	// Compact JSON; literals and key order are the client's.
	Args  []byte
	Meta  []byte // nil: {}
	Extra []byte // one object with every other attribute that is echoed, under canonical names; nil: none. See WithoutTimeout

	Schema        string // the URI of a schema, as sent; "": not sent
	SchemaVersion string // the text of the attribute version, if it is a string or an integer

	Pending     bool
	ScheduledAt When
	ExpiresAt   When

	// Lengths in milliseconds are at most 36 500 days, visibility at most 7 days (docs/reference/http.md, Bodies).
	TimeoutMS          int64 // 0: the server's default
	VisibilityMS       int64 // 0: the server's default
	GraceMS            int64
	TotalTimeoutMS     int64  // 0: none
	EnqueueTTLMS       int64  // 0: none
	HeartbeatTimeoutMS int64  // 0: none
	ResultTTL          *int64 // seconds; nil: the server's default, 0: do not keep, -1: keep with the row

	// UniqueKey, Lane and LimitKey are computed from what was sent.
	Unique     *Unique      // nil: no policy
	UniqueKey  string       // fingerprint by Unique; "": no policy
	WorkflowID [16]byte     // root of the workflow to which the job belongs; zero: none
	Lane       string       // the part of its queue in which it waits; "": none
	LimitKey   string       // key of its rate limit; "": none
	OnLimit    string       // what that limit does when it blocks the job: reschedule or drop; "": it waits
	Limit      *LimitPolicy // the policy for LimitKey or, without one, for the whole queue; nil: none was sent

	// A queue may admit the jobs of some producers only (queue/admit.go).
	Producer  string        // the principal that enqueues the job; "": nobody has authenticated
	Admitted  bool          // its queue took it when the workflow was created whose step it is; rules for new jobs are not applied again
	BlockFor  time.Duration // how long the enqueue waits for room in a queue whose policy is to block
	Unbounded bool          // the bounds of its queue do not hold for the job: it belongs to work that was accepted before

	TraceID string // "" if the job carries no trace context
	Source  string // of its first event; "": api. The same for all jobs of one insert

	// Outcome is set by the store when it has tried to insert the job.
	Outcome Outcome
}

// AvailableAtOnce reports whether the job begins as available, as far as a node can tell: a scheduled time that is over has the same effect,
// but only the clock of the database decides that.
func (j *Job) AvailableAtOnce() bool { return !j.Pending && !j.ScheduledAt.Set }

// Outcome is what its unique policy and its queue have made of a job. It is valid once the insert has returned without an error
// for this job.
type Outcome struct {
	Deduplicated bool      // an equivalent job exists, with which the store has answered; this one is not stored
	Replaced     []*Record // the jobs that were cancelled for this one, as they are now
	Pressure     *Pressure // how full its queue is with it; nil: the queue has no bound, or is not as full as its threshold

	// The caller looks after both when the insert has committed: workflows go on without the jobs, and room in the limits
	// admits others.
	// Of the jobs that were discarded to make room for this one and others: the roots of their workflows, and their limit keys.
	Dropped       [][16]byte
	DroppedLimits []string
}

// Pressure is how full a bounded queue is.
type Pressure struct {
	Depth    int64   // waiting jobs
	MaxDepth int64   // 0: not bounded by their number
	Share    float64 // of the bound, at most 1
}
