package retry

import "time"

// Values of Policy.OnExhaustion: what a job becomes when it will not run again. Empty, as by default, means that a failure
// makes a dead letter and that expiry does not.
const (
	ExhaustDiscard    = "discard"
	ExhaustDeadLetter = "dead_letter"
)

// Values of Policy.Strategy. The input word "none" is stored as Constant.
const (
	Exponential = "exponential"
	Linear      = "linear"
	Polynomial  = "polynomial"
	Constant    = "constant"
)

// Policy says how often a job runs and how long it waits in between (docs/reference/retries.md, Policy). The merged policy is settled at
// enqueue and stored with the job.
type Policy struct {
	MaxAttempts        int64         // upper bound on executions, the first included; 0 and 1 both mean one
	InitialInterval    time.Duration // > 0, whole ms
	MaxInterval        time.Duration // ≥ InitialInterval, whole ms
	BackoffCoefficient float64       // ≥ 1
	Jitter             bool
	NonRetryable       []string // compared with type, error class and code, never with the message
	OnExhaustion       string   // ExhaustDiscard, ExhaustDeadLetter or empty
	Strategy           string
}

// Default is the policy of a job whose client and queue set nothing. It returns a new value: NonRetryable of one policy is
// never shared with another.
func Default() Policy {
	return Policy{
		MaxAttempts: 3, InitialInterval: time.Second, MaxInterval: 5 * time.Minute, BackoffCoefficient: 2,
		Jitter: true, Strategy: Exponential,
	}
}

// IsDefault reports whether p is Default but for MaxAttempts, which has a column of its own. Such a policy is stored as NULL,
// so a release with other defaults would apply them to jobs that are queued already.
func (p Policy) IsDefault() bool {
	d := Default()
	return p.InitialInterval == d.InitialInterval && p.MaxInterval == d.MaxInterval && p.BackoffCoefficient == d.BackoffCoefficient &&
		p.Jitter && len(p.NonRetryable) == 0 && p.OnExhaustion == d.OnExhaustion && p.Strategy == d.Strategy
}
